"""Turn an archive or a folder in the raw layout into the Parquet tables of a store."""

from __future__ import annotations

import fnmatch
import itertools
import json
import os
import shutil
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from . import __version__, archive, schemas, tables
from .archive import OnProgress
from .curves import Curves, Problem
from .errors import ArchiveRefused, BatchScienceError, LayoutError, SourceConflict, StoreMissing
from .layout import (
    CURVE_FILE,
    INCOMPLETE,
    RUN_FILE,
    STUDY_FILE,
    TRIAL_FILE,
    RunFile,
    StudyFile,
    TrialFile,
)

ARCHIVE_ROOT = "batch_science"
"""The folder that the published archive unpacks to; not part of a workload's name."""

PUBLISHED_SHA256 = "6460ab86a6ab0f22a02e1c9b982e1ca31220bf41f669304ce86f14d19053f435"

OnStudy = Callable[[str, int], None]
"""Called with the workload and batch size of each study that was read."""

# A study is parsed when the next one begins, if it is worth the call; small ones wait together.
_WORTH_PARSING = 1 << 20
_MOST_WAITING = 1 << 26


@dataclass(frozen=True, slots=True)
class IngestReport:
    """What an ingest read, and what it could not.

    Attributes
    ----------
    source : pathlib.Path
        The archive or folder.
    studies, trials, rows, measurements : int
        What was read; a row is a trial's metrics at one step, a measurement one number in it.
    problems : tuple of Problem
        Damaged files, each with its path.  What could be read beside them is in the tables.
    notes : tuple of Problem
        What is unusual but not damaged: unknown keys, merged or repeated rows, files passed over.
    """

    source: Path
    studies: int
    trials: int
    rows: int
    measurements: int
    problems: tuple[Problem, ...]
    notes: tuple[Problem, ...]


def ingest(
    source: str | os.PathLike[str],
    store: str | os.PathLike[str],
    *,
    workloads: Sequence[str] | None = None,
    replace: bool = False,
    strict: bool = False,
    on_study: OnStudy | None = None,
    on_progress: OnProgress | None = None,
) -> IngestReport:
    """Read studies in the raw layout and add them to the tables of a store.

    Parameters
    ----------
    source : path
        A tar, tar.bz2, tar.gz, tar.xz or tar.zst, or a folder.
    store : path
        Folder of the store; made if it is missing.
    workloads : sequence of str, optional
        Only workloads that match one of these patterns (``mnist/*/sgd``).
    replace : bool, default False
        Let studies of this source take the place of the same studies from another source.
    strict : bool, default False
        Stop at the first damaged file instead of listing it.
    on_study, on_progress : callable, optional
        See `OnStudy` and `batchscience.archive.OnProgress`.

    Returns
    -------
    IngestReport

    Raises
    ------
    LayoutError
        If the source is no archive, is cut short, or holds no study; or at the first problem if `strict`.
    ArchiveRefused
        If a member is hostile: a link, a device, an absurd size, a name that leads outside, a file
        twice, or a folder that disagrees with the metadata in it.
    SourceConflict
        If a study is already in the store, from another source.
    BatchScienceError
        If the store cannot be written: the disk is full, or another process writes into it.

    Notes
    -----
    The store changes by one rename at the end.  The same source gives byte-identical files.
    """
    source, store = Path(source), Path(store)
    try:
        return _ingest(source, store, workloads, replace, strict, on_study, on_progress)
    except OSError as error:
        raise BatchScienceError(
            f"{store}: {error.strerror or error}; free some space or name another --data, then run it again. "
            "What was in the tables before is still there"
        ) from error


def _ingest(
    source: Path,
    store: Path,
    workloads: Sequence[str] | None,
    replace: bool,
    strict: bool,
    on_study: OnStudy | None,
    on_progress: OnProgress | None,
) -> IngestReport:
    with tables.staging(store) as staged:
        reader = _Reader(source, staged, workloads, strict, on_study)
        reader.read(on_progress)
        if not any(reader.found()):
            raise LayoutError(
                f"{source}: holds no study; expected files such as "
                "dataset/model/optimizer/batch_size/study.json"
                + (f" of workloads like {', '.join(workloads)}" if workloads else "")
            )
        new = reader.studies_with_source()
        try:
            old = tables.tables_folder(store)
        except StoreMissing:
            old = None
        sources = {study.source: reader.sha256 for study in new}
        known = tables.read_manifest(old).sources if old is not None else {}
        if old is not None:
            _refuse_conflicts(old, new, replace)
        _Writer(staged / "tables", old, new, reader.sha256).write()
        shutil.rmtree(staged / "spill")
        tables.publish(store, staged / "tables", {**known, **sources})
    return reader.report(new)


