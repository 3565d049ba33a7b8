"""Steps to goal, steps to result, and the best of k: against plain loops, by laws, and case by case."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from batchscience.goals import Budget, Goal
from batchscience.results import (
    best_of,
    best_of_by_study,
    first_trials,
    rank_of_best,
    steps_to_goal,
    steps_to_result,
)
from batchscience.schemas import MEASUREMENT_KEY

from . import plain

ERROR = "val/classification_error"
GOAL = Goal(ERROR, 0.25)


def arrow(values: Any) -> pd.Series:
    """A column that keeps what is missing apart from NaN, as the store returns it."""
    array = pa.chunked_array([pa.array(list(values), pa.float64(), from_pandas=False)])
    return pd.Series(pd.arrays.ArrowExtensionArray(array))


def table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    frame = pd.DataFrame({name: [row[name] for row in rows] for name in MEASUREMENT_KEY})
    frame = frame.astype({"batch_size": "int64", "trial": "int64", "step": "int64"})
    return frame.assign(**{ERROR: arrow(row[ERROR] for row in rows)})


def curve(values: list[float | None], *, batch_size: int = 8, trial: int = 1, gap: int = 10) -> pd.DataFrame:
    return table(
        [
            {"workload": "w", "batch_size": batch_size, "trial": trial, "step": i * gap, ERROR: value}
            for i, value in enumerate(values)
        ]
    )


def trials(steps: list[float | None], *, batch_size: int = 8, start: int = 1) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "batch_size": batch_size,
            "trial": range(start, start + len(steps)),
            "steps": pd.array(steps, dtype="Int64"),
        }
    )


def known(value: Any) -> Any:
    return None if value is pd.NA else value


levels = st.one_of(
    st.none(), st.just(float("nan")), st.just(float("inf")), st.integers(0, 10).map(lambda n: n / 20)
)


@st.composite
def measurements(draw: st.DrawFn) -> list[dict[str, Any]]:
    keys = draw(
        st.lists(
            st.tuples(
                st.sampled_from(["b", "a/b"]),
                st.sampled_from([1, 4, 64]),
                st.integers(1, 3),
                st.integers(0, 6),
            ),
            unique=True,
            max_size=40,
        )
    )
    return [
        {"workload": w, "batch_size": b, "trial": t, "step": s, ERROR: draw(levels)} for w, b, t, s in keys
    ]


goals = st.builds(
    Goal,
    metric=st.just(ERROR),
    threshold=st.sampled_from([0.1, 0.25, 0.5]),
    maximize=st.booleans(),
    inclusive=st.booleans(),
)
budgets = st.one_of(
    st.none(),
    st.builds(Budget, steps=st.sampled_from([1, 3, 4.5])),
    st.builds(Budget, examples=st.sampled_from([4, 100, 256.5])),
)


def quiet_steps_to_goal(*args: Any, **kwargs: Any) -> pd.DataFrame:
    """Drawn curves start anywhere, which rightly looks like unlike objectives."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* at step 0 is")
        return steps_to_goal(*args, **kwargs)


@given(measurements(), goals, budgets)
def test_steps_to_goal_and_result_are_those_of_a_plain_loop(
    rows: list[dict[str, Any]], goal: Goal, budget: Budget | None
) -> None:
    found = quiet_steps_to_goal(table(rows), goal, budget)
    fast = {
        (r.workload, r.batch_size, r.trial): (known(r.steps), known(r.after), known(r.until))
        for r in found.itertuples()
    }
    slow = plain.steps_to_goal(rows, goal, budget)
    assert fast == slow
    assert list(fast) == sorted(fast)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the studies have between")
        result = steps_to_result(found)
    names = ("steps", "trial", "after", "reached", "trials")
    assert {
        (r["workload"], r["batch_size"]): {name: known(r[name]) for name in names}
        for r in result.to_dict("records")
    } == plain.steps_to_result(slow)


@given(measurements(), goals, st.randoms(use_true_random=False))
def test_a_shuffled_table_gives_the_same_steps(rows: list[dict[str, Any]], goal: Goal, random: Any) -> None:
    expected = quiet_steps_to_goal(table(rows), goal)
    random.shuffle(rows)
    pd.testing.assert_frame_equal(quiet_steps_to_goal(table(rows), goal), expected)
    frame = table(rows)
    as_category = frame.assign(workload=pd.Categorical(frame["workload"], categories=["b", "unused", "a/b"]))
    again = quiet_steps_to_goal(as_category, goal)
    pd.testing.assert_frame_equal(again.astype({"workload": expected["workload"].dtype}), expected)
    indexed = frame.set_index(list(MEASUREMENT_KEY))
    pd.testing.assert_frame_equal(quiet_steps_to_goal(indexed, goal), expected)


