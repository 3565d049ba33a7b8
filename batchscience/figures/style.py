"""How figures look: the rc settings of each style, figure sizes, and the look of each series."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

import seaborn as sns
from matplotlib import rc_context

StyleName = Literal["paper", "talk"]

# Text as outlines in SVG: it looks the same where the font is missing.  Type 42 keeps PDF text searchable.
_COMMON: Mapping[str, Any] = {
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "mathtext.fontset": "dejavusans",
    "pdf.fonttype": 42,
    "svg.fonttype": "path",
    "svg.hashsalt": "batchscience",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.edgecolor": "0.3",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.formatter.use_mathtext": True,
    "grid.color": "0.86",
    "grid.linestyle": "-",
    "xtick.direction": "out",
    "ytick.direction": "out",
    "legend.frameon": False,
    "legend.handlelength": 2.4,
    "legend.columnspacing": 1.0,
    "legend.labelspacing": 0.25,
    "legend.borderpad": 0.1,
    "legend.borderaxespad": 0.2,
    "path.simplify": True,
}


@dataclass(frozen=True, slots=True)
class Style:
    """Sizes of a kind of figure, in inches and points.

    Attributes
    ----------
    width : float
        Width of the whole figure; a paper's text width, or a slide's.
    panel_height : float
        Height of a panel's axes with its title and axis labels when there are three in a row.
    font, small : float
        Size of titles and labels, and of ticks, legends and notes.
    line, marker : float
        Width of lines and size of markers.
    dpi : int
        Of PNG files.
    """

    width: float
    panel_height: float
    font: float
    small: float
    line: float
    marker: float
    dpi: int

    def applied(self) -> AbstractContextManager[None]:
        """A context in which this style holds; nothing is set beyond it."""
        return rc_context(self.rc())  # type: ignore[arg-type]  # the stub wants the names as literals

    def rc(self) -> dict[str, Any]:
        """The settings in matplotlib's names."""
        return {
            **_COMMON,
            "font.size": self.font,
            "axes.titlesize": self.font,
            "axes.labelsize": self.font,
            "axes.linewidth": 0.5 * self.line,
            "grid.linewidth": 0.4 * self.line,
            "xtick.labelsize": self.small,
            "ytick.labelsize": self.small,
            "xtick.major.width": 0.5 * self.line,
            "ytick.major.width": 0.5 * self.line,
            "xtick.major.size": 2 * self.line,
            "ytick.major.size": 2 * self.line,
            "xtick.minor.size": 1.2 * self.line,
            "ytick.minor.size": 1.2 * self.line,
            "legend.fontsize": self.small,
            "lines.linewidth": self.line,
            "lines.markersize": self.marker,
            "lines.markeredgewidth": 0.3 * self.line,
            "savefig.dpi": self.dpi,
            "figure.dpi": self.dpi,
            "hatch.linewidth": 0.5 * self.line,
        }


STYLES: Mapping[StyleName, Style] = {
    "paper": Style(width=6.75, panel_height=1.9, font=7.5, small=6.5, line=1.1, marker=3.8, dpi=200),
    "talk": Style(width=13.0, panel_height=3.6, font=14, small=12, line=2.0, marker=7.0, dpi=110),
}


@dataclass(frozen=True, slots=True)
class Look:
    """How one series is drawn: any one of the three tells it from the others."""

    color: tuple[float, float, float]
    marker: str
    dashes: tuple[float, ...]

    @property
    def linestyle(self) -> tuple[int, tuple[float, ...] | None]:
        """The dashes in matplotlib's form (offset, on–off lengths)."""
        return (0, self.dashes or None)


_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p")
_DASHES: tuple[tuple[float, ...], ...] = (
    (),
    (4, 1.2),
    (1.2, 1),
    (5, 1.2, 1.2, 1.2),
    (7, 1.5),
    (2.5, 1),
    (5, 1, 1, 1, 1, 1),
    (1, 2),
    (8, 1, 2, 1),
    (3, 2),
)

# Order of seaborn's colour-blind palette by which neighbours differ in lightness, so that two or three
# series stay apart in a grey print.
_CATEGORIES = (0, 1, 2, 3, 4, 7, 5, 9, 6, 8)


MOST_LOOKS = len(_MARKERS)
"""So many series have colours and markers that no other has."""


def looks(count: int, *, ordered: bool = False) -> tuple[Look, ...]:
    """A look for each of some series.

    Parameters
    ----------
    count : int
        Number of series; beyond ten the markers and dashes come again, in other pairs.
    ordered : bool, default False
        Whether the series have an order (goals, budgets, batch sizes); then the colours go from dark to
        light, in grey too.

    Returns
    -------
    tuple of Look
    """
    if ordered:
        # The lightest end of the map is hard to see on white.
        colors = sns.color_palette("viridis", int(count * 1.15) + 1)[:count]
    else:
        palette = sns.color_palette("colorblind")
        colors = [palette[_CATEGORIES[i % len(_CATEGORIES)]] for i in range(count)]
    return tuple(
        Look(
            (float(color[0]), float(color[1]), float(color[2])),
            _MARKERS[i % len(_MARKERS)],
            _DASHES[(i + i // len(_MARKERS)) % len(_DASHES)],
        )
        for i, color in enumerate(colors)
    )


ANNOTATION = (0.25, 0.25, 0.25)
"""Colour of guides, notes and other things that are no data."""

PERFECT, DIMINISHING, MAXIMAL = (0.80, 0.89, 0.96), (0.97, 0.93, 0.80), (0.90, 0.90, 0.90)
"""Backgrounds of the three regimes; light enough for text and lines on them."""

ACHIEVED, MISSED, DIVERGED = (0.004, 0.451, 0.698), (0.871, 0.561, 0.02), (0.35, 0.35, 0.35)
"""Trials that met the goal within the budget, that did not, and that diverged."""
