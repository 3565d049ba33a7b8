"""The studies that come with the package: gradient noise scale beside the measured critical batch size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..paper import Panel
from ..shipped import noise_scale, noise_scale_by_step
from . import panels
from .grid import draw_grid
from .raw import Ask, RawCurves
from .shipped import groups
from .sources import NothingToDraw, PanelTables, Scope, Source, SourceKind, no_guides
from .style import Look, Style, looks

NOISE, CRITICAL = "gradient noise scale at the goal (95 % limits)", "critical batch size (90 % limits)"


def asks(raw: RawCurves, scope: Scope) -> list[Ask]:  # noqa: ARG001 - of one form for all figures
    """Nothing: the noise scale is not in the tables, and stands in one of its own."""
    return []


def tables(source: Source, scope: Scope) -> list[PanelTables]:  # noqa: ARG001
    """For each data set and model noise scales by step, and those at the goal beside critical batch sizes.

    Raises
    ------
    NothingToDraw
        If no shipped workload measured its noise scale.
    """
    found: list[PanelTables] = []
    by_step, at_goal = noise_scale_by_step().dropna(subset=["noise_scale"]), noise_scale()
    for group in groups(source):
        names = {each.name: each.optimizer for each in group}
        measured = by_step[by_step["workload"].isin(names)]
        beside = at_goal[at_goal["workload"].isin(names)].set_index("workload")
        if measured.empty:
            continue
        # Of each workload one study: that of the row at the goal.
        parts = [
            measured[(measured["workload"] == name) & (measured["batch_size"] == beside["batch_size"][name])]
            for name in names
            if name in beside.index
        ]
        curves = pd.concat(parts, ignore_index=True).rename(
            columns={"noise_scale": "value", "noise_low": "low", "noise_high": "high"}
        )
        curves = curves.assign(series=curves["workload"].map(names))
        series = tuple(each.series(each.optimizer) for each in group)
        row = len(found) // 2
        left = Panel("shipped", row, 0, f"{group[0].group}, best trial in training", "noise_scale", series)
        right = Panel("shipped", row, 1, "Prediction and measurement", "noise_scale", series)
        gone = [each.title for each in group if each.name not in set(curves["workload"])]
        notes = tuple(f"{title}: no noise scale was measured" for title in gone)
        rows = [number for name in beside.index for number in _beside(names[name], name, beside.loc[name])]
        found += [
            PanelTables(left, curves, no_guides()),
            PanelTables(right, _ordered(pd.DataFrame(rows), list(names)), no_guides(), notes),
        ]
    if not found:
        raise NothingToDraw("the shipped studies measured no noise scale")
    return found


def _ordered(rows: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    return rows.sort_values("workload", key=lambda column: column.map(names.index), kind="stable")


def _beside(label: str, workload: str, row: pd.Series[Any]) -> list[dict[str, object]]:
    """The noise scale and the critical batch size of a workload, each with its limits."""
    common = {"label": label, "workload": workload, "metric": row["metric"], "goal": float(row["goal"])}
    ratio = float(row["ratio"])
    noise = {name: float(row[column]) for name, column in _NOISE.items()}
    critical = {name: float(row[column]) for name, column in _CRITICAL.items()}
    step = float("nan") if pd.isna(row["step"]) else float(row["step"])
    text = "" if math.isnan(ratio) else f"{ratio:{'.1f' if ratio >= 1 else '.2g'}} times"
    return [
        {**common, "series": NOISE, **noise, "step": step, "ratio": ratio, "text": text},
        {**common, "series": CRITICAL, **critical, "step": math.nan, "ratio": math.nan, "text": ""},
    ]


_NOISE = {"value": "noise_scale", "low": "noise_low", "high": "noise_high"}
_CRITICAL = {"value": "critical_batch_size", "low": "critical_low", "high": "critical_high"}


def _draw(table: PanelTables, ax: Axes, *, styles: Mapping[str, Look]) -> None:
    if table.panel.column == 1:
        panels.draw_intervals(table.points, ax=ax, x_label="Examples", styles=styles)
        # From one power of two to another, so that two of them are named on the axis.
        low, high = (math.log2(limit) for limit in ax.get_xlim())
        ax.set_xlim(2 ** math.floor(low), 2 ** math.ceil(high))
        return
    # Steps stand where other figures have the batch size.
    points = table.points.drop(columns="batch_size").rename(columns={"step": "batch_size"})
    panels.draw_series(
        points, ax=ax, x_label="Step", y_label="Gradient noise scale (examples)", styles=styles
    )


NOTE = (
    "The noise scale tr(Σ) / |G|² of McCandlish et al. (2018) predicts the critical batch size. Left: at the "
    "steps where it was measured, with 95 % limits. Right: at the measured step nearest to that at which the "
    "best trial reached the goal, and how many times the critical batch size of the fitted knee law it is."
)


def draw(tables: Sequence[PanelTables], *, kind: SourceKind, style: Style) -> Figure:
    """Draw the figure's panels, a row for each data set and model."""
    lines = list(dict.fromkeys(name for table in tables[::2] for name in table.points["series"]))
    names = [*lines, NOISE, CRITICAL]
    styles = dict(zip(names, looks(len(names)), strict=True))
    most = max(table.points["label"].nunique() for table in tables[1::2])
    return draw_grid(
        tables,
        kind=kind,
        style=style,
        columns=2,
        note=NOTE,
        draw=partial(_draw, styles=styles),
        panel_height=max(1.25 * style.panel_height, style.font / 72 * (6 * most + 4)),
        common=names,
    )