@given(measurements(), st.floats(0.0, 0.5), st.floats(0.0, 0.5), st.booleans())
def test_a_harder_goal_never_takes_fewer_steps(
    rows: list[dict[str, Any]], one: float, other: float, maximize: bool
) -> None:
    easy, hard = (min(one, other), max(one, other)) if maximize else (max(one, other), min(one, other))
    few = quiet_steps_to_goal(table(rows), Goal(ERROR, easy, maximize))["steps"]
    many = quiet_steps_to_goal(table(rows), Goal(ERROR, hard, maximize))["steps"]
    assert (many.fillna(10**9) >= few.fillna(10**9)).all()


@given(measurements(), st.integers(1, 300), st.integers(1, 300), st.booleans())
def test_a_larger_budget_loses_no_result(
    rows: list[dict[str, Any]], one: int, other: int, examples: bool
) -> None:
    small, large = (
        Budget(examples=limit) if examples else Budget(steps=limit) for limit in sorted((one, other))
    )
    before = quiet_steps_to_goal(table(rows), GOAL, small)["steps"]
    after = quiet_steps_to_goal(table(rows), GOAL, large)["steps"]
    reached = before.notna()
    assert (before[reached] == after[reached]).all()


@given(
    st.lists(st.one_of(st.none(), st.integers(1, 50)), min_size=1, max_size=8),
    st.one_of(st.none(), st.integers(1, 50)),
)
def test_one_more_trial_never_raises_steps_to_result(steps: list[int | None], more: int | None) -> None:
    before = steps_to_result(trials(list(steps)))["steps"].fillna(10**9)
    after = steps_to_result(trials([*steps, more]))["steps"].fillna(10**9)
    assert after.iloc[0] <= before.iloc[0]


def test_the_first_evaluation_that_meets_the_goal_counts_not_the_best() -> None:
    found = steps_to_goal(curve([0.9, 0.3, 0.2, 0.4, 0.1]), GOAL).iloc[0]
    assert (found["steps"], found["after"], found["until"]) == (20, 10, 40)


def test_a_goal_met_at_the_first_evaluation_has_nothing_before_it() -> None:
    found = steps_to_goal(curve([0.1, 0.2]), GOAL).iloc[0]
    assert found["steps"] == 0
    assert found["after"] is pd.NA


def test_the_threshold_itself_reaches_an_inclusive_goal_only() -> None:
    exact = curve([0.9, 0.25, 0.1])
    assert steps_to_goal(exact, GOAL).iloc[0]["steps"] == 20
    inclusive = Goal(ERROR, 0.25, inclusive=True)
    assert steps_to_goal(exact, inclusive).iloc[0]["steps"] == 10
    assert "<=" in str(inclusive)


def test_an_empty_cell_is_not_an_evaluation_but_a_measured_nan_is() -> None:
    found = steps_to_goal(curve([0.9, None, 0.2]), GOAL).iloc[0]
    assert (found["steps"], found["after"]) == (20, 0)
    found = steps_to_goal(curve([0.9, float("nan"), 0.2]), GOAL).iloc[0]
    assert (found["steps"], found["after"]) == (20, 10)


def test_nan_in_another_metric_decides_nothing() -> None:
    found = steps_to_goal(curve([0.9, 0.1]).assign(**{"train/gradient_norm": np.inf, "test/x": np.nan}), GOAL)
    assert found.iloc[0]["steps"] == 10


def test_a_study_of_nan_alone_is_not_reached_and_points_into_no_other_group() -> None:
    nan = float("nan")
    both = pd.concat(
        [
            curve([0.9, 0.2], batch_size=4),
            curve([nan, nan], batch_size=8, trial=1),
            curve([nan, nan], batch_size=8, trial=2),
            curve([0.9, 0.2], batch_size=16, trial=1),
            curve([0.9, 0.2], batch_size=16, trial=2),
        ]
    )
    with pytest.warns(UserWarning, match="between 1 and 2 trials"):
        result = steps_to_result(steps_to_goal(both, GOAL)).set_index("batch_size")
    assert result.loc[8, "steps"] is pd.NA
    assert result.loc[8, "trial"] is pd.NA
    assert (result.loc[8, "reached"], result.loc[8, "trials"]) == (0, 2)
    assert (result.loc[16, "steps"], result.loc[16, "trial"]) == (10, 1)
    assert best_of([nan, nan], 1).steps == np.inf


