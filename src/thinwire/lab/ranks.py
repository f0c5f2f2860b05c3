"""Runs one command per rank to its end: passes its output on, and lets the first failure end them all."""

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import IO

Emit = Callable[[int, str, bool], None]
"""Takes a rank, one line of its output, and whether it came from the error stream."""


@dataclass(slots=True)
class _Stream:
    """One output of one rank, cut into lines."""

    rank: int
    file: IO[bytes]
    is_error: bool
    emit: Emit
    rest: bytes = field(default=b"")

    def pump(self) -> bool:
        """Pass on what can be read without waiting; False at the end of the stream."""
        while True:
            try:
                chunk = os.read(self.file.fileno(), 65536)
            except BlockingIOError:
                return True
            if not chunk:
                return False
            *lines, self.rest = (self.rest + chunk).split(b"\n")
            for line in lines:
                self._pass_on(line)

    def close(self) -> None:
        self.pump()
        if self.rest:
            self._pass_on(self.rest)
        self.file.close()

    def _pass_on(self, line: bytes) -> None:
        self.emit(self.rank, line.decode(errors="replace").removesuffix("\r"), self.is_error)


def supervise(
    processes: Sequence[subprocess.Popen[bytes]],
    emit: Emit,
    *,
    timeout_seconds: float | None,
    grace_seconds: float,
) -> int:
    """Wait for all processes and return 0, or the exit status of the first that failed (128 + n for signal n).

    When one fails the others get SIGTERM, and SIGKILL after the grace time; so do all when this function is left
    by an exception. Each process leads its own process group, which receives the signals and ends with it.

    Raises:
        TimeoutError: if they take longer than ``timeout_seconds``.
    """
    started = time.monotonic()
    running = {os.pidfd_open(process.pid): process for process in processes}
    ranks = {pidfd: rank for rank, pidfd in enumerate(running)}
    streams = [
        _Stream(rank, file, file is process.stderr, emit)
        for rank, process in enumerate(processes)
        for file in (process.stdout, process.stderr)
        if file is not None
    ]
    status = 0
    wake_at = float("inf") if timeout_seconds is None else started + timeout_seconds
    try:
        with selectors.DefaultSelector() as selector:
            for pidfd in running:
                selector.register(pidfd, selectors.EVENT_READ)
            for stream in streams:
                os.set_blocking(stream.file.fileno(), False)
                selector.register(stream.file, selectors.EVENT_READ, stream)
            while running:
                wait_seconds = None if wake_at == float("inf") else max(0.0, wake_at - time.monotonic())
                events = selector.select(wait_seconds)
                for key, _ in events:
                    if isinstance(key.data, _Stream):
                        if not key.data.pump():
                            selector.unregister(key.fileobj)
                        continue
                    selector.unregister(key.fd)
                    code = _bury(running, key.fd)
                    if code and not status:
                        status = code
                        emit(ranks[key.fd], f"ended with status {code}; the other ranks are ended too", True)
                        _signal_all(running.values(), signal.SIGTERM)
                        wake_at = time.monotonic() + grace_seconds
                if not events and time.monotonic() >= wake_at:
                    if not status:
                        raise TimeoutError(f"the command runs for more than {timeout_seconds:g} s; it was ended")
                    _signal_all(running.values(), signal.SIGKILL)
                    wake_at = float("inf")
    finally:
        _signal_all(running.values(), signal.SIGTERM)
        give_up_at = time.monotonic() + grace_seconds
        for pidfd in list(running):
            _wait_until(pidfd, give_up_at)
            _bury(running, pidfd)
        for stream in streams:
            stream.close()
    return status


def _bury(running: dict[int, subprocess.Popen[bytes]], pidfd: int) -> int:
    """Kill what is left of a process group and return its leader's exit status."""
    process = running.pop(pidfd)
    os.close(pidfd)
    os.killpg(process.pid, signal.SIGKILL)  # before wait(): until then no other group can have this number
    code = process.wait()
    return code if code >= 0 else 128 - code


def _signal_all(processes: Iterable[subprocess.Popen[bytes]], number: int) -> None:
    for process in processes:
        os.killpg(process.pid, number)


def _wait_until(pidfd: int, deadline: float) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(pidfd, selectors.EVENT_READ)
        selector.select(max(0.0, deadline - time.monotonic()))
