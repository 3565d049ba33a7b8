"""Figure 4: steps to result with several optimizers."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from .. import paper
from .grid import draw_grid
from .sources import PanelTables, SourceKind
from .style import Style

PANELS = paper.FIGURE_4


def draw(tables: Sequence[PanelTables], *, kind: SourceKind, style: Style) -> Figure:
    """Draw the figure's panels."""
    return draw_grid(
        tables,
        kind=kind,
        style=style,
        columns=3,
        note="Lines: the fewest steps of the first 100 complete trials (50 for SGD on LM1B).",
    )


if __name__ == "__main__":
    from . import render_here

    render_here("figure_04")
