"""A plan: the studies that a ``study.toml`` declares, what they take, how far they are, what they found."""

from __future__ import annotations

import difflib
import math
import os
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..errors import LayoutError, TrainingError
from ..goals import Goal
from ..layout import COMPLETE, INCOMPLETE, INFEASIBLE, Curve, TrialFile, finished_trials, read_trial
from ..places import is_url, local_path
from ..spaces import Parameter, SearchSpace
from .engine import Engine, Failure, Processes, Task, Train, engine_named
from .mirror import finished_at, mirror_of
from .rules import EvaluationRule, Limits, NoiseRule
from .study import Study, StudyReport, Sweep, run_sweeps
from .work import TrainedTrial, TrialWork
from .workloads import Workload, workload_named

if TYPE_CHECKING:
    from .devices import Devices
    from .loop import Trainer

NEAR_EDGE = 0.05
"""A best setting nearer to a limit, as a share of the parameter's own scale, may be beaten beyond it."""
FEW_TRIALS = 5
"""Where fewer trials reach the goal, another search of that size may well give another answer."""

# --------------------------------------------------------------------------- the file


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Limits(_Table):
    steps: int | None = None
    examples: int | None = None
    seconds: float | None = None


class _Goal(_Table):
    metric: str
    threshold: float
    maximize: bool = False
    inclusive: bool = False


class _Evaluation(_Table):
    every: int = 1
    dense_until: int = 16
    ratio: float = 1.1
    most_between: int | None = None


class _Noise(_Table):
    steps: list[int]
    batch: int = 16
    batches: int = 64
    confidence_level: float = 0.95


class _Parameter(_Table):
    type: Literal["DISCRETE", "DOUBLE", "INTEGER"] | None = None
    scale: Literal["LINEAR_SCALE", "LOG_SCALE", "REVERSE_LOG_SCALE"] | None = None
    min_value: float | None = None
    max_value: float | None = None
    feasible_points: list[float] | None = None


class _Narrowed(_Table):
    from_trial: int = Field(ge=2)
    space: dict[str, _Parameter]


