"""The command line: each command reads its options, calls one function of the package and prints."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from .errors import BatchScienceError, StoreMissing, UnknownMetric, UnknownWorkload

# Everything heavy is imported inside the commands: --help must not wait for pandas.
if TYPE_CHECKING:
    import pandas as pd

    from .figures.drawing import Rendered
    from .goals import Budget, Goal
    from .ingest import IngestReport
    from .regimes import Regimes
    from .store import Store
    from .train.plan import Plan, Progress

WRONG_USAGE = 2


class _Commands(TyperGroup):
    """Turns the package's errors into one line on standard error and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        warnings.showwarning = lambda message, *_, **__: _say(f"warning: {message}")
        try:
            return super().invoke(ctx)
        except (StoreMissing, UnknownMetric, UnknownWorkload) as error:
            _say(f"error: {error}")
            raise typer.Exit(WRONG_USAGE) from None
        except BatchScienceError as error:
            _say(f"error: {error}")
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            _say("interrupted; what is finished stays, and the same command goes on")
            raise typer.Exit(130) from None


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Steps to result against batch size: load, analyse, redraw and extend the measurements of "
    "Shallue et al. (2019).",
)

Format = Literal["table", "csv", "json"]
Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="DIR|URL",
        help="Folder of the tables; by default $BATCHSCIENCE_DATA, else the user's data folder.",
        show_default=False,
    ),
]
OutputFormat = Annotated[Format, typer.Option("--format", help="How to print the table.")]
Patterns = Annotated[
    list[str] | None,
    typer.Option("--workload", metavar="PATTERN", help="Only these workloads; may be repeated."),
]
Replace = Annotated[
    bool, typer.Option("--replace", help="Replace studies that are there from another source.")
]
Metric = Annotated[str | None, typer.Option(help="Objective; by default the paper's.")]
Threshold = Annotated[
    float | None, typer.Option("--goal", help="Value to beat; by default the paper's.", show_default=False)
]
Maximize = Annotated[bool, typer.Option("--maximize", help="Larger values are better.")]
Inclusive = Annotated[bool, typer.Option("--inclusive", help="The value itself will do.")]
Trials = Annotated[str, typer.Option(metavar="N|all", help="First N COMPLETE trials of each study.")]
SearchSize = Annotated[int, typer.Option("--best-of", min=1, help="Trials of the search asked about.")]
Confidence = Annotated[float, typer.Option(min=0.5, max=0.999, help="Of the limits.")]
BudgetSteps = Annotated[float | None, typer.Option(help="Limit in steps.")]
BudgetExamples = Annotated[float | None, typer.Option(help="Limit in examples.")]
BudgetEpochs = Annotated[float | None, typer.Option(help="Limit in passes over the training set.")]
TrainingSetSize = Annotated[
    int | None,
    typer.Option(min=1, help="Examples in an epoch; known for the paper's workloads.", show_default=False),
]
Strict = Annotated[bool, typer.Option("--strict", help="Stop at the first damaged file.")]


@app.command()
def fetch(
    url: Annotated[
        str | None, typer.Option(metavar="URL|PATH", help="Another place of the archive, or a file.")
    ] = None,
    sha256: Annotated[
        str | None, typer.Option(metavar="HEX", help="Expected hash; '' to accept any.")
    ] = None,
    data: Data = None,
    workload: Patterns = None,
    replace: Replace = False,
    strict: Strict = False,
) -> None:
    """Download the published archive (802 MB), verify it and ingest it."""
    from .fetch import ARCHIVE_SHA256, ARCHIVE_URL, fetch_archive
    from .places import is_url, place
    from .store import default_folder

    folder = place(data) if data is not None else default_folder()
    with _progress_bar("downloading", unit="bytes") as on_progress:
        archive = fetch_archive(
            default_folder() if is_url(folder) else folder,
            url=url or ARCHIVE_URL,
            sha256=ARCHIVE_SHA256 if sha256 is None else sha256 or None,
            on_progress=on_progress,
        )
    _ingest(archive, folder, workload, replace, strict)


