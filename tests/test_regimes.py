"""Transition points and scaling laws: published values, laws of nature, and what must be refused."""

from __future__ import annotations

import json
import math
from typing import Any, get_args

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from batchscience import paper, published
from batchscience.cli import app
from batchscience.comparisons import compare
from batchscience.errors import UnknownWorkload
from batchscience.goals import Goal
from batchscience.laws import (
    LAWS,
    Law,
    Regime,
    bootstrap_law,
    compare_laws,
    fit_scaling_law,
    scatter_law,
)
from batchscience.regimes import (
    SUMMARY,
    Regimes,
    as_table,
    published_curves,
    published_regimes,
    regimes_of_curve,
    stored_regimes,
)
from batchscience.store import Store
from batchscience.transitions import monotone, sensitivity, transitions

from . import plain

PAPER_ORDER = tuple(paper.GOALS)


@pytest.fixture(scope="module")
def figure_1() -> dict[str, Regimes]:
    return {answer.workload: answer for answer in published_regimes(figures=["1"])}


def curve(sizes: Any, steps: Any, **more: Any) -> pd.DataFrame:
    return pd.DataFrame({"batch_size": sizes, "steps": steps, **more})


# ----- without a model ----------------------------------------------------------------------------

BY_HAND = {
    "imagenet/resnet_50/nesterov_momentum": (8192, False, 65536, True),
    "imagenet/vgg_11/nesterov_momentum": (1024, False, 32768, False),
    "open_images_v4/resnet_50/nesterov_momentum": (64, False, 16384, False),
    "cifar_10/resnet_8/nesterov_momentum": (256, False, 512, False),
    "mnist/simple_cnn_base/nesterov_momentum": (32, False, 32768, False),
    "fashion_mnist/simple_cnn_base/nesterov_momentum": (8, False, 2048, False),
    "lm1b/transformer_base/nesterov_momentum": (128, False, 4096, False),
    "lm1b/lstm/nesterov_momentum": (16, False, 1024, False),
    "common_crawl/transformer_base/nesterov_momentum": (64, False, 4096, False),
}
"""Perfect to, censored, useful to, censored, at a tolerance of 20 %, worked by hand from Figure 1."""


@pytest.mark.parametrize("workload", BY_HAND)
def test_the_published_curves_have_the_transitions_worked_by_hand(
    workload: str, figure_1: dict[str, Regimes]
) -> None:
    found = figure_1[workload].measured
    assert (
        found.perfect_to,
        found.perfect_censored,
        found.useful_to,
        found.useful_censored,
    ) == BY_HAND[workload]


def test_the_statements_of_the_authors_hold(figure_1: dict[str, Regimes]) -> None:
    # "ResNet-8 on CIFAR-10 has no benefit beyond 1,024; ResNet-50 on ImageNet goes on to at least 65,536."
    useful = figure_1["cifar_10/resnet_8/nesterov_momentum"].measured.useful_to
    assert useful is not None
    assert useful <= 1024
    assert str(figure_1["imagenet/resnet_50/nesterov_momentum"].measured) == (
        "perfect scaling to 8,192; useful to at least 65,536, the largest measured (tolerance 20 %)"
    )


def test_the_same_curve_in_figures_1_and_2_has_the_same_transitions() -> None:
    workload = "mnist/simple_cnn_base/nesterov_momentum"
    goal = Goal("val/classification_error", 0.01)
    found = published_regimes([workload], goal=goal, draws=99)
    assert [answer.figure for answer in found] == ["1", "2", "4", "5"]
    assert len({(a.measured.perfect_to, a.measured.useful_to) for a in found}) == 1
    critical = [answer.law.critical_batch_size for answer in found if answer.law]
    assert max(critical) / min(critical) < 1.001


curves = st.integers(2, 12).flatmap(
    lambda n: st.tuples(
        st.lists(st.integers(0, 16), min_size=n, max_size=n, unique=True).map(sorted),
        st.lists(st.floats(1, 1e6), min_size=n, max_size=n),
        st.sampled_from([0.05, 0.1, 0.2, 0.5, 1.0]),
    )
)


