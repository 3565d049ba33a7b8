"""Goals and budgets."""

import numpy as np
import pytest

from batchscience.goals import Budget, Goal


def test_a_goal_is_strict_unless_it_says_so() -> None:
    assert not Goal("e", 0.1).met(0.1)
    assert Goal("e", 0.1, inclusive=True).met(0.1)
    assert not Goal("e", 94.0, maximize=True).met(94.0)
    assert Goal("e", 94.0, maximize=True, inclusive=True).met(94.0)
    assert str(Goal("e", 94.0, maximize=True, inclusive=True)) == "e >= 94"


def test_a_missing_value_meets_no_goal() -> None:
    for goal in (Goal("e", 0.1), Goal("e", 0.1, maximize=True), Goal("e", 0.1, inclusive=True)):
        assert not goal.met(np.nan)
    assert not Goal("e", 0.1).met(np.inf)
    assert Goal("e", 0.1, maximize=True).met(np.inf)


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="name of a metric"):
        Goal("", 0.1)
    with pytest.raises(ValueError, match="finite"):
        Goal("e", float("nan"))
    with pytest.raises(ValueError, match="exactly one"):
        Budget()
    with pytest.raises(ValueError, match="exactly one"):
        Budget(steps=1, examples=1)
    with pytest.raises(ValueError, match="positive"):
        Budget(steps=0)


def test_an_example_budget_counts_steps_times_batch_size() -> None:
    assert Budget(examples=100).last_step(30) == 3
    assert Budget(examples=90).last_step(30) == 3
    assert Budget(steps=7).last_step([1, 1000]).tolist() == [7, 7]
