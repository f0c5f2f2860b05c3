"""Starts the workers of a job, in a lab or on this machine's loopback, and collects what they report."""

import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence

from thinwire.jobs.events import Event, parse_event
from thinwire.lab import Lab, LinkShape
from thinwire.lab.ranks import supervise

_TAIL_LINES = 30
_KEEP_FREED_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(1 << 32), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}
"""For glibc, which else gives freed gradients back to the kernel now and then, and gets them anew page by page: in some
steps and not in others, whatever the mode. 32 MiB is the most that it takes."""


class WorkerError(RuntimeError):
    """A worker failed; the message ends with the last lines that the workers printed."""


def run_workers(
    module: str,
    argument: str,
    *,
    num_workers: int,
    shape: LinkShape | None,
    on_event: Callable[[Event], None],
    timeout_seconds: float | None = None,
) -> None:
    """Run a job to its end; ``on_event`` gets each event of each worker.

    Args:
        module: what every worker runs, as by ``python -m``.
        argument: its only argument: what to do.
        num_workers: processes, each with one thread for the model.
        shape: run in a lab with such links; None: on the loopback interface.
        on_event: called with each event as it arrives.
        timeout_seconds: end the workers after that time.

    Raises:
        WorkerError: if a worker fails or prints anything after its time is over.
        LabUnavailable: if ``shape`` is given and this machine cannot build a lab.
    """
    tail: deque[str] = deque(maxlen=_TAIL_LINES)

    def on_line(rank: int, line: str) -> None:
        if (event := parse_event(line)) is not None:
            on_event(event)
        else:
            tail.append(f"[{rank}] {line}")

    command = [sys.executable, "-m", module, argument]
    try:
        if shape is None:
            status = _run_on_loopback(command, num_workers, on_line, timeout_seconds)
        else:
            with Lab(num_workers=num_workers, shape=shape) as lab:
                status = lab.run(command, env=_KEEP_FREED_MEMORY, timeout_seconds=timeout_seconds, on_line=on_line)
    except TimeoutError as error:
        raise WorkerError("\n".join([str(error), *tail])) from error
    if status:
        raise WorkerError("\n".join([f"a worker failed with status {status}; its last words:", *tail]))


def _run_on_loopback(
    command: Sequence[str], num_workers: int, on_line: Callable[[int, str], None], timeout_seconds: float | None
) -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    shared = {
        "WORLD_SIZE": str(num_workers),
        "LOCAL_WORLD_SIZE": str(num_workers),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    processes = [
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, **_KEEP_FREED_MEMORY, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(num_workers)
    ]
    return supervise(
        processes,
        lambda rank, line, _: on_line(rank, line),
        timeout_seconds=timeout_seconds,
        grace_seconds=5.0,
    )
