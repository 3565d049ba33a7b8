"""Turn the panel exports of an experiment tracker into studies in the raw layout."""

from __future__ import annotations

import csv
import itertools
import json
import math
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from .curves import count_sampled
from .errors import LayoutError, UnknownMetric
from .layout import (
    COMPLETE,
    INCOMPLETE,
    INFEASIBLE,
    MOST,
    UNIT_FILE,
    Curve,
    RawRows,
    RunFile,
    StudyFile,
    TrialFile,
    settle,
    write_study,
    write_trial,
)

RUN_COLUMNS = ("run", "Name")
STATUS_COLUMNS = ("status", "State")
SECONDS = ("seconds", "_runtime", "Runtime")
"""Columns of the table of runs, or metrics of the panels, that hold how long a run took."""

STATUSES = {
    **{status: status for status in (COMPLETE, INCOMPLETE, INFEASIBLE)},
    "finished": COMPLETE,
    "running": INCOMPLETE,
    "crashed": INCOMPLETE,
    "failed": INCOMPLETE,
    "killed": INCOMPLETE,
    "diverged": INFEASIBLE,
}
"""The words for how a run ended, in this package and in trackers."""

_SEPARATOR = " - "
_RANGES = ("__MIN", "__MAX")
_UNLIKE_RATES = 10.0


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What was imported.

    Attributes
    ----------
    studies, trials, rows : int
        How many were written; a row is the metrics of a trial at one step.
    metrics : tuple of str
        Names of the metrics.
    """

    studies: int
    trials: int
    rows: int
    metrics: tuple[str, ...]


def import_panels(
    panels: Sequence[str | os.PathLike[str]],
    runs: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    workload: str,
    updates_per_step: float | str,
    metrics: Sequence[str] | None = None,
    ranges: bool = False,
    settings: Sequence[str] | None = None,
    step_column: str = "Step",
) -> ImportReport:
    """Write the runs of a tracker's panel exports as trials of a workload, in the raw layout.

    Parameters
    ----------
    panels : sequence of path
        CSV files with a column of steps and, for each run and metric, the columns ``RUN - METRIC``,
        ``RUN - METRIC__MIN`` and ``RUN - METRIC__MAX``.  Those of several panels merge by run and step.
    runs : path
        CSV file in which a row is a run: ``run`` (or ``Name``) and ``batch_size``, and if there are any,
        ``trial`` (by default numbered in order of the rows), ``status`` (or ``State``; by default COMPLETE;
        see `STATUSES`), one of `SECONDS`, and metaparameters.
    out : path
        Root of the raw layout, which `batchscience.ingest` then reads.
    workload : str
        What the runs trained: ``dataset/model/optimizer``.
    updates_per_step : float or str
        How many optimizer updates one logged step stands for: a number, a fraction such as "1/8" (eight
        logged micro-batches to an update), or a column of `runs` that holds it for each run.  Nobody but
        the user knows, so there is no default.
    metrics : sequence of str, optional
        Only these; by default all whose names do not begin with an underscore, which are the tracker's own.
    ranges : bool, default False
        Import ``METRIC__MIN`` and ``METRIC__MAX`` too, which are no values of any step where the panel
        was drawn from averaged or grouped points.
    settings : sequence of str, optional
        Columns of `runs` that are metaparameters; by default all that are nothing else.
    step_column : str, default "Step"
        The column of logged steps; or ``_step`` where the panel's x axis is another and each run has its
        own ``RUN - _step``.

    Returns
    -------
    ImportReport

    Raises
    ------
    LayoutError
        If a file cannot be read as what it should be; nothing is written.
    UnknownMetric
        If the panels hold none of a name in `metrics`.
    FileExistsError
        If a trial is already there; nothing is written.
    ValueError
        If `workload` is no name of one, or `updates_per_step` is not positive.

    Warns
    -----
    UserWarning
        If a run has no column in any panel (it becomes a trial without measurements), if two panels
        contradict each other, if curves look sampled, or if updates per second differ more than tenfold
        between runs, so that a step hardly is the same in all of them.
    """
    parts = workload.split("/")
    if len(parts) < 3 or any(not part or part.startswith(".") for part in parts):
        raise ValueError(f"a workload is named dataset/model/optimizer, got {workload!r}")
    if not panels:
        raise ValueError("there is no panel to import")
    table = _read_runs(Path(runs), updates_per_step, settings)
    for panel in panels:
        _Panel(Path(panel), step_column, Path(runs), table).read()
    found = {name for run in table.values() for name in run.columns}
    wanted = _wanted(found, metrics, ranges)
    trials = [_trial(run, wanted, step_column) for run in table.values()]
    out = Path(out) / workload
    for run in table.values():
        if (folder := out / str(run.batch_size) / str(run.trial)).exists():
            raise FileExistsError(f"{folder} exists; remove it or name another folder to write to")
    _warn_of_what_is_odd(table, trials)
    source = RunFile(source=f"import of {', '.join(Path(panel).name for panel in panels)}")
    for size in sorted({run.batch_size for run in table.values()}):
        study = StudyFile(batch_size=size, dataset="/".join(parts[:-2]), model=parts[-2], optimizer=parts[-1])
        write_study(out / str(size), study, run=source)
    for run, (file, curve, unit) in zip(table.values(), trials, strict=True):
        write_trial(out / str(run.batch_size), file, curve, extras={UNIT_FILE: unit})
    return ImportReport(
        len({run.batch_size for run in table.values()}),
        len(trials),
        sum(len(curve.steps) for _, curve, _ in trials),
        tuple(wanted),
    )


@dataclass(slots=True)
class _Run:
    """A run of the table, and what the panels say of it: logged steps and values of each column."""

    name: str
    batch_size: int
    trial: int
    status: str
    updates_per_step: Fraction
    seconds: float | None
    parameters: dict[str, Any]
    columns: dict[str, dict[int, float]] = field(default_factory=dict)
    sampled: bool = False
    contradictions: int = 0
    notes: list[str] = field(default_factory=list)

    def add(self, rows: Sequence[tuple[Fraction, Mapping[str, float]]]) -> None:
        """Add the rows of a panel, in the order of the file, as values by updates made."""
        names = sorted({name for _, row in rows for name in row})
        merged: list[tuple[Fraction, dict[str, float]]] = []
        for step, row in rows:
            if merged and merged[-1][0] < step and self.updates(merged[-1][0]) == self.updates(step):
                # Several logged steps to an update: its last.
                merged[-1] = step, {**merged[-1][1], **row}
            else:
                merged.append((step, dict(row)))
        settled = settle(
            RawRows(
                [self.updates(step) for step, _ in merged],
                {name: [row.get(name) for _, row in merged] for name in names},
            )
        )
        self.notes += [settled.note()] if settled.conflicting or settled.replaced else []
        for name, values in settled.curve.metrics.items():
            known = self.columns.setdefault(name, {})
            for made, value in zip(settled.curve.steps, values, strict=True):
                if value is None:
                    continue
                if not _same(known.get(made, value), value):
                    self.contradictions += 1
                known[made] = value
            logged = [step for step, row in rows if name in row]
            self.sampled |= not name.endswith(_RANGES) and _looks_sampled(logged)

    def updates(self, step: Fraction) -> int:
        """Updates made by a logged step; a step within an update counts those before it."""
        updates = step * self.updates_per_step
        nearest = round(updates)
        # An epoch printed as 0.333333333 is meant as a third.
        return nearest if abs(updates - nearest) < Fraction(1, 1000) else math.floor(updates)

    def curve(self, metrics: Sequence[str]) -> Curve:
        """The values of some metrics."""
        columns = {name: self.columns.get(name, {}) for name in metrics}
        steps = sorted(set().union(*columns.values()))
        return Curve(steps, {name: [column.get(step) for step in steps] for name, column in columns.items()})

    def duration(self) -> float | None:
        """Seconds that it took: as the table says, else the last that the tracker logged."""
        logged = [value for name in SECONDS for value in self.columns.get(name, {}).values()]
        seconds = self.seconds if self.seconds is not None else max(logged, default=None)
        return seconds if seconds is not None and math.isfinite(seconds) and seconds > 0 else None


def _read_runs(path: Path, updates_per_step: float | str, settings: Sequence[str] | None) -> dict[str, _Run]:
    """The runs of a table by name."""
    header, rows = _read_csv(path)
    name = _column_of(header, RUN_COLUMNS)
    for column, what in ((name, " or ".join(RUN_COLUMNS)), ("batch_size", "batch_size")):
        if column not in header:
            raise LayoutError(f"{path}: expected a column {what}, found {', '.join(header)}")
    status, seconds = _column_of(header, STATUS_COLUMNS), _column_of(header, SECONDS)
    unit = updates_per_step if updates_per_step in header else None
    special = {name, "batch_size", "trial", status, seconds, unit}
    missing = [column for column in settings or () if column not in header]
    if missing:
        raise LayoutError(f"{path}: no column {', '.join(missing)}; it has {', '.join(header)}")
    if settings is None:
        settings = [column for column in header if column not in special]
    found: dict[str, _Run] = {}
    numbers: dict[int, itertools.count[int]] = {}
    taken: dict[tuple[int, int], str] = {}
    for line, cells in rows:
        row = dict(zip(header, cells, strict=True))
        where = f"{path}: line {line}"
        run = row[name or ""].strip()
        if run in found:
            raise LayoutError(f"{where}: run {run!r} comes twice; give each its own name in the tracker")
        size = _whole(row["batch_size"], f"{where}: batch_size", least=1)
        counted = numbers.setdefault(size, itertools.count(1))
        trial = _whole(row["trial"], f"{where}: trial") if "trial" in header else next(counted)
        if other := taken.get((size, trial)):
            raise LayoutError(f"{where}: trial {trial} of batch size {size} is run {other!r} already")
        taken[size, trial] = run
        word = row[status].strip() if status else COMPLETE
        if word not in STATUSES and (word := word.lower()) not in STATUSES:
            raise LayoutError(f"{where}: {status} {word!r} is none of {', '.join(STATUSES)}")
        found[run] = _Run(
            run,
            size,
            trial,
            STATUSES[word],
            _unit(row[unit] if isinstance(unit, str) else updates_per_step, where if unit else None),
            _number(row[seconds], f"{where}: {seconds}") if seconds and row[seconds].strip() else None,
            {column: _setting(row[column]) for column in settings if row[column].strip()},
        )
    if not found:
        raise LayoutError(f"{path}: holds no run")
    return found


@dataclass(frozen=True, slots=True)
class _Panel:
    """One panel export, whose values are added to the runs of a table."""

    path: Path
    step_column: str
    runs: Path
    table: Mapping[str, _Run]

    def read(self) -> None:
        """Add each value to its run."""
        header, rows = _read_csv(self.path)
        own_steps = self.step_column.startswith("_")
        if not own_steps and self.step_column not in header:
            raise LayoutError(
                f"{self.path}: expected a column {self.step_column!r} of logged steps, found {header[0]!r}"
                f"{' and others' if len(header) > 1 else ''}; name it with step_column (--step-column), or "
                "export the panel with steps as its x axis"
            )
        # A panel with another x axis, whose runs have their own steps, begins with that axis.
        axis = self.step_column if not own_steps else header[0]
        places = {i: self._place(name) for i, name in enumerate(header) if name != axis}
        steps_of = {run: i for i, (run, metric) in places.items() if metric == self.step_column}
        for place in places.values():
            self._see_that_it_has_values(*place, places.values())
        found: dict[str, list[tuple[Fraction, dict[str, float]]]] = {}
        for line, cells in rows:
            where = f"{self.path}: line {line}: column"
            values: dict[str, dict[str, float]] = {}
            for i, (run, metric) in places.items():
                if cells[i].strip() and _plain(metric) != self.step_column:
                    values.setdefault(run, {})[metric] = _number(cells[i], f"{where} {header[i]!r}")
            for run, row in values.items():
                at = steps_of.get(run) if own_steps else header.index(axis)
                if at is None:
                    raise LayoutError(f"{self.path}: expected a column '{run} - {self.step_column}'")
                found.setdefault(run, []).append((_step(cells[at], f"{where} {header[at]!r}"), row))
        for run, points in found.items():
            self.table[run].add(points)

    def _place(self, column: str) -> tuple[str, str]:
        """The run and metric of a column; both of their names may hold the separator."""
        pieces = column.split(_SEPARATOR)
        splits = [
            (_SEPARATOR.join(pieces[:i]), _SEPARATOR.join(pieces[i:])) for i in range(len(pieces) - 1, 0, -1)
        ]
        if not splits:
            raise LayoutError(
                f"{self.path}: column {column!r} is none of a panel, which are called 'RUN - METRIC' "
                f"beside {self.step_column!r}; take it out, or export the panel anew"
            )
        for run, metric in splits:
            if run in self.table:
                return run, metric
        hint = "; a group is no run, so export the panel ungrouped" if column.startswith("Group: ") else ""
        raise LayoutError(
            f"{self.path}: run {splits[0][0]!r} of the column {column!r} is not in {self.runs}; "
            f"add a row with its batch size, or take out its columns{hint}"
        )

    def _see_that_it_has_values(self, run: str, metric: str, places: Iterable[tuple[str, str]]) -> None:
        if (run, _plain(metric)) not in places:
            raise LayoutError(
                f"{self.path}: '{run} - {metric}' without the column of its values, "
                f"'{run} - {_plain(metric)}'; export the panel with them"
            )


def _read_csv(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The header of a CSV file, and each row that is not blank with its line number."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            header = [name.strip() for name in next(reader, [])]
            rows = [(reader.line_num, cells) for cells in reader if any(cell.strip() for cell in cells)]
    except csv.Error as error:  # a quote that is not closed
        raise LayoutError(f"{path}: line {reader.line_num}: {error}") from None
    except OSError as error:
        raise LayoutError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise LayoutError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    if not header:
        raise LayoutError(f"{path}: expected a header line, found an empty file")
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise LayoutError(
            f"{path}: the column {twice[0]!r} comes twice; runs of one name cannot be told apart, "
            "so rename them in the tracker and export again"
        )
    for line, cells in rows:
        if len(cells) != len(header):
            raise LayoutError(f"{path}: line {line}: expected {len(header)} cells, found {len(cells)}")
    return header, rows


def _wanted(found: set[str], metrics: Sequence[str] | None, ranges: bool) -> list[str]:
    """The columns to import, in order of their names."""
    plain = sorted(name for name in found if not name.endswith(_RANGES))
    own = [name for name in plain if not name.startswith("_")]
    if metrics is None:
        chosen = own
    else:
        missing = [name for name in metrics if name not in plain]
        if missing:
            raise UnknownMetric(
                f"the panels hold no values of {', '.join(missing)}; they hold {', '.join(plain) or 'none'}"
            )
        chosen = sorted(set(metrics))
    if "step" in chosen:
        raise LayoutError(
            "a metric called 'step' has no place in the raw layout, whose steps are updates; "
            "name the metrics to import (--metric)"
        )
    if not chosen:
        raise LayoutError("the panels hold no values of any run in the table")
    columns = [name for metric in chosen for name in (metric, *(metric + end for end in _RANGES))]
    return [name for name in columns if name in found] if ranges else chosen


def _trial(run: _Run, metrics: Sequence[str], step_column: str) -> tuple[TrialFile, Curve, str]:
    """The files of a run's trial: metadata, curve, and its declared unit."""
    curve = run.curve(metrics)
    unit = {
        "run": run.name,
        "step_column": step_column,
        "updates_per_step": str(run.updates_per_step),
        "seconds": run.duration(),
    }
    steps = curve.steps[-1] if curve.steps else None
    if steps is not None and steps > MOST:
        raise LayoutError(f"run {run.name!r}: its last step is more than {MOST:,} updates")
    file = TrialFile(trial_id=run.trial, status=run.status, steps=steps, parameters=run.parameters)
    return file, curve, json.dumps(unit, indent=2, sort_keys=True) + "\n"


