"""Figure 7: label smoothing, ResNet-50 on ImageNet."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from .. import paper
from .grid import draw_grid
from .sources import PanelTables, SourceKind
from .style import Style

PANELS = paper.FIGURE_7


def draw(tables: Sequence[PanelTables], *, kind: SourceKind, style: Style) -> Figure:
    """Draw the figure's panels."""
    return draw_grid(
        tables,
        kind=kind,
        style=style,
        columns=2,
        note="The first 100 complete trials of each study, split by their label smoothing.",
        ordered=True,
    )


if __name__ == "__main__":
    from . import render_here

    render_here("figure_07")
