"""Draw figures into files: choose the source, draw, write image files and the numbers beside them."""

from __future__ import annotations

import importlib
import io
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from .. import __version__
from ..errors import BatchScienceError
from ..paper import Panel
from . import Entry, Format, SourceName, StyleName
from .sources import NothingToDraw, PanelTables, PublishedPoints, Source
from .splits import on_split
from .style import STYLES

if TYPE_CHECKING:
    from ..goals import Goal
    from ..store import Store

# Without these entries matplotlib writes the time of day into the file.
_METADATA: Mapping[Format, dict[str, Any]] = {
    "svg": {"Date": None, "Creator": "batchscience"},
    "pdf": {"CreationDate": None, "Creator": "batchscience"},
    "png": {"Software": "batchscience"},
}


@dataclass(frozen=True, slots=True)
class Rendered:
    """A figure's files, or why there are none."""

    name: str
    paths: tuple[Path, ...] = ()
    error: Exception | None = None


def render_entries(
    entries: Sequence[Entry],
    store: Store | None,
    out: Path,
    *,
    formats: tuple[Format, ...],
    source: SourceName,
    style: StyleName,
    workload: str | None,
    goal: Goal | None,
    on_figure: Callable[[str, int, int], None] | None,
    stop_at_error: bool,
) -> list[Rendered]:
    """Draw figures one after the other; see `batchscience.figures.render_all`."""
    if source == "archive" and store is None:
        raise BatchScienceError("the figures of the archive need its tables; run 'batchscience fetch' first")
    sources = _sources(store, source)
    out.mkdir(parents=True, exist_ok=True)
    for each in sources:
        each.prepare([panel for entry in entries for panel in panels_of(entry)])
    rendered = []
    for done, entry in enumerate(entries):
        if on_figure is not None:
            on_figure(entry.name, done, len(entries))
        try:
            paths = _render(entry, sources, out, formats, style)
        except Exception as error:
            # Whatever fails in one figure must not stop the others.
            if stop_at_error:
                raise
            rendered.append(Rendered(entry.name, error=error))
        else:
            rendered.append(Rendered(entry.name, paths))
    if on_figure is not None:
        on_figure("", len(entries), len(entries))
    return rendered


def panels_of(entry: Entry) -> list[Panel]:
    """The panels of a figure of the paper, on the figure's part of the data."""
    module = importlib.import_module(f".{entry.module}", __package__)
    return [on_split(panel, entry.split) for panel in getattr(module, "PANELS", ())]


def tables_of(entry: Entry, source: Source) -> list[PanelTables]:
    """The numbers of a figure; a panel that the source cannot fill is empty, with the reason as its note.

    Raises
    ------
    NothingToDraw
        If that is so for all of them.
    """
    tables: list[PanelTables] = []
    missing: list[NothingToDraw] = []
    for panel in panels_of(entry):
        try:
            tables.append(source.tables(panel))
        except NothingToDraw as error:
            missing.append(error)
            tables.append(PanelTables(panel, pd.DataFrame(), pd.DataFrame(), (str(error),)))
    if len(missing) == len(tables):
        raise missing[0]
    return tables


def _sources(store: Store | None, source: SourceName) -> list[Source]:
    """The sources to try, the preferred one first."""
    return [PublishedPoints()]


def _render(
    entry: Entry, sources: Sequence[Source], out: Path, formats: tuple[Format, ...], style: StyleName
) -> tuple[Path, ...]:
    module = importlib.import_module(f".{entry.module}", __package__)
    reasons: list[NothingToDraw] = []
    for source in sources:
        try:
            tables = tables_of(entry, source)
        except NothingToDraw as error:
            reasons.append(error)
            continue
        with STYLES[style].applied():
            figure = module.draw(tables, kind=source.kind, style=STYLES[style])
            return (
                *write_figure(figure, out, entry.name, formats),
                _write_numbers(entry, source, tables, out),
            )
    raise reasons[0]


def write_figure(figure: Figure, out: Path, name: str, formats: Sequence[Format]) -> list[Path]:
    """Write a figure in several formats; the same figure gives the same bytes."""
    # A canvas of its own: no window, and no backend chosen for whoever imports this.
    FigureCanvasAgg(figure)
    paths = []
    for kind in formats:
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, metadata=_METADATA[kind])
        paths.append(out / f"{name}.{kind}")
        _write(paths[-1], buffer.getvalue())
    return paths


def _write_numbers(entry: Entry, source: Source, tables: Sequence[PanelTables], out: Path) -> Path:
    contents = {
        "figure": entry.name,
        "title": entry.title,
        "source": source.kind,
        "batchscience": __version__,
        "panels": [
            {
                "title": table.panel.title,
                "row": table.panel.row,
                "column": table.panel.column,
                "quantity": table.panel.quantity,
                "points": _records(table.points),
                "guides": _records(table.guides),
                "notes": list(table.notes),
            }
            for table in tables
        ],
    }
    path = out / f"{entry.name}.json"
    _write(path, (json.dumps(contents, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())
    return path


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    columns = {str(name): [_plain(value) for value in table[name].tolist()] for name in table.columns}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _plain(value: Any) -> Any:
    """A value that JSON has: what is missing or infinite is null."""
    if value is None or value is pd.NA or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return value


def _write(path: Path, contents: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(contents)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