@dataclass(slots=True)
class _Study:
    """A study while its files are being read."""

    path: str
    workload: str
    batch_size: int
    file: StudyFile | None = None
    run: RunFile | None = None
    source: str = ""
    seen: set[str] = field(default_factory=set)
    curves_waiting: dict[int, bytes] = field(default_factory=dict)
    trials_waiting: dict[int, bytes] = field(default_factory=dict)
    waiting: int = 0
    trials: dict[int, TrialFile] = field(default_factory=dict)
    with_curve: set[int] = field(default_factory=set)
    metrics: set[str] = field(default_factory=set)
    spilled: list[Path] = field(default_factory=list)
    rows: int = 0
    measurements: int = 0

    @property
    def key(self) -> tuple[str, int]:
        return self.workload, self.batch_size


@dataclass(slots=True)
class _Reader:
    """Reads the files of a source one after another, and parses them study by study in a worker thread.

    The decompressor, the CSV parser and the Parquet writer all release the interpreter's lock, so one
    process keeps every core busy.
    """

    source: Path
    staged: Path
    patterns: Sequence[str] | None
    strict: bool
    on_study: OnStudy | None
    sha256: str | None = None
    studies: dict[str, _Study | None] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    notes: dict[Problem, int] = field(default_factory=dict)
    _located: tuple[_Study, int | None, str] | None = None
    _parsing: deque[Future[None]] = field(default_factory=deque)
    _spills: int = 0
    _waiting: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def read(self, on_progress: OnProgress | None) -> None:
        if self.source.is_file():
            self.sha256 = archive.digest(self.source)
        (self.staged / "spill").mkdir()
        with ThreadPoolExecutor(1) as worker:
            before: _Study | None = None
            for name, content in archive.files(self.source, wanted=self._wanted, on_progress=on_progress):
                assert self._located is not None
                study, trial, kind = self._located
                if study is not before:
                    self._pass_on(worker, before)
                    before = study
                self._take(study, trial, kind, name, content)
            for study in list(self.found()):
                self._parse_later(worker, study)
            while self._parsing:
                self._parsing.popleft().result()
        for study in self.found():
            self._see_what_is_missing(study)

    def found(self) -> Iterable[_Study]:
        """The studies that were wanted and are there."""
        return (study for study in self.studies.values() if study is not None)

    def _wanted(self, name: str) -> bool:
        """Whether a file is one of the layout's; where it belongs is remembered for the next call."""
        folder, _, kind = name.rpartition("/")
        if kind in (CURVE_FILE, TRIAL_FILE):
            folder, _, number = folder.rpartition("/")
            study = self._study(folder, name)
            if study is None:
                return False
            if not (number.isascii() and number.isdecimal()):
                if not number.startswith("."):  # a dot: a trial that was being written
                    self._problem(name, f"expected the number of a trial as its folder, found {number!r}")
                return False
            self._located = study, int(number), kind
            return True
        if kind in (STUDY_FILE, RUN_FILE):
            study = self._study(folder, name)
            self._located = None if study is None else (study, None, kind)
            return study is not None
        self._note(Problem(f"*{kind[kind.rfind('.') :]}" if "." in kind else kind, "files passed over"))
        return False

    def _study(self, folder: str, name: str) -> _Study | None:
        """The study of a folder; None for one that is not wanted or not a study's."""
        if folder in self.studies:
            return self.studies[folder]
        parts = [part for part in folder.split("/") if part != "."]
        if parts[:1] == [ARCHIVE_ROOT]:
            parts = parts[1:]
        study = None
        if any(part.startswith(".") or part == "__MACOSX" for part in parts):
            self._note(Problem(folder, "hidden folder passed over"))
        elif len(parts) < 4 or not (parts[-1].isascii() and parts[-1].isdecimal() and int(parts[-1]) > 0):
            self._problem(name, "expected [subset/]dataset/model/optimizer/batch_size/… as its place")
        else:
            workload = "/".join(parts[:-1])
            if self.patterns is None or any(fnmatch.fnmatchcase(workload, p) for p in self.patterns):
                study = _Study("/".join(parts), workload, int(parts[-1]))
        self.studies[folder] = study
        return study

    def _take(self, study: _Study, trial: int | None, kind: str, name: str, content: bytes) -> None:
        file = f"{trial}/{kind}"
        if file in study.seen:
            raise ArchiveRefused(f"{self.source}: member {name!r} comes twice; nothing was written")
        study.seen.add(file)
        if trial is None:
            self._take_study_file(study, kind, f"{study.path}/{kind}", content)
            return
        (study.curves_waiting if kind == CURVE_FILE else study.trials_waiting)[trial] = content
        study.waiting += len(content)
        self._waiting += len(content)

    def _take_study_file(self, study: _Study, kind: str, name: str, content: bytes) -> None:
        try:
            if kind == RUN_FILE:
                study.run = RunFile.parse(content, name)
                return
            study.file = StudyFile.parse(content, name)
        except LayoutError as error:
            self._problem(name, str(error).removeprefix(f"{name}: "))
            return
        if study.file.batch_size != study.batch_size:
            raise ArchiveRefused(
                f"{self.source}: {name}: batch size {study.file.batch_size} in the folder of batch size "
                f"{study.batch_size}; was the archive edited? Nothing was written"
            )
        for key in study.file.unknown():
            self._note(Problem(STUDY_FILE, f"unknown key {key!r}"))

    def _pass_on(self, worker: ThreadPoolExecutor, study: _Study | None) -> None:
        if study is None:
            return
        if study.waiting >= _WORTH_PARSING:
            self._parse_later(worker, study)
        elif self._waiting > _MOST_WAITING:
            for each in list(self.found()):
                self._parse_later(worker, each)

    def _parse_later(self, worker: ThreadPoolExecutor, study: _Study) -> None:
        curves, trials = study.curves_waiting, study.trials_waiting
        if not (curves or trials):
            return
        self._waiting -= study.waiting
        study.curves_waiting, study.trials_waiting, study.waiting = {}, {}, 0
        # Few chunks in flight: memory stays bounded when parsing is slower than decompressing.
        while len(self._parsing) >= 3:
            self._parsing.popleft().result()
        self._spills += 1
        spill = self.staged / "spill" / f"{self._spills}.arrow"
        self._parsing.append(worker.submit(self._parse, study, curves, trials, spill))

    def _parse(self, study: _Study, curves: dict[int, bytes], trials: dict[int, bytes], spill: Path) -> None:
        for number, text in trials.items():
            where = f"{study.path}/{number}/{TRIAL_FILE}"
            try:
                trial = TrialFile.parse(text, where)
            except LayoutError as error:
                self._problem(where, str(error).removeprefix(f"{where}: "))
                continue
            if trial.trial_id is not None and trial.trial_id != number:
                raise ArchiveRefused(
                    f"{self.source}: {where}: trial {trial.trial_id} in the folder of trial {number}; "
                    "was the archive edited? Nothing was written"
                )
            for key in trial.unknown():
                self._note(Problem(TRIAL_FILE, f"unknown key {key!r}"))
            study.trials[number] = trial
        read = Curves(study.path, self._problem, self._note).read(curves)
        study.with_curve |= curves.keys()
        study.metrics |= set(read.column_names) - {"trial", "step"}
        if read.num_rows:
            study.rows += read.num_rows
            study.measurements += sum(len(c) - c.null_count for c in read.columns[2:])
            with pa.OSFile(str(spill), "wb") as sink, pa.ipc.new_file(sink, read.schema) as file:
                file.write_table(read)
            study.spilled.append(spill)
        if self.on_study is not None:
            self.on_study(study.workload, study.batch_size)

    def _see_what_is_missing(self, study: _Study) -> None:
        if f"None/{STUDY_FILE}" not in study.seen:
            self._problem(f"{study.path}/{STUDY_FILE}", "missing; its search space is not known")
        for number in sorted(study.with_curve | study.trials.keys()):
            if number not in study.with_curve:
                self._problem(f"{study.path}/{number}/{CURVE_FILE}", "missing; a trial without measurements")
            if f"{number}/{TRIAL_FILE}" not in study.seen:
                self._problem(f"{study.path}/{number}/{TRIAL_FILE}", "missing; taken for INCOMPLETE")

    def _problem(self, path: str, what: str) -> None:
        if self.strict:
            raise LayoutError(f"{self.source}: {path}: {what}")
        self.problems.append(Problem(path, what))

    def _note(self, note: Problem) -> None:
        with self._lock:  # the worker notes too
            self.notes[note] = self.notes.get(note, 0) + 1

    def studies_with_source(self) -> list[_Study]:
        """The studies in order of their key, each with the name of where it comes from."""
        studies = sorted(self.found(), key=lambda study: study.key)
        seen: set[tuple[str, int]] = set()
        for study in studies:
            if study.key in seen:
                raise ArchiveRefused(
                    f"{self.source}: {study.path} comes twice, under two names; nothing was written"
                )
            seen.add(study.key)
            if study.run is not None:
                study.source = study.run.source
            elif self.sha256 is None:
                study.source = f"folder {self.source.resolve().name}"
            elif self.sha256 == PUBLISHED_SHA256:
                study.source = "archive"
            else:
                study.source = f"archive {self.sha256[:12]}"
        return studies

    def report(self, studies: list[_Study]) -> IngestReport:
        notes = [
            Problem(n.path, n.what + (f" ({count} times)" if count > 1 else ""))
            for n, count in self.notes.items()
        ]
        return IngestReport(
            self.source,
            len(studies),
            sum(len(study.trials.keys() | study.with_curve) for study in studies),
            sum(study.rows for study in studies),
            sum(study.measurements for study in studies),
            tuple(sorted(self.problems)),
            tuple(sorted(notes)),
        )


