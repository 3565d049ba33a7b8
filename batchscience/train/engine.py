"""Where the trials of a study run: in this process, in several processes here, or on a Ray cluster."""

from __future__ import annotations

import collections
import contextlib
import functools
import logging
import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import IO, Any, Protocol, Self

from .. import __version__
from ..errors import TrainingError

log = logging.getLogger(__name__)

MOST_ATTEMPTS = 3
"""A trial whose worker died so many times is reported as failed; most likely it is what kills the workers."""

RAY_CHECKS_EVERY = 5.0
"""Seconds after which a driver that waits for Ray looks again how many workers the cluster has room for."""


class Result(Protocol):
    """What comes of a trial; it says of which."""

    @property
    def trial(self) -> int:
        """Number of the trial."""


Train = Callable[[Sequence[int]], Iterable[Result]]
"""Trains trials and yields what comes of each, in any order."""


class Work(Protocol):
    """Trials that differ by their number alone.  It is pickled where they are trained elsewhere."""

    def begin(self) -> Train:
        """Prepare (load data, compile), once per worker, and return what trains."""


@dataclass(frozen=True, slots=True)
class Task:
    """Trials of one work that a worker trains together."""

    work: Work
    trials: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Failure:
    """A trial that raised an exception, or whose worker died again and again."""

    trial: int
    reason: str
    details: str = ""


Event = tuple[Work, "Result | Failure"]
"""What came of one trial of a work."""


class Engine(Protocol):
    """Trains what a driver hands out, and hands back what comes of it; the driver alone writes files.

    It may serve many calls; what it has started it ends on `close`.
    """

    name: str

    @property
    def here(self) -> bool:
        """Whether trials run in the driver's own process."""

    @property
    def same_disk(self) -> bool:
        """Whether the workers see the driver's files."""

    def run(self, tasks: Iterator[Task]) -> Generator[Event, None, None]:
        """What came of each trial of the tasks, in the order in which they end.

        The next task is taken when there is a worker for it.  A trial that raises is a `Failure`, and
        the others go on; a trial whose worker or node dies is trained again.

        Raises
        ------
        TrainingError, OSError
            What concerns all trials: a setting, a device, the data, the disk.
        """

    def close(self) -> None:
        """End all that was started."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None: ...


class _Closing:
    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all that was started."""


def outcomes(train: Train, trials: Sequence[int]) -> Iterator[Result | Failure]:
    """What comes of each trial; one that raises does not take the others with it."""
    left = list(trials)
    try:
        for result in train(tuple(left)):
            left.remove(result.trial)
            yield result
    except (TrainingError, OSError):
        raise
    except Exception as error:  # noqa: BLE001  (whatever a user's model raises is this trial's end alone)
        if len(left) > 1:
            for trial in left:
                yield from outcomes(train, (trial,))
        elif left:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            yield Failure(left[0], reason, traceback.format_exc())


# --------------------------------------------------------------------------- this process


class Local(_Closing):
    """One task after another in this process.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> class Squares:
    ...     def begin(self):
    ...         return lambda trials: (SimpleNamespace(trial=t, square=t * t) for t in trials)
    >>> with Local() as engine:
    ...     [result.square for _, result in engine.run(iter([Task(Squares(), (3, 4))]))]
    [9, 16]
    """

    name = "local"
    here = True
    same_disk = True

    def run(self, tasks: Iterator[Task]) -> Generator[Event, None, None]:
        """As `Engine.run`."""
        begun: tuple[Work, Train] | None = None
        for task in tasks:
            if begun is None or begun[0] is not task.work:
                begun = None  # what the last work has compiled is let go before the next compiles
                begun = (task.work, task.work.begin())
            for outcome in outcomes(begun[1], task.trials):
                yield task.work, outcome


# --------------------------------------------------------------------------- processes


@functools.lru_cache(maxsize=1)
def _begun(pickled: bytes) -> Train:
    """The work that a worker has at hand: it compiles once and keeps it for the next task."""
    work: Work = pickle.loads(pickled)
    return work.begin()


def _pickled(work: Work) -> bytes:
    try:
        return pickle.dumps(work)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TrainingError(
            f"this study cannot be sent to other processes ({error}); define the functions of its workload "
            "in a file that 'batchscience train' is given or in a module, or take the engine 'local'"
        ) from None


_BOOT = "import sys; sys.path[:] = {path!r}; from batchscience.train.engine import serve; serve({fd})"


