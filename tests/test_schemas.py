"""The check of tables: keys present, unique and sorted."""

import pyarrow as pa
import pytest

from batchscience.errors import SchemaError
from batchscience.schemas import MEASUREMENT_KEY, check, column_name, measurements, trials

SCHEMA = measurements(["val/e"])


def table(rows: list[tuple[str | None, int, int, int]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [[], [], [], []]
    types = [pa.string(), pa.int64(), pa.int64(), pa.int64()]
    arrays = [pa.array(column, type_) for column, type_ in zip(columns, types, strict=True)]
    arrays[0] = arrays[0].dictionary_encode()
    return pa.table([*arrays, pa.array([0.5] * len(rows))], schema=SCHEMA)


def test_a_sorted_table_passes() -> None:
    good = table([("a", 1, 1, 0), ("a", 1, 1, 10), ("a", 1, 2, 0), ("a", 2, 1, 0), ("b", 1, 1, 0)])
    assert check(good, SCHEMA, MEASUREMENT_KEY) is good
    check(table([]), SCHEMA, MEASUREMENT_KEY)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("a", 1, 1, 10), ("a", 1, 1, 0)], "not sorted"),
        ([("a", 2, 1, 0), ("a", 1, 5, 5)], "not sorted"),
        ([("b", 1, 1, 0), ("a", 1, 1, 0)], "not sorted"),
        ([("a", 1, 1, 0), ("a", 1, 1, 0)], "1 rows repeat the key"),
        ([(None, 1, 1, 0)], "1 rows without workload"),
    ],
)
def test_a_broken_key_is_refused(rows: list[tuple[str | None, int, int, int]], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        check(table(rows), SCHEMA, MEASUREMENT_KEY)


def test_another_column_or_type_is_refused() -> None:
    good = table([("a", 1, 1, 0)])
    with pytest.raises(SchemaError, match="expected the columns"):
        check(good.drop_columns("val/e"), SCHEMA, MEASUREMENT_KEY)
    with pytest.raises(SchemaError, match="expected the columns"):
        check(good.set_column(3, "step", pa.array([0.0])), SCHEMA, MEASUREMENT_KEY)


def test_metaparameters_are_columns_and_reserved_names_are_marked() -> None:
    assert trials(["momentum", "learning_rate"]).names[-2:] == ["learning_rate", "momentum"]
    assert column_name("trial", "metric") == "metric:trial"
    assert column_name("val/e", "metric") == "val/e"
