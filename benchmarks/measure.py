"""How the benchmarks measure: whole processes, their time and memory, and ratios within one run."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Cost:
    """What one run of a process took."""

    seconds: float
    peak_mb: float


def run_process(command: Sequence[str | os.PathLike[str]], *, env: dict[str, str] | None = None) -> Cost:
    """Run a command to its end, its output thrown away; its peak memory is its own, without children."""
    began = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**os.environ, **(env or {})}
    )
    assert process.stderr is not None
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stderr.close()
    if process.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{errors.decode()[-2000:]}")
    return Cost(time.perf_counter() - began, usage.ru_maxrss / 1024)


def run_python(code: str, *arguments: str | os.PathLike[str], env: dict[str, str] | None = None) -> Cost:
    """Run a piece of Python in a process of its own."""
    return run_process([sys.executable, "-c", code, *arguments], env=env)


def ratio(
    ours: Callable[[], float], peer: Callable[[], float], *, repeats: int
) -> tuple[float, float, float]:
    """Median seconds of both, taken in turn, and the median of the ratios pair by pair."""
    pairs = [(ours(), peer()) for _ in range(repeats)]
    mine, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
    return mine, theirs, statistics.median(a / b for a, b in pairs)


def timed(work: Callable[[], object]) -> float:
    """Seconds that one call took."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def report(what: str, value: float, bar: float, *, at_most: bool) -> None:
    """Print one figure beside what was promised."""
    held = value <= bar if at_most else value >= bar
    sign = "<=" if at_most else ">="
    print(f"{what:<72} {value:8.2f}  (promised {sign} {bar:g}) {'ok' if held else 'MISSED'}", flush=True)


def size_of(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


class Side:
    """A process that measures when it is asked to, and sleeps otherwise.

    `measures` is called in it with the arguments, and returns the measurements, functions without
    arguments.
    """

    def __init__(self, measures: Callable[..., Sequence[Callable[[], Any]]], *arguments: object) -> None:
        spawning = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawning.Pipe()
        self._process = spawning.Process(target=_serve, args=(theirs, measures, arguments), daemon=True)
        self._process.start()
        theirs.close()
        self._pipe.recv()

    def measure(self, number: int = 0) -> Callable[[], Any]:
        """The measurement of a number, as a function."""

        def asked() -> Any:
            self._pipe.send(number)
            return self._pipe.recv()

        return asked

    def end(self) -> None:
        """Let the process end."""
        self._pipe.send(None)
        self._process.join()


def _serve(
    pipe: Connection, measures: Callable[..., Sequence[Callable[[], Any]]], arguments: Sequence[object]
) -> None:
    made = measures(*arguments)
    pipe.send(None)
    while (number := pipe.recv()) is not None:
        pipe.send(made[number]())
