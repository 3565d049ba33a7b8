"""What Shallue et al. (2019) and their released notebook say, as data: workloads, goals, panels, mistakes.

Christopher J. Shallue, Jaehoon Lee, Joseph Antognini, Jascha Sohl-Dickstein, Roy Frostig and George E. Dahl
(2019), Measuring the effects of data parallelism on neural network training, Journal of Machine Learning
Research 20(112), 1–49, https://jmlr.org/papers/v20/18-789.html.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .goals import Budget, Goal

CROSS_ENTROPY = "val/cross_entropy_error"
ERROR = "val/classification_error"
PRECISION = "val/average_precision"


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload of the published archive, with what no file of the archive says about it.

    Parameters
    ----------
    name : str
        Its path in the archive.
    training_set_size : int, optional
        Number of training examples; None where it is not known for certain.
    trials_used : int, default 100
        How many COMPLETE trials of each study, the first in numeric order, the published analysis takes
        (in Figures 1 to 8; Figures 9 to 11 take all).
    end_learning_rate_factor : float, optional
        The value that all trials shared, where the archive's README states one.
    """

    name: str
    training_set_size: int | None = None
    trials_used: int = 100
    end_learning_rate_factor: float | None = None


MNIST_SIZE = 55_000
LM1B_SIZE = 30_301_028

WORKLOADS = (
    Workload("cifar_10/resnet_8/nesterov_momentum", end_learning_rate_factor=1e-2),
    Workload("cifar_10/resnet_8/sgd", end_learning_rate_factor=1e-2),
    Workload("common_crawl/transformer_base/nesterov_momentum", trials_used=50),
    Workload("fashion_mnist/simple_cnn_base/nesterov_momentum", MNIST_SIZE),
    Workload("imagenet/resnet_50/nesterov_momentum"),
    Workload("imagenet/vgg_11/nesterov_momentum", end_learning_rate_factor=1e-3),
    Workload("imagenet_subsets/imagenet_half_classes/resnet_50/nesterov_momentum"),
    Workload("imagenet_subsets/imagenet_half_images/resnet_50/nesterov_momentum"),
    Workload("lm1b/lstm/nesterov_momentum", LM1B_SIZE, trials_used=50),
    Workload("lm1b/transformer_base/nesterov_momentum", LM1B_SIZE),
    Workload("lm1b/transformer_narrow_and_shallow/nesterov_momentum", LM1B_SIZE),
    Workload("lm1b/transformer_shallow/momentum", LM1B_SIZE),
    Workload("lm1b/transformer_shallow/nesterov_momentum", LM1B_SIZE),
    Workload("lm1b/transformer_shallow/sgd", LM1B_SIZE, trials_used=50),
    Workload("lm1b/transformer_wide/nesterov_momentum", LM1B_SIZE),
    Workload("mnist/fc_1024/sgd", MNIST_SIZE),
    Workload("mnist/fc_1024_1024/sgd", MNIST_SIZE),
    Workload("mnist/fc_1024_1024_1024/sgd", MNIST_SIZE),
    Workload("mnist/fc_128_128_128/sgd", MNIST_SIZE),
    Workload("mnist/fc_2048_2048_2048/sgd", MNIST_SIZE),
    Workload("mnist/fc_256_256_256/sgd", MNIST_SIZE),
    Workload("mnist/fc_512_512_512/sgd", MNIST_SIZE),
    Workload("mnist/fc_64_64_64/sgd", MNIST_SIZE),
    Workload("mnist/simple_cnn_base/momentum", MNIST_SIZE),
    Workload("mnist/simple_cnn_base/nesterov_momentum", MNIST_SIZE),
    Workload("mnist/simple_cnn_base/sgd", MNIST_SIZE),
    Workload("mnist/simple_cnn_narrow/sgd", MNIST_SIZE),
    Workload("mnist/simple_cnn_wide/sgd", MNIST_SIZE),
    Workload("mnist_subsets/mnist_13750/simple_cnn_base/nesterov_momentum", 13_750),
    Workload("mnist_subsets/mnist_27500/simple_cnn_base/nesterov_momentum", 27_500),
    Workload("mnist_subsets/mnist_55000/simple_cnn_base/nesterov_momentum", 55_000),
    Workload("mnist_subsets/mnist_6875/simple_cnn_base/nesterov_momentum", 6_875),
    Workload("open_images_v4/resnet_50/nesterov_momentum"),
    Workload("solution_quality/fashion_mnist/simple_cnn_base/nesterov_momentum", MNIST_SIZE),
    Workload("solution_quality/mnist/simple_cnn_base/nesterov_momentum", MNIST_SIZE),
)
"""The 35 workloads, sorted by name."""

