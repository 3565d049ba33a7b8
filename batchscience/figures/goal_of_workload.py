"""The goal to draw a workload by: the one asked for, the paper's, or one that all its batch sizes reach."""

from __future__ import annotations

import math

from .. import paper
from ..goals import Goal
from ..paper import Series
from .raw import Ask, RawCurves, larger_is_better
from .sources import NothingToDraw

_PREFERRED = ("val/classification_error", "val/average_precision", "val/cross_entropy_error")


def goal_for(raw: RawCurves, workload: str, wanted: Goal | None = None) -> Goal:
    """The goal of a figure of one workload.

    Parameters
    ----------
    raw : RawCurves
        The tables.
    workload : str
        Its name in them.
    wanted : Goal, optional
        A goal that somebody chose.

    Returns
    -------
    Goal
        `wanted`, else the paper's, else the hardest round goal that some trial of every batch size
        reaches, on the validation data where they were measured.

    Raises
    ------
    NothingToDraw
        If the workload is not in the tables or nothing of it was measured.
    """
    if wanted is not None:
        return wanted
    published = paper.goal_of(workload)
    if published is not None:
        return published
    if not raw.has(workload):
        raise NothingToDraw(f"{workload} is not in the tables")
    metrics = raw.store.metrics(workload)
    ranked = [name for name in _PREFERRED if name in metrics]
    ranked += [name for name in metrics if name.startswith("val/")] + metrics
    for metric in ranked:
        values = raw.answer(Ask("best_value", Series("", workload, metric=metric), None)).table["value"]
        reached = [float(value) for value in values.dropna() if math.isfinite(value)]
        if reached:
            return Goal(metric, *_just_beyond(reached, maximize=larger_is_better(metric)))
    raise NothingToDraw(f"nothing of {workload} was measured")


def _just_beyond(best: list[float], *, maximize: bool) -> tuple[float, bool]:
    """A threshold of three digits that the worst of these values beats, and whether to maximize."""
    worst = min(best) if maximize else max(best)
    unit = 10.0 ** (math.floor(math.log10(abs(worst))) - 2) if worst else 0.001
    steps = math.ceil(worst / unit) - 1 if maximize else math.floor(worst / unit) + 1
    return float(f"{steps * unit:.6g}"), maximize
