"""Reading archives front to back: the same files as the standard library finds, and hostile ones refused."""

import bz2
import gzip
import io
import os
import random
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from batchscience import archive
from batchscience.errors import ArchiveRefused, LayoutError

from .raw import write_files, write_tar

FILES = {
    "a/one.csv": b"x" * 511,
    "a/two.csv": b"y" * 512,
    "a/three.csv": b"",
    "b/" + "long" * 40 + "/four.csv": b"z" * 5_000_000,
    "ünï/five.csv": b"5",
}


def read(path: Path) -> dict[str, bytes]:
    return dict(archive.files(path, wanted=lambda name: name.endswith(".csv")))


def members(*infos: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for info, content in infos:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


@pytest.mark.parametrize("suffix", [".tar", ".tar.bz2", ".tar.gz", ".tar.xz"])
def test_every_compression_gives_the_same_files(tmp_path: Path, suffix: str) -> None:
    path = write_tar(tmp_path / f"a{suffix}", FILES, root="")
    assert read(path) == FILES


def test_zstd_gives_the_same_files(tmp_path: Path) -> None:
    plain = write_tar(tmp_path / "a.tar", FILES, root="")
    (tmp_path / "a.tar.zst").write_bytes(zstandard.compress(plain.read_bytes()))
    assert read(tmp_path / "a.tar.zst") == FILES


def test_a_damaged_zstd_is_refused(tmp_path: Path) -> None:
    plain = write_tar(tmp_path / "a.tar", FILES, root="")
    whole = zstandard.compress(plain.read_bytes())
    for damaged in (whole[:4] + b"\xff" * 20 + whole[24:], whole + b"garbage" * 300):
        (tmp_path / "a.tar.zst").write_bytes(damaged)
        with pytest.raises(LayoutError, match="cannot be decompressed"):
            read(tmp_path / "a.tar.zst")


def test_a_folder_gives_the_same_files_in_order_of_their_names(tmp_path: Path) -> None:
    write_files(tmp_path, FILES)
    found = list(archive.files(tmp_path, wanted=lambda name: name.endswith(".csv")))
    assert dict(found) == FILES


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_tar_format_with_long_names_is_read(tmp_path: Path, form: int) -> None:
    files = {f"{'d' * 90}/{'e' * 90}/{i}.csv": str(i).encode() for i in range(3)}
    with tarfile.open(tmp_path / "a.tar", "w", format=form) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    assert read(tmp_path / "a.tar") == files


@pytest.mark.skipif(not Path("/bin/tar").exists(), reason="no tar program to make the archive")
def test_what_the_tar_program_writes_is_read(tmp_path: Path) -> None:
    write_files(tmp_path / "in", FILES)
    subprocess.run(["tar", "-cjf", tmp_path / "a.tar.bz2", "-C", tmp_path / "in", "."], check=True)
    assert {
        name.removeprefix("./"): content for name, content in read(tmp_path / "a.tar.bz2").items()
    } == FILES


@pytest.fixture(params=["lbzip2", "indexed_bzip2", "bz2"])
def bzip2_reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each way to read bzip2, by taking away the better ones."""
    if request.param == "lbzip2" and shutil.which("lbzip2") is None:
        pytest.skip("lbzip2 is not installed")
    if request.param != "lbzip2":
        monkeypatch.setenv("PATH", "")
    if request.param == "bz2":
        monkeypatch.setitem(sys.modules, "indexed_bzip2", None)
    return str(request.param)


def test_every_reader_of_bzip2_gives_the_same_files(tmp_path: Path, bzip2_reader: str) -> None:
    path = write_tar(tmp_path / "a.tar.bz2", FILES, root="")
    assert read(path) == FILES
    # Left in the middle, the reader ends with its threads and processes.
    reading = archive.files(path, wanted=lambda _: True)
    next(iter(reading))
    reading.close()  # type: ignore[attr-defined]
    assert not [thread.name for thread in threading.enumerate() if thread.name == "decompress"]


@pytest.mark.parametrize(
    "after", [bytes(3000), b"garbage" * 300, b"\n"], ids=["zeros", "garbage", "a newline"]
)
def test_every_reader_of_bzip2_reads_all_streams_and_passes_over_what_is_none(
    tmp_path: Path, bzip2_reader: str, after: bytes
) -> None:
    plain = write_tar(tmp_path / "a.tar", FILES, root="").read_bytes()
    streams = b"".join(bz2.compress(plain[at : at + 700_000]) for at in range(0, len(plain), 700_000))
    (tmp_path / "a.tar.bz2").write_bytes(streams + after)
    assert read(tmp_path / "a.tar.bz2") == FILES


def test_every_reader_of_bzip2_notices_damage(tmp_path: Path, bzip2_reader: str) -> None:
    rng = random.Random(0)
    files = {f"{i}.csv": rng.randbytes(30_000) for i in range(60)}
    whole = bytearray(write_tar(tmp_path / "a.tar.bz2", files, root="").read_bytes())
    for at in (len(whole) // 2, len(whole) - 30, 200):
        damaged = bytearray(whole)
        damaged[at] ^= 0x10
        (tmp_path / "a.tar.bz2").write_bytes(damaged)
        with pytest.raises(LayoutError, match=r"cannot be decompressed|cut short"):
            read(tmp_path / "a.tar.bz2")
    (tmp_path / "a.tar.bz2").write_bytes(whole[: len(whole) // 3])
    with pytest.raises(LayoutError, match=r"cannot be decompressed|cut short"):
        read(tmp_path / "a.tar.bz2")


def test_unwanted_files_are_passed_over(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", FILES, root="")
    assert dict(archive.files(path, wanted=lambda name: name == "a/two.csv")) == {"a/two.csv": b"y" * 512}


def test_progress_ends_at_the_size_of_the_archive(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar.bz2", {f"{i}.csv": os.urandom(400_000) for i in range(30)}, root="")
    seen: list[tuple[int, int]] = []
    for _ in archive.files(path, wanted=lambda _: True, on_progress=lambda *at: seen.append(at)):
        pass
    assert seen[-1] == (path.stat().st_size, path.stat().st_size)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def link(kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo("a/b/c/8/1/measurements.csv")
    info.type = kind
    info.linkname = "/etc/passwd"
    return info


@pytest.mark.parametrize(
    ("info", "message"),
    [
        (tarfile.TarInfo("a/../../etc/1.csv"), "leads out of the archive"),
        (tarfile.TarInfo("../1.csv"), "leads out of the archive"),
        (tarfile.TarInfo("/etc/1.csv"), "leads out of the archive"),
        (tarfile.TarInfo("a\\..\\1.csv"), "leads out of the archive"),
        (tarfile.TarInfo("n/" * 3000 + "1.csv"), "a name of 6005 characters"),
        (link(tarfile.SYMTYPE), "is a symbolic link"),
        (link(tarfile.LNKTYPE), "is a hard link"),
        (link(tarfile.CHRTYPE), "is a device"),
        (link(tarfile.BLKTYPE), "is a device"),
        (link(tarfile.FIFOTYPE), "is a pipe"),
        (link(b"S"), "of type 'S'"),
    ],
    ids=lambda value: str(getattr(value, "name", value))[:30],
)
def test_hostile_members_are_refused_by_name(tmp_path: Path, info: tarfile.TarInfo, message: str) -> None:
    (tmp_path / "a.tar").write_bytes(members((tarfile.TarInfo("fine.csv"), b"1"), (info, b"")))
    with pytest.raises(ArchiveRefused, match=message) as caught:
        read(tmp_path / "a.tar")
    assert info.name[:20].encode("unicode_escape").decode() in str(caught.value)


def test_a_member_of_a_terabyte_is_refused_before_it_is_read(tmp_path: Path) -> None:
    info = tarfile.TarInfo("a/huge.csv")
    info.size = 10**12
    (tmp_path / "a.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT))
    with pytest.raises(ArchiveRefused, match=r"'a/huge.csv': 1,000,000,000,000 bytes"):
        read(tmp_path / "a.tar")
    (tmp_path / "b.tar").write_bytes(info.tobuf(tarfile.PAX_FORMAT))
    with pytest.raises(ArchiveRefused, match=r"1,000,000,000,000 bytes|over 8 GB"):
        read(tmp_path / "b.tar")


def test_a_symbolic_link_in_a_folder_is_refused(tmp_path: Path) -> None:
    write_files(tmp_path, {"a/1.csv": b"1"})
    (tmp_path / "a" / "2.csv").symlink_to("/etc/passwd")
    with pytest.raises(ArchiveRefused, match=r"2\.csv: is a symbolic link"):
        read(tmp_path)


@pytest.mark.parametrize("suffix", [".tar", ".tar.bz2", ".tar.gz", ".tar.xz"])
def test_an_archive_cut_short_anywhere_is_never_taken_for_whole(tmp_path: Path, suffix: str) -> None:
    rng = random.Random(0)
    files = {f"{i}.csv": rng.randbytes(3000) for i in range(40)}
    whole = write_tar(tmp_path / f"a{suffix}", files, root="").read_bytes()
    # The padding behind the end marker of an uncompressed tar is the only part that may be missing.
    needed = len(whole) if suffix != ".tar" else 40 * (512 + 3072) + 512
    for length in [1, 511, 512, 1024, *rng.sample(range(1025, needed), 25), needed - 1]:
        (tmp_path / "cut").write_bytes(whole[:length])
        with pytest.raises(LayoutError, match=r"cut short|cannot be decompressed|expected a tar"):
            read(tmp_path / "cut")


def test_a_flipped_byte_in_a_header_is_noticed(tmp_path: Path) -> None:
    whole = bytearray(write_tar(tmp_path / "a.tar", FILES, root="").read_bytes())
    whole[3] ^= 1
    (tmp_path / "a.tar").write_bytes(whole)
    with pytest.raises(LayoutError, match="not a tar header after 512 bytes"):
        read(tmp_path / "a.tar")


@pytest.mark.parametrize(
    "content",
    [b"", b"<html>not found</html>" * 100, b"PK\x03\x04" + b"\0" * 600, gzip.compress(b"hello")],
    ids=["empty", "a web page", "zip", "gzip of something else"],
)
def test_what_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.tar.bz2").write_bytes(content)
    with pytest.raises(LayoutError, match=r"expected a tar|cut short|not a tar header"):
        read(tmp_path / "a.tar.bz2")


def test_a_missing_source_is_named(tmp_path: Path) -> None:
    with pytest.raises(LayoutError, match=r"nowhere: no such file or folder"):
        read(tmp_path / "nowhere")


def test_random_damage_raises_one_of_our_errors_or_reads_the_rest(tmp_path: Path) -> None:
    rng = random.Random(1)
    whole = write_tar(tmp_path / "a.tar", {f"{i}.csv": b"1" * 100 for i in range(5)}, root="").read_bytes()
    attempt: Callable[[], object] = lambda: read(tmp_path / "damaged")  # noqa: E731
    refused = 0
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        (tmp_path / "damaged").write_bytes(damaged)
        try:
            attempt()
        except LayoutError:
            refused += 1
    assert refused > 50