_BY_NAME = {workload.name: workload for workload in WORKLOADS}


def trials_used(workload: str) -> int:
    """How many COMPLETE trials of each study the published analysis takes; 100 for a workload of one's own.

    Examples
    --------
    >>> trials_used("mnist/fc_1024/sgd"), trials_used("lm1b/lstm/nesterov_momentum")
    (100, 50)
    """
    return _BY_NAME[workload].trials_used if workload in _BY_NAME else 100


def training_set_size(workload: str) -> int | None:
    """Number of training examples of a published workload; None where it is not known for certain."""
    return _BY_NAME[workload].training_set_size if workload in _BY_NAME else None


Quantity = Literal[
    "steps",
    "relative_steps",
    "best_value",
    "effective_learning_rate",
    "settings",
    "critical_batch_size",
    "noise_scale",
]
"""What a panel shows against batch size; ``"settings"``: the trials of one study by their settings."""


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a panel, or the trials of one study in Figures 9 and 10.

    Parameters
    ----------
    label : str
        As in the legend; empty where the panel has one line and no legend.
    workload : str
        Its path in the archive.
    goal : Goal, optional
        What a trial has to reach; None where the panel shows a best value.
    metric : str, optional
        The objective; that of the goal where there is one.
    budget : Budget, optional
        Limit on the training of each trial.
    batch_size : int, optional
        The one study shown; None for all batch sizes of the workload.
    label_smoothing : float, optional
        Only trials with this setting.
    notebook_goal : Goal, optional
        The goal that the released notebook took by mistake: the published points belong to it.
    """

    label: str
    workload: str
    goal: Goal | None = None
    metric: str = ""
    budget: Budget | None = None
    batch_size: int | None = None
    label_smoothing: float | None = None
    notebook_goal: Goal | None = None

    def __post_init__(self) -> None:
        if self.goal is not None:
            object.__setattr__(self, "metric", self.goal.metric)
        if not self.metric:
            raise ValueError(f"{self.label or self.workload}: a series needs a goal or a metric")

    @property
    def published_goal(self) -> Goal | None:
        """The goal that the published points belong to."""
        return self.notebook_goal or self.goal


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel of a figure.

    Parameters
    ----------
    figure : str
        Number of the figure: "1", …, "9a", "9b", "10", "11".
    row, column : int
        Place in the figure, from 0.
    title : str
        With the mistakes of the notebook corrected.
    quantity : str
        What it shows.
    series : tuple of Series
        In the order of the legend.
    normalized_at : int, optional
        Batch size whose steps divide the steps of each series (``"relative_steps"`` only).
    dashed : str, optional
        Label of the series that the dashed line of perfect scaling belongs to; None without such a line.
    x_limits, y_limits : tuple of two floats, optional
        Limits of the axes in data units, where the notebook sets them.
    notebook_title : str, optional
        What the notebook prints by mistake.
    """

    figure: str
    row: int
    column: int
    title: str
    quantity: Quantity
    series: tuple[Series, ...]
    normalized_at: int | None = None
    dashed: str | None = None
    x_limits: tuple[float, float] | None = None
    y_limits: tuple[float, float] | None = None
    notebook_title: str | None = None

    @property
    def published_title(self) -> str:
        """The title as printed."""
        return self.notebook_title or self.title


@dataclass(frozen=True, slots=True)
class Correction:
    """A mistake of the released notebook, and what stands here instead."""

    figure: str
    mistake: str
    correction: str
    changes_numbers: bool


CORRECTIONS = (
    Correction(
        "8",
        "the goal of Simple CNN on Fashion MNIST is 0.3",
        "the goal is 0.1, as in every other figure; the published points belong to 0.3",
        changes_numbers=True,
    ),
    Correction(
        "11",
        "the Fashion MNIST row has the title 'Simple CNN on MNIST'",
        "the title is 'Simple CNN on Fashion MNIST'",
        changes_numbers=False,
    ),
    Correction(
        "9a, 9b, 10",
        "the horizontal axis is labelled 'Batch Size'",
        "it is the learning rate",
        changes_numbers=False,
    ),
    Correction(
        "1 to 8",
        "a batch size at which no trial reaches the goal vanishes without a word",
        "such a batch size is marked as not reached",
        changes_numbers=False,
    ),
)
"""The four mistakes of the notebook that are corrected here."""


