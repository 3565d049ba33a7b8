"""Figure 11: best value reached within a budget of steps or of epochs."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from .. import paper
from .grid import draw_grid
from .sources import PanelTables, SourceKind
from .style import Style

PANELS = paper.FIGURE_11


def draw(tables: Sequence[PanelTables], *, kind: SourceKind, style: Style) -> Figure:
    """Draw the figure's panels."""
    return draw_grid(
        tables,
        kind=kind,
        style=style,
        columns=2,
        note="A batch size takes part only where its trials trained for as long as the budget.",
        ordered=True,
    )


if __name__ == "__main__":
    from . import render_here

    render_here("figure_11")
