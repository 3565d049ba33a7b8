"""The raw layout on disk: a folder for each study, a folder for each trial in it.

::

    [subset/]dataset/model/optimizer/batch_size/study.json
    [subset/]dataset/model/optimizer/batch_size/trial_id/metadata.json
    [subset/]dataset/model/optimizer/batch_size/trial_id/measurements.csv

The path is the key of a study: two studies may agree in every word of their ``study.json``.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from .errors import LayoutError
from .spaces import Parameter, SearchSpace

STUDY_FILE = "study.json"
TRIAL_FILE = "metadata.json"
CURVE_FILE = "measurements.csv"
RUN_FILE = "run.json"
"""Not in the published archive: where a study came from, beside its ``study.json``."""
NOISE_FILE = "noise.csv"
"""Not in the published archive: the gradient noise scale of a trial at some steps, beside its curve."""
FACTS_FILE = "facts.json"
"""Beside a trained trial: on what and how fast it was trained."""
UNIT_FILE = "unit.json"
"""Beside an imported trial: the name of its run, and what a logged step was declared to be."""
BESIDE = frozenset((NOISE_FILE, FACTS_FILE, UNIT_FILE))
"""Files that this package writes beside a trial and that are not for the tables."""

COMPLETE, INCOMPLETE, INFEASIBLE = "COMPLETE", "INCOMPLETE", "INFEASIBLE"

SETTINGS_NOBODY_NEEDS = ("_internal_study_name", "_internal_trial_id")


def _whole(value: object) -> object:
    """Let whole numbers come as 64, 64.0, "64" or "64.0"."""
    if isinstance(value, str):
        value = float(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


MOST = 2**63 - 1
"""The largest step, batch size or trial number that the tables hold."""

Whole = Annotated[int, BeforeValidator(_whole), Field(ge=-MOST, le=MOST)]


class _File(BaseModel):
    # Nobody outside has seen every file of the archive: what is not known is kept, not refused.
    model_config = ConfigDict(extra="allow", frozen=True, ser_json_inf_nan="constants")

    def unknown(self) -> list[str]:
        """Names of the keys that the published layout does not have."""
        return [key for key in (self.model_extra or {}) if key not in SETTINGS_NOBODY_NEEDS]

    @classmethod
    def parse(cls, text: bytes, where: str) -> Self:
        """Read the JSON of one file.

        Raises
        ------
        LayoutError
            If the text is not JSON or lacks what this file must hold; the message names `where`.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            key = ".".join(str(part) for part in first["loc"])
            raise LayoutError(f"{where}: {f'{key}: ' if key else ''}{first['msg']}") from None

    def text(self) -> str:
        """The JSON of this file, as it is written."""
        return json.dumps(self.model_dump(by_alias=True, exclude_none=True), indent=2, sort_keys=True) + "\n"


class ParameterConfig(_File):
    """Limits of one metaparameter, as ``parameter_configs`` of a ``study.json`` holds them."""

    type: str = ""
    scale: str = ""
    min_value: float | None = None
    max_value: float | None = None
    feasible_points: list[Any] | None = None


