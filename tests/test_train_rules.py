"""When trials are measured and when they end."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchscience.train.rules import EvaluationRule, Limits, NoiseRule


@given(
    every=st.integers(1, 50),
    dense=st.integers(0, 200),
    ratio=st.floats(1.0, 3.0),
    last=st.integers(1, 3000),
    also=st.lists(st.integers(0, 3500), max_size=5).map(tuple),
)
@settings(deadline=None)
def test_steps_increase_end_at_the_last_and_no_gap_is_wider_than_the_ratio(every, dense, ratio, last, also):
    rule = EvaluationRule(every=every, dense_until=dense, ratio=ratio)
    steps = list(rule.steps(last, also=also))
    assert steps == sorted(set(steps))
    assert steps[-1] == last
    assert {step for step in also if 0 < step <= last} <= set(steps)
    planned = list(rule.steps(last))
    for before, after in itertools.pairwise(planned):
        assert after - before <= max(every, before * (ratio - 1) + every)
        if after != last:
            assert after % every == 0


def test_without_a_last_step_they_go_on_for_ever():
    rule = EvaluationRule(dense_until=3, ratio=2.0)
    assert list(itertools.islice(rule.steps(None), 8)) == [1, 2, 3, 6, 12, 24, 48, 96]
    capped = EvaluationRule(dense_until=3, ratio=2.0, most_between=10)
    assert list(itertools.islice(capped.steps(None), 7)) == [1, 2, 3, 6, 12, 22, 32]


def test_limits_refuse_what_would_never_or_ambiguously_end():
    with pytest.raises(ValueError, match="after steps"):
        Limits()
    with pytest.raises(ValueError, match="after steps"):
        Limits(steps=3, examples=4)
    with pytest.raises(ValueError, match="positive"):
        Limits(steps=0)
    assert Limits(seconds=1.0).steps_at(4) is None
    assert Limits(examples=3).steps_at(4) == 1


def test_rules_refuse_nonsense():
    with pytest.raises(ValueError, match="at least 1 step"):
        EvaluationRule(every=0)
    with pytest.raises(ValueError, match="ratio"):
        EvaluationRule(ratio=0.9)
    with pytest.raises(ValueError, match="3 of them"):
        NoiseRule((0,), batches=2)
