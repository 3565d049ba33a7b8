"""The files of an archive or a folder, one after another, without extracting anything."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import hashlib
import lzma
import os
import queue
import shutil
import subprocess
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self, cast

from .errors import ArchiveRefused, LayoutError

MAX_MEMBER = 1 << 28
"""Largest file taken from an archive, in bytes; the published curves are a thousand times smaller."""

MAX_NAME = 4096
_BLOCK = 512
_CHUNK = 1 << 18
_CHUNK_AHEAD, _CHUNKS_AHEAD = 1 << 20, 24
_ZEROS = bytes(_BLOCK)
# Kinds of members, by the byte that stands for them; a very old tar has 0 for a regular file.
_DIRECTORY, _LONG_NAME, _LONG_LINK, _PAX, _PAX_GLOBAL = b"5LKxg"
_PLAIN = frozenset(b"\x0007") | {_DIRECTORY}
_HEADERS = frozenset((_LONG_NAME, _LONG_LINK, _PAX, _PAX_GLOBAL))
_WHAT = dict(zip(b"12346", ("a hard link", "a symbolic link", "a device", "a device", "a pipe"), strict=True))

OnProgress = Callable[[int, int], None]
"""Called with the bytes of the source read so far, and all of them."""


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """A file of a source that is damaged or unusual: where, and what."""

    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


def files(
    source: Path, *, wanted: Callable[[str], bool], on_progress: OnProgress | None = None
) -> Iterator[tuple[str, bytes]]:
    """Name and content of each wanted file below a folder or in an archive; see `Source.files`."""
    with Source(source) as opened:
        yield from opened.files(wanted=wanted, on_progress=on_progress)


class Source:
    """A folder or an archive, opened: an archive is decompressed from now on, beside whatever else is done.

    Parameters
    ----------
    path : pathlib.Path
        A folder, or a tar that may be compressed by bzip2, gzip, xz or zstd (told by its first bytes).

    Raises
    ------
    LayoutError
        If the source is not there or is not an archive.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stack = contextlib.ExitStack()
        if not path.is_dir():
            if not path.is_file():
                raise LayoutError(f"{path}: no such file or folder")
            try:
                self._stream, self._position = _open(path, self._stack)
            except BaseException:  # Ctrl-C too: nobody else closes what was opened
                self._stack.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def files(
        self, *, wanted: Callable[[str], bool], on_progress: OnProgress | None = None
    ) -> Iterator[tuple[str, bytes]]:
        """Name and content of each wanted file, once.

        Parameters
        ----------
        wanted : callable
            Whether the content of a file of this name is needed; the others are passed over.
        on_progress : callable, optional
            See `OnProgress`.

        Yields
        ------
        tuple of str and bytes
            Name relative to the source, with ``/`` between its parts, and the content.  A folder gives its
            files in the order of their names; an archive in its own order.

        Raises
        ------
        ArchiveRefused
            If a member is a link, a device, larger than `MAX_MEMBER`, or has an absolute name or one with
            ``..``.
        LayoutError
            If the archive is damaged or ends too early.
        """
        if self._path.is_dir():
            return _folder_files(self._path, wanted)
        return self._members(wanted, on_progress)

    def _members(
        self, wanted: Callable[[str], bool], on_progress: OnProgress | None
    ) -> Iterator[tuple[str, bytes]]:
        total, done = self._path.stat().st_size, 0
        tar = _Tar(self._stream, self._path)
        try:
            for member in tar.members(wanted):
                if on_progress is not None and tar.refilled:
                    tar.refilled = False
                    done = max(done, self._position())
                    on_progress(done, total)
                yield member
            tar.drain()
        except (OSError, EOFError, lzma.LZMAError, zlib.error, RuntimeError, ValueError) as error:
            raise LayoutError(
                f"{self._path}: cannot be decompressed after {tar.read} bytes ({error}); "
                "is the file cut short?"
            ) from error
        if on_progress is not None:
            on_progress(total, total)


