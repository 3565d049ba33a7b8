"""The tables of a store as DataFrames, filtered while they are read."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from . import schemas, tables
from .errors import StoreMissing, UnknownMetric, UnknownWorkload
from .layout import COMPLETE
from .places import bundled, filesystem, place

DATA_VARIABLE = "BATCHSCIENCE_DATA"


def default_folder() -> Path:
    """The folder of tables used when none is named: ``$BATCHSCIENCE_DATA``, else the platform's own."""
    import platformdirs

    named = os.environ.get(DATA_VARIABLE)
    return place(named) if named else Path(platformdirs.user_data_dir("batchscience"))


class Store:
    """The tables of a folder that `batchscience.ingest` wrote.

    Parameters
    ----------
    path : path, optional
        Folder of the store, or a URL that fsspec opens; by default `default_folder`.

    Raises
    ------
    StoreMissing
        If there are no tables.
    SchemaError
        If the tables are damaged or of another schema.

    Notes
    -----
    In every frame ``workload`` is a category, keys are int64, ``steps`` and ``train_steps`` are Int64, and
    metrics and metaparameters are Arrow float64 (``double[pyarrow]``), which keeps ``<NA>`` (not measured;
    not part of the study) apart from NaN (measured, and not a number).
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = place(path) if path is not None else default_folder()
        self._tables = tables.tables_folder(self.path)
        self.manifest = tables.read_manifest(self._tables)
        self._small: dict[str, pa.Table] = {}
        self._trials_metadata: pq.FileMetaData | None = None

    @classmethod
    def bundled(cls) -> Store:
        """The studies that were trained with this package and come with it.

        Raises
        ------
        StoreMissing
            If the package was installed without them.
        """
        return cls(bundled("studies/tables"))

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r})"

    def workloads(self) -> list[str]:
        """Names of the workloads, sorted."""
        names: list[str] = self._read("studies")["workload"].unique().dictionary_decode().to_pylist()
        return names

    def studies(self, workload: str | None = None) -> pd.DataFrame:
        """A row is a study: its key, dataset, model, optimizer, train_steps, early_stopping and source.

        Parameters
        ----------
        workload : str, optional
            Only this workload's.

        Raises
        ------
        UnknownWorkload
            If there is no such workload.
        """
        return _frame(self._of_workload("studies", workload))

    def search_space(self, workload: str | None = None) -> pd.DataFrame:
        """A row is a metaparameter of a study: its type, scale and limits.

        Parameters
        ----------
        workload : str, optional
            Only this workload's.

        Raises
        ------
        UnknownWorkload
            If there is no such workload.
        """
        return _frame(self._of_workload("search_space", workload))

    def trials(
        self,
        workload: str | None = None,
        *,
        status: Collection[str] | None = (COMPLETE,),
        first: int | None = None,
    ) -> pd.DataFrame:
        """A row is a trial: workload, batch_size, trial, status, steps, and its metaparameters.

        Settings that are no numbers stand in ``other_settings``, a JSON object.

        Parameters
        ----------
        workload : str, optional
            Only this workload's.
        status : collection of str, default ("COMPLETE",)
            Only trials of these statuses; None takes all.
        first : int, optional
            Of each study only the trials up to and including the `first`-th COMPLETE one, in numeric order.
            With the default status these are the first COMPLETE trials, as in the published analysis; with
            INFEASIBLE beside it, the search that found them, failures included.

        Returns
        -------
        pandas.DataFrame
            Sorted by key; without settings that no trial in it has.

        Raises
        ------
        UnknownWorkload
            If there is no such workload.
        """
        table = self._of_workload("trials", workload)
        table = table.filter(pa.array(_chosen_trials(table, status, first)))
        unused = [
            name
            for name in table.column_names
            if name not in (*schemas.TRIAL_KEY, "status", "steps")
            and table[name].null_count == table.num_rows
        ]
        return _frame(table.drop_columns(unused))

    def measurements(
        self,
        workload: str,
        *,
        metrics: Sequence[str] | None = None,
        status: Collection[str] | None = (COMPLETE,),
        first: int | None = None,
    ) -> pd.DataFrame:
        """A row is the metrics of a trial at one step: workload, batch_size, trial, step, and metrics.

        Parameters
        ----------
        workload : str
            Name of the workload.
        metrics : sequence of str, optional
            Only these metrics; by default all of the workload's.
        status, first
            Which trials, as in `trials`.

        Returns
        -------
        pandas.DataFrame
            Sorted by key.

        Raises
        ------
        UnknownWorkload
            If there is no such workload.
        UnknownMetric
            If the workload has no such metric.
        """
        rows = self._measurements(workload, metrics, status, first)
        codes = np.zeros(len(rows.step), dtype=np.int8)
        keys = {
            "workload": pd.Categorical.from_codes(codes, pd.Index([workload])),
            "batch_size": np.repeat(rows.batch_size, rows.lengths),
            "trial": np.repeat(rows.trial, rows.lengths),
            "step": rows.step,
        }
        return pd.DataFrame(keys | rows.columns(), copy=False)

    def metrics(self, workload: str) -> list[str]:
        """Names of the metrics measured for a workload."""
        with _opened(self._measurements_file(workload)) as file:
            names = pq.read_schema(file).names
        return [name for name in names if name not in schemas.RESERVED]

    def counts(self) -> pd.DataFrame:
        """A row is a study: workload, batch_size, complete, incomplete, infeasible, other, measurements.

        ``other`` counts trials of any other status; ``measurements`` is the number of evaluations, that is
        of rows of the measurements table.
        """
        studies = self._read("studies").select(["workload", "batch_size"]).to_pandas()
        index = pd.MultiIndex.from_frame(studies.astype({"workload": "str"}))
        trials = self._read("trials").select(["workload", "batch_size", "status"]).to_pandas()
        status = trials["status"].astype(object).fillna("")
        known = {"COMPLETE": "complete", "INCOMPLETE": "incomplete", "INFEASIBLE": "infeasible"}
        column = status.map(known).fillna("other")
        counts = pd.crosstab([trials["workload"].astype(str), trials["batch_size"]], column)
        result = counts.reindex(index=index, columns=[*known.values(), "other"], fill_value=0)
        rows = {}
        for workload in self.workloads():
            with _opened(self._measurements_file(workload)) as file:
                metadata = pq.read_metadata(file)
            for i in range(metadata.num_row_groups):
                group = metadata.row_group(i)
                if group.num_rows:
                    rows[(workload, group.column(1).statistics.min)] = group.num_rows
        result["measurements"] = [rows.get(key, 0) for key in result.index]
        return result.reset_index().rename_axis(columns=None)

    def _measurements(
        self,
        workload: str,
        metrics: Sequence[str] | None,
        status: Collection[str] | None,
        first: int | None,
    ) -> _Curves:
        path = self._measurements_file(workload)
        # What is far away is better fetched in few large pieces; what is mapped needs no copy.
        far = filesystem(path) is not None
        with _opened(path) as source, pq.ParquetFile(source, pre_buffer=far) as file:
            known = [name for name in file.schema_arrow.names if name not in schemas.RESERVED]
            missing = [name for name in metrics or () if name not in known]
            if missing:
                raise UnknownMetric(
                    f"{workload} has no metric {', '.join(missing)}; it has {', '.join(known)}"
                )
            names = list(known if metrics is None else metrics)
            rows = file.read(columns=["trial", "step", *names])
            groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
        groups = [group for group in groups if group.num_rows]
        # Two keys are the same all through a row group: cheaper to repeat than to decode.
        begins = np.cumsum([0, *(group.num_rows for group in groups)], dtype=np.int64)
        trial = rows["trial"].to_numpy()
        change = np.ones(rows.num_rows, dtype=bool)
        change[1:] = trial[1:] != trial[:-1]
        change[begins[:-1]] = True
        starts = np.flatnonzero(change)
        sizes = np.array([group.column(1).statistics.min for group in groups], np.int64)
        batch_size = np.repeat(sizes, np.diff(np.searchsorted(starts, begins)))
        lengths = np.diff(starts, append=rows.num_rows)
        curves = _Curves(batch_size, trial[starts], lengths, rows["step"].to_numpy(), rows.select(names))
        if status is None and first is None:
            return curves
        trials = self._statuses(workload)
        return curves.of(trials.filter(pa.array(_chosen_trials(trials, status, first))))

    def _statuses(self, workload: str) -> pa.Table:
        """Key and status of a workload's trials, without reading those of the others where that is cheap."""
        names = (*schemas.TRIAL_KEY, "status")
        path = self._tables / "trials.parquet"
        if "trials" in self._small or filesystem(path) is not None:
            return self._of_workload("trials", workload).select(names)
        with self._opened_small("trials") as source:
            self._trials_metadata = self._trials_metadata or pq.read_metadata(source)
            metadata = self._trials_metadata
            groups = [
                i
                for i in range(metadata.num_row_groups)
                if (found := metadata.row_group(i).column(0).statistics) is None
                or found.min <= workload <= found.max
            ]
            with pq.ParquetFile(source, metadata=metadata) as file:
                table = file.read_row_groups(groups, columns=list(names), use_threads=False)
        table = table.unify_dictionaries().combine_chunks()
        return table.filter(pc.equal(table["workload"].cast(pa.string()), workload))

    def _measurements_file(self, workload: str) -> Path:
        path = self._tables / tables.measurements_file(workload)
        if not path.is_file():
            raise self._unknown(workload)
        return path

    def _of_workload(self, name: str, workload: str | None) -> pa.Table:
        """The rows of one workload (of all for None) of a small table."""
        table = self._read(name)
        if workload is None:
            return table
        names = table["workload"].chunk(0)
        try:
            code = names.dictionary.to_pylist().index(workload)
        except ValueError:
            if workload in self.workloads():
                return table.slice(0, 0)
            raise self._unknown(workload) from None
        # Sorted by workload, and the dictionary lists the names in that order.
        start, end = np.searchsorted(names.indices.to_numpy(), [code, code + 1])
        return table.slice(int(start), int(end - start))

    def _read(self, name: str) -> pa.Table:
        """One of the small tables, read once: tables in a folder never change."""
        if name not in self._small:
            with self._opened_small(name) as file:
                table = pq.read_table(file, partitioning=None)
            self._small[name] = table.unify_dictionaries().combine_chunks()
        return self._small[name]

    @contextlib.contextmanager
    def _opened_small(self, name: str) -> Iterator[Any]:
        try:
            with _opened(self._tables / f"{name}.parquet") as file:
                yield file
        except FileNotFoundError:
            raise StoreMissing(
                f"{self._tables}: the tables are gone; they were ingested anew, so open the store again"
            ) from None

    def _unknown(self, workload: str) -> UnknownWorkload:
        import difflib

        known = self.workloads()
        close = difflib.get_close_matches(workload, known, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(close)}?" if close else f"it holds {len(known)} others"
        return UnknownWorkload(
            f"{self.path} holds no workload {workload!r}; {hint} (batchscience workloads lists them)"
        )


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A file for the Parquet reader: mapped where it is local, else a stream that can seek."""
    if filesystem(path) is None:
        with pa.memory_map(str(path)) as mapped:
            yield mapped
    else:
        with path.open("rb") as stream:
            yield stream


def load_workload(
    name: str,
    *,
    metrics: Sequence[str] | None = None,
    status: Collection[str] | None = (COMPLETE,),
    first: int | None = None,
    data: str | os.PathLike[str] | None = None,
) -> pd.DataFrame:
    """A workload's measurements, indexed by (batch_size, trial, step).

    Parameters
    ----------
    name : str
        Name of the workload, for example ``"mnist/simple_cnn_base/sgd"``.
    metrics, status, first
        As in `Store.measurements`.
    data : path, optional
        Folder or URL of the store; by default the user's own.

    Returns
    -------
    pandas.DataFrame
        A row is a measurement, a column a metric.

    Raises
    ------
    StoreMissing, UnknownWorkload, UnknownMetric
        As in `Store`.
    """
    rows = Store(data)._measurements(name, metrics, status, first)
    levels, codes = [], []
    for key in (rows.batch_size, rows.trial, rows.step):
        level, code = _levels(key)
        levels.append(level)
        codes.append(code if key is rows.step else np.repeat(code, rows.lengths))
    # From codes, because hashing every key of millions of rows again would take most of the time.
    index = pd.MultiIndex(
        levels=cast(Any, levels),  # the stubs ask for lists
        codes=cast(Any, codes),
        names=schemas.MEASUREMENT_KEY[1:],
        verify_integrity=False,
    )
    return pd.DataFrame(rows.columns(), index=index, copy=False)


@dataclass(frozen=True, slots=True)
class _Curves:
    """The measurements of some trials: arrays with an item for each trial, and for each measurement.

    Attributes
    ----------
    batch_size, trial, lengths
        Of each trial, sorted by key, its key and how many measurements it has.
    step
        Of each measurement.
    metrics
        A row for each measurement.
    """

    batch_size: NDArray[np.int64]
    trial: NDArray[np.int64]
    lengths: NDArray[np.int64]
    step: NDArray[np.int64]
    metrics: pa.Table

    def of(self, trials: pa.Table) -> _Curves:
        """Only the curves of these trials of the same workload."""
        sizes, numbers = trials["batch_size"].to_numpy(), trials["trial"].to_numpy()
        known = np.unique(self.batch_size)
        span = 1 + max(self.trial.max(initial=0), numbers.max(initial=0))
        measured = np.isin(sizes, known)
        wanted = np.searchsorted(known, sizes[measured]) * span + numbers[measured]
        kept = np.isin(np.searchsorted(known, self.batch_size) * span + self.trial, wanted)
        if kept.all():
            return self
        rows = np.repeat(kept, self.lengths)
        return _Curves(
            self.batch_size[kept],
            self.trial[kept],
            self.lengths[kept],
            self.step[rows],
            self.metrics.filter(pa.array(rows)),
        )

    def columns(self) -> dict[str, pd.api.extensions.ExtensionArray]:
        """The metrics, each as a column of a frame."""
        return {
            name: pd.arrays.ArrowExtensionArray(column)
            for name, column in zip(self.metrics.column_names, self.metrics.columns, strict=True)
        }


def _levels(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The distinct values, sorted, and the place of each key among them."""
    highest = int(keys.max(initial=0))
    if highest > 4 * len(keys) + 1_000_000:
        return np.unique(keys, return_inverse=True)
    # Without sorting, since a table of all values up to the highest is small.
    seen = np.zeros(highest + 1, dtype=bool)
    seen[keys] = True
    place = np.cumsum(seen) - 1
    return np.flatnonzero(seen), place[keys]


