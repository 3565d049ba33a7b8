"""Figures that are a grid of panels against batch size, or of the trials of studies: most of the paper's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..paper import Panel
from . import panels
from .sheet import Cell, sentences, sheet
from .sources import PanelTables, SourceKind
from .style import MOST_LOOKS, Look, Style, looks

_BAND_COLUMNS = ["best_of_low", "best_of_high", "value"]

CONTOURS = tuple(10.0**exponent for exponent in range(-8, 9))
"""Effective learning rates of the contours in panels of settings."""

COMMON = (
    *panels.OUTCOMES,
    panels.BEST_LABEL,
    panels.CONTOUR_LABEL,
    *panels.REGIME_COLORS,
    panels.CRITICAL_LABEL,
    *panels.GUIDE_DASHES,
    panels.GOAL_LABEL,
)
"""What legends explain once for a whole figure."""

_BAND = (
    "Band: 95 % limits of the median steps to result of a search of {k} trials, in which those that miss "
    "the goal or diverge count as failures."
)


def draw_grid(
    tables: Sequence[PanelTables],
    *,
    kind: SourceKind,
    style: Style,
    columns: int,
    note: str = "",
    ordered: bool = False,
    draw: Callable[[PanelTables, Axes], None] | None = None,
    panel_height: float | None = None,
    common: Sequence[str] = (),
) -> Figure:
    """Draw one panel for each table.

    Parameters
    ----------
    tables : sequence of PanelTables
        In reading order.
    kind : {"published", "archive", "shipped"}
        Where the numbers come from; the note at the foot says so.
    style : Style
        Sizes.
    columns : int
        Panels in a row.
    note : str
        What the lines are.
    ordered : bool, default False
        Whether the series of the panels have an order.
    draw : callable, optional
        Draws one table on axes; by default what suits its quantity.
    panel_height : float, optional
        In inches.
    common : sequence of str
        Further labels to explain once for the figure.
    """
    styles = _styles(tables, ordered=ordered)
    draw = draw or partial(draw_panel, ordered=ordered, styles=styles)
    cells = [Cell(table.panel.title, partial(draw, table)) for table in tables]
    notes = [note, origin(kind)]
    banded = [table.points for table in tables if "best_of_low" in table.points]
    limits = pd.concat([pd.DataFrame(), *(points[_BAND_COLUMNS] for points in banded)])
    if len(limits) and limits.notna().all(axis=1).any():
        text = _BAND.format(k=max(int(points["k"].max()) for points in banded))
        if limits[limits["value"].notna()].isna().to_numpy().any():
            text += " None is drawn where that search may fail or the trials are too few."
        notes.insert(1, text)
    if any(_beyond(table) for table in tables):
        notes.insert(1, "Carets on an edge: points beyond it.")
    splits = {series.metric.partition("/")[0] for table in tables for series in table.panel.series}
    if splits in ({"train"}, {"test"}):
        notes.append(f"all on {'training' if splits == {'train'} else 'test'} metrics")
    notes += [text for table in tables for text in table.notes]
    return sheet(
        cells,
        columns=columns,
        style=style,
        note=sentences(notes),
        panel_height=panel_height,
        common=(*common, *COMMON),
    )


def _styles(tables: Sequence[PanelTables], *, ordered: bool) -> dict[str, Look] | None:
    """One look for each label of the figure, if panels share labels."""
    labels = [label for table in tables for label in dict.fromkeys(table.points.get("series", ()))]
    names = list(dict.fromkeys(labels))
    if len(names) == len(labels) or len(names) > MOST_LOOKS:
        return None
    return dict(zip(names, looks(len(names), ordered=ordered), strict=True))


def _beyond(table: PanelTables) -> bool:
    limits = table.panel.y_limits
    if table.panel.quantity != "best_value" or limits is None or table.points.empty:
        return False
    values = table.points["value"].astype(float)
    return bool(((values < limits[0]) | (values > limits[1])).any())


def origin(kind: SourceKind) -> str:
    """Where the numbers come from, in words."""
    if kind == "published":
        return "Points: read from the released notebook of Shallue et al. (2019)."
    if kind == "shipped":
        return "Computed from studies trained with this package, which come with it: no data of the paper."
    return "Computed from the raw curves."


def y_label(panel: Panel) -> str:
    """The label of a panel's vertical axis."""
    if panel.quantity == "steps":
        return "Steps"
    if panel.quantity == "relative_steps":
        return f"Steps / (steps at B = {panel.normalized_at:,})"
    if panel.quantity == "effective_learning_rate":
        return "Learning rate / (1 − momentum)"
    return best_label(panel.series[0].metric)


def metric_label(metric: str) -> str:
    """“Validation error” and its like, from the name of a metric."""
    split, _, name = metric.partition("/")
    part = {"train": "Training", "val": "Validation", "test": "Test"}.get(split)
    if part is None or not name:
        return metric
    words = {"classification_error": "error"}.get(name, name.removesuffix("_error").replace("_", " "))
    return f"{part} {words}"


def best_label(metric: str) -> str:
    """“Best validation error” and its like, from the name of a metric."""
    label = metric_label(metric)
    return f"Best {label if label == metric else label[0].lower() + label[1:]}"


def draw_panel(table: PanelTables, ax: Axes, *, ordered: bool = False, **changes: Any) -> None:
    """Draw one table in the way that suits what it shows."""
    panel = table.panel
    if table.points.empty:
        panels.draw_absence("not available (see the note)", ax=ax)
        return
    points = table.points
    if panel.quantity == "settings":
        panels.draw_trials(points, ax=ax, levels=CONTOURS, x_limits=panel.x_limits, y_limits=panel.y_limits)
        return
    best = panel.quantity == "best_value"
    if "best_of_low" in points:
        points = points.rename(columns={"best_of_low": "low", "best_of_high": "high"})
    settings: dict[str, Any] = {
        "y_label": y_label(panel),
        "y_scale": "linear" if best else "log",
        "x_limits": panel.x_limits,
        "y_limits": panel.y_limits,
        # Values blow up where training is too short; the part that the paper shows is what differs.
        "keep_limits": best,
        "ordered": ordered,
        **changes,
    }
    panels.draw_series(points, ax=ax, guides=table.guides if len(table.guides) else None, **settings)
