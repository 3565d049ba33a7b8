"""Parse the curves of a study: all of its CSV files in one call, or one by one where that fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

from . import schemas
from .archive import Problem
from .arrays import from_list, from_numpy, to_numpy
from .errors import LayoutError
from .layout import CURVE_FILE, parse_rows, settle


@dataclass(slots=True)
class CurveParser:
    """Parses the curves of a study: all of them in one call, or one by one where that fails."""

    problem: Callable[[str, str], None]
    note: Callable[[Problem], None]
    _text: NDArray[np.uint8] = field(default_factory=lambda: np.empty(1 << 20, np.uint8))

    def read(self, path: str, curves: dict[int, bytes]) -> pa.Table:
        """A table of trial, step and metrics, sorted by trial and step, of the study at a path."""
        alike: dict[bytes, list[int]] = {}
        singly: list[int] = []
        for trial in sorted(curves):
            end = curves[trial].find(b"\n")
            if end > 0:
                alike.setdefault(curves[trial][:end], []).append(trial)
            else:
                singly.append(trial)
        parts: list[pa.Table] = []
        for header, trials in alike.items():
            together = self._together(header, {trial: curves[trial] for trial in trials})
            if together is None:
                singly += trials
                continue
            unsettled = _unsettled(together)
            if len(unsettled):
                singly += unsettled.tolist()
                keep = ~np.isin(to_numpy(together["trial"]), unsettled)
                together = together.take(from_numpy(np.flatnonzero(keep)))
            parts.append(together)
        parts += [part for trial in singly if (part := self._one(path, trial, curves[trial])) is not None]
        if not parts:
            return _no_rows(["trial", "step"])
        sampled = sum(map(count_sampled, parts))
        if sampled:
            what = "look like a tracker's sampled export, so that their steps to goal are upper bounds"
            self.note(Problem(path, f"{sampled} curves of 500, 1,000 or 1,500 irregular points {what}"))
        if len(parts) == 1:
            return parts[0]
        table = pa.concat_tables(parts, promote_options="default")
        return table.take(from_numpy(np.argsort(to_numpy(table["trial"]), kind="stable")))

    def _together(self, header: bytes, curves: dict[int, bytes]) -> pa.Table | None:
        """Curves with one header as one table; None if one of them needs a closer look."""
        names = header.removeprefix(b"\xef\xbb\xbf").rstrip(b"\r").decode("utf-8", "replace").split(",")
        plain = all(name and name == name.strip() and '"' not in name and "�" not in name for name in names)
        if not plain or len(set(names)) != len(names) or "step" not in names:
            return None
        text, rows = self._end_to_end(list(curves.values()), len(header) + 1)
        if any(b"\r" in text and text.count(b"\r") != text.count(b"\r\n") for text in curves.values()):
            return None
        for step_type in (pa.int64(), pa.float64()):
            table = _parse_csv(text, names, step_type) if len(text) else _no_rows(names)
            if table is not None:
                break
        if table is None or table.num_rows != sum(rows):
            return None
        step = table["step"]
        if step.null_count:
            return None
        if step.type == pa.float64():
            try:
                step = step.cast(pa.int64())  # refuses a fraction
            except pa.ArrowInvalid:
                return None
        trial = np.repeat(np.fromiter(curves, np.int64, len(curves)), rows)
        return self._named({"trial": from_numpy(trial), "step": step}, table)

    def _end_to_end(self, texts: Sequence[bytes], start: int) -> tuple[NDArray[np.uint8], list[int]]:
        """Texts laid end to end, each from `start` on and to a newline, and how many lines each has.

        They lie in memory that is used again for the next study; new memory would have to be cleared first.
        """
        most = sum(map(len, texts)) + len(texts)
        if most > len(self._text):
            self._text = np.empty(2 * most, np.uint8)
        into, ends = self._text.data, [0]
        for text in texts:
            end = ends[-1] + len(text) - start
            into[ends[-1] : end] = memoryview(text)[start:]
            if text[-1] != 10:
                into[end] = 10
                end += 1
            ends.append(end)
        together = self._text[: ends[-1]]
        newlines = together == 10
        return together, [int(np.count_nonzero(newlines[a:b])) for a, b in pairwise(ends)]

    def _one(self, path: str, trial: int, text: bytes) -> pa.Table | None:
        where = f"{path}/{trial}/{CURVE_FILE}"
        try:
            settled = settle(parse_rows(text, where))
        except LayoutError as error:
            self.problem(where, str(error).removeprefix(f"{where}: "))
            return None
        if settled.note():
            self.note(Problem(where, settled.note()))
        curve = settled.curve
        keys = {
            "trial": from_numpy(np.full(len(curve.steps), trial, dtype=np.int64)),
            "step": from_list(curve.steps, pa.int64()),
        }
        metrics = {name: from_list(values, pa.float64()) for name, values in curve.metrics.items()}
        return self._named(keys, pa.table(metrics) if metrics else None)

    def _named(self, keys: dict[str, Any], metrics: pa.Table | None) -> pa.Table:
        columns = dict(keys)
        for name in metrics.column_names if metrics is not None else ():
            if name == "step":
                continue
            column = schemas.column_name(name, "metric")
            if column != name:
                self.note(Problem(CURVE_FILE, f"metric {name!r} is the column {column!r}"))
            assert metrics is not None
            columns[column] = metrics[name]
        return pa.Table.from_arrays(list(columns.values()), list(columns))


def _parse_csv(text: NDArray[np.uint8], names: list[str], step_type: pa.DataType) -> pa.Table | None:
    try:
        return pyarrow.csv.read_csv(
            pa.BufferReader(pa.py_buffer(text)),
            read_options=pyarrow.csv.ReadOptions(column_names=names, use_threads=False, block_size=1 << 22),
            # A quoted number is none for it then, and is looked at more closely.
            parse_options=pyarrow.csv.ParseOptions(quote_char=False),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types={name: step_type if name == "step" else pa.float64() for name in names},
                null_values=[""],
                quoted_strings_can_be_null=False,
            ),
        )
    except pa.ArrowInvalid:
        return None


def _no_rows(names: list[str]) -> pa.Table:
    types = {"trial": pa.int64(), "step": pa.int64()}
    return pa.schema([(name, types.get(name, pa.float64())) for name in names]).empty_table()


def _unsettled(curves: pa.Table) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Trials whose steps do not strictly increase from zero or more."""
    trial, step = to_numpy(curves["trial"]), to_numpy(curves["step"])
    wrong = step < 0
    wrong[1:] |= (trial[1:] == trial[:-1]) & (step[1:] <= step[:-1])
    found: np.ndarray[Any, np.dtype[np.int64]] = np.unique(trial[wrong])
    return found


def count_sampled(curves: pa.Table) -> int:
    """How many trials have exactly as many points as trackers sample for export, at uneven steps."""
    trial = to_numpy(curves["trial"])
    begins = np.flatnonzero(np.diff(trial, prepend=trial[:1] - 1))
    lengths = np.diff(begins, append=len(trial))
    exact = np.isin(lengths, (500, 1000, 1500))
    if not exact.any():
        return 0
    step = to_numpy(curves["step"])
    return sum(
        len(np.unique(np.diff(step[begin : begin + length]))) > 1
        for begin, length in zip(begins[exact], lengths[exact], strict=True)
    )
