"""The archive arrives whole and right, or an error says why and what is kept; nothing in between."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchscience.errors import FetchError
from batchscience.fetch import ARCHIVE_SHA256, ARCHIVE_URL, fetch_archive

from .servers import Answer, ArchiveServer

NAME = "studies.tar.bz2"
CONTENT = random.Random(1811).randbytes(700_001)
OTHER = random.Random(3600).randbytes(650_000)
PAGE = b"<!DOCTYPE html>\n<html><head><title>Sign in to Hotel WiFi</title></head><body>" + b" " * 1900
KEPT = {NAME, f"{NAME}.source.json", ".fetch.lock"}


# Where a hundred downloads are synced to disk, a disk that others keep busy would take minutes.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """A folder that need not be on a disk."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        yield Path(folder)


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1,localhost,.invalid")


@pytest.fixture
def serve() -> Iterator[type[ArchiveServer]]:
    """Start servers that are closed at the end of the test."""
    running: list[ArchiveServer] = []

    def start(content: bytes, *answers: Answer) -> ArchiveServer:
        running.append(ArchiveServer(content, answers))
        return running[-1]

    yield start
    for server in running:
        server.__exit__()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def fetch(folder: Path, server: ArchiveServer, **changes: object) -> Path:
    options = {"url": server.url, "sha256": sha256(CONTENT), "wait": 0.0, "timeout": 5.0, **changes}
    return fetch_archive(folder, **options)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def cut_short(folder: Path, content: bytes = CONTENT, *, after: int = 300_000, url: str) -> None:
    """Leave what a run leaves whose connection was lost for good: a part, and the note of its version."""
    folder.mkdir(exist_ok=True)
    (folder / f"{NAME}.part").write_bytes(content[:after])
    digest = sha256(content)
    note = {"url": sha256(url.encode()), "etag": f'"{digest[:16]}"', "last_modified": None}
    (folder / f"{NAME}.part.json").write_text(json.dumps({**note, "length": len(content)}))


# ---- what goes well ------------------------------------------------------------------------------


def test_a_download_arrives_whole_and_reports_its_progress(tmp_path, serve):
    server = serve(CONTENT)
    seen: list[tuple[int, int | None]] = []
    path = fetch(tmp_path / "new" / "folder", server, on_progress=lambda *now: seen.append(now))
    assert path == tmp_path / "new" / "folder" / NAME
    assert path.read_bytes() == CONTENT
    assert names(path.parent) == KEPT
    assert seen[0] == (0, len(CONTENT))
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [now for now, _ in seen] == sorted(now for now, _ in seen)
    assert server.asked[0].headers["accept-encoding"] == "identity"


def test_the_defaults_are_the_published_archive():
    assert ARCHIVE_URL.endswith("/batch_science_data.tar.bz2")
    assert fetch_archive.__kwdefaults__["url"] == ARCHIVE_URL
    assert fetch_archive.__kwdefaults__["sha256"] == ARCHIVE_SHA256


def test_redirects_are_followed_and_dropped_connections_continue_behind_them(tmp_path, serve):
    server = serve(CONTENT, Answer(drop_after=200_000))
    path = fetch(tmp_path, server, url=server.url.replace("/studies", "/moved/studies"))
    assert path.read_bytes() == CONTENT
    assert {asked.begin for asked in server.asked} == {0, 200_000, 400_000, 600_000}


def test_a_redirect_that_never_ends_is_refused(tmp_path, serve):
    server = serve(CONTENT)
    with pytest.raises(FetchError, match="TooManyRedirects"):
        fetch(tmp_path, server, url=server.url.replace("/studies", "/moved" * 40 + "/studies"))


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_a_connection_dropped_every_so_many_bytes_is_continued_where_it_broke(tmp_path, serve, reset):
    server = serve(CONTENT, Answer(drop_after=70_000, reset=reset))
    # No attempt counts that got further, so one that fails may follow each of the ten that succeed.
    path = fetch(tmp_path, server, retries=0)
    assert path.read_bytes() == CONTENT
    assert len(server.asked) >= 10
    assert [asked.status for asked in server.asked] == [200] + [206] * (len(server.asked) - 1)
    if not reset:
        assert [asked.begin for asked in server.asked] == list(range(0, len(CONTENT), 70_000))
        assert server.sent == len(CONTENT)


def test_a_server_that_sends_ranges_in_small_pieces_is_asked_again(tmp_path, serve):
    server = serve(CONTENT, Answer(drop_after=1000), Answer(most=150_000))
    assert fetch(tmp_path, server, retries=0).read_bytes() == CONTENT