@app.command()
def ingest(
    source: Annotated[str, typer.Argument(help="An archive or a folder in the raw layout, or its URL.")],
    data: Data = None,
    workload: Patterns = None,
    replace: Replace = False,
    strict: Strict = False,
) -> None:
    """Read an archive, a raw folder or a trained study into the tables."""
    from .places import place
    from .store import default_folder

    _ingest(place(source), place(data) if data else default_folder(), workload, replace, strict)


def _ingest(source: Path, data: Path, workloads: list[str] | None, replace: bool, strict: bool) -> None:
    from .ingest import ingest as read

    with _progress_bar("ingesting", unit="bytes") as on_progress:
        report = read(
            source, data, workloads=workloads, replace=replace, strict=strict, on_progress=on_progress
        )
    _say_what_was_read(report, data)
    if report.problems:
        raise typer.Exit(1)


def _say_what_was_read(report: IngestReport, data: Path) -> None:
    for note in report.notes:
        _say(f"note: {note}")
    for problem in report.problems:
        _say(f"damaged: {problem}")
    _say(
        f"{report.studies:,} studies, {report.trials:,} trials, {report.rows:,} evaluations, "
        f"{report.measurements:,} measurements from {report.source} are in {data}"
    )
    if report.problems:
        _say(f"{len(report.problems)} files could not be read (listed above); the rest is in the tables")


@app.command("import")
def import_(
    panels: Annotated[list[Path], typer.Argument(metavar="PANEL.csv...", help="A tracker's panel exports.")],
    runs: Annotated[
        Path, typer.Option(metavar="RUNS.csv", help="A row is a run: run, batch_size, its settings.")
    ],
    workload: Annotated[str, typer.Option(metavar="NAME", help="dataset/model/optimizer of the runs.")],
    updates_per_step: Annotated[
        str,
        typer.Option(
            metavar="N|N/M|COLUMN", help="Optimizer updates that a logged step stands for, or where it is."
        ),
    ],
    metric: Annotated[list[str] | None, typer.Option(help="Only this metric; may be repeated.")] = None,
    setting: Annotated[
        list[str] | None, typer.Option(help="Only this column of RUNS.csv is a metaparameter; repeatable.")
    ] = None,
    ranges: Annotated[bool, typer.Option("--ranges", help="The MIN and MAX columns too.")] = False,
    step_column: Annotated[str, typer.Option(help="Column of logged steps.")] = "Step",
    out: Annotated[Path, typer.Option(metavar="DIR", help="Root of the raw layout.")] = Path("studies"),
) -> None:
    """Turn the panel exports of an experiment tracker into studies that ingest reads."""
    from .exports import import_panels

    try:
        report = import_panels(
            panels, runs, out, workload=workload, updates_per_step=updates_per_step, metrics=metric,
            ranges=ranges, settings=setting, step_column=step_column,
        )  # fmt: skip
    except (FileExistsError, ValueError) as error:
        raise typer.BadParameter(str(error)) from None
    _say(
        f"{report.studies:,} studies, {report.trials:,} trials, {report.rows:,} evaluations of "
        f"{', '.join(report.metrics)} are in {out}; batchscience ingest {out} reads them"
    )


@app.command()
def workloads(
    data: Data = None,
    check: Annotated[
        bool, typer.Option("--check", help="Compare with the 454 studies of the publication.")
    ] = False,
    format: OutputFormat = "table",  # noqa: A002  (the option's name)
) -> None:
    """List the studies in the tables with their trial counts."""
    from .store import Store

    counts = Store(data).counts()
    if not check:
        _print_table(counts.drop(columns="other") if not counts["other"].any() else counts, format)
        return
    from .published import differences_from_published

    differences = differences_from_published(counts)
    _print_table(differences, format)
    _say(f"{len(differences)} differences from the 454 published studies")
    if len(differences):
        raise typer.Exit(1)


