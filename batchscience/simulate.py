"""An archive of any size in the raw layout, whose true answers are known."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import json
import lzma
import math
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from . import paper, published
from .errors import BatchScienceError, UnknownWorkload
from .goals import Goal
from .layout import (
    COMPLETE,
    CURVE_FILE,
    INCOMPLETE,
    INFEASIBLE,
    RUN_FILE,
    STUDY_FILE,
    TRIAL_FILE,
    RunFile,
    StudyFile,
)
from .spaces import Parameter, SearchSpace

ROOT = "batch_science"
"""The folder that the archive unpacks to, as the published one does."""

TOLERANCE = 0.2
"""Tolerance of the ends of perfect scaling and of the maximum useful batch sizes in the truth."""

PUBLISHED_EVALUATIONS = 71_638_836 / 3
"""Rows of all ``measurements.csv`` together at scale 1: the published measurements, three splits a row."""

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


# ---------------------------------------------------------------------------------------------------
# The truth: a scaling law for each workload, and how far behind it a trial falls.


@dataclass(frozen=True, slots=True)
class KneeLaw:
    """Steps to the goal with the best settings, S · (1 + (B_c / B)^a)^(1/a) at batch size B.

    Parameters
    ----------
    floor : float
        S, the steps that no batch size can go below.
    critical_batch_size : float
        B_c, where the asymptotes S · B_c / B and S cross.
    sharpness : float
        a; 1 is a hyperbola, large values a sharp corner.

    Examples
    --------
    >>> law = KneeLaw(floor=100, critical_batch_size=64, sharpness=1)
    >>> law.steps(64)
    200.0
    >>> round(law.perfect_to(0.2), 6), round(law.useful_to(0.2), 6)
    (12.8, 320.0)
    """

    floor: float
    critical_batch_size: float
    sharpness: float

    def steps(self, batch_size: float) -> float:
        """Steps to the goal at a batch size."""
        a = self.sharpness
        return float(self.floor * (1 + (self.critical_batch_size / batch_size) ** a) ** (1 / a))

    def perfect_to(self, tolerance: float) -> float:
        """The batch size where the steps are `tolerance` above the asymptote of perfect scaling."""
        a = self.sharpness
        return float(self.critical_batch_size * ((1 + tolerance) ** a - 1) ** (1 / a))

    def useful_to(self, tolerance: float) -> float:
        """The batch size where the steps are `tolerance` above the floor."""
        a = self.sharpness
        return float(self.critical_batch_size / ((1 + tolerance) ** a - 1) ** (1 / a))


# Chosen here, in the region of the published curves: floor, critical batch size, sharpness.
_LAWS = {
    "cifar_10/resnet_8/nesterov_momentum": KneeLaw(800, 256, 2.5),
    "cifar_10/resnet_8/sgd": KneeLaw(3400, 64, 2),
    "common_crawl/transformer_base/nesterov_momentum": KneeLaw(36_000, 600, 1),
    "fashion_mnist/simple_cnn_base/nesterov_momentum": KneeLaw(150, 300, 1.5),
    "imagenet/resnet_50/nesterov_momentum": KneeLaw(5500, 12_000, 1.5),
    "imagenet/vgg_11/nesterov_momentum": KneeLaw(13_500, 4000, 1),
    "imagenet_subsets/imagenet_half_classes/resnet_50/nesterov_momentum": KneeLaw(4500, 10_000, 2),
    "imagenet_subsets/imagenet_half_images/resnet_50/nesterov_momentum": KneeLaw(7500, 6000, 1.5),
    "lm1b/lstm/nesterov_momentum": KneeLaw(180_000, 64, 1.5),
    "lm1b/transformer_base/nesterov_momentum": KneeLaw(10_500, 800, 1.2),
    "lm1b/transformer_narrow_and_shallow/nesterov_momentum": KneeLaw(20_000, 2000, 1.2),
    "lm1b/transformer_shallow/momentum": KneeLaw(34_000, 1000, 1),
    "lm1b/transformer_shallow/nesterov_momentum": KneeLaw(25_000, 1500, 1.2),
    "lm1b/transformer_shallow/sgd": KneeLaw(150_000, 200, 1),
    "lm1b/transformer_wide/nesterov_momentum": KneeLaw(9000, 280, 1.2),
    "mnist/fc_1024/sgd": KneeLaw(300, 160, 1.5),
    "mnist/fc_1024_1024/sgd": KneeLaw(250, 200, 1.5),
    "mnist/fc_1024_1024_1024/sgd": KneeLaw(200, 240, 2),
    "mnist/fc_128_128_128/sgd": KneeLaw(300, 400, 1.5),
    "mnist/fc_2048_2048_2048/sgd": KneeLaw(180, 300, 2),
    "mnist/fc_256_256_256/sgd": KneeLaw(250, 280, 1.5),
    "mnist/fc_512_512_512/sgd": KneeLaw(220, 260, 2),
    "mnist/fc_64_64_64/sgd": KneeLaw(400, 450, 1.5),
    "mnist/simple_cnn_base/momentum": KneeLaw(140, 320, 1.5),
    "mnist/simple_cnn_base/nesterov_momentum": KneeLaw(150, 400, 2),
    "mnist/simple_cnn_base/sgd": KneeLaw(270, 170, 1.5),
    "mnist/simple_cnn_narrow/sgd": KneeLaw(400, 160, 1.5),
    "mnist/simple_cnn_wide/sgd": KneeLaw(220, 140, 1.5),
    "mnist_subsets/mnist_13750/simple_cnn_base/nesterov_momentum": KneeLaw(140, 200, 2),
    "mnist_subsets/mnist_27500/simple_cnn_base/nesterov_momentum": KneeLaw(130, 220, 2),
    "mnist_subsets/mnist_55000/simple_cnn_base/nesterov_momentum": KneeLaw(120, 240, 2),
    "mnist_subsets/mnist_6875/simple_cnn_base/nesterov_momentum": KneeLaw(160, 150, 2),
    "open_images_v4/resnet_50/nesterov_momentum": KneeLaw(7000, 8000, 1),
    "solution_quality/fashion_mnist/simple_cnn_base/nesterov_momentum": KneeLaw(150, 300, 1.5),
    "solution_quality/mnist/simple_cnn_base/nesterov_momentum": KneeLaw(150, 400, 2),
}

REACH_PROBABILITY = 0.6
"""Probability that a COMPLETE trial reaches the goal at all."""

DELAY_SCALE = 0.5
LATEST_DELAY = math.log(3)
"""The log of steps to goal over the law's is exponential with this scale, truncated at this delay."""


def _delays(uniform: FloatArray) -> FloatArray:
    """Quantiles of the truncated exponential: log(steps to goal / steps of the law), at least 0."""
    return -DELAY_SCALE * np.log1p(uniform * math.expm1(-LATEST_DELAY / DELAY_SCALE))


