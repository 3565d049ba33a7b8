"""The best value within a budget: against a plain loop, by laws, and Figure 11's rule."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchscience.goals import Budget, Goal
from batchscience.quality import best_measurement, epoch_budget

from . import plain
from .test_results import ERROR, budgets, curve, goals, measurements, table

GOAL = Goal(ERROR, 0.25)


def known(value: Any) -> Any:
    return None if value is pd.NA else value


@given(measurements(), goals, budgets)
def test_the_best_value_is_that_of_a_plain_loop(
    rows: list[dict[str, Any]], goal: Goal, budget: Budget | None
) -> None:
    found = best_measurement(table(rows), goal, budget)
    fast = {
        (row["workload"], row["batch_size"]): tuple(known(row[name]) for name in ("value", "trial", "step"))
        for row in found.to_dict("records")
    }
    assert fast == plain.best_measurement(rows, goal, budget)
    assert list(fast) == sorted(fast)


@given(measurements(), st.integers(1, 300), st.integers(1, 300))
def test_a_larger_budget_never_gives_a_worse_value(rows: list[dict[str, Any]], one: int, other: int) -> None:
    small, large = sorted((one, other))
    before = best_measurement(table(rows), GOAL, Budget(examples=small))["value"].fillna(float("inf"))
    after = best_measurement(table(rows), GOAL, Budget(examples=large))["value"].fillna(float("inf"))
    assert (after <= before).all()


def test_only_studies_that_trained_as_long_as_the_budget_have_a_value() -> None:
    curves = pd.concat([curve([0.9, 0.5, 0.1], batch_size=size) for size in (4, 8, 16, 32)])
    studies = pd.DataFrame(
        {
            "workload": "w",
            "batch_size": [4, 8, 16, 32, 64],
            "train_steps": pd.array([20, 19, 0, None, 20], dtype="Int64"),
        }
    )
    found = best_measurement(curves, GOAL, Budget(steps=20), studies=studies).set_index("batch_size")
    assert found["covered"].tolist()[:3] == [True, False, False]
    assert found.loc[32, "covered"] is pd.NA
    assert found.loc[4, "value"] == 0.1
    assert found.loc[[8, 16], "value"].isna().all()
    # Without a statement of its length a study is not left out, and one without curves has no value.
    assert found.loc[32, "value"] == 0.1
    assert found.loc[64, "value"] is pd.NA


def test_of_equal_values_the_earliest_step_then_the_lowest_trial_is_named() -> None:
    curves = pd.concat(
        [curve([0.9, 0.5, 0.1], trial=1), curve([0.9, 0.1, 0.2], trial=3), curve([0.8, 0.1], trial=2)]
    )
    best = best_measurement(curves, GOAL).iloc[0]
    assert (best["value"], best["step"], best["trial"]) == (0.1, 10, 2)


def test_a_study_of_nan_alone_has_no_best_value() -> None:
    best = best_measurement(curve([float("nan"), None]), GOAL).iloc[0]
    assert best["value"] is pd.NA
    assert best["trial"] is pd.NA


def test_epochs_are_counted_in_the_training_set_of_the_workload() -> None:
    assert epoch_budget("mnist/simple_cnn_base/sgd", 10) == Budget(examples=550_000)
    assert epoch_budget("mine/model/sgd", 2, training_set_size=50) == Budget(examples=100)
    with pytest.raises(ValueError, match="training-set size of mine/model/sgd is not known"):
        epoch_budget("mine/model/sgd", 2)


def test_the_example_budget_of_the_paper_is_steps_times_batch_size() -> None:
    curves = pd.concat([curve([0.9, 0.5, 0.1], batch_size=size) for size in (4, 8)])
    found = best_measurement(curves, GOAL, Budget(examples=80)).set_index("batch_size")["value"]
    assert found.to_dict() == {4: 0.1, 8: 0.5}