def digest(source: Path) -> str:
    """The sha256 of an archive, in hexadecimal digits."""
    with source.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _folder_files(folder: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    for where, folders, names in os.walk(folder):
        folders.sort()
        for name in [*folders, *names]:
            if (Path(where) / name).is_symlink():
                raise ArchiveRefused(f"{Path(where) / name}: is a symbolic link; only plain files are read")
        for name in sorted(names):
            path = Path(where) / name
            relative = path.relative_to(folder).as_posix()
            if wanted(relative):
                if path.stat().st_size > MAX_MEMBER:
                    raise ArchiveRefused(_too_large(str(path), path.stat().st_size))
                try:
                    yield relative, path.read_bytes()
                except OSError as error:
                    raise LayoutError(f"{path}: {error.strerror}") from None


def _open(source: Path, stack: contextlib.ExitStack) -> tuple[BinaryIO, Callable[[], int]]:
    """The decompressed stream of an archive, and a function that tells how far the file was read."""
    raw = stack.enter_context(source.open("rb"))
    magic = raw.read(_BLOCK)
    raw.seek(0)
    if magic.startswith(b"BZh"):
        program = shutil.which("lbzip2")
        if program is not None:
            return cast(BinaryIO, stack.enter_context(_Program(program, raw))), lambda: _offset(raw)
        try:
            import indexed_bzip2
        except ImportError:  # no wheel for this platform: the standard library reads on one core
            return _ahead(_Bzip2(raw), raw.tell, stack)
        parallel = stack.enter_context(
            indexed_bzip2.IndexedBzip2File(str(source), parallelization=os.cpu_count() or 1)
        )
        return _ahead(parallel, lambda: int(parallel.tell_compressed()) // 8, stack)
    if magic.startswith(b"\x1f\x8b"):
        return _ahead(stack.enter_context(gzip.GzipFile(fileobj=raw)), raw.tell, stack)
    if magic.startswith(b"\xfd7zXZ\x00"):
        return _ahead(stack.enter_context(lzma.LZMAFile(raw)), raw.tell, stack)
    if magic.startswith(b"\x28\xb5\x2f\xfd"):
        return _ahead(_Zstandard(raw), raw.tell, stack)
    if len(magic) == _BLOCK and (magic[257:262] == b"ustar" or not magic.strip(b"\x00")):
        return raw, raw.tell
    raise LayoutError(
        f"{source}: expected a tar, plain or compressed by bzip2, gzip, xz or zstd; "
        f"found a file that begins with {magic[:16]!r}"
    )


def _ahead(
    stream: Any, position: Callable[[], int], stack: contextlib.ExitStack
) -> tuple[BinaryIO, Callable[[], int]]:
    ahead = stack.enter_context(_ReadAhead(stream, position))
    return cast(BinaryIO, ahead), lambda: ahead.position


def _offset(file: BinaryIO) -> int:
    return os.lseek(file.fileno(), 0, os.SEEK_CUR)


class _Program:
    """The output of ``lbzip2``, which takes about 15 % less time than the parallel reader of PyPI."""

    def __init__(self, program: str, compressed: BinaryIO) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the process)
        os.lseek(compressed.fileno(), 0, os.SEEK_SET)
        self._process = subprocess.Popen(
            ["nice", "-n5", program, "-dc", f"-n{os.cpu_count() or 1}"],
            stdin=compressed.fileno(),
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdout is not None
        self._process.kill()
        self._process.stdout.close()
        self._process.wait()
        self._errors.close()

    def read(self, size: int) -> bytes:
        """The next bytes; empty at the end.

        Raises
        ------
        OSError
            If the program says that the file is damaged.
        """
        assert self._process.stdout is not None
        chunk = self._process.stdout.read(size)
        if not chunk and self._process.wait():
            self._errors.seek(0)
            raise OSError(self._errors.read().decode(errors="replace").strip())
        return chunk


class _Zstandard:
    """The zstandard package's decompressor, whose errors are no kind of OSError."""

    def __init__(self, compressed: BinaryIO) -> None:
        import zstandard

        self._damage = zstandard.ZstdError
        self._reader = zstandard.ZstdDecompressor().stream_reader(compressed, read_across_frames=True)

    def read(self, size: int) -> bytes:
        """The next bytes; empty at the end.

        Raises
        ------
        OSError
            If the file is damaged.
        """
        try:
            return self._reader.read(size)
        except self._damage as error:
            raise OSError(str(error)) from None


class _Bzip2:
    """The standard library's decompressor, called with large pieces.

    It lets other threads work within each call, and waits for its turn between two.  What follows the last
    stream and is none is passed over, as the other readers do.
    """

    def __init__(self, compressed: BinaryIO) -> None:
        self._compressed = compressed
        self._decompressor = bz2.BZ2Decompressor()
        self._streams = 0

    def read(self, size: int) -> bytes:
        """About the next `size` bytes; empty at the end.

        Raises
        ------
        EOFError
            If the file is cut short.
        OSError
            If it is damaged.
        """
        while True:
            rest, begun = b"", True
            if self._decompressor.eof:  # another stream may follow
                rest, begun = self._decompressor.unused_data, False
                self._decompressor = bz2.BZ2Decompressor()
                self._streams += 1
            if self._decompressor.needs_input and not rest:
                rest = self._compressed.read(_CHUNK_AHEAD >> 2)
                if not rest and begun:
                    raise EOFError("it ends before its end marker")
                if not rest:
                    return b""
            try:
                chunk = self._decompressor.decompress(rest, size)
            except OSError:
                if self._streams and not begun:
                    return b""
                raise
            if chunk:
                return chunk


class _ReadAhead:
    """Reads a decompressor in a thread of its own.

    A parallel one decodes only a few blocks before it waits for a reader; so the reader must always be
    there.  Another works beside the reader this way.
    """

    def __init__(self, stream: Any, position: Callable[[], int]) -> None:
        self._stream = stream
        self._position = position
        self._chunks: queue.Queue[bytes | BaseException] = queue.Queue(_CHUNKS_AHEAD)
        self._stopped = False
        self._ended = False
        self.position = 0
        self._thread = threading.Thread(target=self._run, name="decompress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped = True
        while self._thread.is_alive():
            with contextlib.suppress(queue.Empty):
                self._chunks.get(timeout=0.01)
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopped:
                chunk = self._stream.read(_CHUNK_AHEAD)
                # At the end the parallel one says 0.
                self.position = max(self.position, self._position())
                self._chunks.put(chunk)
                if not chunk:
                    return
        except BaseException as error:  # noqa: BLE001  (raised again where the chunks are read)
            self._chunks.put(error)

    def read(self, _: int) -> bytes:
        """The next chunk, of the size that it comes in; empty at the end."""
        if self._ended:
            return b""
        chunk = self._chunks.get()
        if isinstance(chunk, BaseException):
            raise chunk
        self._ended = not chunk
        return chunk


class _Tar:
    """A tar read front to back; about a quarter of what the standard library's reader costs a member."""

    def __init__(self, stream: BinaryIO, source: Path) -> None:
        self._stream = stream
        self._source = source
        self._buffer = b""
        self._at = 0
        self.read = 0
        self.refilled = True

    def members(self, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
        """Name and content of each regular file that is wanted."""
        long_name: str | None = None
        take, check, refuse = self._take, self._check, self._refuse
        while True:
            header = take(_BLOCK, "its end marker")
            if not header[0] and header == _ZEROS:
                return
            check(header)
            name = long_name if long_name is not None else _name(header)
            kind, size = header[156], self._size(header, name)
            padded = (size + 511) & ~511
            if kind in _HEADERS:
                if size > 1 << 20:
                    raise ArchiveRefused(_too_large(f"{self._source}: the header of {name}", size))
                text = take(padded, name, size)
                if kind == _LONG_NAME:
                    long_name = text.rstrip(b"\x00").decode("utf-8", "surrogateescape")
                elif kind == _PAX:
                    fields = self._pax(text)
                    if "size" in fields or any(key.startswith("GNU.sparse") for key in fields):
                        raise ArchiveRefused(f"{self._source}: a member over 8 GB or sparse after {name}")
                    long_name = fields.get("path", long_name)
                continue
            long_name = None
            if kind not in _PLAIN or size > MAX_MEMBER or _leads_out(name):
                refuse(name, kind, size)
            if kind == _DIRECTORY:
                continue
            if wanted(name):
                yield name, take(padded, name, size)
            else:
                self._skip(padded, name)

    def drain(self) -> None:
        """Read on to the end of the file, so that the decompressor checks its sums."""
        while self._stream.read(_CHUNK):
            pass

    def _refuse(self, name: str, kind: int, size: int) -> None:
        where = f"{self._source}: member {name[:200]!r}"
        if len(name) > MAX_NAME:
            raise ArchiveRefused(f"{where}…: a name of {len(name)} characters; nothing was written")
        if size > MAX_MEMBER:
            raise ArchiveRefused(_too_large(where, size))
        if kind not in _PLAIN:
            what = _WHAT.get(kind, f"of type {chr(kind)!r}")
            raise ArchiveRefused(f"{where}: is {what}; only plain files are read; nothing was written")
        raise ArchiveRefused(f"{where}: the name leads out of the archive; nothing was written")

    def _check(self, header: bytes) -> None:
        field = header[148:156]
        # Adler-32 begins with the plain sum of the bytes modulo 65521; eight spaces stand for the field.
        total = (zlib.adler32(header) & 0xFFFF) - 1 - sum(field) + 256
        stated = _octal(field)
        if stated is None or (stated - total) % 65521:
            raise LayoutError(f"{self._source}: not a tar header after {self.read} bytes; is it damaged?")

    def _size(self, header: bytes, name: str) -> int:
        field = header[124:136]
        if field[0] & 0x80:  # base-256, for sizes over 8 GB
            return int.from_bytes(field, "big") & ((1 << 95) - 1)
        size = _octal(field)
        if size is None:
            raise LayoutError(f"{self._source}: member {name!r}: no size in its header")
        return size

    def _pax(self, text: bytes) -> dict[str, str]:
        fields, at = {}, 0
        while at < len(text):
            length, _, _ = text[at:].partition(b" ")
            if not length.isdigit() or int(length) <= len(length) + 1:
                raise LayoutError(f"{self._source}: a damaged extended header after {self.read} bytes")
            key, _, value = text[at + len(length) + 1 : at + int(length) - 1].partition(b"=")
            fields[key.decode()] = value.decode("utf-8", "surrogateescape")
            at += int(length)
        return fields

    def _take(self, count: int, what: str, needed: int | None = None) -> bytes:
        """The next bytes; of them only as many as are needed."""
        end = self._at + count
        if end > len(self._buffer):
            parts = [self._buffer[self._at :]]
            have = len(parts[0])
            while have < count:
                chunk = self._stream.read(_CHUNK)
                if not chunk:
                    raise LayoutError(
                        f"{self._source}: ends in the middle of {what!r}, {self.read} bytes into the tar; "
                        "the file is cut short"
                    )
                self.refilled = True
                parts.append(chunk)
                have += len(chunk)
            self._buffer, self._at, end = b"".join(parts), 0, count
        taken = self._buffer[self._at : end if needed is None else self._at + needed]
        self._at = end
        self.read += count
        return taken

    def _skip(self, count: int, what: str) -> None:
        while count > 0:
            count -= len(self._take(min(count, _CHUNK), what))


def _name(header: bytes) -> str:
    name = header[:100].split(b"\x00", 1)[0]
    if header[257:263] == b"ustar\x00" and header[345]:
        name = header[345:500].split(b"\x00", 1)[0] + b"/" + name
    return name.decode("utf-8", "surrogateescape")


def _leads_out(name: str) -> bool:
    return (
        name[:1] == "/"
        or len(name) > MAX_NAME
        or "\\" in name
        or "\x00" in name
        or (".." in name and ".." in name.split("/"))
    )


def _octal(field: bytes) -> int | None:
    digits = field.strip(b" \x00")
    try:
        return int(digits, 8) if digits else 0
    except ValueError:
        return None


def _too_large(where: str, size: int) -> str:
    return f"{where}: {size:,} bytes, more than the {MAX_MEMBER:,} a file may have; nothing was written"
