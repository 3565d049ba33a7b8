"""Write a complete set of tables: of studies just read, and of those in the old tables that stay."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from . import __version__, schemas, tables
from .arrays import from_list, from_numpy, one_name, to_numpy
from .layout import INCOMPLETE, StudyFile, TrialFile

_SAMPLE = 8_000
_MOST_HELD = 1 << 26

Kept: TypeAlias = Any
"""Curves that wait: a pyarrow.Table, or (where it begins in the file, how many bytes it has)."""


@dataclass(slots=True)
class ReadStudy:
    """A study as it was read: what its rows of the tables are written from.

    Attributes
    ----------
    workload, batch_size
        Its key.
    file : StudyFile, optional
        Its ``study.json``; None where that is missing or damaged.
    source : str
        Where it comes from.
    with_curve, with_metadata : set of int
        Numbers of the trials of which there is the one or the other.
    metrics : set of str
        Columns of its curves.
    files : dict of int to TrialFile
        Metadata of its trials, until they are written.
    curves : list of Kept
        Its curves in pieces, until they are written; a trial's lies in one piece.
    rows, measurements : int
        Rows of its curves, and numbers in them.
    """

    workload: str
    batch_size: int
    file: StudyFile | None = None
    source: str = ""
    with_curve: set[int] = field(default_factory=set)
    with_metadata: set[int] = field(default_factory=set)
    metrics: set[str] = field(default_factory=set)
    files: dict[int, TrialFile] = field(default_factory=dict)
    curves: list[Kept] = field(default_factory=list)
    rows: int = 0
    measurements: int = 0

    @property
    def path(self) -> str:
        """Where it lies in the raw layout."""
        return f"{self.workload}/{self.batch_size}"

    @property
    def key(self) -> tuple[str, int]:
        """Workload and batch size."""
        return self.workload, self.batch_size


class Spill:
    """Where parsed curves (trial, step and metrics) wait until their workload is written.

    In memory, and beyond `_MOST_HELD` bytes in one file: one, because creating a file for each study took
    longer than filling it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held = 0
        self._sink: pa.NativeFile | None = None
        self._source: pa.NativeFile | None = None

    def put(self, curves: pa.Table) -> Kept:
        """Keep a table."""
        if self._held + curves.nbytes <= _MOST_HELD:
            self._held += curves.nbytes
            return curves
        if self._sink is None:
            self._sink = pa.OSFile(str(self._path), "wb")
            self._source = pa.OSFile(str(self._path), "rb")
        start = self._sink.tell()
        with pa.ipc.new_stream(self._sink, curves.schema) as stream:
            stream.write_table(curves)
        return start, self._sink.tell() - start

    def get(self, kept: Kept) -> pa.Table:
        """The table that was kept."""
        if isinstance(kept, pa.Table):
            return kept
        assert self._source is not None
        start, size = kept
        self._source.seek(start)
        with pa.ipc.open_stream(self._source.read_buffer(size)) as stream:
            return stream.read_all()

    def drop(self, kept: Sequence[Kept]) -> None:
        """Make room for others: these are not asked for again."""
        self._held -= sum(table.nbytes for table in kept if isinstance(table, pa.Table))

    def close(self) -> None:
        """Close the file."""
        for file in (self._sink, self._source):
            if file is not None:
                file.close()


def trial_rows(studies: Sequence[tuple[int, Mapping[int, TrialFile]]], workload: str) -> pa.Table:
    """Rows of the trials table, from the metadata of trials by number, of some batch sizes of a workload."""
    files = [file for _, trials in studies for file in trials.values()]
    counts = [len(trials) for _, trials in studies]
    settings, others = _numeric_settings(files)
    columns = {
        "workload": one_name(workload, len(files)),
        "batch_size": from_numpy(np.repeat(np.array([size for size, _ in studies], np.int64), counts)),
        "trial": from_list([number for _, trials in studies for number in trials], pa.int64()),
        "status": from_list([file.status for file in files], pa.string()),
        "steps": from_list([file.steps for file in files], pa.int64()),
        "other_settings": others,
        **settings,
    }
    return pa.Table.from_arrays(list(columns.values()), schema=schemas.trials(settings))