def serve(fd: int) -> None:
    """Be a worker: train what comes over a socket until it ends, or the driver does."""
    connection = Connection(fd)
    orders: queue.SimpleQueue[tuple[bytes, tuple[int, ...]] | None] = queue.SimpleQueue()

    def listen() -> None:
        # Training does not look at the socket, so another thread does: a driver that was killed cannot
        # say so, and must not leave workers behind that train what nobody writes.
        with contextlib.suppress(EOFError, OSError):
            while True:
                order = connection.recv()
                orders.put(order)
                if order is None:
                    return
        os._exit(1)

    threading.Thread(target=listen, daemon=True).start()
    try:
        connection.send(("ready", None))
        while (order := orders.get()) is not None:
            pickled, trials = order
            try:
                for outcome in outcomes(_begun(pickled), trials):
                    connection.send(("outcome", outcome))
                connection.send(("end", None))
            except (TrainingError, OSError) as error:
                connection.send(("stop", error))
            except Exception as error:  # noqa: BLE001  (preparing failed, so every trial would)
                connection.send(("stop", TrainingError(f"{type(error).__name__}: {error}")))
    except (KeyboardInterrupt, BrokenPipeError):
        os._exit(1)
    # TensorFlow may take seconds to tidy up what the system takes back at once.
    os._exit(0)


@dataclass(slots=True, eq=False)
class _Worker:
    process: subprocess.Popen[bytes]
    connection: Connection
    messages: IO[bytes]
    ready: bool = False
    task: Task | None = None
    left: list[int] = field(default_factory=list)

    def last_words(self) -> str:
        """End of what the worker wrote on standard error."""
        with self.messages:
            self.messages.seek(max(0, self.messages.seek(0, os.SEEK_END) - 2000))
            lines = self.messages.read().decode(errors="replace").strip().splitlines()
        return "\n".join(lines[-10:])

    def give(self, task: Task, pickled: bytes) -> None:
        self.task, self.left = task, list(task.trials)
        # A worker that has just died is noticed where its answers are read.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send((pickled, task.trials))


@dataclass(slots=True)
class _Lost:
    """Trials whose worker died, and how often; they come before new ones."""

    again: collections.deque[Task] = field(default_factory=collections.deque)
    attempts: collections.Counter[tuple[int, int]] = field(default_factory=collections.Counter)

    def add(self, task: Task, left: Sequence[int], how: str) -> list[Event]:
        """Put what is left of a task back; failures where it was tried often enough."""
        failed: list[Event] = []
        back = []
        for trial in left:
            self.attempts[id(task.work), trial] += 1
            if self.attempts[id(task.work), trial] < MOST_ATTEMPTS:
                back.append(trial)
            else:
                failed.append((task.work, Failure(trial, f"{how}, {MOST_ATTEMPTS} times")))
        if not back:
            return failed
        log.warning("%s; trials %s are trained again", how, ", ".join(map(str, back)))
        if max(self.attempts[id(task.work), trial] for trial in back) > 1:
            # One of them may be to blame: apart, the others are not lost with it.
            self.again.extend(Task(task.work, (trial,)) for trial in back)
        else:
            self.again.append(Task(task.work, tuple(back)))
        return failed

    def next(self, tasks: Iterator[Task]) -> Task | None:
        """The next task; None if there is none."""
        return self.again.popleft() if self.again else next(tasks, None)


