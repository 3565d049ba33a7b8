"""One workload, published or one's own: steps and examples to result, best settings, best curves."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .. import paper
from ..errors import BatchScienceError
from ..paper import Panel, Series
from . import panels
from .best_settings import draw_settings_panel, settings_of
from .goal_of_workload import goal_for
from .grid import COMMON, origin
from .learning_curves import curves_of, draw_curves_panel, styles_of
from .raw import Ask, RawCurves
from .scaling_regimes import NOTE, draw_regime_panel, with_regimes
from .sheet import Cell, sentences, sheet
from .sources import NothingToDraw, PanelTables, Scope, Source, SourceKind
from .style import Style


def asks(raw: RawCurves, scope: Scope) -> list[Ask]:  # noqa: ARG001 - of one form for all figures
    """What the figure needs of the raw curves, as far as its goal is known."""
    goal = scope.goal or (paper.goal_of(scope.workload) if scope.workload else None)
    if scope.workload is None or goal is None:
        return []
    series = Series("", scope.workload, goal)
    first = paper.trials_used(scope.workload)
    return [Ask("steps", series, first), Ask("best_curves", series, first)]


def tables(source: Source, scope: Scope) -> list[PanelTables]:
    """Steps with their regimes, examples, settings and curves of one workload.

    Raises
    ------
    BatchScienceError
        If no workload is named.
    NothingToDraw
        If the source is no store of raw curves, or does not hold the workload.
    """
    if scope.workload is None:
        raise BatchScienceError(
            "name the workload to draw with --workload; 'batchscience workloads' lists them"
        )
    if not isinstance(source, RawCurves):
        raise NothingToDraw(f"the figure of {scope.workload} needs its raw curves, in tables of one's own")
    goal = goal_for(source, scope.workload, scope.goal)
    series = Series("", scope.workload, goal)

    def panel(column: int, title: str) -> Panel:
        return Panel("workload", 0, column, title, "steps", (series,), dashed="")

    steps = source.tables(panel(0, "Steps to result"))
    found = [with_regimes(steps, source), _examples(panel(1, "Examples to result"), steps)]
    with contextlib.suppress(NothingToDraw):
        # An optimizer without learning rate has no such panel; the others stand.
        found.append(settings_of(panel(2, "Settings of the best trials"), source))
    found.append(curves_of(panel(3, "Learning curves of the best trials"), source))
    return found


def _examples(panel: Panel, steps: PanelTables) -> PanelTables:
    """The same curve in training examples, of which perfect scaling needs equally many."""
    columns = [n for n in ("value", "best_of_k", "best_of_low", "best_of_high") if n in steps.points.columns]
    sizes = steps.points["batch_size"]
    points = steps.points.assign(**{name: steps.points[name] * sizes for name in columns})
    guides = steps.guides.assign(value=steps.guides["value"] * steps.guides["batch_size"])
    return PanelTables(panel, points, guides)


def _draw_examples(table: PanelTables, ax: Axes) -> None:
    points = table.points.rename(columns={"best_of_low": "low", "best_of_high": "high"})
    panels.draw_series(points, ax=ax, guides=table.guides, y_label="Examples", y_base=10)


def draw(tables: Sequence[PanelTables], *, kind: SourceKind, style: Style) -> Figure:
    """Draw the figure's panels."""
    series = tables[0].panel.series[0]
    styles = styles_of(tables[-1:])
    draws: dict[str, Callable[[PanelTables, Axes], None]] = {
        "Steps to result": draw_regime_panel,
        "Examples to result": _draw_examples,
        "Settings of the best trials": draw_settings_panel,
        "Learning curves of the best trials": partial(draw_curves_panel, styles=styles),
    }
    cells = [Cell(table.panel.title, partial(draws[table.panel.title], table)) for table in tables]
    note = [f"{series.workload}, goal {series.goal}", NOTE, origin(kind)]
    note += [text for table in tables for text in table.notes]
    return sheet(cells, columns=2, style=style, note=sentences(note), common=COMMON)
