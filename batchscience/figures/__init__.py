"""The figures: what there are (`FIGURES`), and `render`, which draws one into files.

Importing this loads no plotting library; drawing does.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from ..errors import BatchScienceError

if TYPE_CHECKING:
    import pandas as pd

    from ..goals import Goal
    from ..store import Store
    from .drawing import Rendered

Format = Literal["pdf", "png", "svg"]
SourceName = Literal["auto", "archive", "published"]
StyleName = Literal["paper", "talk"]
Split = Literal["val", "train", "test"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A figure that can be drawn.

    Attributes
    ----------
    name : str
        Name of its files and on the command line.
    title : str
        What it shows.
    module : str
        Module of this package that draws it.
    published : bool
        Whether the published points that come with the package suffice; else it needs the raw curves.
    usual : bool
        Whether it is among those drawn when none is named.
    of_workload : bool
        Whether it shows one workload, any that the tables hold.
    split : {"val", "train", "test"}
        Part of the data on which its metrics are measured.
    shipped : bool
        Whether it shows the studies that come with the package, whatever other tables there are.
    """

    name: str
    title: str
    module: str
    published: bool = True
    usual: bool = True
    of_workload: bool = False
    split: Split = "val"
    shipped: bool = False

    @property
    def needs(self) -> str:
        """What it is drawn from."""
        if self.shipped:
            return "shipped studies"
        return "published points" if self.published else "raw curves"


_PAPER = (
    Entry("figure_01", "Figure 1: steps to result against batch size, nine workloads", "figure_01"),
    Entry("figure_02", "Figure 2: steps to result for several goals", "figure_02"),
    Entry("figure_03", "Figure 3: steps to result of several models", "figure_03"),
    Entry("figure_04", "Figure 4: steps to result with several optimizers", "figure_04"),
    Entry("figure_05", "Figure 5: steps to result on several data sets", "figure_05"),
    Entry("figure_06", "Figure 6: steps to result on parts of a data set", "figure_06"),
    Entry("figure_07", "Figure 7: label smoothing, ResNet-50 on ImageNet", "figure_07"),
    Entry("figure_08", "Figure 8: effective learning rate of the best trial", "figure_08"),
    Entry(
        "figure_09a",
        "Figure 9a: learning rates and momenta that reach the goal in one epoch",
        "figure_09a",
        published=False,
    ),
    Entry(
        "figure_09b",
        "Figure 9b: learning rates and momenta that reach the goal in 25,000 steps",
        "figure_09b",
        published=False,
    ),
    Entry(
        "figure_10",
        "Figure 10: the same for four sizes of Transformers",
        "figure_10",
        published=False,
    ),
    Entry("figure_11", "Figure 11: best value within a budget", "figure_11"),
)

_MORE = (
    Entry("scaling_regimes", "The three regimes of each workload of Figure 1", "scaling_regimes"),
    Entry("useful_ranges", "Perfect-scaling and useful ranges of all workloads", "useful_ranges"),
    Entry(
        "best_settings",
        "Learning rate and momentum of the best trial by batch size",
        "best_settings",
        published=False,
    ),
    Entry(
        "learning_curves",
        "Learning curves of the best trials",
        "learning_curves",
        published=False,
    ),
    Entry(
        "isolation",
        "The trials of a workload by each metaparameter (--workload)",
        "isolation",
        published=False,
        of_workload=True,
    ),
    Entry(
        "workload",
        "Any one workload: steps, examples, settings, curves (--workload)",
        "workload",
        published=False,
        usual=False,
        of_workload=True,
    ),
)


_SHIPPED = tuple(
    Entry(name, title, name, published=False, shipped=True)
    for name, title in (
        ("shipped_regimes", "Studies that come with the package: the three regimes of each workload"),
        ("shipped_optimizers", "Studies that come with the package: optimizers side by side"),
        ("shipped_settings", "Studies that come with the package: settings that reach the goal"),
        ("shipped_budgets", "Studies that come with the package: best value within a budget"),
        ("shipped_noise_scale", "Studies that come with the package: noise scale and critical batch size"),
    )
)


def _on_other_splits(entry: Entry) -> Iterator[Entry]:
    splits: tuple[tuple[Split, str], ...] = (("train", "on training metrics"), ("test", "on test metrics"))
    for split, words in splits:
        yield Entry(
            f"{entry.name}_{split}",
            f"{entry.title}, {words}",
            entry.module,
            published=False,
            usual=entry.name == "figure_01",
            split=split,
        )


FIGURES: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        *_PAPER,
        *_MORE,
        *_SHIPPED,
        *(other for entry in _PAPER for other in _on_other_splits(entry)),
    )
}
"""The figures by name, those of the paper first."""