def _refuse_conflicts(
    old: Path,
    new: list[_Study],
    replace: bool,
) -> None:
    there = pq.read_table(old / "studies.parquet", columns=["workload", "batch_size", "source"])
    source_of = {(row["workload"], row["batch_size"]): row["source"] for row in there.to_pylist()}
    conflicts = [
        (study, source_of[study.key])
        for study in new
        if study.key in source_of and source_of[study.key] != study.source
    ]
    if conflicts and not replace:
        study, source = conflicts[0]
        raise SourceConflict(
            f"{len(conflicts)} studies are already in the tables from another source, for example "
            f"{study.path}: there from {source!r}, now from {study.source!r}; "
            "use another --data, or --replace to let the new ones take their place"
        )


@dataclass(slots=True)
class _Writer:
    """Writes a complete set of tables: the studies just read, and those of the old tables they leave."""

    folder: Path
    old: Path | None
    new: list[_Study]
    sha256: str | None

    def write(self) -> None:
        self.folder.mkdir()
        replaced = {study.key for study in self.new}
        kept = {name: self._kept(name, replaced) for name in ("studies", "search_space", "trials")}
        self._write_table("studies", schemas.STUDIES, schemas.STUDY_KEY, kept["studies"], self._studies())
        self._write_table(
            "search_space",
            schemas.SEARCH_SPACE,
            (*schemas.STUDY_KEY, "parameter"),
            kept["search_space"],
            self._search_space(),
        )
        trials = self._trials()
        settings = set(trials.column_names) | set(kept["trials"].column_names if kept["trials"] else ())
        schema = schemas.trials(settings - schemas.RESERVED)
        self._write_table("trials", schema, schemas.TRIAL_KEY, kept["trials"], trials)
        by_workload: dict[str, list[_Study]] = {}
        for study in self.new:
            by_workload.setdefault(study.workload, []).append(study)
        with ThreadPoolExecutor(os.cpu_count()) as workers:
            list(workers.map(lambda item: self._write_measurements(*item), by_workload.items()))
        self._link_untouched(by_workload.keys())

    def _kept(self, name: str, replaced: set[tuple[str, int]]) -> pa.Table | None:
        if self.old is None:
            return None
        table = pq.read_table(self.old / f"{name}.parquet")
        keys = zip(table["workload"].to_pylist(), table["batch_size"].to_pylist(), strict=True)
        return table.filter(pa.array([key not in replaced for key in keys], pa.bool_()))

    def _write_table(
        self, name: str, schema: pa.Schema, key: Sequence[str], kept: pa.Table | None, new: pa.Table
    ) -> None:
        tables_ = [_as_schema(table, schema) for table in (kept, new) if table is not None]
        table = pa.concat_tables(tables_).unify_dictionaries().combine_chunks()
        # Dictionary codes do not sort like the names; the names do.
        names = np.asarray(table["workload"].cast(pa.string()).to_pylist(), dtype=object)
        rest = [np.asarray(table[column].to_pylist()) for column in key[1:]]
        ranks = np.unique(names.astype(str), return_inverse=True)[1] if len(names) else names
        table = table.take(pa.array(np.lexsort([*rest[::-1], ranks]), pa.int64()))
        table = _plain_dictionary(table)
        schemas.check(table, schema, key)
        with pq.ParquetWriter(
            self.folder / f"{name}.parquet", self._with_metadata(schema), compression="zstd"
        ) as file:
            # A row group per workload, so that a reader of one workload reads only that.
            ranks = np.sort(ranks)
            starts = [0, *(np.flatnonzero(np.diff(ranks)) + 1).tolist(), len(ranks)]
            for start, end in itertools.pairwise(starts):
                file.write_table(table.slice(start, end - start), row_group_size=max(1, end - start))

    def _studies(self) -> pa.Table:
        rows = []
        for study in self.new:
            parts = study.workload.split("/")
            rows.append(
                {
                    "workload": study.workload,
                    "batch_size": study.batch_size,
                    # With its prefix: "solution_quality/mnist" is not "mnist", though study.json says so.
                    "dataset": "/".join(parts[:-2]),
                    "model": parts[-2],
                    "optimizer": parts[-1],
                    "train_steps": study.file.train_steps if study.file else None,
                    "early_stopping": study.file.early_stopping if study.file else None,
                    "source": study.source,
                }
            )
        return _table(rows, schemas.STUDIES)

    def _search_space(self) -> pa.Table:
        rows = []
        for study in self.new:
            for name, config in sorted(study.file.parameter_configs.items()) if study.file else ():
                points = config.feasible_points
                numbers = None if points is None else [_number(point) for point in points]
                rows.append(
                    {
                        "workload": study.workload,
                        "batch_size": study.batch_size,
                        "parameter": name,
                        "type": config.type,
                        "scale": config.scale,
                        "min_value": config.min_value,
                        "max_value": config.max_value,
                        "feasible_points": numbers,
                    }
                )
        return _table(rows, schemas.SEARCH_SPACE)

    def _trials(self) -> pa.Table:
        rows = []
        names: set[str] = set()
        for study in self.new:
            for number in sorted(study.trials.keys() | study.with_curve):
                trial = study.trials.get(number)
                settings, others = _settings(trial.parameters if trial else {})
                names |= settings.keys()
                rows.append(
                    {
                        **settings,
                        "workload": study.workload,
                        "batch_size": study.batch_size,
                        "trial": number,
                        # Without metadata nobody said that it finished.
                        "status": INCOMPLETE if trial is None else trial.status,
                        "steps": trial.steps if trial else None,
                        "other_settings": json.dumps(others, sort_keys=True) if others else None,
                    }
                )
        return _table(rows, schemas.trials(names))

    def _write_measurements(self, workload: str, studies: list[_Study]) -> None:
        path = self.folder / tables.measurements_file(workload)
        path.parent.mkdir(parents=True, exist_ok=True)
        metrics = set().union(*(study.metrics for study in studies))
        new = {study.batch_size: study for study in studies}
        old: dict[int, int] = {}
        old_file = None
        if self.old is not None and (self.old / tables.measurements_file(workload)).is_file():
            old_file = pq.ParquetFile(self.old / tables.measurements_file(workload))
            for group in range(old_file.num_row_groups):
                batch_size = old_file.metadata.row_group(group).column(1).statistics.min
                if batch_size not in new:
                    old[batch_size] = group
            metrics |= set(old_file.schema_arrow.names) - schemas.RESERVED
        schema = schemas.measurements(sorted(metrics))
        writer: pq.ParquetWriter | None = None
        sizes = sorted(new.keys() | old.keys())
        try:
            for batch_size in sizes:
                if batch_size in new:
                    table = self._curves(new[batch_size], schema)
                else:
                    assert old_file is not None
                    table = _as_schema(old_file.read_row_group(old[batch_size]), schema)
                schemas.check(table, schema, schemas.MEASUREMENT_KEY)
                if not table.num_rows and (writer is not None or batch_size != sizes[-1]):
                    continue
                if writer is None:
                    writer = pq.ParquetWriter(path, self._with_metadata(schema), **_encoding(table))
                # A row group per study: a reader of one batch size reads only that.
                writer.write_table(table, row_group_size=max(1, table.num_rows))
        finally:
            if writer is not None:
                writer.close()
            if old_file is not None:
                old_file.close()

    def _curves(self, study: _Study, schema: pa.Schema) -> pa.Table:
        parts = []
        for spill in study.spilled:
            with pa.memory_map(str(spill)) as file:
                parts.append(pa.ipc.open_file(file).read_all())
        if not parts:
            return schema.empty_table()
        table = pa.concat_tables(parts, promote_options="default")
        if len(parts) > 1:
            table = table.take(pa.array(np.argsort(table["trial"].to_numpy(), kind="stable")))
        codes = pa.array(np.zeros(table.num_rows, dtype=np.int32))
        columns = {
            "workload": pa.DictionaryArray.from_arrays(codes, pa.array([study.workload])),
            "batch_size": pa.array(np.full(table.num_rows, study.batch_size, dtype=np.int64)),
        }
        for name in table.column_names:
            columns[name] = table[name]
        return _as_schema(pa.table(columns), schema)

    def _link_untouched(self, written: Iterable[str]) -> None:
        if self.old is None:
            return
        done = {tables.measurements_file(workload) for workload in written}
        for path in (self.old / "measurements").rglob("*.parquet"):
            name = path.relative_to(self.old).as_posix()
            if name in done:
                continue
            target = self.folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(path, target)
            except OSError:  # a file system without hard links
                shutil.copyfile(path, target)

    def _with_metadata(self, schema: pa.Schema) -> pa.Schema:
        return schema.with_metadata(
            {
                "batchscience.schema": str(schemas.SCHEMA_NUMBER),
                "batchscience.version": __version__,
                "batchscience.archive_sha256": self.sha256 or "",
            }
        )


