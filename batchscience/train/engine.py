"""Where the trials of a study run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

Engine = Callable[[Iterable[int], Callable[[int], None]], None]
"""``engine(trials, run_one)`` calls `run_one` for every trial; which order and where is its own choice."""


def here(trials: Iterable[int], run_one: Callable[[int], None]) -> None:
    """One after another in this process."""
    for trial in trials:
        run_one(trial)


ENGINES: Mapping[str, Engine] = {"local": here}