_MNIST = "mnist/simple_cnn_base/nesterov_momentum"
_FASHION = "fashion_mnist/simple_cnn_base/nesterov_momentum"
_CIFAR = "cifar_10/resnet_8/nesterov_momentum"
_IMAGENET = "imagenet/resnet_50/nesterov_momentum"
_OPEN_IMAGES = "open_images_v4/resnet_50/nesterov_momentum"
_LM1B = "lm1b/transformer_base/nesterov_momentum"
_NARROW = "lm1b/transformer_narrow_and_shallow/nesterov_momentum"
_CRAWL = "common_crawl/transformer_base/nesterov_momentum"
_VGG = "imagenet/vgg_11/nesterov_momentum"
_LSTM = "lm1b/lstm/nesterov_momentum"

GOALS = {
    _MNIST: Goal(ERROR, 0.01),
    _FASHION: Goal(ERROR, 0.1),
    _CIFAR: Goal(ERROR, 0.3),
    _IMAGENET: Goal(ERROR, 0.25),
    _OPEN_IMAGES: Goal(PRECISION, 0.31, maximize=True),
    _LM1B: Goal(CROSS_ENTROPY, 3.9),
    _CRAWL: Goal(CROSS_ENTROPY, 3.9),
    _VGG: Goal(ERROR, 0.35),
    _LSTM: Goal(CROSS_ENTROPY, 3.9),
}
"""The goals of Figure 1, by workload, in the order of its panels; Figures 5, 6 and 8 share them."""

_MODELS = (
    "Simple CNN on MNIST",
    "Simple CNN on Fashion MNIST",
    "ResNet-8 on CIFAR-10",
    "ResNet-50 on ImageNet",
    "ResNet-50 on Open Images",
    "Transformer on LM1B",
    "Transformer on Common Crawl",
    "VGG-11 on ImageNet",
    "LSTM on LM1B",
)

FIGURE_1 = tuple(
    Panel(
        "1",
        *divmod(place, 3),
        title,
        "steps",
        (Series("", workload, goal),),
        dashed="",
        y_limits=(2**13, 2**21) if workload == _LSTM else None,
    )
    for place, (title, (workload, goal)) in enumerate(zip(_MODELS, GOALS.items(), strict=True))
)
"""Steps to result against batch size."""


def _goals(workload: str, metric: str, *thresholds: float) -> tuple[Series, ...]:
    return tuple(Series(f"goal error = {goal}", workload, Goal(metric, goal)) for goal in thresholds)


FIGURE_2 = (
    Panel("2", 0, 0, "Simple CNN on MNIST", "steps", _goals(_MNIST, ERROR, 0.008, 0.01, 0.012, 0.014, 0.016)),
    Panel(
        "2",
        0,
        1,
        "Transformer on LM1B",
        "steps",
        _goals(_LM1B, CROSS_ENTROPY, 3.8, 3.85, 3.9, 3.95, 4.0, 4.05),
    ),
    Panel("2", 0, 2, "ResNet-50 on ImageNet", "steps", _goals(_IMAGENET, ERROR, 0.25, 0.27, 0.29, 0.31)),
)
"""The same for several goals."""


def _same_goal(goal: Goal, **workloads_by_label: str) -> tuple[Series, ...]:
    return tuple(Series(label, workload, goal) for label, workload in workloads_by_label.items())


