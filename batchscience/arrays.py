"""Arrow's columns from NumPy's arrays and Python's lists, and back.

pyarrow can do that itself, but at the first such call it imports pandas, which costs an ingest a quarter of
a second that nothing else needs.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .errors import BatchScienceError

_MOST = 2**31 - 1


def from_numpy(values: NDArray[Any]) -> pa.Array:
    """Whole numbers or floats as a column without nulls, of the same type."""
    values = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


def from_list(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Values, of which None becomes a null, as a column.

    Parameters
    ----------
    values : sequence
        Each what `type_` says, or None; nothing is converted.
    type_ : pyarrow.DataType
        int64, float64, bool, string, or a list of one of these.

    Raises
    ------
    BatchScienceError
        If texts or lists together are longer than a column can say.
    """
    present = np.array([value is not None for value in values], dtype=bool)
    nulls = len(values) - int(np.count_nonzero(present))
    valid = _bits(present) if nulls else None
    if pa.types.is_list(type_):
        lists = [value or [] for value in values]
        items = from_list(list(itertools.chain.from_iterable(lists)), type_.value_type)
        return pa.Array.from_buffers(type_, len(values), [valid, _offsets(lists)], nulls, children=[items])
    if pa.types.is_string(type_):
        texts = [(value or "").encode() for value in values]
        text = pa.py_buffer(b"".join(texts))
        return pa.Array.from_buffers(type_, len(values), [valid, _offsets(texts), text], nulls)
    if pa.types.is_boolean(type_):
        content = _bits(np.array([bool(value) for value in values], dtype=bool))
    else:
        filled = [0 if value is None else value for value in values] if nulls else values
        content = pa.py_buffer(np.array(filled, dtype=type_.to_pandas_dtype()))
    return pa.Array.from_buffers(type_, len(values), [valid, content], nulls)


def one_name(name: str, count: int) -> pa.DictionaryArray:
    """A column that says the same name in every row, each time by a code."""
    codes = from_numpy(np.zeros(count, dtype=np.int32))
    return pa.DictionaryArray.from_arrays(codes, from_list([name], pa.string()))


def to_numpy(column: pa.Array | pa.ChunkedArray) -> NDArray[Any]:
    """A column of whole numbers or floats as an array; it shares the memory where it can.

    Raises
    ------
    ValueError
        If a value is null: an array has no way to say so.
    """
    if column.null_count:
        raise ValueError(f"expected a column without nulls, found {column.null_count} of {len(column)}")
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    dtype = np.dtype(column.type.to_pandas_dtype())
    parts = [
        np.frombuffer(chunk.buffers()[1], dtype, len(chunk), chunk.offset * dtype.itemsize)
        for chunk in chunks
        if len(chunk)
    ]
    if not parts:
        return np.empty(0, dtype)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _bits(flags: NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def _offsets(items: Sequence[Any]) -> pa.Buffer:
    ends = np.zeros(len(items) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, items), np.int64, len(items)), out=ends[1:])
    if ends[-1] > _MOST:
        raise BatchScienceError(f"{ends[-1]:,} bytes or items in one column; a table holds {_MOST:,}")
    return pa.py_buffer(ends.astype(np.int32))
