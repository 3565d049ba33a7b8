"""A sheet: a grid of panels with their titles, legends below them, and a note at the foot."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from .panels import plain
from .style import Style

# Mean width of a character, as a part of the font size, of the fonts here.
_CHARACTER = 0.57
_HANDLE = 4.0
_LINE = 1.42


@dataclass(frozen=True, slots=True)
class Cell:
    """One panel of a sheet: its title, and what draws it on the axes it gets."""

    title: str
    draw: Callable[[Axes], None]


def sheet(
    cells: Sequence[Cell],
    *,
    columns: int,
    style: Style,
    note: str = "",
    panel_height: float | None = None,
    narrow: bool = False,
    common: Sequence[str] = (),
) -> Figure:
    """Draw panels in a grid.

    Parameters
    ----------
    cells : sequence of Cell
        Row by row; the last row may be incomplete.
    columns : int
        Panels in a row.
    style : Style
        Sizes.  Its `Style.rc` must be in force.
    note : str
        Text at the foot: what lines and bands mean.
    panel_height : float, optional
        In inches; by default the style's, and more where panels are wider.
    narrow : bool, default False
        Whether a single column should be narrower than the sheet.
    common : sequence of str
        Legend labels to explain once for the sheet, in this order, in whichever panels they are.

    Returns
    -------
    matplotlib.figure.Figure

    Notes
    -----
    A legend inside the axes covers data sooner or later, so legends have rows of their own, below their
    panels, or once at the bottom where all panels have the same.
    """
    rows = math.ceil(len(cells) / columns)
    width = style.width * (0.62 if narrow and columns == 1 else 1.0)
    if panel_height is None:
        panel_height = style.panel_height * {1: 1.6, 2: 1.25}.get(columns, 1.0)
    inner = width / columns - 5.5 * style.font / 72
    figure = Figure(figsize=(width, rows * panel_height), layout="constrained")
    grid = figure.add_gridspec(2 * rows, columns)
    axes: list[Axes] = []
    for i, cell in enumerate(cells):
        ax = figure.add_subplot(grid[2 * (i // columns), i % columns])
        cell.draw(ax)
        ax.set_title("\n".join(_wrapped(cell.title, inner, style.font)))
        axes.append(ax)
    _drop_repeated_labels(axes, columns)

    legends = [_entries(ax) for ax in axes]
    shared = _shared(legends, common)
    heights: list[float] = []
    for row in range(rows):
        inside = range(row * columns, min((row + 1) * columns, len(cells)))
        needed = 0.0
        for i in inside:
            own = {key: entry for key, entry in legends[i].items() if key not in shared}
            if not own:
                continue
            under = figure.add_subplot(grid[2 * row + 1, i % columns])
            needed = max(needed, _legend_below(under, own, inner, style))
        heights += [panel_height, needed or 0.001]
    legend = _legend_labels(shared, width - 0.2, style)
    lines = _wrapped(note, width - 0.2, style.small) if note else []
    foot = len(lines) * style.small * _LINE / 72
    below = foot + (legend.height if shared else 0)
    total = sum(heights) + below
    grid.set_height_ratios(heights)
    figure.set_size_inches(width, total)
    # Outside the layout: a line that is a little too wide must not push the panels together.
    if shared:
        figure.legend(
            [handle for handle, _ in shared.values()],
            legend.labels,
            loc="upper center",
            bbox_to_anchor=(0.5, (below - 0.3 * style.small / 72) / total),
            ncols=legend.columns,
        ).set_in_layout(False)
    if lines:
        figure.text(
            0.1 / width,
            0.05 / total,
            "\n".join(lines),
            ha="left",
            va="bottom",
            fontsize=style.small,
            linespacing=1.25,
            color="0.3",
        ).set_in_layout(False)
    engine: Any = figure.get_layout_engine()
    engine.set(
        w_pad=0.03, h_pad=0.045, hspace=0.0, wspace=0.02, rect=(0, below / total, 1, 1 - below / total)
    )
    return figure


_Entry = tuple[Any, str]


def _entries(ax: Axes) -> dict[tuple[str, str], _Entry]:
    """The legend entries of a panel, by label and look, each once."""
    found: dict[tuple[str, str], _Entry] = {}
    for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
        artist: Any = handle
        color = artist.get_color() if hasattr(artist, "get_color") else artist.get_facecolor()
        marker = artist.get_marker() if hasattr(artist, "get_marker") else ""
        found.setdefault((label, f"{_hex(color)} {marker}"), (handle, label))
    return found


def _hex(color: Any) -> str:
    # A collection of lines has an array of colours, one row for each.
    return to_hex(color[0] if getattr(color, "ndim", 1) == 2 else color)


def _shared(
    legends: Sequence[dict[tuple[str, str], _Entry]], common: Sequence[str]
) -> dict[tuple[str, str], _Entry]:
    """The entries to show once for all panels: the common ones, and the others if all have the same."""
    if len(legends) == 1:
        return legends[0]
    place = {label: i for i, label in enumerate(common)}
    found = {key: entry for legend in legends for key, entry in legend.items() if key[0] in place}
    found = dict(sorted(found.items(), key=lambda item: place[item[0][0]]))
    others = [{key: legend[key] for key in legend if key[0] not in common} for legend in legends]
    if all(legend.keys() == others[0].keys() for legend in others):
        return {**others[0], **found}
    return found


@dataclass(frozen=True, slots=True)
class _Legend:
    """Wrapped labels, the number of columns that fit, and the height in inches."""

    labels: list[str]
    columns: int
    height: float


def _legend_labels(entries: dict[tuple[str, str], _Entry], width: float, style: Style) -> _Legend:
    em = style.small / 72
    most = max(12, int(width / em / _CHARACTER - _HANDLE / _CHARACTER))
    labels = ["\n".join(textwrap.wrap(label, most) or [label]) for _, label in entries.values()]
    longest = max((len(line) for label in labels for line in label.split("\n")), default=0)
    columns = max(1, min(len(labels), int(width / em / (longest * _CHARACTER + _HANDLE))))
    # Entries run down the columns, and a row is as high as its highest entry.
    per_column = math.ceil(len(labels) / columns)
    tallest = max(
        (
            sum(label.count("\n") + 1 for label in labels[start : start + per_column])
            for start in range(0, len(labels), per_column or 1)
        ),
        default=0,
    )
    return _Legend(labels, columns, (tallest * _LINE + 0.9) * em)


def _legend_below(ax: Axes, entries: dict[tuple[str, str], _Entry], width: float, style: Style) -> float:
    """Put a legend into otherwise empty axes; returns the height it needs, in inches."""
    ax.set_axis_off()
    legend = _legend_labels(entries, width, style)
    ax.legend(
        [handle for handle, _ in entries.values()],
        legend.labels,
        loc="upper center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=legend.columns,
    )
    return legend.height


def sentences(texts: Iterable[str]) -> str:
    """Texts as sentences, each once; a name at the beginning keeps its small letter."""
    written = []
    for text in dict.fromkeys(text for text in texts if text):
        first, _, rest = text.partition(" ")
        if not set("/_") & set(first):
            first = first[:1].upper() + first[1:]
        sentence = f"{first} {rest}".strip()
        written.append(sentence if sentence.endswith(".") else f"{sentence}.")
    return " ".join(written)


def _drop_repeated_labels(axes: Sequence[Axes], columns: int) -> None:
    """Keep an axis label where it differs from that of the panel to its left, or below it."""
    texts = [(ax.get_xlabel(), ax.get_ylabel()) for ax in axes]
    for i, ax in enumerate(axes):
        if i % columns and texts[i][1] == texts[i - 1][1]:
            ax.set_ylabel("")
        if i + columns < len(axes) and texts[i][0] == texts[i + columns][0]:
            ax.set_xlabel("")


def _wrapped(text: str, width: float, size: float) -> list[str]:
    return textwrap.wrap(plain(text), max(12, int(width * 72 / (size * _CHARACTER))))