_EXTRA_GOALS = {
    "mnist/fc_1024_1024/sgd": Goal(paper.ERROR, 0.03),
    "mnist/fc_64_64_64/sgd": Goal(paper.ERROR, 0.03),
    "solution_quality/fashion_mnist/simple_cnn_base/nesterov_momentum": Goal(paper.ERROR, 0.1),
    "solution_quality/mnist/simple_cnn_base/nesterov_momentum": Goal(paper.ERROR, 0.01),
}


def _goal(workload: str) -> Goal:
    """The goal that a simulated workload's law is about: the first that the paper gives it."""
    if workload in _EXTRA_GOALS:
        return _EXTRA_GOALS[workload]
    for panel in paper.PANELS:
        for series in panel.series:
            if series.workload == workload and series.goal is not None:
                return series.goal
    raise AssertionError(f"{workload} stands in no panel and has no goal of its own")


# ---------------------------------------------------------------------------------------------------
# What the trials of a workload measure, and what they search.


@dataclass(frozen=True, slots=True)
class _Split:
    """A part of the data set: how many examples its error rate is a fraction of, and how hard it is."""

    name: str
    examples: int
    ease: float


@dataclass(frozen=True, slots=True)
class _Task:
    """What the models of a data set measure."""

    metrics: tuple[str, ...]
    splits: tuple[_Split, ...]
    classes: int
    length: float
    """Evaluations of a trial, relative to MNIST."""


def _splits(train: int, val: int, test: int) -> tuple[_Split, ...]:
    return (_Split("train", train, 0.8), _Split("val", val, 1.0), _Split("test", test, 0.97))


_CLASSIFICATION = ("cross_entropy_error", "classification_error")
_IMAGENET = _splits(50_176, 50_000, 50_045)
_MNIST = _Task(_CLASSIFICATION, _splits(5000, 5000, 10_000), 10, 1.0)
_TASKS = {
    "mnist": _MNIST,
    "mnist_subsets": _MNIST,
    "fashion_mnist": _MNIST,
    "cifar_10": _Task(_CLASSIFICATION, _splits(5000, 5000, 10_000), 10, 1.5),
    "imagenet": _Task(_CLASSIFICATION, _IMAGENET, 1000, 2.5),
    "imagenet_subsets": _Task(_CLASSIFICATION, _IMAGENET, 1000, 2.5),
    "open_images_v4": _Task(
        ("cross_entropy_error", "average_precision"), _splits(50_000, 41_620, 125_436), 2, 2.5
    ),
    "lm1b": _Task(("cross_entropy_error",), _splits(10_000, 10_000, 10_000), 32_000, 2.0),
    "common_crawl": _Task(("cross_entropy_error",), _splits(10_000, 10_000, 10_000), 32_000, 2.0),
}


def _task(workload: str) -> _Task:
    return _TASKS[workload.removeprefix("solution_quality/").split("/")[0]]


