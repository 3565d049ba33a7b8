"""Draw figures into files: choose the source, draw, write image files and the numbers beside them."""

from __future__ import annotations

import importlib
import io
import json
import math
import os
import re
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
from .raw import Ask, RawCurves, ShippedCurves, asks_of
from .sources import NothingToDraw, PanelTables, PublishedPoints, Scope, Source
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


NO_SCOPE = Scope()


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
    scope = Scope(workload, goal)
    raw = RawCurves(store) if store is not None and source != "published" else None
    sources: list[Source] = [*([raw] if raw is not None else [])]
    if source != "archive":
        sources.append(PublishedPoints())
    out.mkdir(parents=True, exist_ok=True)
    if raw is not None:
        if workload is not None:
            # Says which names come near, where there is no such workload.
            raw.store.studies(workload)
        raw.prepare_asks([ask for entry in entries if not entry.shipped for ask in _asks(entry, raw, scope)])
    shipped: RawCurves | None = None
    rendered = []
    for done, entry in enumerate(entries):
        if on_figure is not None:
            on_figure(entry.name, done, len(entries))
        try:
            if entry.shipped and shipped is None:
                shipped = _shipped_curves(entries)
            whose = [shipped] if entry.shipped and shipped is not None else sources
            paths = _render(entry, whose, scope, out, formats, style)
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


def _shipped_curves(entries: Sequence[Entry]) -> RawCurves:
    """The shipped studies, with all that these figures will ask of them answered."""
    shipped = ShippedCurves()
    shipped.prepare_asks(
        [ask for entry in entries if entry.shipped for ask in _asks(entry, shipped, NO_SCOPE)]
    )
    return shipped


def panels_of(entry: Entry) -> list[Panel]:
    """The panels of a figure of the paper, on the figure's part of the data."""
    return [on_split(panel, entry.split) for panel in _module(entry).PANELS]


def tables_of(
    entry: Entry, source: Source, scope: Scope = NO_SCOPE, *, whole: bool = False
) -> list[PanelTables]:
    """The numbers of a figure; a panel that the source cannot fill is empty, with the reason as its note.

    Raises
    ------
    NothingToDraw
        If that is so for all of them, or for one of them where the figure is wanted `whole`.
    """
    module = _module(entry)
    if not hasattr(module, "PANELS"):
        found: list[PanelTables] = module.tables(source, scope)
        return found
    tables: list[PanelTables] = []
    missing: list[NothingToDraw] = []
    for panel in panels_of(entry):
        try:
            tables.append(source.tables(panel))
        except NothingToDraw as error:
            missing.append(error)
            tables.append(PanelTables(panel, pd.DataFrame(), pd.DataFrame(), (str(error),)))
    if len(missing) == len(tables) or (whole and missing):
        raise missing[0]
    return tables


def _module(entry: Entry) -> Any:
    return importlib.import_module(f".{entry.module}", __package__)


def _asks(entry: Entry, raw: RawCurves, scope: Scope) -> list[Ask]:
    """What a figure will ask of the raw curves, as far as that can be known before."""
    module = _module(entry)
    if hasattr(module, "PANELS"):
        return [ask for panel in panels_of(entry) for ask in asks_of(panel)]
    asks: list[Ask] = module.asks(raw, scope)
    return asks


def _render(
    entry: Entry,
    sources: Sequence[Source],
    scope: Scope,
    out: Path,
    formats: tuple[Format, ...],
    style: StyleName,
) -> tuple[Path, ...]:
    name = f"{entry.name}_{file_name(scope.workload)}" if entry.of_workload and scope.workload else entry.name
    reasons: list[NothingToDraw] = []
    for source in sources:
        # Half a figure of one's own curves is worth less than the whole published one, if that is at hand.
        whole = entry.published and source is not sources[-1]
        try:
            tables = tables_of(entry, source, scope, whole=whole)
        except NothingToDraw as error:
            reasons.append(error)
            continue
        with STYLES[style].applied():
            figure = _module(entry).draw(tables, kind=source.kind, style=STYLES[style])
            paths = write_figure(figure, out, name, formats)
        return (*paths, _write_numbers(entry, name, source, tables, out))
    raise reasons[0]


def file_name(workload: str) -> str:
    """A workload's name as a part of a file name.

    Examples
    --------
    >>> file_name("mnist/fc_1024/sgd")
    'mnist-fc_1024-sgd'
    """
    return re.sub(r"[^\w.+=]+", "-", workload).strip("-.")[:150] or "workload"


def laid_out(figure: Figure) -> Figure:
    """The figure with its layout done, once for all formats, and the same in every run."""
    # A canvas of its own: no window, and no backend chosen for whoever imports this.
    FigureCanvasAgg(figure)
    engine = figure.get_layout_engine()
    if engine is None:
        return figure
    engine.execute(figure)
    # With any engine left, even one that does nothing, each format would draw the figure twice.
    figure.set_layout_engine(None)
    for ax in figure.axes:
        # The last digits of the layout change from run to run, and names in SVG files with them.
        x, y, width, height = (round(number, 6) for number in ax.get_position().bounds)
        ax.set_position((x, y, width, height))
    return figure


def write_figure(figure: Figure, out: Path, name: str, formats: Sequence[Format]) -> list[Path]:
    """Write a figure in several formats; the same figure gives the same bytes."""
    laid_out(figure)
    paths = []
    for kind in formats:
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, metadata=_METADATA[kind])
        paths.append(out / f"{name}.{kind}")
        write_contents(paths[-1], buffer.getvalue())
    return paths


def _write_numbers(entry: Entry, name: str, source: Source, tables: Sequence[PanelTables], out: Path) -> Path:
    contents = {
        "figure": name,
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
                **{key: _records(more) for key, more in table.more.items()},
            }
            for table in tables
        ],
    }
    path = out / f"{name}.json"
    write_contents(
        path, (json.dumps(contents, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()
    )
    return path


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    columns = {str(name): [_plain(value) for value in table[name].tolist()] for name in table.columns}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _plain(value: Any) -> Any:
    """A value that JSON has: what is missing or infinite is null."""
    if value is None or value is pd.NA or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return value


def write_contents(path: Path, contents: bytes) -> None:
    """Write a file by way of a temporary name, so that a reader sees all of it or none."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(contents)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
