"""The perfect-scaling and useful ranges of all workloads, one below the other."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .. import paper
from ..paper import Panel
from ..regimes import TOLERANCE, transitions
from . import panels
from .grid import origin
from .raw import Ask, RawCurves, asks_of
from .sheet import Cell, sentences, sheet
from .sources import NothingToDraw, PanelTables, Scope, Source, SourceKind, no_guides
from .style import Style


def asks(raw: RawCurves, scope: Scope) -> list[Ask]:  # noqa: ARG001 - of one form for all figures
    """What the figure needs of the raw curves."""
    return [ask for panel, _ in curves() for ask in asks_of(panel)]


def curves() -> list[tuple[Panel, str]]:
    """For each workload the first panel of the paper that shows its steps, and its label in there."""
    found: dict[str, tuple[Panel, str]] = {}
    for panel in paper.PANELS:
        if panel.quantity not in ("steps", "relative_steps"):
            continue
        for series in panel.series:
            if series.label_smoothing is None:
                found.setdefault(series.workload, (panel, series.label))
    return list(found.values())


def tables(source: Source, scope: Scope) -> list[PanelTables]:  # noqa: ARG001
    """The transition points of every workload that the source has.

    Raises
    ------
    NothingToDraw
        If it has none.
    """
    rows, notes, missing = [], [], []
    for panel, label in curves():
        try:
            table = source.tables(panel)
        except NothingToDraw as error:
            missing.append(error)
            continue
        name = "" if len(panel.series) == 1 else label
        points = table.points[table.points["series"] == name]
        if points.empty:
            continue
        row, warning = _row(points)
        rows.append(row)
        if warning:
            notes.append(warning)
    if not rows:
        raise missing[0]
    ranges = pd.DataFrame(rows).sort_values(["useful_to", "perfect_to", "workload"], ignore_index=True)
    panel = Panel("ranges", 0, 0, "", "steps", paper.FIGURE_1[0].series)
    return [PanelTables(panel, ranges, no_guides(), tuple(notes))]


def _row(points: pd.DataFrame) -> tuple[dict[str, object], str]:
    workload, goal, metric = (points[name].iloc[0] for name in ("workload", "goal", "metric"))
    # Divided steps do as well: the transition points do not depend on the unit.
    curve = points[["batch_size", "value"]].rename(columns={"value": "steps"})
    found = transitions(curve, tolerance=TOLERANCE)
    row = {
        "label": f"{workload}, {goal:g}",
        "workload": workload,
        "metric": metric,
        "goal": goal,
        "smallest": found.smallest,
        "largest": found.largest,
        "perfect_to": found.perfect_to,
        "perfect_censored": found.perfect_censored,
        "useful_to": found.useful_to,
        "useful_censored": found.useful_censored,
        "tolerance": found.tolerance,
    }
    gone = f"{workload}: goal not reached at {panels.sizes_in_words(found.not_reached)}"
    return row, gone if found.not_reached else ""


def draw(tables: Sequence[PanelTables], *, kind: SourceKind, style: Style) -> Figure:
    """Draw the figure's one panel."""
    table = tables[0]
    note = sentences(
        [
            f"Transition points at a tolerance of {100 * TOLERANCE:.0f} %; after each workload its goal",
            origin(kind),
            *table.notes,
        ]
    )

    def draw_ranges(ax: Axes) -> None:
        panels.draw_ranges(table.points, ax=ax, label_width=60)

    height = style.font / 72 * (1.75 * len(table.points) + 5)
    return sheet(
        [Cell("Batch sizes up to which more data parallelism pays", draw_ranges)],
        columns=1,
        style=style,
        note=note,
        panel_height=height,
    )
