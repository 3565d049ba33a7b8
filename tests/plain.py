"""Slow, obvious versions of what the package computes fast: loops over rows, one decision a line."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from batchscience.goals import Budget, Goal

Row = Mapping[str, Any]
Key = tuple[Any, ...]


def meets(goal: Goal, value: float | None) -> bool:
    """Whether one value reaches a goal; what is missing or not a number never does."""
    if value is None or math.isnan(value):
        return False
    if goal.inclusive and value == goal.threshold:
        return True
    return value > goal.threshold if goal.maximize else value < goal.threshold


def within(budget: Budget | None, batch_size: int, step: int) -> bool:
    if budget is None:
        return True
    if budget.steps is not None:
        return step <= budget.steps
    assert budget.examples is not None
    return step * batch_size <= budget.examples


def steps_to_goal(
    rows: Iterable[Row], goal: Goal, budget: Budget | None = None
) -> dict[Key, tuple[int | None, int | None, int | None]]:
    """(workload, batch_size, trial) → (steps, after, until)."""
    curves: dict[Key, list[tuple[int, float | None]]] = {}
    for row in rows:
        key = (row["workload"], row["batch_size"], row["trial"])
        curve = curves.setdefault(key, [])
        if row[goal.metric] is not None and within(budget, row["batch_size"], row["step"]):
            curve.append((row["step"], row[goal.metric]))
    found = {}
    for key, curve in curves.items():
        steps = after = until = None
        for step, value in sorted(curve, key=lambda point: point[0]):
            if steps is None and meets(goal, value):
                steps, after = step, until
            until = step
        found[key] = (steps, after, until)
    return found


def steps_to_result(found: Mapping[Key, tuple[int | None, int | None, int | None]]) -> dict[Key, Row]:
    """(workload, batch_size) → steps, trial, after, reached, trials."""
    studies: dict[Key, dict[str, Any]] = {}
    for (workload, batch_size, trial), (steps, after, _) in sorted(found.items()):
        study = studies.setdefault(
            (workload, batch_size), {"steps": None, "trial": None, "after": None, "reached": 0, "trials": 0}
        )
        study["trials"] += 1
        if steps is None:
            continue
        study["reached"] += 1
        if study["steps"] is None or steps < study["steps"]:
            study.update(steps=steps, trial=trial, after=after)
    return studies


def best_measurement(
    rows: Iterable[Row], goal: Goal, budget: Budget | None
) -> dict[Key, tuple[float | None, int | None, int | None]]:
    """(workload, batch_size) → (value, trial, step) of the best measurement within the budget."""
    best: dict[Key, tuple[float | None, int | None, int | None]] = {}
    for row in sorted(rows, key=lambda row: (row["step"], row["trial"])):
        key = (row["workload"], row["batch_size"])
        value = row[goal.metric]
        known = best.setdefault(key, (None, None, None))[0]
        if value is None or math.isnan(value) or not within(budget, row["batch_size"], row["step"]):
            continue
        if known is None or (value > known if goal.maximize else value < known):
            best[key] = (value, row["trial"], row["step"])
    return best


def monotone(steps: Sequence[float]) -> list[float]:
    """The non-increasing curve nearest to log steps in least squares, by pooling neighbours that rise."""
    blocks: list[list[float]] = []
    for value in steps:
        blocks.append([math.log(value)])
        while len(blocks) > 1 and _mean(blocks[-2]) < _mean(blocks[-1]):
            last = blocks.pop()
            blocks[-1] += last
    return [math.exp(_mean(block)) for block in blocks for _ in block]


def transitions(
    batch_sizes: Sequence[float], steps: Sequence[float], tolerance: float
) -> tuple[float, float, bool, bool]:
    """Perfect to, useful to, and whether each is censored at the largest batch size."""
    smooth = monotone(steps)
    perfect = batch_sizes[0]
    for batch_size, value in zip(batch_sizes, smooth, strict=True):
        if batch_size * value > (1 + tolerance) * batch_sizes[0] * smooth[0] * (1 + 1e-12):
            break
        perfect = batch_size
    useful = next(
        batch_size
        for batch_size, value in zip(batch_sizes, smooth, strict=True)
        if value <= (1 + tolerance) * smooth[-1] * (1 + 1e-12)
    )
    return perfect, useful, perfect == batch_sizes[-1], useful == batch_sizes[-1]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
