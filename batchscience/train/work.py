"""What a worker needs to train trials of a study, and what it hands back: the contents of their files."""

from __future__ import annotations

import importlib
import inspect
import json
import logging
import sys
import types
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import TrainingError
from ..layout import FACTS_FILE, NOISE_FILE, Curve, TrialFile, finished_trials, read_trial
from .engine import Train
from .rules import Pruning

if TYPE_CHECKING:
    from .devices import Devices
    from .ensemble import Ensemble
    from .loop import Checkpoint, Trainer
    from .study import Study
    from .workloads import Workload

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrainedTrial:
    """A trial that has been trained and not been written.

    Parameters
    ----------
    file : TrialFile
        Its settings and what became of it.
    curve : Curve
    extras : mapping of file name to text
        What lies beside the published files.
    """

    file: TrialFile
    curve: Curve
    extras: Mapping[str, str]

    @property
    def trial(self) -> int:
        """Number of the trial."""
        assert self.file.trial_id is not None
        return self.file.trial_id


@dataclass(frozen=True)
class TrialWork:
    """The trials of a study, for any worker.

    Parameters
    ----------
    study : Study
    seed : int
        Of the search and of every trial.
    device : str or Devices, default "cpu"
        As `strategy_for` takes it; a string where the worker is another process.
    datasets : str, optional
        Folder of downloaded data sets, on the worker's machine.
    checkpoints : Path, optional
        Folder of the checkpoints; none are made without it.
    checkpoint_every : float, default 60
        Seconds between two checkpoints of a trial.
    trainer : Trainer, optional
        Compiled programs that are there already.
    together : bool, default False
        Whether several trials will be trained at once.
    """

    study: Study
    seed: int
    device: str | Devices = "cpu"
    datasets: str | None = None
    checkpoints: Path | None = None
    checkpoint_every: float = 60.0
    trainer: Trainer | None = None
    together: bool = False

    def begin(self) -> Train:
        """Load the data and make the programs; the function returned trains trials."""
        from .devices import Devices, strategy_for
        from .study import trainer_of

        trainer = self.trainer
        if trainer is None:
            devices = self.device if isinstance(self.device, Devices) else strategy_for(self.device)
            trainer = trainer_of(self.study, devices, self.datasets, together=self.together)

        pruning = self._pruning()
        together = _Together(self, trainer, pruning)

        def train(trials: Sequence[int]) -> Iterator[TrainedTrial]:
            if len(trials) > 1 and (yield from together.trained(trials)):
                return
            for trial in trials:
                try:
                    yield self._trained(trial, trainer, pruning)
                except Exception as error:
                    if not trainer.devices.has_peers:
                        raise
                    # The peers wait in this trial's next reduction; none of them can go on alone.
                    raise TrainingError(f"trial {trial}: {type(error).__name__}: {error}") from error

        return train

    def _pruning(self) -> Pruning | None:
        """What is known of the goal when a worker begins: the trials on its disk."""
        workload, factor = self.study.workload, self.study.prune
        if factor is None:
            return None
        assert workload.goal is not None
        pruning = Pruning(workload.goal, factor)
        if self.checkpoints is not None:
            place = self.checkpoints.parent
            for trial in finished_trials(place):
                curve = read_trial(place / str(trial)).curve
                values = curve.metrics.get(workload.goal.metric, [])
                rows = zip(curve.steps, values, strict=False)
                pruning.ends([(s, {workload.goal.metric: v}) for s, v in rows if v is not None])
        return pruning

    def _trained(self, trial: int, trainer: Trainer, pruning: Pruning | None) -> TrainedTrial:
        from .loop import run_trial
        from .study import facts

        study = self.study
        settings, entropy = study.settings(trial, seed=self.seed), study.entropy(trial, seed=self.seed)
        outcome = run_trial(
            trainer,
            {**study.workload.fixed, **settings},
            seed=entropy,
            rule=study.workload.rule,
            limits=study.limits,
            goal=study.workload.goal if study.stop_at_goal else None,
            noise=study.noise,
            pruning=pruning,
            checkpoint=self._checkpoint(trial, trainer.devices.chief),
        )
        return trained_trial(trial, settings, outcome, {**facts(trainer, outcome, entropy), "together": 1})

    def _checkpoint(self, trial: int, chief: bool) -> Checkpoint | None:
        if self.checkpoints is None:
            return None
        from .loop import Checkpoint

        if chief:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
        return Checkpoint(self.checkpoints / f"{trial}.npz", self.checkpoint_every)

    def __reduce__(self) -> tuple[Callable[..., TrialWork], tuple[Any, ...]]:
        workload, own = _sendable(self.study.workload)
        study = replace(self.study, workload=workload)
        files = (self.datasets, self.checkpoints, self.checkpoint_every)
        rest = (self.seed, self.device, *files, None, self.together)
        return _received, (study, own, rest)


