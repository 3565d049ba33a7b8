"""The studies that were trained with this package and come with it: goals and noise scales of workloads.

Their tables are those of `Store.bundled`.
"""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any

from .goals import Goal
from .places import bundled

if TYPE_CHECKING:
    import pandas as pd

_FOLDER = "studies"
_NUMBERS = (
    "noise_scale",
    "noise_low",
    "noise_high",
    "critical_batch_size",
    "critical_low",
    "critical_high",
)


def goals() -> dict[str, Goal]:
    """The goals of the workloads, as the plans declare by which the studies were trained.

    Returns
    -------
    dict of str to Goal
        By workload; one whose plan states no goal is not in it.

    Raises
    ------
    StoreMissing
        If the package was installed without its studies.

    Examples
    --------
    >>> goals()["digits/fc_64/sgd"]
    Goal(metric='val/classification_error', threshold=0.03, maximize=False, inclusive=False)
    """
    found: dict[str, Goal] = {}
    for path in sorted(bundled(_FOLDER).glob("*.toml")):
        plan = tomllib.loads(path.read_text("utf-8"))
        for part in plan.get("studies", [{}]):
            goal = part.get("goal", plan.get("goal"))
            named = part.get("workload", plan.get("workload", []))
            for workload in [named] if isinstance(named, str) else named:
                if goal is not None:
                    found[workload] = Goal(**goal)
    return found


def noise_scale() -> pd.DataFrame:
    """The gradient noise scale of each workload beside its measured critical batch size.

    Returns
    -------
    pandas.DataFrame
        A row is a workload, as `noise_scales.at_goal` returns it.

    Examples
    --------
    >>> sgd = noise_scale().set_index("workload").loc["digits/fc_64/sgd"]
    >>> bool(sgd["noise_scale"] > sgd["critical_batch_size"])
    True
    """
    return _table("noise_scale")


def noise_scale_by_step() -> pd.DataFrame:
    """The gradient noise scale of the best trials at every step at which it was measured.

    Returns
    -------
    pandas.DataFrame
        A row is a step of the best trial of a study, as `noise_scales.noise_scales` returns it.
    """
    return _table("noise_scale_by_step")


def _table(name: str) -> pd.DataFrame:
    import pandas as pd

    types: dict[str, Any] = dict.fromkeys(("batch_size", "trial", "steps", "step"), "Int64")
    types |= dict.fromkeys(_NUMBERS, "float64")
    return pd.read_csv(bundled(f"{_FOLDER}/{name}.csv"), dtype=types)
