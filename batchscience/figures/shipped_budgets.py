"""The studies that come with the package: best value in a budget of steps or examples, as in Figure 11."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ..comparisons import WorkloadName
from ..goals import Budget
from ..paper import Panel, Series
from .grid import draw_grid
from .raw import Ask, RawCurves, asks_of
from .shipped import ShippedWorkload, groups, unbroken
from .sources import PanelTables, Scope, Source, SourceKind
from .style import Style

MOST_BUDGETS = 8
FEWEST_BATCH_SIZES = 3
"""A budget is drawn where the trials of so many batch sizes trained for as long."""
SHOWN = 0.85
"""The part of the values that lies within the axes: they blow up where training is too short."""

_PREFERENCE = {"nesterov_momentum": 2, "momentum": 1}


def asks(raw: RawCurves, scope: Scope) -> list[Ask]:  # noqa: ARG001 - of one form for all figures
    """What the figure needs of the raw curves."""
    return [ask for panel in _panels(raw) for ask in asks_of(panel)]


def _panels(source: Source) -> list[Panel]:
    """For each data set and model a panel of budgets in steps and one in examples.

    Figure 11 shows Nesterov momentum; without it, momentum or else the first optimizer takes its place.
    """
    found = []
    for row, group in enumerate(groups(source)):
        workload = max(group, key=lambda each: _PREFERENCE.get(WorkloadName.of(each.name).optimizer, 0))
        assert isinstance(source, RawCurves)
        studies = source.store.studies(workload.name)
        steps = studies["train_steps"].astype("Float64").fillna(0)
        for column, (unit, lengths) in enumerate(
            (("steps", steps), ("examples", steps * studies["batch_size"]))
        ):
            series = tuple(_series(workload, unit, budget) for budget in budgets(lengths))
            title = f"{workload.title}: {unbroken(f'budget of {unit}')}"
            found.append(Panel("shipped", row, column, title, "best_value", series))
    return found


def budgets(lengths: Iterable[float]) -> list[int]:
    """Round budgets (1, 2 or 5 times a power of ten) up to the largest that enough studies cover.

    Parameters
    ----------
    lengths : iterable of float
        How long the trials of each study trained.

    Examples
    --------
    >>> budgets([60_000, 30_000, 15_000, 400])
    [50, 100, 200, 500, 1000, 2000, 5000, 10000]
    >>> budgets([7, 7])
    [1, 2, 5]
    """
    ordered = sorted(lengths, reverse=True)
    if not ordered:
        return []
    longest = ordered[min(FEWEST_BATCH_SIZES, len(ordered)) - 1]
    rounded = (factor * 10**power for power in range(12) for factor in (1, 2, 5))
    return [budget for budget in rounded if budget <= longest][-MOST_BUDGETS:]


def _series(workload: ShippedWorkload, unit: str, budget: int) -> Series:
    limit = Budget(steps=budget) if unit == "steps" else Budget(examples=budget)
    return Series(f"{budget:,} {unit}", workload.name, workload.goal, budget=limit)


def tables(source: Source, scope: Scope) -> list[PanelTables]:  # noqa: ARG001
    """The best values of each batch size within each budget.

    Raises
    ------
    NothingToDraw
        If the source holds no curves.
    """
    found = [source.tables(panel) for panel in _panels(source)]
    return [
        dataclasses.replace(table, panel=dataclasses.replace(table.panel, y_limits=limits))
        for left, right in zip(found[::2], found[1::2], strict=True)
        for limits in [_limits(left, right)]
        for table in (left, right)
    ]


def _limits(*tables: PanelTables) -> tuple[float, float]:
    """Limits of the vertical axes of a row."""
    values = pd.concat([table.points["value"] for table in tables]).dropna().to_numpy(np.float64)
    goal = tables[0].panel.series[0].goal
    best_to_worst = np.quantile(values, [0, SHOWN] if goal is None or not goal.maximize else [1 - SHOWN, 1])
    low, high = (float(end) for end in best_to_worst)
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return low - margin, high + margin


NOTE = "A batch size takes part only where its trials trained for as long as the budget."


def draw(tables: Sequence[PanelTables], *, kind: SourceKind, style: Style) -> Figure:
    """Draw the figure's panels, a row for each data set and model."""
    return draw_grid(tables, kind=kind, style=style, columns=2, note=NOTE, ordered=True)
