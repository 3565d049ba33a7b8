"""A real HTTP server on this machine that serves one file, as well or as badly as a test asks."""

from __future__ import annotations

import contextlib
import hashlib
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

BLOCK = 16 * 1024


@dataclass(frozen=True, kw_only=True)
class Answer:
    """How one request is answered; the defaults are those of a good server.

    Parameters
    ----------
    content : bytes, optional
        The file from this request on; None for the one that was there before.
    etag, last_modified : str, optional
        Validators sent; ``""`` for none, None for those that belong to the content.
    ranges : bool
        Whether a Range header is looked at.
    heed_if_range : bool
        Whether a range of a file that has changed is refused, as it should be.
    most : int, optional
        Bytes of a 206 at most, as some servers do.
    drop_after : int, optional
        Bytes of the body after which the connection is dropped.
    reset : bool
        Whether it is dropped by a reset rather than an end.
    hang : bool
        Whether the server falls silent there instead, until it is closed.
    mute : bool
        Whether the connection is closed without any answer.
    lie : int
        What the announced length is too large by.
    surplus : int
        Bytes sent after those of a range, announced in Content-Length but not in Content-Range.
    framing : {"length", "chunked", "close"}
        How the end of the body is told.
    page : bytes, optional
        Served instead of the file.
    status : int
        Of the page.
    headers : dict
        Further headers, in place of those of the same name.
    pause : float
        Seconds before each block of 16 KiB.
    """

    content: bytes | None = None
    etag: str | None = None
    last_modified: str | None = None
    ranges: bool = True
    heed_if_range: bool = True
    most: int | None = None
    drop_after: int | None = None
    reset: bool = False
    hang: bool = False
    mute: bool = False
    lie: int = 0
    surplus: int = 0
    framing: str = "length"
    page: bytes | None = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    pause: float = 0.0


@dataclass
class Asked:
    """A request that the server received, and what became of it."""

    path: str
    headers: dict[str, str]
    status: int = 0
    sent: int = 0

    @property
    def begin(self) -> int:
        """First byte asked for."""
        match = re.fullmatch(r"bytes=([0-9]+)-", self.headers.get("range", ""))
        return int(match[1]) if match else 0


class ArchiveServer:
    """Serves `content` under every path, answering by `answers` in turn and then by the last of them.

    A path that begins with ``/moved/`` is redirected to the rest of it.
    """

    def __init__(self, content: bytes, answers: Sequence[Answer] = ()) -> None:
        self.content = content
        self.answers = list(answers)
        self.asked: list[Asked] = []
        self.closing = threading.Event()
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Handler, self)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, name="archive-server"
        )
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/studies.tar.bz2"

    @property
    def sent(self) -> int:
        """Bytes of bodies sent so far."""
        return sum(asked.sent for asked in self.asked)

    def wait_until(self, reached: Callable[[], bool], *, seconds: float = 20.0) -> None:
        """Wait for something to become true of the server, or fail."""
        end = time.monotonic() + seconds
        while not reached():
            assert time.monotonic() < end, "the server waited in vain"
            time.sleep(0.001)

    def next_answer(self) -> Answer:
        with self._lock:
            if not self.answers:
                return Answer()
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            if answer.content is not None:
                self.content = answer.content
            return answer


class _Server(ThreadingHTTPServer):
    daemon_threads = False

    def __init__(self, address: tuple[str, int], handler: type[_Handler], owner: ArchiveServer) -> None:
        self.owner = owner
        super().__init__(address, handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed or hung up is what the tests are about; nothing to print."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class's name)
        pass

    def do_GET(self) -> None:
        self.close_connection = True
        owner = self.server.owner
        asked = Asked(self.path, {name.lower(): value for name, value in self.headers.items()})
        if self.path.startswith("/moved/"):
            self.send_response(302)
            self.send_header("Location", self.path.removeprefix("/moved"))
            self.send_header("Content-Length", "0")
            self.send_header("Connection", "close")
            self.end_headers()
            return
        answer = owner.next_answer()
        owner.asked.append(asked)
        if answer.mute:
            return
        if answer.page is not None:
            headers = {"Content-Type": "text/html; charset=utf-8", "Content-Length": str(len(answer.page))}
            self._send(asked, answer, answer.status, headers, answer.page)
            return
        self._send_file(asked, answer, owner)

    def _send_file(self, asked: Asked, answer: Answer, owner: ArchiveServer) -> None:
        content = owner.content
        digest = hashlib.sha256(content).hexdigest()
        etag = f'"{digest[:16]}"' if answer.etag is None else answer.etag
        # Files that differ were changed at different times, all long before this test.
        date = formatdate(1.6e9 + int(digest[:6], 16), usegmt=True)
        modified = date if answer.last_modified is None else answer.last_modified
        headers = {"Content-Type": "application/x-bzip2", "ETag": etag, "Last-Modified": modified}
        body, status, begin = content, 200, asked.begin
        condition = asked.headers.get("if-range")
        unchanged = condition in (None, etag, modified) or not answer.heed_if_range
        if answer.ranges and "range" in asked.headers and unchanged:
            if begin >= len(content):
                self._send(asked, answer, 416, {"Content-Range": f"bytes */{len(content)}"}, b"")
                return
            body, status = content[begin:][: answer.most], 206
            headers["Content-Range"] = f"bytes {begin}-{begin + len(body) - 1}/{len(content)}"
            body += bytes(answer.surplus)
        headers["Content-Length"] = str(len(body) + answer.lie)
        self._send(asked, answer, status, headers, body)

    def _send(self, asked: Asked, answer: Answer, status: int, headers: dict[str, str], body: bytes) -> None:
        asked.status = status
        date = self.date_time_string()
        headers = {"Date": date, **headers, "Connection": "close", **answer.headers}
        if answer.framing != "length":
            headers.pop("Content-Length")
        if answer.framing == "chunked":
            headers["Transfer-Encoding"] = "chunked"
        self.send_response_only(status)
        for name, value in headers.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        end = len(body) if answer.drop_after is None else min(answer.drop_after, len(body))
        for begin in range(0, end, BLOCK):
            if answer.pause and self.server.owner.closing.wait(answer.pause):
                return
            piece = body[begin : min(begin + BLOCK, end)]
            if answer.framing == "chunked":
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            else:
                self.wfile.write(piece)
            asked.sent += len(piece)
        if answer.drop_after is None:
            if answer.framing == "chunked":
                self.wfile.write(b"0\r\n\r\n")
        elif answer.hang:
            self.server.owner.closing.wait()
        elif answer.reset:
            # Time for the client to read what was sent, which a reset would take from it.
            time.sleep(0.05)
            with contextlib.suppress(OSError):
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
