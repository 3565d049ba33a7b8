"""Where a step is computed: one device, replicas on this machine, a TPU, or several processes."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from ..errors import TrainingError


@dataclass(frozen=True, slots=True)
class Devices:
    """The replicas that share each global batch.

    Parameters
    ----------
    name : str
        As the user wrote it, for example ``"cpu:4"``.
    kind : {"cpu", "gpu", "tpu"}
        What the replicas run on.
    strategy : tf.distribute.Strategy
        Strategy whose replicas compute the gradient sums; TensorFlow's default one for a single device.
    loop_on_device : bool
        Whether many steps, with their reduction, run inside one compiled program.  True for a single
        replica and for TPUs; elsewhere the reduction leaves the program, so the loop lies around it.
    chief : bool, default True
        Whether this process writes the files.
    """

    name: str
    kind: str
    strategy: Any
    loop_on_device: bool
    chief: bool = True

    @property
    def replicas(self) -> int:
        """Number of replicas over all processes."""
        return int(self.strategy.num_replicas_in_sync)

    def share(self, batch_size: int, accumulate: int = 1) -> int:
        """Examples of one global batch that one replica sees at once.

        Raises
        ------
        TrainingError
            If the batch does not split evenly.

        Examples
        --------
        >>> strategy_for("cpu").share(64, accumulate=8)
        8
        """
        parts = self.replicas * accumulate
        if batch_size % parts:
            times = f" × {accumulate} accumulated parts" if accumulate > 1 else ""
            raise TrainingError(
                f"batch size {batch_size} does not split evenly over {self.replicas} replicas{times}; "
                f"take a multiple of {parts}, or fewer replicas"
            )
        return batch_size // parts

    def sum_over_replicas(self, tensor: Any) -> Any:
        """All-reduce by sum; to be called where the replicas run."""
        if self.replicas == 1:
            return tensor
        if self.kind == "tpu":
            # Unlike ReplicaContext.all_reduce it may stand inside a loop on the device.
            return tf.compat.v1.tpu.cross_replica_sum(tensor)
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tensor)

    def replica_number(self) -> Any:
        """Number of the replica, as a tensor; to be called where the replicas run."""
        if self.replicas == 1:
            return tf.constant(0, tf.int32)
        number = tf.distribute.get_replica_context().replica_id_in_sync_group
        return tf.cast(number, tf.int32)

    def copied(self, array: NDArray[Any] | Any) -> Any:
        """The array on every replica's device."""
        if self.replicas == 1:
            with self.strategy.scope():
                return tf.constant(array)
        return self.spread(lambda _: array)

    def spread(self, share: Callable[[int], NDArray[Any]]) -> Any:
        """The array ``share(replica)`` on the device of each replica, counted from 0 over all processes."""
        values = self.strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(share(context.replica_id_in_sync_group))
        )
        local = self.strategy.experimental_local_results(values)
        # Inside the loop a process's only replica hands back plain tensors, not values per replica.
        return values if len(local) > 1 else local[0]

    def first(self, value: Any) -> Any:
        """The copy of a value on the first local replica."""
        return self.strategy.experimental_local_results(value)[0]

    @property
    def has_peers(self) -> bool:
        """Whether other processes train together with this one."""
        resolver = self.strategy.cluster_resolver
        return bool(
            isinstance(self.strategy, tf.distribute.MultiWorkerMirroredStrategy)
            and resolver is not None
            and resolver.cluster_spec().num_tasks("worker") > 1
        )

    def agreed(self, values: Sequence[float]) -> list[float]:
        """The chief's numbers, on every process (themselves where there is one process).

        All processes must call this together; the numbers of the others do not matter.
        """
        own = np.asarray(values, np.float64)
        if not self.has_peers:
            return [float(v) for v in own]
        sent = tf.constant(own if self.chief else np.zeros_like(own))

        def summed() -> Any:
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.SUM, sent)

        total = tf.function(lambda: self.strategy.run(summed), autograph=False)()
        return [float(v) for v in self.first(total).numpy()]


