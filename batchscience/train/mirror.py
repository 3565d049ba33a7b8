"""Studies that lie at a URL: a working copy on this machine, and how trials get there whole and back."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import LayoutError, TrainingError
from ..layout import (
    CURVE_FILE,
    RUN_FILE,
    STUDY_FILE,
    TRIAL_FILE,
    RunFile,
    StudyFile,
    finished_trials,
    read_trial,
    write_whole,
)
from ..places import filesystem, local_path, place

log = logging.getLogger(__name__)

MARKER = TRIAL_FILE
"""Written last: a trial's folder without it holds no trial."""
_FETCHED = ".fetched."
_TEMPORARY = ".{}.tmp"


@dataclass(frozen=True)
class Mirror:
    """A working copy of the studies at a URL.

    Parameters
    ----------
    url : Path
        Root of the raw layout, as `place` gives it.
    root : Path
        Root of the working copy.

    Notes
    -----
    No object store renames a folder at once, and not every one puts even a single file there at once.  So a
    trial is first written whole on this machine; then its files are put at the URL under a temporary key,
    ``.7.tmp`` for trial 7, that no reader looks at; and when all of them are there each is moved to its
    place, ``metadata.json`` last: that is the marker.  A trial without it does not count, here or for
    `ingest`, and is put there again.

    What is at the URL decides.  The working copy holds what was brought from there, the checkpoints and
    locks of trials in training, and trials that could not be put there yet.
    """

    url: Path
    root: Path

    def study(self, name: str) -> Path:
        """Where a study lies at the URL."""
        return self.url / name

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Let no other process of this machine begin a study of the same URL meanwhile."""
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / ".lock").open("a+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def finished(self, name: str) -> list[int]:
        """Numbers of the trials that the URL holds whole, in numeric order."""
        return _whole(self._files(name))

    def fetch(self, name: str) -> None:
        """Make the working copy of a study that of the URL, and put there what only this machine holds.

        Raises
        ------
        TrainingError
            If the URL cannot be read or written.
        """
        here = self.root / name
        files = self._files(name)
        heads = {file: self._read(f"{name}/{file}") for file in (RUN_FILE, STUDY_FILE) if file in files}
        there, ours = _whole(files), finished_trials(here)
        if not there and not _reads(heads.get(STUDY_FILE)):
            heads = {}
        if STUDY_FILE not in heads or _source(here) not in (None, _source_in(heads.get(RUN_FILE))):
            # The working copy is of a study that is not there any more, or of another one.
            shutil.rmtree(here, ignore_errors=True)
        if STUDY_FILE not in heads:
            return
        self._clear(name, files, [_TEMPORARY.format(done) for done in ("study", *there)])
        here.mkdir(parents=True, exist_ok=True)
        for remains in here.glob(f"{_FETCHED}*"):
            shutil.rmtree(remains, ignore_errors=True)
        for file, content in heads.items():
            write_whole(here / file, content.decode())
        self._bring(name, [trial for trial in there if trial not in ours])
        for trial in finished_trials(here):
            # By their sizes too: not every store puts even one file there at once.
            if trial not in there or any(
                files[f"{trial}/{file}"] != (here / str(trial) / file).stat().st_size
                for file in (TRIAL_FILE, CURVE_FILE)
            ):
                self.publish(name, trial)

    def fetched(self, name: str, trial: int) -> bool:
        """Whether another machine has finished a trial; then the working copy holds it too."""
        if not {MARKER, CURVE_FILE} <= set(self._files(f"{name}/{trial}")):
            return False
        self._bring(name, [trial])
        return trial in finished_trials(self.root / name)

    def publish_study(self, name: str) -> None:
        """Put the files of a study, not its trials, at the URL."""
        self._put(name, (RUN_FILE, STUDY_FILE), f"{name}/{_TEMPORARY.format('study')}")

    def publish(self, name: str, trial: int) -> None:
        """Put a finished trial at the URL, the marker last.

        Raises
        ------
        TrainingError
            If that fails; the trial stays on this machine, and the next run puts it there.
        """
        folder = self.root / name / str(trial)
        names = sorted(path.name for path in folder.iterdir() if path.name != MARKER)
        self._put(f"{name}/{trial}", (*names, MARKER), f"{name}/{_TEMPORARY.format(trial)}")

    def _bring(self, name: str, trials: Sequence[int]) -> None:
        """Copy whole trials here, each by a rename; one that cannot be read is left to be trained again."""
        if not trials:
            return
        study = self.root / name
        temporary = study / f"{_FETCHED}{os.getpid()}"
        shutil.rmtree(temporary, ignore_errors=True)
        wanted = [f"{trial}/{file}" for trial in trials for file in (TRIAL_FILE, CURVE_FILE)]
        for trial in trials:
            (temporary / str(trial)).mkdir(parents=True)
        try:
            with self._talking():
                sources = [f"{self._path}/{name}/{file}" for file in wanted]
                self._fs.get(sources, [str(temporary / file) for file in wanted])
            for trial in trials:
                try:
                    read_trial(temporary / str(trial))
                except LayoutError as error:
                    log.warning("trial %d of %s is damaged at %s: %s", trial, name, self.url, error)
                    continue
                shutil.rmtree(study / str(trial), ignore_errors=True)
                (temporary / str(trial)).rename(study / str(trial))
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    @property
    def _fs(self) -> Any:
        return filesystem(self.url)

    @property
    def _path(self) -> str:
        return str(self.url.path).rstrip("/")  # type: ignore[attr-defined]  # a UPath has it

    def _files(self, name: str) -> dict[str, int]:
        """Sizes of the files below a folder of the URL, by their path from there."""
        folder = f"{self._path}/{name}"
        with self._talking():
            # Another machine may have written since the last look.
            self._fs.invalidate_cache()
            found = self._fs.find(folder, detail=True)
        inside = self._fs._strip_protocol(folder).strip("/") + "/"
        return {path.strip("/").removeprefix(inside): facts["size"] for path, facts in found.items()}

    def _read(self, name: str) -> bytes:
        with self._talking():
            content: bytes = self._fs.cat_file(f"{self._path}/{name}")
        return content

    def _put(self, name: str, files: Sequence[str], temporary: str) -> None:
        """Put files of a folder at the URL: all under a temporary key, then each in its place, in order."""
        target, temporary = f"{self._path}/{name}", f"{self._path}/{temporary}"
        with self._talking():
            for folder in (temporary, target):
                self._fs.makedirs(folder, exist_ok=True)
            for file in files:
                self._fs.pipe_file(f"{temporary}/{file}", (self.root / name / file).read_bytes())
            for file in files:
                self._move(f"{temporary}/{file}", f"{target}/{file}")
            # Where folders are things of their own; an object store has none.
            with contextlib.suppress(OSError, NotImplementedError):
                self._fs.rmdir(temporary)

    def _clear(self, name: str, files: Iterable[str], folders: Sequence[str]) -> None:
        """Remove what was left under temporary keys of things that are in their place."""
        with self._talking():
            for file in files:
                if file.partition("/")[0] in folders:
                    with contextlib.suppress(FileNotFoundError):
                        self._fs.rm_file(f"{self._path}/{name}/{file}")

    def _move(self, source: str, target: str) -> None:
        try:
            self._fs.cp_file(source, target)
        except NotImplementedError:  # as over SFTP, which renames instead, but onto nothing that is there
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(target)
            self._fs.mv(source, target)
        else:
            self._fs.rm_file(source)

    @contextlib.contextmanager
    def _talking(self) -> Iterator[None]:
        """Turn what a file system raises, each kind its own, into a message that says what to do."""
        try:
            yield
        except Exception as error:
            raise TrainingError(
                f"{self.url}: {type(error).__name__}: {error}.  What is finished is whole, there or in "
                f"{self.root}; the same command goes on and puts it there"
            ) from error


def mirror_of(folder: str | os.PathLike[str]) -> Mirror | None:
    """The working copy of a URL; None for a folder of this machine, which needs none.

    Notes
    -----
    It lies in the user's cache (``$XDG_CACHE_HOME`` or the platform's own), a folder for each URL.
    """
    import platformdirs

    if local_path(folder) is not None:
        return None
    url = place(folder)
    digest = hashlib.sha256(str(url).rstrip("/").encode()).hexdigest()[:16]
    return Mirror(url, platformdirs.user_cache_path("batchscience") / "training" / digest)


def finished_at(folder: str | os.PathLike[str], name: str) -> list[int]:
    """Numbers of the trials of a study that a folder or URL holds whole; nothing is copied."""
    here, mirror = local_path(folder), mirror_of(folder)
    if here is not None:
        return finished_trials(here / name)
    assert mirror is not None
    return mirror.finished(name)


def _whole(files: Iterable[str]) -> list[int]:
    """The trials among the files of a study that have their curve and their marker, in numeric order."""
    found: dict[int, set[str]] = {}
    for path in files:
        trial, _, file = path.partition("/")
        if trial.isdecimal():
            found.setdefault(int(trial), set()).add(file)
    return sorted(trial for trial, names in found.items() if {MARKER, CURVE_FILE} <= names)


def _reads(content: bytes | None) -> bool:
    """Whether this is a ``study.json``, not a part of one."""
    try:
        return content is not None and bool(StudyFile.parse(content, STUDY_FILE))
    except LayoutError:
        return False


def _source(study: Path) -> str | None:
    """Where the study of a folder comes from; None where there is none."""
    path = study / RUN_FILE
    return _source_in(path.read_bytes()) if path.is_file() else None


def _source_in(content: bytes | None) -> str | None:
    try:
        return None if content is None else RunFile.parse(content, RUN_FILE).source
    except LayoutError:
        return None
