"""Workloads that can be trained: the paper's, those made here, and a user's own, each a declared value."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import paper
from ..errors import TrainingError
from ..goals import Goal
from ..spaces import Parameter, SearchSpace
from .rules import EvaluationRule

if TYPE_CHECKING:
    from .data import DataSet
    from .models import Network

ENTRY_POINTS = "batchscience.workloads"
"""Group of entry points by which an installed package offers its workloads."""

OPTIMIZER_NAMES = ("sgd", "momentum", "nesterov_momentum", "adam", "adamw", "lamb", "lion", "muon")


@dataclass(frozen=True)
class Workload:
    """A data set, a model and an optimizer, and how a search over its metaparameters goes.

    Parameters
    ----------
    name : str
        ``[subset/]dataset/model/optimizer``, the path of its studies.
    space : SearchSpace
        Metaparameters and their limits.
    data_set : str or callable, optional
        Name of a data set, or a function that returns a `DataSet`; by default the one that `name` says.
    model : str or callable, optional
        Name of a model, or a function of the `DataSet` that returns a Keras model, or a function of
        (scope, inputs) as `models.network` takes it; by default the one that `name` says.
    optimizer : str, optional
        Name of an optimizer; by default the one that `name` says.
    fixed : mapping of str to float
        Settings that all trials share.
    goal : Goal, optional
        What a trial should reach; needed only to end trials there.
    rule : EvaluationRule
        Steps at which the metrics are measured.
    decays : bool, default False
        Whether the search has ``learning_rate_decay_steps`` too, from half the steps of a trial to all
        of them.
    clip_norm : float, optional
        Largest norm of the gradient.
    train_examples : int, default 10000
        How many training examples the ``train/`` columns are measured on, at most.

    Raises
    ------
    ValueError
        If the name has fewer than three parts or parts that are no names of folders.
    TypeError
        If `space` is no SearchSpace.

    Examples
    --------
    >>> workload_named("digits/fc_128_128_128/sgd").optimizer
    'sgd'
    """

    name: str
    space: SearchSpace
    data_set: str | Callable[[], DataSet] = ""
    model: str | Callable[..., Any] = ""
    optimizer: str = ""
    fixed: Mapping[str, float] = field(default_factory=dict)
    goal: Goal | None = None
    rule: EvaluationRule = field(default_factory=EvaluationRule)
    decays: bool = False
    clip_norm: float | None = None
    train_examples: int = 10_000

    def __post_init__(self) -> None:
        parts = self.name.split("/")
        if len(parts) < 3 or not all(re.fullmatch(r"[\w-][\w.-]*", part) for part in parts):
            raise ValueError(
                f"a workload's name is dataset/model/optimizer in letters, digits, '_', '-' and '.', "
                f"got {self.name!r}"
            )
        if not isinstance(self.space, SearchSpace):
            raise TypeError(f"space: expected SearchSpace((Parameter(…), …)), got {self.space!r}")
        defaults = {"data_set": "/".join(parts[:-2]), "model": parts[-2], "optimizer": parts[-1]}
        for key, value in defaults.items():
            if not getattr(self, key):
                object.__setattr__(self, key, value)

    @property
    def parts(self) -> tuple[str, str, str]:
        """Names of data set (without subset), model and optimizer, as a ``study.json`` states them."""
        *sets, model, optimizer = self.name.split("/")
        return "/".join(sets).removeprefix("solution_quality/"), model, optimizer

    def loaded(self, datasets: str | os.PathLike[str] | None = None) -> DataSet:
        """The data set, in memory or open."""
        if callable(self.data_set):
            return self.data_set()
        from .data import data_set_named

        return data_set_named(self.data_set, datasets)

    def network(self, data_set: DataSet) -> Network:
        """The model, for the inputs of a data set."""
        from .models import forward_named, keras_network, network, quadratic

        if self.model == "quadratic":
            from .data import NoisyQuadratic

            bowl = NoisyQuadratic()
            forward = quadratic(bowl.curvatures, bowl.noise * bowl.curvatures, bowl.start)
            return network(forward, data_set.input_spec())
        if not callable(self.model):
            return network(forward_named(self.model, data_set.outputs), data_set.input_spec())
        made = self.model(data_set)
        if hasattr(made, "stateless_call"):
            return keras_network(lambda: self.model(data_set))  # type: ignore[operator]
        return network(made, data_set.input_spec())


def default_space(optimizer: str) -> SearchSpace:
    """A search space for an optimizer: wide, to be narrowed once a study has shown where the best lie.

    Raises
    ------
    ValueError
        If there is no such optimizer.
    """
    momentum = Parameter("momentum", "DOUBLE", 0.5, 0.999, "REVERSE_LOG_SCALE")
    spaces = {
        "sgd": (1e-3, 10.0, ()),
        "momentum": (1e-4, 1.0, (momentum,)),
        "nesterov_momentum": (1e-4, 1.0, (momentum,)),
        "adam": (1e-5, 0.1, (Parameter("beta_1", "DOUBLE", 0.5, 0.99, "REVERSE_LOG_SCALE"),)),
        "adamw": (1e-5, 0.1, (Parameter("weight_decay", "DOUBLE", 1e-4, 1.0, "LOG_SCALE"),)),
        "lamb": (1e-4, 1.0, ()),
        "lion": (1e-6, 1e-2, ()),
        "muon": (1e-4, 0.3, (Parameter("momentum", "DOUBLE", 0.8, 0.99, "REVERSE_LOG_SCALE"),)),
    }
    if optimizer not in spaces:
        raise ValueError(f"optimizer {optimizer!r}: expected one of {', '.join(spaces)}")
    low, high, more = spaces[optimizer]
    return SearchSpace((Parameter("learning_rate", "DOUBLE", low, high, "LOG_SCALE"), *more))


def _own(name: str, goal: Goal, **options: Any) -> Workload:
    return Workload(name, options.pop("space", default_space(name.rsplit("/", 1)[1])), goal=goal, **options)


_ERROR = "val/classification_error"
_DIGITS = Goal(_ERROR, 0.03)
_MNIST1D = Goal(_ERROR, 0.35)
_EVERY_STEP = EvaluationRule(dense_until=300, ratio=1.02)

OWN_WORKLOADS = (
    *(_own(f"digits/fc_128_128_128/{optimizer}", _DIGITS) for optimizer in OPTIMIZER_NAMES),
    *(_own(f"mnist1d/fc_100_100/{optimizer}", _MNIST1D) for optimizer in OPTIMIZER_NAMES),
    _own("parabola/tanh_5/sgd", Goal("val/squared_error", 1e-3)),
    _own("parabola/tanh_5/momentum", Goal("val/squared_error", 1e-3)),
    _own(
        "noisy_quadratic/quadratic/sgd",
        Goal("train/loss", 8.0),
        space=SearchSpace((Parameter("learning_rate", "DOUBLE", 1e-3, 0.3, "LOG_SCALE"),)),
        rule=_EVERY_STEP,
    ),
)
"""Workloads that need no download."""


def _published(name: str) -> Workload:
    optimizer = name.rsplit("/", 1)[1]
    facts = next((w for w in paper.WORKLOADS if w.name == name), None)
    factor = facts.end_learning_rate_factor if facts is not None else None
    space = default_space(optimizer)
    if name.startswith(("imagenet", "open_images")):
        # The paper shows in Figure 7 that the best label smoothing depends on the batch size.
        space = SearchSpace(
            (*space, Parameter("label_smoothing", "DISCRETE", feasible_points=(0.0, 0.01, 0.1)))
        )
    fixed = {} if factor is None else {"end_learning_rate_factor": factor}
    return Workload(name, space, fixed=fixed, goal=paper.goal_of(name), decays=factor is not None)


def known_workloads() -> dict[str, str]:
    """Names of workloads with a word on each: the paper's, those made here, and installed packages' own."""
    known = {workload.name: "made here, no download" for workload in OWN_WORKLOADS}
    known |= {workload.name: "of the paper" for workload in paper.WORKLOADS}
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        known[point.name] = f"from {point.value.partition(':')[0]}"
    return known


def workload_named(name: str) -> Workload:
    """The workload of a name, or of a file.

    Parameters
    ----------
    name : str
        A name that `known_workloads` lists; any other ``dataset/model/optimizer`` of known parts; the name of
        an entry point; or the path of a Python file whose ``workload`` is a `Workload`.

    Raises
    ------
    TrainingError
        If there is no such workload; the message says what is wrong with which part.
    """
    if name.endswith(".py"):
        return _from_file(Path(name))
    for workload in OWN_WORKLOADS:
        if workload.name == name:
            return workload
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS, name=name):
        return _checked(point.load(), f"entry point {point.value}")
    parts = name.split("/")
    if len(parts) < 3:
        raise TrainingError(
            f"workload {name!r}: expected dataset/model/optimizer, a file my_workload.py, or one of those "
            f"that 'batchscience train --list' shows"
        )
    try:
        own = next((w for w in OWN_WORKLOADS if w.name.split("/")[0] == parts[0]), None)
        made = _published(name)
        return made if own is None else replace(made, goal=own.goal, rule=own.rule)
    except ValueError as error:
        raise TrainingError(f"workload {name!r}: {error}") from None


def _from_file(path: Path) -> Workload:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise TrainingError(f"{path}: no such file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise TrainingError(f"{path}: cannot be run: {type(error).__name__}: {error}") from error
    if not hasattr(module, "workload"):
        raise TrainingError(f"{path}: expected a variable 'workload = Workload(…)'")
    return _checked(module.workload, str(path))


def _checked(found: Any, where: str) -> Workload:
    if not isinstance(found, Workload):
        raise TrainingError(f"{where}: expected a batchscience.train.Workload, found {type(found).__name__}")
    return found
