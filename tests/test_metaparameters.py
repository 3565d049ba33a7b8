"""The best settings, the heuristics, the edges of the search space, and the shares that reach the goal."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest
from typer.testing import CliRunner

from batchscience import paper, published
from batchscience.cli import app
from batchscience.metaparameters import (
    best_trials,
    edge_distances,
    effective_learning_rate,
    goal_shares,
    heuristics,
    learning_rate_trend,
    parameter_of,
    stored_metaparameters,
)
from batchscience.store import Store

from .test_results import arrow


def found(steps: list[int | None], *, batch_size: int = 8, status: str = "COMPLETE") -> pd.DataFrame:
    return pd.DataFrame(
        {
            "batch_size": batch_size,
            "trial": range(1, len(steps) + 1),
            "steps": pd.array(steps, dtype="Int64"),
            "status": status,
        }
    )


def test_the_effective_learning_rate_is_the_rate_over_one_minus_momentum() -> None:
    trials = pd.DataFrame(
        {"learning_rate": arrow([0.1, 0.1, None, 0.2]), "momentum": arrow([0.9, None, 0.9, 0.0])}
    )
    rates = effective_learning_rate(trials)
    assert rates.round(9).tolist()[:2] == [1.0, 0.1]
    assert math.isnan(rates[2])
    assert rates[3] == 0.2
    assert effective_learning_rate(trials[["learning_rate"]]).tolist()[0] == 0.1
    with pytest.raises(KeyError, match="no column 'learning_rate'"):
        effective_learning_rate(trials[["momentum"]])


def test_the_best_trial_brings_its_own_settings() -> None:
    settings = pd.DataFrame(
        {
            "batch_size": [8, 8, 8, 16],
            "trial": [1, 2, 3, 1],
            "status": "COMPLETE",
            "steps": 1000,
            "learning_rate": arrow([0.1, 0.2, 0.3, 0.4]),
            "label_smoothing": arrow([None, 0.1, None, 0.0]),
        }
    )
    trials = pd.concat([found([30, 20, 20]), found([None], batch_size=16)])
    best = best_trials(trials, settings, expected=1).set_index("batch_size")
    assert best.loc[8, ["trial", "steps", "learning_rate", "label_smoothing"]].tolist() == [2, 20, 0.2, 0.1]
    assert best.loc[8, "effective_learning_rate"] == 0.2
    # No trial reached the goal: the study stays, its settings are missing and not another study's.
    assert best.loc[16, "trial"] is pd.NA
    assert pd.isna(best.loc[16, "learning_rate"])


def test_the_published_stars_lie_far_off_the_linear_heuristic() -> None:
    # The stars of Figure 9a: effective learning rates at batch sizes 128 to 2,048.
    stars = published.stars()
    stars = stars[(stars["figure"] == "9a") & stars["learning_rate"].notna()]
    best = pd.DataFrame(
        {
            "batch_size": stars["panel_title"].str.extract(r"(\d+)")[0].astype(int),
            "effective_learning_rate": stars["learning_rate"] / stars["one_minus_momentum"],
        }
    )
    assert best["batch_size"].tolist() == [128, 256, 512, 1024, 2048]
    off = heuristics(best)
    assert off["linear_off"].iloc[0] == 1
    by_hand = (0.0010564 / 0.0059688) * 16 / (best["effective_learning_rate"].iloc[-1])
    assert off["linear_off"].iloc[-1] == pytest.approx(by_hand)
    trend = learning_rate_trend(best)
    assert trend.low < trend.slope < trend.high
    assert trend.batch_sizes == 5


@given(
    st.floats(-1, 2), st.lists(st.integers(0, 14), min_size=3, max_size=10, unique=True), st.floats(0.01, 10)
)
def test_the_slope_of_a_power_law_is_its_exponent(exponent: float, powers: list[int], unit: float) -> None:
    sizes = 2.0 ** np.array(powers)
    best = pd.DataFrame({"batch_size": sizes, "effective_learning_rate": unit * sizes**exponent})
    trend = learning_rate_trend(best)
    assert trend.slope == pytest.approx(exponent, abs=1e-9)
    assert trend.low == pytest.approx(exponent, abs=1e-6)
    off = heuristics(best)
    ratio = sizes / sizes.min()
    np.testing.assert_allclose(np.sort(off["linear_off"]), np.sort(ratio ** (1 - exponent)), rtol=1e-9)
    np.testing.assert_allclose(np.sort(off["square_root_off"]), np.sort(ratio ** (0.5 - exponent)), rtol=1e-9)


def test_the_limits_of_the_slope_cover_the_truth_nine_times_in_ten() -> None:
    rng = np.random.default_rng(0)
    sizes = 2.0 ** np.arange(10)
    hits = 0
    for _ in range(1000):
        rates = sizes**0.6 * np.exp(rng.normal(0, 0.4, len(sizes)))
        trend = learning_rate_trend(pd.DataFrame({"batch_size": sizes, "effective_learning_rate": rates}))
        hits += trend.low <= 0.6 <= trend.high
    # 0.9 with a standard error of 0.0095.
    assert 0.87 <= hits / 1000 <= 0.93


def test_few_points_have_no_limits() -> None:
    def trend(n: int) -> Any:
        table = pd.DataFrame({"batch_size": [1, 2, 4][:n], "effective_learning_rate": [0.1, 0.2, 0.4][:n]})
        return learning_rate_trend(table)

    assert math.isnan(trend(1).slope)
    assert (trend(2).slope, trend(2).high) == (pytest.approx(1.0), math.inf)
    with pytest.raises(ValueError, match="confidence_level"):
        learning_rate_trend(
            pd.DataFrame({"batch_size": [1], "effective_learning_rate": [1]}), confidence_level=2
        )


def test_heuristics_start_where_they_are_told() -> None:
    best = pd.DataFrame({"batch_size": [4, 8, 16], "effective_learning_rate": [np.nan, 0.1, 0.2]})
    assert heuristics(best)["linear_off"].tolist()[1:] == [1.0, 1.0]
    assert heuristics(best, reference=16)["linear"].tolist() == [0.05, 0.1, 0.2]
    with pytest.raises(ValueError, match="no learning rate at batch size 4"):
        heuristics(best, reference=4)
    with pytest.raises(ValueError, match="one workload"):
        heuristics(pd.concat([best, best]))


SPACE = pd.DataFrame(
    {
        "batch_size": 8,
        "parameter": ["learning_rate", "momentum", "label_smoothing", "fixed", "broken"],
        "type": ["DOUBLE", "DOUBLE", "DISCRETE", "DOUBLE", "DOUBLE"],
        "scale": ["LOG_SCALE", "REVERSE_LOG_SCALE", "", "LINEAR_SCALE", None],
        "min_value": arrow([1e-4, 0.9, None, 1.0, None]),
        "max_value": arrow([1.0, 0.999, None, 1.0, None]),
        "feasible_points": [None, None, [0.0, 0.1], None, None],
    }
)


def test_distances_to_the_edges_are_on_the_scale_of_the_search() -> None:
    best = pd.DataFrame(
        {
            "batch_size": [8],
            "learning_rate": [1e-2],
            "momentum": [0.99],
            "label_smoothing": [0.1],
            "fixed": [1.0],
            "broken": [0.5],
        }
    )
    table = edge_distances(best, SPACE).set_index("parameter")
    assert table.index.tolist() == ["learning_rate", "momentum"]
    assert table.loc["learning_rate", "position"] == pytest.approx(0.5)
    assert table.loc["momentum", "distance"] == pytest.approx(0.5)
    assert not table["near"].any()


@pytest.mark.parametrize(("rate", "edge"), [(1.1e-4, "low"), (0.9, "high"), (2.0, "high")])
def test_a_best_trial_at_the_edge_of_its_space_is_a_warning(rate: float, edge: str) -> None:
    best = pd.DataFrame({"batch_size": [8], "learning_rate": [rate]})
    with pytest.warns(UserWarning, match=rf"learning_rate = .* at batch size 8 \({edge} edge\)"):
        table = edge_distances(best, SPACE)
    assert table["near"].all()


def test_a_study_without_a_space_or_a_best_trial_has_no_distances() -> None:
    best = pd.DataFrame({"batch_size": [8, 16], "learning_rate": arrow([None, 0.1])})
    assert edge_distances(best, SPACE).empty
    assert parameter_of({"parameter": "x", "type": "DOUBLE", "scale": None}) is None


def test_shares_count_every_trial_with_exact_limits() -> None:
    trials = pd.concat(
        [
            found([10, 20, None, None, 30, None]),
            found([None] * 4, status="INFEASIBLE").assign(trial=range(7, 11)),
        ]
    )
    share = goal_shares(trials).iloc[0]
    assert (share["searched"], share["reached_share"], share["diverged_share"]) == (10, 0.3, 0.4)
    exact = binomtest(3, 10).proportion_ci(0.9, method="exact")
    assert share["reached_low"] == pytest.approx(exact.low)
    assert share["reached_high"] == pytest.approx(exact.high)
    none = goal_shares(found([None, None])).iloc[0]
    assert (none["reached_low"], none["diverged_low"]) == (0, 0)
    every = goal_shares(found([1, 2])).iloc[0]
    assert every["reached_high"] == 1


WORKLOAD = "cifar_10/resnet_8/nesterov_momentum"


@pytest.mark.filterwarnings("ignore:.*fewer than 100 trials", "ignore:best trials lie at the edge")
def test_metaparameters_of_a_store_on_the_command_line(simulated_store: Store) -> None:
    goal = paper.goal_of(WORKLOAD)
    assert goal is not None
    table = stored_metaparameters(simulated_store, WORKLOAD, goal, first=100)
    assert table["batch_size"].is_monotonic_increasing
    runs = simulated_store.trials(WORKLOAD)
    one = table.dropna(subset="trial").iloc[0]
    settings = runs[(runs["batch_size"] == one["batch_size"]) & (runs["trial"] == one["trial"])].iloc[0]
    expected = settings["learning_rate"] / (1 - settings["momentum"])
    assert one["effective_learning_rate"] == pytest.approx(expected)
    assert table["reached_share"].between(0, 1).all()
    assert (table["searched"] >= table["trials"]).all()

    found = CliRunner().invoke(
        app, ["metaparameters", WORKLOAD, "--data", str(simulated_store.path), "--format", "json"]
    )
    assert found.exit_code == 0, found.output
    rows = json.loads(found.stdout)
    assert list(rows[0]) == [
        "workload",
        "batch_size",
        "steps",
        "trial",
        "after",
        "reached",
        "trials",
        *(name for name in runs.columns if name in settings and name not in NOT_SETTINGS),
        "effective_learning_rate",
        "linear",
        "linear_off",
        "square_root",
        "square_root_off",
        "learning_rate_slope",
        "slope_low",
        "slope_high",
        "searched",
        "reached_share",
        "reached_low",
        "reached_high",
        "diverged_share",
        "diverged_low",
        "diverged_high",
        "nearest_edge",
        "edge_distance",
        "warning",
    ]
    bad = CliRunner().invoke(
        app, ["metaparameters", WORKLOAD, "--data", str(simulated_store.path), "--reference", "3"]
    )
    assert bad.exit_code == 2


NOT_SETTINGS = {"workload", "batch_size", "trial", "status", "steps", "other_settings"}


@pytest.mark.filterwarnings("ignore:.*fewer than 100 trials", "ignore:best trials lie at the edge")
def test_a_budget_only_lowers_the_share_that_reaches_the_goal(simulated_store: Store) -> None:
    from batchscience.goals import Budget

    goal = paper.goal_of(WORKLOAD)
    assert goal is not None
    without = stored_metaparameters(simulated_store, WORKLOAD, goal, first=100)
    tight = Budget(steps=float(without["steps"].dropna().median()))
    within = stored_metaparameters(simulated_store, WORKLOAD, goal, first=100, budget=tight)
    assert (within["reached_share"] <= without["reached_share"]).all()
    assert within["reached_share"].sum() < without["reached_share"].sum()
    assert (within["diverged_share"] == without["diverged_share"]).all()
