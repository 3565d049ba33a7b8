"""The schemas of the Parquet tables, and the check that a table holds to its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .arrays import to_numpy
from .errors import SchemaError

SCHEMA_NUMBER = 1
"""Raised when a reader of older tables would misread newer ones."""

STUDY_KEY = ("workload", "batch_size")
TRIAL_KEY = (*STUDY_KEY, "trial")
MEASUREMENT_KEY = (*TRIAL_KEY, "step")

_WORKLOAD = pa.field("workload", pa.dictionary(pa.int32(), pa.string()), nullable=False)
_BATCH_SIZE = pa.field("batch_size", pa.int64(), nullable=False)
_TRIAL = pa.field("trial", pa.int64(), nullable=False)

STUDIES = pa.schema(
    [
        _WORKLOAD,
        _BATCH_SIZE,
        pa.field("dataset", pa.string()),
        pa.field("model", pa.string()),
        pa.field("optimizer", pa.string()),
        pa.field("train_steps", pa.int64()),
        pa.field("early_stopping", pa.bool_()),
        pa.field("source", pa.string()),
    ]
)
"""A row is a study."""

SEARCH_SPACE = pa.schema(
    [
        _WORKLOAD,
        _BATCH_SIZE,
        pa.field("parameter", pa.string(), nullable=False),
        pa.field("type", pa.string()),
        pa.field("scale", pa.string()),
        pa.field("min_value", pa.float64()),
        pa.field("max_value", pa.float64()),
        pa.field("feasible_points", pa.list_(pa.float64())),
    ]
)
"""A row is a metaparameter of a study, with the values that the search could give it."""

_TRIALS = (
    _WORKLOAD,
    _BATCH_SIZE,
    _TRIAL,
    pa.field("status", pa.string()),
    pa.field("steps", pa.int64()),
    pa.field("other_settings", pa.string()),
)

RESERVED = frozenset({"workload", "batch_size", "trial", "step", "status", "steps", "other_settings"})
"""Column names that a metric or metaparameter cannot have."""


def trials(metaparameters: Iterable[str]) -> pa.Schema:
    """Schema of the trials table: a row is a trial, a float64 column per metaparameter.

    Null means that the metaparameter is not part of the study.  Settings that are no numbers stand in
    ``other_settings``, a JSON object, null when there are none.
    """
    return pa.schema([*_TRIALS, *(pa.field(name, pa.float64()) for name in sorted(metaparameters))])


def measurements(metrics: Sequence[str]) -> pa.Schema:
    """Schema of a measurements table: a row is the metrics of a trial at a step; null = not measured."""
    return pa.schema(
        [
            _WORKLOAD,
            _BATCH_SIZE,
            _TRIAL,
            pa.field("step", pa.int64(), nullable=False),
            *(pa.field(name, pa.float64()) for name in metrics),
        ]
    )


def column_name(name: str, kind: str) -> str:
    """The column of a metric or metaparameter: its own name, or ``kind:name`` if that is reserved."""
    return f"{kind}:{name}" if name in RESERVED else name


def check(table: pa.Table, schema: pa.Schema, key: Sequence[str]) -> pa.Table:
    """Return the table if it has the schema's columns and its key is present, unique and sorted.

    Parameters
    ----------
    table : pyarrow.Table
        Table to check.
    schema : pyarrow.Schema
        Names and types expected, in order.
    key : sequence of str
        Columns that identify a row, most significant first.

    Raises
    ------
    SchemaError
        If a column is missing or of another type, a key is null, or the rows are not strictly
        increasing in the key (unsorted, or a key twice).

    Notes
    -----
    ``pyarrow.Table.validate(full=True)`` lets a null pass in a field declared non-nullable, so nulls
    are counted here.
    """
    found, expected = dict(zip(table.column_names, table.schema.types, strict=True)), schema
    if list(found) != expected.names or list(found.values()) != expected.types:
        raise SchemaError(
            f"expected the columns {expected.to_string()!r}, found {table.schema.to_string()!r}"
        )
    for name in key:
        if table.column(name).null_count:
            raise SchemaError(f"{table.column(name).null_count} rows without {name}")
    if table.num_rows < 2:
        return table
    undecided = np.ones(table.num_rows - 1, dtype=bool)
    for name in key:
        values = _sortable(table.column(name))
        if np.any(undecided & (values[1:] < values[:-1])):
            raise SchemaError(f"rows are not sorted by {', '.join(key)}")
        undecided &= values[1:] == values[:-1]
    if undecided.any():
        raise SchemaError(f"{int(undecided.sum())} rows repeat the key ({', '.join(key)}) of the row before")
    return table


def _sortable(column: pa.ChunkedArray) -> NDArray[Any]:
    """Numbers that sort like the column: itself, or the ranks of its names."""
    if pa.types.is_integer(column.type):
        return to_numpy(column)
    if pa.types.is_dictionary(column.type):
        codes = column.combine_chunks()
        codes = codes if isinstance(codes, pa.DictionaryArray) else codes.chunk(0)
        names = np.asarray(codes.dictionary.to_pylist(), dtype=np.str_)
        ranks = np.unique(names, return_inverse=True)[1]
        return np.asarray(ranks[to_numpy(codes.indices)])
    names = np.asarray(column.to_pylist(), dtype=np.str_)
    return np.asarray(np.unique(names, return_inverse=True)[1])