def test_a_silent_server_counts_as_a_lost_connection(tmp_path, serve):
    server = serve(CONTENT, Answer(drop_after=300_000, hang=True), Answer())
    assert fetch(tmp_path, server, timeout=0.3).read_bytes() == CONTENT
    # What was received of the piece in hand is lost with a silent connection, and no more than that.
    assert 300_000 - 64 * 1024 <= server.asked[1].begin <= 300_000


def test_a_slow_server_is_waited_for(tmp_path, serve):
    server = serve(CONTENT, Answer(pause=0.01))
    assert fetch(tmp_path, server, timeout=0.3).read_bytes() == CONTENT
    assert len(server.asked) == 1


def test_a_length_that_is_not_told_is_none_and_a_break_continues_all_the_same(tmp_path, serve):
    server = serve(CONTENT, Answer(framing="chunked", drop_after=300_000), Answer())
    totals: list[int | None] = []
    path = fetch(tmp_path, server, sha256=None, on_progress=lambda _, total: totals.append(total))
    assert path.read_bytes() == CONTENT
    assert totals[0] is None
    assert totals[-1] == len(CONTENT)
    assert server.asked[1].begin == 300_000


def test_a_body_that_ends_with_its_connection_is_taken_only_where_a_hash_tells_it_is_whole(tmp_path, serve):
    server = serve(CONTENT, Answer(framing="close"))
    with pytest.raises(FetchError, match="does not say how long the file is"):
        fetch(tmp_path, server, sha256=None)
    assert fetch(tmp_path, server).read_bytes() == CONTENT


def test_an_archive_that_is_there_and_right_is_not_downloaded_again(tmp_path, serve):
    server = serve(CONTENT)
    first = fetch(tmp_path, server)
    assert fetch(tmp_path, server) == first
    assert fetch(tmp_path, server, sha256=None) == first
    assert len(server.asked) == 1


def test_an_archive_put_there_by_hand_is_reused_and_the_part_beside_it_goes(tmp_path, serve):
    server = serve(CONTENT)
    cut_short(tmp_path, url=server.url)
    (tmp_path / NAME).write_bytes(CONTENT)
    assert fetch(tmp_path, server).read_bytes() == CONTENT
    assert server.asked == []
    assert names(tmp_path) == {NAME, ".fetch.lock"}


@pytest.mark.parametrize("there", [CONTENT[:-1] + b"x", CONTENT[:-1], PAGE], ids=["damaged", "cut", "page"])
def test_an_archive_that_is_there_and_wrong_is_replaced(tmp_path, serve, there):
    server = serve(CONTENT)
    (tmp_path / NAME).write_bytes(there)
    assert fetch(tmp_path, server).read_bytes() == CONTENT


def test_without_a_hash_an_archive_is_reused_only_as_it_came_from_the_same_url(tmp_path, serve):
    server, elsewhere = serve(CONTENT), serve(OTHER)
    path = fetch(tmp_path, server, sha256=None)
    path.write_bytes(CONTENT[:-1] + b"x")
    assert fetch(tmp_path, server, sha256=None).read_bytes() == CONTENT
    assert len(server.asked) == 2
    assert fetch(tmp_path, elsewhere, sha256=None).read_bytes() == OTHER


def test_a_failed_download_leaves_what_stood_under_the_final_name(tmp_path, serve):
    (tmp_path / NAME).write_bytes(OTHER)
    with pytest.raises(FetchError, match="404"):
        fetch(tmp_path, serve(CONTENT, Answer(page=PAGE, status=404)))
    assert (tmp_path / NAME).read_bytes() == OTHER


# ---- continuing an earlier run -------------------------------------------------------------------


def test_a_rerun_continues_after_a_connection_lost_for_good(tmp_path, serve):
    server = serve(CONTENT, Answer(drop_after=300_000), Answer(mute=True))
    with pytest.raises(FetchError) as caught:
        fetch(tmp_path, server, retries=2)
    message = str(caught.value)
    assert "gave up after 3 attempts" in message
    assert f"300,000 of 700,001 bytes are kept in {tmp_path / NAME}.part" in message
    assert "run the same command again and it continues there" in message
    assert names(tmp_path) == {f"{NAME}.part", f"{NAME}.part.json", ".fetch.lock"}

    server.answers = [Answer()]
    seen: list[int] = []
    assert fetch(tmp_path, server, on_progress=lambda now, _: seen.append(now)).read_bytes() == CONTENT
    assert server.asked[-1].begin == 300_000
    assert server.asked[-1].sent == 400_001
    assert seen[0] == 300_000
    assert names(tmp_path) == KEPT


VERSIONS = {
    "strong ETag": Answer(last_modified=""),
    "Last-Modified": Answer(etag=""),
    "weak ETag and Last-Modified": Answer(etag='W/"1"'),
    "weak ETag": Answer(etag='W/"1"', last_modified=""),
    "none": Answer(etag="", last_modified=""),
    "Last-Modified of this very second": Answer(
        etag="",
        last_modified="Thu, 01 Oct 2020 12:00:00 GMT",
        headers={"Date": "Thu, 01 Oct 2020 12:00:00 GMT"},
    ),
}


