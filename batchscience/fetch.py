"""Download the archive of studies over connections that break, and let no other file take its place."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import itertools
import json
import logging
import os
import re
import shutil
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Self
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

import requests
import urllib3.exceptions

from . import __version__
from .errors import FetchError
from .layout import write_whole

ARCHIVE_URL = "https://storage.googleapis.com/batch_science_data/batch_science_data.tar.bz2"
"""The published archive of Shallue et al. (2019), about 802 MB."""

ARCHIVE_SHA256 = "6460ab86a6ab0f22a02e1c9b982e1ca31220bf41f669304ce86f14d19053f435"
"""Its hash, as the authors publish it beside the link."""

Progress = Callable[[int, int | None], None]
"""Called with the bytes received so far and the bytes in all, None where the server does not say."""

logger = logging.getLogger(__name__)

# Small enough that a cut connection costs little and a progress bar moves on a slow line.
_CHUNK = 64 * 1024
_LONGEST_WAIT = 60.0
_CONNECT_TIMEOUT = 20.0
_BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})
_PAGE_LIMIT = 1024 * 1024


def fetch_archive(
    folder: str | os.PathLike[str],
    *,
    url: str | os.PathLike[str] = ARCHIVE_URL,
    sha256: str | None = ARCHIVE_SHA256,
    size: int | None = None,
    on_progress: Progress | None = None,
    retries: int = 5,
    wait: float = 1.0,
    timeout: float = 60.0,
) -> Path:
    """Download an archive into a folder, or take a local one, and verify it.

    Parameters
    ----------
    folder : path
        Where the archive comes to lie, under the last part of the URL's path; created when missing.
    url : str or path
        An http or https URL, a ``file:`` URL, or a path.  A local file is verified and used where it
        lies.
    sha256 : str or None
        Hash that the file must have, 64 hexadecimal digits.  None accepts any archive that arrives as
        long as the server said: for an archive of your own.
    size : int, optional
        Bytes that the file must have.
    on_progress : callable, optional
        Called with the bytes received so far (those of earlier runs included) and the bytes in all,
        None where the server does not say.
    retries : int, default 5
        Attempts in a row that may end without a byte beyond those already seen before it gives up.
        An attempt that got further does not count.
    wait : float, default 1.0
        Seconds before the first retry that follows an attempt without progress; doubled with each
        further one.  A server's ``Retry-After`` is kept to.  Neither waits longer than a minute.
    timeout : float, default 60.0
        Seconds without a byte after which a connection counts as lost.

    Returns
    -------
    pathlib.Path
        The verified archive.

    Raises
    ------
    FetchError
        If the archive cannot be had whole and right.  The message says what was expected and
        received, what is kept, and what to do.  A file that is not as expected never stands under
        the archive's name.
    ValueError
        If `sha256` is not a hash, or `size`, `retries`, `wait` or `timeout` is out of range.

    Notes
    -----
    What has arrived lies in ``NAME.part``; ``NAME.part.json`` says which version of the file it belongs
    to.  A later attempt, in this run or another, asks for the rest with ``If-Range`` and goes on only if
    the server repeats the version's strong validator (a strong ETag, else a Last-Modified at least a
    second old together with the length); otherwise it starts over [1]_.  The hash is computed along
    the way; the part of an earlier run is read once to take it up.  If it turns out not to lead to the
    right file (after a power cut, say), it is dropped and the download starts over once.

    An archive that is already there is hashed again, every time (seconds against the minutes of
    an ingest), and used if it is right; no marker is trusted.  With ``sha256=None`` it must have the hash it
    had when it came from this URL, noted in ``NAME.source.json``; whether the server has a newer
    one is not asked.  An archive that is there and not right is replaced by the rename that
    brings the right one.

    One process fetches into a folder at a time (``flock`` on ``.fetch.lock``, which the system gives back
    however the process ends).

    References
    ----------
    .. [1] RFC 9110, HTTP Semantics, sections 8.8 (validators), 13.1.5 (If-Range) and 14 (ranges).

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     mine = Path(folder) / "mine.tar"
    ...     _ = mine.write_bytes(b"studies of my own")
    ...     fetch_archive(folder, url=mine, sha256=None) == mine
    True
    """
    if retries < 0 or wait < 0 or not timeout > 0:
        raise ValueError(f"expected retries, wait >= 0 and timeout > 0, got {retries}, {wait} and {timeout}")
    expected = _Expected.of(size, sha256)
    local = _local_path(url)
    if local is not None:
        _check_local(local, expected)
        return local
    url = os.fspath(url)
    folder = Path(folder)
    final = folder / _file_name(url)
    partial = _Partial(final, url)
    # Before the lock, so that a shared folder that cannot be written to serves its readers too.
    if _is_whole(final, url, expected):
        if partial.path.exists() or partial.note.exists():
            with suppress(FetchError), _only_fetch_into(folder):
                partial.discard()
        return final
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FetchError(f"{folder}: cannot be made ({error.strerror}); choose another with --data") from None
    with _only_fetch_into(folder):
        if _is_whole(final, url, expected):
            return final
        if final.exists():
            logger.warning("%s is not the archive expected; it stays until that one is whole", final)
        with partial, requests.Session() as session:
            session.headers["User-Agent"] = f"batchscience/{__version__}"
            download = _Download(session, url, partial, expected, on_progress, retries, wait, timeout)
            partial.resume()
            while True:
                from_earlier_run = partial.received > 0
                download.run()
                mismatch = expected.mismatch(partial.received, partial.sha256, partial.length)
                if mismatch is None:
                    break
                partial.discard()
                if not from_earlier_run:
                    raise FetchError(
                        f"{_shown(url)}: {mismatch}; nothing of it was kept.  If another archive is meant, "
                        "give its own hash (--sha256)"
                    )
                logger.warning("%s: %s; starting over without the earlier part", _shown(url), mismatch)
            partial.finish()
    return final


@dataclass(frozen=True, slots=True)
class _Expected:
    """What the caller knows of the file."""

    size: int | None
    sha256: str | None

    @classmethod
    def of(cls, size: int | None, sha256: str | None) -> Self:
        if size is not None and size <= 0:
            raise ValueError(f"an archive has a positive size, got {size}")
        if sha256 is not None:
            sha256 = sha256.strip().lower()
            if not re.fullmatch("[0-9a-f]{64}", sha256):
                raise ValueError(f"a sha256 is 64 hexadecimal digits, got {sha256!r}")
        return cls(size, sha256)

    def __str__(self) -> str:
        size = "" if self.size is None else f" of {self.size:,} bytes"
        return f"an archive{size}" + ("" if self.sha256 is None else f" with sha256 {self.sha256}")

    def mismatch(
        self, size: int, sha256: str, announced: int | None = None, *, verb: str = "received"
    ) -> str | None:
        """What is wrong with a file of this size and hash, or None.

        A length that the server announced counts only where no hash settles the matter.
        """
        if self.size in (None, size) and self.sha256 in (None, sha256):
            if self.sha256 is not None or announced in (None, size):
                return None
            return f"the server announced {announced:,} bytes, {verb} {size:,} bytes with sha256 {sha256}"
        said = "" if self.size or announced is None else f" (the server announced {announced:,} bytes)"
        return f"expected {self}{said}, {verb} {size:,} bytes with sha256 {sha256}"


@dataclass(frozen=True, slots=True)
class _Version:
    """What tells one version of the file at a URL from the next.

    Only what is strong is kept: `etag` unless it is a weak one, `last_modified` if the answer was
    given at least a second later, when the file could not change again within that second.
    """

    url: str
    etag: str | None
    last_modified: str | None
    length: int | None

    @classmethod
    def announced(cls, url: str, headers: Mapping[str, str]) -> Self:
        etag, modified = headers.get("ETag"), headers.get("Last-Modified")
        length = _whole_number(headers.get("Content-Length"))
        if etag is not None and not etag.startswith('"'):
            etag = None
        if modified is not None and (length is None or not _settled(modified, headers.get("Date"))):
            modified = None
        return cls(_identity(url), etag, modified, length)

    @property
    def validator(self) -> str | None:
        """The value for If-Range; None where nothing would tell that the file changed."""
        return self.etag or self.last_modified

    def continues_in(self, headers: Mapping[str, str], received: int) -> bool:
        """Whether a 206 with these headers brings the bytes that follow, of the same version."""
        begin, _, total = _content_range(headers)
        if begin != received or (self.length is not None and total not in (None, self.length)):
            return False
        if self.etag is not None:
            return headers.get("ETag") == self.etag
        return self.last_modified is not None and headers.get("Last-Modified") == self.last_modified


class _Partial:
    """What has been received of a file, on disk, with the version of the file that it belongs to."""

    def __init__(self, final: Path, url: str) -> None:
        self.final = final
        self.url = url
        self.path = final.with_name(f"{final.name}.part")
        self.note = final.with_name(f"{final.name}.part.json")
        self.version: _Version | None = None
        self.length: int | None = None
        self.received = 0
        self._hash = hashlib.sha256()
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    @property
    def kept(self) -> str:
        """A sentence for an error: what is there and what a rerun will do with it."""
        if not self.received:
            return "Nothing was kept"
        of = "" if self.length is None else f" of {self.length:,}"
        if self.version is None or self.version.validator is None:
            what = "the server names no version to continue from, so a rerun starts over"
        else:
            what = "run the same command again and it continues there"
        return f"{self.received:,}{of} bytes are kept in {self.path}: {what}"

    def resume(self) -> None:
        """Take up what an earlier run left, if it belongs to this URL."""
        with _disk(self):
            try:
                version = _Version(**json.loads(self.note.read_bytes()))
                there = self.path.stat().st_size
            except (FileNotFoundError, ValueError, TypeError):
                return
            if version.url != _identity(self.url) or version.validator is None:
                return
            if version.length is not None and there > version.length:
                return
            self._open()
            self.version, self.length = version, version.length
            self._hash = _sha256_of(self.path)
            self.received = there

    def start_over(self, version: _Version) -> None:
        """Drop what is there and begin the file anew, in this version.

        In this order, so that a kill in between never leaves bytes beside a note of another version.
        """
        self.discard()
        self.version, self.length = version, version.length
        with _disk(self):
            write_whole(self.note, json.dumps(asdict(version)))
            self._open()

    def append(self, piece: bytes) -> None:
        assert self._descriptor is not None
        view = memoryview(piece)
        while view:
            with _disk(self):
                written = os.write(self._descriptor, view)
            self._hash.update(view[:written])
            self.received += written
            view = view[written:]

    def discard(self) -> None:
        """Remove what was received, first the bytes, then the note of their version."""
        self._close()
        with _disk(self):
            self.path.unlink(missing_ok=True)
            self.note.unlink(missing_ok=True)
        self.version, self.length, self.received, self._hash = None, None, 0, hashlib.sha256()

    def finish(self) -> None:
        """Give the file its final name, with a note of where it came from."""
        assert self._descriptor is not None
        with _disk(self):
            os.fsync(self._descriptor)
            source = {"url": _shown(self.url), "identity": _identity(self.url), "sha256": self.sha256}
            write_whole(_source_note(self.final), json.dumps(source))
            self.path.replace(self.final)
            self.note.unlink(missing_ok=True)
            # Left by a kill in the middle of writing a note.
            for stray in self.final.parent.glob(f".{self.final.name}.*.tmp"):
                stray.unlink(missing_ok=True)
        self._close()

    def _open(self) -> None:
        self._close()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        # Unbuffered: what a failed write leaves on the disk is what `received` says.
        self._descriptor = os.open(self.path, flags, 0o666)

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class _Interrupted(Exception):
    """An attempt ended early in a way that another attempt may mend."""

    def __init__(self, reason: str, *, connected: bool = True, retry_after: float = 0.0) -> None:
        super().__init__(reason)
        self.connected = connected
        self.retry_after = retry_after


@dataclass(slots=True)
class _Download:
    """Attempts, one after the other, until the partial file is complete."""

    session: requests.Session
    url: str
    partial: _Partial
    expected: _Expected
    on_progress: Progress | None
    retries: int
    wait: float
    timeout: float
    answered: bool = False

    def run(self) -> None:
        """Receive what is missing.

        Raises
        ------
        FetchError
            If the server cannot be reached, refuses, sends something else, or the connection was
            lost too often.
        """
        furthest, fruitless = self.partial.received, 0
        while not self._complete():
            try:
                if self._attempt():
                    return
            except _Interrupted as interruption:
                # Measured against the best attempt so far: a server without ranges that always drops at
                # the same byte makes no progress, however many bytes it sends.
                if self.partial.received > furthest:
                    furthest, fruitless = self.partial.received, 0
                else:
                    fruitless += 1
                if fruitless > self.retries or (not interruption.connected and not self.answered):
                    raise self._given_up(interruption, fruitless) from interruption
                pause = self.wait * 2.0 ** min(fruitless - 1, 10) if fruitless else 0.0
                pause = min(max(pause, interruption.retry_after), _LONGEST_WAIT)
                logger.info("%s: %s; next attempt in %.1f s", _shown(self.url), interruption, pause)
                time.sleep(pause)

    def _complete(self) -> bool:
        return self.partial.received > 0 and self.partial.received == self.partial.length

    def _given_up(self, interruption: _Interrupted, attempts: int) -> FetchError:
        where = _shown(self.url)
        if interruption.connected or self.answered:
            again = "" if self.partial.received else "; run the same command again later"
            return FetchError(
                f"{where}: {interruption}; gave up after {attempts} attempts without progress.  "
                f"{self.partial.kept}{again}"
            )
        kept = f"  {self.partial.kept}" if self.partial.received else ""
        return FetchError(
            f"{where}: offline, or the server cannot be reached ({interruption}).  Two ways on: download "
            "the archive on another machine and give the file (batchscience fetch --url FILE), or draw from "
            f"the bundled tables (batchscience figures --source published).{kept}"
        )

    def _attempt(self) -> bool:
        """Ask once for what is missing and store what comes; whether that was all of it.

        False asks for another attempt, which is not one of the retries: it starts over.
        """
        partial = self.partial
        validator = partial.version.validator if partial.version and partial.received else None
        # A transparently compressed answer would have other bytes, another length and other ranges.
        headers = {"Accept-Encoding": "identity"}
        if validator is not None:
            headers |= {"Range": f"bytes={partial.received}-", "If-Range": validator}
        with self._ask(headers) as answer:
            self.answered = True
            if answer.status_code in _BUSY:
                pause = float(_whole_number(answer.headers.get("Retry-After")) or 0)
                raise _Interrupted(f"the server answered {_status(answer)}", retry_after=pause)
            if answer.status_code == 416 and validator is not None:
                return self._nothing_follows(answer)
            if answer.status_code not in ((200, 206) if validator is not None else (200,)):
                raise FetchError(
                    f"{_shown(answer.url)}: expected {self.expected}, the server answered {_status(answer)} "
                    f"(Content-Type {answer.headers.get('Content-Type', 'not given')}).  {partial.kept}"
                )
            pieces = _pieces(answer)
            first = next(pieces, b"")
            # Before anything on disk is touched: a log-in page must not cost the part of an earlier run.
            self._refuse_page(answer, first, pieces)
            self._refuse_encoding(answer)
            if answer.status_code == 200:
                self._begin(answer)
            elif partial.version is None or not partial.version.continues_in(
                answer.headers, partial.received
            ):
                logger.info("%s: the file has changed; starting over", _shown(self.url))
                partial.discard()
                return False
            elif partial.length is None:
                partial.length = _content_range(answer.headers)[2]
            self._make_room()
            self._report()
            limit = partial.length or self.expected.size
            for piece in itertools.chain([first], pieces):
                partial.append(piece)
                self._report()
                # An answer without end would fill the disk.
                if limit is not None and partial.received > limit:
                    break
        return self._all_of_it(answer)

    def _ask(self, headers: Mapping[str, str]) -> requests.Response:
        timeouts = (min(self.timeout, _CONNECT_TIMEOUT), self.timeout)
        try:
            return self.session.get(self.url, headers=headers, stream=True, timeout=timeouts)
        except requests.RequestException as error:
            causes = list(_causes(error))
            if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes):
                raise FetchError(
                    f"{_shown(self.url)}: the server's certificate is not trusted ({_reason(error)})"
                ) from error
            if not isinstance(
                error,
                requests.ConnectionError | requests.Timeout | requests.exceptions.ChunkedEncodingError,
            ):
                raise FetchError(
                    f"{_shown(self.url)}: expected a URL that leads to an archive, got "
                    f"{type(error).__name__} ({_reason(error)})"
                ) from error
            unreachable = urllib3.exceptions.NewConnectionError | requests.ConnectTimeout
            connected = not any(
                isinstance(cause, unreachable | requests.exceptions.ProxyError) for cause in causes
            )
            raise _Interrupted(_reason(error), connected=connected) from error

    def _nothing_follows(self, answer: requests.Response) -> bool:
        """Settle a 416: the file ends where the part ends, whatever was announced, or is another now."""
        ends = _content_range(answer.headers)[2] == self.partial.received
        # What has neither a hash nor an announced length to be held against could be half of an older file.
        if ends and not (self.expected.sha256 is None and self.partial.length is None):
            logger.warning(
                "%s: the server announced %s bytes, but its file ends at %s",
                _shown(self.url),
                self.partial.length,
                self.partial.received,
            )
            return True
        logger.info("%s: the file ends before the part does; starting over", _shown(self.url))
        self.partial.discard()
        return False

    def _begin(self, answer: requests.Response) -> None:
        """Begin the file anew in the version that the answer announces, if that can be the right one."""
        version = _Version.announced(self.url, answer.headers)
        if self.expected.size is not None and version.length not in (None, self.expected.size):
            raise FetchError(
                f"{_shown(answer.url)}: expected {self.expected}, the server announces {version.length:,} "
                f"bytes.  {self.partial.kept if self.partial.received else 'Nothing was received'}"
            )
        chunked = "chunked" in answer.headers.get("Transfer-Encoding", "").lower()
        if version.length is None and not chunked and self.expected == _Expected(None, None):
            raise FetchError(
                f"{_shown(answer.url)}: the server does not say how long the file is, so nothing would "
                "tell a whole file from a cut one; give its hash (--sha256)"
            )
        if self.partial.received:
            logger.info("%s: the server sends the file from its beginning", _shown(self.url))
        self.partial.start_over(version)

    def _refuse_page(self, answer: requests.Response, first: bytes, pieces: Iterator[bytes]) -> None:
        """Refuse a web page that stands in for the archive: a log-in, a proxy's or a server's error."""
        kind = answer.headers.get("Content-Type", "")
        labelled = kind.lower().startswith(("text/html", "application/xhtml"))
        # The bytes of a range may begin in any way.
        if not labelled and not (answer.status_code == 200 and _begins_like_html(first)):
            return
        page = bytearray(first)
        with suppress(_Interrupted):
            for piece in pieces:
                page += piece
                if len(page) >= _PAGE_LIMIT:
                    break
        digest = hashlib.sha256(page).hexdigest()
        heading = re.search(rb"<title[^>]*>\s*([^<]{1,100})", page, re.IGNORECASE)
        title = f", titled {heading[1].decode('utf-8', 'replace').strip()!r}" if heading else ""
        kept = f".  {self.partial.kept}" if self.partial.received else "; nothing of it was kept"
        raise FetchError(
            f"{_shown(answer.url)}: expected {self.expected}, received an HTML page "
            f"(status {_status(answer)}, Content-Type {kind or 'not given'}, {len(page):,} bytes with sha256 "
            f"{digest}{title}){kept}"
        )

    def _refuse_encoding(self, answer: requests.Response) -> None:
        """Refuse an answer compressed on the way.

        Some servers label a file by its own compression (``x.tar.gz`` as gzip), which changes no byte.
        """
        coding = answer.headers.get("Content-Encoding", "identity").strip().lower().removeprefix("x-")
        own = {"gzip": (".gz", ".tgz"), "bzip2": (".bz2", ".tbz2"), "xz": (".xz",), "zstd": (".zst",)}
        if coding in ("", "identity") or self.partial.final.name.endswith(own.get(coding, ())):
            return
        raise FetchError(
            f"{_shown(answer.url)}: expected the file as it is, the server sends it with Content-Encoding "
            f"{coding}; is there a proxy that compresses?  {self.partial.kept}"
        )

    def _make_room(self) -> None:
        """Refuse a download that cannot fit, before it has filled the disk."""
        if self.partial.length is None:
            return
        with _disk(self.partial):
            usage = shutil.disk_usage(self.partial.path)
        # Some network file systems report nothing at all.
        if usage.total and usage.free < self.partial.length - self.partial.received:
            raise _no_room(self.partial, "not enough room")

    def _report(self) -> None:
        if self.on_progress is not None:
            self.on_progress(self.partial.received, self.partial.length)

    def _all_of_it(self, answer: requests.Response) -> bool:
        """Whether a body that ended in good order completes the file."""
        partial = self.partial
        if partial.length is None or partial.received == partial.length:
            return True
        if partial.received < partial.length:
            raise _Interrupted(f"the answer ended at {partial.received:,} of {partial.length:,} bytes")
        announced, received = partial.length, partial.received
        partial.discard()
        raise FetchError(
            f"{_shown(answer.url)}: the server announced {announced:,} bytes, but sent {received:,}; "
            "nothing of it was kept"
        )


def _pieces(answer: requests.Response) -> Iterator[bytes]:
    """The bytes of a body as the server sent them, undecoded."""
    try:
        yield from answer.raw.stream(_CHUNK, decode_content=False)
    except urllib3.exceptions.HTTPError as error:
        raise _Interrupted(f"connection lost ({_reason(error)})") from error


# ---- local files -------------------------------------------------------------------------------


def _local_path(url: str | os.PathLike[str]) -> Path | None:
    """The path that a path or ``file:`` URL names; None for http and https."""
    if isinstance(url, os.PathLike):
        return Path(url)
    scheme, separator, _ = url.partition(":")
    scheme = scheme.lower()
    if separator and scheme in ("http", "https"):
        try:
            urlsplit(url)
        except ValueError as error:
            raise FetchError(f"{url}: no URL ({error})") from None
        return None
    if separator and scheme == "file":
        parts = urlsplit(url)
        if parts.netloc not in ("", "localhost"):
            raise FetchError(f"{url}: a file: URL names a file of this machine, not of {parts.netloc!r}")
        return Path(url2pathname(parts.path))
    if "://" in url:
        raise FetchError(f"{url}: expected http:, https:, file: or a path, got the scheme {scheme!r}")
    return Path(url).expanduser()


def _check_local(path: Path, expected: _Expected) -> None:
    """Raise `FetchError` unless a local file can be the archive."""
    if path.is_dir():
        raise FetchError(
            f"{path}: expected an archive, found a folder; 'batchscience ingest {path}' reads one"
        )
    if not path.is_file():
        what = "something that is no regular file" if path.exists() else "nothing"
        raise FetchError(f"{path}: expected an archive, found {what}")
    try:
        with path.open("rb") as file:
            if _begins_like_html(file.read(1024)):
                raise FetchError(f"{path}: expected {expected}, found an HTML page; was a web page saved?")
        # Without a hash to compare with, an archive of many gigabytes is not read for nothing.
        size = path.stat().st_size
        digest = "not computed" if expected.sha256 is None else _sha256_of(path).hexdigest()
    except OSError as error:
        raise FetchError(f"{path}: {error.strerror}") from None
    mismatch = expected.mismatch(size, digest, verb="found")
    if mismatch is None and size == 0:
        mismatch = "expected an archive, found an empty file"
    if mismatch is not None:
        raise FetchError(f"{path}: {mismatch}; the file is left as it is")


def _is_whole(final: Path, url: str, expected: _Expected) -> bool:
    """Whether the archive is there already and right, by its hash."""
    if not final.exists():
        return False
    if not final.is_file():
        raise FetchError(f"{final}: expected an archive or nothing, found something that is no regular file")
    sha256 = expected.sha256
    try:
        if sha256 is None:
            source = json.loads(_source_note(final).read_bytes())
            sha256 = source["sha256"] if source["identity"] == _identity(url) else None
        right = (
            sha256 is not None
            and expected.size in (None, final.stat().st_size)
            and _sha256_of(final).hexdigest() == sha256
        )
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        right = False
    except OSError as error:
        raise FetchError(f"{error.filename or final}: {error.strerror}") from None
    return right


def _source_note(final: Path) -> Path:
    return final.with_name(f"{final.name}.source.json")


def _sha256_of(path: Path) -> hashlib._Hash:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256")


@contextmanager
def _only_fetch_into(folder: Path) -> Iterator[None]:
    """Hold a folder for this process; `FetchError` that names the holder if another has it."""
    path = folder / ".fetch.lock"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise FetchError(
            f"{path}: {error.strerror}; fetching needs a folder it can write to (--data)"
        ) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 1000, 0).decode("utf-8", "replace") or "another process"
            raise FetchError(f"{folder}: {holder} is fetching into this folder; wait for it to end") from None
        except OSError as error:
            # Some cluster file systems have no locks; a fetch without one is better than none.
            logger.warning("%s: no lock (%s); do not fetch into %s twice at once", path, error, folder)
        # Only for the message above: a disk too full for this line may still be read and resumed on.
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            since = time.strftime("%Y-%m-%d %H:%M:%S")
            os.pwrite(
                descriptor, f"process {os.getpid()} on {socket.gethostname()} (since {since})".encode(), 0
            )
        yield
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


# ---- errors of the disk and of the network -------------------------------------------------------


@contextmanager
def _disk(partial: _Partial) -> Iterator[None]:
    """Turn an error of the disk into a `FetchError` that says what is kept."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _no_room(partial, f"{error.strerror}") from error
        if error.errno == errno.EFBIG:
            raise _no_room(
                partial, f"{error.strerror} (see 'ulimit -f', or the file system's limit)"
            ) from error
        where = error.filename or partial.path
        raise FetchError(f"{where}: {error.strerror}.  {partial.kept}") from error