@app.command()
def steps(
    workload: Annotated[str, typer.Argument(help="Name of a workload.")],
    metric: Annotated[str | None, typer.Option(help="Objective; by default the paper's.")] = None,
    goal: Annotated[float | None, typer.Option(help="Value to beat; by default the paper's.")] = None,
    maximize: Annotated[bool, typer.Option("--maximize", help="Larger values are better.")] = False,
    inclusive: Annotated[bool, typer.Option("--inclusive", help="The value itself will do.")] = False,
    trials: Annotated[
        str, typer.Option(metavar="N|all", help="First N COMPLETE trials of each study.")
    ] = "paper",
    k: Annotated[int, typer.Option("--best-of", min=1, help="Trials of the search asked about.")] = 10,
    budget_steps: BudgetSteps = None,
    budget_examples: BudgetExamples = None,
    budget_epochs: BudgetEpochs = None,
    training_set_size: TrainingSetSize = None,
    data: Data = None,
    format: OutputFormat = "table",  # noqa: A002  (the option's name)
) -> None:
    """Steps to result of a workload by batch size, with the best of k trials and its limits."""
    from .results import steps_by_batch_size

    table = steps_by_batch_size(
        _store_with(data, workload),
        workload,
        _goal(workload, metric, goal, maximize, inclusive),
        first=_first(workload, trials),
        k=k,
        budget=_budget(workload, budget_steps, budget_examples, budget_epochs, training_set_size),
    )
    _print_table(table, format)


@app.command()
def regimes(
    workloads: Annotated[
        list[str] | None, typer.Argument(metavar="[WORKLOAD]...", help="By default all that have a goal.")
    ] = None,
    metric: Metric = None,
    goal: Threshold = None,
    maximize: Maximize = False,
    inclusive: Inclusive = False,
    tolerance: Annotated[
        list[float] | None, typer.Option(help="By default 0.2; repeat it to see how the answers move.")
    ] = None,
    law: Annotated[Literal["knee", "hyperbola", "pieces"], typer.Option(help="Law to fit.")] = "knee",
    trials: Trials = "paper",
    k: SearchSize = 10,
    draws: Annotated[int, typer.Option(min=99, help="Resampled curves for the limits.")] = 999,
    confidence: Confidence = 0.9,
    seed: Annotated[int, typer.Option(help="Of the limits.")] = 0,
    compare: Annotated[bool, typer.Option("--compare", help="Ratios to the first series.")] = False,
    source: Annotated[
        Literal["auto", "archive", "published"],
        typer.Option(help="Raw curves, published points, or what there is."),
    ] = "auto",
    data: Data = None,
    format: OutputFormat = "table",  # noqa: A002  (the option's name)
) -> None:
    """Ends of perfect scaling, maximum useful and critical batch sizes, with limits."""
    from .comparisons import compare as compared
    from .regimes import SUMMARY, as_table

    store = _store_if_any(data, needed=source == "archive") if source != "published" else None
    options = {"law": law, "draws": draws, "confidence_level": confidence, "seed": seed}
    asked = (metric, goal, maximize, inclusive)
    answers = _answers(store, workloads or [], asked, tolerance or [0.2], trials, k, options)
    if compare:
        _print_table(compared(answers), format)
        return
    table = as_table(answers)
    _print_table(table[list(SUMMARY)] if format == "table" else table, format)


def _answers(
    store: Store | None,
    workloads: list[str],
    asked: tuple[str | None, float | None, bool, bool],
    tolerances: list[float],
    trials: str,
    k: int,
    options: dict[str, Any],
) -> list[Regimes]:
    from .paper import goal_of
    from .regimes import published_regimes, stored_regimes

    if not all(tolerance > 0 for tolerance in tolerances):
        raise typer.BadParameter("--tolerance must be positive")
    answers = []
    for tolerance in tolerances:
        if store is None:
            goal = _goal("", *asked) if asked[0] is not None or asked[1] is not None else None
            answers += published_regimes(workloads, goal=goal, tolerance=tolerance, **options)
            continue
        for name in workloads or [name for name in store.workloads() if goal_of(name) or asked[0]]:
            goal, first = _goal(name, *asked), _first(name, trials)
            answers.append(
                stored_regimes(store, name, goal, first=first, k=k, tolerance=tolerance, **options)
            )
    return answers