class Processes(_Closing):
    """Worker processes on this machine, each with its share of the threads.

    Parameters
    ----------
    workers : int, optional
        How many; by default one per processor that this process may use.

    Raises
    ------
    ValueError
        If `workers` is below 1.

    Notes
    -----
    A worker begins as a new interpreter, which alone imports TensorFlow.  It ends when the driver ends,
    however that happens, and is started again when it dies.
    """

    name = "processes"
    here = False
    same_disk = True

    def __init__(self, workers: int | None = None) -> None:
        self.processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        self.workers = workers if workers is not None else self.processors or 1
        if self.workers < 1:
            raise ValueError(f"expected at least one worker, got {workers}")
        self._running: list[_Worker] = []
        self._stillborn = 0

    def run(self, tasks: Iterator[Task]) -> Generator[Event, None, None]:
        """As `Engine.run`."""
        lost = _Lost()
        pickled: dict[int, tuple[Work, bytes]] = {}

        def hand_out(worker: _Worker) -> bool:
            task = lost.next(tasks)
            if task is None:
                return False
            key = id(task.work)
            if key not in pickled:
                pickled[key] = (task.work, _pickled(task.work))
            worker.give(task, pickled[key][1])
            return True

        try:
            while True:
                for worker in self._running:
                    if worker.task is None and not hand_out(worker):
                        break
                while len(self._running) < self.workers:
                    task = lost.next(tasks)
                    if task is None:
                        break
                    lost.again.appendleft(task)
                    self._running.append(self._started())
                    hand_out(self._running[-1])
                busy = [worker for worker in self._running if worker.task is not None]
                if not busy:
                    return
                for connection in wait([worker.connection for worker in busy]):
                    worker = next(w for w in busy if w.connection is connection)
                    yield from self._heard(worker, lost)
        except BaseException:
            # Workers in the middle of a trial that nobody waits for any more.
            self._end(interrupt=True)
            raise

    def _started(self) -> _Worker:
        ours, theirs = socket.socketpair()
        threads = str(max(1, (self.processors or 1) // self.workers))
        names = (
            "OMP_NUM_THREADS",
            "OPENBLAS_NUM_THREADS",
            "TF_NUM_INTRAOP_THREADS",
            "TF_NUM_INTEROP_THREADS",
        )
        # TensorFlow greets on standard error; it is read when a worker has died.
        messages = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the worker)
        environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, **dict.fromkeys(names, threads)}
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", _BOOT.format(path=sys.path, fd=theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=messages,
                stderr=messages,
                # Ctrl-C reaches the driver alone, which passes it on once.
                process_group=0,
            )
        return _Worker(process, Connection(ours.detach()), messages)

    def _heard(self, worker: _Worker, lost: _Lost) -> Iterator[Event]:
        try:
            kind, what = worker.connection.recv()
        except (EOFError, OSError):
            yield from self._died(worker, lost)
            return
        task = worker.task
        assert task is not None
        if kind == "ready":
            worker.ready, self._stillborn = True, 0
        elif kind == "outcome":
            worker.left.remove(what.trial)
            yield task.work, what
        elif kind == "end":
            worker.task = None
        else:
            raise what

    def _died(self, worker: _Worker, lost: _Lost) -> Iterator[Event]:
        self._running.remove(worker)
        worker.connection.close()
        status = worker.process.wait()
        how = f"worker process {worker.process.pid} died of " + (
            signal.Signals(-status).name if status < 0 else f"exit status {status}"
        )
        words = worker.last_words()
        log.info("%s; it wrote:\n%s", how, words)
        if not worker.ready:
            # Its trials have not begun, so they are not to blame.
            self._stillborn += 1
            if self._stillborn >= MOST_ATTEMPTS:
                raise TrainingError(f"{how} before it was ready, as did those before it; it wrote:\n{words}")
            assert worker.task is not None
            lost.again.append(worker.task)
            return
        assert worker.task is not None
        yield from lost.add(worker.task, worker.left, how)

    def _end(self, *, interrupt: bool) -> None:
        running, self._running = self._running, []
        for worker in running:
            if interrupt:
                # A checkpoint is written on the way out.
                worker.process.send_signal(signal.SIGINT)
            else:
                with contextlib.suppress(OSError):
                    worker.connection.send(None)
        until = time.monotonic() + 5.0
        for worker in running:
            try:
                worker.process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
            worker.connection.close()
            worker.messages.close()

    def close(self) -> None:
        """End the workers."""
        self._end(interrupt=False)


# --------------------------------------------------------------------------- Ray


def parse_resources(text: str) -> dict[str, float]:
    """The resources of a trial, as ``--trial-resources`` states them.

    Raises
    ------
    TrainingError
        If the text is not ``NAME=NUMBER,…`` with positive numbers.

    Examples
    --------
    >>> parse_resources("CPU=1,TPU=4")
    {'CPU': 1.0, 'TPU': 4.0}
    """
    resources: dict[str, float] = {}
    for part in text.split(","):
        name, _, number = (piece.strip() for piece in part.partition("="))
        try:
            value = float(number)
        except ValueError:
            value = 0.0
        if not name or not 0 < value < float("inf") or name in resources:
            raise TrainingError(f"resources {text!r}: expected for example 'CPU=1,TPU=4', found {part!r}")
        resources[name] = value
    return resources


def _train_on_ray(pickled: bytes, trials: tuple[int, ...], version: str) -> list[Any]:
    """The body of a Ray task; Ray keeps its process for the next one, and that its compiled work."""
    if version != __version__:
        raise TrainingError(f"the driver has batchscience {version}, a node {__version__}; install the same")
    return list(outcomes(_begun(pickled), trials))