def _encoding(first: pa.Table) -> dict[str, Any]:
    """How to write the columns: error rates are few distinct values, losses are all different."""
    dictionary = ["workload", "batch_size", "trial"]
    split: list[str] = []
    for name in first.column_names[4:]:
        sample = first[name].slice(0, 20_000).drop_null()
        few = len(sample) and len(sample.unique()) < len(sample) / 2
        (dictionary if few else split).append(name)
    return {
        "compression": "zstd",
        "compression_level": 1,
        "use_dictionary": dictionary,
        "column_encoding": {"step": "DELTA_BINARY_PACKED", **dict.fromkeys(split, "BYTE_STREAM_SPLIT")},
    }


def _table(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=schema)


def _as_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with the schema's columns in its order; a column it lacks is null."""
    columns = [
        table[field.name].cast(field.type)
        if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _plain_dictionary(table: pa.Table) -> pa.Table:
    """The workload column with a dictionary of just its names in order, so that files are reproducible."""
    names = table["workload"].cast(pa.string()).combine_chunks().dictionary_encode()
    at = table.column_names.index("workload")
    return table.set_column(at, table.schema.field(at), names)


def _settings(parameters: dict[str, Any]) -> tuple[dict[str, float], dict[str, Any]]:
    """The settings that are numbers, by column, and the others."""
    numbers, others = {}, {}
    for name, value in parameters.items():
        number = _number(value)
        if number is None:
            others[name] = value
        else:
            numbers[schemas.column_name(name, "parameter")] = number
    return numbers, others


def _number(value: Any) -> float | None:
    """A JSON number, or a string of one, as a float; None for anything a float does not hold exactly."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return None if isinstance(value, int) and number != value else number