@pytest.mark.parametrize("kind", VERSIONS)
def test_only_a_strong_validator_is_continued_from(tmp_path, serve, kind):
    strong = kind in ("strong ETag", "Last-Modified", "weak ETag and Last-Modified")
    answer = VERSIONS[kind]
    server = serve(CONTENT, replace(answer, drop_after=300_000), Answer(mute=True))
    with pytest.raises(FetchError, match="it continues there" if strong else "a rerun starts over"):
        fetch(tmp_path, server, retries=0)
    server.answers = [answer]
    assert fetch(tmp_path, server).read_bytes() == CONTENT
    assert server.asked[-1].status == (206 if strong else 200)
    assert ("if-range" in server.asked[-1].headers) == strong


@pytest.mark.parametrize("new", [OTHER, CONTENT[::-1]], ids=["shorter", "of the same length"])
@pytest.mark.parametrize("sha_known", [True, False], ids=["hash", "no hash"])
@pytest.mark.parametrize("validator", ["etag", "last_modified"])
@pytest.mark.parametrize(
    "now",
    [
        Answer(),
        Answer(heed_if_range=False),
        Answer(ranges=False),
        Answer(heed_if_range=False, etag="", last_modified=""),
    ],
    ids=["good server", "If-Range ignored", "ranges ignored", "no validator any more"],
)
def test_a_part_is_never_continued_with_another_version_of_the_file(
    tmp_path, serve, now, validator, sha_known, new
):
    other_validator = "last_modified" if validator == "etag" else "etag"
    before = replace(Answer(drop_after=300_000), **{other_validator: ""})
    server = serve(CONTENT, before, Answer(mute=True))
    with pytest.raises(FetchError, match="it continues there"):
        fetch(tmp_path, server, retries=0)
    server.answers = [replace(now, content=new)]
    path = fetch(tmp_path, server, sha256=sha256(new) if sha_known else None)
    assert path.read_bytes() == new


def test_a_file_that_changes_between_the_attempts_of_one_run_is_taken_whole(tmp_path, serve):
    server = serve(
        CONTENT, Answer(drop_after=300_000), Answer(content=OTHER, drop_after=200_000), Answer(drop_after=1)
    )
    server.answers.append(Answer())
    assert fetch(tmp_path, server, sha256=None).read_bytes() == OTHER


def test_a_file_that_changes_with_every_attempt_ends_with_an_error(tmp_path, serve):
    versions = [Answer(content=bytes([n]) * 500_000, drop_after=300_000) for n in range(9)]
    with pytest.raises(FetchError, match="gave up after 4 attempts"):
        fetch(tmp_path, serve(CONTENT, *versions), sha256=None, retries=3)
    assert NAME not in names(tmp_path)


def test_a_file_that_became_shorter_than_the_part_is_taken_from_its_beginning(tmp_path, serve):
    short = OTHER[:1000]
    server = serve(short, Answer(heed_if_range=False))
    cut_short(tmp_path, url=server.url)
    assert fetch(tmp_path, server, sha256=None).read_bytes() == short
    assert [asked.status for asked in server.asked] == [416, 200]


def test_a_part_that_is_complete_needs_no_request(tmp_path, serve):
    server = serve(CONTENT)
    cut_short(tmp_path, after=len(CONTENT), url=server.url)
    assert fetch(tmp_path, server).read_bytes() == CONTENT
    assert server.asked == []


@pytest.mark.parametrize("after", [300_000, len(CONTENT)], ids=["part", "complete"])
def test_a_part_damaged_on_disk_costs_a_second_download_and_no_error(tmp_path, serve, after):
    server = serve(CONTENT)
    cut_short(tmp_path, after=after, url=server.url)
    with (tmp_path / f"{NAME}.part").open("r+b") as part:
        part.seek(1000)
        part.write(bytes(5000))
    assert fetch(tmp_path, server).read_bytes() == CONTENT
    assert server.asked[-1].begin == 0


@pytest.mark.parametrize(
    "note",
    [b"", b"{", b"[]", b'{"url": 1}', None],
    ids=["empty", "half", "list", "other keys", "missing"],
)
def test_a_part_whose_version_is_unknown_is_dropped(tmp_path, serve, note):
    server = serve(CONTENT)
    cut_short(tmp_path, url=server.url)
    (tmp_path / f"{NAME}.part.json").unlink()
    if note is not None:
        (tmp_path / f"{NAME}.part.json").write_bytes(note)
    assert fetch(tmp_path, server).read_bytes() == CONTENT
    assert server.asked[0].begin == 0


