"""A report on workloads as one HTML file that needs no other: pictures first, the numbers below them."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import html
import io
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from matplotlib.figure import Figure

from .. import __version__, paper
from ..errors import UnknownWorkload
from ..metaparameters import stored_metaparameters
from ..paper import Panel
from ..regimes import TOLERANCES, sensitivity
from . import isolation, scaling_regimes, useful_ranges, workload
from .drawing import laid_out, write_contents
from .raw import RawCurves
from .sources import NothingToDraw, PanelTables, PublishedPoints, Scope, Source
from .style import STYLES

if TYPE_CHECKING:
    from ..goals import Goal
    from ..store import Store

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 64rem;
       margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; }
h2 { font-size: 1.25rem; margin-top: 3rem; border-top: 1px solid #ccc; padding-top: 1rem; }
h3 { font-size: 1rem; margin-bottom: .3rem; }
p.answer { font-size: 1.15rem; background: #eef5fb; border-left: 4px solid #0173b2; padding: .6rem 1rem; }
ul.warnings { background: #fff6e0; border-left: 4px solid #de8f05; padding: .6rem 1rem .6rem 2rem; }
img { max-width: 100%; height: auto; display: block; margin: 1rem auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; margin: .5rem 0 1.5rem; }
th, td { padding: .2rem .7rem; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap; }
th:first-child, td:first-child, td.text { text-align: left; }
td.text { white-space: normal; min-width: 14rem; }
summary { cursor: pointer; font-weight: 600; margin: .5rem 0; }
footer { color: #666; font-size: .8rem; margin-top: 3rem; }
"""


@dataclass(frozen=True, slots=True)
class Section:
    """What the report says of one workload."""

    workload: str
    answer: str
    origin: str
    pictures: tuple[tuple[str, Figure], ...]
    tables: tuple[tuple[str, pd.DataFrame], ...]
    warnings: tuple[str, ...]