@given(curves)
def test_transitions_are_those_of_a_plain_loop(drawn: tuple[list[int], list[float], float]) -> None:
    powers, steps, tolerance = drawn
    sizes = [2.0**power for power in powers]
    found = transitions(curve(sizes, steps), tolerance=tolerance)
    assert (
        found.perfect_to,
        found.useful_to,
        found.perfect_censored,
        found.useful_censored,
    ) == plain.transitions(sizes, steps, tolerance)
    np.testing.assert_allclose(monotone(steps), plain.monotone(steps))


@given(curves, st.randoms(use_true_random=False))
def test_a_shuffled_curve_has_the_same_transitions(
    drawn: tuple[list[int], list[float], float], random: Any
) -> None:
    powers, steps, tolerance = drawn
    table = curve([2**power for power in powers], steps)
    order = list(range(len(table)))
    random.shuffle(order)
    assert transitions(table.iloc[order], tolerance=tolerance) == transitions(table, tolerance=tolerance)


@given(curves, st.integers(-3, 8), st.floats(0.01, 100))
def test_rescaling_batch_sizes_rescales_the_transitions_and_rescaling_steps_does_nothing(
    drawn: tuple[list[int], list[float], float], octaves: int, unit: float
) -> None:
    powers, steps, tolerance = drawn
    before = transitions(curve([2.0**p for p in powers], steps), tolerance=tolerance)
    after = transitions(
        curve([2.0 ** (p + octaves) for p in powers], np.array(steps) * unit), tolerance=tolerance
    )
    assert before.perfect_to is not None
    assert before.useful_to is not None
    # A curve within rounding of its tolerance may fall to either side.
    smooth = monotone(steps)
    for height in (np.log(2.0 ** np.array(powers) * smooth), np.log(smooth)):
        edge = np.abs(np.abs(height[:, None] - height) - math.log1p(tolerance))
        if edge.min() < 1e-6:
            return
    assert after.perfect_to == before.perfect_to * 2.0**octaves
    assert after.useful_to == before.useful_to * 2.0**octaves


@given(curves)
def test_a_larger_tolerance_never_ends_perfect_scaling_earlier_nor_asks_for_larger_batches(
    drawn: tuple[list[int], list[float], float],
) -> None:
    powers, steps, _ = drawn
    table = sensitivity(curve([2**power for power in powers], steps))
    assert table["perfect_to"].is_monotonic_increasing
    # Batch sizes a factor of two or more apart, so no end is taken for a whole doubling.
    assert table["useful_to"].is_monotonic_decreasing


@given(curves)
def test_no_transition_lies_beyond_the_data(drawn: tuple[list[int], list[float], float]) -> None:
    powers, steps, tolerance = drawn
    sizes = [2**power for power in powers]
    found = transitions(curve(sizes, steps), tolerance=tolerance)
    assert found.perfect_to in sizes
    assert found.useful_to in sizes
    for crossing in (found.perfect_crossing, found.useful_crossing):
        assert crossing is None or sizes[0] <= crossing <= sizes[-1]
    if found.perfect_crossing is not None:
        assert found.perfect_to is not None
        assert found.perfect_to <= found.perfect_crossing * (1 + 1e-12)


def test_a_curve_that_still_falls_is_useful_to_at_least_its_end() -> None:
    found = transitions(curve([1, 2, 4, 8], [800, 400, 200, 100]))
    assert (found.perfect_to, found.perfect_censored) == (8, True)
    assert (found.useful_to, found.useful_censored) == (8, True)
    assert str(found) == (
        "perfect scaling to at least 8, the largest measured; useful to at least 8 (tolerance 20 %)"
    )


def test_batch_sizes_close_together_do_not_pass_for_a_floor() -> None:
    sizes = [1000, 1050, 1100, 1150, 1200]
    found = transitions(curve(sizes, [1e6 / size for size in sizes]))
    assert (found.useful_to, found.useful_censored) == (1200, True)


def test_a_flat_curve_is_censored_at_its_smallest_batch_size() -> None:
    found = transitions(curve([1, 2, 4, 8], [100, 100, 99, 100]))
    assert (found.perfect_to, found.useful_to, found.useful_censored) == (1, 1, False)
    assert str(found) == (
        "no perfect scaling beyond 1, the smallest measured; not useful beyond 1, the smallest measured "
        "(tolerance 20 %)"
    )