@app.command()
def metaparameters(
    workload: Annotated[str, typer.Argument(help="Name of a workload.")],
    metric: Metric = None,
    goal: Threshold = None,
    maximize: Maximize = False,
    inclusive: Inclusive = False,
    trials: Trials = "paper",
    reference: Annotated[
        int | None, typer.Option(min=1, help="Batch size that the heuristics start from.")
    ] = None,
    budget_steps: BudgetSteps = None,
    budget_examples: BudgetExamples = None,
    budget_epochs: BudgetEpochs = None,
    training_set_size: TrainingSetSize = None,
    confidence: Confidence = 0.9,
    data: Data = None,
    format: OutputFormat = "table",  # noqa: A002  (the option's name)
) -> None:
    """The best trial of each study: its settings, the heuristics, the edges of the search space."""
    from .metaparameters import stored_metaparameters

    try:
        table = stored_metaparameters(
            _store_with(data, workload),
            workload,
            _goal(workload, metric, goal, maximize, inclusive),
            first=_first(workload, trials),
            budget=_budget(workload, budget_steps, budget_examples, budget_epochs, training_set_size),
            reference=reference,
            confidence_level=confidence,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    _print_table(table, format)


@app.command()
def noise_scale(
    raw: Annotated[
        str, typer.Argument(metavar="DIR|URL", help="Trained studies that measured the noise scale.")
    ],
    workload: Patterns = None,
    metric: Metric = None,
    goal: Annotated[
        float | None, typer.Option(help="Value to beat; by default the goal trained for.", show_default=False)
    ] = None,
    maximize: Maximize = False,
    every_step: Annotated[
        bool, typer.Option("--every-step", help="Not only where the best trial reached the goal.")
    ] = False,
    data: Data = None,
    format: OutputFormat = "table",  # noqa: A002  (the option's name)
) -> None:
    """The gradient noise scale at the goal beside the measured critical batch size, by workload."""
    from fnmatch import fnmatchcase

    from .noise_scales import at_goal, noise_scales
    from .store import Store

    store = Store(data)
    chosen = None
    if workload:
        chosen = [name for name in store.workloads() if any(fnmatchcase(name, p) for p in workload)]
        if not chosen:
            raise UnknownWorkload(f"{store.path} holds no workload like {', '.join(workload)}")
    table = noise_scales(raw, store, workloads=chosen, goal=_goal_if_any(metric, goal, maximize))
    _print_table(table if every_step else at_goal(table), format)


@app.command()
def advise(
    workload: Annotated[str, typer.Argument(help="Name of a workload.")],
    throughput: Annotated[
        Path,
        typer.Option(
            metavar="CSV", help="Measured set-ups: batch_size, accelerators, examples_per_second (of all)."
        ),
    ],
    metric: Metric = None,
    goal: Threshold = None,
    maximize: Maximize = False,
    inclusive: Inclusive = False,
    trials: Trials = "paper",
    k: SearchSize = 10,
    price: Annotated[float | None, typer.Option(min=0, help="Price of an accelerator-hour.")] = None,
    deadline: Annotated[
        float | None, typer.Option(metavar="HOURS", help="Longest time that will do.")
    ] = None,
    source: Annotated[
        Literal["auto", "archive", "published"],
        typer.Option(help="Raw curves, published steps, or what there is."),
    ] = "auto",
    data: Data = None,
    format: OutputFormat = "table",  # noqa: A002  (the option's name)
) -> None:
    """Time and accelerator-hours to the goal at each batch size, and what is worth paying."""
    from .advice import advise as priced
    from .advice import best_choice, published_curve, read_throughput
    from .results import steps_by_batch_size

    store = _store_if_any(data, needed=source == "archive") if source != "published" else None
    aim = _goal(workload, metric, goal, maximize, inclusive)
    if store is None:
        curve = published_curve(workload, aim)
    else:
        curve = steps_by_batch_size(store, workload, aim, first=_first(workload, trials), k=k)
    table = priced(curve, read_throughput(throughput), price_per_accelerator_hour=price)
    _print_table(table, format)
    _say(best_choice(table, deadline_hours=deadline))


@app.command()
def simulate(
    out: Annotated[Path, typer.Option(metavar="FILE.tar.bz2", help="Archive or folder to write.")],
    scale: Annotated[float, typer.Option(help="1 is the size of the published archive.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Another seed gives other trials.")] = 0,
) -> None:
    """Write a simulated archive in the raw layout, with its true answers beside it."""
    from .simulate import simulate as write

    try:
        with _progress_bar("simulating", unit="studies") as on_progress:
            write(out, scale=scale, seed=seed, on_progress=on_progress)
    except (FileExistsError, ValueError) as error:
        raise typer.BadParameter(str(error)) from None


@app.command()
def figures(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Figures; by default the usual ones.")
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="List the figures and draw none.")] = False,
    data: Data = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the files.")] = Path("figures"),
    format: Annotated[str, typer.Option(metavar="LIST", help="Of png, pdf and svg.")] = "png,pdf",  # noqa: A002  (the option's name)
    source: Annotated[
        Literal["auto", "archive", "published"],
        typer.Option(help="Raw curves, published points, or what there is."),
    ] = "auto",
    style: Annotated[Literal["paper", "talk"], typer.Option(help="Sizes of figures and text.")] = "paper",
    verify: Annotated[
        bool, typer.Option("--verify", help="Draw none; compare with the published points.")
    ] = False,
    workload: Annotated[str | None, typer.Option(metavar="NAME", help="Figures of one workload.")] = None,
    metric: Annotated[str | None, typer.Option(help="Its objective; by default the paper's.")] = None,
    goal: Annotated[float | None, typer.Option(help="Value to beat.")] = None,
    maximize: Annotated[bool, typer.Option("--maximize", help="Larger values are better.")] = False,
) -> None:
    """Redraw the figures of the paper, and more, from the raw curves or the published points."""
    from . import figures as drawn

    if listing:
        _print_table(drawn.listing(), "table")
        return
    needed = source == "archive" or verify or workload is not None
    store = _store_if_any(data, needed=needed) if source != "published" else None
    if verify:
        _verify_figures(store, names or [])
        return
    with _progress_bar("drawing", unit="figures") as on_progress:
        rendered = drawn.render_all(
            names or [],
            store,
            out,
            formats=format.replace(" ", "").split(","),
            source=source,
            style=style,
            workload=workload,
            goal=_goal_if_any(metric, goal, maximize),
            on_figure=lambda _, done, total: on_progress(done, total),
        )
    _report_figures(rendered, out, named=bool(names))


