"""From the workers' events to the figures of each mode, as ``result.json`` holds them."""

import platform
import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from thinwire import __version__
from thinwire.demo.job import Job
from thinwire.demo.launch import Event
from thinwire.demo.modes import COMPUTE_ONLY, DDP, SPECS

NUM_LOSS_STEPS = 5
"""The training loss of a mode is the mean over its last steps."""


@dataclass(slots=True)
class Recorder:
    """Takes the events of all workers and works out what they say.

    A step takes as long as on its slowest rank. The first round counts for nothing, and the first step of a round not
    for the time, as caches still hold another mode's data.
    """

    job: Job
    num_workers: int
    shared_interface: bool
    """Whether all workers send through one interface (loopback), so that each reads the bytes of all, and of any other
    program that uses it."""
    parameters: int = 0
    _steps: dict[str, dict[int, list[Event]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    _rounds: dict[str, list[Event]] = field(default_factory=lambda: defaultdict(list))
    _held_out: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, event: Event) -> None:
        """Take one event."""
        match event["event"]:
            case "ready":
                self.parameters = event["parameters"]
            case "step":
                self._steps[event["mode"]][event["step"]].append(event)
            case "round":
                self._rounds[event["mode"]].append(event)
            case "held_out":
                self._held_out[event["mode"]] += event["losses"]

    def step_seconds(self, mode: str) -> list[float]:
        """How long every step took that all ranks have done, in order."""
        return [max(event["seconds"] for event in events) for events in self._done(mode)]

    def median_step_seconds(self, mode: str) -> float | None:
        """The median over the steps that count; None before there is one."""
        length = self.job.steps_per_round
        counted = [s for step, s in enumerate(self.step_seconds(mode)) if step >= length and step % length]
        return statistics.median(counted) if counted else None

    def losses(self, mode: str) -> list[float]:
        """The loss of every step that all ranks have done: the mean over their batches."""
        return [statistics.fmean(event["loss"] for event in events) for events in self._done(mode)]

    def _done(self, mode: str) -> list[list[Event]]:
        return [events for _, events in sorted(self._steps[mode].items()) if len(events) == self.num_workers]

    def figures(self, mode: str) -> dict[str, Any]:
        """What the result says of a mode."""
        figures: dict[str, Any] = {
            "step_seconds": self.median_step_seconds(mode),
            "seconds_of_steps": self.step_seconds(mode),
        }
        if mode == COMPUTE_ONLY:
            return figures
        if mode in SPECS:
            figures["spec"] = SPECS[mode]
        return figures | {
            "tx_bytes_per_step": round(self._bytes_per_step(mode, "sent_bytes", shared=self.shared_interface)),
            "payload_bytes_per_step": round(self._bytes_per_step(mode, "payload_bytes", shared=False)),
            "loss": statistics.fmean(self.losses(mode)[-NUM_LOSS_STEPS:]),
            "held_out_loss": statistics.fmean(self._held_out[mode]),
            "losses_of_steps": self.losses(mode),
        }

    def _bytes_per_step(self, mode: str, which: str, *, shared: bool) -> float:
        """Bytes that one worker sent in a step, on average over workers and the rounds after the first."""
        rounds = [event for event in self._rounds[mode] if event["first_step"] > 0]
        total: float = sum(event[which] for event in rounds) / sum(event["num_steps"] for event in rounds)
        return total / self.num_workers if shared else total


def summarise(recorder: Recorder, link_mbit: float | None) -> dict[str, Any]:
    """The content of ``result.json``, with every figure relative to compute-only or plain DDP where both were run."""
    modes = {mode: recorder.figures(mode) for mode in recorder.job.modes}
    compute, ddp = modes.get(COMPUTE_ONLY), modes.get(DDP)
    for figures in modes.values():
        if compute is not None:
            figures["share_of_compute_speed"] = compute["step_seconds"] / figures["step_seconds"]
        if ddp is not None and "tx_bytes_per_step" in figures:
            figures["compression"] = ddp["tx_bytes_per_step"] / figures["tx_bytes_per_step"]
    return {
        "link_mbit": link_mbit,
        "workers": recorder.num_workers,
        "parameters": recorder.parameters,
        "steps": recorder.job.num_steps,
        "uncompressed_steps": recorder.job.num_uncompressed_steps,
        "modes": modes,
    }


def circumstances() -> dict[str, Any]:
    """Where and when it was measured."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _cpu_name(),
        "versions": {"thinwire": __version__, "torch": torch.__version__, "python": platform.python_version()},
    }


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return f"{len(names)} × {names[0]}" if names else platform.machine()