def test_nan_never_wins() -> None:
    first_nan = pd.concat([curve([0.9, float("nan")], trial=1), curve([0.9, 0.3, 0.2], trial=2)])
    result = steps_to_result(steps_to_goal(first_nan, GOAL)).iloc[0]
    assert (result["steps"], result["trial"]) == (20, 2)


def test_of_several_trials_with_the_same_steps_the_lowest_number_is_named() -> None:
    found = trials([30, 30, 40], start=9).iloc[::-1]
    assert steps_to_result(found).iloc[0]["trial"] == 9


def test_a_trial_without_measurements_counts_as_one_that_missed_the_goal() -> None:
    listed = pd.DataFrame({"workload": "w", "batch_size": 8, "trial": [1, 2]})
    found = steps_to_goal(curve([0.9, 0.1]), GOAL, trials=listed)
    assert found["trial"].tolist() == [1, 2]
    result = steps_to_result(found).iloc[0]
    assert (result["reached"], result["trials"]) == (1, 2)


def test_fewer_trials_than_stated_are_a_warning_and_the_missing_ones_no_success() -> None:
    found = pd.concat([trials([10, 20, 30]), trials([10], batch_size=16)])
    with pytest.warns(UserWarning, match=r"1 of 2 studies have fewer than 3 trials \(16: 1\)"):
        steps_to_result(found, expected=3)
    with pytest.warns(UserWarning, match="fewer than 3 trials"):
        bands = best_of_by_study(found, 1, expected=3).set_index("batch_size")
    assert bands.loc[16, "best_of_k"] == np.inf
    assert bands.loc[8, "best_of_k"] == 20


def test_studies_of_unequal_size_are_a_warning_unless_cut_to_the_first_n() -> None:
    found = pd.concat([trials([10, 20, 30]), trials([10], batch_size=16)])
    with pytest.warns(UserWarning, match="between 1 and 3 trials"):
        steps_to_result(found)
    equal = first_trials(found, 1)
    assert equal["trial"].tolist() == [1, 1]
    assert steps_to_result(equal)["trials"].tolist() == [1, 1]


def test_a_missing_setting_is_a_group_of_its_own_and_nan_another() -> None:
    found = trials([10, 20, 30, 40, 50]).assign(
        label_smoothing=arrow([0.1, None, None, float("nan"), 0.1]).to_numpy(object)
    )
    found["label_smoothing"] = arrow([0.1, None, None, float("nan"), 0.1])
    result = steps_to_result(found, by=["label_smoothing"])
    assert result["steps"].tolist() == [10, 40, 20]
    assert result["trials"].tolist() == [2, 1, 2]
    assert result["label_smoothing"].isna().tolist() == [False, False, True]
    as_text = found.assign(label_smoothing=pd.Series(["a", None, None, "b", "a"], dtype="str"))
    assert steps_to_result(as_text, by=["label_smoothing"])["trials"].tolist() == [2, 1, 2]


@pytest.mark.parametrize(
    "column",
    [
        pd.array([2, None, -1, None, 2], dtype="Int64"),
        pd.Categorical(["z", None, "a", None, "z"], categories=["z", "a"]),
        np.array([2.0, np.nan, -1.0, np.nan, 2.0]),
        pd.array([True, None, False, None, True], dtype="boolean"),
    ],
    ids=["whole numbers", "categories", "floats", "yes or no"],
)
def test_a_setting_of_any_type_splits_a_study_and_none_of_its_trials_disappears(column: Any) -> None:
    result = steps_to_result(trials([10, 20, 30, 40, 50]).assign(setting=column), by=["setting"])
    assert sorted(zip(result["steps"], result["trials"], strict=True)) == [(10, 2), (20, 2), (30, 1)]
    assert result["setting"].isna().tolist() == [False, False, True]
    assert result["setting"].dtype == pd.Series(column).dtype