def strategy_for(name: str) -> Devices:
    """The devices of a name that a user gives.

    Parameters
    ----------
    name : str
        ``"cpu"`` (one device, no strategy), ``"cpu:N"`` (N logical replicas on this processor),
        ``"gpu"`` (all visible GPUs) or ``"gpu:N"`` (the first N), ``"tpu"`` or ``"tpu:ADDRESS"``,
        ``"workers"`` (the processes that ``$TF_CONFIG`` lists).

    Returns
    -------
    Devices

    Raises
    ------
    TrainingError
        If the name is not one of these, or the devices are not there; the message says what was
        looked for.

    Notes
    -----
    Logical CPU devices and the workers' channels can only be set up before TensorFlow first runs
    something in this process.
    """
    match = re.fullmatch(r"(cpu|gpu|tpu|workers)(?::(.+))?", name)
    if match is None or (match[1] == "workers" and match[2]):
        raise TrainingError(
            f"device {name!r}: expected 'cpu', 'cpu:N', 'gpu', 'gpu:N', 'tpu', 'tpu:ADDRESS' or 'workers'"
        )
    kind, detail = match[1], match[2]
    if kind == "tpu":
        return _tpu(name, detail)
    if kind == "workers":
        return _workers(name)
    count = None
    if detail is not None:
        if not detail.isdecimal() or int(detail) < 1:
            raise TrainingError(f"device {name!r}: expected a number of replicas after the colon")
        count = int(detail)
    if kind == "gpu":
        found = len(tf.config.list_physical_devices("GPU"))
        if found < (count or 1):
            raise TrainingError(
                f"device {name!r}: looked for {count or 1} GPU among TensorFlow's physical devices, "
                f"found {found}; is it the build with CUDA ('tensorflow[and-cuda]')?"
            )
        count = count or found
    elif count is None:
        return Devices(name, "cpu", tf.distribute.get_strategy(), loop_on_device=True)
    if count == 1:
        strategy = tf.distribute.OneDeviceStrategy(f"{kind.upper()}:0")
        return Devices(name, kind, strategy, loop_on_device=True)
    if kind == "cpu":
        _split_cpu(count)
    places = [f"{kind.upper()}:{i}" for i in range(count)]
    # On one processor a sum in a fixed order costs nothing more, and is the same in every run.
    reduction = tf.distribute.ReductionToOneDevice() if kind == "cpu" else None
    strategy = tf.distribute.MirroredStrategy(places, cross_device_ops=reduction)
    return Devices(name, kind, strategy, loop_on_device=False)


@functools.cache
def processors() -> int:
    """Processors that this process may use: those allotted to it, or as many as TensorFlow has been allowed.

    A limit is ``$TF_NUM_INTRAOP_THREADS`` or TensorFlow's own configuration, as it is at the first call.
    """
    allowed = tf.config.threading.get_intra_op_parallelism_threads()
    allowed = allowed or int(os.environ.get("TF_NUM_INTRAOP_THREADS") or 0)
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(allowed, here) if allowed else here


def keep_programs_on_their_thread() -> None:
    """Let each program that XLA compiles for a CPU run on the thread that calls it.

    Notes
    -----
    Left to itself XLA hands the matrix products of a program from thread to thread.  For models small
    enough to be trained on a CPU a hand-over takes longer than the product: a step on two threads took
    1.6 times as long as on one, with the same result to the last bit.  Trials that run side by side use
    the other processors.

    TensorFlow takes the setting before it first runs something in this process, and for all of it; when
    it comes too late nothing changes but the time.  What the user has set is left alone.
    """
    if processors() > 1 and not tf.config.threading.get_intra_op_parallelism_threads():
        with contextlib.suppress(RuntimeError):
            tf.config.threading.set_intra_op_parallelism_threads(1)


def _split_cpu(count: int) -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    present = tf.config.get_logical_device_configuration(cpu)
    if present is not None and len(present) >= count:
        return
    try:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    except RuntimeError:
        raise TrainingError(
            f"device 'cpu:{count}': TensorFlow already runs in this process with "
            f"{len(present or [cpu])} logical CPU; start with the replicas, in a new process"
        ) from None