class _Range(_Table):
    smallest: int = Field(ge=1)
    largest: int = Field(ge=1)

    def sizes(self) -> list[int]:
        """Powers of two times the smallest, up to the largest."""
        return [self.smallest << i for i in range((self.largest // self.smallest).bit_length())]


class _Studies(_Table):
    """What may stand at the top and, for some of the studies, in a table of its own."""

    workload: str | list[str] | None = None
    batch_sizes: list[int] | _Range | None = None
    trials: int | None = Field(default=None, ge=1)
    limits: _Limits | None = None
    goal: _Goal | None = None
    evaluation: _Evaluation | None = None
    noise: _Noise | None = None
    space: dict[str, _Parameter] | None = None
    fixed: dict[str, float] | None = None
    stop_at_goal: bool | None = None
    prune: float | None = Field(default=None, ge=1)
    narrowed: list[_Narrowed] | None = None
    accumulate: int | None = Field(default=None, ge=1)


class _Engine(_Table):
    name: Literal["local", "processes", "ray"]
    workers: int | None = Field(default=None, ge=1)
    trial_resources: dict[str, float] | None = None
    ray_address: str | None = None


class _PlanFile(_Studies):
    """A whole ``study.toml``."""

    seed: int = 0
    out: str = "studies"
    datasets: str | None = None
    device: str = "cpu"
    engine: Literal["local", "processes", "ray"] | _Engine = "local"
    together: int = Field(default=1, ge=1)
    checkpoint_every: float = Field(default=60.0, gt=0)
    studies: list[_Studies] = Field(default_factory=list)


# --------------------------------------------------------------------------- the plan


@dataclass(frozen=True)
class Plan:
    """Studies to be trained, and where.

    Parameters
    ----------
    studies : tuple of (Study, int)
        Each with the number of its trials.
    out : path
        Root of the raw layout, or its URL.
    seed : int, default 0
        Of the searches and of all trials.
    device : str, default "cpu"
        As `strategy_for` takes it.
    engine : str, default "local"
        As `engine_named` takes it, with `workers`, `resources` and `address`.
    together : int, default 1
        Trials that a worker trains at once.
    datasets : path, optional
        Folder of downloaded data sets.
    checkpoint_every : float, default 60
        Seconds between two checkpoints of a trial.

    Raises
    ------
    TrainingError
        If a study is in it twice.
    """

    studies: tuple[tuple[Study, int], ...]
    out: str | os.PathLike[str]
    seed: int = 0
    device: str = "cpu"
    engine: str = "local"
    workers: int | None = None
    resources: Mapping[str, float] | None = None
    address: str | None = None
    together: int = 1
    datasets: str | os.PathLike[str] | None = None
    checkpoint_every: float = 60.0

    def __post_init__(self) -> None:
        names = [study.name for study, _ in self.studies]
        if twice := {name for name in names if names.count(name) > 1}:
            raise TrainingError(f"a plan has each study once, found twice: {', '.join(sorted(twice))}")

    def made_engine(self) -> Engine:
        """The engine, to be closed by whoever asks for it."""
        return engine_named(self.engine, workers=self.workers, resources=self.resources, address=self.address)


def read_plan(path: str | os.PathLike[str], **changes: Any) -> Plan:
    """Read a ``study.toml``.

    Parameters
    ----------
    path : path
        The file; folders and workload files in it are relative to its own folder.
    **changes
        Keys of the file's top with other values than it states; None leaves the file's.

    Returns
    -------
    Plan

    Raises
    ------
    TrainingError
        If the file is not there or no TOML, has a key that is not known (the message names the nearest that
        is), or lacks what a study needs.
    """
    path = Path(path)
    try:
        declared = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise TrainingError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TrainingError(f"{path}: not TOML: {error}") from None
    given = {key: value for key, value in changes.items() if value is not None}
    try:
        paths = {key: str(value) for key, value in given.items() if isinstance(value, Path)}
        file = _PlanFile.model_validate({**declared, **given, **paths})
    except ValidationError as error:
        raise TrainingError(f"{path}: {_told(error)}") from None
    engine = file.engine if isinstance(file.engine, _Engine) else _Engine(name=file.engine)
    # What is given beside the file is relative to where it is given, as everywhere on a command line.
    home = path.parent
    try:
        studies = [
            each for part in (file.studies or [_Studies()]) for each in _studies_of(_merged(file, part), home)
        ]
        return Plan(
            tuple(studies),
            given.get("out", file.out if is_url(file.out) else home / file.out),
            seed=file.seed,
            device=file.device,
            engine=engine.name,
            workers=engine.workers,
            resources=engine.trial_resources,
            address=engine.ray_address,
            together=file.together,
            datasets=given.get("datasets", None if file.datasets is None else home / file.datasets),
            checkpoint_every=file.checkpoint_every,
        )
    except (TrainingError, ValueError) as error:
        raise TrainingError(f"{path}: {error}") from None


def _told(error: ValidationError) -> str:
    """What is wrong with a file, in words; of an unknown key also the nearest known one."""
    problems = []
    for each in error.errors(include_url=False):
        where = [part for part in each["loc"] if part not in _UNION_ARMS]
        if each["type"] == "extra_forbidden":
            *tables, key = where
            known = _known_keys([str(part) for part in tables if isinstance(part, str)])
            near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.0)[0]
            table = ".".join(map(str, tables))
            problems.append(
                f"unknown key {key!r}{f' in [{table}]' if table else ''}; the nearest is {near!r}"
            )
        else:
            problems.append(f"{'.'.join(map(str, where))}: {each['msg']}, found {each['input']!r}")
    return "; ".join(dict.fromkeys(problems))


_UNION_ARMS = ("str", "list[str]", "list[int]", "_Range", "_Engine", "literal['local','processes','ray']")


def _known_keys(tables: Sequence[str]) -> list[str]:
    models: dict[str, type[_Table]] = {
        "limits": _Limits,
        "goal": _Goal,
        "evaluation": _Evaluation,
        "noise": _Noise,
        "engine": _Engine,
        "batch_sizes": _Range,
        "narrowed": _Narrowed,
        "studies": _Studies,
    }
    inner = tables[-1] if tables else ""
    if len(tables) > 1 and tables[-2] == "space":
        return list(_Parameter.model_fields)
    return list(models.get(inner, _PlanFile).model_fields)


def _merged(file: _PlanFile, part: _Studies) -> _Studies:
    """A table's own values, and the top's where it has none; of two search spaces, both."""
    own = {name: getattr(part, name) for name in _Studies.model_fields}
    top = {name: getattr(file, name) for name in _Studies.model_fields}
    merged = {name: top[name] if own[name] is None else own[name] for name in own}
    for name in ("space", "fixed"):
        if own[name] is not None and top[name] is not None:
            merged[name] = {**top[name], **own[name]}
    return _Studies.model_construct(**merged)


def _studies_of(part: _Studies, home: Path) -> Iterator[tuple[Study, int]]:
    for needed in ("workload", "batch_sizes", "trials", "limits"):
        if getattr(part, needed) is None:
            raise TrainingError(f"expected a key {needed!r}, at the top or in each table of studies")
    assert part.workload is not None
    assert part.trials is not None
    assert part.limits is not None
    sizes = part.batch_sizes.sizes() if isinstance(part.batch_sizes, _Range) else part.batch_sizes or []
    for name in [part.workload] if isinstance(part.workload, str) else part.workload:
        workload = _changed(workload_named(str(home / name) if name.endswith(".py") else name), part)
        for size in sizes:
            study = Study(
                workload,
                size,
                Limits(**part.limits.model_dump()),
                accumulate=part.accumulate or 1,
                stop_at_goal=bool(part.stop_at_goal),
                prune=part.prune,
                narrowed=tuple(
                    (each.from_trial, _narrower(workload.space, each.space)) for each in part.narrowed or ()
                ),
                noise=None
                if part.noise is None
                else NoiseRule(**{**part.noise.model_dump(), "steps": tuple(part.noise.steps)}),
            )
            yield study, part.trials


def _changed(workload: Workload, part: _Studies) -> Workload:
    """A workload with the goal, the evaluation rule, the search space and the fixed settings of a file."""
    changes: dict[str, Any] = {}
    if part.goal is not None:
        changes["goal"] = Goal(**part.goal.model_dump())
    if part.evaluation is not None:
        changes["rule"] = EvaluationRule(**part.evaluation.model_dump())
    fixed, space = part.fixed or {}, part.space or {}
    if both := set(fixed) & set(space):
        raise TrainingError(f"{', '.join(sorted(both))}: fixed and searched at once")
    if fixed:
        changes["fixed"] = {**workload.fixed, **fixed}
    if fixed or space:
        known = {p.name: p for p in workload.space if p.name not in fixed}
        known |= {name: _parameter(name, table, known) for name, table in space.items()}
        changes["space"] = SearchSpace(tuple(known.values()))
    return replace(workload, **changes)


def _narrower(space: SearchSpace, tables: Mapping[str, _Parameter]) -> SearchSpace:
    known = {p.name: p for p in space}
    return SearchSpace(
        tuple({**known, **{name: _parameter(name, table, known) for name, table in tables.items()}}.values())
    )


def _parameter(name: str, table: _Parameter, known: Mapping[str, Parameter]) -> Parameter:
    """A metaparameter with some of its limits changed, or a new one."""
    if table.feasible_points is not None:
        return Parameter(name, "DISCRETE", feasible_points=tuple(table.feasible_points))
    old = known.get(name)
    if old is None or old.type == "DISCRETE":
        if table.min_value is None or table.max_value is None:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
            hint = f"; did you mean {near[0]!r}?" if near and old is None else ""
            raise TrainingError(
                f"space.{name}: the workload does not search it, so it needs min_value and max_value, "
                f"or feasible_points{hint}"
            )
        return Parameter(
            name, table.type or "DOUBLE", table.min_value, table.max_value, table.scale or "LINEAR_SCALE"
        )
    return Parameter(
        name,
        table.type or old.type,
        old.min_value if table.min_value is None else table.min_value,
        old.max_value if table.max_value is None else table.max_value,
        table.scale or old.scale,
    )


# --------------------------------------------------------------------------- before it runs


@dataclass(frozen=True, slots=True)
class Expected:
    """What a study of a plan still takes.

    Parameters
    ----------
    workload : str
    batch_size : int
    trials : int
        That the study should have.
    missing : int
        Of these, not there yet.
    steps : int, optional
        Most of one trial; None where time alone ends it.
    total_steps : int, optional
        Of the missing trials together.
    seconds : float, optional
        About what they take, if none diverges; None without a calibration.
    """

    workload: str
    batch_size: int
    trials: int
    missing: int
    steps: int | None
    total_steps: int | None
    seconds: float | None = None


def expected(plan: Plan, *, calibrate: bool = True) -> list[Expected]:
    """What each study of a plan still takes; nothing is written.

    Parameters
    ----------
    plan : Plan
    calibrate : bool, default True
        Whether a few steps are trained, in this process, to estimate the time.

    Returns
    -------
    list of Expected

    Raises
    ------
    TrainingError
        With a calibration, also if data, model, devices or batch sizes do not fit.

    Notes
    -----
    For each workload some steps are timed at its smallest and at its largest batch size; between them, the
    time of a step is taken to be linear in the batch size.
    Several workers are taken to divide the time; what a cluster has is not asked.
    """
    lacking = {
        study.name: trials - sum(trial <= trials for trial in finished_at(plan.out, study.name))
        for study, trials in plan.studies
    }
    speeds: dict[str, _Speed] = {}
    to_do: dict[str, list[Study]] = {}
    for study, _ in plan.studies:
        if calibrate and lacking[study.name]:
            to_do.setdefault(study.workload.name, []).append(study)
    if to_do:
        from .devices import strategy_for

        devices = strategy_for(plan.device)
        speeds = {name: _speed(plan, studies, devices) for name, studies in to_do.items()}
    workers = Processes(plan.workers).workers if plan.engine == "processes" else 1
    rows = []
    for study, trials in plan.studies:
        missing = lacking[study.name]
        speed = speeds.get(study.workload.name)
        seconds = 0.0 if calibrate and not missing else None
        if speed is not None and missing:
            at_once = min(workers, math.ceil(missing / plan.together))
            seconds = speed.begin + missing * speed.of_trial(study) / at_once
        steps = study.steps
        total = None if steps is None else steps * missing
        rows.append(Expected(study.workload.name, study.batch_size, trials, missing, steps, total, seconds))
    return rows


@dataclass(frozen=True, slots=True)
class _Speed:
    """Seconds to begin a study, of a step at two batch sizes, and of a measurement; per trial."""

    begin: float
    step: tuple[tuple[int, float], tuple[int, float]]
    measurement: float

    def of_trial(self, study: Study) -> float:
        (small, fast), (large, slow) = self.step
        share = (study.batch_size - small) / (large - small) if large > small else 0.0
        each = fast + share * (slow - fast)
        steps = study.steps
        if steps is None:
            assert study.limits.seconds is not None
            steps = max(1, int(study.limits.seconds / each))
        count = 1 + sum(1 for _ in study.workload.rule.steps(steps))
        updates = each * steps
        if study.limits.seconds is not None:
            updates = min(updates, study.limits.seconds)
        return updates + count * self.measurement


def _speed(plan: Plan, studies: Sequence[Study], devices: Devices) -> _Speed:
    from .study import trainer_of

    ends = sorted(studies, key=lambda study: study.batch_size)
    begin, steps = 0.0, []
    for study in [ends[0], ends[-1]][: len(ends)]:
        began = time.perf_counter()
        trainer = trainer_of(study, devices, plan.datasets, together=plan.together > 1)
        count = max(16, min(study.steps or 512, 512, 65_536 // study.batch_size))
        train, trials = _short(plan, study, trainer, count)
        list(train(trials))
        compiled = time.perf_counter()
        runs = [_seconds(partial(list, train(trials))) for _ in range(2)]
        state = trainer.start(np.random.default_rng(0))
        measurement = min(_seconds(partial(trainer.measured, state)) for _ in range(2))
        begin = max(begin, compiled - began - min(runs))
        # A short trial is measured at its beginning and at its end.
        steps.append((study.batch_size, max(1e-9, min(runs) / len(trials) - 2 * measurement) / count))
    return _Speed(begin, (steps[0], steps[-1]), measurement)


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _short(plan: Plan, study: Study, trainer: Trainer, steps: int) -> tuple[Train, list[int]]:
    """What trains short trials of a study, and which: of the first ones, those least likely to diverge."""
    workload = replace(study.workload, rule=EvaluationRule(every=steps))
    short = replace(study, workload=workload, limits=Limits(steps=steps), stop_at_goal=False, noise=None)
    settings = short.space.settings_of(short.name, 4 * plan.together + 8, seed=plan.seed)
    by_rate = sorted(range(len(settings)), key=lambda i: settings[i].get("learning_rate", 0.0))
    trials = sorted(i + 1 for i in by_rate[: plan.together])
    return TrialWork(short, plan.seed, trainer.devices, trainer=trainer).begin(), trials


# --------------------------------------------------------------------------- while it runs


@dataclass(slots=True)
class Progress:
    """How far a study is.

    Parameters
    ----------
    workload : str
    batch_size : int
    done : int
        Trials in its folder.
    trials : int
        That it should have.
    failed : int
        Trials that raised.
    steps, trial : int, optional
        Of the best trial so far: fewest steps to the goal.
    seconds_left : float, optional
        At the pace so far; None before the first trial of this run has ended.
    """

    workload: str
    batch_size: int
    done: int
    trials: int
    failed: int = 0
    steps: int | None = None
    trial: int | None = None
    seconds_left: float | None = None


def run_plan(
    plan: Plan,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    engine: Engine | None = None,
) -> list[StudyReport]:
    """Train what the studies of a plan still lack; the same call goes on where an earlier one ended.

    Parameters
    ----------
    plan : Plan
    on_progress : callable, optional
        Called when a study is begun and after each of its trials.
    engine : Engine, optional
        Instead of the plan's own.

    Returns
    -------
    list of StudyReport
        In the order of the plan.

    Raises
    ------
    TrainingError
        If a folder holds another study, the disk is full, or devices, data or settings do not fit.
    """
    if not plan.studies:
        return []
    used = plan.made_engine() if engine is None else engine
    try:
        sweeps: list[_Followed] = []
        device: str | Devices = plan.device
        chief = True
        if used.here:
            from .devices import strategy_for

            made = strategy_for(plan.device)
            device, chief = made, made.chief
        for study, trials in plan.studies:
            sweeps.append(
                _Followed(
                    study,
                    plan.out,
                    trials=trials,
                    seed=plan.seed,
                    device=device,
                    engine=used,
                    together=plan.together,
                    datasets=plan.datasets,
                    checkpoint_every=plan.checkpoint_every,
                )
            )
            sweeps[-1].tell = on_progress if chief else None

        def told(sweep: Sweep, came: TrainedTrial | Failure) -> None:
            assert isinstance(sweep, _Followed)
            sweep.note(came)

        run_sweeps(sweeps, used, on_trial=told)
    finally:
        if engine is None:
            used.close()
    return [sweep.report for sweep in sweeps]


class _Followed(Sweep):
    """A sweep that knows how far it is."""

    tell: Callable[[Progress], None] | None = None
    progress: Progress
    began = 0.0

    def tasks(self) -> Iterator[Task]:
        goal = self.study.workload.goal
        self.prepare()
        self.progress = Progress(self.study.workload.name, self.study.batch_size, 0, self.trials)
        for trial in finished_trials(self.place):
            if trial <= self.trials:
                self.progress.done += 1
                held = read_trial(self.place / str(trial))
                self._better(trial, _steps_to(goal, held.file, held.curve))
        self.began = time.monotonic()
        if self.tell is not None:
            self.tell(replace(self.progress))
        yield from super().tasks()

    def note(self, came: TrainedTrial | Failure) -> None:
        """Take account of what came of a trial."""
        progress, report = self.progress, self.report
        if isinstance(came, Failure):
            progress.failed += 1
        else:
            progress.done += 1
            self._better(came.trial, _steps_to(self.study.workload.goal, came.file, came.curve))
        ended = len(report.trained) + len(report.failed)
        left = max(0, progress.trials - progress.done - progress.failed - len(report.held))
        progress.seconds_left = (time.monotonic() - self.began) / ended * left
        if self.tell is not None:
            self.tell(replace(progress))

    def _better(self, trial: int, steps: int | None) -> None:
        best = self.progress
        if steps is not None and (best.steps is None or (steps, trial) < (best.steps, best.trial or 0)):
            best.steps, best.trial = steps, trial


def _steps_to(goal: Goal | None, file: TrialFile, curve: Curve) -> int | None:
    """First measured step of a complete trial that meets the goal."""
    if goal is None or file.status != COMPLETE:
        return None
    values = curve.metrics.get(goal.metric, ())
    met = goal.met([math.nan if value is None else value for value in values])
    return next((step for step, is_met in zip(curve.steps, met, strict=False) if is_met), None)


# --------------------------------------------------------------------------- after it has run


@dataclass(frozen=True, slots=True)
class Found:
    """What a study has found so far.

    Parameters
    ----------
    workload : str
    batch_size : int
    trials : int
        That it should have.
    complete, incomplete, infeasible : int
        Trials of each status in its folder.
    missing : int
        Trials that are not there: failed, held by another process, or not yet trained.
    goal : str, optional
        In words.
    steps, trial : int, optional
        Steps to result, and the trial that it is from; None if no complete trial reached the goal.
    reached : int
        Complete trials that reached the goal.
    settings : str
        Of the best trial.
    warning : str
        What speaks against the answer; empty if nothing does.
    """

    workload: str
    batch_size: int
    trials: int
    complete: int
    incomplete: int
    infeasible: int
    missing: int
    goal: str | None
    steps: int | None
    trial: int | None
    reached: int
    settings: str = ""
    warning: str = ""


def found(plan: Plan) -> list[Found]:
    """What each study of a plan has found, read from its folder or URL."""
    mirror, root = mirror_of(plan.out), local_path(plan.out)
    if mirror is not None:
        root = mirror.root
        with mirror.held():
            for study, _ in plan.studies:
                mirror.fetch(study.name)
    assert root is not None
    return [_found(study, root / study.name, trials) for study, trials in plan.studies]


@dataclass(slots=True)
class _Tally:
    status: dict[str, int] = field(default_factory=dict)
    reached: list[tuple[int, int, TrialFile]] = field(default_factory=list)
    measured: bool = False
    damaged: list[int] = field(default_factory=list)


def _found(study: Study, place: Path, trials: int) -> Found:
    goal, tally = study.workload.goal, _Tally()
    for trial in finished_trials(place):
        if trial > trials:
            continue
        try:
            held = read_trial(place / str(trial))
        except LayoutError:
            tally.damaged.append(trial)
            continue
        status = held.file.status or ""
        tally.status[status] = tally.status.get(status, 0) + 1
        tally.measured |= goal is not None and goal.metric in held.curve.metrics
        steps = _steps_to(goal, held.file, held.curve)
        if steps is not None:
            tally.reached.append((steps, trial, held.file))
    best = min(tally.reached, key=lambda each: each[:2], default=None)
    missing = trials - sum(tally.status.values())
    settings = {} if best is None else dict(sorted(best[2].parameters.items()))
    return Found(
        study.workload.name,
        study.batch_size,
        trials,
        tally.status.get(COMPLETE, 0),
        tally.status.get(INCOMPLETE, 0),
        tally.status.get(INFEASIBLE, 0),
        missing,
        None if goal is None else str(goal),
        None if best is None else best[0],
        None if best is None else best[1],
        len(tally.reached),
        ", ".join(f"{name} {value:.4g}" for name, value in settings.items()),
        "; ".join(_warnings(study, tally, missing, settings)),
    )


def _warnings(study: Study, tally: _Tally, missing: int, settings: Mapping[str, float]) -> Iterator[str]:
    goal, reached = study.workload.goal, len(tally.reached)
    if tally.damaged:
        yield f"trials that cannot be read: {', '.join(map(str, tally.damaged))}"
    if missing:
        yield f"{missing} trials are missing; the same command trains them"
    if goal is not None and tally.status:
        if not tally.measured:
            yield f"no trial measures {goal.metric}"
        elif not reached:
            yield "no trial reached the goal"
        elif reached < FEW_TRIALS:
            yield f"only {reached} trial{'s' * (reached > 1)} reached the goal"
    yield from edges(study.space, settings)


def edges(space: Iterable[Parameter], settings: Mapping[str, float]) -> Iterator[str]:
    """Which settings lie near a limit of the search space, in words.

    Examples
    --------
    >>> rate = Parameter("learning_rate", "DOUBLE", 1e-3, 1.0, "LOG_SCALE")
    >>> list(edges([rate], {"learning_rate": 0.9}))
    ['learning_rate 0.9 is near its upper limit 1; a wider search may do better']
    >>> list(edges([rate], {"learning_rate": 0.5}))
    []
    """
    for parameter in space:
        # The points of a DISCRETE parameter are few, so that a best one at the end is no surprise.
        if parameter.type == "DISCRETE" or parameter.name not in settings:
            continue
        value = float(settings[parameter.name])
        position = parameter.position(value)
        limits = ((position, "lower", parameter.min_value), (1 - position, "upper", parameter.max_value))
        for distance, side, limit in limits:
            if distance <= NEAR_EDGE:
                yield (
                    f"{parameter.name} {value:.4g} is near its {side} limit {limit:g}; "
                    "a wider search may do better"
                )