class StudyFile(_File):
    """The contents of a ``study.json``.

    ``train_steps`` is 0 for a study that had a time budget instead; then every trial that did not
    diverge is COMPLETE.
    """

    batch_size: Whole
    dataset: str = ""
    model: str = ""
    optimizer: str = ""
    train_steps: Whole | None = None
    early_stopping: bool | None = None
    parameter_configs: dict[str, ParameterConfig] = Field(default_factory=dict)

    @classmethod
    def of(
        cls,
        *,
        batch_size: int,
        dataset: str,
        model: str,
        optimizer: str,
        train_steps: int,
        space: SearchSpace,
        early_stopping: bool = False,
    ) -> StudyFile:
        """The file of a new study, from its search space."""
        configs = {}
        for p in space:
            if p.type == "DISCRETE":
                configs[p.name] = ParameterConfig(type=p.type, feasible_points=list(p.feasible_points))
            else:
                configs[p.name] = ParameterConfig(
                    type=p.type, scale=p.scale, min_value=p.min_value, max_value=p.max_value
                )
        return cls(
            batch_size=batch_size,
            dataset=dataset,
            model=model,
            optimizer=optimizer,
            train_steps=train_steps,
            early_stopping=early_stopping,
            parameter_configs=configs,
        )

    def space(self) -> SearchSpace:
        """The search space, for sampling.

        Raises
        ------
        LayoutError
            If a parameter's limits do not suit its type and scale.
        """
        try:
            return SearchSpace(
                tuple(
                    Parameter(
                        name,
                        config.type,  # type: ignore[arg-type]  # Parameter refuses what it does not know
                        config.min_value,
                        config.max_value,
                        config.scale,  # type: ignore[arg-type]
                        tuple(float(point) for point in config.feasible_points or ()),
                    )
                    for name, config in self.parameter_configs.items()
                )
            )
        except (TypeError, ValueError) as error:
            raise LayoutError(f"parameter_configs: {error}") from None


class TrialFile(_File):
    """The contents of a ``metadata.json``: settings and outcome of one trial.

    Settings may be of any JSON type.  ``status`` is COMPLETE, INCOMPLETE or INFEASIBLE (= diverged).
    """

    trial_id: Whole | None = None
    status: str | None = None
    steps: Whole | None = None
    parameters: dict[str, Any] = Field(default_factory=dict)


class RunFile(_File):
    """The contents of a ``run.json``: where a study comes from, which the published files do not say."""

    source: str


@dataclass(frozen=True, slots=True)
class Curve:
    """The measurements of one trial: a row per step, a column per metric.

    Parameters
    ----------
    steps : sequence of int
        Number of optimizer updates, strictly increasing.
    metrics : mapping of str to sequence of float or None
        Each as long as `steps`.  None means not measured at that step, which NaN does not.

    Raises
    ------
    ValueError
        If the columns differ in length or the steps do not increase.
    """

    steps: Sequence[int]
    metrics: Mapping[str, Sequence[float | None]]

    def __post_init__(self) -> None:
        for name, values in self.metrics.items():
            if len(values) != len(self.steps):
                raise ValueError(
                    f"{name}: expected {len(self.steps)} values, one per step, got {len(values)}"
                )
        if any(later <= earlier for earlier, later in zip(self.steps, self.steps[1:], strict=False)):
            raise ValueError("the steps of a curve must increase")

    def text(self) -> str:
        """The CSV of this curve; every float reads back to the last bit."""
        rows = io.StringIO()
        writer = csv.writer(rows, lineterminator="\n")
        writer.writerow(["step", *self.metrics])
        for step, *values in zip(self.steps, *self.metrics.values(), strict=True):
            writer.writerow([int(step), *("" if v is None else repr(float(v)) for v in values)])
        return rows.getvalue()


@dataclass(frozen=True, slots=True)
class RawRows:
    """The rows of one ``measurements.csv`` as they stand in the file: unsorted, steps possibly repeated."""

    steps: list[int]
    metrics: dict[str, list[float | None]]


