"""Where things lie: bundled with the package, on this machine, or at a URL that fsspec opens."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from .errors import BatchScienceError, StoreMissing

_HERE = Path(__file__).resolve().parent

# In order of preference: beside this module in a wheel, at the top of the repository in a checkout.
_PLACES = (_HERE / "_data", _HERE.parent / "data")


def bundled(name: str) -> Path:
    """Where a bundled file or folder lies.

    Parameters
    ----------
    name : str
        Path below ``data/`` of the repository, for example ``"published/studies.csv"``.

    Returns
    -------
    pathlib.Path
        An existing path, in the installed package or in the checkout.

    Raises
    ------
    StoreMissing
        If the file came with neither.

    Examples
    --------
    >>> bundled("published/studies.csv").name
    'studies.csv'
    """
    for place in _PLACES:
        if (place / name).exists():
            return place / name
    looked = " and ".join(str(place) for place in _PLACES)
    raise StoreMissing(
        f"the bundled data have no {name!r} (looked in {looked}); was the package installed whole?"
    )


def is_url(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a URL, such as ``s3://bucket/folder`` or ``memory://folder``.

    Examples
    --------
    >>> is_url("s3://bucket/tables"), is_url("/tmp/tables")
    (True, False)
    """
    return "://" in str(path)


def place(path: str | os.PathLike[str]) -> Path:
    """A local path, or for a URL an object that is used like one.

    Raises
    ------
    BatchScienceError
        If the file system of the URL needs a package that is not installed.
    """
    if not is_url(path):
        return Path(path)
    from upath import UPath

    try:
        opened = UPath(str(path))
        _ = opened.fs
    except (ImportError, ValueError) as error:
        raise BatchScienceError(f"{path}: {error}; install the fsspec package for it") from None
    return cast(Path, opened)


def filesystem(path: Path) -> Any:
    """The fsspec file system of a `place`; None for a local path."""
    return getattr(path, "fs", None)


def local_path(path: str | os.PathLike[str]) -> Path | None:
    """The path on this machine, also of a URL such as ``file:///tmp/tables``; None for one elsewhere.

    Examples
    --------
    >>> local_path("file:///tmp/tables").as_posix(), local_path("s3://bucket/tables")
    ('/tmp/tables', None)
    """
    if not is_url(path):
        return Path(path)
    kind, _, rest = str(path).partition("://")
    return Path(rest) if kind in ("file", "local") else None


@contextlib.contextmanager
def reaching(path: Path) -> Iterator[None]:
    """Name a URL that cannot be reached: the packages that fsspec opens it with have errors of their own.

    Raises
    ------
    BatchScienceError
        For any of them; that there is no such file stays `FileNotFoundError`.
    """
    try:
        yield
    except (BatchScienceError, FileNotFoundError):
        raise
    except Exception as error:
        if filesystem(path) is None:
            raise
        raise BatchScienceError(f"{path}: cannot be reached: {type(error).__name__}: {error}") from error


@contextlib.contextmanager
def local_copy(path: Path) -> Iterator[Path]:
    """A file or folder on this machine: the path itself, or a copy of what lies at a URL."""
    remote = filesystem(path)
    if remote is None:
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / path.name
        remote.get(path.path, str(target), recursive=remote.isdir(path.path))  # type: ignore[attr-defined]
        yield target
