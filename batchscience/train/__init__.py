"""Training of new workloads; the only place that imports TensorFlow, and not before it trains."""

from __future__ import annotations

from .rules import EvaluationRule, Limits, NoiseRule
from .study import Study, StudyReport, missing_trials, run_study
from .workloads import Workload, known_workloads, workload_named

__all__ = [
    "EvaluationRule",
    "Limits",
    "NoiseRule",
    "Study",
    "StudyReport",
    "Workload",
    "known_workloads",
    "missing_trials",
    "run_study",
    "workload_named",
]