def listing() -> pd.DataFrame:
    """The figures as a table.

    Returns
    -------
    pandas.DataFrame
        A row is a figure: its ``name`` and ``title``, what it ``needs`` ("published points" come with the
        package, and so do the "shipped studies"), and whether it is drawn when none is named (``usual``).
    """
    import pandas as pd

    rows = [
        (
            entry.name,
            entry.title,
            entry.needs,
            entry.usual,
        )
        for entry in FIGURES.values()
    ]
    return pd.DataFrame(rows, columns=["name", "title", "needs", "usual"])


def names_of(
    wanted: Iterable[str] = (), *, of_workload: bool = False, source: SourceName = "auto"
) -> list[str]:
    """The names of the figures asked for, in order; if none is, the usual ones or those of one workload.

    From the archive alone the usual ones are those that show it, so not the shipped studies.

    Raises
    ------
    BatchScienceError
        If there is no figure of a name; the message gives those that come near.
    """
    import difflib

    names = list(dict.fromkeys(wanted))
    for name in names:
        if name not in FIGURES:
            close = difflib.get_close_matches(name, FIGURES, n=3, cutoff=0.4)
            hint = f"did you mean {' or '.join(close)}?" if close else "--list shows them"
            raise BatchScienceError(f"there is no figure {name!r}; {hint}")
    if names:
        return names
    if of_workload:
        return [name for name, entry in FIGURES.items() if entry.of_workload]
    return [
        name for name, entry in FIGURES.items() if entry.usual and not (entry.shipped and source == "archive")
    ]


def render(
    name: str,
    store: Store | None,
    out: str | Path,
    *,
    formats: Sequence[Format] = ("pdf", "png"),
    source: SourceName = "auto",
    style: StyleName = "paper",
    workload: str | None = None,
    goal: Goal | None = None,
) -> list[Path]:
    """Draw one figure into files.

    Parameters
    ----------
    name : str
        A key of `FIGURES`.
    store : Store, optional
        Tables of raw curves; without them only what the published points suffice for is drawn.
    out : path
        Folder of the files; made if it is not there.
    formats : sequence of {"pdf", "png", "svg"}
        Kinds of files, each named after the figure.
    source : {"auto", "archive", "published"}
        Where the numbers come from: the raw curves, the published points, or the curves where the store
        holds what the figure shows and else the points.  Figures of the shipped studies show these alone.
    style : {"paper", "talk"}
        Sizes of the figure and its text.
    workload : str, optional
        The workload of a figure that shows one.
    goal : Goal, optional
        The goal of a figure that shows one workload; by default the paper's, or one that all its batch
        sizes reach.

    Returns
    -------
    list of pathlib.Path
        The files: one for each format, and a JSON file with every number that was drawn.

    Raises
    ------
    BatchScienceError
        If there is no such figure, or the source does not hold what it shows.

    Notes
    -----
    The same numbers give the same bytes: no file holds a date.
    """
    rendered = render_all(
        [name],
        store,
        out,
        formats=formats,
        source=source,
        style=style,
        workload=workload,
        goal=goal,
        stop_at_error=True,
    )
    return list(rendered[0].paths)


def render_all(
    names: Iterable[str],
    store: Store | None,
    out: str | Path,
    *,
    formats: Sequence[str] = ("pdf", "png"),
    source: SourceName = "auto",
    style: StyleName = "paper",
    workload: str | None = None,
    goal: Goal | None = None,
    on_figure: Callable[[str, int, int], None] | None = None,
    stop_at_error: bool = False,
) -> list[Rendered]:
    """Draw several figures; a workload's curves are read once for all of them.

    Parameters
    ----------
    names : iterable of str
        Keys of `FIGURES`; those usually drawn if there are none.
    store, out, formats, source, style, workload, goal
        As for `render`.
    on_figure : callable, optional
        Called with the name, the number of figures done, and their total before each figure and at the end.
    stop_at_error : bool, default False
        Raise the first error instead of going on with the next figure.

    Returns
    -------
    list of Rendered
        For each figure its files, or the error that kept it from being drawn.
    """
    chosen = names_of(names, of_workload=workload is not None, source=source)
    unknown = [repr(kind) for kind in formats if kind not in get_args(Format)]
    if unknown:
        raise BatchScienceError(f"there is no format {', '.join(unknown)}; choose from pdf, png, svg")
    drawing = importlib.import_module(".drawing", __name__)
    rendered: list[Rendered] = drawing.render_entries(
        [FIGURES[name] for name in chosen],
        store,
        Path(out),
        formats=tuple(formats),
        source=source,
        style=style,
        workload=workload,
        goal=goal,
        on_figure=on_figure,
        stop_at_error=stop_at_error,
    )
    return rendered


def render_here(name: str) -> list[Path]:
    """Draw a figure of the paper as its own module does when it is run.

    The first argument of the command line is the folder of the files, by default the current one, and the
    second the folder of the tables; without tables the published points are drawn.
    """
    import sys

    from ..errors import StoreMissing
    from ..store import Store

    out, data = ([*sys.argv[1:3], None, None])[:2]
    try:
        store = Store(data)
    except StoreMissing:
        if data is not None:
            raise
        store = None
    return render(name, store, out or ".")