FIGURE_3 = (
    Panel(
        "3",
        0,
        0,
        "Fully Connected vs Simple CNN on MNIST",
        "relative_steps",
        _same_goal(
            Goal(ERROR, 0.03),
            **{
                "FC-1024-1024-1024": "mnist/fc_1024_1024_1024/sgd",
                "Simple CNN": "mnist/simple_cnn_base/sgd",
            },
        ),
        normalized_at=1,
        dashed="FC-1024-1024-1024",
        y_limits=(2**-11, 2),
    ),
    Panel(
        "3",
        0,
        1,
        "ResNet-50 vs VGG-11 on ImageNet",
        "relative_steps",
        _same_goal(Goal(ERROR, 0.35), **{"ResNet-50": _IMAGENET, "VGG-11": _VGG}),
        normalized_at=64,
        dashed="ResNet-50",
        y_limits=(2**-9, 2),
    ),
    Panel(
        "3",
        1,
        0,
        "Transformer vs LSTM on LM1B",
        "relative_steps",
        _same_goal(Goal(CROSS_ENTROPY, 3.9), Transformer=_LM1B, LSTM=_LSTM),
        normalized_at=16,
        dashed="Transformer",
        y_limits=(2**-8, 2),
    ),
    Panel(
        "3",
        1,
        1,
        "Fully Connected sizes on MNIST",
        "relative_steps",
        _same_goal(
            Goal(ERROR, 0.03),
            **{
                "FC-1024": "mnist/fc_1024/sgd",
                "FC-128-128-128": "mnist/fc_128_128_128/sgd",
                "FC-256-256-256": "mnist/fc_256_256_256/sgd",
                "FC-512-512-512": "mnist/fc_512_512_512/sgd",
                "FC-1024-1024-1024": "mnist/fc_1024_1024_1024/sgd",
                "FC-2048-2048-2048": "mnist/fc_2048_2048_2048/sgd",
            },
        ),
        normalized_at=2,
        dashed="FC-1024",
        y_limits=(2**-11, 2),
    ),
    Panel(
        "3",
        2,
        0,
        "Simple CNN sizes on MNIST",
        "relative_steps",
        _same_goal(
            Goal(ERROR, 0.01),
            **{
                "Simple CNN": "mnist/simple_cnn_base/sgd",
                "Simple CNN Narrow": "mnist/simple_cnn_narrow/sgd",
                "Simple CNN Wide": "mnist/simple_cnn_wide/sgd",
            },
        ),
        normalized_at=2,
        dashed="Simple CNN",
        y_limits=(2**-11, 2),
    ),
    Panel(
        "3",
        2,
        1,
        "Transformer sizes on LM1B",
        "relative_steps",
        _same_goal(
            Goal(CROSS_ENTROPY, 4.2),
            **{
                "Wide": "lm1b/transformer_wide/nesterov_momentum",
                "Base": _LM1B,
                "Shallow": "lm1b/transformer_shallow/nesterov_momentum",
                "Narrow and Shallow": _NARROW,
            },
        ),
        normalized_at=16,
        dashed="Wide",
        y_limits=(2**-9, 2),
    ),
)
"""Steps to result of several models, each divided by its own steps at one batch size."""

FIGURE_4 = (
    Panel(
        "4",
        0,
        0,
        "Simple CNN on MNIST",
        "steps",
        _same_goal(
            GOALS[_MNIST],
            **{
                "SGD": "mnist/simple_cnn_base/sgd",
                "Momentum": "mnist/simple_cnn_base/momentum",
                "Nesterov Momentum": _MNIST,
            },
        ),
        dashed="Nesterov Momentum",
        y_limits=(2**4, 2**17),
    ),
    Panel(
        "4",
        0,
        1,
        "Transformer Shallow on LM1B",
        "steps",
        _same_goal(
            Goal(CROSS_ENTROPY, 3.9),
            **{
                "SGD": "lm1b/transformer_shallow/sgd",
                "Momentum": "lm1b/transformer_shallow/momentum",
                "Nesterov Momentum": "lm1b/transformer_shallow/nesterov_momentum",
            },
        ),
        dashed="Nesterov Momentum",
        y_limits=(2**12, 2**22),
    ),
    Panel(
        "4",
        0,
        2,
        "ResNet-8 on CIFAR-10",
        "steps",
        _same_goal(GOALS[_CIFAR], **{"SGD": "cifar_10/resnet_8/sgd", "Nesterov Momentum": _CIFAR}),
        dashed="Nesterov Momentum",
        y_limits=(2**7, 2**18),
    ),
)
"""Steps to result with several optimizers."""

FIGURE_5 = tuple(
    Panel(
        "5",
        0,
        column,
        title,
        "relative_steps",
        tuple(
            Series(f"{label}, {GOALS[workload].threshold}", workload, GOALS[workload])
            for label, workload in workloads
        ),
        normalized_at=normalized_at,
        dashed=f"{workloads[0][0]}, {GOALS[workloads[0][1]].threshold}",
    )
    for column, (title, normalized_at, workloads) in enumerate(
        (
            ("Simple CNN", 2, (("MNIST", _MNIST), ("Fashion MNIST", _FASHION))),
            ("ResNet-50", 128, (("ImageNet", _IMAGENET), ("Open Images", _OPEN_IMAGES))),
            ("Transformer", 32, (("LM1B", _LM1B), ("Common Crawl", _CRAWL))),
        )
    )
)
"""Steps to result on several data sets."""

