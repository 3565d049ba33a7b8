"""The published results that come with the package, as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .places import bundled

if TYPE_CHECKING:
    import pandas as pd


def _table(name: str, integers: tuple[str, ...], floats: tuple[str, ...] = ()) -> pd.DataFrame:
    """Read one table: the columns named are numbers (an empty cell is NaN), the others text or bool."""
    import pandas as pd

    # All text at first: numbers must read back to the last bit, and an empty series name is a name.
    frame = pd.read_csv(bundled(f"published/{name}.csv"), dtype="str", keep_default_na=False)
    types: dict[str, str] = dict.fromkeys(integers, "int64") | dict.fromkeys(floats, "float64")
    frame[list(floats)] = frame[list(floats)].replace("", "nan")
    if "maximize" in frame:
        frame["maximize"] = frame["maximize"] == "true"
    return frame.astype(types)


def studies() -> pd.DataFrame:
    """The studies of the published archive, as its README lists them.

    Returns
    -------
    pandas.DataFrame
        A row is a study, 454 in all: ``workload``, ``dataset`` (with its prefix, for example
        ``"mnist_subsets/mnist_6875"``), ``model``, ``optimizer``, ``batch_size``, and the numbers of its
        ``complete``, ``incomplete`` and ``infeasible`` trials.

    Notes
    -----
    The counts add up to 194,399 trials (108,194 complete); the abstract of the paper speaks of
    168,160 models.  The two differ in the publication itself.

    Examples
    --------
    >>> len(studies())
    454
    >>> int(studies()[["complete", "incomplete", "infeasible"]].to_numpy().sum())
    194399
    """
    return _table("studies", ("batch_size", "complete", "incomplete", "infeasible"))


_POINTS = (("panel_row", "panel_col", "x"), ("goal", "y", "y_rel_uncertainty"))


def figure_points() -> pd.DataFrame:
    """The markers of Figures 1 to 8 and 11, read from the authors' released notebook.

    Returns
    -------
    pandas.DataFrame
        A row is a marker, 1,388 in all: ``figure`` (text: "1" … "11"), ``panel_row`` and ``panel_col``
        (from 0), ``panel_title`` as printed, ``workload`` as read by the notebook, ``metric``, ``goal``
        (NaN where the panel shows a best value), ``maximize``, ``series`` (as in the legend, "" without
        one), ``x_name``, ``x`` (batch size, exact), ``y_name`` (what ``y`` is: "steps",
        "steps/(steps at B=2)", "best_objective_value" or "learning_rate/(1-momentum)"), ``y`` in data
        units, and ``y_rel_uncertainty``, a conservative bound on its relative error.

    Notes
    -----
    Points outside the limits of an axis are in `offscale_points`.  A batch size without a marker is
    one where no trial reached the goal.

    Examples
    --------
    >>> points = figure_points()
    >>> points[points["figure"] == "1"]["workload"].nunique()
    9
    """
    return _table("figure_points", *_POINTS)


def offscale_points() -> pd.DataFrame:
    """Points of the figures beyond the limits of an axis, from the slope of the line that leaves it.

    Returns
    -------
    pandas.DataFrame
        A row is a point, 17 in all; columns as in `figure_points`.  ``y_rel_uncertainty`` is a lower
        bound here.
    """
    return _table("offscale_points", *_POINTS)


def consensus_steps() -> pd.DataFrame:
    """Published steps to result, combined over all the figures that show them.

    Returns
    -------
    pandas.DataFrame
        A row is a (``workload``, ``metric``, ``goal``, ``batch_size``), 291 in all, with its absolute
        ``steps`` (as read, not rounded), ``steps_rel_uncertainty``, the number of ``readings``, the
        ``figures`` they stand in ("1+2+4"), and ``spread``, the relative range of the readings.

    Examples
    --------
    >>> steps = consensus_steps().set_index(["workload", "goal", "batch_size"])["steps"]
    >>> float(steps["mnist/simple_cnn_base/nesterov_momentum", 0.01, 55_000].round())
    140.0
    """
    return _table(
        "consensus_steps", ("batch_size", "readings"), ("goal", "steps", "steps_rel_uncertainty", "spread")
    )


def stars() -> pd.DataFrame:
    """The best trials (yellow stars) of the panels of Figures 9 and 10.

    Returns
    -------
    pandas.DataFrame
        A row is a panel, 16 in all: ``figure`` ("9a", "9b" or "10"), ``panel_title``,
        ``learning_rate``, ``one_minus_momentum``, and bounds on their relative errors.  The panel of
        batch size 4,096 in Figure 9a has no star: NaN.
    """
    return _table(
        "stars",
        (),
        (
            "learning_rate",
            "one_minus_momentum",
            "learning_rate_rel_uncertainty",
            "one_minus_momentum_rel_uncertainty",
        ),
    )


def critical_batch_size_points() -> pd.DataFrame:
    """Steps to a goal loss of five language models [1]_.

    Returns
    -------
    pandas.DataFrame
        A row is a (``model``, ``goal_loss``, ``batch_size``), 45 in all, with the steps logged by the
        runs (``steps_logged``) and those that the published fit used (``steps_fitted``); six differ.

    References
    ----------
    .. [1] Zhang et al. (2025), How does critical batch size scale in pre-training?, ICLR,
       arXiv 2410.21676.
    """
    return _table(
        "critical_batch_size_points", ("batch_size", "steps_logged", "steps_fitted"), ("goal_loss",)
    )


def critical_batch_size_fits() -> pd.DataFrame:
    """The published fits to `critical_batch_size_points`.

    Returns
    -------
    pandas.DataFrame
        A row is a ``model``, five in all, with ``a`` and ``b`` of log steps = log(a + b / batch size)
        and the published ``critical_batch_size``.

    Notes
    -----
    The critical batch size there is the one at which training takes 20 % more steps than perfect
    scaling from batch size 256 allows, b / (5a) + 1.2 · 256.
    """
    return _table("critical_batch_size_fits", (), ("a", "b", "critical_batch_size"))


def differences_from_published(counts: pd.DataFrame) -> pd.DataFrame:
    """Where the trial counts of a store differ from those of the publication.

    Parameters
    ----------
    counts : pandas.DataFrame
        A row is a study: workload, batch_size, complete, incomplete, infeasible (`Store.counts`).

    Returns
    -------
    pandas.DataFrame
        A row is a count that differs: workload, batch_size, status, published, found; a study that
        only one of the two has counts 0 in the other.
    """
    key, statuses = ["workload", "batch_size"], ["complete", "incomplete", "infeasible"]
    both = {
        name: table[[*key, *statuses]].melt(key, statuses, "status", name)
        for name, table in (("published", studies()), ("found", counts))
    }
    merged = both["published"].merge(both["found"], on=[*key, "status"], how="outer")
    merged[["published", "found"]] = merged[["published", "found"]].fillna(0).astype("int64")
    different = merged[merged["published"] != merged["found"]]
    return different.sort_values([*key, "status"], ignore_index=True)