def write_report(
    workloads: Sequence[str],
    store: Store | None,
    out: str | Path,
    *,
    goal: Goal | None = None,
) -> Path:
    """Write a report on workloads as one self-contained HTML file.

    Parameters
    ----------
    workloads : sequence of str
        Names of workloads of the store, or of published ones.
    store : Store, optional
        Tables of raw curves.  A workload that they do not hold is reported from its published points.
    out : path
        The file; its folder is made if it is not there.
    goal : Goal, optional
        By default the paper's, or one that all batch sizes of the workload reach.

    Returns
    -------
    pathlib.Path
        The file.

    Raises
    ------
    UnknownWorkload
        If neither the store nor the published points have a workload.

    Notes
    -----
    The same tables give the same bytes.
    """
    if not workloads:
        raise ValueError("a report is about at least one workload")
    raw = RawCurves(store) if store is not None else None
    with STYLES["paper"].applied():
        sections = [_section(name, raw, goal) for name in dict.fromkeys(workloads)]
        text = page(sections)
    out = Path(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_contents(out, text.encode("utf-8"))
    return out


def page(sections: Sequence[Section]) -> str:
    """The HTML of a report."""
    title = "Steps to result against batch size"
    names = "".join(f"<li><a href='#{i}'>{_text(one.workload)}</a></li>" for i, one in enumerate(sections))
    contents = f"<ol>{names}</ol>" if len(sections) > 1 else ""
    body = "\n".join(_section_html(i, one) for i, one in enumerate(sections))
    return (
        "<!DOCTYPE html>\n"
        f'<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{_STYLE}</style></head>\n<body><h1>{title}</h1>{contents}\n{body}\n"
        f"<footer>batchscience {_text(__version__)}. Definitions follow Shallue et al. (2019), Measuring the "
        "effects of data parallelism on neural network training, JMLR 20(112).</footer></body></html>\n"
    )


def _section(name: str, raw: RawCurves | None, goal: Goal | None) -> Section:
    if raw is not None and raw.has(name):
        return _from_curves(name, raw, goal)
    for panel, label in useful_ranges.curves():
        series = [one for one in panel.series if one.workload == name and one.label == label]
        if series:
            return _from_points(dataclasses.replace(panel, series=tuple(series), dashed=series[0].label))
    if raw is not None:
        # Says which names come near.
        raw.store.studies(name)
    raise UnknownWorkload(f"there are no tables, and {name!r} is not among the published curves")


def _from_curves(name: str, raw: RawCurves, goal: Goal | None) -> Section:
    scope = Scope(name, goal)
    style = STYLES["paper"]
    tables = workload.tables(raw, scope)
    steps = tables[0]
    chosen = steps.panel.series[0].goal
    assert chosen is not None
    pictures = [
        (f"Steps, examples, settings and curves of {name}", workload.draw(tables, kind=raw.kind, style=style))
    ]
    with contextlib.suppress(NothingToDraw):
        trials = isolation.tables(raw, scope)
        drawn = isolation.draw(trials, kind=raw.kind, style=style)
        pictures.append((f"Trials of {name} by each metaparameter", drawn))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        settings = stored_metaparameters(raw.store, name, chosen, first=paper.trials_used(name))
    notes = [*steps.notes, *_regime_warnings(steps), *(str(one.message) for one in caught)]
    numbers = [
        ("Steps to result", steps.points.drop(columns=["series", "workload", "metric", "goal"])),
        *_regime_tables(steps),
        ("Best trials", settings.drop(columns="workload")),
    ]
    return Section(
        name,
        _answer(steps),
        f"Goal: {chosen}. Computed from the raw curves.",
        tuple(pictures),
        tuple(numbers),
        tuple(dict.fromkeys(notes)),
    )


def _from_points(panel: Panel) -> Section:
    source: Source = PublishedPoints()
    steps = scaling_regimes.with_regimes(source.tables(panel), source)
    series = panel.series[0]
    drawn = scaling_regimes.draw([steps], kind="published", style=STYLES["paper"])
    relative = f", relative to those at B = {panel.normalized_at:,}" if panel.normalized_at else ""
    points = steps.points[["batch_size", "value", "rel_uncertainty"]]
    return Section(
        series.workload,
        _answer(steps),
        f"Goal: {series.goal}. Steps{relative}, read from Figure {panel.figure} of the released notebook.",
        ((f"Steps to result of {series.workload}", drawn),),
        (("Steps to result", points), *_regime_tables(steps)),
        tuple(dict.fromkeys([*steps.notes, *_regime_warnings(steps)])),
    )


def _answer(steps: PanelTables) -> str:
    """The transition points in one sentence."""
    if "regimes" not in steps.more:
        return "No trial reached the goal at any batch size."
    text = str(steps.more["regimes"]["answer"].iloc[0])
    return f"{text[0].upper()}{text[1:]}."


def _regime_tables(steps: PanelTables) -> Iterator[tuple[str, pd.DataFrame]]:
    if "regimes" not in steps.more:
        return
    answer = steps.more["regimes"].drop(columns=["workload", "warning", "answer"]).iloc[0].dropna()
    yield "Regimes", pd.DataFrame({"": answer.index, "value": answer.to_numpy(dtype=object)})
    curve = steps.points[["batch_size", "value"]].rename(columns={"value": "steps"})
    yield "How the transition points move with the tolerance", sensitivity(curve, TOLERANCES)


def _regime_warnings(steps: PanelTables) -> list[str]:
    if "regimes" not in steps.more:
        return []
    text = steps.more["regimes"]["warning"].iloc[0]
    return [] if pd.isna(text) else str(text).split("; ")


def _section_html(number: int, section: Section) -> str:
    pictures = "\n".join(_picture(title, figure) for title, figure in section.pictures)
    tables = "\n".join(
        f"<details{' open' if i == 0 else ''}><summary>{_text(title)}</summary>{table_html(table)}</details>"
        for i, (title, table) in enumerate(section.tables)
    )
    notes = "".join(f"<li>{_text(_sentence(note))}</li>" for note in section.warnings)
    return (
        f"<section id='{number}'><h2>{_text(section.workload)}</h2>"
        f"<p class='answer'>{_text(section.answer)}</p><p>{_text(section.origin)}</p>"
        + (f"<ul class='warnings'>{notes}</ul>" if notes else "")
        + f"{pictures}{tables}</section>"
    )


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def _picture(title: str, figure: Figure) -> str:
    laid_out(figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": "batchscience"})
    data = base64.b64encode(buffer.getvalue()).decode("ascii")
    return f'<img alt="{_text(title)}" src="data:image/svg+xml;base64,{data}">'


def table_html(table: pd.DataFrame) -> str:
    """A table as HTML; what is missing is a dash."""
    head = "".join(f"<th>{_text(str(name).replace('_', ' '))}</th>" for name in table.columns)
    rows = "".join(
        f"<tr>{''.join(_cell(value) for value in row)}</tr>"
        for row in table.itertuples(index=False, name=None)
    )
    return f"<div class='wide'><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"


def _cell(value: Any) -> str:
    if hasattr(value, "item"):
        value = value.item()
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return "<td>–</td>"
    if isinstance(value, bool):
        return f"<td>{'yes' if value else 'no'}</td>"
    if isinstance(value, int):
        return f"<td>{value:,}</td>"
    if isinstance(value, float):
        return f"<td>{f'{value:,.0f}' if value.is_integer() and abs(value) < 1e15 else f'{value:,.5g}'}</td>"
    return f"<td class='text'>{_text(str(value))}</td>"


def _text(text: str) -> str:
    return html.escape(text, quote=True)
