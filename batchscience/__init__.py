"""Steps to result against batch size: the measurements of Shallue et al. (2019), analysed and extended."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Each public name and the module that holds it; loaded on first use, because the command line must
# answer faster than pandas and scipy import.
_HOME = {
    "Budget": "goals",
    "Goal": "goals",
    "Store": "store",
    "load_workload": "store",
    "import_panels": "exports",
    "ingest": "ingest",
    "fetch_archive": "fetch",
    "steps_to_goal": "results",
    "steps_to_result": "results",
    "best_of": "results",
}

if TYPE_CHECKING:
    from .exports import import_panels
    from .fetch import fetch_archive
    from .goals import Budget, Goal
    from .ingest import ingest
    from .results import best_of, steps_to_goal, steps_to_result
    from .store import Store, load_workload

__all__ = [
    "Budget",
    "Goal",
    "Store",
    "__version__",
    "best_of",
    "fetch_archive",
    "import_panels",
    "ingest",
    "load_workload",
    "steps_to_goal",
    "steps_to_result",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
