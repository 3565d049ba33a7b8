"""A study: its trials, trained and written in the published layout, whatever interrupts them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import os
import platform
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..errors import LayoutError, TrainingError
from ..layout import (
    FACTS_FILE,
    NOISE_FILE,
    RUN_FILE,
    STUDY_FILE,
    RunFile,
    StudyFile,
    finished_trials,
    read_study,
    write_study,
    write_trial,
    write_whole,
)
from ..places import local_path
from ..spaces import Parameter, SearchSpace
from .engine import Engine, Failure, Task, engine_named
from .mirror import finished_at, mirror_of
from .rules import Limits, NoiseRule, Pruning
from .work import TrainedTrial, TrialWork
from .workloads import Workload

if TYPE_CHECKING:
    from .devices import Devices
    from .loop import Outcome, Trainer

log = logging.getLogger(__name__)

__all__ = [
    "FACTS_FILE",
    "NOISE_FILE",
    "Study",
    "StudyReport",
    "Sweep",
    "facts",
    "missing_trials",
    "run_study",
    "run_sweeps",
    "trainer_of",
]


@dataclass(frozen=True, slots=True)
class Study:
    """A search over the metaparameters of a workload at one batch size.

    Parameters
    ----------
    workload : Workload
    batch_size : int
        Examples of one update, over all replicas.
    limits : Limits
        When a trial ends.
    accumulate : int, default 1
        Parts into which each replica divides its share of a batch.
    stop_at_goal : bool, default False
        Whether a trial ends at the first measurement that meets the workload's goal.  Off by default: a
        goal that is changed afterwards would find the curves cut short.
    noise : NoiseRule, optional
        Where the gradient noise scale is measured.
    prune : float, optional
        Ends a trial, INCOMPLETE, when it is still short of the workload's goal after so many times the
        fewest steps in which another trial reached it (see `Pruning`).  Off by default, as in the paper.
    narrowed : tuple of (int, SearchSpace)
        From each of these trials on, settings are drawn from a space within the workload's.  A study that
        is extended may be narrowed: its trials up to then stay as they are.

    Raises
    ------
    ValueError
        If the batch size is below 1, there is no goal to stop at or to prune by, the learning rate is to
        decay over the steps of a study that has none, or a narrower space is not within the workload's.
    """

    workload: Workload
    batch_size: int
    limits: Limits
    accumulate: int = 1
    stop_at_goal: bool = False
    noise: NoiseRule | None = None
    prune: float | None = None
    narrowed: tuple[tuple[int, SearchSpace], ...] = ()

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.accumulate < 1:
            raise ValueError(
                f"expected a batch size and parts of at least 1, got {self.batch_size}, {self.accumulate}"
            )
        if self.stop_at_goal and self.workload.goal is None:
            raise ValueError(f"{self.workload.name} has no goal to stop at")
        if self.workload.decays and self.steps is None:
            raise ValueError(f"{self.workload.name} lets the learning rate decay; give steps or examples")

        if self.prune is not None:
            if self.workload.goal is None:
                raise ValueError(f"{self.workload.name} has no goal to prune by")
            Pruning(self.workload.goal, self.prune)
        numbers = [first for first, _ in self.narrowed]
        if numbers != sorted(set(numbers)) or (numbers and numbers[0] < 2):
            raise ValueError(
                f"{self.name}: a space is narrowed from a later trial on each time, got {numbers}"
            )
        for _, space in self.narrowed:
            if (problem := _outside(space, self.workload.space)) is not None:
                raise ValueError(f"{self.name}: {problem}")

    @property
    def name(self) -> str:
        """Path of the study's folder."""
        return f"{self.workload.name}/{self.batch_size}"

    @property
    def steps(self) -> int | None:
        """Most steps of a trial; None if time alone ends it."""
        return self.limits.steps_at(self.batch_size)

    @property
    def space(self) -> SearchSpace:
        """Metaparameters and their limits."""
        return self._with_decay(self.workload.space)

    def _with_decay(self, space: SearchSpace) -> SearchSpace:
        if not self.workload.decays or self.steps is None:
            return space
        decay = Parameter("learning_rate_decay_steps", "INTEGER", max(1, self.steps // 2), self.steps)
        return SearchSpace((*space, decay))

    def space_of(self, trial: int) -> SearchSpace:
        """The space from which the settings of a trial are drawn."""
        narrower = [space for first, space in self.narrowed if first <= trial]
        return self._with_decay(narrower[-1]) if narrower else self.space

    def settings(self, trial: int, *, seed: int = 0) -> dict[str, float]:
        """The metaparameters of a trial: a function of the study, the seed and the trial alone."""
        drawn = self.space_of(trial).settings(self.name, trial, seed=seed)
        kinds = {parameter.name: parameter.type for parameter in self.space}
        return {name: int(v) if kinds[name] == "INTEGER" else v for name, v in drawn.items()}

    def entropy(self, trial: int, *, seed: int = 0) -> list[int]:
        """What first weights and order of examples of a trial are drawn from."""
        digest = hashlib.sha256(f"{seed}:{self.name}:{trial}".encode()).digest()
        return [int.from_bytes(digest[i : i + 8], "big") for i in (0, 8)]

    def file(self) -> StudyFile:
        """The published ``study.json``."""
        data_set, model, optimizer = self.workload.parts
        return StudyFile.of(
            batch_size=self.batch_size,
            dataset=data_set,
            model=model,
            optimizer=optimizer,
            train_steps=self.steps or 0,
            space=self.space,
            early_stopping=self.stop_at_goal,
        )

    def run_file(self, *, seed: int = 0) -> RunFile:
        """The ``run.json`` beside it: all that determines the trials and is not in the published file."""
        facts: dict[str, Any] = {
            "seed": seed,
            "limits": asdict(self.limits),
            "evaluation": asdict(self.workload.rule),
            "train_examples": self.workload.train_examples,
            "accumulate": self.accumulate,
            "stop_at_goal": self.stop_at_goal,
            "goal": None if self.workload.goal is None else asdict(self.workload.goal),
            "fixed": dict(self.workload.fixed),
            "clip_norm": self.workload.clip_norm,
            "noise": None if self.noise is None else {**asdict(self.noise), "steps": list(self.noise.steps)},
        }
        if self.prune is not None:
            facts["prune"] = self.prune
        if self.narrowed:
            facts["narrowed"] = [
                {"from_trial": first, "space": [asdict(parameter) for parameter in space]}
                for first, space in self.narrowed
            ]
        digest = hashlib.sha256(json.dumps([self.name, self.file().text(), facts]).encode()).hexdigest()
        return RunFile(source=f"trained {digest[:12]}", **facts)


@dataclass(slots=True)
class StudyReport:
    """What `run_study` did: trials trained, found finished, left to others (with who holds them), and failed.

    A failed trial raised an exception (diverging is none); it is not in the folder, and will be tried again.
    """

    folder: Path
    trained: list[int] = field(default_factory=list)
    found: list[int] = field(default_factory=list)
    held: dict[int, str] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)


def missing_trials(folder: str | os.PathLike[str], trials: int) -> list[int]:
    """Numbers up to `trials` of which a study's folder, or the URL of one, holds no whole trial."""
    there = set(finished_at(folder, ""))
    return [trial for trial in range(1, trials + 1) if trial not in there]


def run_study(
    study: Study,
    folder: str | os.PathLike[str],
    *,
    trials: int,
    seed: int = 0,
    device: str | Devices = "cpu",
    engine: str | Engine = "local",
    together: int = 1,
    datasets: str | os.PathLike[str] | None = None,
    checkpoint_every: float = 60.0,
    on_trial: Callable[[int, str], None] | None = None,
    trainer: Trainer | None = None,
) -> StudyReport:
    """Train the trials of a study that its folder does not hold yet.

    Parameters
    ----------
    study : Study
    folder : path
        Root of the raw layout, or its URL; the study lies in ``folder/dataset/model/optimizer/batch_size``.
    trials : int
        How many trials the study should have; more may be asked for later.
    seed : int, default 0
        Of the search and of every trial.
    device : str or Devices, default "cpu"
        As `strategy_for` takes it.
    engine : str or Engine, default "local"
        Where trials run: one of `ENGINES`, or what `engine_named` returns, which may serve many calls.
    together : int, default 1
        Trials that a worker trains at once, as one program, where model and device allow it; else one
        after another, which a warning says.
    datasets : path, optional
        Folder of downloaded data sets.
    checkpoint_every : float, default 60
        Seconds of training between two checkpoints of a trial.
    on_trial : callable, optional
        Called with number and status of every trial that was trained.
    trainer : Trainer, optional
        Compiled programs of an earlier call for the same workload and batch size.

    Returns
    -------
    StudyReport

    Raises
    ------
    TrainingError
        If the folder holds another study, the disk is full, a URL cannot be reached, or devices, data or
        settings do not fit.

    Notes
    -----
    A trial appears whole, by one rename; what is finished is never trained again, what is not is.
    Several processes may work on one folder: each trial is locked by the one that trains it, the others
    take the next.

    At a URL a trial counts once its ``metadata.json`` is there, which is put there last (see `Mirror`).  The
    locks are those of this machine: processes of one machine share a study at a URL as they share a folder.
    Processes of several machines are not kept apart.  A trial that another machine has finished is not
    begun; one that two machines train at the same time is trained twice, and the later of the two equal
    results stays.  Give each machine batch sizes of its own, or one driver an engine for all of them.
    """
    with contextlib.ExitStack() as stack:
        used = stack.enter_context(engine_named(engine)) if isinstance(engine, str) else engine
        sweep = Sweep(
            study,
            folder,
            trials=trials,
            seed=seed,
            device=device,
            engine=used,
            together=together,
            datasets=datasets,
            checkpoint_every=checkpoint_every,
            trainer=trainer,
        )

        def told(_: Sweep, came: TrainedTrial | Failure) -> None:
            if on_trial is not None and isinstance(came, TrainedTrial):
                on_trial(came.trial, came.file.status or "")

        run_sweeps([sweep], used, on_trial=told)
    return sweep.report


class Sweep:
    """The trials that a study's folder lacks, on their way there: claimed, trained elsewhere, written.

    Parameters are those of `run_study`.
    """

    def __init__(
        self,
        study: Study,
        folder: str | os.PathLike[str],
        *,
        trials: int,
        seed: int,
        device: str | Devices,
        engine: Engine,
        together: int = 1,
        datasets: str | os.PathLike[str] | None = None,
        checkpoint_every: float = 60.0,
        trainer: Trainer | None = None,
    ) -> None:
        self.study, self.trials, self.seed, self.together = study, trials, seed, together
        self._mirror = mirror_of(folder)
        self._prepared = False
        root = local_path(folder)
        if self._mirror is not None:
            root = self._mirror.root
        assert root is not None
        self.place = root / study.name
        self.report = StudyReport(self.place if self._mirror is None else self._mirror.study(study.name))
        self._devices: Devices | None = None
        if engine.here:
            from .devices import Devices, strategy_for

            self._devices = device if isinstance(device, Devices) else strategy_for(device)
        elif not isinstance(device, str) or device == "workers":
            raise TrainingError(f"engine {engine.name!r}: give the device of each of its workers by name")
        self.work = TrialWork(
            study,
            seed,
            device if self._devices is None else self._devices,
            None if datasets is None else str(Path(datasets).absolute()),
            (self.place / _LOCKS).absolute() if engine.same_disk else None,
            checkpoint_every,
            trainer,
            together > 1,
        )
        self._claims: dict[int, contextlib.ExitStack] = {}

    @property
    def _chief(self) -> bool:
        return self._devices is None or self._devices.chief

    def prepare(self) -> None:
        """Write the study's files, or see that those there are of this study; fetch what a URL holds."""
        if self._prepared or not self._chief:
            return
        if self._mirror is None:
            _begin(self.study, self.place, self.seed, self.report.folder)
        else:
            with self._mirror.held():
                self._mirror.fetch(self.study.name)
                _begin(self.study, self.place, self.seed, self.report.folder)
                self._mirror.publish_study(self.study.name)
        self._prepared = True

    def tasks(self) -> Iterator[Task]:
        """Trials to train, each claimed when it is asked for."""
        self.prepare()
        if self._chief:
            self.report.found = [t for t in finished_trials(self.place) if t <= self.trials]
        # With several processes in one trial all must go through the same numbers.
        alone = self._devices is None or not self._devices.has_peers
        numbers = missing_trials(self.place, self.trials) if alone else range(1, self.trials + 1)
        chunk: list[int] = []
        for trial in numbers:
            if self._claim(trial):
                chunk.append(trial)
            if len(chunk) == self.together:
                yield Task(self.work, tuple(chunk))
                chunk = []
        if chunk:
            yield Task(self.work, tuple(chunk))

    def _claim(self, trial: int) -> bool:
        stack = contextlib.ExitStack()
        holder = stack.enter_context(_claimed(self.place, trial, self._devices))
        alone = self._devices is None or not self._devices.has_peers
        # Another machine may have been faster.
        if (
            holder is None
            and alone
            and self._mirror is not None
            and self._mirror.fetched(self.study.name, trial)
        ):
            self.report.found.append(trial)
            holder = ""
        if holder is None:
            self._claims[trial] = stack
            if self._chief:
                for remains in self.place.glob(f".{trial}.*.tmp"):
                    shutil.rmtree(remains, ignore_errors=True)
            return True
        stack.close()
        if holder:
            log.info("trial %d of %s is being trained by %s", trial, self.study.name, holder)
            self.report.held[trial] = holder
        return False

    def take(self, came: TrainedTrial | Failure) -> None:
        """Write what came of a trial, or note that nothing did."""
        if isinstance(came, Failure):
            log.warning("trial %d of %s failed: %s", came.trial, self.study.name, came.reason)
            log.debug("%s", came.details)
            self.report.failed[came.trial] = came.reason
        else:
            if self._chief:
                whole = self.place / str(came.trial)
                if whole.exists():
                    # The claim has shown that it is not whole, and that nobody else is writing it.
                    shutil.rmtree(whole)
                write_trial(self.place, came.file, came.curve, extras=came.extras)
                if self._mirror is not None:
                    self._mirror.publish(self.study.name, came.trial)
                (self.place / _LOCKS / f"{came.trial}.npz").unlink(missing_ok=True)
            self.report.trained.append(came.trial)
        self._claims.pop(came.trial).close()

    def close(self) -> None:
        """Let go of what is claimed."""
        while self._claims:
            self._claims.popitem()[1].close()
        finished = {str(trial) for trial in finished_trials(self.place)}
        for remains in (self.place / _LOCKS).glob("*"):
            # A process that was killed leaves locks and checkpoints; of finished trials nobody needs them.
            if remains.name.partition(".")[0] in finished:
                remains.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            (self.place / _LOCKS).rmdir()


def run_sweeps(
    sweeps: Sequence[Sweep],
    engine: Engine,
    *,
    on_trial: Callable[[Sweep, TrainedTrial | Failure], None] | None = None,
) -> None:
    """Train the trials of several studies; a worker without work in one begins with the next.

    Parameters
    ----------
    sweeps : sequence of Sweep
        In the order in which to begin them.
    engine : Engine
        The one that they were made for.
    on_trial : callable, optional
        Called when a trial has been written, or has failed.
    """

    def tasks() -> Iterator[Task]:
        for sweep in sweeps:
            with _room_on_disk(sweep.place):
                yield from sweep.tasks()

    owners = {id(sweep.work): sweep for sweep in sweeps}
    try:
        with contextlib.closing(engine.run(tasks())) as events, _room_on_disk(sweeps[0].place):
            for work, came in events:
                assert isinstance(came, TrainedTrial | Failure)
                sweep = owners[id(work)]
                sweep.take(came)
                if on_trial is not None:
                    on_trial(sweep, came)
    finally:
        for sweep in sweeps:
            sweep.close()


def trainer_of(
    study: Study,
    devices: Devices,
    datasets: str | os.PathLike[str] | None = None,
    *,
    together: bool = False,
) -> Trainer:
    """The compiled programs of a study, for trials one after another or `together`."""
    from .loop import Trainer
    from .optimizers import optimizer_named

    data_set = study.workload.loaded(datasets)
    try:
        network = study.workload.network(data_set)
        optimizer = optimizer_named(study.workload.optimizer)
    except ValueError as error:
        raise TrainingError(f"workload {study.workload.name!r}: {error}") from None
    return Trainer(
        data_set,
        network,
        optimizer,
        batch_size=study.batch_size,
        devices=devices,
        accumulate=study.accumulate,
        clip_norm=study.workload.clip_norm,
        train_examples=study.workload.train_examples,
        together=together,
    )


def _begin(study: Study, place: Path, seed: int, shown: Path) -> None:
    """Write the study's files, or see that those there are of this study; messages name what is `shown`."""
    run, file = study.run_file(seed=seed), study.file()
    if not (place / STUDY_FILE).is_file():
        write_study(place, file, run=run)
        return
    try:
        held: dict[str, Any] = read_study(place).model_dump()
        held |= json.loads((place / RUN_FILE).read_text("utf-8"))
    except (LayoutError, OSError, ValueError) as error:
        raise TrainingError(
            f"{shown}: a study of another origin is there ({error}); take another folder"
        ) from None
    # As JSON a fact that is null would be absent, and its absence no difference.
    wanted = {"narrowed": None, "prune": None, **file.model_dump(), **run.model_dump()}
    before, after = (json.loads(json.dumps(which.get("narrowed") or [])) for which in (held, wanted))
    added = after[len(before) :] if after[: len(before)] == before else []
    latest = max(finished_trials(place), default=0)
    narrows = bool(added) and all(each["from_trial"] > latest for each in added)
    if narrows:
        held["narrowed"] = wanted["narrowed"]
    differing = sorted(
        key for key in wanted if key != "source" and _plain(wanted[key]) != _plain(held.get(key))
    )
    if differing:
        changes = "; ".join(
            f"{key}: {_plain(held.get(key))} there, {_plain(wanted[key])} here" for key in differing
        )
        raise TrainingError(f"{shown}: holds a study that differs in {changes}; take another folder")
    if narrows:
        # The source stays: these are the trials of one study.
        write_whole(place / RUN_FILE, RunFile(**{**json.loads(run.text()), "source": held["source"]}).text())


def _outside(space: SearchSpace, whole: SearchSpace) -> str | None:
    """In what a space is not within another."""
    names, known = [p.name for p in space], {p.name: p for p in whole}
    if names != list(known):
        return f"a narrower space has the same metaparameters {', '.join(known)}, got {', '.join(names)}"
    for parameter in space:
        wide = known[parameter.name]
        if (parameter.type, parameter.scale) != (wide.type, wide.scale):
            return f"{parameter.name}: a narrower space keeps type and scale"
        if parameter.type == "DISCRETE":
            inside = set(parameter.feasible_points) <= set(wide.feasible_points)
        else:
            assert None not in (parameter.min_value, parameter.max_value, wide.min_value, wide.max_value)
            inside = wide.min_value <= parameter.min_value and parameter.max_value <= wide.max_value  # type: ignore[operator]
        if not inside:
            return f"{parameter.name}: the narrower limits are not within the wider ones"
    return None


def _plain(value: Any) -> Any:
    """A value as JSON gives it back, without the keys that are null."""
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items() if v is not None} or None
    return json.loads(json.dumps(value))


