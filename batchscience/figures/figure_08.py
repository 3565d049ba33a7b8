"""Figure 8: effective learning rate of the best trial against batch size."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from .. import paper
from .grid import draw_grid
from .sources import PanelTables, SourceKind
from .style import Style

PANELS = paper.FIGURE_8


def draw(tables: Sequence[PanelTables], *, kind: SourceKind, style: Style) -> Figure:
    """Draw the figure's panels."""
    return draw_grid(
        tables,
        kind=kind,
        style=style,
        columns=3,
        note="Line: the effective learning rate of the trial with the fewest steps to the goal.",
    )


if __name__ == "__main__":
    from . import render_here

    render_here("figure_08")