FIGURE_6 = (
    Panel(
        "6",
        0,
        0,
        "Simple CNN on MNIST subsets",
        "relative_steps",
        tuple(
            Series(
                f"{share}% of images, 0.02",
                f"mnist_subsets/mnist_{size}/simple_cnn_base/nesterov_momentum",
                Goal(ERROR, 0.02),
            )
            for share, size in (("100", 55_000), ("50", 27_500), ("25", 13_750), ("12.5", 6_875))
        ),
        normalized_at=2,
        dashed="100% of images, 0.02",
        y_limits=(2**-10, 2),
    ),
    Panel(
        "6",
        0,
        1,
        "ResNet-50 on ImageNet subsets",
        "relative_steps",
        (
            Series("100% of images, 0.25", _IMAGENET, GOALS[_IMAGENET]),
            Series(
                "50% of images, 0.3",
                "imagenet_subsets/imagenet_half_images/resnet_50/nesterov_momentum",
                Goal(ERROR, 0.3),
            ),
            Series(
                "50% of classes, 0.3",
                "imagenet_subsets/imagenet_half_classes/resnet_50/nesterov_momentum",
                Goal(ERROR, 0.3),
            ),
        ),
        normalized_at=64,
        dashed="100% of images, 0.25",
        y_limits=(2**-10, 2),
    ),
)
"""Steps to result on parts of a data set."""

LABEL_SMOOTHINGS = (0.0, 0.01, 0.1)

FIGURE_7 = (
    Panel(
        "7",
        0,
        0,
        "Best Validation Error Per Batch Size",
        "best_value",
        tuple(
            Series(f"Label Smoothing = {value:.2f}", _IMAGENET, metric=ERROR, label_smoothing=value)
            for value in LABEL_SMOOTHINGS
        ),
        y_limits=(0.235, 0.265),
    ),
    Panel(
        "7",
        0,
        1,
        "Steps to Reach 0.25 Validation Error",
        "steps",
        tuple(
            Series(f"Label Smoothing = {value:.2f}", _IMAGENET, GOALS[_IMAGENET], label_smoothing=value)
            for value in LABEL_SMOOTHINGS
        ),
        dashed="Label Smoothing = 0.10",
    ),
)
"""ResNet-50 on ImageNet: the first 100 COMPLETE trials of each study, split by their label smoothing."""

FIGURE_8 = tuple(
    Panel(
        "8",
        panel.row,
        panel.column,
        panel.title,
        "effective_learning_rate",
        (
            Series(
                "Optimal Effective Learning Rate",
                panel.series[0].workload,
                panel.series[0].goal,
                notebook_goal=Goal(ERROR, 0.3) if panel.series[0].workload == _FASHION else None,
            ),
        ),
    )
    for panel in FIGURE_1
)
"""Effective learning rate of the best trial, with the linear and the square-root heuristic from the first."""

STEP_BUDGET_OF_FIGURE_9B = 25_000

FIGURE_9A = tuple(
    Panel(
        "9a",
        *divmod(place, 3),
        f"Batch Size {batch_size}",
        "settings",
        (Series("", _LM1B, GOALS[_LM1B], budget=Budget(examples=LM1B_SIZE), batch_size=batch_size),),
        x_limits=(10**-4.5, 10**-0.5),
        y_limits=(1e-6, 10),
    )
    for place, batch_size in enumerate((128, 256, 512, 1024, 2048, 4096))
)
"""Transformer on LM1B, trained for one epoch: which learning rates and momenta reach the goal."""

FIGURE_9B = tuple(
    Panel(
        "9b",
        *divmod(place, 3),
        f"Batch Size {batch_size}",
        "settings",
        (
            Series(
                "",
                _LM1B,
                GOALS[_LM1B],
                budget=Budget(steps=STEP_BUDGET_OF_FIGURE_9B),
                batch_size=batch_size,
            ),
        ),
        x_limits=(10**-4.5, 10**-0.5),
        y_limits=(1e-6, 10),
    )
    for place, batch_size in enumerate((512, 1024, 2048, 4096, 8192, 16_384))
)
"""The same, trained for 25,000 steps."""

