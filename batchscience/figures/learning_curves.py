"""The learning curve of the best trial of each study, for the workloads of Figure 1."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .. import paper
from ..paper import Panel, Series
from . import panels
from .grid import draw_grid, metric_label
from .raw import Ask, RawCurves
from .sources import NothingToDraw, PanelTables, Scope, Source, SourceKind, no_guides
from .style import Look, Style, looks


def asks(raw: RawCurves, scope: Scope) -> list[Ask]:  # noqa: ARG001 - of one form for all figures
    """What the figure needs of the raw curves."""
    return [_ask(panel.series[0]) for panel in paper.FIGURE_1]


def _ask(series: Series) -> Ask:
    return Ask("best_curves", series, paper.trials_used(series.workload))


def tables(source: Source, scope: Scope) -> list[PanelTables]:  # noqa: ARG001
    """The curves of the best trials.

    Raises
    ------
    NothingToDraw
        If the source has none of them.
    """
    if not isinstance(source, RawCurves):
        raise NothingToDraw("learning curves need the raw curves; run 'batchscience fetch' first")
    found, missing = [], []
    for panel in paper.FIGURE_1:
        try:
            found.append(curves_of(panel, source))
        except NothingToDraw as error:
            missing.append(error)
    if not found:
        raise missing[0]
    return found


def curves_of(panel: Panel, source: RawCurves) -> PanelTables:
    """The curve of the trial with the fewest steps of each study of a panel's one series."""
    series = panel.series[0]
    answer = source.answer(_ask(series))
    points = answer.table.assign(
        series=[f"B = {size:,}" for size in answer.table["batch_size"]],
        workload=series.workload,
        metric=series.metric,
        goal=series.goal.threshold if series.goal is not None else None,
    )
    notes = [*answer.notes]
    steps = source.steps(series, first=paper.trials_used(series.workload))
    lost = steps.loc[steps["value"].isna(), "batch_size"]
    if len(lost):
        where = panels.sizes_in_words(lost.to_numpy(float))
        notes.append(f"{panel.title}: no curve at {where}, where no trial reached the goal")
    return PanelTables(panel, points, no_guides(), tuple(notes))


def styles_of(tables: Sequence[PanelTables]) -> dict[str, Look]:
    """One look for each batch size of the figure."""
    sizes = sorted({int(size) for table in tables for size in table.points.get("batch_size", ())})
    names = [f"B = {size:,}" for size in sizes]
    return dict(zip(names, looks(len(names), ordered=True), strict=True))


def draw_curves_panel(table: PanelTables, ax: Axes, *, styles: dict[str, Look]) -> None:
    """Draw the curves of one workload."""
    if table.points.empty:
        panels.draw_absence("no trial reached the goal", ax=ax)
        return
    goal = table.panel.series[0].goal
    assert goal is not None
    panels.draw_learning_curves(
        table.points,
        ax=ax,
        y_label=metric_label(goal.metric),
        y_scale=scale_for(table.points["value"], maximize=goal.maximize),
        goal=goal.threshold,
        styles=styles,
    )


def scale_for(values: pd.Series[float], *, maximize: bool) -> Literal["log", "linear"]:
    """A logarithmic scale where an error falls so far that its end would lie on the axis."""
    positive = values.astype(float)
    positive = positive[positive > 0]
    if maximize or positive.empty:
        return "linear"
    return "log" if positive.max() > 8 * positive.min() else "linear"


def draw(tables: Sequence[PanelTables], *, kind: SourceKind, style: Style) -> Figure:
    """Draw the figure's panels."""
    styles = styles_of(tables)
    return draw_grid(
        tables,
        kind=kind,
        style=style,
        columns=3,
        note="Each line: the trial with the fewest steps to the goal at one batch size.",
        draw=partial(draw_curves_panel, styles=styles),
        common=list(styles),
    )