def test_batch_sizes_that_missed_the_goal_are_named_not_dropped() -> None:
    steps = pd.array([None, 400, 200, 100, None], dtype="Int64")
    found = transitions(curve([1, 2, 4, 8, 16], steps))
    assert found.not_reached == (1, 16)
    assert (found.smallest, found.largest) == (2, 8)
    assert "no trial reached the goal at batch size 1, 16" in found.warnings


def test_no_batch_size_reached_the_goal() -> None:
    found = transitions(curve([1, 2], [np.nan, np.inf]))
    assert found.perfect_to is None
    assert found.useful_to is None
    assert str(found) == "no batch size reached the goal"
    answer = regimes_of_curve(curve([1, 2], [np.nan, np.inf]), rng=np.random.default_rng(0))
    assert answer.law is None
    assert answer.row()["critical_batch_size"] is None
    with pytest.raises(ValueError, match="too few batch sizes"):
        answer.limits("critical")


def test_an_evaluation_grid_wider_than_the_batch_sizes_are_apart_is_told() -> None:
    fine = transitions(curve([1, 2, 4], [400, 200, 100], after=[390, 195, 95]))
    assert fine.grid == pytest.approx(100 / 95)
    assert not fine.warnings
    coarse = transitions(curve([1, 2, 4], [400, 200, 100], after=[390, 195, 45]))
    assert any("batch size 4 are known less well" in note for note in coarse.warnings)
    unknown = curve([1, 2, 4], [400, 200, 100], after=pd.array([390, 195, None], dtype="Int64"))
    assert transitions(unknown).grid == math.inf
    assert transitions(curve([1, 2, 4], [400, 200, 100])).grid is None


def test_steps_that_rise_by_more_than_the_tolerance_are_told() -> None:
    found = transitions(curve([1, 2, 4, 8], [400, 100, 180, 90]))
    assert any("the steps rise with the batch size" in note for note in found.warnings)