def _no_room(partial: _Partial, what: str) -> FetchError:
    folder = partial.final.parent
    needed = "an unknown number of" if partial.length is None else f"{partial.length - partial.received:,}"
    try:
        free = f"{shutil.disk_usage(folder).free:,}"
    except OSError:
        free = "an unknown number of"
    return FetchError(
        f"{folder}: {what} for {partial.final.name}: {needed} more bytes are needed, {free} bytes are free.  "
        f"{partial.kept}"
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and all that it was raised from or wraps, outermost first, each once."""
    waiting, seen = [error], set[int]()
    while waiting:
        current = waiting.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        inner = (*current.args, getattr(current, "reason", None), current.__cause__, current.__context__)
        waiting += [cause for cause in inner if isinstance(cause, BaseException)]


def _reason(error: BaseException) -> str:
    """The system's own words for a failed connection, without the address that wraps them."""
    causes = list(_causes(error))
    for cause in causes:
        if isinstance(cause, OSError) and cause.strerror and not isinstance(cause, requests.RequestException):
            return cause.strerror
    # Only now: urllib3 counts a refused connection among its timeouts.
    timeouts = requests.Timeout | urllib3.exceptions.TimeoutError | TimeoutError
    if any(isinstance(cause, timeouts) for cause in causes):
        return "no answer in time"
    if any(isinstance(cause, urllib3.exceptions.IncompleteRead) for cause in causes):
        return "it closed before the end"
    return str(causes[-1]) or type(causes[-1]).__name__


def _status(answer: requests.Response) -> str:
    return f"{answer.status_code} {answer.reason}".strip()


# ---- words of HTTP -------------------------------------------------------------------------------


def _file_name(url: str) -> str:
    """The file's name in the folder: the last part of the URL's path, made harmless."""
    name = PurePosixPath(unquote(urlsplit(url).path)).name
    return re.sub(r"[^A-Za-z0-9._+-]", "_", name).lstrip(".")[-200:] or "archive"


def _shown(url: str) -> str:
    """A URL for messages and notes, without the passwords and signatures that some carry."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}" + ("?…" if parts.query else "")


def _identity(url: str) -> str:
    """What tells one URL from another in notes, without giving away what it carries."""
    return hashlib.sha256(url.encode()).hexdigest()


def _whole_number(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch("[0-9]+", text) else None


def _content_range(headers: Mapping[str, str]) -> tuple[int | None, int | None, int | None]:
    """First byte, last byte and total of a Content-Range; None for what it leaves open."""
    match = re.fullmatch(
        r"bytes (?:([0-9]+)-([0-9]+)|\*)/([0-9]+|\*)", headers.get("Content-Range", "").strip()
    )
    if match is None:
        return None, None, None
    return _whole_number(match[1]), _whole_number(match[2]), _whole_number(match[3])


def _settled(modified: str, date: str | None) -> bool:
    """Whether an answer was given so long after the change that the date alone tells versions apart."""
    if date is None:
        return False
    try:
        age = parsedate_to_datetime(date) - parsedate_to_datetime(modified)
    except (ValueError, TypeError):
        return False
    return age.total_seconds() >= 1


def _begins_like_html(first: bytes) -> bool:
    return first.lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith((b"<!doctype html", b"<html"))
