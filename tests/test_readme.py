"""What README.md shows of the published curves is there to be loaded."""

import re
from pathlib import Path

import pytest

from batchscience.store import DATA_VARIABLE, Store

README = Path(__file__).parent.parent / "README.md"


@pytest.mark.filterwarnings("ignore:.* studies have")  # a simulated study has few trials
def test_the_lines_on_the_published_curves_run(
    simulated_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DATA_VARIABLE, str(simulated_store.path))
    (lines,) = re.findall(r"```python\n(from batchscience import [^`]*)```", README.read_text("utf-8"))
    exec(lines, {})
