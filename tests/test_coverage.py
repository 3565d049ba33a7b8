"""Whether the limits hold what they say: coverage by simulation, with its standard error.

``benchmarks/coverage.py`` runs more workloads in more settings; its output stands in the documentation.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from batchscience.laws import bootstrap_law
from batchscience.regimes import regimes_of_trials

from .searches import Outcome, Setting, best_of_coverage, draw, outcome, true_transitions

WORKLOADS = 300


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    rng = np.random.default_rng(20190101)
    return [outcome(draw(Setting(), rng), rng, draws=199) for _ in range(WORKLOADS)]


def share(outcomes: list[Outcome], name: str) -> tuple[float, float]:
    """A share of the workloads and its standard error."""
    found = float(np.mean([getattr(one, name) for one in outcomes]))
    return found, math.sqrt(found * (1 - found) / len(outcomes))


def test_nine_in_ten_limits_of_the_critical_batch_size_hold_the_truth(outcomes: list[Outcome]) -> None:
    covered, error = share(outcomes, "critical_covered")
    assert 0.87 <= covered <= 0.95, f"{covered:.3f} ± {error:.3f}"
    # An interval that covers by being endless would be no use.
    assert np.median([one.critical_width for one in outcomes]) < math.log2(1.5)


@pytest.mark.parametrize("what", ["perfect_by_law", "useful_by_law"])
def test_the_fitted_transition_points_lie_within_a_factor_of_two(outcomes: list[Outcome], what: str) -> None:
    near, error = share(outcomes, what)
    assert near - 2 * error >= 0.9, f"{near:.3f} ± {error:.3f}"


def test_fits_to_searches_that_show_both_asymptotes_are_rarely_refused(outcomes: list[Outcome]) -> None:
    assert share(outcomes, "determined")[0] > 0.95


def test_the_measured_transition_points_are_noisier_than_the_fitted_ones(outcomes: list[Outcome]) -> None:
    # The reason why the law is reported beside them.
    for what in ("perfect", "useful"):
        measured, between, by_law = (
            share(outcomes, f"{what}_{how}")[0] for how in ("measured", "crossing", "by_law")
        )
        assert measured < between < by_law


@pytest.mark.parametrize("scatter", [0.0, 0.1])
def test_the_limits_hold_whether_studies_differ_or_not(scatter: float) -> None:
    rng = np.random.default_rng(7)
    setting = dataclasses.replace(Setting(), study_scatter=scatter)
    found = [outcome(draw(setting, rng), rng, draws=199) for _ in range(WORKLOADS // 2)]
    covered, error = share(found, "critical_covered")
    # Half the workloads, so the bar is widened by one standard error.
    assert 0.87 - error <= covered <= 0.95 + error, f"{covered:.3f} ± {error:.3f}"


@pytest.mark.parametrize("trials", [50, 100, 150])
def test_nine_in_ten_limits_of_the_best_of_ten_hold_the_truth(trials: int) -> None:
    setting = dataclasses.replace(Setting(), trials=trials)
    covered = best_of_coverage(setting, np.random.default_rng(trials), 2000)
    error = math.sqrt(covered * (1 - covered) / 2000)
    assert 0.87 <= covered <= 0.95, f"{covered:.3f} ± {error:.3f}"


def test_a_bootstrap_of_trials_alone_covers_far_too_seldom_where_studies_differ() -> None:
    # Why the scatter between studies is drawn too: without it the limits are too narrow by a factor.
    rng = np.random.default_rng(3)
    setting = dataclasses.replace(Setting(), study_scatter=0.1)
    search = draw(setting, rng)
    honest = bootstrap_law(search.trials, k=10, draws=499, rng=rng)
    assert honest.study_scatter is not None
    assert honest.study_scatter > 0.05
    calm = draw(dataclasses.replace(setting, study_scatter=0.0), np.random.default_rng(3))
    narrow = bootstrap_law(calm.trials, k=10, draws=499, rng=rng)
    assert np.log(honest.critical_batch_size).std() > 1.5 * np.log(narrow.critical_batch_size).std()


def test_the_answer_in_words_names_what_was_simulated() -> None:
    rng = np.random.default_rng(11)
    search = draw(Setting(batch_sizes=(13, 13)), rng)
    answer = regimes_of_trials(search.trials, rng=rng, expected=130)
    perfect, _ = true_transitions(search)
    assert answer.law is not None
    found = answer.law.transitions().perfect_to
    assert found is not None
    assert perfect / 2 <= found <= perfect * 2
    assert f"critical batch size {answer.law.critical_batch_size:,.0f} by the knee law" in str(answer)
    assert answer.trials == 130
    assert answer.row()["limits_from"] == "trials"