def test_a_loss_summed_over_the_batch_is_a_warning_that_names_the_metric() -> None:
    loss = "val/cross_entropy_error"
    summed = [
        curve([2.3 * size, 0.1 * size], batch_size=size).rename(columns={ERROR: loss}) for size in (8, 16)
    ]
    with pytest.warns(UserWarning, match=rf"{loss} at step 0 is 18.4 at batch size 8 and 36.8 at 16"):
        steps_to_goal(pd.concat(summed), Goal(loss, 1.0))
    # One diverged trial is no sum: of each batch size the median counts, and infinities are none.
    inf = float("inf")
    firsts = {8: [2.3, 2.4, 99.0], 16: [2.2, 2.3, inf], 32: [inf, inf, 2.3], 64: [float("nan"), None, 2.5]}
    unlike = [
        curve([value, 0.1], batch_size=size, trial=trial)
        for size, values in firsts.items()
        for trial, value in enumerate(values)
    ]
    assert len(steps_to_goal(pd.concat(unlike), GOAL)) == 12
    mean = [curve([2.3 + 0.1 * i, 0.1], batch_size=size) for i, size in enumerate((8, 16, 32))]
    assert steps_to_goal(pd.concat(mean), GOAL)["steps"].tolist() == [10, 10, 10]


def test_an_empty_table_has_no_trials_and_no_studies() -> None:
    empty = steps_to_goal(table([]), GOAL)
    assert len(empty) == 0
    assert steps_to_result(empty).columns.tolist() == [
        "workload",
        "batch_size",
        "steps",
        "trial",
        "after",
        "reached",
        "trials",
    ]


def test_a_missing_metric_is_named_with_those_there_are() -> None:
    with pytest.raises(KeyError, match=r"no column 'val/x'; the table has .*classification_error"):
        steps_to_goal(curve([0.1]), Goal("val/x", 1))


def test_best_of_carries_the_evaluation_before_its_steps() -> None:
    found = best_of([30, 20, None], 1, after=[20, 10, None])
    assert (found.steps, found.after) == (30, 20)
    assert np.isnan(best_of([30, 20, None], 1).after)
    bands = best_of_by_study(steps_to_goal(curve([0.9, 0.3, 0.2]), GOAL), 1)
    assert bands.loc[0, ["best_of_k", "best_of_after"]].tolist() == [20, 10]


def test_a_search_that_mostly_fails_has_infinite_steps_and_no_upper_limit() -> None:
    found = best_of([10, *[None] * 9], 2)
    assert (found.steps, found.high, found.reached, found.trials) == (np.inf, np.inf, 1, 10)


def test_too_few_trials_have_no_lower_limit() -> None:
    assert best_of(np.arange(1, 48), 10).low == 0
    assert best_of(np.arange(1, 49), 10).low > 0


@pytest.mark.parametrize(("k", "level"), [(0, 0.9), (4, 0.9), (1, 0.0), (1, 1.0)])
def test_best_of_refuses_nonsense(k: int, level: float) -> None:
    with pytest.raises(ValueError, match=r"k must be|confidence_level"):
        best_of([1, 2, 3], k, confidence_level=level)
    with pytest.raises(ValueError, match="got none"):
        best_of([], 1)


def test_a_study_smaller_than_k_has_no_best_of_k() -> None:
    assert best_of_by_study(trials([1, 2]), 3)["best_of_k"].isna().all()


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=60, unique=True), st.data())
def test_the_best_of_more_trials_never_takes_more_steps(steps: list[int], data: st.DataObject) -> None:
    few = data.draw(st.integers(1, len(steps)))
    many = data.draw(st.integers(few, len(steps)))
    assert best_of(steps, many).steps <= best_of(steps, few).steps
    assert best_of(steps, few).low <= best_of(steps, few).steps <= best_of(steps, few).high


@settings(max_examples=50)
@given(st.integers(1, 150), st.integers(1, 20), st.sampled_from([0.8, 0.9, 0.95]))
def test_the_limits_of_best_of_cover_what_they_say_by_the_binomial(n: int, k: int, level: float) -> None:
    k = min(k, n)
    found = best_of(np.arange(1, n + 1), k, confidence_level=level)
    p = 1 - 0.5 ** (1 / k)
    # P(low-th smallest <= quantile < high-th smallest) for a continuous distribution.
    below = binom.cdf(found.low - 1, n, p) if found.low else 0.0
    upto = binom.cdf(found.high - 1, n, p) if np.isfinite(found.high) else 1.0
    assert upto - below >= level
    assert max(below, 1 - upto) <= 0.75 * (1 - level)
    assert rank_of_best(k, n) == found.steps