def test_a_part_of_another_url_or_longer_than_the_file_is_dropped(tmp_path, serve):
    server = serve(CONTENT)
    cut_short(tmp_path / "url", url="http://127.0.0.1/studies.tar.bz2")
    cut_short(tmp_path / "longer", CONTENT, url=server.url)
    with (tmp_path / "longer" / f"{NAME}.part").open("ab") as part:
        part.write(bytes(len(CONTENT)))
    for folder in ("url", "longer"):
        assert fetch(tmp_path / folder, server).read_bytes() == CONTENT
    assert [asked.begin for asked in server.asked] == [0, 0]


# ---- servers that send something else ------------------------------------------------------------


def test_a_wrong_file_is_refused_with_both_sizes_and_hashes_and_nothing_is_kept(tmp_path, serve):
    with pytest.raises(FetchError) as caught:
        fetch(tmp_path, serve(OTHER))
    message = str(caught.value)
    assert f"expected an archive with sha256 {sha256(CONTENT)}" in message
    assert f"received 650,000 bytes with sha256 {sha256(OTHER)}" in message
    assert names(tmp_path) == {".fetch.lock"}


def test_a_size_that_is_known_is_checked_before_the_download(tmp_path, serve):
    server = serve(OTHER)
    with pytest.raises(FetchError, match=r"archive of 700,001 bytes.*server announces 650,000 bytes"):
        fetch(tmp_path, server, size=len(CONTENT), sha256=None)
    assert names(tmp_path) == {".fetch.lock"}
    server.answers = [Answer(framing="chunked")]
    with pytest.raises(FetchError, match=r"archive of 700,001 bytes, received 650,000 bytes"):
        fetch(tmp_path, server, size=len(CONTENT), sha256=None)
    assert names(tmp_path) == {".fetch.lock"}
    assert fetch(tmp_path, serve(CONTENT), size=len(CONTENT), sha256=None).read_bytes() == CONTENT


@pytest.mark.parametrize("kind", ["text/html; charset=utf-8", "application/octet-stream", ""])
@pytest.mark.parametrize("sha_known", [True, False], ids=["hash", "no hash"])
def test_an_html_page_instead_of_the_archive_is_refused_and_keeps_the_part(tmp_path, serve, kind, sha_known):
    server = serve(CONTENT, Answer(page=PAGE, headers={"Content-Type": kind}))
    wanted = sha256(CONTENT) if sha_known else None
    with pytest.raises(FetchError) as caught:
        fetch(tmp_path / "fresh", server, sha256=wanted)
    message = str(caught.value)
    assert f"received an HTML page (status 200 OK, Content-Type {kind or 'not given'}" in message
    assert f"{len(PAGE):,} bytes with sha256 {sha256(PAGE)}" in message
    assert "Sign in to Hotel WiFi" in message
    if sha_known:
        assert f"expected an archive with sha256 {wanted}" in message
    assert names(tmp_path / "fresh") == {".fetch.lock"}

    cut_short(tmp_path / "part", url=server.url)
    with pytest.raises(FetchError, match="300,000 of 700,001 bytes are kept"):
        fetch(tmp_path / "part", server, sha256=wanted)
    server.answers = [Answer()]
    assert fetch(tmp_path / "part", server, sha256=wanted).read_bytes() == CONTENT
    assert server.asked[-1].begin == 300_000


def test_a_busy_server_is_asked_again_and_at_last_named(tmp_path, serve):
    busy = Answer(page=PAGE, status=503)
    server = serve(CONTENT, busy, busy, Answer())
    assert fetch(tmp_path / "a", server, retries=2).read_bytes() == CONTENT
    server = serve(CONTENT, busy)
    with pytest.raises(FetchError, match="503 Service Unavailable; gave up after 3 attempts"):
        fetch(tmp_path / "b", server, retries=2)
    assert len(server.asked) == 3
    assert names(tmp_path / "b") == {".fetch.lock"}


def test_waits_grow_with_each_attempt_without_progress(tmp_path, serve):
    begin = time.monotonic()
    fetch(tmp_path, serve(CONTENT, *[Answer(page=PAGE, status=503)] * 3, Answer()), wait=0.05)
    assert time.monotonic() - begin >= 0.05 + 0.1 + 0.2


def test_a_busy_server_is_left_alone_as_long_as_it_asks_for(tmp_path, serve):
    begin = time.monotonic()
    fetch(tmp_path, serve(CONTENT, Answer(page=PAGE, status=429, headers={"Retry-After": "1"}), Answer()))
    assert time.monotonic() - begin >= 1