def _numeric_settings(files: Sequence[TrialFile]) -> tuple[dict[str, pa.Array], pa.Array]:
    """A column for each setting that is a number, in order of their names, and the JSON of the others."""
    names = sorted(set().union(*(file.parameters for file in files)))
    values = {name: [file.parameters.get(name) for file in files] for name in names}
    if all(set(map(type, column)) == {float} for column in values.values()):  # as nearly always
        columns = {schemas.column_name(name, "parameter"): column for name, column in values.items()}
        return _floats(columns), pa.nulls(len(files), pa.string())
    split = [_settings(file.parameters) for file in files]
    numeric = sorted(set().union(*(numbers for numbers, _ in split)))
    texts = [json.dumps(others, sort_keys=True) if others else None for _, others in split]
    columns = {name: [numbers.get(name) for numbers, _ in split] for name in numeric}
    return _floats(columns), from_list(texts, pa.string())


def _floats(columns: Mapping[str, Sequence[float | None]]) -> dict[str, pa.Array]:
    return {name: from_list(column, pa.float64()) for name, column in columns.items()}


@dataclass(slots=True)
class TablesWriter:
    """Writes a complete set of tables: the studies just read, and those of the old tables they leave."""

    folder: Path
    spill: Spill
    old: Path | None
    sha256: str | None = None
    _trials: list[pa.Table] = field(default_factory=list)
    _sizes: dict[str, set[int]] = field(default_factory=dict)

    def write_small(self, studies: Sequence[ReadStudy]) -> None:
        """Write studies, search_space and trials, and take over the measurements of other workloads."""
        replaced = {study.key for study in studies}
        kept = {name: self._kept(name, replaced) for name in ("studies", "search_space", "trials")}
        self._write("studies", schemas.STUDIES, schemas.STUDY_KEY, [kept["studies"], _study_rows(studies)])
        key = (*schemas.STUDY_KEY, "parameter")
        self._write("search_space", schemas.SEARCH_SPACE, key, [kept["search_space"], _limits(studies)])
        read = [*self._trials, *_without_metadata(studies)]
        parts = [part for part in (kept["trials"], *read) if part is not None]
        settings = set().union(*(part.column_names for part in parts)) - schemas.RESERVED
        self._write("trials", schemas.trials(settings), schemas.TRIAL_KEY, parts)
        self._link_untouched({study.workload for study in studies})

    def _kept(self, name: str, replaced: set[tuple[str, int]]) -> pa.Table | None:
        if self.old is None:
            return None
        table = pq.read_table(self.old / f"{name}.parquet")
        keys = zip(table["workload"].to_pylist(), table["batch_size"].to_pylist(), strict=True)
        return table.filter(from_list([key not in replaced for key in keys], pa.bool_()))

    def _write(
        self, name: str, schema: pa.Schema, key: Sequence[str], parts: Sequence[pa.Table | None]
    ) -> None:
        table = pa.concat_tables([_as_schema(part, schema) for part in parts if part is not None])
        table = _sorted(table, key)
        schemas.check(table, schema, key)
        with pq.ParquetWriter(
            self.folder / f"{name}.parquet", self._with_metadata(schema), compression="zstd"
        ) as file:
            starts = [0, table.num_rows]
            if name == "trials":
                # A row group per workload, so that a reader of one workload reads only that.
                codes = to_numpy(table["workload"].chunk(0).indices)
                starts[1:1] = (np.flatnonzero(np.diff(codes)) + 1).tolist()
            for start, end in itertools.pairwise(starts):
                file.write_table(table.slice(start, end - start), row_group_size=max(1, end - start))

    def write_workload(self, workload: str, studies: Sequence[ReadStudy]) -> None:
        """Write what was read of a workload; may be called again when more of it was read."""
        with_files = [(study.batch_size, study.files) for study in studies if study.files]
        if with_files:
            self._trials.append(trial_rows(with_files, workload))
        path = self.folder / tables.measurements_file(workload)
        path.parent.mkdir(parents=True, exist_ok=True)
        before = None
        if path.exists():
            # What was written of it before is read again and written together with the rest.
            before = path.with_suffix(".before")
            path.replace(before)
        self._write_measurements(path, before, workload, studies)
        if before is not None:
            before.unlink()
        self._sizes[workload] = {study.batch_size for study in studies}
        for study in studies:
            self.spill.drop(study.curves)
            study.files, study.curves = {}, []

    def _write_measurements(
        self, path: Path, before: Path | None, workload: str, studies: Sequence[ReadStudy]
    ) -> None:
        with contextlib.ExitStack() as stack:
            new = {study.batch_size: study for study in studies}
            metrics = set().union(*(study.metrics for study in studies))
            written = {}
            if before is not None:
                # What stood there from the old tables is none of the studies just read.
                groups = _row_groups(stack.enter_context(pq.ParquetFile(before)))
                written = {size: groups[size] for size in groups.keys() & self._sizes[workload]}
            old = {}
            if self.old is not None and (self.old / tables.measurements_file(workload)).is_file():
                file = stack.enter_context(pq.ParquetFile(self.old / tables.measurements_file(workload)))
                old = {size: read for size, read in _row_groups(file).items() if size not in new}
                if old:
                    metrics |= set(file.schema_arrow.names) - schemas.RESERVED
            schema = schemas.measurements(sorted(metrics))

            def rows_of(size: int) -> pa.Table:
                if size in old:
                    return _as_schema(old[size](), schema)
                parts = [written[size]().drop_columns(["workload", "batch_size"])] if size in written else []
                return self._curves(new[size], parts, schema)

            largest = max(studies, key=lambda study: study.rows)
            encoding = _encoding(rows_of(largest.batch_size).slice(0, _SAMPLE))
            with pq.ParquetWriter(path, self._with_metadata(schema), **encoding) as writer:
                for size in sorted(new.keys() | old.keys()):
                    # Workload and batch size are one value all through, so the rest of the key decides.
                    rows = schemas.check(rows_of(size), schema, schemas.MEASUREMENT_KEY[2:])
                    # A row group per study: a reader of one batch size reads only that.
                    if rows.num_rows:
                        writer.write_table(rows, row_group_size=rows.num_rows)

    def _curves(self, study: ReadStudy, written: list[pa.Table], schema: pa.Schema) -> pa.Table:
        parts = [*written, *(self.spill.get(kept) for kept in study.curves)]
        if not parts:
            return schema.empty_table()
        table = pa.concat_tables(parts, promote_options="default") if len(parts) > 1 else parts[0]
        if len(parts) > 1:
            table = table.take(from_numpy(np.argsort(to_numpy(table["trial"]), kind="stable")))
        columns = {
            "workload": one_name(study.workload, table.num_rows),
            "batch_size": from_numpy(np.full(table.num_rows, study.batch_size, dtype=np.int64)),
        }
        for name in table.column_names:
            columns[name] = table[name]
        return _as_schema(pa.Table.from_arrays(list(columns.values()), list(columns)), schema)

    def _link_untouched(self, written: Iterable[str]) -> None:
        if self.old is None:
            return
        done = {tables.measurements_file(workload) for workload in written}
        for path in (self.old / "measurements").rglob("*.parquet"):
            name = path.relative_to(self.old).as_posix()
            if name in done:
                continue
            target = self.folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(path, target)
            except OSError:  # a file system without hard links
                shutil.copyfile(path, target)

    def _with_metadata(self, schema: pa.Schema) -> pa.Schema:
        return schema.with_metadata(
            {
                "batchscience.schema": str(schemas.SCHEMA_NUMBER),
                "batchscience.version": __version__,
                "batchscience.archive_sha256": self.sha256 or "",
            }
        )