@app.command()
def report(
    workloads: Annotated[list[str], typer.Argument(metavar="WORKLOAD...", help="Names of workloads.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The HTML file.")],
    data: Data = None,
    metric: Annotated[str | None, typer.Option(help="Objective; by default the paper's.")] = None,
    goal: Annotated[float | None, typer.Option(help="Value to beat.")] = None,
    maximize: Annotated[bool, typer.Option("--maximize", help="Larger values are better.")] = False,
) -> None:
    """Write curves, transitions, settings and warnings of workloads into one HTML file."""
    from .figures.report import write_report

    chosen = _goal_if_any(metric, goal, maximize)
    _say(f"written: {write_report(workloads, _store_if_any(data, needed=False), out, goal=chosen)}")


@app.command()
def train(
    context: typer.Context,
    workload: Annotated[
        str | None,
        typer.Argument(
            help="dataset/model/optimizer, a file my_workload.py, or a plan study.toml.", show_default=False
        ),
    ] = None,
    batch_size: Annotated[list[int] | None, typer.Option(min=1, help="May be repeated.")] = None,
    trials: Annotated[int, typer.Option(min=1, help="Of each batch size.")] = 100,
    steps: Annotated[int | None, typer.Option(min=1, help="Most updates of a trial.")] = None,
    examples: Annotated[int | None, typer.Option(min=1, help="Most training examples of a trial.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Most time that a trial spends in updates.")] = None,
    seed: Annotated[int, typer.Option(help="Of the search and of every trial.")] = 0,
    device: Annotated[
        str, typer.Option(help="cpu, cpu:N, gpu, gpu:N, tpu, tpu:ADDRESS or workers (of $TF_CONFIG).")
    ] = "cpu",
    local_workers: Annotated[
        int | None, typer.Option(min=1, help="Train in so many processes started here.")
    ] = None,
    together: Annotated[int, typer.Option(min=1, help="Trials trained at once, as one program.")] = 1,
    engine: Annotated[str, typer.Option(help="Where trials run: local, processes or ray.")] = "local",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Worker processes; by default one per processor.")
    ] = None,
    trial_resources: Annotated[
        str | None, typer.Option(metavar="CPU=1,TPU=4", help="What a trial takes on a Ray cluster.")
    ] = None,
    ray_address: Annotated[
        str | None, typer.Option(help="Of a Ray cluster that runs; by default one is started here.")
    ] = None,
    accumulate: Annotated[int, typer.Option(min=1, help="Parts of each replica's share of a batch.")] = 1,
    stop_at_goal: Annotated[
        bool, typer.Option("--stop-at-goal", help="End a trial there; cuts curves short.")
    ] = False,
    noise_at: Annotated[
        list[int] | None, typer.Option(help="Measure the gradient noise scale at this step; repeatable.")
    ] = None,
    out: Annotated[str, typer.Option(metavar="DIR|URL", help="Root of the raw layout.")] = "studies",
    datasets: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of data sets.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what there is to train and about how long it takes.")
    ] = False,
    format: OutputFormat = "table",  # noqa: A002  (the option's name)
    list_: Annotated[bool, typer.Option("--list", help="List the workloads.")] = False,
) -> None:
    """Train studies of a workload and write them in the published layout; the same command goes on."""
    from .train import Limits, NoiseRule, Study, known_workloads, workload_named
    from .train.engine import parse_resources
    from .train.plan import Plan

    if list_ or workload is None:
        for name, what in known_workloads().items():
            typer.echo(f"{name:<66}  {what}")
        return
    if local_workers is not None:
        raise typer.Exit(_train_with_workers(local_workers))
    resources = parse_resources(trial_resources) if trial_resources is not None else None
    if workload.endswith(".toml"):
        _train_plan(_plan_with_options(workload, context, resources), dry_run, format)
        return
    noise = NoiseRule(tuple(noise_at)) if noise_at else None
    found = workload_named(workload)
    try:
        limits = Limits(steps, examples, seconds)
        studies = [Study(found, size, limits, accumulate, stop_at_goal, noise) for size in batch_size or [64]]
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    plan = Plan(
        tuple((study, trials) for study in studies), out, seed=seed, device=device, engine=engine,
        workers=workers, resources=resources, address=ray_address, together=together, datasets=datasets,
    )  # fmt: skip
    _train_plan(plan, dry_run, format)