def _chosen_trials(trials: pa.Table, status: Collection[str] | None, first: int | None) -> NDArray[np.bool_]:
    """Which rows of a trials table, sorted by key, have these statuses and come early enough."""
    chosen = np.ones(trials.num_rows, dtype=bool)
    if isinstance(status, str):
        raise TypeError(f"status takes several, for example ({status!r},)")
    if status is not None:
        chosen &= pc.is_in(trials["status"], pa.array(list(status), pa.string())).to_numpy()
    if first is not None and trials.num_rows:
        if first < 1:
            raise ValueError(f"first counts trials from 1, got {first}")
        complete = pc.fill_null(pc.equal(trials["status"], COMPLETE), False).to_numpy()
        workload = trials["workload"].combine_chunks().indices.to_numpy()
        batch_size = trials["batch_size"].to_numpy()
        begins = np.ones(trials.num_rows, dtype=bool)
        begins[1:] = (workload[1:] != workload[:-1]) | (batch_size[1:] != batch_size[:-1])
        before = np.cumsum(complete) - complete
        starts = np.flatnonzero(begins)
        before -= np.repeat(before[starts], np.diff(np.append(starts, trials.num_rows)))
        chosen &= before < first
    return chosen


_FRAME_TYPES = {pa.float64(): pd.ArrowDtype(pa.float64()), pa.string(): pd.StringDtype()}
_NULLABLE = {"steps": pd.Int64Dtype(), "train_steps": pd.Int64Dtype(), "early_stopping": pd.BooleanDtype()}


def _frame(table: pa.Table) -> pd.DataFrame:
    nullable = [name for name in _NULLABLE if name in table.column_names]
    frame: pd.DataFrame = table.drop_columns(nullable).to_pandas(types_mapper=_FRAME_TYPES.get)
    for name in nullable:
        column = table[name].to_pandas(
            types_mapper={pa.int64(): _NULLABLE[name], pa.bool_(): _NULLABLE[name]}.get
        )
        frame.insert(table.column_names.index(name), name, column)
    return frame
