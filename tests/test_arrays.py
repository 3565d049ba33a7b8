"""Columns from lists and arrays are those that pyarrow itself would make."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchscience.arrays import from_list, from_numpy, one_name, to_numpy
from batchscience.errors import BatchScienceError

floats = st.floats(allow_nan=False)
whole = st.integers(-(2**63), 2**63 - 1)
texts = st.text(st.characters(exclude_categories=("Cs",)))
kinds: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.float64(), floats),
    (pa.int64(), whole),
    (pa.bool_(), st.booleans()),
    (pa.string(), texts),
    (pa.list_(pa.float64()), st.lists(st.none() | floats, max_size=3)),
]


@pytest.mark.parametrize(("type_", "values"), kinds, ids=[str(type_) for type_, _ in kinds])
@given(data=st.data())
def test_a_list_becomes_the_column_that_pyarrow_makes(
    type_: pa.DataType, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    drawn = data.draw(st.lists(st.none() | values, max_size=20))
    column = from_list(drawn, type_)
    column.validate(full=True)
    assert column.equals(pa.array(drawn, type_))
    assert column.null_count == drawn.count(None)


@given(values=st.lists(whole, max_size=20), start=st.integers(0, 20), cut=st.integers(0, 20))
def test_numbers_go_into_a_column_and_come_back(values: list[int], start: int, cut: int) -> None:
    column = from_numpy(np.array(values, dtype=np.int64))
    column.validate(full=True)
    assert column.equals(pa.array(values, pa.int64()))
    assert to_numpy(column[start:]).tolist() == values[start:]
    pieces = pa.chunked_array([column[:cut], column[cut:]])
    assert to_numpy(pieces).tolist() == values
    assert to_numpy(pieces[start:]).tolist() == values[start:]


def test_a_column_of_no_rows_is_an_array_of_none() -> None:
    assert to_numpy(pa.chunked_array([], pa.float64())).dtype == np.float64
    assert to_numpy(from_list([], pa.int64())).tolist() == []


def test_steps_of_an_array_are_followed() -> None:
    assert from_numpy(np.arange(10.0)[::3]).to_pylist() == [0.0, 3.0, 6.0, 9.0]


def test_a_null_is_not_taken_for_a_number() -> None:
    with pytest.raises(ValueError, match="found 1 of 2"):
        to_numpy(pa.array([1, None], pa.int64()))


def test_texts_that_no_column_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batchscience.arrays._MOST", 5)
    assert from_list(["ab", "cde"], pa.string()).to_pylist() == ["ab", "cde"]
    with pytest.raises(BatchScienceError, match="6 bytes"):
        from_list(["abc", "def"], pa.string())


def test_one_name_is_written_once() -> None:
    column = one_name("mnist/fc_1024/sgd", 3)
    column.validate(full=True)
    assert column.to_pylist() == ["mnist/fc_1024/sgd"] * 3
    assert column.dictionary.to_pylist() == ["mnist/fc_1024/sgd"]
