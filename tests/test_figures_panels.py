"""Panels draw every number of their table, and nothing leaves the picture unmarked."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D

from batchscience.figures import panels
from batchscience.figures.sheet import Cell, sentences, sheet
from batchscience.figures.style import STYLES, looks

PAPER = STYLES["paper"]


def curve(**series: dict[int, float]) -> pd.DataFrame:
    """A table of series from their values by batch size."""
    rows = [(name, size, value) for name, points in series.items() for size, value in points.items()]
    return pd.DataFrame(rows, columns=["series", "batch_size", "value"])


def drawn(draw: Any, *arguments: Any, **options: Any) -> Axes:
    with PAPER.applied():
        ax = Figure().add_subplot()
        draw(*arguments, ax=ax, **options)
    return ax


def data_lines(ax: Axes) -> dict[str, Line2D]:
    return {
        str(line.get_label()): line
        for line in ax.lines
        if line.get_transform() == ax.transData and not str(line.get_label()).startswith("_")
    }


def points_of(line: Line2D) -> dict[float, float]:
    x, y = np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float)
    return {a: b for a, b in zip(x.tolist(), y.tolist(), strict=True) if math.isfinite(b)}


def edge_marks(ax: Axes, label: str) -> list[float]:
    """Batch sizes with a mark on the edge of the axes, by the beginning of the label."""
    found = [line for line in ax.lines if str(line.get_label()).startswith(label)]
    assert all(line.get_transform() != ax.transData for line in found)
    return [float(x) for line in found for x in np.asarray(line.get_xdata(), float)]


def legend_labels(ax: Axes) -> list[str]:
    return list(ax.get_legend_handles_labels()[1])


# -- series against batch size


def test_every_value_is_a_vertex_of_the_line_of_its_series() -> None:
    table = curve(SGD={1: 1000, 8: 200.5, 3: 400}, Adam={2: 90})
    lines = data_lines(drawn(panels.draw_series, table))
    assert points_of(lines["SGD"]) == {1: 1000, 3: 400, 8: 200.5}
    assert points_of(lines["Adam"]) == {2: 90}


def test_a_line_runs_in_order_of_batch_size_whatever_the_order_of_rows() -> None:
    ax = drawn(panels.draw_series, curve(a={64: 1, 2: 5, 16: 3}))
    assert np.asarray(data_lines(ax)["a"].get_xdata()).tolist() == [2, 16, 64]


def test_a_batch_size_that_never_reached_the_goal_is_marked_on_the_edge_and_named() -> None:
    ax = drawn(panels.draw_series, curve(Momentum={1: math.nan, 2: 50, 4: 30}, SGD={1: 99, 2: 60}))
    assert edge_marks(ax, "_missing") == [1]
    assert "goal not reached: Momentum at B = 1" in legend_labels(ax)
    mark = next(line for line in ax.lines if str(line.get_label()).startswith("_missing"))
    assert mark.get_markerfacecolor() == "white"
    assert float(np.asarray(mark.get_ydata())[0]) == pytest.approx(1.0)


def test_a_line_is_interrupted_where_the_goal_was_not_reached() -> None:
    ax = drawn(panels.draw_series, curve(a={1: 8, 2: math.nan, 4: 2}))
    assert np.isnan(np.asarray(data_lines(ax)["a"].get_ydata(), float)).tolist() == [False, True, False]


@pytest.mark.parametrize("missing", [pd.NA, None, math.nan, math.inf])
def test_every_way_to_say_missing_is_understood(missing: object) -> None:
    table = curve(a={1: 8, 4: 2}).astype({"value": object})
    table.loc[0, "value"] = missing
    ax = drawn(panels.draw_series, table.astype({"value": "Float64"}) if missing is pd.NA else table)
    assert edge_marks(ax, "_missing") == [1]


def test_a_point_beyond_limits_that_are_kept_has_a_caret_on_that_edge() -> None:
    table = curve(a={1: 0.5, 2: 0.02, 4: -0.1})
    ax = drawn(
        panels.draw_series, table, y_scale="linear", y_limits=(0.0, 0.04), keep_limits=True, y_label="Error"
    )
    assert ax.get_ylim() == (0.0, 0.04)
    marks = {
        float(np.asarray(line.get_ydata())[0]): np.asarray(line.get_xdata()).tolist()
        for line in ax.lines
        if line.get_label() == "_outside"
    }
    assert marks == {1.0: [1], 0.0: [4]}


def test_limits_that_are_not_kept_widen_to_hold_all_points() -> None:
    ax = drawn(panels.draw_series, curve(a={1: 2**20, 64: 3}), x_limits=(2, 8), y_limits=(2**4, 2**8))
    assert ax.get_xlim()[0] < 1
    assert ax.get_xlim()[1] > 64
    assert ax.get_ylim()[0] < 3
    assert ax.get_ylim()[1] > 2**20


def test_a_band_has_the_limits_of_the_table_and_stops_where_one_is_unknown() -> None:
    table = curve(a={1: 8, 2: 4, 4: 2}).assign(low=[7, 3, 1], high=[9, 6, math.inf])
    ax = drawn(panels.draw_series, table)
    (band,) = ax.collections
    vertices = np.vstack([path.vertices for path in band.get_paths()])
    assert set(map(tuple, vertices.tolist())) >= {(1, 7), (2, 3), (1, 9), (2, 6)}
    assert vertices[:, 0].max() == 2


def test_guides_are_straight_lines_with_their_name() -> None:
    guides = pd.DataFrame({"guide": ["perfect scaling"] * 2, "batch_size": [1, 64], "value": [640, 10]})
    line = data_lines(drawn(panels.draw_series, curve(a={1: 640, 64: 90}), guides=guides))["perfect scaling"]
    assert points_of(line) == {1: 640, 64: 10}


def test_one_unnamed_series_has_no_legend() -> None:
    assert legend_labels(drawn(panels.draw_series, curve(**{"": {1: 8, 2: 4}}))) == []


def test_a_table_is_not_changed_by_drawing_it() -> None:
    table = curve(a={4: 8, 2: math.nan})
    before = table.copy()
    drawn(panels.draw_series, table)
    pd.testing.assert_frame_equal(table, before)


def test_ten_series_differ_in_marker_and_in_colour() -> None:
    found = looks(10)
    assert len({look.marker for look in found}) == 10
    assert len({look.color for look in found}) == 10


def test_ordered_series_grow_lighter_so_that_a_grey_print_keeps_their_order() -> None:
    grey = [np.dot(look.color, (0.299, 0.587, 0.114)) for look in looks(10, ordered=True)]
    assert np.all(np.diff(grey) > 0.02)
    assert grey[-1] < 0.8


# -- trials by their settings


def trials(*rows: tuple[float, float, str, bool]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["learning_rate", "one_minus_momentum", "outcome", "best"])


def test_trials_are_shown_by_outcome_and_the_best_has_the_star() -> None:
    table = trials(
        (1e-3, 1e-1, "goal achieved", True),
        (1e-2, 1e-2, "goal achieved", False),
        (1e-4, 1e-1, "goal not achieved", False),
        (1e-1, 1e-3, "infeasible", False),
    )
    lines = data_lines(drawn(panels.draw_trials, table, levels=[0.1, 1.0, 10.0]))
    assert points_of(lines["goal achieved"]) == {1e-3: 1e-1, 1e-2: 1e-2}
    assert points_of(lines["goal not achieved"]) == {1e-4: 1e-1}
    assert points_of(lines["infeasible"]) == {1e-1: 1e-3}
    assert points_of(lines["fewest steps to the goal"]) == {1e-3: 1e-1}


def test_the_axis_of_trials_is_the_learning_rate_not_the_batch_size() -> None:
    ax = drawn(panels.draw_trials, trials((1e-3, 1e-1, "infeasible", False)), levels=[1.0])
    assert ax.get_xlabel() == "Learning rate"


def test_contours_have_one_effective_learning_rate_each() -> None:
    table = trials((1e-4, 1e-4, "infeasible", False), (1e-1, 1e-1, "infeasible", False))
    ax = drawn(panels.draw_trials, table, levels=[0.1, 1.0])
    contours = [line for line in ax.lines if line.get_marker() in ("", "None")]
    rates = [np.asarray(line.get_xdata()) / np.asarray(line.get_ydata()) for line in contours]
    assert [pytest.approx(rate) for rate in ([0.1, 0.1], [1, 1])] == [rate.tolist() for rate in rates]


def test_a_study_without_trials_draws_an_empty_panel() -> None:
    ax = drawn(panels.draw_trials, trials(), levels=[1.0], x_limits=(1e-4, 1), y_limits=(1e-4, 1))
    assert points_of(data_lines(ax)["goal achieved"]) == {}


# -- regimes and ranges


def test_regimes_are_shaded_from_the_first_to_the_last_batch_size_of_each() -> None:
    spans = pd.DataFrame(
        {
            "regime": ["perfect scaling regime", "diminishing returns regime"],
            "low": [1.0, 16.0],
            "high": [16.0, 64.0],
        }
    )
    found = pd.DataFrame(
        {"batch_size": [16.0], "value": [10.0], "censored": [False], "low": [8.0], "high": [math.nan]}
    )
    ax = drawn(panels.draw_regimes, curve(**{"": {1: 160, 16: 10, 64: 6}}), spans, found)
    edges = [(patch.get_x(), patch.get_x() + patch.get_width()) for patch in ax.patches]
    assert edges == [(1, 16), (16, 64)]
    assert [text.get_text() for text in ax.texts] == ["16"]


def test_a_transition_at_the_end_of_the_data_says_at_least() -> None:
    spans = pd.DataFrame({"regime": ["perfect scaling regime"], "low": [1.0], "high": [64.0]})
    found = pd.DataFrame({"batch_size": [64.0], "value": [6.0], "censored": [True], "low": [8], "high": [64]})
    ax = drawn(panels.draw_regimes, curve(**{"": {1: 160, 64: 6}}), spans, found)
    assert [text.get_text() for text in ax.texts] == ["≥ 64"]


def test_ranges_show_a_row_for_each_workload_from_the_top_down() -> None:
    table = pd.DataFrame(
        {
            "label": ["first", "second"],
            "smallest": [1, 2],
            "largest": [1024, 512],
            "perfect_to": [16, 2],
            "perfect_censored": [False, False],
            "useful_to": [256, 512],
            "useful_censored": [False, True],
        }
    )
    ax = drawn(panels.draw_ranges, table)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["first", "second"]
    lines = {str(line.get_label()): points_of(line) for line in ax.lines}
    assert lines["end of perfect scaling"] == {16: 1, 2: 0}
    assert lines["maximum useful batch size"] == {256: 1}
    assert lines["at least this (end of the data)"] == {512: 0}


def test_a_workload_without_transition_points_keeps_its_row() -> None:
    table = pd.DataFrame(
        {
            "label": ["never reached"],
            "smallest": [1.0],
            "largest": [8.0],
            "perfect_to": [math.nan],
            "perfect_censored": [False],
            "useful_to": [math.nan],
            "useful_censored": [False],
        }
    )
    assert len(drawn(panels.draw_ranges, table).get_yticklabels()) == 1


# -- numbers with limits


INTERVALS = pd.DataFrame(
    {
        "label": ["first", "first", "second"],
        "series": ["a", "b", "a"],
        "value": [8.0, 32.0, math.nan],
        "low": [4.0, math.nan, math.nan],
        "high": [16.0, 64.0, math.nan],
        "text": ["", "text of b", "never seen"],
    }
)


def test_each_number_has_its_place_its_limits_and_its_text() -> None:
    ax = drawn(panels.draw_intervals, INTERVALS, x_label="x", styles=dict(zip("ab", looks(2), strict=True)))
    assert [label.get_text() for label in ax.get_yticklabels()] == ["first", "second"]
    assert legend_labels(ax) == ["a", "b"]
    spans = [line.get_xdata() for line in ax.lines if line.get_label() == "_limits"]
    # A limit that does not exist is the edge of the axes.
    assert [tuple(span) for span in spans] == [(4.0, 16.0), (ax.get_xlim()[0], 64.0)]
    points = {str(line.get_label()): points_of(line) for line in ax.lines if line.get_label() in ("a", "b")}
    assert list(points["a"]) == [8.0]
    assert list(points["b"]) == [32.0]
    assert 1.3 > points["a"][8.0] > 1 > points["b"][32.0] > 0.7


def test_a_number_that_is_not_known_says_so() -> None:
    ax = drawn(panels.draw_intervals, INTERVALS, x_label="x", styles=dict(zip("ab", looks(2), strict=True)))
    assert [text.get_text() for text in ax.texts] == ["text of b", "not determined"]


def test_intervals_of_series_that_another_panel_explains_have_no_legend() -> None:
    styles = dict(zip("ab", looks(2), strict=True))
    ax = drawn(panels.draw_intervals, INTERVALS, x_label="x", styles=styles, legend=False)
    assert legend_labels(ax) == []


def test_trials_without_a_height_stand_on_the_upper_edge() -> None:
    table = pd.DataFrame(
        {
            "learning_rate": [0.1, 1.0],
            "steps": pd.array([100, pd.NA], "Int64"),
            "outcome": ["goal achieved", "goal not achieved"],
            "best": [True, False],
        }
    )
    ax = drawn(panels.draw_trials, table, levels=(), y="steps", y_label="Steps", y_base=2)
    assert points_of(data_lines(ax)["goal achieved"]) == {0.1: 100}
    assert points_of(data_lines(ax)["goal not achieved"]) == {1.0: ax.get_ylim()[1]}
    assert ax.get_ylabel() == "Steps"


# -- curves and isolation


def test_learning_curves_skip_missing_evaluations_and_step_0() -> None:
    table = pd.DataFrame({"series": "B = 8", "step": [0, 10, 20, 30], "value": [0.9, 0.5, math.nan, 0.2]})
    ax = drawn(panels.draw_learning_curves, table, y_label="Error", goal=0.3)
    assert points_of(data_lines(ax)["B = 8"]) == {10: 0.5, 30: 0.2}
    assert "goal" in legend_labels(ax)


@pytest.mark.parametrize(("maximize", "edge"), [(False, 1), (True, 0)])
def test_a_trial_that_diverged_before_any_measurement_stands_on_the_worse_edge(
    maximize: bool, edge: int
) -> None:
    table = pd.DataFrame(
        {
            "setting": [0.1, 0.2],
            "value": pd.array([0.3, pd.NA], "Float64"),
            "outcome": ["goal achieved", "infeasible"],
        }
    )
    ax = drawn(panels.draw_isolation, table, x_label="x", y_label="y", log=True, maximize=maximize)
    assert points_of(data_lines(ax)["infeasible"])[0.2] == ax.get_ylim()[edge]


# -- sheets


def sheet_of(*tables: pd.DataFrame, columns: int = 2, **options: Any) -> Figure:
    def draw(table: pd.DataFrame) -> Any:
        return lambda ax: panels.draw_series(table, ax=ax, **options)

    with PAPER.applied():
        figure = sheet(
            [Cell(f"Panel {i}", draw(t)) for i, t in enumerate(tables)], columns=columns, style=PAPER
        )
        FigureCanvasAgg(figure)
        figure.draw_without_rendering()
    return figure


def legends_of(figure: Figure) -> list[Legend]:
    found = [child for ax in figure.axes for child in ax.get_children() if isinstance(child, Legend)]
    return [*found, *figure.legends]


def overlapping(figure: Figure) -> list[str]:
    """Legends that cover the axes of a panel."""
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    boxes = [ax.patch.get_window_extent(renderer) for ax in figure.axes if ax.axison]
    return [
        str([text.get_text() for text in legend.get_texts()])
        for legend in legends_of(figure)
        for box in boxes
        if legend.get_window_extent(renderer).padded(-1).overlaps(box)
    ]


def test_what_all_panels_share_stands_once_and_the_rest_below_its_panel() -> None:
    same = curve(a={1: 8, 2: 4}, b={1: 9, 2: 5})
    figure = sheet_of(same, same)
    assert [[text.get_text() for text in legend.get_texts()] for legend in legends_of(figure)] == [["a", "b"]]
    figure = sheet_of(same, curve(c={1: 8}, d={1: 3}))
    assert [[text.get_text() for text in legend.get_texts()] for legend in legends_of(figure)] == [
        ["a", "b"],
        ["c", "d"],
    ]


def test_sentences_keep_names_of_workloads_and_say_nothing_twice() -> None:
    assert sentences(["one thing", "a/b_c: another.", "one thing", ""]) == "One thing. a/b_c: another."


alphabet = st.characters(max_codepoint=0x24F, exclude_categories=["C", "M", "Z"])
names = st.text(alphabet, min_size=1, max_size=120)
values = st.one_of(st.floats(1, 1e6), st.integers(1, 10**6).map(float), st.just(math.nan), st.just(math.inf))
points = st.dictionaries(st.integers(1, 10**6), values, min_size=1, max_size=12)
some_series = st.dictionaries(names, points, min_size=1, max_size=7)


@given(some_series, st.booleans())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_point_of_any_table_is_lost(found: dict[str, dict[int, float]], ordered: bool) -> None:
    """One batch size, unreached goals, a million steps, other sizes than powers of two, long names."""
    table = curve(**found)
    ax = drawn(panels.draw_series, table, ordered=ordered)
    lines = [line for line in ax.lines if line.get_transform() == ax.transData and len(line.get_xdata())]
    shown = sorted(pair for line in lines for pair in points_of(line).items())
    known = table[np.isfinite(table["value"])]
    assert shown == sorted(zip(known["batch_size"].astype(float), known["value"], strict=True))
    assert sorted(edge_marks(ax, "_missing")) == sorted(
        table.loc[~np.isfinite(table["value"]), "batch_size"].astype(float)
    )
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    assert all(left <= x <= right and bottom <= y <= top for x, y in shown)


@given(st.lists(some_series, min_size=1, max_size=3))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_legend_ever_covers_a_panel(found: list[dict[str, dict[int, float]]]) -> None:
    figure = sheet_of(*(curve(**series) for series in found))
    assert overlapping(figure) == []


@given(
    st.lists(
        st.tuples(
            st.floats(1e-6, 1e2), st.floats(1e-6, 1), st.sampled_from([*panels.OUTCOMES]), st.booleans()
        ),
        max_size=20,
    )
)
@settings(max_examples=30, deadline=None)
def test_every_trial_is_drawn_once_within_the_axes(rows: list[tuple[float, float, str, bool]]) -> None:
    ax = drawn(panels.draw_trials, trials(*rows), levels=[10.0**i for i in range(-8, 9)])
    for outcome in panels.OUTCOMES:
        line = data_lines(ax)[outcome]
        expected = [(x, y) for x, y, kind, _ in rows if kind == outcome]
        shown = list(zip(np.asarray(line.get_xdata()), np.asarray(line.get_ydata()), strict=True))
        assert shown == expected
        (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
        assert all(left <= x <= right and bottom <= y <= top for x, y in shown)
