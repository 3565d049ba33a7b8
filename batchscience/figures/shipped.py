"""What the figures of the shipped studies share: which workloads there are, their goals and titles."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

from .. import shipped
from ..comparisons import WorkloadName
from ..goals import Goal
from ..paper import Series, trials_used
from ..regimes import Regimes, stored_regimes
from .goal_of_workload import goal_for
from .grid import metric_label
from .raw import RawCurves
from .sources import NothingToDraw, Source

NAMES: Mapping[str, str] = {
    "adam": "Adam",
    "digits": "digits",
    "fashion_mnist": "Fashion MNIST",
    "mnist": "MNIST",
    "mnist1d": "MNIST-1D",
    "momentum": "momentum",
    "nesterov_momentum": "Nesterov momentum",
    "sgd": "SGD",
}
"""How data sets and optimizers are written in titles; others as in the name of the workload."""

UNBROKEN = "\u00a0"
"""A space at which no line breaks."""

_ORDER = ("sgd", "momentum", "nesterov_momentum")
"""Optimizers in the order of the paper; others follow."""


@dataclass(frozen=True, slots=True)
class ShippedWorkload:
    """A workload of the shipped studies, and the goal that it was trained for."""

    name: str
    goal: Goal

    @property
    def group(self) -> str:
        """Model and data set in words."""
        parts = WorkloadName.of(self.name)
        return f"{parts.model} on {NAMES.get(parts.dataset, parts.dataset)}"

    @property
    def optimizer(self) -> str:
        """The optimizer in words."""
        optimizer = WorkloadName.of(self.name).optimizer
        return NAMES.get(optimizer, optimizer)

    @property
    def title(self) -> str:
        """Model, data set and optimizer in words."""
        return f"{self.group}, {self.optimizer}"

    def series(self, label: str = "", *, batch_size: int | None = None) -> Series:
        """The workload as the series of a panel."""
        return Series(label, self.name, self.goal, batch_size=batch_size)


def workloads(source: Source) -> list[ShippedWorkload]:
    """The workloads of the shipped studies, those of one data set and model together, in the paper's order.

    Raises
    ------
    NothingToDraw
        If the source holds no curves.
    """
    if not isinstance(source, RawCurves):
        raise NothingToDraw("the figures of the shipped studies need their curves")
    goals = shipped.goals()

    def rank(name: str) -> tuple[str, str, int, str]:
        parts = WorkloadName.of(name)
        place = _ORDER.index(parts.optimizer) if parts.optimizer in _ORDER else len(_ORDER)
        return parts.dataset, parts.model, place, parts.optimizer

    return [
        ShippedWorkload(name, goals[name] if name in goals else goal_for(source, name))
        for name in sorted(source.store.workloads(), key=rank)
    ]


def groups(source: Source) -> list[list[ShippedWorkload]]:
    """The workloads by model and data set."""
    return [list(group) for _, group in itertools.groupby(workloads(source), key=lambda each: each.group)]


def regimes_of(source: RawCurves, workload: ShippedWorkload, *, confidence_level: float = 0.9) -> Regimes:
    """The regimes of a workload by the trials that its panels show."""
    with warnings.catch_warnings():
        # That a study has fewer trials than the paper's is among the notes of the panels.
        warnings.simplefilter("ignore", UserWarning)
        return stored_regimes(
            source.store,
            workload.name,
            workload.goal,
            first=trials_used(workload.name),
            confidence_level=confidence_level,
        )


def goal_in_words(goal: Goal) -> str:
    """“val/classification_error < 0.03” and its like, shorter.

    Examples
    --------
    >>> goal_in_words(Goal("val/classification_error", 0.03)).replace(UNBROKEN, " ")
    'validation error < 0.03'
    """
    label = metric_label(goal.metric)
    words = label if label == goal.metric else label[0].lower() + label[1:]
    return unbroken(f"{words}{str(goal).removeprefix(goal.metric)}")


def unbroken(text: str) -> str:
    """Text that a title does not spread over two lines."""
    return text.replace(" ", UNBROKEN)