def _warn_of_what_is_odd(table: Mapping[str, _Run], trials: Sequence[tuple[TrialFile, Curve, str]]) -> None:
    runs = list(table.values())
    empty = [run.name for run, (_, curve, _) in zip(runs, trials, strict=True) if not curve.steps]
    if empty:
        warnings.warn(
            f"{len(empty)} of {len(runs)} runs have no values in the panels and become trials without "
            f"measurements: {_some(empty)}; trackers export only the runs that a panel shows",
            stacklevel=3,
        )
    for run in runs:
        for note in run.notes:
            warnings.warn(f"run {run.name!r}: {note}", stacklevel=3)
    contradicted = {run.name: run.contradictions for run in runs if run.contradictions}
    if contradicted:
        warnings.warn(
            f"{sum(contradicted.values())} values contradict those of the same run, metric and step in "
            f"another panel, and the later panel was kept: {_some(list(contradicted))}",
            stacklevel=3,
        )
    sampled = [run.name for run in runs if run.sampled]
    if sampled:
        warnings.warn(
            f"{len(sampled)} curves of 500, 1,000 or 1,500 irregular points look sampled by the tracker, "
            f"so that their steps to goal are upper bounds: {_some(sampled)}",
            stacklevel=3,
        )
    rates = {
        run.name: curve.steps[-1] / seconds
        for run, (_, curve, _) in zip(runs, trials, strict=True)
        if curve.steps and curve.steps[-1] > 0 and (seconds := run.duration())
    }
    if not rates:
        return
    slow, fast = min(rates, key=lambda name: rates[name]), max(rates, key=lambda name: rates[name])
    if rates[fast] > _UNLIKE_RATES * rates[slow]:
        warnings.warn(
            f"run {fast!r} made {rates[fast]:.3g} updates a second and run {slow!r} {rates[slow]:.3g}, "
            f"{rates[fast] / rates[slow]:.0f} times fewer; where batch size and hardware do not explain it, "
            "a step is not the same in both: declare the updates of a logged step run by run",
            stacklevel=3,
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")


def _plain(metric: str) -> str:
    """The metric that a column is of, or the range of."""
    return metric.removesuffix("__MIN").removesuffix("__MAX")


def _same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


def _looks_sampled(steps: Sequence[Fraction]) -> bool:
    # Only whether the gaps differ counts, and floats say that of logged steps.
    columns = {"trial": np.zeros(len(steps), np.int64), "step": np.array(sorted(steps), np.float64)}
    return count_sampled(pa.table(columns)) > 0


def _unit(text: float | str, where: str | None) -> Fraction:
    try:
        unit = Fraction(str(text).strip())
    except (ValueError, ZeroDivisionError):
        unit = Fraction(0)
    if unit > 0:
        return unit
    if where is not None:
        raise LayoutError(f"{where}: expected a positive number of updates per logged step, found {text!r}")
    raise ValueError(
        "updates_per_step is a positive number, a fraction such as 1/8, or a column of the runs; "
        f"got {text!r}"
    )


def _step(text: str, where: str) -> Fraction:
    try:
        step = Fraction(text.strip())
    except (ValueError, ZeroDivisionError):
        step = Fraction(-1)
    if not 0 <= step <= MOST:
        raise LayoutError(f"{where}: a logged step is a number from 0, found {text!r}")
    return step


def _whole(text: str, where: str, *, least: int = 0) -> int:
    number = _number(text, where)
    if not (number.is_integer() and least <= number <= MOST):
        raise LayoutError(f"{where}: expected a whole number from {least}, found {text!r}")
    return int(number)


def _number(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise LayoutError(f"{where}: expected a number, found {text!r}") from None


def _setting(text: str) -> Any:
    """A cell as a setting: a number where it is one."""
    try:
        number = float(text)
    except ValueError:
        return text.strip()
    if not math.isfinite(number):
        return text.strip()
    return int(text) if text.strip().removeprefix("-").isdecimal() else number


def _column_of(header: Sequence[str], names: Sequence[str]) -> str | None:
    return next((name for name in names if name in header), None)
