"""What test modules share: how long hypothesis looks, and a small simulated archive, ingested once."""

import signal
from pathlib import Path

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


def pytest_configure() -> None:
    """Let tests interrupt their processes also where this one was started in the background.

    A shell starts background jobs with Ctrl-C ignored, and what is ignored is inherited.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