@pytest.mark.parametrize("status", [401, 403, 404, 410, 204])
def test_a_refusal_is_not_asked_again(tmp_path, serve, status):
    server = serve(CONTENT, Answer(page=b"" if status == 204 else PAGE, status=status))
    with pytest.raises(FetchError, match=f"expected an archive.*the server answered {status} "):
        fetch(tmp_path, server)
    assert len(server.asked) == 1
    assert names(tmp_path) == {".fetch.lock"}


@pytest.mark.parametrize("ranges", [True, False], ids=["ranges", "no ranges"])
def test_a_length_announced_too_large_is_noticed(tmp_path, serve, ranges):
    server = serve(CONTENT, Answer(lie=1000, drop_after=len(CONTENT), ranges=ranges))
    with pytest.raises(
        FetchError, match=r"announced 701,001 bytes, received 700,001|of 701,001 bytes are kept"
    ):
        fetch(tmp_path, server, sha256=None, retries=2)
    assert NAME not in names(tmp_path)
    # One that got further, then the first try and two retries that did not.
    assert len(server.asked) == (2 if ranges else 4)


def test_a_hash_that_is_right_outweighs_a_length_announced_too_large(tmp_path, serve):
    server = serve(CONTENT, Answer(lie=1000, drop_after=len(CONTENT)))
    assert fetch(tmp_path, server).read_bytes() == CONTENT
    assert [asked.status for asked in server.asked] == [200, 416]


def test_half_of_an_older_file_is_not_taken_for_a_new_one_of_just_that_length(tmp_path, serve):
    dropped = Answer(framing="chunked", drop_after=300_000)
    server = serve(CONTENT, dropped, Answer(content=OTHER[:300_000], heed_if_range=False))
    assert fetch(tmp_path, server, sha256=None).read_bytes() == OTHER[:300_000]
    assert [asked.status for asked in server.asked] == [200, 416, 200]


def test_a_length_announced_too_small_is_noticed(tmp_path, serve):
    server = serve(CONTENT, Answer(lie=-1000))
    with pytest.raises(FetchError, match=f"expected .*{sha256(CONTENT)}.*received 699,001 bytes"):
        fetch(tmp_path, server)
    with pytest.raises(FetchError, match=r"of 700,001 bytes, the server announces 699,001 bytes"):
        fetch(tmp_path, server, sha256=None, size=len(CONTENT))
    assert names(tmp_path) == {".fetch.lock"}


def test_a_range_that_brings_more_than_it_announced_is_refused(tmp_path, serve):
    server = serve(CONTENT, Answer(surplus=500))
    cut_short(tmp_path, url=server.url)
    with pytest.raises(
        FetchError, match=r"announced 700,001 bytes, but sent 700,501; nothing of it was kept"
    ):
        fetch(tmp_path, server)
    assert names(tmp_path) == {".fetch.lock"}


def test_an_answer_without_end_is_cut_off(tmp_path, serve):
    server = serve(CONTENT, Answer(surplus=100_000_000, framing="chunked"))
    cut_short(tmp_path, url=server.url)
    with pytest.raises(FetchError, match=r"announced 700,001 bytes, but sent 7\d\d,\d\d\d; nothing of it"):
        fetch(tmp_path, server)
    assert server.sent < 50_000_000


def test_a_body_compressed_on_the_way_is_refused_but_a_label_of_the_file_itself_is_not(tmp_path, serve):
    gzipped = Answer(headers={"Content-Encoding": "gzip"})
    with pytest.raises(FetchError, match="Content-Encoding gzip; is there a proxy"):
        fetch(tmp_path, serve(CONTENT, gzipped))
    assert names(tmp_path) == {".fetch.lock"}
    server = serve(CONTENT, gzipped)
    path = fetch(tmp_path, server, url=server.url.replace(".bz2", ".gz"))
    assert path.name == "studies.tar.gz"
    assert path.read_bytes() == CONTENT


# ---- no connection -------------------------------------------------------------------------------


def refused() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/{NAME}"


@pytest.mark.parametrize("where", ["refused", "unknown host"])
def test_offline_is_said_at_once_with_the_two_ways_on(tmp_path, where):
    url = refused() if where == "refused" else f"http://no-such-host.invalid/{NAME}"
    cut_short(tmp_path / "part", url=url)
    for folder in ("fresh", "part"):
        with pytest.raises(FetchError) as caught:
            fetch_archive(tmp_path / folder, url=url, wait=60.0)
        message = str(caught.value)
        assert "offline, or the server cannot be reached" in message
        if where == "refused":
            assert "Connection refused" in message
        assert "batchscience fetch --url FILE" in message
        assert "batchscience figures --source published" in message
        assert ("300,000 of 700,001 bytes are kept" in message) == (folder == "part")
    assert (tmp_path / "part" / f"{NAME}.part").read_bytes() == CONTENT[:300_000]
    assert names(tmp_path / "fresh") == {".fetch.lock"}