def facts(trainer: Trainer, outcome: Outcome, entropy: Sequence[int]) -> dict[str, Any]:
    """What the published files do not say about a trial: devices, versions, speed, divergence."""
    import keras
    import numpy
    import tensorflow as tf

    devices = trainer.devices
    share = trainer.share
    return {
        "device": devices.name,
        "device_kind": devices.kind,
        "replicas": devices.replicas,
        "examples_per_replica": share * trainer.accumulate,
        "examples_at_once": share,
        "accumulate": trainer.accumulate,
        "batch_norm_examples": trainer.network.norm_batch(share),
        "parameters": trainer.network.size,
        "training_set": trainer.data_set.train.size,
        "xla": trainer.compiled,
        "entropy": list(entropy),
        "seconds": outcome.seconds,
        "steps_per_second": outcome.steps / outcome.seconds if outcome.seconds > 0 else None,
        "examples_per_second": outcome.steps * trainer.batch_size / outcome.seconds
        if outcome.seconds > 0
        else None,
        "diverged_at": outcome.diverged_at,
        "stopped_at_goal": outcome.stopped_at_goal,
        "pruned": outcome.pruned,
        "versions": {
            "batchscience": __version__,
            "python": platform.python_version(),
            "tensorflow": tf.__version__,
            "keras": keras.__version__,
            "numpy": numpy.__version__,
        },
    }