def _tpu(name: str, address: str | None) -> Devices:
    resolver_class = tf.distribute.cluster_resolver.TPUClusterResolver
    if address is not None and (place := re.fullmatch(r"grpc://(.+):(\d+)", address)):
        # TensorFlow itself would wait for minutes for a server that is not there.
        try:
            socket.create_connection((place[1], int(place[2])), timeout=10).close()
        except OSError as error:
            raise TrainingError(
                f"device {name!r}: looked for a TPU named {address!r}, found nothing there: {error}"
            ) from None
    try:
        resolver = resolver_class(tpu="local" if address is None else address)
        if address is not None and address != "local":
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (ValueError, RuntimeError, OSError, tf.errors.OpError) as error:
        sought = f"a TPU named {address!r}" if address else "a TPU attached to this machine (tpu='local')"
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise TrainingError(
            f"device {name!r}: looked for {sought}, found none: {reason}; "
            "on a TPU VM, install the TPU build of TensorFlow ('tensorflow-tpu'); elsewhere give tpu:ADDRESS"
        ) from None
    return Devices(name, "tpu", tf.distribute.TPUStrategy(resolver), loop_on_device=True)


def is_chief(config: str | None) -> bool:
    """Whether the process of a ``$TF_CONFIG`` is the one that writes and reports; without one it is alone.

    Examples
    --------
    >>> is_chief(None), is_chief('{"task": {"type": "worker", "index": 1}}')
    (True, False)
    """
    if not config:
        return True
    task = json.loads(config)["task"]
    return task.get("type") == "chief" or int(task["index"]) == 0


def _workers(name: str) -> Devices:
    text = os.environ.get("TF_CONFIG")
    if not text:
        raise TrainingError(
            f"device {name!r}: looked for $TF_CONFIG, which lists the processes, and found none; "
            "set it in each process, or start them here with --local-workers P"
        )
    try:
        chief = is_chief(text)
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    except (ValueError, KeyError, TypeError) as error:
        raise TrainingError(f"device {name!r}: $TF_CONFIG is not what TensorFlow expects: {error}") from None
    except RuntimeError as error:
        raise TrainingError(
            f"device {name!r}: {error}; ask for the workers before anything else runs in this process"
        ) from None
    kind = "gpu" if tf.config.list_physical_devices("GPU") else "cpu"
    return Devices(name, kind, strategy, loop_on_device=strategy.num_replicas_in_sync == 1, chief=chief)


def run_local_workers(
    command: Sequence[str], workers: int, *, environment: dict[str, str] | None = None
) -> int:
    """Run a command in several processes of this machine, each with its ``$TF_CONFIG``; end all together.

    Parameters
    ----------
    command : sequence of str
        What each process runs.
    workers : int
        Number of processes.
    environment : dict, optional
        Of the processes; this process's own by default.

    Returns
    -------
    int
        0, or the exit status of the first process that failed.

    Notes
    -----
    When one fails, the others would wait for it in the next reduction, so they are ended.  They are
    ended too when this function is left by an exception or by Ctrl-C, and get two seconds to tidy up.
    """
    if workers < 1:
        raise ValueError(f"expected at least one worker, got {workers}")
    addresses = [f"localhost:{port}" for port in _free_ports(workers)]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for index in range(workers):
            config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            variables = {**(os.environ if environment is None else environment)}
            variables["TF_CONFIG"] = json.dumps(config)
            processes.append(
                subprocess.Popen(
                    list(command),
                    env=variables,
                    # The chief alone reports; a failing worker's reasons are on standard error.
                    stdout=None if index == 0 else subprocess.DEVNULL,
                    preexec_fn=_die_with_parent if sys.platform == "linux" else None,
                )
            )
        while True:
            codes = [process.poll() for process in processes]
            for code in codes:
                if code:
                    return code if code > 0 else 128 - code
            if all(code == 0 for code in codes):
                return 0
            time.sleep(0.05)
    finally:
        _end(processes)


def _die_with_parent() -> None:
    # Even "kill -9" of the parent must leave no process behind; the kernel then sends this signal.
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("localhost", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _end(processes: Sequence[subprocess.Popen[bytes]], patience: float = 2.0) -> None:
    for process in processes:
        if process.poll() is None:
            process.terminate()
    until = time.monotonic() + patience
    for process in processes:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