def parse_rows(text: bytes, where: str) -> RawRows:
    """Read a ``measurements.csv`` with every liberty a tracker's export takes.

    A byte order mark, CRLF, quoted numbers, blank lines and whole steps written as floats are read;
    an empty cell is None.

    Raises
    ------
    LayoutError
        For zero bytes, a header without ``step``, a repeated column, a row of another length, a cell
        that is no number, or a step that is no whole number or larger than `MOST`.
    """
    try:
        lines = text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise LayoutError(f"{where}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    reader = csv.reader(io.StringIO(lines, newline=""))
    try:
        header = [name.strip() for name in next(reader, [])]
        rows = [(reader.line_num, row) for row in reader]
    except csv.Error as error:  # a quote that is not closed
        raise LayoutError(f"{where}: line {reader.line_num}: {error}") from None
    if not header:
        raise LayoutError(f"{where}: expected a header line 'step,…', found an empty file")
    if "step" not in header:
        raise LayoutError(f"{where}: expected a column 'step', found {','.join(header)[:200]!r}")
    if len(set(header)) != len(header) or "" in header:
        raise LayoutError(f"{where}: expected distinct column names, found {','.join(header)[:200]!r}")
    at = header.index("step")
    names = [name for name in header if name != "step"]
    steps: list[int] = []
    columns: list[list[float | None]] = [[] for _ in names]
    for line, row in rows:
        if not row or (len(row) == 1 and not row[0].strip()):
            continue
        if len(row) != len(header):
            raise LayoutError(f"{where}: line {line}: expected {len(header)} cells, found {len(row)}")
        try:
            step = float(row[at])
            cells = [float(cell) if cell.strip() else None for i, cell in enumerate(row) if i != at]
        except ValueError as error:
            raise LayoutError(f"{where}: line {line}: {error}") from None
        if not (math.isfinite(step) and step.is_integer() and 0 <= step <= MOST):
            raise LayoutError(
                f"{where}: line {line}: a step is a whole number of optimizer updates, found {row[at]!r}"
            )
        steps.append(int(row[at]) if row[at].strip().isdigit() else int(step))
        for column, cell in zip(columns, cells, strict=True):
            column.append(cell)
    return RawRows(steps, dict(zip(names, columns, strict=True)))


@dataclass(frozen=True, slots=True)
class Settled:
    """A curve with one row per step, and what had to be done to the rows of the file for it."""

    curve: Curve
    merged: int = 0
    repeated: int = 0
    conflicting: int = 0
    replaced: int = 0

    def note(self) -> str:
        """What was done, in words; empty when the file was in order."""
        parts = [
            (self.merged, "rows merged with others of their step"),
            (self.repeated, "exact repeats dropped"),
            (self.conflicting, "conflicting repeats (the later kept)"),
            (self.replaced, "rows of an abandoned attempt replaced by those of the resumed one"),
        ]
        return ", ".join(f"{count} {what}" for count, what in parts if count)


def settle(rows: RawRows) -> Settled:
    """One row per step, in order of steps.

    Rows of one step that fill each other's gaps are merged (a training row and an evaluation row).
    Exact repeats are dropped; of conflicting repeats the later is kept.  Where the steps go back and the
    rows again measure what was measured before, the run was resumed from an earlier checkpoint: the rows
    of the last attempt replace those of the abandoned one from that step on, so that it reaches no goal.
    """
    names = list(rows.metrics)
    cells = list(zip(*rows.metrics.values(), strict=True)) if names else [()] * len(rows.steps)
    # Split where the steps go back: each piece is one pass over the run.
    starts = [0, *(i for i in range(1, len(rows.steps)) if rows.steps[i] < rows.steps[i - 1])]
    kept: dict[int, list[float | None]] = {}
    merged = repeated = conflicting = replaced = 0
    for start, end in zip(starts, [*starts[1:], len(rows.steps)], strict=True):
        piece = range(start, end)
        if not piece:
            continue
        first = rows.steps[start]
        overlap = [step for step in kept if step >= first]
        measured = {j for i in piece for j, cell in enumerate(cells[i]) if cell is not None}
        before = {j for step in overlap for j, cell in enumerate(kept[step]) if cell is not None}
        same = all(rows.steps[i] in kept and _equal(kept[rows.steps[i]], cells[i]) for i in piece)
        if overlap and measured & before and not same:
            replaced += len(overlap)
            for step in overlap:
                del kept[step]
        for i in piece:
            step, row = rows.steps[i], list(cells[i])
            if step not in kept:
                kept[step] = row
                continue
            old = kept[step]
            if _equal(old, row):
                repeated += 1
            elif all(a is None or b is None or _same(a, b) for a, b in zip(old, row, strict=True)):
                merged += 1
            else:
                conflicting += 1
            kept[step] = [a if b is None else b for a, b in zip(old, row, strict=True)]
    steps = sorted(kept)
    metrics = {name: [kept[step][j] for step in steps] for j, name in enumerate(names)}
    return Settled(Curve(steps, metrics), merged, repeated, conflicting, replaced)


def _same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


def _equal(a: Sequence[float | None], b: Sequence[float | None]) -> bool:
    return all(
        (x is None and y is None) or (x is not None and y is not None and _same(x, y))
        for x, y in zip(a, b, strict=True)
    )


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial as its folder holds it."""

    file: TrialFile
    curve: Curve


def read_study(folder: str | os.PathLike[str]) -> StudyFile:
    """Read the ``study.json`` of a study's folder (`LayoutError` where there is none or it is damaged)."""
    path = Path(folder) / STUDY_FILE
    return StudyFile.parse(_bytes(path), str(path))


def read_trial(folder: str | os.PathLike[str]) -> Trial:
    """Read one trial's folder.

    Raises
    ------
    LayoutError
        If a file is missing or damaged, or the folder is not named after the trial in it.
    """
    folder = Path(folder)
    file = TrialFile.parse(_bytes(folder / TRIAL_FILE), str(folder / TRIAL_FILE))
    if file.trial_id is not None and str(file.trial_id) != folder.name:
        raise LayoutError(
            f"{folder}: trial {file.trial_id} in the folder of trial {folder.name}; was it moved?"
        )
    rows = parse_rows(_bytes(folder / CURVE_FILE), str(folder / CURVE_FILE))
    return Trial(file, settle(rows).curve)


def finished_trials(folder: str | os.PathLike[str]) -> list[int]:
    """Numbers of the trials that a study's folder holds whole, in numeric order."""
    folder = Path(folder)
    if not folder.is_dir():
        return []
    return sorted(
        int(entry.name)
        for entry in folder.iterdir()
        if entry.name.isdecimal() and (entry / TRIAL_FILE).is_file() and (entry / CURVE_FILE).is_file()
    )


def write_study(folder: str | os.PathLike[str], study: StudyFile, *, run: RunFile | None = None) -> None:
    """Write ``study.json`` (and ``run.json``) into a study's folder, each whole or not at all."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if run is not None:
        write_whole(folder / RUN_FILE, run.text())
    write_whole(folder / STUDY_FILE, study.text())


def write_trial(
    folder: str | os.PathLike[str],
    trial: TrialFile,
    curve: Curve,
    *,
    extras: Mapping[str, str] | None = None,
) -> Path:
    """Write one trial into a study's folder: whole, or not there.

    Parameters
    ----------
    folder : path
        Folder of the study.
    trial : TrialFile
        Its ``trial_id`` names the folder.
    curve : Curve
        The measurements.
    extras : mapping of file name to text, optional
        Further files to lie beside the two published ones.

    Returns
    -------
    pathlib.Path
        The trial's folder.

    Raises
    ------
    ValueError
        If the trial has no number.
    FileExistsError
        If the study already holds this trial; a finished trial is never overwritten.
    """
    if trial.trial_id is None:
        raise ValueError("a trial needs its trial_id to be written")
    final = Path(folder) / str(trial.trial_id)
    if final.exists():
        raise FileExistsError(f"{final} exists; a finished trial is not overwritten")
    # A name that begins with a dot is never read as a trial, so a kill leaves nothing to misread.
    temporary = Path(folder) / f".{trial.trial_id}.{os.getpid()}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        files = {TRIAL_FILE: trial.text(), CURVE_FILE: curve.text(), **(extras or {})}
        for name, text in files.items():
            with (temporary / name).open("w", encoding="utf-8", newline="") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        temporary.rename(final)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return final


def write_whole(path: Path, text: str) -> None:
    """Write a file by way of a temporary name, so that a reader sees all of it or none."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise LayoutError(f"{path}: {error.strerror}") from None