def test_a_network_that_goes_away_during_the_download_is_a_lost_connection(tmp_path):
    with ArchiveServer(CONTENT, [Answer(drop_after=300_000, pause=0.001)]) as server:
        url = server.url

        def unplug(received: int, total: int | None) -> None:
            if received > 100_000:
                server.__exit__()

        with pytest.raises(FetchError) as caught:
            fetch_archive(tmp_path, url=url, sha256=None, wait=0.0, on_progress=unplug, retries=1)
    assert "Connection refused; gave up after 2 attempts" in str(caught.value)
    assert "it continues there" in str(caught.value)


# ---- local files ---------------------------------------------------------------------------------


def test_a_local_archive_is_verified_and_used_where_it_lies(tmp_path, monkeypatch):
    mine = tmp_path / "my archive.tar.bz2"
    mine.write_bytes(CONTENT)
    folder = tmp_path / "data"
    for url in (
        str(mine),
        mine,
        mine.as_uri(),
        f"file:{mine.as_uri()[7:]}",
        f"FILE://localhost{mine.as_uri()[7:]}",
    ):
        assert fetch_archive(folder, url=url, sha256=sha256(CONTENT).upper(), size=len(CONTENT)) == mine
        assert fetch_archive(folder, url=url, sha256=None) == mine
    monkeypatch.setenv("HOME", str(tmp_path))
    assert fetch_archive(folder, url="~/my archive.tar.bz2", sha256=sha256(CONTENT)) == mine
    assert not folder.exists()


def test_a_local_file_that_is_not_the_archive_is_refused_and_left(tmp_path):
    mine = tmp_path / "mine.tar"
    mine.write_bytes(OTHER)
    with pytest.raises(FetchError) as caught:
        fetch_archive(tmp_path, url=mine)
    assert ARCHIVE_SHA256 in str(caught.value)
    assert f"found 650,000 bytes with sha256 {sha256(OTHER)}" in str(caught.value)
    with pytest.raises(FetchError, match="expected an archive of 3 bytes, found 650,000"):
        fetch_archive(tmp_path, url=mine, size=3, sha256=None)
    assert mine.read_bytes() == OTHER
    (tmp_path / "page").write_bytes(PAGE)
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    for name, why in {
        "page": "found an HTML page",
        "empty": "found an empty file",
        "pipe": "no regular file",
        "missing": "found nothing",
        ".": "batchscience ingest",
    }.items():
        with pytest.raises(FetchError, match=why):
            fetch_archive(tmp_path, url=tmp_path / name, sha256=None)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://example.org/a.tar", "got the scheme 'ftp'"),
        ("file://elsewhere/a.tar", "not of 'elsewhere'"),
        ("http://[::1/a.tar", "no URL"),
        ("http:///a.tar", "expected a URL that leads to an archive"),
    ],
)
def test_what_is_no_source_is_refused(tmp_path, url, why):
    with pytest.raises(FetchError, match=why):
        fetch_archive(tmp_path, url=url)


@pytest.mark.parametrize(
    "wrong",
    [{"sha256": "abc"}, {"sha256": "g" * 64}, {"size": 0}, {"retries": -1}, {"wait": -1.0}, {"timeout": 0.0}],
    ids=str,
)
def test_a_slip_of_the_caller_is_a_value_error(tmp_path, wrong):
    with pytest.raises(ValueError, match="got"):
        fetch_archive(tmp_path, **wrong)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/a/b.tar.bz2?version=3#top", "b.tar.bz2"),
        ("/", "archive"),
        ("/..%2F..%2Fetc%2Fpasswd", "passwd"),
        ("/..", "archive"),
        ("/%2e%2e%00x", "_x"),
        ("/.hidden", "hidden"),
        ("/my%20study.tar", "my_study.tar"),
        ("/" + "x" * 300 + ".tar", "x" * 196 + ".tar"),
    ],
)
def test_the_name_in_the_folder_comes_from_the_url_and_cannot_leave_the_folder(tmp_path, serve, path, name):
    server = serve(CONTENT)
    found = fetch(tmp_path / "folder", server, url=server.url.removesuffix(f"/{NAME}") + path)
    assert found == tmp_path / "folder" / name
    assert found.read_bytes() == CONTENT


def test_passwords_and_signatures_in_a_url_are_neither_written_nor_shown(tmp_path, serve):
    server = serve(CONTENT, Answer(drop_after=1000), Answer(mute=True))
    url = server.url.replace("//", "//me:hunter2@") + "?signature=hunter2"
    with pytest.raises(FetchError) as caught:
        fetch(tmp_path, server, url=url, retries=0)
    assert "hunter2" not in str(caught.value)
    assert server.asked[0].headers["authorization"].startswith("Basic ")
    server.answers = [Answer()]
    fetch(tmp_path, server, url=url)
    for path in tmp_path.iterdir():
        assert b"hunter2" not in path.read_bytes()


