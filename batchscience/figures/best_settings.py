"""Learning rate and momentum of the best trial by batch size, within the limits of the search."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .. import paper
from ..paper import Panel
from . import panels
from .grid import draw_grid
from .raw import Ask, RawCurves, asks_of
from .sources import NothingToDraw, PanelTables, Scope, Source, SourceKind, no_guides
from .style import Style

SETTINGS = {"learning_rate": "learning rate", "momentum": "1 − momentum"}


def asks(raw: RawCurves, scope: Scope) -> list[Ask]:  # noqa: ARG001 - of one form for all figures
    """What the figure needs of the raw curves."""
    return [ask for panel in paper.FIGURE_1 for ask in asks_of(panel)]


def tables(source: Source, scope: Scope) -> list[PanelTables]:  # noqa: ARG001
    """The settings of the best trials.

    Raises
    ------
    NothingToDraw
        If the source has none of them.
    """
    if not isinstance(source, RawCurves):
        raise NothingToDraw("the settings of trials need the raw curves; run 'batchscience fetch' first")
    found, missing = [], []
    for panel in paper.FIGURE_1:
        try:
            found.append(settings_of(panel, source))
        except NothingToDraw as error:
            missing.append(error)
    if not found:
        raise missing[0]
    return found


def settings_of(panel: Panel, source: RawCurves) -> PanelTables:
    """Learning rate and momentum of the best trials of a panel's one series, with the search's limits."""
    series = panel.series[0]
    first = paper.trials_used(series.workload)
    search = source.answer(Ask("steps", series, first)).table
    best = source.steps(series, first=first)[["batch_size", "trial", "value"]]
    best = best.rename(columns={"value": "steps"})
    space = source.store.search_space(series.workload)
    parts = []
    for name, label in SETTINGS.items():
        if name not in search.columns:
            continue
        settings = search[["batch_size", "trial", name]].astype({"trial": "Int64"})
        part = best.merge(settings, on=["batch_size", "trial"], how="left").rename(columns={name: "value"})
        limits = space.loc[space["parameter"] == name, ["batch_size", "min_value", "max_value"]]
        part = part.merge(
            limits.rename(columns={"min_value": "low", "max_value": "high"}), "left", "batch_size"
        )
        numbers = part[["value", "low", "high"]].astype("Float64").to_numpy(np.float64, na_value=np.nan)
        if name == "momentum":
            numbers = 1 - numbers[:, [0, 2, 1]]
        part[["value", "low", "high"]] = numbers
        parts.append(part.assign(series=label, workload=series.workload, metric=series.metric))
    if not parts:
        raise NothingToDraw(f"{series.workload} has neither learning rate nor momentum among its settings")
    return PanelTables(panel, pd.concat(parts, ignore_index=True), no_guides())


def draw_settings_panel(table: PanelTables, ax: Axes) -> None:
    """Draw the settings of one workload's best trials."""
    panels.draw_series(table.points, ax=ax, y_label="Setting of the best trial", y_base=10)


NOTE = "The trial with the fewest steps to the goal; bands: the limits of the search."


def draw(tables: Sequence[PanelTables], *, kind: SourceKind, style: Style) -> Figure:
    """Draw the figure's panels."""
    return draw_grid(tables, kind=kind, style=style, columns=3, note=NOTE, draw=draw_settings_panel)
