"""The studies that come with the package: the curve of each workload on its three regimes."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from ..paper import Panel
from .grid import draw_grid
from .raw import Ask, RawCurves, asks_of
from .scaling_regimes import NOTE, draw_regime_panel, with_regimes
from .shipped import ShippedWorkload, goal_in_words, regimes_of, workloads
from .sources import PanelTables, Scope, Source, SourceKind
from .style import Style

COLUMNS = 3


def asks(raw: RawCurves, scope: Scope) -> list[Ask]:  # noqa: ARG001 - of one form for all figures
    """What the figure needs of the raw curves."""
    return [ask for i, workload in enumerate(workloads(raw)) for ask in asks_of(_panel(i, workload))]


def _panel(place: int, workload: ShippedWorkload) -> Panel:
    title = f"{workload.title}: {goal_in_words(workload.goal)}"
    row, column = divmod(place, COLUMNS)
    return Panel("shipped", row, column, title, "steps", (workload.series(),), dashed="")


def tables(source: Source, scope: Scope) -> list[PanelTables]:  # noqa: ARG001
    """Steps to result with regimes and law of each workload.

    Raises
    ------
    NothingToDraw
        If the source holds no curves.
    """
    found = []
    for i, workload in enumerate(workloads(source)):
        assert isinstance(source, RawCurves)
        table = source.tables(_panel(i, workload))
        found.append(with_regimes(table, source, regimes_of(source, workload)))
    return found


def draw(tables: Sequence[PanelTables], *, kind: SourceKind, style: Style) -> Figure:
    """Draw the figure's panels."""
    columns = min(COLUMNS, len(tables))
    return draw_grid(tables, kind=kind, style=style, columns=columns, note=NOTE, draw=draw_regime_panel)
