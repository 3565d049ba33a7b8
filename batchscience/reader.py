"""Read the files of a source one after another, and have them parsed and written study by study."""

from __future__ import annotations

import fnmatch
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from .archive import OnProgress, Problem, Source, digest
from .curves import CurveParser
from .errors import ArchiveRefused, LayoutError
from .layout import (
    BESIDE,
    CURVE_FILE,
    MOST,
    RUN_FILE,
    STUDY_FILE,
    TRIAL_FILE,
    RunFile,
    StudyFile,
    TrialFile,
)
from .writer import ReadStudy, TablesWriter

ARCHIVE_ROOT = "batch_science"
"""The folder that the published archive unpacks to; not part of a workload's name."""

PUBLISHED_SHA256 = "6460ab86a6ab0f22a02e1c9b982e1ca31220bf41f669304ce86f14d19053f435"

_TRIAL_FILES = TypeAdapter(list[TrialFile])

# A study is parsed when the next one begins, if it is worth the call; small ones wait together.
_WORTH_PARSING = 1 << 20
_MOST_WAITING = 1 << 26
_MOST_AT_WORK = 1 << 25


@dataclass(slots=True)
class _Study(ReadStudy):
    """A study while its files are being read."""

    run: RunFile | None = None
    seen: set[int] = field(default_factory=set)
    curves_waiting: dict[int, bytes] = field(default_factory=dict)
    trials_waiting: dict[int, bytes] = field(default_factory=dict)
    waiting: int = 0


