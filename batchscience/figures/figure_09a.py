"""Figure 9a: learning rate and momentum of the Transformer's trials on LM1B, trained for one epoch."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from .. import paper
from .grid import draw_grid
from .sources import PanelTables, SourceKind
from .style import Style

PANELS = paper.FIGURE_9A


def draw(tables: Sequence[PanelTables], *, kind: SourceKind, style: Style) -> Figure:
    """Draw the figure's panels."""
    return draw_grid(
        tables,
        kind=kind,
        style=style,
        columns=3,
        note="All complete and infeasible trials; goal within a budget of one epoch (30,301,028 examples). "
        "The axis below is the learning rate, which the notebook labels batch size.",
    )


if __name__ == "__main__":
    from . import render_here

    render_here("figure_09a")
