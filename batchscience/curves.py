"""Parse the curves of a study: all of its CSV files in one call, or one by one where that fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv

from . import schemas
from .archive import Problem
from .errors import LayoutError
from .layout import CURVE_FILE, parse_rows, settle


@dataclass(slots=True)
class Curves:
    """Parses the curves of one study: all of them in one call, or one by one where that fails."""

    path: str
    problem: Callable[[str, str], None]
    note: Callable[[Problem], None]

    def read(self, curves: dict[int, bytes]) -> pa.Table:
        """A table of trial, step and metrics, sorted by trial and step."""
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
                keep = ~np.isin(together["trial"].to_numpy(), unsettled)
                together = together.filter(pa.array(keep))
            parts.append(together)
        parts += [part for trial in singly if (part := self._one(trial, curves[trial])) is not None]
        if not parts:
            return pa.table({"trial": pa.array([], pa.int64()), "step": pa.array([], pa.int64())})
        sampled = sum(map(count_sampled, parts))
        if sampled:
            what = "look like a tracker's sampled export, so that their steps to goal are upper bounds"
            self.note(Problem(self.path, f"{sampled} curves of 500, 1,000 or 1,500 irregular points {what}"))
        if len(parts) == 1:
            return parts[0]
        table = pa.concat_tables(parts, promote_options="default")
        return table.take(pa.array(np.argsort(table["trial"].to_numpy(), kind="stable")))

    def _together(self, header: bytes, curves: dict[int, bytes]) -> pa.Table | None:
        """Curves with one header as one table; None if one of them needs a closer look."""
        names = header.removeprefix(b"\xef\xbb\xbf").rstrip(b"\r").decode("utf-8", "replace").split(",")
        plain = all(name and name == name.strip() and '"' not in name and "�" not in name for name in names)
        if not plain or len(set(names)) != len(names) or "step" not in names:
            return None
        bodies: list[bytes | memoryview] = []
        rows = []
        for text in curves.values():
            bodies.append(memoryview(text)[len(header) + 1 :])
            rows.append(text.count(b"\n") - 1)
            if text[-1] != 10:  # no newline at the end
                bodies.append(b"\n")
                rows[-1] += 1
        joined = b"".join(bodies)
        if b"\r" in joined and joined.count(b"\r") != joined.count(b"\r\n"):
            return None
        for step_type in (pa.int64(), pa.float64()):
            table = _parse_csv(joined, names, step_type) if joined else _no_rows(names)
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
        return self._named({"trial": pa.array(trial), "step": step}, table)

    def _one(self, trial: int, text: bytes) -> pa.Table | None:
        where = f"{self.path}/{trial}/{CURVE_FILE}"
        try:
            settled = settle(parse_rows(text, where))
        except LayoutError as error:
            self.problem(where, str(error).removeprefix(f"{where}: "))
            return None
        if settled.note():
            self.note(Problem(where, settled.note()))
        curve = settled.curve
        keys = {
            "trial": pa.array(np.full(len(curve.steps), trial, dtype=np.int64)),
            "step": pa.array(curve.steps, pa.int64()),
        }
        metrics = {name: pa.array(values, pa.float64()) for name, values in curve.metrics.items()}
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


def _parse_csv(text: bytes, names: list[str], step_type: pa.DataType) -> pa.Table | None:
    try:
        return pyarrow.csv.read_csv(
            pa.BufferReader(text),
            read_options=pyarrow.csv.ReadOptions(column_names=names, use_threads=False, block_size=1 << 22),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types={name: step_type if name == "step" else pa.float64() for name in names},
                null_values=[""],
                quoted_strings_can_be_null=False,
            ),
        )
    except pa.ArrowInvalid:
        return None


def _no_rows(names: list[str]) -> pa.Table:
    return pa.table({name: pa.array([], pa.int64() if name == "step" else pa.float64()) for name in names})


def _unsettled(curves: pa.Table) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Trials whose steps do not strictly increase from zero or more."""
    trial, step = curves["trial"].to_numpy(), curves["step"].to_numpy()
    wrong = step < 0
    wrong[1:] |= (trial[1:] == trial[:-1]) & (step[1:] <= step[:-1])
    found: np.ndarray[Any, np.dtype[np.int64]] = np.unique(trial[wrong])
    return found


def count_sampled(curves: pa.Table) -> int:
    """How many trials have exactly as many points as trackers sample for export, at uneven steps."""
    trial = curves["trial"].to_numpy()
    begins = np.flatnonzero(np.diff(trial, prepend=trial[:1] - 1))
    lengths = np.diff(begins, append=len(trial))
    exact = np.isin(lengths, (500, 1000, 1500))
    if not exact.any():
        return 0
    step = curves["step"].to_numpy()
    return sum(
        len(np.unique(np.diff(step[begin : begin + length]))) > 1
        for begin, length in zip(begins[exact], lengths[exact], strict=True)
    )