@dataclass(slots=True)
class Reader:
    """Reads the files of a source one after another, and parses them study by study in a worker thread.

    The decompressor, the CSV parser and the Parquet writer all release the interpreter's lock, so one
    process keeps every core busy.
    """

    source: Path
    writer: TablesWriter
    patterns: Sequence[str] | None
    strict: bool
    on_study: Callable[[str, int], None] | None
    studies: dict[str, _Study | None] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    notes: dict[Problem, int] = field(default_factory=dict)
    _located: tuple[_Study, int | None, str] | None = None
    _unwritten: set[str] = field(default_factory=set)
    _written: set[str] = field(default_factory=set)
    _working: deque[tuple[Future[None], int]] = field(default_factory=deque)
    _at_work: int = 0
    _waiting: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _parser: CurveParser = field(init=False)

    def __post_init__(self) -> None:
        self._parser = CurveParser(self._problem, self._note)

    def read(self, opened: Source, on_progress: OnProgress | None) -> None:
        """Read everything, and write the measurements."""
        # One worker: what is handed to it is done in order, and the decompressor has the other cores.
        with ThreadPoolExecutor(1) as worker:
            if self.source.is_file():
                self._hand_over(worker, self._take_digest)
            before: _Study | None = None
            for name, content in opened.files(wanted=self._wanted, on_progress=on_progress):
                assert self._located is not None
                study, trial, kind = self._located
                if study is not before:
                    self._pass_on(worker, before, study)
                    before = study
                self._take(study, trial, kind, name, content)
            for workload in sorted(self._unwritten):
                self._write_later(worker, workload)
            self._wait_until_at_work(0)
        for study in self.found():
            self._see_what_is_missing(study)

    def found(self) -> Iterable[_Study]:
        """The studies that were wanted and are there."""
        return (study for study in self.studies.values() if study is not None)

    def _take_digest(self) -> None:
        self.writer.sha256 = digest(self.source)

    def _wanted(self, name: str) -> bool:
        """Whether a file is one of the layout's; where it belongs is remembered for the next call."""
        folder, _, kind = name.rpartition("/")
        if kind in (CURVE_FILE, TRIAL_FILE):
            folder, _, number = folder.rpartition("/")
            study = self._study(folder, name)
            if study is None:
                return False
            if not _is_key(number):
                if not number.startswith("."):  # a dot: a trial that was being written
                    self._problem(name, f"expected the number of a trial as its folder, found {number!r}")
                return False
            self._located = study, int(number), kind
            return True
        if kind in (STUDY_FILE, RUN_FILE):
            study = self._study(folder, name)
            self._located = None if study is None else (study, None, kind)
            return study is not None
        if kind in BESIDE:
            return False
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
        elif len(parts) < 4 or not (_is_key(parts[-1]) and int(parts[-1]) > 0):
            self._problem(name, "expected [subset/]dataset/model/optimizer/batch_size/… as its place")
        else:
            workload = "/".join(parts[:-1])
            if self.patterns is None or any(fnmatch.fnmatchcase(workload, p) for p in self.patterns):
                study = _Study(workload, int(parts[-1]))
        self.studies[folder] = study
        return study

    def _take(self, study: _Study, trial: int | None, kind: str, name: str, content: bytes) -> None:
        file = 2 * (-1 if trial is None else trial) + (kind in (CURVE_FILE, RUN_FILE))
        if file in study.seen:
            raise ArchiveRefused(f"{self.source}: member {name!r} comes twice; nothing was written")
        study.seen.add(file)
        self._unwritten.add(study.workload)
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

    def _pass_on(self, worker: ThreadPoolExecutor, study: _Study | None, following: _Study) -> None:
        """Have a study parsed when the next one begins, and a workload written when the next one does."""
        if study is None:
            return
        if study.waiting >= _WORTH_PARSING:
            self._parse_later(worker, study)
        elif self._waiting > _MOST_WAITING:
            for each in list(self.found()):
                self._parse_later(worker, each)
        if study.workload != following.workload and study.workload not in self._written:
            # Archives go through their folders one by one. Where one does not, the workload is written
            # once more at the end.
            self._write_later(worker, study.workload)

    def _write_later(self, worker: ThreadPoolExecutor, workload: str) -> None:
        studies = [study for study in self.found() if study.workload == workload]
        for study in studies:
            self._parse_later(worker, study)
        self._written.add(workload)
        self._unwritten.discard(workload)
        self._hand_over(worker, self.writer.write_workload, workload, studies)

    def _parse_later(self, worker: ThreadPoolExecutor, study: _Study) -> None:
        curves, trials = study.curves_waiting, study.trials_waiting
        if not (curves or trials):
            return
        size = study.waiting
        self._waiting -= size
        study.curves_waiting, study.trials_waiting, study.waiting = {}, {}, 0
        self._hand_over(worker, self._parse, study, curves, trials, size=size)

    def _hand_over(
        self, worker: ThreadPoolExecutor, work: Callable[..., None], *arguments: Any, size: int = 0
    ) -> None:
        # Memory stays bounded when parsing is slower than decompressing.
        self._wait_until_at_work(_MOST_AT_WORK - size)
        self._working.append((worker.submit(work, *arguments), size))
        self._at_work += size

    def _wait_until_at_work(self, most: int) -> None:
        """Wait until the worker has no more bytes left than these, and none left to do for zero."""
        while self._working and (self._at_work > most or most <= 0 or self._working[0][0].done()):
            work, size = self._working.popleft()
            work.result()
            self._at_work -= size

    def _parse(self, study: _Study, curves: dict[int, bytes], trials: dict[int, bytes]) -> None:
        files = self._trial_files(study, trials)
        study.files.update(files)
        study.with_metadata |= files.keys()
        read = self._parser.read(study.path, curves)
        study.with_curve |= curves.keys()
        study.metrics |= set(read.column_names) - {"trial", "step"}
        if read.num_rows:
            study.rows += read.num_rows
            study.measurements += sum(len(c) - c.null_count for c in read.columns[2:])
            study.curves.append(self.writer.spill.put(read))
        if self.on_study is not None:
            self.on_study(study.workload, study.batch_size)

    def _trial_files(self, study: _Study, texts: dict[int, bytes]) -> dict[int, TrialFile]:
        try:
            together = _TRIAL_FILES.validate_json(b"[" + b",".join(texts.values()) + b"]")
        except ValidationError:
            together = []
        if len(together) == len(texts):
            found = dict(zip(texts, together, strict=True))
        else:  # one of them is damaged: find out which
            found = {}
            for number, text in texts.items():
                where = f"{study.path}/{number}/{TRIAL_FILE}"
                try:
                    found[number] = TrialFile.parse(text, where)
                except LayoutError as error:
                    self._problem(where, str(error).removeprefix(f"{where}: "))
        for number, trial in found.items():
            if trial.trial_id is not None and trial.trial_id != number:
                raise ArchiveRefused(
                    f"{self.source}: {study.path}/{number}/{TRIAL_FILE}: trial {trial.trial_id} in the "
                    f"folder of trial {number}; was the archive edited? Nothing was written"
                )
            for key in trial.unknown():
                self._note(Problem(TRIAL_FILE, f"unknown key {key!r}"))
        return found

    def _see_what_is_missing(self, study: _Study) -> None:
        if -2 not in study.seen:
            self._problem(f"{study.path}/{STUDY_FILE}", "missing; its search space is not known")
        for number in sorted({file // 2 for file in study.seen if file >= 0}):
            if 2 * number + 1 not in study.seen:
                self._problem(f"{study.path}/{number}/{CURVE_FILE}", "missing; a trial without measurements")
            if 2 * number not in study.seen:
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
            elif self.writer.sha256 is None:
                study.source = f"folder {self.source.resolve().name}"
            elif self.writer.sha256 == PUBLISHED_SHA256:
                study.source = "archive"
            else:
                study.source = f"archive {self.writer.sha256[:12]}"
        return studies

    def counted_notes(self) -> tuple[Problem, ...]:
        """What is unusual but not damaged, each once with how often it was seen."""
        return tuple(
            sorted(
                Problem(note.path, note.what + (f" ({count} times)" if count > 1 else ""))
                for note, count in self.notes.items()
            )
        )


def _is_key(number: str) -> bool:
    """Whether the name of a folder is a number that the tables hold."""
    return number.isascii() and number.isdecimal() and len(number) < 20 and int(number) <= MOST
