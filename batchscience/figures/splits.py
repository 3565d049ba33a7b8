"""The panels of the paper on training and test metrics in place of validation metrics."""

from __future__ import annotations

import dataclasses

from ..goals import Goal
from ..paper import Panel, Series
from . import Split

_WORDS = {"train": ("Training", "on training metrics"), "test": ("Test", "on test metrics")}


def on_split(panel: Panel, split: Split) -> Panel:
    """The panel with every metric measured on another part of the data.

    Parameters
    ----------
    panel : Panel
        A panel on validation metrics.
    split : {"val", "train", "test"}
        Part of the data; "val" returns the panel itself.
    """
    if split == "val":
        return panel
    word, _ = _WORDS[split]
    return dataclasses.replace(
        panel,
        title=panel.title.replace("Validation", word),
        series=tuple(_series_on(series, split) for series in panel.series),
        # The paper's limits suit its own metrics.
        y_limits=None if panel.quantity == "best_value" else panel.y_limits,
    )


def _series_on(series: Series, split: Split) -> Series:
    metric = _metric_on(series.metric, split)
    goal = _goal_on(series.goal, split)
    return dataclasses.replace(series, goal=goal, metric=metric, notebook_goal=None)


def _goal_on(goal: Goal | None, split: Split) -> Goal | None:
    return None if goal is None else dataclasses.replace(goal, metric=_metric_on(goal.metric, split))


def _metric_on(metric: str, split: Split) -> str:
    return metric.replace("val/", f"{split}/", 1)
