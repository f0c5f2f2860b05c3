"""Runs a function on several ranks, each a process of its own over gloo.

:func:`on_ranks` uses processes that stay, and is quick; :func:`fresh_ranks` starts new ones, for tests that end them,
need a short timeout, or leave the process in a state that the next test should not see.
"""

import atexit
import multiprocessing as mp
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

_CONTEXT = mp.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "torch.distributed", "torch.nn.parallel", "numba", "thinwire"])
_STAYING: dict[int, "_Ranks"] = {}
_MAX_CALLS = 12  # the process groups that tests leave behind have threads that wake up a hundred times a second


def on_ranks(world_size: int, function: Callable[..., Any], *args: Any, limit_seconds: float = 60.0) -> list[Any]:
    """Return ``function(rank, *args)`` of every rank; it, its arguments and its results must be picklable.

    Raises:
        AssertionError: with the tracebacks of the ranks that failed or did not end in time.
    """
    if world_size in _STAYING and _STAYING[world_size].num_calls >= _MAX_CALLS:
        _STAYING.pop(world_size).close()
    if world_size not in _STAYING:
        _STAYING[world_size] = _Ranks(world_size, timeout_seconds=60.0)
    results = _STAYING[world_size].call(function, args, limit_seconds)
    if failures := _failures(results):
        _STAYING.pop(world_size).close()  # whatever they were in the middle of, nobody will finish it
        raise AssertionError(failures)
    return [value for _, value in results]


def fresh_ranks(
    world_size: int,
    function: Callable[..., Any],
    *args: Any,
    timeout_seconds: float = 30.0,
    limit_seconds: float = 90.0,
    may_fail: bool = False,
) -> list[tuple[str | None, Any]]:
    """Run ``function(rank, *args)`` on new ranks; return what went wrong (or None) and the result of each.

    Args:
        timeout_seconds: of the process group.
        limit_seconds: for everything; a rank that has not ended by then went wrong.
        may_fail: return failures instead of raising them.
    """
    ranks = _Ranks(world_size, timeout_seconds)
    try:
        results = ranks.call(function, args, limit_seconds)
    finally:
        ranks.close()
    if not may_fail and (failures := _failures(results)):
        raise AssertionError(failures)
    return results


def _failures(results: list[tuple[str | None, Any]]) -> str:
    return "\n".join(f"rank {rank}: {failure}" for rank, (failure, _) in enumerate(results) if failure is not None)


class _Ranks:
    def __init__(self, world_size: int, timeout_seconds: float) -> None:
        self.num_calls = 0
        self._folder = tempfile.TemporaryDirectory()
        store = str(Path(self._folder.name) / "store")
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(world_size):
            ours, theirs = _CONTEXT.Pipe()
            process = _CONTEXT.Process(
                target=_serve, args=(rank, world_size, store, timeout_seconds, theirs), daemon=True, name=f"rank{rank}"
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def call(self, function: Callable[..., Any], args: Any, limit_seconds: float) -> list[tuple[str | None, Any]]:
        self.num_calls += 1
        for pipe in self._pipes:
            with suppress(OSError):  # it has died, which the loop below finds
                pipe.send((function, args))
        results: dict[int, tuple[str | None, Any]] = {}
        deadline = time.monotonic() + limit_seconds
        while len(results) < len(self._pipes) and (left := deadline - time.monotonic()) > 0:
            for ready in wait([p for r, p in enumerate(self._pipes) if r not in results], timeout=left):
                rank = next(r for r, p in enumerate(self._pipes) if p is ready)
                try:
                    results[rank] = self._pipes[rank].recv()
                except (EOFError, OSError):
                    self._processes[rank].join(5)
                    results[rank] = (f"the process ended with exit code {self._processes[rank].exitcode}", None)
        late = (f"did not end within {limit_seconds} s", None)
        return [results.get(rank, late) for rank in range(len(self._pipes))]

    def close(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._folder.cleanup()


def _serve(rank: int, world_size: int, store: str, timeout_seconds: float, pipe: Connection) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=timeout_seconds),
    )
    while True:
        try:
            function, args = pipe.recv()
        except EOFError:
            os._exit(0)
        torch.manual_seed(1234)
        try:
            reply = (None, function(rank, *args))
        except BaseException:  # reported to the test, whatever it is
            reply = (traceback.format_exc(), None)
        pipe.send(reply)


@atexit.register
def _close_all() -> None:
    for ranks in _STAYING.values():
        ranks.close()