# ---- the disk ------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small file system needs root")
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_an_archive_that_cannot_fit_is_refused_before_its_download(small_disk, serve):
    big = CONTENT + CONTENT
    free = shutil.disk_usage(small_disk).free
    with pytest.raises(FetchError) as caught:
        fetch(small_disk, serve(big), sha256=sha256(big))
    assert f"{small_disk}: not enough room for {NAME}: 1,400,002 more bytes are needed" in str(caught.value)
    assert shutil.disk_usage(small_disk).free > free - 50_000
    assert NAME not in names(small_disk)


def test_a_disk_that_fills_up_keeps_the_part_and_a_rerun_continues(small_disk, serve):
    filler = small_disk / "filler"

    def fill(received: int, total: int | None) -> None:
        if received > 200_000 and not filler.exists():
            filler.write_bytes(bytes(shutil.disk_usage(small_disk).free - 100_000))

    server = serve(CONTENT)
    with pytest.raises(FetchError) as caught:
        fetch(small_disk, server, on_progress=fill)
    there = (small_disk / f"{NAME}.part").stat().st_size
    assert 200_000 < there < len(CONTENT)
    message = str(caught.value)
    assert f"{small_disk}: No space left on device for {NAME}: {len(CONTENT) - there:,} more bytes" in message
    assert "are needed, 0 bytes are free" in message
    assert f"{there:,} of 700,001 bytes are kept" in message
    assert "run the same command again and it continues there" in message
    assert NAME not in names(small_disk)

    with pytest.raises(FetchError, match="not enough room"):
        fetch(small_disk, server)
    assert (small_disk / f"{NAME}.part").stat().st_size == there
    filler.unlink()
    assert fetch(small_disk, server).read_bytes() == CONTENT
    assert server.asked[-1].begin == there


def test_a_disk_full_from_the_start_is_named(small_disk, serve):
    filler = small_disk / "filler"
    filler.write_bytes(bytes(shutil.disk_usage(small_disk).free))
    with pytest.raises(
        FetchError, match=r"No space left on device for .*700,001 more bytes are needed, 0 bytes"
    ):
        fetch(small_disk, serve(CONTENT))
    filler.unlink()
    assert fetch(small_disk, serve(CONTENT)).read_bytes() == CONTENT


def test_an_archive_on_a_disk_that_cannot_be_written_to_is_used_and_a_missing_one_is_said(small_disk, serve):
    server = serve(CONTENT)
    fetch(small_disk, server)
    (small_disk / ".fetch.lock").unlink()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert fetch(small_disk, server).read_bytes() == CONTENT
    with pytest.raises(FetchError, match="Read-only file system; fetching needs a folder it can write to"):
        fetch(small_disk, server, url=server.url + "2")


ALONE = "import sys; from batchscience.fetch import fetch_archive\n"
FETCH = "fetch_archive(sys.argv[1], url=sys.argv[2], sha256=sys.argv[3] or None, wait=0.0)\n"


def alone(code: str, folder: Path, server: ArchiveServer, **options: object) -> subprocess.Popen[str]:
    """Run a fetch in a process of its own."""
    command = [sys.executable, "-W", "error", "-c", ALONE + code, str(folder), server.url, sha256(CONTENT)]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def test_a_limit_on_the_size_of_files_keeps_the_part_and_a_rerun_continues(tmp_path, serve):
    """A full disk that needs no mount: the system refuses every byte beyond the limit."""
    code = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (250_000, 250_000))\n" + FETCH
    server = serve(CONTENT)
    with alone(code, tmp_path, server) as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "File too large (see 'ulimit -f', or the file system's limit)" in errors
    assert f"FetchError: {tmp_path}" in errors
    assert "450,001 more bytes are needed" in errors
    assert "250,000 of 700,001 bytes are kept" in errors
    assert NAME not in names(tmp_path)
    assert fetch(tmp_path, server).read_bytes() == CONTENT
    assert server.asked[-1].begin == 250_000


def test_a_folder_that_cannot_be_made_or_an_archive_that_is_a_folder_is_named(tmp_path, serve):
    (tmp_path / "file").touch()
    with pytest.raises(FetchError, match=r"file/data: cannot be made \(Not a directory\)"):
        fetch(tmp_path / "file" / "data", serve(CONTENT))
    (tmp_path / NAME).mkdir()
    with pytest.raises(FetchError, match="no regular file"):
        fetch(tmp_path, serve(CONTENT))


# ---- two processes, and processes that die -------------------------------------------------------