_LOCKS = ".work"


@contextlib.contextmanager
def _claimed(place: Path, trial: int, devices: Devices | None) -> Iterator[str | None]:
    """None where the trial is this process's to train; else who holds it, or "" if it is finished.

    With several processes in one trial the chief claims for all.
    """
    if devices is not None and not devices.chief:
        (mine,) = devices.agreed([0.0])
        yield None if mine else ""
        return
    with _locked(place, trial) as holder:
        if holder is None and trial in finished_trials(place):
            holder = ""
        if devices is not None:
            devices.agreed([float(holder is None)])
        yield holder


@contextlib.contextmanager
def _locked(place: Path, trial: int) -> Iterator[str | None]:
    """Hold a trial's lock, which ends with this process; yields who has it if another does."""
    path = place / _LOCKS / f"{trial}.lock"
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            file = path.open("a+")
        except FileNotFoundError:
            continue  # another process has just tidied the folder away
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                yield file.read().strip() or "another process"
                return
            # Whoever held it before may have removed the file: a lock on a removed file excludes nobody.
            if not path.exists() or os.fstat(file.fileno()).st_ino != path.stat().st_ino:
                continue
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
            file.flush()
            try:
                yield None
            finally:
                path.unlink(missing_ok=True)
            return


@contextlib.contextmanager
def _room_on_disk(place: Path) -> Iterator[None]:
    """Turn a full disk into a message that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise TrainingError(
            f"{place}: the disk is full ({error.strerror}); what is finished is whole and stays.  "
            "Make room and give the same command again"
        ) from error