def _plan_with_options(path: str, context: typer.Context, resources: dict[str, float] | None) -> Plan:
    """The plan of a file; options say where it runs, and nothing else but its seed."""
    from dataclasses import replace

    from .train.plan import read_plan

    given = {
        name: value
        for name, value in context.params.items()
        if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    }
    elsewhere = {"trial_resources": "resources", "ray_address": "address"}
    changes = {
        elsewhere.get(name, name): value
        for name, value in given.items()
        if name not in ("workload", "dry_run", "format", "local_workers")
    }
    known = {"seed", "device", "engine", "workers", "resources", "address", "together", "out", "datasets"}
    if wrong := sorted(set(changes) - known):
        raise typer.BadParameter(f"{', '.join(wrong)}: for a plan this stands in {path}")
    if resources is not None:
        changes["resources"] = resources
    if "engine" in changes:
        # Options of the file's engine are not those of another.
        changes = {"workers": None, "resources": None, "address": None, **changes}
    return replace(read_plan(path), **changes)


def _train_plan(plan: Plan, dry_run: bool, format: Format) -> None:  # noqa: A002  (the option's name)
    from dataclasses import asdict

    import pandas as pd

    from .train.devices import is_chief
    from .train.plan import expected, found, run_plan

    if dry_run:
        rows = expected(plan)
        _print_table(pd.DataFrame([asdict(row) for row in rows]), format)
        hours, missing = sum(row.seconds or 0.0 for row in rows) / 3600, sum(row.missing for row in rows)
        _say(f"{missing:,} trials to train, about {hours:.2g} hours if none diverges")
        return
    with _plan_progress() as on_progress:
        reports = run_plan(plan, on_progress=on_progress)
    for report in reports:
        for trial, why in {**report.held, **report.failed}.items():
            _say(f"{report.folder}: trial {trial} not finished here: {why}")
    if plan.device != "workers" or is_chief(os.environ.get("TF_CONFIG")):
        _print_table(pd.DataFrame([asdict(row) for row in found(plan)]), format)
        _say(f"{sum(len(report.trained) for report in reports):,} trials trained, they are in {plan.out}")
    if any(report.failed for report in reports):
        raise typer.Exit(1)


