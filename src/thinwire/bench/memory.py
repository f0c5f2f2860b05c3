"""Memory of a method: its peak in processes that run nothing else."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from thinwire.bench.job import Job
from thinwire.bench.method import Method
from thinwire.jobs.events import Event
from thinwire.jobs.launch import run_workers

NUM_STEPS = 4
"""Enough for DDP to rebuild its buckets, the optimizer to make its state, and for both kinds of alternating steps."""


def resident_bytes() -> int:
    """Of this process, now."""
    return _status("VmRSS")


def peak_bytes() -> int:
    """The most that was resident of this process since it runs its program (getrusage counts what ran before, too)."""
    return _status("VmHWM")


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {name}")


def measure_memory(method: Method, job: Job, num_workers: int) -> dict[str, Any]:
    """Run a method alone for a few steps, on the unshaped loopback; the peak of the worker with the highest one.

    ``memory_growth_bytes`` leaves out what was resident before the model was built: Python and torch, mostly.

    Raises:
        WorkerError: if a worker fails.
    """
    alone = replace(job, methods=(method,), num_turns=1, steps_per_turn=NUM_STEPS)
    events: list[Event] = []
    run_workers("thinwire.bench.worker", alone.to_json(), num_workers=num_workers, shape=None, on_event=events.append)
    highest = max((e for e in events if e["event"] == "memory"), key=lambda e: float(e["peak_bytes"]))
    return {
        "memory_peak_bytes": highest["peak_bytes"],
        "memory_growth_bytes": highest["peak_bytes"] - highest["resident_before_bytes"],
    }
