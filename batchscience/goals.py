"""What a trial has to reach (Goal) and how long it may take (Budget)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, slots=True)
class Goal:
    """A value of one metric that a trial has to beat.

    Parameters
    ----------
    metric : str
        Column of the measurements table, for example ``"val/classification_error"``.
    threshold : float
        Goal value, in the unit of the metric (error rates are fractions, not percent).
    maximize : bool, default False
        Whether larger values of the metric are better.
    inclusive : bool, default False
        Whether a value exactly on the threshold reaches the goal ("at least 94 %").

    Raises
    ------
    ValueError
        If `metric` is empty or `threshold` is not a finite number.

    Notes
    -----
    The comparison is strict by default, as in the published analysis: a trial that lands exactly on
    the threshold has not reached the goal.  A missing value never meets a goal, nor does NaN.

    Examples
    --------
    >>> goal = Goal("val/classification_error", 0.01)
    >>> goal.met([0.02, 0.01, 0.0099, float("nan")]).tolist()
    [False, False, True, False]
    >>> str(goal)
    'val/classification_error < 0.01'
    """

    metric: str
    threshold: float
    maximize: bool = False
    inclusive: bool = False

    def __post_init__(self) -> None:
        if not self.metric:
            raise ValueError("a goal needs the name of a metric, for example 'val/classification_error'")
        if not math.isfinite(self.threshold):
            raise ValueError(f"a goal needs a finite threshold, got {self.threshold}")

    def met(self, values: ArrayLike) -> NDArray[np.bool_]:
        """Whether each value reaches the goal.

        Parameters
        ----------
        values : array_like of float
            Values of the metric, of any shape; NaN stands for missing too.

        Returns
        -------
        numpy.ndarray of bool
            Of the shape of `values`.
        """
        numbers = np.asarray(values, dtype=np.float64)
        if self.maximize:
            return numbers >= self.threshold if self.inclusive else numbers > self.threshold
        return numbers <= self.threshold if self.inclusive else numbers < self.threshold

    def __str__(self) -> str:
        sign = (">" if self.maximize else "<") + ("=" if self.inclusive else "")
        return f"{self.metric} {sign} {self.threshold:g}"


@dataclass(frozen=True, slots=True)
class Budget:
    """A limit on the length of training, in steps or in examples (exactly one of them).

    Parameters
    ----------
    steps : float, optional
        Most optimizer updates.
    examples : float, optional
        Most training examples, counted as steps times batch size.

    Raises
    ------
    ValueError
        If neither or both are given, or the limit is not positive.

    Examples
    --------
    >>> Budget(examples=1000).last_step([1, 64, 2000]).tolist()
    [1000.0, 15.0, 0.0]
    >>> Budget.epochs(2, training_set_size=55_000)
    Budget(steps=None, examples=110000)
    """

    steps: float | None = None
    examples: float | None = None

    def __post_init__(self) -> None:
        limits = [limit for limit in (self.steps, self.examples) if limit is not None]
        if len(limits) != 1:
            raise ValueError("a budget is either steps=… or examples=…, exactly one of them")
        if not limits[0] > 0:
            raise ValueError(f"a budget must be positive, got {limits[0]}")

    @classmethod
    def epochs(cls, epochs: float, *, training_set_size: int) -> Budget:
        """The budget of so many passes over a training set of so many examples."""
        return cls(examples=epochs * training_set_size)

    def last_step(self, batch_size: ArrayLike) -> NDArray[np.float64]:
        """The last step within the budget for each batch size (examples: batch size × step ≤ budget)."""
        sizes = np.asarray(batch_size, dtype=np.float64)
        if self.steps is not None:
            return np.full(sizes.shape, np.floor(self.steps))
        assert self.examples is not None
        return np.floor(self.examples / sizes)