def test_a_second_fetch_says_who_holds_the_folder_and_a_killed_holder_holds_nothing(tmp_path, serve):
    server = serve(CONTENT, Answer(drop_after=200_000, hang=True), Answer())
    with alone(FETCH, tmp_path, server) as first:
        server.wait_until(lambda: server.sent == 200_000)
        with pytest.raises(
            FetchError, match=rf"process {first.pid} on .* is fetching into this folder; wait"
        ):
            fetch(tmp_path, server)
        first.kill()
        first.communicate()
    assert str(first.pid) in (tmp_path / ".fetch.lock").read_text()
    assert fetch(tmp_path, server).read_bytes() == CONTENT
    assert (tmp_path / ".fetch.lock").read_text() == ""


def test_kill_9_at_ten_random_moments_and_a_rerun_give_the_right_bytes(tmp_path, serve):
    moments = random.Random(9)
    continued = 0
    for n in range(10):
        moment = moments.randrange(len(CONTENT))
        # Silent from there on, so that the process is killed within the download however busy the machine.
        server = serve(CONTENT, Answer(pause=0.002, drop_after=moment, hang=True), Answer())
        with alone(FETCH, tmp_path / str(n), server) as process:
            server.wait_until(lambda: server.sent >= moment)  # noqa: B023 (called within the loop)
            time.sleep(moments.uniform(0, 0.02))
            process.kill()
            process.communicate()
        assert process.returncode == -9
        assert not (tmp_path / str(n) / NAME).exists()
        assert fetch(tmp_path / str(n), server).read_bytes() == CONTENT
        assert names(tmp_path / str(n)) == KEPT
        continued += server.asked[-1].begin > 0
    assert continued > 0


KILLED_AT_EACH_STEP = """
import itertools, os, pathlib, signal
base, url, sha256 = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.truncate", "fcntl.flock"}

def fetch(folder, on_progress=None):
    return fetch_archive(folder, url=url, sha256=sha256, wait=0.0, on_progress=on_progress)

def step():
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

def watch(event, arguments):
    if event in EVENTS and (isinstance(arguments[0], int) or str(base) in str(arguments[0])):
        step()

for moment in itertools.count(1):
    folder = base / str(moment)
    child = os.fork()
    if child == 0:
        left = moment
        try:
            sys.addaudithook(watch)
            fetch(folder, on_progress=lambda *_: step())
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == 0:
        break
    assert status == -signal.SIGKILL, status
    fetch(folder)
print(moment - 1)
"""


def test_kill_9_before_each_touch_of_the_disk_and_each_piece_received(in_memory, serve):
    server = serve(CONTENT)
    with alone(KILLED_AT_EACH_STEP, in_memory, server) as process:
        output, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    # Making the folder, lock, note and part, a dozen pieces, note and final name: each was a death once.
    kills = int(output)
    assert kills > 20
    for moment in range(1, kills + 1):
        assert (in_memory / str(moment) / NAME).read_bytes() == CONTENT
        assert names(in_memory / str(moment)) == KEPT


# ---- any faults in any order ---------------------------------------------------------------------

files = (CONTENT[:150_000], OTHER[:140_000], OTHER[:150_000])
faults = st.builds(
    Answer,
    etag=st.sampled_from([None, None, "", 'W/"weak"']),
    last_modified=st.sampled_from([None, ""]),
    ranges=st.booleans(),
    heed_if_range=st.booleans(),
    most=st.sampled_from([None, 10_000]),
    drop_after=st.sampled_from([None, 0, 20_000, 65_536, 139_999, 140_000]),
    mute=st.sampled_from([False, False, False, True]),
    framing=st.sampled_from(["length", "length", "chunked"]),
    page=st.sampled_from([None, None, None, b"<html>busy"]),
    status=st.sampled_from([503, 200, 404]),
)
# An answer, and which of the files stands on the server from then on (None: the same as before).
events = st.tuples(faults, st.sampled_from([None, None, None, 0, 1, 2]))


@given(
    runs=st.lists(st.lists(events, min_size=1, max_size=4), min_size=1, max_size=3),
    sha_known=st.booleans(),
)
def test_whatever_a_server_does_the_archive_is_one_version_whole_or_not_there(runs, sha_known):
    wanted = sha256(files[0]) if sha_known else None
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder, ArchiveServer(files[0]) as server:
        final = Path(folder) / NAME
        for run in runs:
            server.answers = [replace(answer, content=n if n is None else files[n]) for answer, n in run]
            try:
                assert fetch(Path(folder), server, sha256=wanted, retries=2) == final
            except FetchError:
                assert not final.exists()
            else:
                assert final.read_bytes() in (files[:1] if sha_known else files)
                return
        server.answers = [Answer(content=files[0])]
        assert fetch(Path(folder), server, sha256=wanted).read_bytes() == files[0]
