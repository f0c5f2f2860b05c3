"""Runs a function on several ranks, each a process of its own over gloo, and shows the traceback of the rank that fails."""

import multiprocessing as mp
import os
import queue
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

_CONTEXT = mp.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "torch.distributed", "torch.nn.parallel", "numba", "thinwire"])


def _main(
    rank: int, world_size: int, store: str, timeout_seconds: float, results: Any, function: Callable[..., Any], args: Any
) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.manual_seed(1234)
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=timeout_seconds),
        )
        results.put((rank, None, function(rank, *args)))
        dist.destroy_process_group()
    except BaseException:
        results.put((rank, traceback.format_exc(), None))
        results.close()
        results.join_thread()
        os._exit(1)


def run_ranks(
    world_size: int,
    function: Callable[..., Any],
    *args: Any,
    timeout_seconds: float = 30.0,
    limit_seconds: float = 120.0,
    may_die: frozenset[int] = frozenset(),
) -> list[Any]:
    """Return ``function(rank, *args)`` of every rank; it and its arguments and results must be picklable.

    Raises:
        AssertionError: with the tracebacks, if a rank fails, or with a list, if one does not end in time. A rank in
            ``may_die`` may end without a result; None stands for it.
    """
    results = _CONTEXT.Queue()
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        processes = [
            _CONTEXT.Process(target=_main, args=(r, world_size, store, timeout_seconds, results, function, args), daemon=True)
            for r in range(world_size)
        ]
        for p in processes:
            p.start()
        found: dict[int, Any] = {}
        failures: list[str] = []
        deadline = time.monotonic() + limit_seconds
        waiting = set(range(world_size)) - may_die
        while waiting - found.keys() and not failures and time.monotonic() < deadline:
            try:
                rank, failure, value = results.get(timeout=0.2)
            except queue.Empty:
                dead = [r for r in waiting - found.keys() if processes[r].exitcode is not None]
                if dead and results.empty():
                    failures.append(f"rank(s) {dead} ended without a result")
                continue
            found[rank] = value
            if failure is not None:
                failures.append(f"rank {rank}:\n{failure}")
        for p in processes:
            p.join(timeout=0.1 if failures else 5.0)
            if p.is_alive():
                p.kill()
                p.join()
    assert not failures, "\n".join(failures)
    assert not waiting - found.keys(), f"ranks {sorted(waiting - found.keys())} did not end within {limit_seconds} s"
    return [found.get(r) for r in range(world_size)]