class RayCluster(_Closing):
    """Tasks on a Ray cluster, one started on this machine or one that runs already.

    Parameters
    ----------
    address : str, optional
        Of a running cluster, as ``ray.init`` takes it ("auto", "host:6379", "ray://host:10001").  By default
        ``$RAY_ADDRESS``, else a new cluster on this machine.
    resources : mapping of str to float, optional
        What a trial takes; one processor by default.

    Notes
    -----
    The nodes need this package in the driver's version, and the data sets.  They send back what belongs into
    the files; they write none, so they need no shared disk, and a trial of a lost node begins anew.
    """

    name = "ray"
    here = False
    same_disk = False

    def __init__(self, address: str | None = None, resources: Mapping[str, float] | None = None) -> None:
        self.resources = dict(resources or {"CPU": 1.0})
        self.address = address or os.environ.get("RAY_ADDRESS") or "local"
        self._ray: Any = None
        self._ours = False

    def _connected(self) -> Any:
        if self._ray is not None:
            return self._ray
        # Ray would report its use to its makers.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Without it Ray announces that it will stop hiding accelerators from tasks that ask for none.
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        # A cluster that is started here would give its workers way to all else on the machine.
        os.environ.setdefault("RAY_worker_niceness", "0")
        try:
            import ray
        except ImportError:
            raise TrainingError("the engine 'ray' needs Ray: pip install 'batchscience[cluster]'") from None
        if not ray.is_initialized():
            options: dict[str, Any] = {"include_dashboard": False} if self.address == "local" else {}
            try:
                ray.init(
                    self.address,
                    log_to_driver=False,
                    configure_logging=False,
                    logging_level=logging.ERROR,
                    **options,
                )
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise TrainingError(f"no Ray cluster at {self.address!r}: {error}") from None
            self._ours = True
        self._ray = ray
        return ray

    def _slots(self) -> int:
        """How many trials the cluster has room for."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        return sum(
            int(min(node.get(name, 0.0) / number + 1e-9 for name, number in self.resources.items()))
            for node in nodes
        )

    def _task(self) -> Any:
        own = dict(self.resources)
        threads = str(max(1, int(own.get("CPU", 1.0))))
        names = ("OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
        return self._ray.remote(_train_on_ray).options(
            num_cpus=own.pop("CPU", 0.0),
            num_gpus=own.pop("GPU", 0.0),
            memory=own.pop("memory", None),
            resources=own,
            # Lost trials are counted and handed out again here.
            max_retries=0,
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": {"TF_CPP_MIN_LOG_LEVEL": "3", **dict.fromkeys(names, threads)}},
        )

    def run(self, tasks: Iterator[Task]) -> Generator[Event, None, None]:
        """As `Engine.run`."""
        ray = self._connected()
        if not self._slots():
            wanted = ",".join(f"{name}={number:g}" for name, number in self.resources.items())
            if self.address == "local":
                raise TrainingError(f"this machine's cluster has no room for a trial of {wanted}")
            log.warning("no node has room for a trial of %s yet; waiting for one", wanted)
        lost, remote = _Lost(), self._task()
        sent: dict[int, tuple[Work, Any]] = {}
        running: dict[Any, Task] = {}
        try:
            while True:
                # One more than there is room for: a worker that ends need not wait for the driver.
                while len(running) < self._slots() + 1:
                    task = lost.next(tasks)
                    if task is None:
                        break
                    key = id(task.work)
                    if key not in sent:
                        sent[key] = (task.work, ray.put(_pickled(task.work)))
                    running[remote.remote(sent[key][1], task.trials, __version__)] = task
                if not running:
                    return
                ended, _ = ray.wait(list(running), num_returns=1, timeout=RAY_CHECKS_EVERY)
                for reference in ended:
                    yield from self._came(reference, running.pop(reference), lost)
        finally:
            for reference in running:
                ray.cancel(reference, force=True)

    def _came(self, reference: Any, task: Task, lost: _Lost) -> Iterator[Event]:
        errors = self._ray.exceptions
        try:
            came = self._ray.get(reference)
        except errors.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, TrainingError | OSError) else error
            raise TrainingError(str(cause)) from None
        except errors.RayError as error:
            how = str(error).strip().splitlines()[0].rstrip(".")
            yield from lost.add(task, task.trials, f"{type(error).__name__}: {how}")
            return
        for outcome in came:
            yield task.work, outcome

    def close(self) -> None:
        """Leave the cluster; end it if it was started here."""
        if self._ours:
            self._ray.shutdown()
        self._ray, self._ours = None, False


ENGINES = ("local", "processes", "ray")
"""Names of the engines."""


def engine_named(
    name: str,
    *,
    workers: int | None = None,
    resources: Mapping[str, float] | None = None,
    address: str | None = None,
) -> Engine:
    """The engine of a name that a user gives.

    Parameters
    ----------
    name : {"local", "processes", "ray"}
    workers : int, optional
        Of ``processes``.
    resources : mapping of str to float, optional
        Of a trial, for ``ray``.
    address : str, optional
        Of the cluster, for ``ray``.

    Raises
    ------
    TrainingError
        If there is no such engine, or an option belongs to another one.
    """
    if name not in ENGINES:
        raise TrainingError(f"engine {name!r}: expected one of {', '.join(ENGINES)}")
    if workers is not None and name != "processes":
        raise TrainingError(f"a number of workers belongs to the engine 'processes', not to {name!r}")
    if (resources or address) and name != "ray":
        raise TrainingError(f"resources of a trial and a cluster's address belong to 'ray', not to {name!r}")
    if name == "processes":
        if workers is not None and workers < 1:
            raise TrainingError(f"expected at least one worker, got {workers}")
        return Processes(workers)
    return RayCluster(address, resources) if name == "ray" else Local()
