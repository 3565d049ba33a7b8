"""Where the tables of a store lie in its folder, and how a new set of them takes the place of the old.

::

    CURRENT                    the name of the folder that holds the tables now
    tables-<digest>/           named after its contents, never changed once it is there
        manifest.json
        studies.parquet, search_space.parquet, trials.parquet
        measurements/<workload>.parquet

A reader follows ``CURRENT``, which is replaced by one rename; so it sees the old tables or the new.
In an object store there is no rename, but one small object is written whole: ``CURRENT`` comes last.
A folder that holds ``manifest.json`` itself is a store too: that is how tables are shipped.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from .errors import BatchScienceError, SchemaError, StoreMissing
from .layout import write_whole
from .places import filesystem, reaching
from .schemas import SCHEMA_NUMBER

MANIFEST = "manifest.json"
CURRENT = "CURRENT"
_STAGED = ".staged-"
_LOCK = ".lock"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What the tables of a store hold, as ``manifest.json`` says it.

    Attributes
    ----------
    schema : int
        Number of the table schemas.
    sources : dict of str to (str or None)
        sha256 of each source of studies; None for a folder of studies.
    files : dict of str to int
        Size in bytes of each Parquet file, by name relative to the folder.
    """

    schema: int = SCHEMA_NUMBER
    sources: dict[str, str | None] = field(default_factory=dict)
    files: dict[str, int] = field(default_factory=dict)

    def text(self) -> str:
        """The JSON of the manifest."""
        parts = {"schema": self.schema, "sources": self.sources, "files": self.files}
        return json.dumps(parts, indent=2, sort_keys=True) + "\n"


def measurements_file(workload: str) -> str:
    """Name, relative to the tables, of the file that holds a workload's measurements."""
    parts = (quote(part, safe=" ~+=,@()[]'") for part in workload.split("/"))
    return "measurements/" + "/".join(parts) + ".parquet"


def tables_folder(store: Path) -> Path:
    """The folder that holds a store's tables now.

    Raises
    ------
    StoreMissing
        If there are none.
    BatchScienceError
        If the URL of the store cannot be reached.
    """
    if (store / MANIFEST).is_file():
        return store
    try:
        with reaching(store):
            name = (store / CURRENT).read_text(encoding="utf-8").strip()
    except OSError:
        name = ""
    if not name or not (store / name / MANIFEST).is_file():
        raise StoreMissing(
            f"no tables in {store}; run 'batchscience fetch' or 'batchscience ingest SOURCE' first, "
            "or name another folder with --data"
        )
    return store / name


def read_manifest(tables: Path) -> Manifest:
    """Read the manifest of a folder of tables and see that every file it names is there, whole.

    Raises
    ------
    SchemaError
        If the tables are of a newer kind than this version reads, or a file is missing or cut short.
    """
    parts = json.loads((tables / MANIFEST).read_text(encoding="utf-8"))
    manifest = Manifest(parts["schema"], parts["sources"], parts["files"])
    if manifest.schema != SCHEMA_NUMBER:
        raise SchemaError(
            f"{tables}: tables of schema {manifest.schema}; this version reads {SCHEMA_NUMBER}; "
            "ingest the source again or install the version that wrote them"
        )
    for name, size in manifest.files.items():
        found = (tables / name).stat().st_size if (tables / name).is_file() else None
        if found != size:
            raise SchemaError(
                f"{tables / name}: expected {size:,} bytes, found "
                f"{'no file' if found is None else f'{found:,}'}; ingest the source again"
            )
    return manifest


@contextlib.contextmanager
def staging(store: Path) -> Iterator[Path]:
    """A folder beside the tables to build new ones in; it is gone afterwards, however it ends.

    Raises
    ------
    BatchScienceError
        If another process is writing into the same store.
    """
    if filesystem(store) is not None:
        # Object stores have no locks: it is for the user to let one process write at a time.
        with tempfile.TemporaryDirectory() as temporary:
            yield Path(temporary)
        return
    store.mkdir(parents=True, exist_ok=True)
    with (store / _LOCK).open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            raise BatchScienceError(
                f"{store}: process {holder} is writing tables here; wait for it or use another --data"
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        _clear(store)
        folder = store / f"{_STAGED}{os.getpid()}"
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            lock.truncate(0)


def publish(store: Path, staged: Path, sources: dict[str, str | None]) -> Path:
    """Make the tables in a staging folder the tables of the store; the old ones are removed.

    Returns
    -------
    pathlib.Path
        The folder of the tables.
    """
    names = sorted(path.relative_to(staged).as_posix() for path in staged.rglob("*.parquet"))
    manifest = Manifest(sources=sources, files={name: (staged / name).stat().st_size for name in names})
    write_whole(staged / MANIFEST, manifest.text())
    # Named after the contents: the same source gives the same folder, and a folder never changes.
    contents = hashlib.sha256()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for digest in pool.map(_digest, [staged / name for name in [MANIFEST, *names]]):
            contents.update(digest)
    final = store / f"tables-{contents.hexdigest()[:16]}"
    if filesystem(store) is not None:
        if not _whole(final):  # else somebody may be reading these very files
            _upload(staged, final, [*names, MANIFEST])
        (store / CURRENT).write_text(final.name + "\n", encoding="utf-8")
    else:
        if not final.exists():
            staged.rename(final)
        write_whole(store / CURRENT, final.name + "\n")
    _clear(store)
    return final


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _whole(tables: Path) -> bool:
    """Whether an upload of these tables came to its end."""
    try:
        return bool(read_manifest(tables).files)
    except (OSError, ValueError, KeyError, SchemaError):
        return False


def _upload(staged: Path, final: Path, names: list[str]) -> None:
    """Copy tables to a URL, the manifest last: without it the folder holds no tables."""
    for name in names:
        target = final / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with (staged / name).open("rb") as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 22)


def _clear(store: Path) -> None:
    """Remove what a killed process left and tables that are no longer current; only under the lock."""
    try:
        current = (store / CURRENT).read_text(encoding="utf-8").strip()
    except OSError:
        current = ""
    remote = filesystem(store)
    for path in list(store.iterdir()):
        if path.is_dir() and path.name != current and path.name.startswith((_STAGED, "tables-")):
            if remote is not None:
                remote.rm(path.path, recursive=True)  # type: ignore[attr-defined]
            else:
                shutil.rmtree(path, ignore_errors=True)
