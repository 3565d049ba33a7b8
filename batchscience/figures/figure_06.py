"""Figure 6: steps to result on parts of a data set."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from .. import paper
from .grid import draw_grid
from .sources import PanelTables, SourceKind
from .style import Style

PANELS = paper.FIGURE_6


def draw(tables: Sequence[PanelTables], *, kind: SourceKind, style: Style) -> Figure:
    """Draw the figure's panels."""
    return draw_grid(
        tables,
        kind=kind,
        style=style,
        columns=2,
        note="Lines: the fewest steps of the first 100 complete trials.",
    )


if __name__ == "__main__":
    from . import render_here

    render_here("figure_06")