_TIME_BUDGET = ("lm1b/lstm/nesterov_momentum", "common_crawl/transformer_base/nesterov_momentum")
"""Workloads whose studies had a time budget: train_steps is 0 and the trials differ in length."""


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def _space(workload: str, best: float, train_steps: int) -> SearchSpace:
    """The search space of a study: as wide at every batch size, and moved along with the best settings.

    In its middle lies the effective learning rate `best`.
    """
    optimizer = workload.rsplit("/", 1)[1]
    parameters = []
    if optimizer != "sgd":
        parameters.append(Parameter("momentum", "DOUBLE", 0.9, 0.999, "REVERSE_LOG_SCALE"))
        best *= math.sqrt(0.1 * 0.001)
    parameters.append(
        Parameter("learning_rate", "DOUBLE", _rounded(best / 30), _rounded(best * 30), "LOG_SCALE")
    )
    if "resnet" in workload or "vgg" in workload:
        low = max(1, train_steps // 2)
        parameters.append(Parameter("learning_rate_decay_steps", "INTEGER", low, train_steps))
    if "resnet_50" in workload:
        parameters.append(Parameter("end_learning_rate_factor", "DOUBLE", 1e-4, 1e-1, "LOG_SCALE"))
        parameters.append(Parameter("label_smoothing", "DISCRETE", feasible_points=paper.LABEL_SMOOTHINGS))
    return SearchSpace(tuple(parameters))


def _effective(settings: dict[str, float]) -> float:
    return settings["learning_rate"] / (1 - settings.get("momentum", 0.0))


def _best_effective(space: SearchSpace) -> float:
    """The effective learning rate in the middle of a space, which is the best one of its study."""
    limits = {p.name: (p.min_value or 0.0, p.max_value or 0.0) for p in space}
    low, high = limits["learning_rate"]
    middle = math.sqrt(low * high)
    if "momentum" in limits:
        low, high = limits["momentum"]
        middle /= math.sqrt((1 - low) * (1 - high))
    return middle


# ---------------------------------------------------------------------------------------------------
# Published answers: the steps that the best trial of a study has to show.


@dataclass(frozen=True, slots=True)
class _Answer:
    """What the published figures show of one study.

    ``steps`` is None where no trial reaches the goal.  ``value`` is a best value over the whole training
    and ``rate`` the effective learning rate of the best trial; then there is no goal.  ``smoothing``
    limits the answer to the trials with that label smoothing.
    """

    goal: Goal | None = None
    steps: int | None = None
    value: float | None = None
    rate: float | None = None
    smoothing: float | None = None


def _snapped(steps: float, uncertainty: float) -> int:
    """The roundest whole number well within the uncertainty of a reading."""
    for unit in (1000, 500, 100, 50, 10, 5, 1):
        near = round(steps / unit) * unit
        if near > 0 and abs(near / steps - 1) <= 0.75 * uncertainty:
            return near
    return max(1, round(steps))


def _unscaled(ratios: FloatArray, most: float) -> IntArray:
    """Whole numbers that stand in given ratios as nearly as possible, the largest scale being `most`."""
    scales = np.linspace(most / 3, most, 20_001)[:, None]
    steps = np.rint(scales * ratios)
    worst: FloatArray = np.max(np.abs(steps / (scales * ratios) - 1), axis=1)
    return np.asarray(steps[int(np.argmin(worst))], dtype=np.int64)


def _published_answers(workloads: Iterable[str]) -> dict[tuple[str, int], list[_Answer]]:
    """The answers of Figures 1 to 8 for each study (workload, batch size)."""
    import pandas as pd

    wanted = set(workloads)
    studies = published.studies()
    sizes = {w: studies["batch_size"][studies["workload"] == w].tolist() for w in wanted}
    goals = {
        (s.workload, s.goal)
        for panel in paper.PANELS
        if panel.figure in "123456"
        for s in panel.series
        if s.workload in wanted and s.goal is not None
    }
    consensus = published.consensus_steps()
    known: dict[tuple[str, Goal], dict[int, int]] = {}
    for workload, goal in goals:
        rows = consensus[(consensus["workload"] == workload) & (consensus["goal"] == goal.threshold)]
        if len(rows):
            known[workload, goal] = {
                int(b): _snapped(s, u)
                for b, s, u in zip(
                    rows["batch_size"], rows["steps"], rows["steps_rel_uncertainty"], strict=True
                )
            }
    points = pd.concat([published.figure_points(), published.offscale_points()])
    for panel in paper.PANELS:
        for series in panel.series:
            key = (series.workload, series.goal)
            if panel.quantity != "relative_steps" or series.workload not in wanted or key in known:
                continue
            assert series.goal is not None
            rows = points[
                (points["figure"] == panel.figure)
                & (points["panel_title"] == panel.title)
                & (points["series"] == series.label)
                & (points["workload"] == series.workload)
            ]
            ratios = rows["y"].to_numpy()
            # A harder goal takes no fewer steps, at any batch size.
            harder = [
                steps[b] / y
                for (w, g), steps in known.items()
                if w == series.workload and g.metric == series.metric
                for b, y in zip(rows["x"], ratios, strict=True)
                if b in steps
            ]
            most = min(harder, default=5000 / float(ratios.min()))
            steps = _unscaled(ratios, most)
            known[series.workload, series.goal] = dict(
                zip((int(b) for b in rows["x"]), steps.tolist(), strict=True)
            )
    answers: dict[tuple[str, int], list[_Answer]] = {
        (workload, b): [] for workload, all_sizes in sizes.items() for b in all_sizes
    }
    for (workload, goal), steps_at in known.items():
        for b in sizes[workload]:
            answers[workload, b].append(_Answer(goal, steps_at.get(b)))
    for panel in paper.FIGURE_7:
        for series in panel.series:
            if series.workload not in wanted:
                continue
            rows = points[(points["figure"] == "7") & (points["panel_title"] == panel.title)]
            rows = rows[rows["series"] == series.label]
            found = {
                int(b): (y, u)
                for b, y, u in zip(rows["x"], rows["y"], rows["y_rel_uncertainty"], strict=True)
            }
            for b in sizes[series.workload]:
                if series.goal is None and b in found:
                    answers[series.workload, b].append(
                        _Answer(value=found[b][0], smoothing=series.label_smoothing)
                    )
                elif series.goal is not None:
                    steps_here = _snapped(*found[b]) if b in found else None
                    answers[series.workload, b].append(
                        _Answer(series.goal, steps_here, smoothing=series.label_smoothing)
                    )
    for panel in paper.FIGURE_8:
        (series,) = panel.series
        rows = points[(points["figure"] == "8") & (points["workload"] == series.workload)]
        for b, rate in zip(rows["x"], rows["y"], strict=True):
            if series.workload in wanted:
                answers[series.workload, int(b)].append(_Answer(rate=float(rate)))
        if series.notebook_goal is not None and series.goal is not None and series.workload in wanted:
            # No figure shows the steps to this easier goal; the best trial passes it on its way.
            for b, steps_to_goal in known[series.workload, series.goal].items():
                answers[series.workload, b].append(
                    _Answer(series.notebook_goal, max(1, round(0.3 * steps_to_goal)))
                )
    return answers


# ---------------------------------------------------------------------------------------------------
# One study: which trials it has, and their curves.


@dataclass(frozen=True, slots=True)
class _Counts:
    complete: int
    incomplete: int
    infeasible: int

    @property
    def total(self) -> int:
        return self.complete + self.incomplete + self.infeasible


@dataclass(frozen=True, slots=True)
class _Plan:
    """Everything about a study that is decided before its trials are drawn."""

    workload: str
    batch_size: int
    counts: _Counts
    evaluations: int
    goal: Goal
    law: KneeLaw
    answers: tuple[_Answer, ...]
    seed: int

    @property
    def name(self) -> str:
        return f"{self.workload}/{self.batch_size}"

    def rng(self) -> np.random.Generator:
        """A stream of its own, so that a study does not depend on which others are simulated."""
        digest = hashlib.sha256(f"{self.seed}:{self.name}:simulate".encode()).digest()
        return np.random.default_rng(int.from_bytes(digest[:16], "big"))

    def best_rate(self) -> float:
        """The best effective learning rate: grows with the batch size up to the critical one."""
        shown = [answer.rate for answer in self.answers if answer.rate is not None]
        return shown[0] if shown else 0.01 / (1 / self.batch_size + 1 / self.law.critical_batch_size)

    def steps_of_best(self) -> float:
        """Steps to the goal with the best settings; infinite where no trial may reach it."""
        for answer in self.answers:
            if answer.goal == self.goal and answer.smoothing is None:
                return math.inf if answer.steps is None else float(answer.steps)
        return self.law.steps(self.batch_size)

    def train_steps(self) -> int:
        """Steps that a trial needs to be COMPLETE: long enough for the latest to reach the goal."""
        steps = self.steps_of_best()
        if math.isinf(steps):
            steps = self.law.steps(self.batch_size)
        longest = steps * math.exp(LATEST_DELAY)
        return math.ceil(max([longest, *(1.2 * (answer.steps or 0) for answer in self.answers)]))


def _grid(plan: _Plan, rng: np.random.Generator) -> IntArray:
    """Steps of the evaluations: 0, …, train_steps, and every step that an answer needs."""
    last = plan.train_steps()
    count = min(plan.evaluations, last)
    if rng.random() < 0.5:
        steps = np.linspace(0, last, count + 1)
    else:
        # The gap doubles on the way: two thirds of the evaluations in the first half.
        early = 2 * count // 3
        steps = np.concatenate(
            [np.linspace(0, last / 2, early, endpoint=False), np.linspace(last / 2, last, count + 1 - early)]
        )
    needed = [answer.steps for answer in plan.answers if answer.steps is not None]
    return np.unique(np.concatenate([np.rint(steps), needed])).astype(np.int64)


@dataclass(slots=True)
class _Trials:
    """The trials of a study, an item for each in numeric order."""

    settings: list[dict[str, float]]
    status: NDArray[np.str_]
    reaches: FloatArray
    """Steps at which the trial passes the goal, as a real number; infinite if never."""
    champion: NDArray[np.bool_]
    """Whether it is the best trial of the answers, or of those of its label smoothing."""


def _draw_trials(plan: _Plan, space: SearchSpace, rng: np.random.Generator) -> _Trials:
    counts = plan.counts
    settings = space.settings_of(plan.name, counts.total, seed=plan.seed)
    log_rate = np.log([_effective(s) for s in settings])
    status = np.full(counts.total, COMPLETE, dtype="<U10")
    # The highest effective learning rates diverge, give or take; what is cut short is chance.
    fastest_first = np.argsort(-(log_rate + rng.normal(0, 1.0, counts.total)), kind="stable")
    status[fastest_first[: counts.infeasible]] = INFEASIBLE
    status[rng.permutation(fastest_first[counts.infeasible :])[: counts.incomplete]] = INCOMPLETE
    complete = np.flatnonzero(status == COMPLETE)
    # The delays are drawn independently, so that their distribution is exactly the stated one, and then
    # dealt out: the nearer the settings to the best, the more likely a short delay.
    n = len(complete)
    delays = np.where(rng.random(n) < REACH_PROBABILITY, _delays(rng.random(n)), np.inf)
    distance = np.abs(log_rate[complete] - math.log(_best_effective(space)))
    rank = np.argsort(np.argsort(distance, kind="stable"), kind="stable") / n
    nearest_first = complete[np.argsort(0.7 * rank + 0.3 * rng.random(n), kind="stable")]
    reaches = np.full(counts.total, np.inf)
    reaches[nearest_first] = plan.steps_of_best() * np.exp(np.sort(delays))
    trials = _Trials(settings, status, reaches, np.zeros(counts.total, dtype=bool))
    if plan.answers:
        taken = set(complete[: paper.trials_used(plan.workload)].tolist())
        _crown(plan, trials, [i for i in nearest_first.tolist() if i in taken])
    return trials


def _crown(plan: _Plan, trials: _Trials, nearest_first: Sequence[int]) -> None:
    """Choose the trials that show the answers, among those that the published analysis takes."""
    best = plan.steps_of_best()
    leader = nearest_first[0]
    if any(answer.rate is not None for answer in plan.answers):
        settings = trials.settings[leader]
        settings["learning_rate"] = plan.best_rate() * (1 - settings["momentum"])
    shown = {a.smoothing for a in plan.answers if a.value is not None}
    if not shown:
        trials.champion[leader] = True
        trials.reaches[leader] = best
        return
    if len(nearest_first) < len(shown):
        raise ValueError(
            f"{plan.name}: the published answers need {len(shown)} COMPLETE trials, got {len(nearest_first)}"
        )
    # A label smoothing that the published figure does not show at this batch size was not among its trials.
    for i in nearest_first:
        if trials.settings[i]["label_smoothing"] not in shown:
            trials.settings[i]["label_smoothing"] = max(s for s in shown if s is not None)
    steps = {a.smoothing: a.steps or math.inf for a in plan.answers if a.goal == plan.goal}
    for i, smoothing in zip(nearest_first, sorted(shown, key=lambda s: (steps[s], s or 0.0)), strict=False):
        trials.settings[i]["label_smoothing"] = smoothing or 0.0
        trials.champion[i] = True
        trials.reaches[i] = steps[smoothing]


@dataclass(frozen=True, slots=True)
class _Scale:
    """The values that the objective of a study can take, counted so that smaller is better."""

    goal: Goal
    examples: int | None
    """Number of examples that an error rate is a fraction of; None for a real number."""

    def unmet(self, goal: Goal) -> float:
        """The best value that does not reach a goal."""
        if self.examples is None:
            return -goal.threshold if goal.maximize else goal.threshold
        return (self._most_errors(goal) + 1) / self.examples

    def met(self, goal: Goal) -> float:
        """A value that reaches a goal, but no goal that is noticeably harder."""
        if self.examples is None:
            return (-goal.threshold if goal.maximize else goal.threshold) - 1e-4
        return self._most_errors(goal) / self.examples

    def nearest(self, value: float) -> float:
        """The value of the scale that a reading of the objective stands for."""
        if self.examples is None:
            return -value if self.goal.maximize else value
        near = round(value * self.examples) / self.examples
        # Some published error rates are fractions of another number of examples; they stay as read.
        return near if abs(near - value) <= 5e-6 * value else value

    def _most_errors(self, goal: Goal) -> int:
        assert self.examples is not None
        errors = math.ceil(goal.threshold * self.examples)
        while not errors / self.examples < goal.threshold:
            errors -= 1
        return errors


def _limits(
    plan: _Plan,
    trials: _Trials,
    rows: NDArray[np.intp],
    steps: IntArray,
    measured: NDArray[np.bool_],
    scale: _Scale,
) -> tuple[FloatArray, FloatArray]:
    """The best and the worst value that the objective may have at each evaluation, smaller being better.

    Rows of the result are those trials, columns their evaluations.  They make the first crossing of the
    goal fall on the first measurement at or after the step where the trial passes it.
    """
    reaches = trials.reaches[rows, None]
    best_allowed = np.where(steps < reaches, scale.unmet(plan.goal), -np.inf)
    after = (steps >= reaches) & measured
    first = after & (np.cumsum(after, axis=1) == 1)
    worst_allowed = np.where(first, scale.met(plan.goal), np.inf)
    if not plan.answers:
        return best_allowed, worst_allowed
    # With published answers only the champions have to pass a goal at a certain step; the others may not
    # pass it before, nor at the same step.
    complete = trials.status[rows] == COMPLETE
    best_allowed[complete], worst_allowed[:] = -np.inf, np.inf
    champion = trials.champion[rows]
    smoothing = np.array([trials.settings[i].get("label_smoothing", -1.0) for i in rows])
    leader = min(np.flatnonzero(trials.champion), key=lambda i: trials.reaches[i])
    for answer in plan.answers:
        if answer.rate is not None:
            continue
        concerned = np.ones(len(rows), dtype=bool)
        shows = rows == leader
        if answer.smoothing is not None:
            concerned = complete & (smoothing == answer.smoothing)
            shows = champion & concerned
        if answer.value is not None:
            value = scale.nearest(answer.value)
            np.maximum(best_allowed, value, out=best_allowed, where=concerned[:, None])
            worst_allowed[shows, -1] = np.minimum(worst_allowed[shows, -1], value)
            continue
        assert answer.goal is not None
        until = math.inf if answer.steps is None else float(answer.steps)
        before = np.where(shows[:, None], steps < until, steps <= until) & concerned[:, None]
        np.maximum(best_allowed, scale.unmet(answer.goal), out=best_allowed, where=before)
        there = shows[:, None] & (steps == until)
        np.minimum(worst_allowed, scale.met(answer.goal), out=worst_allowed, where=there)
    return best_allowed, worst_allowed


def _progress(x: FloatArray, at_one: FloatArray) -> FloatArray:
    """A falling curve's share of its way, from 0 at 0 through `at_one` at 1 towards 1."""
    bend = (1 - at_one) ** (-1 / 1.2) - 1
    return 1 - (1 + bend * x) ** -1.2


@dataclass(frozen=True, slots=True)
class _Shape:
    """Where the objective starts, and how far beyond (or short of) the goal a trial may end."""

    start: float
    beyond: float
    short: float


def _shape(goal: Goal, task: _Task) -> _Shape:
    if goal.metric == paper.ERROR:
        return _Shape(1 - 1 / task.classes, 0.5 * goal.threshold, goal.threshold)
    if goal.metric == paper.PRECISION:
        return _Shape(0.0, 0.05, 0.15)
    return _Shape(math.log(task.classes), 0.3, 0.8)


_ENDINGS = ("stops", "nan", "inf")
"""How the curve of a diverged trial ends."""


@dataclass(slots=True)
class _Outcome:
    """What a study came to, for the truth."""

    evaluations: int = 0
    steps_to_goal: dict[int, int] = field(default_factory=dict)
    """First measured step that meets the goal, by trial; COMPLETE trials only."""


def _csv_blocks(
    plan: _Plan, trials: _Trials, rng: np.random.Generator, outcome: _Outcome
) -> Iterator[tuple[int, bytes, int]]:
    """Each trial's number, the text of its curve, and its last step."""
    import pyarrow as pa
    import pyarrow.csv as pc

    task = _task(plan.workload)
    grid = _grid(plan, rng)
    lengths_differ = plan.workload in _TIME_BUDGET and not plan.answers
    rows_missing = not plan.answers and rng.random() < 0.3
    train_sparse = rng.random() < 0.1
    shape = _shape(plan.goal, task)
    objective = plan.goal.metric
    names = [f"{split.name}/{metric}" for split in task.splits for metric in task.metrics]
    header = ",".join(["step", *names])
    options = pc.WriteOptions(include_header=False, quoting_style="none")
    val = next(split for split in task.splits if split.name == "val")
    scale = _Scale(plan.goal, val.examples if objective == paper.ERROR else None)
    sign = -1.0 if plan.goal.maximize else 1.0

    for start in range(0, plan.counts.total, 128):
        rows = np.arange(start, min(start + 128, plan.counts.total))
        n, m = len(rows), len(grid)
        stretch = rng.uniform(1, 1.2, (n, 1)) if lengths_differ else np.ones((n, 1))
        steps = np.rint(grid * stretch).astype(np.int64)
        status, reaches = trials.status[rows], trials.reaches[rows]
        # How much of the curve was measured.
        last = np.full(n, m - 1)
        cut = rng.random(n)
        last = np.where(status == INCOMPLETE, (cut * (m - 1)).astype(np.int64), last)
        last = np.where(status == INFEASIBLE, (cut * cut * (m - 1) / 2).astype(np.int64) + 1, last)
        nothing = (status != COMPLETE) & (rng.random(n) < 0.03)
        last[nothing] = -1
        measured = np.arange(m) <= last[:, None]
        if rows_missing:
            inner = rng.random((n, m)) < 0.9
            inner[:, [0, -1]] = True
            measured &= inner
        # The objective on the validation split, smaller being better.
        passes = np.isfinite(reaches)
        room = rng.uniform(0.1, 1, n)
        goal_value, start_value = sign * plan.goal.threshold, sign * shape.start
        end = np.where(passes, goal_value - room * shape.beyond, goal_value + room * shape.short)
        pace = np.where(passes, reaches, plan.train_steps() * rng.uniform(0.2, 1, n))
        at_one = np.where(passes, (start_value - goal_value) / (start_value - end), 0.9)
        progress = _progress(steps / pace[:, None], at_one[:, None])
        best_allowed, worst_allowed = _limits(plan, trials, rows, steps, measured, scale)
        columns: dict[str, Any] = {"step": steps[measured]}
        value = np.empty(0)
        for split in task.splits:
            for metric in task.metrics:
                name = f"{split.name}/{metric}"
                noise = rng.standard_normal((n, m))
                if name == objective:
                    v = start_value + (end - start_value)[:, None] * progress
                    v = v + noise * (0.02 * np.abs(v) if objective == paper.ERROR else 0.004)
                    v = np.minimum(v, start_value + 0.01 * abs(start_value))
                    # Turned back at the limit, not piled up on it.
                    v = np.where(v < best_allowed, best_allowed + 0.2 * (best_allowed - v), v)
                    v = np.where(v > worst_allowed, worst_allowed - 0.2 * (v - worst_allowed), v)
                    if scale.examples is not None:
                        v = np.clip(np.rint(v * scale.examples), 0, scale.examples) / scale.examples
                    v = np.maximum(np.minimum(v, worst_allowed), best_allowed)
                    if objective == paper.PRECISION:
                        v = np.clip(v, -1.0, 0.0)
                    v = value = sign * v
                else:
                    v = _other_metric(metric, split, task, progress, shape, end * sign, noise)
                columns[name] = v
        _end_in_divergence(columns, rows, status, last, rng, task)
        arrays = {"step": pa.array(columns.pop("step"))}
        empty = np.zeros((n, m), dtype=bool)
        empty[:, 1::2] = train_sparse
        for name, v in columns.items():
            gap = empty[measured] if name.startswith("train/") else None
            arrays[name] = pa.array(v[measured], mask=gap)
        text = io.BytesIO()
        pc.write_csv(pa.table(arrays), text, options)
        yield from _cut(text.getvalue(), header, rows, measured, steps)
        met = plan.goal.met(value) & measured & (status == COMPLETE)[:, None]
        outcome.evaluations += int(measured.sum())
        for i in np.flatnonzero(met.any(axis=1)):
            outcome.steps_to_goal[int(rows[i]) + 1] = int(steps[i, met[i].argmax()])


def _other_metric(
    metric: str,
    split: _Split,
    task: _Task,
    progress: FloatArray,
    shape: _Shape,
    end: FloatArray,
    noise: FloatArray,
) -> FloatArray:
    """A metric beside the objective, in step with it."""
    if metric == "classification_error":
        rate = shape.start + (end[:, None] * split.ease - shape.start) * progress
        count = np.rint(rate * (1 + 0.02 * noise) * split.examples)
        return np.asarray(np.clip(count, 0, split.examples) / split.examples)
    if metric == "average_precision":
        return np.asarray(np.clip(end[:, None] / split.ease * progress + 0.004 * noise, 0.0, 1.0))
    chance = math.log(task.classes)
    if len(task.metrics) == 1:
        low = end[:, None] * split.ease**0.25
    else:
        low = np.full((len(end), 1), 0.04 * chance * split.ease)
    return np.asarray((chance + (low - chance) * progress) * np.exp(0.01 * noise))


def _end_in_divergence(
    columns: dict[str, Any],
    rows: NDArray[np.intp],
    status: NDArray[np.str_],
    last: IntArray,
    rng: np.random.Generator,
    task: _Task,
) -> None:
    """Let the curves of diverged trials stop, or end in nan or in an infinite loss, as real ones do."""
    endings = rng.integers(0, len(_ENDINGS), len(rows))
    for i in np.flatnonzero((status == INFEASIBLE) & (last >= 0)):
        ending = _ENDINGS[endings[i]]
        for name, values in columns.items():
            if name == "step" or ending == "stops":
                continue
            if ending == "nan" or name.endswith("average_precision"):
                values[i, last[i]] = np.nan
            elif name.endswith("cross_entropy_error"):
                values[i, last[i]] = np.inf
            else:
                values[i, last[i]] = 1 - 1 / task.classes


def _cut(
    text: bytes, header: str, rows: NDArray[np.intp], measured: NDArray[np.bool_], steps: IntArray
) -> Iterator[tuple[int, bytes, int]]:
    """Cut the text of many curves into one per trial, each under its header."""
    ends = np.flatnonzero(np.frombuffer(text, dtype=np.uint8) == ord("\n")) + 1
    top = header.encode() + b"\n"
    row = 0
    begin = 0
    for i, trial in enumerate(rows):
        count = int(measured[i].sum())
        row += count
        end = int(ends[row - 1]) if row else 0
        last = int(steps[i][measured[i]][-1]) if count else 0
        yield int(trial) + 1, top + text[begin:end], last
        begin = end


# ---------------------------------------------------------------------------------------------------
# Writing: a tar as the published one is, compressed or not, or a folder.


class _Sink(Protocol):
    def folder(self, path: PurePosixPath) -> None: ...

    def file(self, path: PurePosixPath, text: bytes) -> None: ...


class _Writable(Protocol):
    def write(self, block: bytes, /) -> object: ...


class _Tar:
    """A tar in GNU format, whose long names take an entry of their own."""

    def __init__(self, file: _Writable) -> None:
        self._file = file
        self._written = 0

    def _entry(self, path: PurePosixPath, kind: bytes, mode: int, size: int) -> None:
        entry = tarfile.TarInfo(str(path))
        entry.type, entry.mode, entry.size, entry.mtime = kind, mode, size, _MOMENT
        self._put(entry.tobuf(tarfile.GNU_FORMAT, "utf-8", "strict"))

    def _put(self, block: bytes) -> None:
        self._file.write(block)
        self._written += len(block)

    def folder(self, path: PurePosixPath) -> None:
        self._entry(path, tarfile.DIRTYPE, 0o755, 0)

    def file(self, path: PurePosixPath, text: bytes) -> None:
        self._entry(path, tarfile.REGTYPE, 0o644, len(text))
        self._put(text + b"\0" * (-len(text) % tarfile.BLOCKSIZE))

    def end(self) -> None:
        self._put(b"\0" * 2 * tarfile.BLOCKSIZE)
        self._put(b"\0" * (-self._written % tarfile.RECORDSIZE))


_MOMENT = 1_562_000_000
"""Every member has this time of change, so that two archives of one seed are equal."""


class _Folder:
    """The same tree as files."""

    def __init__(self, top: Path) -> None:
        self._top = top

    def folder(self, path: PurePosixPath) -> None:
        (self._top / path).mkdir(parents=True, exist_ok=True)

    def file(self, path: PurePosixPath, text: bytes) -> None:
        (self._top / path).write_bytes(text)


@contextmanager
def _compressor(path: Path, suffix: str) -> Iterator[_Writable]:
    """A file that compresses what is written to it, by the suffix of the archive's name."""
    if suffix == ".tar":
        with path.open("wb") as file:
            yield file
    elif suffix == ".tar.gz":
        # Neither name nor time in the header: two archives of one seed are equal.
        with path.open("wb") as file, gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
            yield packed
    elif suffix == ".tar.xz":
        with lzma.open(path, "wb", preset=1) as packed_xz:
            yield packed_xz
    elif suffix == ".tar.zst":
        import zstandard

        with path.open("wb") as file, zstandard.ZstdCompressor(level=3).stream_writer(file) as packed:
            yield packed
    else:
        program = next((name for name in ("lbzip2", "pbzip2") if shutil.which(name)), None)
        if program is None:
            with bz2.open(path, "wb") as packed_bz2:
                yield packed_bz2
            return
        with path.open("wb") as out, tempfile.TemporaryFile() as said:
            process = subprocess.Popen([program, "-c"], stdin=subprocess.PIPE, stdout=out, stderr=said)
            assert process.stdin is not None
            try:
                yield process.stdin
                process.stdin.close()
            except BaseException as error:
                process.kill()
                process.wait()
                with suppress(BrokenPipeError):
                    process.stdin.close()
                if not isinstance(error, BrokenPipeError):
                    raise
            if process.wait():
                said.seek(0)
                reason = said.read().decode(errors="replace").strip() or f"exit status {process.returncode}"
                raise BatchScienceError(f"{path}: {program} could not write it: {reason}")


_SUFFIXES = (".tar.bz2", ".tar.gz", ".tar.xz", ".tar.zst", ".tar")


@contextmanager
def _sink(out: Path) -> Iterator[_Sink]:
    """Write under a temporary name; what is whole appears under its own."""
    suffix = next((s for s in _SUFFIXES if out.name.endswith(s)), None)
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        if suffix is None:
            temporary.mkdir(parents=True)
            yield _Folder(temporary)
        else:
            with _compressor(temporary, suffix) as file:
                tar = _Tar(file)
                yield tar
                tar.end()
        temporary.replace(out)
    except BaseException:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            temporary.unlink(missing_ok=True)
        raise


# ---------------------------------------------------------------------------------------------------
# The whole archive.


@dataclass(frozen=True, slots=True)
class Simulation:
    """What `simulate` has written.

    Parameters
    ----------
    archive : pathlib.Path
        The archive or folder.
    truth : pathlib.Path
        The true answers, JSON.
    studies, trials, evaluations : int
        How many it holds; an evaluation is a row of a ``measurements.csv``.
    """

    archive: Path
    truth: Path
    studies: int
    trials: int
    evaluations: int


def truth_path(out: str | os.PathLike[str]) -> Path:
    """Where the truth of a simulated archive lies: beside it, with ``.truth.json`` behind its name.

    Examples
    --------
    >>> truth_path("there/simulated.tar.bz2").name
    'simulated.tar.bz2.truth.json'
    """
    out = Path(out)
    return out.with_name(out.name + ".truth.json")


def simulate(
    out: str | os.PathLike[str],
    *,
    scale: float = 1.0,
    seed: int = 0,
    workloads: Iterable[str] | None = None,
    trials: int | None = None,
    evaluations: int | None = None,
    answers: Literal["law", "published"] = "law",
    on_progress: Callable[[int, int], None] | None = None,
) -> Simulation:
    """Write an archive in the raw layout whose true answers are known.

    Parameters
    ----------
    out : path
        A name ending in ``.tar.bz2``, ``.tar.gz``, ``.tar.xz``, ``.tar.zst`` or ``.tar``; any other name is
        a folder, in which ``batch_science/`` is written as extracting the archive would.
    scale : float, default 1.0
        Share of the published size: 1.0 has the published 454 studies with their numbers of trials and
        about 24 million evaluations.  A smaller scale has fewer trials in each study and, once a study is
        down to a few, fewer evaluations in each trial.
    seed : int, default 0
        Same seed, same trials.
    workloads : iterable of str, optional
        Patterns of the workloads to write, for example ``"mnist/*/sgd"``; default all 35.  A study is the
        same whichever others are written.
    trials, evaluations : int, optional
        Trials of each study and evaluations of a COMPLETE trial of it, instead of those of the scale.
    answers : {"law", "published"}, default "law"
        What the best trials show: a scaling law for each workload, or, to test the drawing of figures, the
        steps to result, best errors and best effective learning rates of the published Figures 1 to 8.
    on_progress : callable, optional
        Called after each study with the number of studies done and of all.

    Returns
    -------
    Simulation
        Paths and counts.

    Raises
    ------
    FileExistsError
        If `out` exists.
    UnknownWorkload
        If a pattern fits no published workload.
    BatchScienceError
        If the program that compresses fails, for example on a full disk.

    Notes
    -----
    Nothing here is a result of training, and each study says so in its ``run.json``.

    With ``answers="law"``, a COMPLETE trial reaches the goal with probability `REACH_PROBABILITY`, and then
    passes it after S · (1 + (B_c / B)^a)^(1/a) · e^z steps, where z ≥ 0 is exponential with scale
    `DELAY_SCALE`, truncated at `LATEST_DELAY`, independently in each trial.  So the steps to result of a
    study, the median of a best-of-k and every other quantile follow the law up to a factor that is the
    same at all batch sizes.  The objective first meets the goal at the first measurement at or after that
    step.  Trials near the best effective learning rate tend to be early; the highest effective learning
    rates diverge.  Trials that diverge or stay incomplete never reach the goal.

    The truth, a JSON file (see `truth_path`), holds for each workload the goal, the law, its critical
    batch size, and at tolerance 0.2 the end of perfect scaling and the maximum useful batch size: of the law
    as a real number (``end_of_perfect_scaling``, ``maximum_useful_batch_size``) and of its values at the
    batch sizes measured (``perfect_to``, ``useful_to``).  For each batch size it holds the law's steps, the
    best effective learning rate, the counts, and the first measured step to meet the goal over the first
    COMPLETE trials that the paper's analysis takes and over all of them.

    Memory does not grow with the scale: one study is in memory at a time.  A ``.tar.bz2`` is compressed by
    lbzip2 or pbzip2 where one is installed, for speed, and else by the standard library.  Two runs on
    one machine give the same bytes; two compressors give the same contents in different bytes.
    """
    out = Path(out)
    truth = truth_path(out)
    for path in (out, truth):
        if path.exists():
            raise FileExistsError(f"{path} exists; it is not overwritten")
    if not scale > 0:
        raise ValueError(f"a scale is positive, got {scale}")
    plans = _plans(scale, seed, workloads, trials, evaluations, answers)
    out.parent.mkdir(parents=True, exist_ok=True)
    order = _tree_order(list(plans), np.random.default_rng(seed))
    outcomes: dict[str, dict[str, Any]] = {}
    done = trial_count = evaluation_count = 0
    with _sink(out) as sink:
        seen: set[PurePosixPath] = set()
        for name in order:
            plan = plans[name]
            folder = PurePosixPath(ROOT, name)
            for parent in [*reversed(folder.parents), folder]:
                if parent not in seen and parent != PurePosixPath("."):
                    seen.add(parent)
                    sink.folder(parent)
            record = _write_study(plan, folder, sink)
            outcomes[name] = record
            done += 1
            trial_count += plan.counts.total
            evaluation_count += record["evaluations"]
            if on_progress is not None:
                on_progress(done, len(order))
    text = json.dumps(_truth(plans, outcomes, scale, seed, answers), indent=1) + "\n"
    temporary = truth.with_name(f".{truth.name}.{os.getpid()}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(truth)
    return Simulation(out, truth, done, trial_count, evaluation_count)


def _tree_order(names: list[str], rng: np.random.Generator) -> list[str]:
    """The order in which tar would find the studies: folder by folder, each in an arbitrary order."""
    first: dict[str, list[str]] = {}
    for name in sorted(names):
        first.setdefault(name.split("/", 1)[0], []).append(name)
    ordered: list[str] = []
    for key in rng.permutation(sorted(first)).tolist():
        inside = [name.split("/", 1)[1] for name in first[key] if "/" in name]
        ordered += [f"{key}/{rest}" for rest in _tree_order(inside, rng)] if inside else [key]
    return ordered


def _scaled(count: int, scale: float, least: int) -> int:
    return min(count, max(least, round(count * scale))) if scale < 1 else round(count * scale)


def _shared(counts: _Counts, trials: int) -> _Counts:
    """So many trials with the shares of the published ones, at least one of every status that occurs."""
    incomplete, infeasible = (
        max(1, round(trials * n / counts.total)) if n else 0 for n in (counts.incomplete, counts.infeasible)
    )
    return _Counts(max(1, trials - incomplete - infeasible), incomplete, infeasible)


_HALF_MISSING = 0.97
"""Share of the evaluations that is written, since some studies leave some out."""


def _expected_rows(counts: _Counts) -> float:
    """Evaluations of a study in units of those of one COMPLETE trial."""
    return _HALF_MISSING * (counts.complete + counts.incomplete / 2 + counts.infeasible / 6)


def _plans(
    scale: float,
    seed: int,
    patterns: Iterable[str] | None,
    trials: int | None,
    evaluations: int | None,
    answers: Literal["law", "published"],
) -> dict[str, _Plan]:
    """The plan of each study, by its name."""
    if isinstance(patterns, str):
        patterns = [patterns]
    names = [workload.name for workload in paper.WORKLOADS]
    chosen = names
    if patterns is not None:
        chosen = []
        for pattern in patterns:
            fitting = [name for name in names if fnmatchcase(name, pattern)]
            if not fitting:
                raise UnknownWorkload(
                    f"no published workload fits {pattern!r}; one is {names[0]!r}, 'mnist/*' fits several"
                )
            chosen += [name for name in fitting if name not in chosen]
    studies = published.studies()
    columns = ("workload", "batch_size", "complete", "incomplete", "infeasible")
    full = {
        (str(workload), int(batch_size)): _Counts(*(int(count) for count in numbers))
        for workload, batch_size, *numbers in zip(*(studies[c].tolist() for c in columns), strict=True)
    }
    counts = {
        study: _shared(c, trials)
        if trials is not None
        else _Counts(
            _scaled(c.complete, scale, 3), _scaled(c.incomplete, scale, 1), _scaled(c.infeasible, scale, 1)
        )
        for study, c in full.items()
    }
    rows = sum(_expected_rows(c) * _task(workload).length for (workload, _), c in counts.items())
    published_rows = sum(_expected_rows(c) * _task(workload).length for (workload, _), c in full.items())
    unit = PUBLISHED_EVALUATIONS / published_rows * min(1.0, scale * published_rows / rows)
    found = _published_answers(chosen) if answers == "published" else {}
    return {
        f"{workload}/{batch_size}": _Plan(
            workload,
            batch_size,
            c,
            evaluations if evaluations is not None else max(8, round(unit * _task(workload).length)),
            _goal(workload),
            _LAWS[workload],
            tuple(found.get((workload, batch_size), ())),
            seed,
        )
        for (workload, batch_size), c in counts.items()
        if workload in set(chosen)
    }


def _json(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()


def _write_study(plan: _Plan, folder: PurePosixPath, sink: _Sink) -> dict[str, Any]:
    """Write one study; returns its part of the truth."""
    rng = plan.rng()
    train_steps = plan.train_steps()
    space = _space(plan.workload, plan.best_rate(), train_steps)
    trials = _draw_trials(plan, space, rng)
    outcome = _Outcome()
    dataset, model, optimizer = plan.workload.rsplit("/", 2)
    study = StudyFile.of(
        batch_size=plan.batch_size,
        dataset=dataset.rsplit("/", 1)[-1],
        model=model,
        optimizer=optimizer,
        train_steps=0 if plan.workload in _TIME_BUDGET else train_steps,
        space=space,
        early_stopping=plan.counts.incomplete > plan.counts.complete / 2,
    )
    whole = {p.name for p in space if p.type == "INTEGER"}
    # All of one study is in memory, because its folders come in an arbitrary order.
    members: list[tuple[str, dict[str, bytes]]] = [
        (STUDY_FILE, {"": study.text().encode()}),
        (RUN_FILE, {"": RunFile(source=f"simulated, seed {plan.seed}").text().encode()}),
    ]
    for trial, curve, last in _csv_blocks(plan, trials, rng, outcome):
        settings = trials.settings[trial - 1]
        about = {
            "_internal_study_name": f"simulated-{plan.workload.replace('/', '-')}-bs{plan.batch_size}",
            "_internal_trial_id": trial,
            "parameters": {k: int(v) if k in whole else v for k, v in settings.items()},
            "status": str(trials.status[trial - 1]),
            "steps": last,
            "trial_id": trial,
        }
        members.append((str(trial), {TRIAL_FILE: _json(about), CURVE_FILE: curve}))
    for at in rng.permutation(len(members)):
        name, files = members[at]
        if "" in files:
            sink.file(folder / name, files[""])
            continue
        sink.folder(folder / name)
        for file in files if at % 2 else reversed(files):
            sink.file(folder / name / file, files[file])
    reached = outcome.steps_to_goal
    taken = (np.flatnonzero(trials.status == COMPLETE) + 1)[: paper.trials_used(plan.workload)].tolist()
    return {
        "law_steps": plan.steps_of_best() if math.isfinite(plan.steps_of_best()) else None,
        "best_effective_learning_rate": _best_effective(space),
        "train_steps": train_steps,
        "complete": plan.counts.complete,
        "incomplete": plan.counts.incomplete,
        "infeasible": plan.counts.infeasible,
        "evaluations": outcome.evaluations,
        "first_trials": _best({t: reached[t] for t in taken if t in reached}, len(taken)),
        "all_trials": _best(reached, plan.counts.complete),
    }


def _best(reached: dict[int, int], trials: int) -> dict[str, Any]:
    """Fewest measured steps to the goal; of trials with equally few, the first."""
    if not reached:
        return {"trials": trials, "reached": 0, "steps": None, "trial": None}
    steps, trial = min((steps, trial) for trial, steps in reached.items())
    return {"trials": trials, "reached": len(reached), "steps": steps, "trial": trial}


def _truth(
    plans: dict[str, _Plan], outcomes: dict[str, dict[str, Any]], scale: float, seed: int, answers: str
) -> dict[str, Any]:
    workloads: dict[str, Any] = {}
    for name, plan in sorted(plans.items(), key=lambda item: (item[1].workload, item[1].batch_size)):
        about = workloads.setdefault(
            plan.workload,
            {
                "goal": {
                    "metric": plan.goal.metric,
                    "threshold": plan.goal.threshold,
                    "maximize": plan.goal.maximize,
                },
                "trials_used": paper.trials_used(plan.workload),
                "batch_sizes": {},
            },
        )
        about["batch_sizes"][str(plan.batch_size)] = outcomes[name]
        if plan.answers:
            outcomes[name]["published_steps"] = [
                {
                    "metric": a.goal.metric,
                    "goal": a.goal.threshold,
                    "label_smoothing": a.smoothing,
                    "steps": a.steps,
                }
                for a in plan.answers
                if a.goal is not None
            ]
    if answers == "law":
        for workload, about in workloads.items():
            law = _LAWS[workload]
            about |= {
                "law": {
                    "name": "knee",
                    "floor": law.floor,
                    "critical_batch_size": law.critical_batch_size,
                    "sharpness": law.sharpness,
                },
                "critical_batch_size": law.critical_batch_size,
                "end_of_perfect_scaling": law.perfect_to(TOLERANCE),
                "maximum_useful_batch_size": law.useful_to(TOLERANCE),
                **_on_the_grid({int(b): r["law_steps"] for b, r in about["batch_sizes"].items()}),
            }
    return {
        "simulated_with": {"scale": scale, "seed": seed, "answers": answers},
        "tolerance": TOLERANCE,
        "reach_probability": REACH_PROBABILITY,
        "log_delay": {
            "distribution": "exponential, truncated",
            "scale": DELAY_SCALE,
            "upper": LATEST_DELAY,
        },
        "workloads": workloads,
    }


def _on_the_grid(steps: dict[int, float]) -> dict[str, Any]:
    """Ends of perfect scaling and of usefulness among the batch sizes measured, of the law itself."""
    sizes = sorted(steps)
    first = sizes[0]
    perfect = first
    for b in sizes:
        if b * steps[b] > (1 + TOLERANCE) * first * steps[first]:
            break
        perfect = b
    lowest = min(steps.values())
    useful = next(b for b in sizes if steps[b] <= (1 + TOLERANCE) * lowest)
    return {
        "perfect_to": perfect,
        "perfect_censored": perfect == sizes[-1],
        "useful_to": useful,
        "useful_censored": useful == sizes[-1],
    }