class _Together:
    """The program that trains several trials of a work at once, made when it is first needed."""

    def __init__(self, work: TrialWork, trainer: Trainer, pruning: Pruning | None) -> None:
        self.work, self.trainer, self.pruning = work, trainer, pruning
        self.ensemble: Ensemble | None = None
        self.possible = True

    def trained(self, trials: Sequence[int]) -> Generator[TrainedTrial, None, bool]:
        """What comes of trials, as they end; False where they must be trained one at a time."""
        if not self.possible:
            return False
        from .ensemble import CannotBatchError, Ensemble, Member, run_trials
        from .study import facts

        work, study = self.work, self.work.study
        if self.ensemble is None:
            self.ensemble = Ensemble(self.trainer)
        members = [
            Member(
                trial,
                {**study.workload.fixed, **study.settings(trial, seed=work.seed)},
                study.entropy(trial, seed=work.seed),
                work._checkpoint(trial, True),
            )
            for trial in trials
        ]
        try:
            for member, outcome in run_trials(
                self.ensemble,
                members,
                rule=study.workload.rule,
                limits=study.limits,
                goal=study.workload.goal if study.stop_at_goal else None,
                noise=study.noise,
                pruning=self.pruning,
            ):
                yield trained_trial(
                    member.trial,
                    study.settings(member.trial, seed=work.seed),
                    outcome,
                    {**facts(self.trainer, outcome, member.seed), "together": len(members)},
                )
        except CannotBatchError as reason:
            log.warning("trials of %s are trained one at a time: %s", study.name, reason)
            self.possible = False
        return self.possible


def _sendable(workload: Workload) -> tuple[Workload, tuple[str, str] | None]:
    """A workload that pickles, and name and text of the file that declares the rest of it.

    The functions of a workload that came from a file have no module from which another process could
    import them, and another machine may lack the file; so its text goes along.
    """
    functions = [getattr(workload, name) for name in _FUNCTIONS if callable(getattr(workload, name))]
    if not functions or all(map(_importable, functions)):
        return workload, None
    try:
        (path,) = {Path(inspect.getsourcefile(function) or "") for function in functions}
        text = path.read_text("utf-8")
    except (TypeError, ValueError, OSError):
        return workload, None  # pickling will say what is wrong with it
    module = sys.modules.get(functions[0].__module__)
    if module is not None and getattr(module, "__file__", None) == str(path):
        return workload, None
    names = {name: "." for name in _FUNCTIONS if callable(getattr(workload, name))}
    return replace(workload, **names), (path.stem, text)  # type: ignore[arg-type]


_FUNCTIONS = ("data_set", "model")


def _importable(function: Callable[..., Any]) -> bool:
    """Whether another process finds this function under its name in an installed module."""
    try:
        found: Any = importlib.import_module(function.__module__)
        for part in function.__qualname__.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError):
        return False
    return found is function


def _received(study: Study, own: tuple[str, str] | None, rest: tuple[Any, ...]) -> TrialWork:
    if own is not None:
        name, text = own
        module = types.ModuleType(name)
        exec(compile(text, f"{name}.py", "exec"), module.__dict__)  # what the user gave to be run
        declared = {key: getattr(module.workload, key) for key in _FUNCTIONS}
        taken = {key: value for key, value in declared.items() if getattr(study.workload, key) == "."}
        study = replace(study, workload=replace(study.workload, **taken))
    return TrialWork(study, *rest)


def trained_trial(
    trial: int, settings: Mapping[str, float], outcome: Any, facts: Mapping[str, Any]
) -> TrainedTrial:
    """The contents of a trial's files.

    Parameters
    ----------
    trial : int
    settings : mapping of str to float
        Without those that all trials share.
    outcome : Outcome
    facts : mapping
        As `study.facts` returns them.
    """
    extras = {FACTS_FILE: json.dumps(facts, indent=2, sort_keys=True) + "\n"}
    if outcome.noise:
        from .noise import noise_table

        extras[NOISE_FILE] = noise_table(outcome.noise)
    file = TrialFile(trial_id=trial, status=outcome.status, steps=outcome.steps, parameters=dict(settings))
    return TrainedTrial(file, outcome.curve(), extras)
