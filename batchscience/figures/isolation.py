"""Isolation plots: the trials of a workload by each metaparameter and the best value that each reached."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .. import paper
from ..goals import Goal
from ..metaparameters import metaparameters_in, parameter_of
from ..paper import Panel, Series
from . import panels
from .goal_of_workload import goal_for
from .grid import COMMON, best_label, origin
from .raw import Ask, RawCurves
from .sheet import Cell, sentences, sheet
from .sources import NothingToDraw, PanelTables, Scope, Source, SourceKind, no_guides
from .style import Style

MOST_BATCH_SIZES = 3
MOST_PARAMETERS = 6


def asks(raw: RawCurves, scope: Scope) -> list[Ask]:
    """What the figure needs of the raw curves."""
    workload = _workload(raw, scope)
    goal = scope.goal or paper.goal_of(workload)
    if goal is None:
        return []
    return [_ask(workload, size, scope.goal or goal) for size in smallest_middle_largest(raw, workload)]


def _ask(workload: str, batch_size: int, goal: Goal) -> Ask:
    return Ask("trial_values", Series("", workload, goal, batch_size=batch_size), None)


def _workload(raw: RawCurves, scope: Scope) -> str:
    """The workload asked for, else the first of Figure 1 that the tables hold, else their first."""
    if scope.workload is not None:
        return scope.workload
    known = [workload for workload in paper.GOALS if raw.has(workload)]
    # ResNet-50 searches the most metaparameters.
    rich = [workload for workload in known if "resnet_50" in workload]
    return [*rich, *known, *raw.store.workloads()][0]


def smallest_middle_largest(raw: RawCurves, workload: str) -> list[int]:
    """Batch sizes of a workload: the smallest, a middle one and the largest."""
    sizes = sorted(raw.store.studies(workload)["batch_size"].tolist()) if raw.has(workload) else []
    if len(sizes) <= MOST_BATCH_SIZES:
        return sizes
    return [sizes[0], sizes[len(sizes) // 2], sizes[-1]]


def tables(source: Source, scope: Scope) -> list[PanelTables]:
    """The trials of up to three studies, a table for each of them and each metaparameter.

    Raises
    ------
    NothingToDraw
        If the source is no store of raw curves, or the trials have no metaparameter that varies.
    """
    if not isinstance(source, RawCurves):
        raise NothingToDraw("isolation plots need the raw curves; run 'batchscience fetch' first")
    workload = _workload(source, scope)
    goal = goal_for(source, workload, scope.goal)
    answers = {
        size: source.answer(_ask(workload, size, goal)).table
        for size in smallest_middle_largest(source, workload)
    }
    everyone = pd.concat(answers.values(), ignore_index=True)
    names = [
        name
        for name in metaparameters_in(everyone)
        if name not in ("value", "outcome") and everyone[name].dropna().drop_duplicates().size > 1
    ][:MOST_PARAMETERS]
    if not names:
        raise NothingToDraw(f"no metaparameter of {workload} varies between its trials")
    space = source.store.search_space(workload)
    found = []
    for row, (size, trials) in enumerate(answers.items()):
        for column, name in enumerate(names):
            title = f"B = {size:,}"
            panel = Panel("isolation", row, column, title, "best_value", (Series("", workload, goal),))
            found.append(_one(panel, trials, name, space, size))
    return found


def _one(panel: Panel, trials: pd.DataFrame, name: str, space: pd.DataFrame, size: int) -> PanelTables:
    setting = trials[name].to_numpy(np.float64, na_value=np.nan)
    rows = space[(space["parameter"] == name) & (space["batch_size"] == size)].to_dict("records")
    parameter = parameter_of({str(key): value for key, value in rows[0].items()}) if rows else None
    scale = parameter.scale if parameter is not None else ""
    if scale == "REVERSE_LOG_SCALE":
        setting, name = 1 - setting, f"1 − {name}"
    points = pd.DataFrame(
        {
            "batch_size": size,
            "trial": trials["trial"],
            "status": trials["status"],
            "parameter": name,
            "scale": scale,
            "setting": setting,
            "value": trials["value"],
            "outcome": trials["outcome"],
        }
    )
    return PanelTables(panel, points[points["setting"].notna()].reset_index(drop=True), no_guides())


def draw_isolation_panel(table: PanelTables, ax: Axes) -> None:
    """Draw the trials of one study by one metaparameter."""
    points = table.points
    goal = table.panel.series[0].goal
    assert goal is not None
    if points.empty:
        panels.draw_absence("not part of this study", ax=ax)
        return
    panels.draw_isolation(
        points,
        ax=ax,
        x_label=str(points["parameter"].iloc[0]).replace("_", " "),
        y_label=best_label(goal.metric),
        log="LOG" in str(points["scale"].iloc[0]) and bool((points["setting"] > 0).all()),
        goal=goal.threshold,
        maximize=goal.maximize,
        y_limits=_limits(points["value"], goal),
    )


def _limits(values: pd.Series[float], goal: Goal) -> tuple[float, float] | None:
    """From the best trial to the worst tenth, which stands on the edge: a few are beyond all bounds."""
    numbers = values.astype("Float64").dropna().to_numpy(np.float64)
    numbers = np.append(numbers[np.isfinite(numbers)], goal.threshold)
    low, high = np.quantile(numbers, [0.1, 1.0] if goal.maximize else [0.0, 0.9])
    low, high = min(low, goal.threshold), max(high, goal.threshold)
    margin = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    return float(low - margin), float(high + margin)


def draw(tables: Sequence[PanelTables], *, kind: SourceKind, style: Style) -> Figure:
    """Draw the figure's panels, a row for each batch size."""
    series = tables[0].panel.series[0]
    columns = max(table.panel.column for table in tables) + 1
    if columns == 1:
        # One metaparameter: the batch sizes stand beside each other.
        columns = len(tables)
    wide = dataclasses.replace(style, width=style.width * max(1.0, columns / 3.5))
    note = sentences(
        [
            f"{series.workload}: every trial by each metaparameter and the best value that it reached; the "
            "worst tenth, and trials that diverged before any measurement, stand on the edge",
            f"goal: {series.goal}",
            origin(kind),
        ]
    )
    return sheet(
        [Cell(table.panel.title, partial(draw_isolation_panel, table)) for table in tables],
        columns=columns,
        style=wide,
        note=note,
        panel_height=style.panel_height,
        common=COMMON,
    )
