"""When a trial is measured and when it ends: values that need no TensorFlow."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..goals import Goal


@dataclass(frozen=True, slots=True)
class EvaluationRule:
    """Steps at which the metrics are measured: step 0, then densely, then geometrically, and the last one.

    Parameters
    ----------
    every : int, default 1
        Gap of the dense part, and smallest gap at all.
    dense_until : int, default 16
        Last step of the dense part.
    ratio : float, default 1.1
        Ratio of two steps of the geometric part; the crossing of a goal is known to this factor.
    most_between : int, optional
        Largest gap.

    Raises
    ------
    ValueError
        If a gap is below 1 or the ratio below 1.

    Examples
    --------
    >>> list(EvaluationRule(dense_until=4, ratio=1.5).steps(20))
    [1, 2, 3, 4, 6, 9, 14, 20]
    >>> list(EvaluationRule(every=100, dense_until=200, ratio=2.0).steps(1000))
    [100, 200, 400, 800, 1000]
    """

    every: int = 1
    dense_until: int = 16
    ratio: float = 1.1
    most_between: int | None = None

    def __post_init__(self) -> None:
        if self.every < 1 or (self.most_between is not None and self.most_between < self.every):
            raise ValueError(
                f"gaps between measurements are at least 1 step, and the largest not below the least: {self}"
            )
        if not self.ratio >= 1:
            raise ValueError(f"the steps of measurements grow by a ratio of at least 1, got {self.ratio}")

    def steps(self, last: int | None, *, also: tuple[int, ...] = ()) -> Iterator[int]:
        """The steps after 0, up to `last` and with it; without end if it is None.

        Steps in `also` are measured too.
        """
        extra = sorted({step for step in also if step > 0 and (last is None or step <= last)})
        step = 0
        for planned in self._planned():
            if last is not None and planned >= last:
                break
            while extra and extra[0] < planned:
                yield extra.pop(0)
            if extra and extra[0] == planned:
                extra.pop(0)
            step = planned
            yield step
        if last is not None:
            yield from (each for each in extra if each < last)
            if last > 0:
                yield last

    def _planned(self) -> Iterator[int]:
        for number in itertools.count(1):
            if number * self.every > self.dense_until:
                break
            yield number * self.every
        step = max(self.every, self.dense_until // self.every * self.every)
        if step > self.dense_until:
            yield step
        while True:
            gap = max(self.every, math.ceil((step * self.ratio - step) / self.every - 1e-9) * self.every)
            step += min(gap, self.most_between) if self.most_between is not None else gap
            yield step


@dataclass(frozen=True, slots=True)
class Limits:
    """When training ends: after steps or examples, or after seconds spent in updates, or whichever is first.

    Raises
    ------
    ValueError
        If there is no limit, both steps and examples are given, or one is not positive.

    Examples
    --------
    >>> Limits(examples=1000).steps_at(64)
    15
    """

    steps: int | None = None
    examples: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        given = [limit for limit in (self.steps, self.examples, self.seconds) if limit is not None]
        if not given or (self.steps is not None and self.examples is not None):
            raise ValueError("training ends after steps=… or examples=…, and/or after seconds=…")
        if min(given) <= 0:
            raise ValueError(f"a limit must be positive: {self}")

    def steps_at(self, batch_size: int) -> int | None:
        """Most steps at a batch size; None if time alone ends training."""
        if self.examples is not None:
            return max(1, self.examples // batch_size)
        return self.steps


@dataclass(frozen=True, slots=True)
class NoiseRule:
    """Where the gradient noise scale is measured, and on how many small batches.

    Parameters
    ----------
    steps : tuple of int
        Steps of the trial; 0 is the beginning.
    batch : int, default 16
        Examples of a small batch.
    batches : int, default 64
        Number of small batches, each drawn anew with replacement.
    confidence_level : float, default 0.95
    """

    steps: tuple[int, ...]
    batch: int = 16
    batches: int = 64
    confidence_level: float = 0.95

    def __post_init__(self) -> None:
        if self.batch < 1 or self.batches < 3:
            raise ValueError(
                f"the noise scale needs small batches of at least 1 example, and 3 of them: {self}"
            )
        if not 0 < self.confidence_level < 1:
            raise ValueError(f"a confidence level lies between 0 and 1, got {self.confidence_level}")


@dataclass(slots=True)
class Pruning:
    """Ends trials that can no longer win: still short of the goal when another has long reached it.

    Parameters
    ----------
    goal : Goal
    factor : float
        A trial ends at its first measurement beyond `factor` × the fewest steps to the goal so far.
    best : int, optional
        The fewest steps to the goal so far.

    Raises
    ------
    ValueError
        If the factor is below 1: such a trial could still win.

    Notes
    -----
    One-sided: the trial with the fewest steps to the goal is the same with and without it, and so are the
    steps to result; best of k and the share of trials that reach a goal later are not.  Which trials end
    early depends on the order in which they are trained.

    Examples
    --------
    >>> pruning = Pruning(Goal("val/classification_error", 0.1), factor=2.0)
    >>> pruning.ends([(5, {"val/classification_error": 0.08})]), pruning.best
    (False, 5)
    >>> pruning.ends([(10, {"val/classification_error": 0.3})])
    False
    >>> pruning.ends([(10, {"val/classification_error": 0.3}), (11, {"val/classification_error": 0.2})])
    True
    """

    goal: Goal
    factor: float
    best: int | None = None

    def __post_init__(self) -> None:
        if not self.factor >= 1:
            raise ValueError(f"pruning below the fewest steps could end the winner; got factor {self.factor}")

    def ends(self, rows: Sequence[tuple[int, Mapping[str, float]]]) -> bool:
        """Whether a trial with these measurements ends; what they show of the goal is remembered."""
        name = self.goal.metric
        reached = next((step for step, row in rows if name in row and bool(self.goal.met(row[name]))), None)
        if reached is not None:
            self.best = reached if self.best is None else min(self.best, reached)
            return False
        return self.best is not None and bool(rows) and rows[-1][0] > self.factor * self.best
