"""The studies that come with the package: optimizers on one pair of axes, and their critical batch sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..comparisons import compare
from ..paper import Panel
from ..regimes import Regimes
from . import panels
from .grid import draw_grid, draw_panel
from .raw import Ask, RawCurves, asks_of
from .shipped import ShippedWorkload, goal_in_words, groups, regimes_of
from .sources import NothingToDraw, PanelTables, Scope, Source, SourceKind, no_guides
from .style import Look, Style, looks

CONFIDENCE = 0.9


def asks(raw: RawCurves, scope: Scope) -> list[Ask]:  # noqa: ARG001 - of one form for all figures
    """What the figure needs of the raw curves."""
    return [ask for row, group in enumerate(_groups(raw)) for ask in asks_of(_steps_panel(row, group))]


def _groups(source: Source) -> list[list[ShippedWorkload]]:
    """The workloads of each data set and model that was trained with more than one optimizer."""
    return [group for group in groups(source) if len(group) > 1]


def _steps_panel(row: int, group: Sequence[ShippedWorkload]) -> Panel:
    series = tuple(each.series(each.optimizer) for each in group)
    title = f"{group[0].group}: {goal_in_words(group[0].goal)}"
    return Panel("shipped", row, 0, title, "steps", series, dashed=series[0].label)


def tables(source: Source, scope: Scope) -> list[PanelTables]:  # noqa: ARG001
    """For each data set and model a table of steps and one of critical batch sizes.

    Raises
    ------
    NothingToDraw
        If no data set and model was trained with more than one optimizer.
    """
    found = []
    for row, group in enumerate(_groups(source)):
        assert isinstance(source, RawCurves)
        panel = _steps_panel(row, group)
        steps = source.tables(panel)
        answers = [regimes_of(source, each, confidence_level=CONFIDENCE) for each in group]
        ratios = compare(answers)
        points = pd.DataFrame(
            [
                _critical(each, answer, ratio, group[0].optimizer)
                for each, answer, ratio in zip(group, answers, ratios.to_dict("records"), strict=True)
            ]
        )
        title = f"Critical batch size, and ratio to that of {group[0].optimizer}"
        beside = Panel("shipped", row, 1, title, "critical_batch_size", panel.series)
        found += [steps, PanelTables(beside, points, no_guides())]
    if not found:
        raise NothingToDraw("no data set and model of the shipped studies was trained with two optimizers")
    return found


def _critical(
    workload: ShippedWorkload, answer: Regimes, ratio: Mapping[object, object], reference: str
) -> dict[str, object]:
    """The critical batch size of one workload, with its limits and its ratio to the first of the group."""
    low = high = value = math.nan
    if answer.law is not None and answer.law.determined:
        limits = answer.limits("critical")
        value = answer.law.critical_batch_size
        low, high = (math.nan if end is None else end for end in (limits.low, limits.high))
    ratios = [float(ratio[f"critical_ratio{end}"]) for end in ("", "_low", "_high")]  # type: ignore[arg-type]
    text = f"{value:,.0f}"
    if workload.optimizer != reference and not math.isnan(ratios[0]):
        text += f", {ratios[0]:.1f} × {reference} ({_between(*ratios[1:])})"
    return {
        "label": workload.optimizer,
        "series": workload.optimizer,
        "workload": workload.name,
        "metric": workload.goal.metric,
        "goal": workload.goal.threshold,
        "value": value,
        "low": low,
        "high": high,
        "ratio": ratios[0],
        "ratio_low": ratios[1],
        "ratio_high": ratios[2],
        "confidence_level": answer.confidence_level,
        "text": text,
    }


def _between(low: float, high: float) -> str:
    if math.isnan(low):
        return "no limits" if math.isnan(high) else f"up to {high:.1f}"
    return f"from {low:.1f}" if math.isnan(high) else f"{low:.1f} to {high:.1f}"


def _draw(table: PanelTables, ax: Axes, *, styles: Mapping[str, Look]) -> None:
    if table.panel.quantity == "critical_batch_size":
        panels.draw_intervals(table.points, ax=ax, x_label="Critical batch size", styles=styles, legend=False)
    else:
        draw_panel(table, ax, styles=styles)


NOTE = (
    f"Right: the critical batch size of the fitted knee law with {100 * CONFIDENCE:g} % limits, and its "
    "ratio with the limits of the ratio; limits that include 1 are no evidence of a difference."
)


def draw(tables: Sequence[PanelTables], *, kind: SourceKind, style: Style) -> Figure:
    """Draw the figure's panels, a row for each data set and model."""
    names = list(dict.fromkeys(name for table in tables for name in table.points["series"]))
    styles = dict(zip(names, looks(len(names)), strict=True))
    return draw_grid(
        tables,
        kind=kind,
        style=style,
        columns=2,
        note=NOTE,
        draw=partial(_draw, styles=styles),
        common=names,
    )
