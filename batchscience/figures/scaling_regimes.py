"""The three regimes of each workload of Figure 1 behind its curve, with the transition points."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .. import paper
from ..regimes import (
    TOLERANCE,
    TOLERANCES,
    Regimes,
    Transitions,
    as_table,
    regimes_of_curve,
    regimes_of_trials,
    sensitivity,
)
from . import panels
from .grid import draw_grid, y_label
from .raw import Ask, RawCurves, asks_of
from .sources import NothingToDraw, PanelTables, Scope, Source, SourceKind
from .style import Style


def asks(raw: RawCurves, scope: Scope) -> list[Ask]:  # noqa: ARG001 - of one form for all figures
    """What the figure needs of the raw curves."""
    return [ask for panel in paper.FIGURE_1 for ask in asks_of(panel)]


def tables(source: Source, scope: Scope) -> list[PanelTables]:  # noqa: ARG001
    """The curves of Figure 1 with their regimes.

    Raises
    ------
    NothingToDraw
        If the source has none of them.
    """
    found, missing = [], []
    for panel in paper.FIGURE_1:
        try:
            found.append(with_regimes(source.tables(panel), source))
        except NothingToDraw as error:
            missing.append(error)
    if not found:
        raise missing[0]
    return found


def with_regimes(table: PanelTables, source: Source, found: Regimes | None = None) -> PanelTables:
    """A panel of one series of steps, with its regimes and transition points added.

    They are computed unless somebody has `found` them.

    Notes
    -----
    The limits of a measured transition point are the range of its answers at tolerances from 10 to 50 %:
    how far it depends on what one calls equal.  The critical batch size is that of the knee law, with
    limits from resampled trials where the source has trials, and else from the scatter of the points.
    """
    found = found or _regimes(table, source)
    measured = found.measured
    if measured.perfect_to is None or measured.useful_to is None:
        return dataclasses.replace(table, notes=(*table.notes, str(found)))
    curve = _curve(table.points)
    steps = curve.set_index("batch_size")["steps"].astype(float)
    moves = sensitivity(curve, TOLERANCES)
    points = []
    for name, title in (("perfect", "end of perfect scaling"), ("useful", "maximum useful batch size")):
        size = float(getattr(measured, f"{name}_to"))
        points.append(
            {
                "transition": title,
                "batch_size": size,
                "value": float(steps[size]),
                "censored": bool(getattr(measured, f"{name}_censored")),
                "low": float(moves[f"{name}_to"].min()),
                "high": float(moves[f"{name}_to"].max()),
                "tolerance": measured.tolerance,
            }
        )
    answer = as_table([found]).assign(answer=str(found))
    critical = answer[["critical_batch_size", "critical_low", "critical_high"]]
    critical = critical.set_axis(["batch_size", "low", "high"], axis=1)
    more = {
        "spans": _spans(measured),
        "transitions": pd.DataFrame(points),
        "critical": critical[critical["batch_size"].notna()],
        "regimes": answer,
    }
    return dataclasses.replace(table, more=more)


def _regimes(table: PanelTables, source: Source) -> Regimes:
    series = table.panel.series[0]
    # The same seed for the same figure: its files do not change from run to run.
    rng = np.random.default_rng(0)
    if isinstance(source, RawCurves):
        search = source.answer(asks_of(table.panel)[0]).table
        with warnings.catch_warnings():
            # That the studies differ in their number of trials is among the notes of the panel.
            warnings.simplefilter("ignore", UserWarning)
            return regimes_of_trials(
                search[["batch_size", "trial", "steps", "after", "status"]],
                rng=rng,
                workload=series.workload,
                goal=series.goal,
            )
    return regimes_of_curve(_curve(table.points), rng=rng, workload=series.workload, goal=series.goal)


def _curve(points: pd.DataFrame) -> pd.DataFrame:
    columns = [name for name in ("batch_size", "value", "after") if name in points.columns]
    return points[columns].rename(columns={"value": "steps"})


def _spans(found: Transitions) -> pd.DataFrame:
    """A row is a regime, from its first to its last batch size."""
    assert found.perfect_to is not None
    assert found.useful_to is not None
    useful = max(found.useful_to, found.perfect_to)
    rows = [
        ("perfect scaling regime", found.smallest, found.perfect_to),
        ("diminishing returns regime", found.perfect_to, useful),
        ("maximal data parallelism", useful, found.largest),
    ]
    spans = pd.DataFrame(rows, columns=["regime", "low", "high"])
    return spans[spans["high"] > spans["low"]].reset_index(drop=True)


def draw_regime_panel(table: PanelTables, ax: Axes) -> None:
    """Draw the curve of one panel on its regimes."""
    points = table.points.rename(columns={"best_of_low": "low", "best_of_high": "high"})
    label = y_label(table.panel)
    if "spans" not in table.more:
        panels.draw_series(points, ax=ax, guides=table.guides, y_label=label)
        return
    spans, found = table.more["spans"], table.more["transitions"]
    panels.draw_regimes(points, spans, found, ax=ax, guides=table.guides, y_label=label)
    panels.draw_critical_batch_size(table.more["critical"], ax=ax)


NOTE = (
    f"Transition points measured on the curve made monotone, at a tolerance of {100 * TOLERANCE:.0f} %; "
    f"bars: their range at tolerances from {100 * TOLERANCES[0]:.0f} to {100 * TOLERANCES[-1]:.0f} %. "
    "Triangles (≥): the data end before the regime does. The critical batch size is where the asymptotes "
    "of a fitted knee law cross, with 90 % limits; none where the curve does not determine it."
)


def draw(tables: Sequence[PanelTables], *, kind: SourceKind, style: Style) -> Figure:
    """Draw the figure's panels."""
    columns = min(3, len(tables))
    return draw_grid(tables, kind=kind, style=style, columns=columns, note=NOTE, draw=draw_regime_panel)
