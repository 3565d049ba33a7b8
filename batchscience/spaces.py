"""Metaparameters, their search spaces, and quasi-random settings drawn from them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

ParameterType = Literal["DISCRETE", "DOUBLE", "INTEGER"]
Scale = Literal["", "LINEAR_SCALE", "LOG_SCALE", "REVERSE_LOG_SCALE"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One metaparameter and the values a search may give it.

    Parameters
    ----------
    name : str
        For example ``"learning_rate"``.
    type : {"DISCRETE", "DOUBLE", "INTEGER"}
        Kind of values, in the words of the archive.
    min_value, max_value : float, optional
        Limits of a DOUBLE or INTEGER, both included.
    scale : {"", "LINEAR_SCALE", "LOG_SCALE", "REVERSE_LOG_SCALE"}
        What is uniform in a search: the value, its logarithm, or the logarithm of 1 − value.
        The archive leaves it empty for INTEGER and DISCRETE, which are searched uniformly.
    feasible_points : tuple of float
        Values of a DISCRETE, in the order of the file.

    Raises
    ------
    ValueError
        If the limits or points do not suit the type and scale.

    Examples
    --------
    >>> momentum = Parameter("momentum", "DOUBLE", 0.9, 0.999, "REVERSE_LOG_SCALE")
    >>> round(momentum.value_at(0.5), 3)
    0.99
    >>> round(momentum.position(0.99), 3)
    0.5
    """

    name: str
    type: ParameterType
    min_value: float | None = None
    max_value: float | None = None
    scale: Scale = ""
    feasible_points: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.type == "DISCRETE":
            if not self.feasible_points:
                raise ValueError(f"{self.name}: a DISCRETE parameter needs feasible_points")
            return
        low, high = self.min_value, self.max_value
        if low is None or high is None or not (math.isfinite(low) and math.isfinite(high) and low <= high):
            raise ValueError(f"{self.name}: expected finite min_value <= max_value, got {low} and {high}")
        if self.scale == "LOG_SCALE" and low <= 0:
            raise ValueError(f"{self.name}: LOG_SCALE needs a positive min_value, got {low}")
        if self.scale == "REVERSE_LOG_SCALE" and high >= 1:
            raise ValueError(f"{self.name}: REVERSE_LOG_SCALE needs max_value below 1, got {high}")

    def _stretch(self, value: float) -> float:
        """The value on the axis along which the search is uniform, increasing in the value."""
        if self.scale == "LOG_SCALE":
            return math.log(value)
        if self.scale == "REVERSE_LOG_SCALE":
            return -math.log1p(-value)
        return value

    def value_at(self, position: float) -> float:
        """The value at a position in [0, 1) along the parameter's own scale."""
        if not 0 <= position < 1:
            raise ValueError(f"{self.name}: a position lies in [0, 1), got {position}")
        if self.type == "DISCRETE":
            return self.feasible_points[int(position * len(self.feasible_points))]
        assert self.min_value is not None
        assert self.max_value is not None
        if self.type == "INTEGER":
            low, high = math.ceil(self.min_value), math.floor(self.max_value)
            return float(low + int(position * (high - low + 1)))
        low_end, high_end = self._stretch(self.min_value), self._stretch(self.max_value)
        along = low_end + position * (high_end - low_end)
        if self.scale == "LOG_SCALE":
            value = math.exp(along)
        elif self.scale == "REVERSE_LOG_SCALE":
            value = -math.expm1(-along)
        else:
            value = along
        return min(max(value, self.min_value), self.max_value)

    def position(self, value: float) -> float:
        """Where a value lies along the parameter's own scale: 0 at one limit, 1 at the other.

        A DISCRETE value's position is its rank among the sorted feasible points.  NaN where there is
        no range (one feasible value only) or the value is missing or not on the scale at all.
        """
        if math.isnan(value):
            return math.nan
        if self.type == "DISCRETE":
            points = sorted(self.feasible_points)
            if len(points) == 1 or value not in points:
                return math.nan
            return points.index(value) / (len(points) - 1)
        assert self.min_value is not None
        assert self.max_value is not None
        if self.min_value == self.max_value:
            return math.nan
        if (self.scale == "LOG_SCALE" and value <= 0) or (self.scale == "REVERSE_LOG_SCALE" and value >= 1):
            return math.nan
        low_end, high_end = self._stretch(self.min_value), self._stretch(self.max_value)
        return (self._stretch(value) - low_end) / (high_end - low_end)


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """The metaparameters of a study with their limits, sorted by name.

    Raises
    ------
    ValueError
        If two parameters share a name.
    """

    parameters: tuple[Parameter, ...]

    def __post_init__(self) -> None:
        names = [parameter.name for parameter in self.parameters]
        if len(set(names)) != len(names):
            raise ValueError(f"a search space names each parameter once, got {names}")
        object.__setattr__(self, "parameters", tuple(sorted(self.parameters, key=lambda p: p.name)))

    def __iter__(self) -> Iterator[Parameter]:
        return iter(self.parameters)

    def settings(self, study: str, trial: int, *, seed: int = 0) -> dict[str, float]:
        """The metaparameters of one trial: a function of (study, seed, trial) and of nothing else.

        Parameters
        ----------
        study : str
            Name of the study, for example ``"mnist/fc_1024/sgd/64"``; every study has its own
            scrambling of the sequence.
        trial : int
            Number of the trial, from 1 as in the archive.
        seed : int, default 0
            Another seed gives another search of the same study.

        Returns
        -------
        dict of str to float
            A value for each parameter.

        Notes
        -----
        The settings are points of a scrambled Halton sequence [1]_, so that 100 trials can be extended
        to 200 without changing the first 100, and a restart gives the same trials.

        References
        ----------
        .. [1] Owen (2017), A randomized Halton algorithm in R, arXiv 1706.02808; quasi-random search as
           in Shallue et al. (2019), section 4.1.
        """
        if trial < 1:
            raise ValueError(f"trials are numbered from 1, got {trial}")
        point = next(self._points(study, trial, 1, seed))
        return {p.name: p.value_at(u) for p, u in zip(self.parameters, point, strict=True)}

    def settings_of(self, study: str, trials: int, *, seed: int = 0) -> list[dict[str, float]]:
        """The metaparameters of the first trials of a study, as `settings` gives them one by one.

        Parameters
        ----------
        study : str
            Name of the study.
        trials : int
            How many trials, numbered from 1.
        seed : int, default 0
            As for `settings`.

        Returns
        -------
        list of dict of str to float
            Item i is what ``settings(study, i + 1, seed=seed)`` returns; much cheaper than calling that
            for every trial, which begins the sequence anew.

        Examples
        --------
        >>> space = SearchSpace((Parameter("learning_rate", "DOUBLE", 1e-4, 1.0, "LOG_SCALE"),))
        >>> space.settings_of("mnist/fc_1024/sgd/64", 3)[2] == space.settings("mnist/fc_1024/sgd/64", 3)
        True
        """
        return [
            {p.name: p.value_at(u) for p, u in zip(self.parameters, point, strict=True)}
            for point in self._points(study, 1, trials, seed)
        ]

    def _points(self, study: str, first: int, count: int, seed: int) -> Iterator[list[float]]:
        """Points of the study's quasi-random sequence in the unit cube, from trial `first` on."""
        from scipy.stats import qmc

        if not self.parameters:
            yield from ([] for _ in range(count))
            return
        # hash() differs between processes; the digest does not.
        digest = hashlib.sha256(f"{seed}:{study}".encode()).digest()
        halton = qmc.Halton(len(self.parameters), scramble=True, rng=int.from_bytes(digest[:8], "big"))
        halton.fast_forward(first - 1)
        yield from halton.random(count).tolist()

    def contains(self, settings: Mapping[str, float]) -> bool:
        """Whether settings give every parameter a value within its limits (and nothing else)."""
        if set(settings) != {parameter.name for parameter in self.parameters}:
            return False
        return all(_feasible(parameter, settings[parameter.name]) for parameter in self.parameters)


def _feasible(parameter: Parameter, value: float) -> bool:
    if parameter.type == "DISCRETE":
        return value in parameter.feasible_points
    assert parameter.min_value is not None
    assert parameter.max_value is not None
    return parameter.min_value <= value <= parameter.max_value
