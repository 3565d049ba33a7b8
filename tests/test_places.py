"""Tables in object stores: the same as on disk, and never half there."""

import socket
from pathlib import Path

import pytest

from batchscience import tables
from batchscience.errors import BatchScienceError, LayoutError, SourceConflict, StoreMissing
from batchscience.ingest import ingest
from batchscience.places import place
from batchscience.store import Store, load_workload

from .raw import CURVE, study_files, write_files, write_tar

WORKLOAD = "mnist/fc_1024/sgd"

# botocore and aiobotocore warn of their own deprecations.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:botocore"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:aiobotocore"),
]


def test_tables_at_a_url_are_those_on_disk(url: str, tmp_path: Path) -> None:
    source = write_tar(tmp_path / "a.tar.bz2", study_files({1: CURVE, 2: CURVE}))
    with pytest.raises(StoreMissing, match="no tables in"):
        Store(url)
    ingest(source, url)
    ingest(source, tmp_path / "disk")
    there, here = Store(url), Store(tmp_path / "disk")
    assert there.workloads() == here.workloads()
    assert there.trials().equals(here.trials())
    assert there.counts().equals(here.counts())
    assert load_workload(WORKLOAD, data=url).equals(load_workload(WORKLOAD, data=tmp_path / "disk"))
    names = {str(path).rsplit("store/", 1)[1] for path in place(url).rglob("*") if path.is_file()}
    assert names == {
        path.relative_to(tmp_path / "disk").as_posix()
        for path in (tmp_path / "disk").rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def test_a_second_source_is_added_and_conflicts_are_refused(url: str, tmp_path: Path) -> None:
    ingest(write_tar(tmp_path / "a.tar", study_files({1: CURVE})), url)
    ingest(write_tar(tmp_path / "b.tar", study_files({2: CURVE}, study="x/y/z/8")), url)
    store = Store(url)
    assert store.workloads() == [WORKLOAD, "x/y/z"]
    assert len(store.measurements(WORKLOAD)) == len(store.measurements("x/y/z")) == 3
    with pytest.raises(SourceConflict):
        ingest(write_tar(tmp_path / "c.tar", study_files({3: CURVE})), url)
    # Only the tables that are current are kept.
    folders = [path.name for path in place(url).iterdir() if path.name.startswith("tables-")]
    assert len(folders) == 1


def test_an_upload_that_broke_off_is_not_taken_for_tables(url: str, tmp_path: Path) -> None:
    ingest(write_tar(tmp_path / "a.tar", study_files({1: CURVE})), url)
    half = place(url) / "tables-0123456789abcdef"
    half.mkdir(parents=True, exist_ok=True)
    (half / "studies.parquet").write_bytes(b"PAR1")
    assert Store(url).workloads() == [WORKLOAD]
    # Even if it were named as the current one: it has no manifest.
    (place(url) / "CURRENT").write_text("tables-0123456789abcdef\n", encoding="utf-8")
    with pytest.raises(StoreMissing):
        Store(url)


def test_tables_that_are_there_are_not_written_again(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []
    upload = tables._upload

    def counted(staged: Path, final: Path, names: list[str]) -> None:
        written.append(final)
        upload(staged, final, names)

    monkeypatch.setattr(tables, "_upload", counted)
    source = write_tar(tmp_path / "a.tar", study_files({1: CURVE}))
    for _ in range(2):
        ingest(source, url)
    assert len(written) == 1
    (written[0] / "studies.parquet").write_bytes(b"")  # as after an upload that broke off
    (place(url) / "CURRENT").unlink()
    ingest(source, url)
    assert len(written) == 2
    assert Store(url).workloads() == [WORKLOAD]


def test_sources_may_be_urls(url: str, tmp_path: Path) -> None:
    files = study_files({1: CURVE, 2: CURVE})
    write_files(tmp_path / "raw", files)
    raw = place(url) / "raw"
    for name, content in files.items():
        target = raw / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    report = ingest(f"{url}/raw", tmp_path / "from_url")
    assert str(report.source).startswith(url)
    ingest(tmp_path / "raw", tmp_path / "from_disk")
    one, two = (Store(tmp_path / name).trials() for name in ("from_url", "from_disk"))
    assert one.equals(two)


def test_a_url_where_nothing_is_says_so(url: str, tmp_path: Path) -> None:
    with pytest.raises(LayoutError, match="nothing: no such file or folder"):
        ingest(f"{url}/nothing", tmp_path / "s")
    with pytest.raises(StoreMissing):
        Store(f"{url}/nothing")


def test_a_server_that_cannot_be_reached_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    s3fs = pytest.importorskip("s3fs")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free.getsockname()[1]}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    s3fs.S3FileSystem.clear_instance_cache()
    try:
        with pytest.raises(BatchScienceError, match=r"bucket/tables: cannot be reached: EndpointConn"):
            Store("s3://bucket/tables")
        with pytest.raises(BatchScienceError, match=r"bucket/raw: cannot be reached: EndpointConn"):
            ingest("s3://bucket/raw", tmp_path / "s")
    finally:
        s3fs.S3FileSystem.clear_instance_cache()


def test_a_url_of_an_unknown_kind_says_so(tmp_path: Path) -> None:
    with pytest.raises(BatchScienceError, match="nowhere://x"):
        Store("nowhere://x/y")