FIGURE_10 = tuple(
    Panel(
        "10",
        *divmod(place, 2),
        title,
        "settings",
        (Series("", workload, Goal(CROSS_ENTROPY, 4.2), budget=Budget(steps=50_000), batch_size=1024),),
        x_limits=(1e-4, 1e-1),
        y_limits=(1e-4, 1e-1),
    )
    for place, (title, workload) in enumerate(
        (
            ("Wide", "lm1b/transformer_wide/nesterov_momentum"),
            ("Base", _LM1B),
            ("Shallow", "lm1b/transformer_shallow/nesterov_momentum"),
            ("Narrow and Shallow", _NARROW),
        )
    )
)
"""Transformers of four sizes on LM1B, trained for 50,000 steps at batch size 1,024."""


def _step_budgets(workload: str, metric: str, *thousands: int) -> tuple[Series, ...]:
    return tuple(
        Series(f"{k}k steps", workload, metric=metric, budget=Budget(steps=1000 * k)) for k in thousands
    )


def _epoch_budgets(workload: str, metric: str, size: int, *epochs: float) -> tuple[Series, ...]:
    return tuple(
        Series(f"{n:g} epochs", workload, metric=metric, budget=Budget.epochs(n, training_set_size=size))
        for n in epochs
    )


_IMAGE_STEPS = (5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
_IMAGE_EPOCHS = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
_TEXT_STEPS = (10, 20, 50, 100, 200, 500, 1000)
_TEXT_EPOCHS = (0.2, 0.5, 1, 2, 5, 10, 20)
_QUALITY = "solution_quality/{}/simple_cnn_base/nesterov_momentum"

FIGURE_11 = tuple(
    Panel(
        "11",
        row,
        column,
        title,
        "best_value",
        _step_budgets(workload, metric, *steps)
        if column == 0
        else _epoch_budgets(workload, metric, size, *epochs),
        y_limits=y_limits,
        notebook_title=notebook_title,
    )
    for row, (title, workload, metric, size, steps, epochs, y_limits, notebook_title) in enumerate(
        (
            (
                "Simple CNN on MNIST",
                _QUALITY.format("mnist"),
                ERROR,
                MNIST_SIZE,
                _IMAGE_STEPS,
                _IMAGE_EPOCHS,
                (0.0, 0.04),
                None,
            ),
            (
                "Simple CNN on Fashion MNIST",
                _QUALITY.format("fashion_mnist"),
                ERROR,
                MNIST_SIZE,
                _IMAGE_STEPS,
                _IMAGE_EPOCHS,
                (0.05, 0.2),
                "Simple CNN on MNIST",
            ),
            (
                "Transformer (narrow and shallow) on LM1B",
                _NARROW,
                CROSS_ENTROPY,
                LM1B_SIZE,
                _TEXT_STEPS,
                _TEXT_EPOCHS,
                (4.0, 5.5),
                None,
            ),
            (
                "Transformer (base) on LM1B",
                _LM1B,
                CROSS_ENTROPY,
                LM1B_SIZE,
                _TEXT_STEPS,
                _TEXT_EPOCHS,
                (3.5, 5.5),
                None,
            ),
        )
    )
    for column in (0, 1)
)
"""Best value of the objective within a budget, over all COMPLETE trials.

A batch size takes part only where the ``train_steps`` of its study cover the budget.
"""

PANELS = (
    *FIGURE_1,
    *FIGURE_2,
    *FIGURE_3,
    *FIGURE_4,
    *FIGURE_5,
    *FIGURE_6,
    *FIGURE_7,
    *FIGURE_8,
    *FIGURE_9A,
    *FIGURE_9B,
    *FIGURE_10,
    *FIGURE_11,
)
"""Every panel of Figures 1 to 11."""

ALL_TRIALS = frozenset({"9a", "9b", "10", "11"})
"""Figures that take every trial; the others the first `trials_used` COMPLETE ones of each study."""


def goal_of(workload: str) -> Goal | None:
    """The first goal that a figure of the paper has for a workload; None where it has none.

    Examples
    --------
    >>> str(goal_of("mnist/simple_cnn_base/nesterov_momentum"))
    'val/classification_error < 0.01'
    """
    goals = (s.goal for panel in PANELS for s in panel.series if s.workload == workload)
    return next((goal for goal in goals if goal is not None), None)
