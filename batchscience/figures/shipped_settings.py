"""The studies that come with the package: settings that reach the goal in time, as in Figures 9 and 10."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..layout import INFEASIBLE
from ..metaparameters import metaparameters_in
from ..paper import Panel
from . import panels
from .grid import CONTOURS, draw_grid
from .isolation import smallest_middle_largest
from .raw import Ask, RawCurves
from .shipped import ShippedWorkload, unbroken, workloads
from .sources import PanelTables, Scope, Source, SourceKind, no_guides
from .style import Style

BUDGET = 3
"""The budget, in times the steps of the best trial of the study."""

LABELS = {"one_minus_momentum": "1 − momentum", "steps": "Steps to the goal"}


def asks(raw: RawCurves, scope: Scope) -> list[Ask]:  # noqa: ARG001 - of one form for all figures
    """What the figure needs of the raw curves."""
    return [
        _ask(workload, size)
        for workload in workloads(raw)
        for size in smallest_middle_largest(raw, workload.name)
    ]


def _ask(workload: ShippedWorkload, batch_size: int) -> Ask:
    return Ask("steps", workload.series(batch_size=batch_size), None)


def tables(source: Source, scope: Scope) -> list[PanelTables]:  # noqa: ARG001
    """The trials of up to three studies of each workload that searches a learning rate.

    Raises
    ------
    NothingToDraw
        If the source holds no curves.
    """
    found: list[PanelTables] = []
    for row, workload in enumerate(workloads(source)):
        assert isinstance(source, RawCurves)
        for column, size in enumerate(smallest_middle_largest(source, workload.name)):
            trials = source.answer(_ask(workload, size)).table
            if "learning_rate" not in trials.columns:
                continue
            points = _points(trials, source.store.search_space(workload.name))
            title = f"{workload.title}, {unbroken(f'B = {size:,}: {_budget(points)}')}"
            series = workload.series(batch_size=size)
            panel = Panel("shipped", row, column, title, "settings", (series,))
            points = points.assign(
                workload=workload.name, metric=workload.goal.metric, goal=workload.goal.threshold
            )
            found.append(PanelTables(panel, points, no_guides()))
    return found


def _budget(points: pd.DataFrame) -> str:
    budget = float(points["budget_steps"].iloc[0])
    return "not reached" if np.isnan(budget) else f"≤ {budget:,.0f} steps"


def _points(trials: pd.DataFrame, space: pd.DataFrame) -> pd.DataFrame:
    """A row is a trial with its settings and what came of it."""
    steps = trials["steps"].to_numpy(np.float64, na_value=np.nan)
    fewest = float(np.nanmin(steps)) if not np.isnan(steps).all() else np.nan
    budget = BUDGET * fewest
    diverged = (trials["status"] == INFEASIBLE).to_numpy(bool)
    outcome = np.where(steps <= budget, "goal achieved", "goal not achieved")
    ranked = trials[trials["steps"].notna()].sort_values(["steps", "trial"])
    best = ranked["trial"].iloc[0] if len(ranked) else -1
    points = pd.DataFrame(
        {
            "batch_size": trials["batch_size"],
            "trial": trials["trial"],
            "learning_rate": trials["learning_rate"].to_numpy(np.float64, na_value=np.nan),
            "steps": trials["steps"],
            "outcome": np.where(diverged, "infeasible", outcome),
            "best": trials["trial"] == best,
            "budget_steps": budget,
        }
    )
    other = _other(trials)
    if other is None:
        points["vertical"] = "steps"
    else:
        values = trials[other].to_numpy(np.float64, na_value=np.nan)
        scales = space.loc[space["parameter"] == other, "scale"]
        reversed_scale = bool((scales == "REVERSE_LOG_SCALE").any())
        name = f"one_minus_{other}" if reversed_scale else other
        points[name] = 1 - values if reversed_scale else values
        points["vertical"] = name
    return points


def _other(trials: pd.DataFrame) -> str | None:
    """The metaparameter to show beside the learning rate: momentum, or else the first that varies."""
    varying = [
        name
        for name in metaparameters_in(trials)
        if name != "learning_rate" and trials[name].dropna().drop_duplicates().size > 1
    ]
    return "momentum" if "momentum" in varying else next(iter(varying), None)


def _draw(table: PanelTables, ax: Axes) -> None:
    points = table.points
    vertical = str(points["vertical"].iloc[0])
    label = LABELS.get(vertical, vertical.replace("one_minus_", "1 − "))
    options: dict[str, Any] = {"y": vertical, "y_label": label}
    if vertical == "steps":
        options["y_base"] = 2
        steps = points["steps"].to_numpy(np.float64, na_value=np.nan)
        if not np.isnan(steps).all():
            # Room for the star.
            options["y_limits"] = (float(np.nanmin(steps)) / 1.25, float(np.nanmax(steps)))
    levels = CONTOURS if vertical == "one_minus_momentum" else ()
    panels.draw_trials(points, ax=ax, levels=levels, **options)


NOTE = (
    "All trials at the smallest, a middle and the largest batch size. The title says within how many steps "
    f"the goal had to be reached: {BUDGET} times those of the best trial of that batch size. For an "
    "optimizer without another metaparameter than the learning rate the steps to the goal stand on the "
    "vertical axis, and trials that never reached it on the upper edge."
)


def draw(tables: Sequence[PanelTables], *, kind: SourceKind, style: Style) -> Figure:
    """Draw the figure's panels, a row for each workload."""
    return draw_grid(tables, kind=kind, style=style, columns=3, note=NOTE, draw=_draw)