@pytest.mark.parametrize(
    ("table", "tolerance", "message"),
    [
        (curve([1, 1], [2, 3]), 0.2, "several workloads"),
        (curve([0, 1], [2, 3]), 0.2, "must be positive"),
        (curve([1, 2], [0, 3]), 0.2, "must be positive"),
        (curve([1, 2], [4, 3]), 0.0, "tolerance must be positive"),
    ],
)
def test_curves_that_make_no_sense_are_refused(table: pd.DataFrame, tolerance: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        transitions(table, tolerance=tolerance)


# ----- laws ---------------------------------------------------------------------------------------


def knee(sizes: Any, floor: float, critical: float, sharpness: float) -> Any:
    return floor * (1 + (critical / np.asarray(sizes, dtype=float)) ** sharpness) ** (1 / sharpness)


SIZES = 2.0 ** np.arange(13)

shapes = st.tuples(st.floats(1, 1e6), st.floats(8, 512), st.floats(0.7, 6))


@given(shapes)
def test_a_knee_is_recovered_from_its_own_points(shape: tuple[float, float, float]) -> None:
    floor, critical, sharpness = shape
    fit = fit_scaling_law(SIZES, knee(SIZES, *shape))
    assert fit.critical_batch_size == pytest.approx(critical, rel=1e-4)
    assert fit.floor == pytest.approx(floor, rel=1e-4)
    assert math.exp(fit.parameters["log_sharpness"]) == pytest.approx(sharpness, rel=1e-3)
    assert fit.scatter < 1e-4
    assert fit.outliers == ()


@given(st.floats(2, 10), st.floats(1, 6), st.floats(-0.8, -0.2))
def test_three_pieces_are_recovered_from_their_own_points(first: float, width: float, slope: float) -> None:
    x = np.log(SIZES)
    corners = first * math.log(2) / 1.6, (first / 1.6 + width) * math.log(2)
    log_steps = slope * (np.clip(x, *corners) - corners[1]) - (np.minimum(x, corners[0]) - corners[0])
    fit = fit_scaling_law(SIZES, np.exp(log_steps), law="pieces")
    assert fit.scatter < 0.02
    expected = corners[0] + slope * (corners[0] - corners[1])
    assert math.log(fit.critical_batch_size) == pytest.approx(expected, abs=0.1)


@given(shapes, st.sampled_from(LAWS), st.integers(-6, 6), st.floats(1e-3, 1e3))
def test_rescaling_batch_sizes_rescales_the_critical_batch_size(
    shape: tuple[float, float, float], law: Law, octaves: int, unit: float
) -> None:
    noise = np.exp(np.random.default_rng(5).normal(0, 0.05, len(SIZES)))
    steps = knee(SIZES, *shape) * noise
    before = fit_scaling_law(SIZES, steps, law=law)
    after = fit_scaling_law(SIZES * 2.0**octaves, steps * unit, law=law)
    assert after.critical_batch_size == pytest.approx(before.critical_batch_size * 2.0**octaves, rel=1e-5)
    assert after.floor == pytest.approx(before.floor * unit, rel=1e-5)
    assert after.aicc == pytest.approx(before.aicc, abs=1e-3)


@given(st.permutations(range(len(SIZES))), st.sampled_from(LAWS))
def test_permuting_the_points_changes_no_fit(order: list[int], law: Law) -> None:
    steps = knee(SIZES, 100, 64, 2) * np.exp(np.random.default_rng(1).normal(0, 0.05, len(SIZES)))
    assert fit_scaling_law(SIZES[order], steps[order], law=law) == fit_scaling_law(SIZES, steps, law=law)


@given(st.sampled_from(LAWS), shapes)
def test_the_transitions_of_a_law_are_where_its_steps_leave_the_tolerance(
    law: Law, shape: tuple[float, float, float]
) -> None:
    fit = fit_scaling_law(SIZES, knee(SIZES, *shape), law=law)
    found = fit.transitions(0.2)
    assert found.perfect_to is not None
    assert found.useful_to is not None
    if not found.perfect_censored:
        examples = found.perfect_to * fit.steps(found.perfect_to)
        assert examples == pytest.approx(1.2 * fit.smallest * fit.steps(fit.smallest), rel=1e-6)
    if not found.useful_censored and found.useful_to > fit.smallest:
        assert fit.steps(found.useful_to) == pytest.approx(1.2 * fit.floor, rel=1e-6)


def test_the_five_published_critical_batch_sizes_come_out_to_six_digits() -> None:
    points = published.critical_batch_size_points()
    expected = published.critical_batch_size_fits().set_index("model")
    assert len(expected) == 5
    for model, rows in points.groupby("model"):
        fit = fit_scaling_law(rows["batch_size"], rows["steps_fitted"], law="hyperbola")
        found = fit.batch_size_at_overhead(0.2, reference=256)
        assert f"{found:.6g}" == f"{expected.loc[model, 'critical_batch_size']:.6g}"
        # a and b of log(a + b/B): the floor, and the floor times the critical batch size.
        assert fit.floor == pytest.approx(expected.loc[model, "a"], rel=1e-6)
        assert fit.floor * fit.critical_batch_size == pytest.approx(expected.loc[model, "b"], rel=1e-6)


def test_the_overhead_of_a_hyperbola_has_its_closed_form() -> None:
    fit = fit_scaling_law(SIZES, 100 * (1 + 64 / SIZES), law="hyperbola")
    assert fit.batch_size_at_overhead(0.2, reference=16) == pytest.approx(1.2 * 16 + 0.2 * 64, rel=1e-6)


def test_a_law_is_not_read_off_beyond_the_batch_sizes_measured() -> None:
    fit = fit_scaling_law(SIZES, knee(SIZES, 100, 64, 2))
    with pytest.raises(ValueError, match="measured from 1 to 4,096"):
        fit.steps(8192)
    with pytest.raises(ValueError, match="measured from 1 to 4,096"):
        fit.regime(0.5)
    assert fit.steps(8192, extrapolate=True) == pytest.approx(100, rel=1e-3)
    with pytest.raises(ValueError, match="beyond the largest batch size measured"):
        fit.batch_size_at_overhead(1000)
    assert fit.batch_size_at_overhead(1000, extrapolate=True) > 4096


def test_a_critical_batch_size_beyond_the_data_is_refused_in_every_form() -> None:
    steps = knee(SIZES, 100, 50_000, 1.5)
    answer = regimes_of_curve(curve(SIZES, steps), rng=np.random.default_rng(0))
    assert answer.law is not None
    assert not answer.law.determined
    assert any("beyond the largest measured, 4,096" in note for note in answer.warnings)
    row = answer.row()
    assert row["critical_batch_size"] is None
    assert row["critical_high"] is None
    assert "critical batch size" not in str(answer)
    assert answer.law.transitions().useful_censored


def test_a_floor_or_a_slope_that_no_point_shows_is_an_extrapolation() -> None:
    no_floor = fit_scaling_law(SIZES, knee(SIZES, 100, 3000, 1))
    assert not no_floor.determined
    assert any("so the floor is an extrapolation" in note for note in no_floor.warnings)
    no_slope = fit_scaling_law(SIZES, knee(SIZES, 100, 1.5, 1))
    assert not no_slope.determined
    assert any("perfect scaling is an extrapolation" in note for note in no_slope.warnings)


def test_published_curves_that_follow_no_knee_are_flagged(figure_1: dict[str, Regimes]) -> None:
    open_images = figure_1["open_images_v4/resnet_50/nesterov_momentum"]
    assert open_images.row()["critical_batch_size"] is None
    vgg = figure_1["imagenet/vgg_11/nesterov_momentum"]
    assert vgg.best_law == "pieces"
    assert any("follow a pieces law rather than a knee" in note for note in vgg.warnings)
    crawl = figure_1["common_crawl/transformer_base/nesterov_momentum"]
    assert any("scatter by 14 %" in note for note in crawl.warnings)
    for workload in ("lm1b/transformer_base", "cifar_10/resnet_8", "lm1b/lstm"):
        assert figure_1[f"{workload}/nesterov_momentum"].warnings == ()


def test_one_value_far_off_is_named_and_kept() -> None:
    steps = knee(SIZES, 100, 64, 2) * np.exp(np.random.default_rng(2).normal(0, 0.02, len(SIZES)))
    steps[9] *= 11
    fit = fit_scaling_law(SIZES, steps)
    assert fit.outliers == (SIZES[9],)
    assert any("batch size 512" in note and "they were not left out" in note for note in fit.warnings)
    assert len(fit.fitted_to) == len(SIZES)


def test_the_law_that_made_the_points_has_the_lowest_aicc() -> None:
    noise = np.exp(np.random.default_rng(4).normal(0, 0.03, len(SIZES)))
    assert compare_laws(SIZES, knee(SIZES, 100, 64, 1) * noise)["law"].iloc[0] == "hyperbola"
    assert compare_laws(SIZES, knee(SIZES, 100, 64, 4) * noise)["law"].iloc[0] == "knee"
    x = np.log(SIZES)
    pieces = np.exp(-0.3 * (np.clip(x, 2, 7) - 7) - (np.minimum(x, 2) - 2))
    table = compare_laws(SIZES, pieces * noise)
    assert table["law"].iloc[0] == "pieces"
    assert table["weight"].sum() == pytest.approx(1)
    assert table["difference"].is_monotonic_increasing


def test_regimes_follow_each_other() -> None:
    fit = fit_scaling_law(SIZES, knee(SIZES, 100, 64, 2))
    found = [fit.regime(size) for size in SIZES]
    assert found[0] is Regime.PERFECT_SCALING
    assert found[-1] is Regime.MAXIMAL_DATA_PARALLELISM
    order = [list(Regime).index(one) for one in found]
    assert order == sorted(order)
    assert set(order) == {0, 1, 2}


@pytest.mark.parametrize(
    ("sizes", "steps", "law", "message"),
    [
        ([1, 2, 4], [3, 2, 1], "knee", "needs more batch sizes"),
        ([1, 2, 4, 4, 8], [5, 4, 3, 2, 1], "hyperbola", "distinct"),
        ([1, 2, 4, 8, 16], [5, 4, 3, -2, 1], "hyperbola", "positive"),
        ([1, 2, 4, 8], [5, 4, 3], "knee", "as many batch sizes as steps"),
        ([1, 2, 4, 8], [5, 4, 3, 2], "line", "the laws are knee, hyperbola, pieces"),
    ],
)
def test_fits_that_make_no_sense_are_refused(sizes: Any, steps: Any, law: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit_scaling_law(sizes, steps, law=law)


def test_points_that_missed_the_goal_are_left_out_of_a_fit() -> None:
    steps = knee(SIZES, 100, 64, 2)
    holes = steps.copy()
    holes[[0, 7]] = np.inf
    fit = fit_scaling_law(SIZES, holes)
    assert fit.smallest == 2
    assert fit.critical_batch_size == pytest.approx(64, rel=1e-4)


# ----- limits -------------------------------------------------------------------------------------


def search(seed: int = 0, *, missing: float = 0.4) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    steps = knee(SIZES, 1000, 64, 2)[:, None] * np.exp(rng.exponential(0.5, (len(SIZES), 100)))
    steps[rng.random(steps.shape) < missing] = np.nan
    return pd.DataFrame(
        {
            "batch_size": np.repeat(SIZES.astype(int), 100),
            "trial": np.tile(np.arange(1, 101), len(SIZES)),
            "steps": pd.array(np.ceil(steps).ravel(), dtype="Int64"),
        }
    )


@pytest.mark.parametrize("law", get_args(Law))
def test_the_limits_of_every_law_hold_its_own_fit(law: Law) -> None:
    found = bootstrap_law(search(), draws=199, law=law, rng=np.random.default_rng(0))
    for values, point in (
        (found.critical_batch_size, found.fitted.critical_batch_size),
        (found.floor, found.fitted.floor),
        (found.perfect_to(), found.fitted.transitions().perfect_to),
        (found.useful_to(), found.fitted.transitions().useful_to),
    ):
        assert np.quantile(values, 0.01) <= point <= np.quantile(values, 0.99)
    assert found.draws == 199
    scattered = scatter_law(found.fitted, draws=199, rng=np.random.default_rng(0))
    assert scattered.source == "scatter"
    limits = scattered.limits(scattered.critical_batch_size)
    assert limits.low is not None
    assert limits.high is not None
    assert limits.low < found.fitted.critical_batch_size < limits.high


def test_the_order_of_trials_does_not_change_the_limits() -> None:
    trials = search()
    one = bootstrap_law(trials, draws=99, rng=np.random.default_rng(3))
    other = bootstrap_law(trials.sample(frac=1, random_state=1), draws=99, rng=np.random.default_rng(3))
    np.testing.assert_array_equal(one.parameters, other.parameters)


def test_resampled_order_statistics_have_the_distribution_of_resampled_trials() -> None:
    # The shortcut by a Beta variate against the plain way: draw trials, sort them, take the seventh.
    rng = np.random.default_rng(8)
    n, rank, draws = 100, 7, 20_000
    fast = (n * rng.beta(rank, n - rank + 1, draws)).astype(int)
    slow = np.sort(rng.integers(0, n, (draws, n)), axis=1)[:, rank - 1]
    for quantile in (0.05, 0.25, 0.5, 0.75, 0.95):
        assert abs(np.quantile(fast, quantile) - np.quantile(slow, quantile)) <= 1
    assert fast.mean() == pytest.approx(slow.mean(), abs=4 * slow.std() / math.sqrt(draws))


def test_studies_where_most_searches_fail_take_no_part_in_the_law() -> None:
    trials = search()
    smallest = trials["batch_size"] == 1
    trials.loc[smallest & (trials["trial"] > 3), "steps"] = pd.NA
    found = bootstrap_law(trials, draws=99, rng=np.random.default_rng(0))
    assert found.fitted.smallest == 2


def test_too_few_studies_are_refused() -> None:
    trials = search()
    with pytest.raises(ValueError, match="needs more studies in which a search of 10 trials"):
        bootstrap_law(trials[trials["batch_size"] <= 4], rng=np.random.default_rng(0))
    two = trials.assign(workload=["a", "b"] * (len(trials) // 2))
    with pytest.raises(ValueError, match="one workload"):
        bootstrap_law(two, rng=np.random.default_rng(0))


def test_limits_beyond_the_data_are_open() -> None:
    found = bootstrap_law(search(), draws=99, rng=np.random.default_rng(0))
    limits = found.limits(np.full(99, 1e6))
    assert limits.high is None
    assert found.limits(np.full(99, 1e-6)).low is None
    with pytest.raises(ValueError, match="confidence_level"):
        found.limits(found.floor, confidence_level=1.5)


# ----- published table, comparisons, command line -------------------------------------------------


def test_every_series_of_figures_1_to_6_has_a_row_in_the_bundled_table() -> None:
    bundled = pd.read_csv(published.bundled("published/transitions.csv"), dtype={"figure": str})
    panels = [panel for panel in paper.PANELS if panel.figure in ("1", "2", "3", "4", "5", "6")]
    series = {figure: sum(len(p.series) for p in panels if p.figure == figure) for figure in "123456"}
    assert bundled["figure"].value_counts().to_dict() == series
    assert list(bundled.columns) == FIELDS
    # The whole table in the same way takes half a minute.
    again = as_table(published_regimes(figures=["4", "6"]))
    bundled = bundled[bundled["figure"].isin(["4", "6"])]
    assert bundled.groupby(["workload", "metric", "goal"]).ngroups == 15
    for name in bundled.columns:
        if pd.api.types.is_numeric_dtype(bundled[name]) and name not in ("maximize", "inclusive"):
            found = again[name].to_numpy(dtype=float, na_value=np.nan)
            np.testing.assert_allclose(found, bundled[name].to_numpy(dtype=float), rtol=2e-3, atol=1e-6)
        elif "censored" not in name and name not in ("maximize", "inclusive", "warning"):
            assert again[name].fillna("").tolist() == bundled[name].fillna("").tolist()


def test_points_off_the_published_axes_and_missing_batch_sizes_are_told() -> None:
    points = published_curves()
    assert int(points["off_scale"].sum()) == 4
    answers = {(a.figure, a.series): a for a in published_regimes(figures=["3"])}
    small = answers["3", "Fully Connected sizes on MNIST: FC-256-256-256"]
    assert any("batch size 1 lies beyond the published axis" in note for note in small.warnings)
    narrow = answers["3", "Fully Connected sizes on MNIST: FC-128-128-128"]
    assert narrow.measured.not_reached == (1,)


def test_published_answers_do_not_depend_on_which_are_asked_for() -> None:
    workload = "lm1b/lstm/nesterov_momentum"
    (alone,) = as_table(published_regimes([workload], figures=["1"])).to_dict("records")
    among = as_table(published_regimes(figures=["1"]))
    (again,) = among[among["workload"] == workload].to_dict("records")
    assert json.dumps(alone, default=str) == json.dumps(again, default=str)
    with pytest.raises(UnknownWorkload, match="no series of nowhere"):
        published_regimes(["nowhere"])


def test_a_comparison_has_ratios_with_limits() -> None:
    answers = published_regimes(figures=["3"])
    lstm = [a for a in answers if a.series.startswith("Transformer vs LSTM")]
    lstm.sort(key=lambda answer: answer.series, reverse=True)  # the Transformer first
    table = compare(lstm).set_index("series")
    row = table.loc["Transformer vs LSTM on LM1B: LSTM"]
    assert row["differs_in"] == "model"
    assert row["training_set_size"] == 30_301_028
    assert row["critical_ratio_low"] < row["critical_ratio"] < row["critical_ratio_high"] < 0.2
    assert table.loc["Transformer vs LSTM on LM1B: Transformer", "critical_ratio"] == 1
    assert row["useful_ratio_measured"] == 1024 / 4096
    with pytest.raises(ValueError, match="one of 2 answers"):
        compare(lstm, reference=2)


def test_a_ratio_that_rests_on_batch_sizes_beyond_the_data_is_open(figure_1: dict[str, Regimes]) -> None:
    names = ("lm1b/transformer_base", "open_images_v4/resnet_50", "imagenet/resnet_50")
    table = compare([figure_1[f"{name}/nesterov_momentum"] for name in names])
    open_images, imagenet = table.iloc[1], table.iloc[2]
    assert math.isnan(open_images["critical_ratio"])
    assert math.isnan(open_images["critical_ratio_high"])
    assert math.isnan(open_images["useful_ratio_high"])
    assert open_images["useful_ratio_low"] > 1
    assert math.isnan(imagenet["useful_ratio_measured"])
    assert imagenet["critical_ratio_low"] > 10


FIELDS = [
    *SUMMARY,
    "figure",
    "maximize",
    "inclusive",
    "smallest",
    "largest",
    "not_reached",
    "perfect_crossing",
    "useful_crossing",
    "trials",
    "reached",
    "grid",
    "confidence_level",
    "best_law",
    "aicc_difference",
    "law_perfect_to",
    "law_perfect_censored",
    "perfect_low",
    "perfect_high",
    "law_useful_to",
    "law_useful_censored",
    "useful_low",
    "useful_high",
    "limits_from",
    "scatter",
    "floor",
]
"""The fields of the JSON, in order: scripts rely on them."""


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def test_regimes_of_published_curves_on_the_command_line() -> None:
    workload = "imagenet/resnet_50/nesterov_momentum"
    arguments = ["regimes", workload, "--source", "published", "--draws", "99"]
    found = run(*arguments, "--format", "json")
    assert found.exit_code == 0, found.output
    rows = json.loads(found.stdout)
    assert [list(row) for row in rows] == [FIELDS] * len(rows)
    first = rows[0]
    assert (first["perfect_to"], first["useful_to"], first["useful_censored"]) == (8192, 65536, True)
    assert (first["trials"], first["reached"], first["grid"]) == (None, None, None)
    table = run(*arguments, "--tolerance", "0.1", "--tolerance", "0.5", "--format", "csv")
    assert table.exit_code == 0
    assert table.stdout.splitlines()[0] == ",".join(FIELDS)
    assert len(table.stdout.splitlines()) == 1 + 2 * len(rows)
    assert "8,192" in run(*arguments).stdout
    only = run(*arguments, "--metric", "val/classification_error", "--goal", "0.25", "--format", "json")
    assert {row["goal"] for row in json.loads(only.stdout)} == {0.25}


def test_regimes_on_the_command_line_refuse_what_makes_no_sense() -> None:
    published_only = ("--source", "published")
    assert run("regimes", *published_only, "--tolerance", "0").exit_code == 2
    assert run("regimes", *published_only, "nowhere").exit_code == 2
    assert run("regimes", *published_only, "--goal", "0.1").exit_code == 2


WORKLOAD = "cifar_10/resnet_8/sgd"


@pytest.mark.filterwarnings("ignore:.*fewer than 100 trials")
def test_regimes_of_a_store_on_the_command_line(simulated_store: Store) -> None:
    data = ("--data", str(simulated_store.path))
    found = run("regimes", WORKLOAD, *data, "--best-of", "5", "--draws", "99", "--format", "json")
    assert found.exit_code == 0, found.output
    (row,) = json.loads(found.stdout)
    assert list(row) == FIELDS
    assert row["series"] == "first 100 trials"
    assert row["limits_from"] == "trials"
    assert row["grid"] is None or row["grid"] > 1
    assert row["trials"] >= row["reached"]
    compared = run("regimes", WORKLOAD, WORKLOAD, *data, "--best-of", "5", "--draws", "99", "--compare")
    assert compared.exit_code == 0


@pytest.mark.filterwarnings("ignore:.*fewer than 100 trials")
def test_a_diverged_trial_is_a_failed_search_in_the_law_but_no_trial_of_the_curve(
    simulated_store: Store,
) -> None:
    goal = paper.goal_of(WORKLOAD)
    assert goal is not None
    answer = stored_regimes(simulated_store, WORKLOAD, goal, first=100, k=5, draws=99)
    counts = simulated_store.counts()
    complete = counts.loc[counts["workload"] == WORKLOAD, "complete"].min()
    assert answer.trials == complete
