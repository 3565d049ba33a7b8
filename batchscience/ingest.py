"""Turn an archive or a folder in the raw layout into the Parquet tables of a store."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .archive import OnProgress, Problem, Source
from .errors import BatchScienceError, LayoutError, SourceConflict, StoreMissing
from .places import filesystem, local_copy, place, reaching

if TYPE_CHECKING:
    from .writer import ReadStudy

OnStudy = Callable[[str, int], None]
"""Called with the workload and batch size of each study that was read."""

_COLLECT_SELDOM = 200_000


@dataclass(frozen=True, slots=True)
class IngestReport:
    """What an ingest read, and what it could not.

    Attributes
    ----------
    source : pathlib.Path
        The archive or folder.
    studies, trials, rows, measurements : int
        What was read; a row is a trial's metrics at one step, a measurement one number in it.
    problems : tuple of Problem
        Damaged files, each with its path.  What could be read beside them is in the tables.
    notes : tuple of Problem
        What is unusual but not damaged: unknown keys, merged or repeated rows, files passed over.
    """

    source: Path
    studies: int
    trials: int
    rows: int
    measurements: int
    problems: tuple[Problem, ...]
    notes: tuple[Problem, ...]


def ingest(
    source: str | os.PathLike[str],
    store: str | os.PathLike[str],
    *,
    workloads: Sequence[str] | None = None,
    replace: bool = False,
    strict: bool = False,
    on_study: OnStudy | None = None,
    on_progress: OnProgress | None = None,
) -> IngestReport:
    """Read studies in the raw layout and add them to the tables of a store.

    Parameters
    ----------
    source : path
        A tar, tar.bz2, tar.gz, tar.xz or tar.zst, or a folder; or the URL of one.
    store : path
        Folder of the store, made if it is missing; or a URL that fsspec opens.
    workloads : sequence of str, optional
        Only workloads that match one of these patterns (``mnist/*/sgd``).
    replace : bool, default False
        Let studies of this source take the place of the same studies from another source.
    strict : bool, default False
        Stop at the first damaged file instead of listing it.
    on_study, on_progress : callable, optional
        See `OnStudy` and `batchscience.archive.OnProgress`.

    Returns
    -------
    IngestReport

    Raises
    ------
    LayoutError
        If the source is no archive, is cut short, or holds no study; or at the first problem if `strict`.
    ArchiveRefused
        If a member is hostile: a link, a device, an absurd size, a name that leads outside, a file
        twice, or a folder that disagrees with the metadata in it.
    SourceConflict
        If a study is already in the store, from another source.
    BatchScienceError
        If the store cannot be written: the disk is full, or another process writes into it.

    Notes
    -----
    The store changes by one rename at the end.  The same source gives byte-identical files.
    """
    store, there = place(store), place(source)
    if filesystem(there) is not None:
        try:
            with reaching(there):
                there.stat()
        except FileNotFoundError:
            raise LayoutError(f"{there}: no such file or folder") from None
    try:
        with local_copy(there) as here:
            report = _ingest(here, store, workloads, replace, strict, on_study, on_progress)
        return dataclasses.replace(report, source=place(source))
    except OSError as error:
        raise BatchScienceError(
            f"{store}: {error.strerror or error}; free some space or name another --data, then run it again. "
            "What was in the tables before is still there"
        ) from error


def _ingest(
    source: Path,
    store: Path,
    workloads: Sequence[str] | None,
    replace: bool,
    strict: bool,
    on_study: OnStudy | None,
    on_progress: OnProgress | None,
) -> IngestReport:
    with contextlib.ExitStack() as stack:
        opened = stack.enter_context(Source(source))
        # Many small objects come and go, none of them in circles: let the collector look seldom.
        stack.callback(gc.set_threshold, *gc.get_threshold())
        gc.set_threshold(_COLLECT_SELDOM)
        # An archive is being decompressed by now, beside these imports of half a second.
        from . import tables
        from .reader import Reader
        from .writer import Spill, TablesWriter

        staged = stack.enter_context(tables.staging(store))
        try:
            old = stack.enter_context(local_copy(tables.tables_folder(store)))
        except StoreMissing:
            old = None
        spill = Spill(staged / "spill")
        (staged / "tables").mkdir()
        writer = TablesWriter(staged / "tables", spill, old)
        reader = Reader(source, writer, workloads, strict, on_study)
        try:
            reader.read(opened, on_progress)
        finally:
            spill.close()
        if not any(reader.found()):
            raise LayoutError(
                f"{source}: holds no study; expected files such as "
                "dataset/model/optimizer/batch_size/study.json"
                + (f" of workloads like {', '.join(workloads)}" if workloads else "")
            )
        new = reader.studies_with_source()
        known = tables.read_manifest(old).sources if old is not None else {}
        if old is not None:
            _refuse_conflicts(old, new, replace)
        writer.write_small(new)
        sources = {study.source: writer.sha256 for study in new}
        tables.publish(store, staged / "tables", {**known, **sources})
    return IngestReport(
        source,
        studies=len(new),
        trials=sum(len(study.with_metadata | study.with_curve) for study in new),
        rows=sum(study.rows for study in new),
        measurements=sum(study.measurements for study in new),
        problems=tuple(sorted(reader.problems)),
        notes=reader.counted_notes(),
    )


def _refuse_conflicts(
    old: Path,
    new: Sequence[ReadStudy],
    replace: bool,
) -> None:
    import pyarrow.parquet as pq

    there = pq.read_table(old / "studies.parquet", columns=["workload", "batch_size", "source"])
    source_of = {(row["workload"], row["batch_size"]): row["source"] for row in there.to_pylist()}
    conflicts = [
        (study, source_of[study.key])
        for study in new
        if study.key in source_of and source_of[study.key] != study.source
    ]
    if conflicts and not replace:
        study, source = conflicts[0]
        raise SourceConflict(
            f"{len(conflicts)} studies are already in the tables from another source, for example "
            f"{study.path}: there from {source!r}, now from {study.source!r}; "
            "use another --data, or --replace to let the new ones take their place"
        )