def _row_groups(file: pq.ParquetFile) -> dict[int, Callable[[], pa.Table]]:
    """For each batch size of a file of measurements, how to read its rows."""
    groups = [file.metadata.row_group(i) for i in range(file.num_row_groups)]
    return {group.column(1).statistics.min: partial(file.read_row_group, i) for i, group in enumerate(groups)}


def _encoding(sample: pa.Table) -> dict[str, Any]:
    """How to write the columns, judged by a sample of the rows.

    Error rates are few distinct values, which zstd finds by itself; of losses, which all differ, it can
    only compress the leading bytes, so these are laid together.
    """
    metrics = [name for name in sample.column_names if name not in schemas.RESERVED]
    split = [name for name in metrics if _better_split(sample[name])]
    compressed = ["step", *metrics]
    return {
        # The other keys are runs of one value, which their encoding makes small enough.
        "compression": {**dict.fromkeys(schemas.TRIAL_KEY, "none"), **dict.fromkeys(compressed, "zstd")},
        "compression_level": {name: 1 if name in split else 2 for name in compressed},
        "use_dictionary": list(schemas.TRIAL_KEY),
        "column_encoding": {"step": "DELTA_BINARY_PACKED", **dict.fromkeys(split, "BYTE_STREAM_SPLIT")},
        "write_statistics": list(schemas.MEASUREMENT_KEY),
    }


