"""Simulated metaparameter searches with known laws: what the coverage of the analysis is measured on."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from batchscience.laws import Law, bootstrap_law
from batchscience.results import best_of, steps_to_result
from batchscience.simulate import KneeLaw
from batchscience.transitions import TOLERANCE, transitions


@dataclass(frozen=True)
class Setting:
    """How a search comes out.

    ``delay`` is the scale of the (exponential) log of a trial's steps over the law's; ``reach`` the
    probability that a COMPLETE trial reaches the goal; ``study_scatter`` the standard deviation of log
    steps between studies beyond their trials; ``evaluations`` the number of evaluations up to three times
    the law's steps.
    """

    batch_sizes: tuple[int, int] = (10, 15)
    spacing: float = 2.0
    trials: int = 100
    diverged: int = 30
    delay: float = 0.5
    reach: float = 0.6
    study_scatter: float = 0.05
    evaluations: int = 200
    sharpness: tuple[float, ...] = (1.0, 1.5, 2.0, 3.0, 5.0)


@dataclass(frozen=True)
class Search:
    """A workload: the steps to goal of its trials, and the law behind them."""

    trials: pd.DataFrame
    law: KneeLaw
    batch_sizes: NDArray[np.float64]


def draw(setting: Setting, rng: np.random.Generator) -> Search:
    """A workload of random law, searched at random."""
    low, high = setting.batch_sizes
    sizes = setting.spacing ** np.arange(rng.integers(low, high + 1))
    # The knee lies inside the batch sizes measured: two of them below it, three above.
    critical = setting.spacing ** rng.uniform(2, len(sizes) - 4)
    law = KneeLaw(1000 * math.exp(rng.normal()), critical, float(rng.choice(setting.sharpness)))
    best = np.array([law.steps(size) for size in sizes])
    shift = np.exp(rng.normal(0, setting.study_scatter, len(sizes)))
    n = setting.trials + setting.diverged
    delays = rng.exponential(setting.delay, (len(sizes), n))
    steps = (best * shift)[:, None] * np.exp(delays)
    gap = 3 * best[:, None] / setting.evaluations
    crossing = np.ceil(steps / gap)
    failed = (rng.random(steps.shape) > setting.reach) | (crossing > setting.evaluations)
    failed[:, setting.trials :] = True
    failed = rng.permuted(failed, axis=1)
    table = pd.DataFrame(
        {
            "batch_size": np.repeat(sizes.astype(np.int64), n),
            "trial": np.tile(np.arange(1, n + 1), len(sizes)),
            "steps": np.where(failed, np.nan, crossing * gap).ravel(),
            "after": np.where(failed, np.nan, (crossing - 1) * gap).ravel(),
        }
    )
    # Steps are whole numbers in a real table; here their rounding would only add to the grid's.
    table[["steps", "after"]] = np.ceil(table[["steps", "after"]])
    return Search(table.astype({"steps": "Int64", "after": "Int64"}), law, sizes)


def true_transitions(search: Search, tolerance: float = TOLERANCE) -> tuple[float, float]:
    """End of perfect scaling from the smallest batch size, and maximum useful batch size, of the law."""
    law, smallest = search.law, search.batch_sizes[0]
    limit = (1 + tolerance) * smallest * law.steps(smallest)
    low, high = smallest, 1e12
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if middle * law.steps(middle) <= limit else (low, middle)
    return low, law.useful_to(tolerance)


@dataclass(frozen=True)
class Outcome:
    """What the analysis said of one workload, held against the truth."""

    critical_covered: bool
    critical_width: float
    determined: bool
    perfect_by_law: bool
    useful_by_law: bool
    perfect_measured: bool
    useful_measured: bool
    perfect_crossing: bool
    useful_crossing: bool


def outcome(
    search: Search, rng: np.random.Generator, *, law: Law = "knee", draws: int = 199, level: float = 0.9
) -> Outcome:
    """Analyse one workload and say whether the truth lies where the analysis puts it."""
    distribution = bootstrap_law(search.trials, k=10, draws=draws, law=law, rng=rng)
    tail = (1 - level) / 2
    low, high = np.quantile(distribution.critical_batch_size, [tail, 1 - tail])
    perfect, useful = true_transitions(search)
    by_law = distribution.fitted.transitions()
    measured = transitions(steps_to_result(search.trials, expected=1))
    return Outcome(
        bool(low <= search.law.critical_batch_size <= high),
        float(np.log2(high / low)),
        distribution.fitted.determined,
        _within_two(by_law.perfect_to, by_law.perfect_censored, perfect),
        _within_two(by_law.useful_to, by_law.useful_censored, useful),
        _within_two(measured.perfect_to, measured.perfect_censored, perfect),
        _within_two(measured.useful_to, measured.useful_censored, useful),
        _within_two(measured.perfect_crossing or measured.perfect_to, measured.perfect_censored, perfect),
        _within_two(measured.useful_crossing or measured.useful_to, measured.useful_censored, useful),
    )


def _within_two(estimate: float | None, censored: bool, truth: float) -> bool:
    assert estimate is not None
    return truth >= estimate / 2 if censored else estimate / 2 <= truth <= estimate * 2


def best_of_coverage(setting: Setting, rng: np.random.Generator, studies: int, level: float = 0.9) -> float:
    """How often the limits of the best of 10 hold the true median of a search of 10 trials."""
    n = setting.trials + setting.diverged
    reach = setting.reach * setting.trials / n
    # P(no trial of 10 is as fast) = 1/2.
    share = (1 - 0.5**0.1) / reach
    truth = -setting.delay * math.log1p(-share)
    hits = 0
    for _ in range(studies):
        delays = rng.exponential(setting.delay, n)
        delays[rng.random(n) > reach] = np.inf
        found = best_of(np.exp(delays), 10, confidence_level=level)
        hits += found.low <= math.exp(truth) <= found.high
    return hits / studies