@contextlib.contextmanager
def _plan_progress() -> Iterator[Callable[[Progress], None]]:
    """A bar on standard error for each study that has begun; where that is a file, a line now and then."""
    from rich import progress
    from rich.console import Console

    console = Console(stderr=True)
    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[state]}"),
    )
    tasks: dict[str, progress.TaskID] = {}
    said = {"at": 0.0}

    def show(now: Progress) -> None:
        name, state = f"{now.workload}/{now.batch_size}", _state(now)
        if not console.is_terminal:
            if now.done == now.trials or time.monotonic() - said["at"] > SECONDS_BETWEEN_LINES:
                said["at"] = time.monotonic()
                _say(f"{name}: {now.done} of {now.trials} trials{state and ', '}{state}")
            return
        if name not in tasks:
            tasks[name] = bar.add_task(name, total=now.trials, state="")
        bar.update(tasks[name], completed=now.done, state=state)

    with progress.Progress(*columns, console=console) as bar:
        yield show


SECONDS_BETWEEN_LINES = 10.0


def _state(now: Progress) -> str:
    parts = []
    if now.steps is not None:
        parts.append(f"best {now.steps:,} steps (trial {now.trial})")
    if now.failed:
        parts.append(f"{now.failed} failed")
    if now.seconds_left is not None and now.done < now.trials:
        minutes, seconds = divmod(round(now.seconds_left), 60)
        parts.append(f"{minutes // 60}:{minutes % 60:02}:{seconds:02} left")
    return ", ".join(parts)


def _train_with_workers(workers: int) -> int:
    """The command of this process in several ones that train each trial together."""
    from .train.devices import run_local_workers

    given = sys.argv[1:]
    at = next(i for i, word in enumerate(given) if word.startswith("--local-workers"))
    del given[at : at + (1 if "=" in given[at] else 2)]
    start = "from batchscience.cli import app; app()"
    return run_local_workers([sys.executable, "-c", start, *given, "--device", "workers"], workers)


def _goal_if_any(metric: str | None, threshold: float | None, maximize: bool) -> Goal | None:
    from .goals import Goal

    if metric is None and threshold is None:
        return None
    if metric is None or threshold is None:
        raise typer.BadParameter("give both --metric and --goal, or neither")
    try:
        return Goal(metric, threshold, maximize)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _verify_figures(store: Store | None, names: list[str]) -> None:
    """Print how many points of each figure agree, and the worst; exit 1 where any does not."""
    from .figures.verify import summary, verify, worst_offenders

    if store is None:
        raise typer.BadParameter("--verify compares raw curves with the published points; it needs tables")
    with _progress_bar("verifying", unit="figures") as on_progress:
        table = verify(store, names, on_figure=lambda _, done, total: on_progress(done, total))
    counts = summary(table)
    _print_table(counts, "table")
    worst = worst_offenders(table)
    if len(worst):
        _print_table(worst.drop(columns=["quantity", "agrees"]), "table")
    agree, not_compared = int(counts["agree"].sum()), int(table["agrees"].isna().sum())
    _say(f"{agree} points agree, {len(table) - agree - not_compared} do not, {not_compared} not compared")
    if counts["disagree"].any() or not counts["compared"].any():
        raise typer.Exit(1)


def _store_if_any(data: str | None, *, needed: bool) -> Store | None:
    """The tables named or usual; none where nobody asked for any and there are none."""
    from .store import Store

    try:
        return Store(data)
    except StoreMissing:
        if needed or data is not None:
            raise
        return None


def _report_figures(rendered: list[Rendered], out: Path, *, named: bool) -> None:
    """Say what was drawn; exit 1 where a figure failed, or was named and the source does not hold it."""
    from .figures.sources import NothingToDraw

    left = [figure for figure in rendered if figure.error is not None]
    failed = [figure for figure in left if named or not isinstance(figure.error, NothingToDraw)]
    for figure in left:
        _say(f"{figure.name}: not drawn: {figure.error}")
    _say(f"{len(rendered) - len(left)} of {len(rendered)} figures are in {out}")
    if failed:
        raise typer.Exit(1)


