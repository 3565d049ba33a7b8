"""What test modules share: how long hypothesis looks, a small simulated archive, and object stores."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from hypothesis import settings

from batchscience.ingest import ingest
from batchscience.simulate import simulate
from batchscience.store import Store

# A busy machine is no fault of the code; the number of examples bounds the time.
settings.register_profile("batchscience", deadline=None, max_examples=60)
settings.load_profile("batchscience")


@pytest.fixture(scope="session")
def simulated_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All 454 studies with a few short trials each."""
    path = tmp_path_factory.mktemp("simulated") / "archive.tar.gz"
    simulate(path, trials=12, evaluations=25, seed=0)
    return path


@pytest.fixture(scope="session")
def simulated_store(simulated_archive: Path) -> Store:
    """The tables of `simulated_archive`."""
    folder = simulated_archive.parent / "tables"
    report = ingest(simulated_archive, folder)
    assert report.problems == ()
    return Store(folder)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """A local server that speaks S3."""
    pytest.importorskip("s3fs")
    pytest.importorskip("moto")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        url = f"http://127.0.0.1:{port}"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        for _ in range(300):
            try:
                opener.open(url, timeout=1).close()
                break
            except OSError:
                time.sleep(0.1)
        try:
            yield url
        finally:
            server.kill()


@pytest.fixture(params=["memory", "local", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty place in each kind of file system, by URL."""
    if request.param == "local":
        yield f"local://{tmp_path}/store"
    elif request.param == "memory":
        fsspec.filesystem("memory").store.clear()
        yield "memory://bucket/store"
        fsspec.filesystem("memory").store.clear()
    else:
        endpoint = request.getfixturevalue("s3_server")
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        import s3fs

        s3fs.S3FileSystem.clear_instance_cache()
        bucket = f"bucket{os.getpid()}{time.monotonic_ns()}"
        s3fs.S3FileSystem().mkdir(f"s3://{bucket}")
        yield f"s3://{bucket}/store"
        s3fs.S3FileSystem.clear_instance_cache()


def pytest_configure() -> None:
    """Let tests interrupt their processes also where this one was started in the background.

    A shell starts background jobs with Ctrl-C ignored, and what is ignored is inherited.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