def _better_split(column: pa.ChunkedArray) -> bool:
    values = to_numpy(column.drop_null())
    zstd = pa.Codec("zstd", compression_level=1)
    bytes_apart = np.ascontiguousarray(values.view(np.uint8).reshape(-1, 8).T)
    return len(zstd.compress(bytes_apart)) < len(zstd.compress(values))


def _as_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with the schema's columns in its order; a column it lacks is null."""
    columns = []
    for field_ in schema:
        if field_.name not in table.column_names:
            columns.append(pa.nulls(table.num_rows, field_.type))
            continue
        column = table[field_.name]
        columns.append(column if column.type == field_.type else column.cast(field_.type))
    return pa.Table.from_arrays(columns, schema=schema)


def _sorted(table: pa.Table, key: Sequence[str]) -> pa.Table:
    """The table sorted by its key, its workloads numbered in the order of their names."""
    table = table.unify_dictionaries().combine_chunks()
    at = table.column_names.index("workload")
    column = table.column(at)
    names = column.chunk(0) if column.num_chunks else from_list([], pa.string()).dictionary_encode()
    # Not all names of the dictionary need occur: those of replaced studies are left over.
    used, codes = np.unique(to_numpy(names.indices), return_inverse=True)
    levels = np.asarray(names.dictionary.to_pylist(), dtype=object)[used]
    rank = np.argsort(np.argsort(levels.astype(np.str_), kind="stable"), kind="stable")
    codes = rank[codes]
    rest = [
        to_numpy(table[name]) if pa.types.is_integer(table[name].type) else np.array(table[name].to_pylist())
        for name in key[1:]
    ]
    order = np.lexsort([*rest[::-1], codes])
    sorted_names = from_list(sorted(levels), pa.string())
    workload = pa.DictionaryArray.from_arrays(from_numpy(codes[order].astype(np.int32)), sorted_names)
    return table.take(from_numpy(order)).set_column(at, table.schema.field(at), workload)


def _study_rows(studies: Sequence[ReadStudy]) -> pa.Table:
    rows = []
    for study in studies:
        parts = study.workload.split("/")
        rows.append(
            {
                "workload": study.workload,
                "batch_size": study.batch_size,
                # With its prefix: "solution_quality/mnist" is not "mnist", though study.json says so.
                "dataset": "/".join(parts[:-2]),
                "model": parts[-2],
                "optimizer": parts[-1],
                "train_steps": study.file.train_steps if study.file else None,
                "early_stopping": study.file.early_stopping if study.file else None,
                "source": study.source,
            }
        )
    return _table(rows, schemas.STUDIES)


def _limits(studies: Sequence[ReadStudy]) -> pa.Table:
    rows = []
    for study in studies:
        for name, config in sorted(study.file.parameter_configs.items()) if study.file else ():
            points = config.feasible_points
            rows.append(
                {
                    "workload": study.workload,
                    "batch_size": study.batch_size,
                    "parameter": name,
                    "type": config.type,
                    "scale": config.scale,
                    "min_value": config.min_value,
                    "max_value": config.max_value,
                    "feasible_points": None if points is None else [_number(point) for point in points],
                }
            )
    return _table(rows, schemas.SEARCH_SPACE)


def _table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """Rows as a table; its columns of names are written by codes."""
    columns = []
    for field_ in schema:
        values = [row[field_.name] for row in rows]
        by_code = pa.types.is_dictionary(field_.type)
        column = from_list(values, field_.type.value_type if by_code else field_.type)
        columns.append(column.dictionary_encode() if by_code else column)
    return pa.Table.from_arrays(columns, schema=schema)


def _without_metadata(studies: Sequence[ReadStudy]) -> Iterable[pa.Table]:
    """Rows of trials of which there is only the curve: nobody said that they finished."""
    for study in studies:
        without = sorted(study.with_curve - study.with_metadata)
        if without:
            unknown = dict.fromkeys(without, TrialFile(status=INCOMPLETE))
            yield trial_rows([(study.batch_size, unknown)], study.workload)


def _settings(parameters: dict[str, Any]) -> tuple[dict[str, float], dict[str, Any]]:
    """The settings that are numbers, by column, and the others."""
    numbers, others = {}, {}
    for name, value in parameters.items():
        number = _number(value)
        if number is None:
            others[name] = value
        else:
            numbers[schemas.column_name(name, "parameter")] = number
    return numbers, others


def _number(value: Any) -> float | None:
    """A JSON number, or a string of one, as a float; None for anything a float does not hold exactly."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return None if isinstance(value, int) and number != value else number