def _goal(
    workload: str, metric: str | None, threshold: float | None, maximize: bool, inclusive: bool
) -> Goal:
    """The goal of the options; where they leave it open, the paper's, or that of the shipped studies."""
    from .goals import Goal
    from .paper import goal_of
    from .shipped import goals

    if metric is not None and threshold is not None:
        try:
            return Goal(metric, threshold, maximize, inclusive)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
    known = goal_of(workload) or goals().get(workload)
    if known is None or metric is not None or threshold is not None:
        has = "of its own is known" if known else "is known"
        raise typer.BadParameter(
            f"give both --metric and --goal; {'a' if known else 'no'} goal {has} for {workload}"
        )
    return known


def _store_with(data: str | None, workload: str) -> Store:
    """The store, which must hold a workload: a name mistyped is said before a goal is asked for."""
    from .store import Store

    store = Store(data)
    store.metrics(workload)
    return store


def _first(workload: str, trials: str) -> int | None:
    from .paper import trials_used

    if trials == "paper":
        return trials_used(workload)
    if trials == "all":
        return None
    if not trials.isdecimal() or int(trials) < 1:
        raise typer.BadParameter(f"--trials takes a number from 1 or 'all', got {trials!r}")
    return int(trials)


def _budget(
    workload: str,
    steps: float | None,
    examples: float | None,
    epochs: float | None,
    training_set_size: int | None,
) -> Budget | None:
    from .goals import Budget
    from .paper import training_set_size as published_size
    from .quality import epoch_budget

    given = [limit for limit in (steps, examples, epochs) if limit is not None]
    if training_set_size is not None and epochs is None:
        raise typer.BadParameter(
            "--training-set-size says how long an epoch is; give --budget-epochs with it"
        )
    if not given:
        return None
    if len(given) > 1:
        raise typer.BadParameter("give one of --budget-steps, --budget-examples and --budget-epochs")
    if epochs is not None and training_set_size is None and published_size(workload) is None:
        raise typer.BadParameter(
            f"the training-set size of {workload} is not known; give --training-set-size"
        )
    try:
        if epochs is not None:
            return epoch_budget(workload, epochs, training_set_size=training_set_size)
        return Budget(steps=steps, examples=examples)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _say(message: str) -> None:
    print(message, file=sys.stderr)


def _print_table(table: pd.DataFrame, format: Format) -> None:  # noqa: A002  (the option's name)
    """Print a table on standard output, and nothing else."""
    if format == "json":
        rows = [{name: _json(value) for name, value in row.items()} for row in table.to_dict("records")]
        print(json.dumps(rows, indent=2))
    elif format == "csv":
        text = table.map(_json).astype(object)
        print(text.where(text.notna(), "").to_csv(index=False, lineterminator="\n"), end="")
    else:
        _print_readable(table)


def _print_readable(table: pd.DataFrame) -> None:
    from rich.console import Console
    from rich.table import Table

    readable = Table(box=None, pad_edge=False)
    for name in table.columns:
        number = table[name].dtype.kind in "iufb"
        readable.add_column(str(name), justify="right" if number else "left", overflow="fold")
    for row in table.to_dict("records"):
        readable.add_row(*(_readable(_json(value)) for value in row.values()))
    console = Console()
    # A pipe has no width: let no line be folded there.
    Console(width=console.width if console.is_terminal else 10_000).print(readable)


def _json(value: Any) -> Any:
    """A value as JSON has it: absent, NaN and infinite are null."""
    if hasattr(value, "item"):
        value = value.item()
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return None
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _readable(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.6g}" if isinstance(value, float) else str(value)


@contextlib.contextmanager
def _progress_bar(
    what: str, *, unit: Literal["bytes", "studies", "figures", "trials"]
) -> Iterator[Callable[[int, int | None], None]]:
    """A bar on standard error, moved by calls with how much is done and how much there is."""
    from rich import progress
    from rich.console import Console

    counts: list[progress.ProgressColumn] = (
        [progress.DownloadColumn(), progress.TransferSpeedColumn()]
        if unit == "bytes"
        else [progress.MofNCompleteColumn(), progress.TextColumn(unit)]
    )
    columns = [progress.TextColumn("{task.description}"), progress.BarColumn(), *counts]
    with progress.Progress(
        *columns, progress.TimeRemainingColumn(), console=Console(stderr=True), transient=True
    ) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
