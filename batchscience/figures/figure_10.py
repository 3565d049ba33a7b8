"""Figure 10: learning rate and momentum of the trials of four sizes of Transformers on LM1B."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from .. import paper
from .grid import draw_grid
from .sources import PanelTables, SourceKind
from .style import Style

PANELS = paper.FIGURE_10


def draw(tables: Sequence[PanelTables], *, kind: SourceKind, style: Style) -> Figure:
    """Draw the figure's panels."""
    return draw_grid(
        tables,
        kind=kind,
        style=style,
        columns=2,
        note="All complete and infeasible trials at batch size 1,024; goal within a budget of 50,000 steps. "
        "The axis below is the learning rate, which the notebook labels batch size.",
    )


if __name__ == "__main__":
    from . import render_here

    render_here("figure_10")
