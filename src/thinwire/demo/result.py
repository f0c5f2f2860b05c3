"""From the workers' events to the figures of each mode, as ``result.json`` holds them."""

import statistics
from collections import defaultdict
from typing import Any

from thinwire.demo.job import Job
from thinwire.demo.modes import COMPUTE_ONLY, DDP, SPECS
from thinwire.jobs.events import Event
from thinwire.jobs.turns import Turns

NUM_LOSS_STEPS = 5
"""The training loss of a mode is the mean over its last steps."""


class Recorder(Turns):
    """Takes the events of all workers and works out what they say."""

    def __init__(self, job: Job, num_workers: int, shared_interface: bool) -> None:
        super().__init__(num_workers=num_workers, steps_per_turn=job.steps_per_round, shared_interface=shared_interface)
        self.job = job
        self._held_out: dict[str, list[float]] = defaultdict(list)

    def add(self, event: Event) -> None:
        """Take one event."""
        super().add(event)
        if event["event"] == "held_out":
            self._held_out[event["mode"]] += event["losses"]

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
            "tx_bytes_per_step": self.sent_bytes_per_step(mode),
            "payload_bytes_per_step": self.payload_bytes_per_step(mode),
            "loss": statistics.fmean(self.losses(mode)[-NUM_LOSS_STEPS:]),
            "held_out_loss": statistics.fmean(self._held_out[mode]),
            "losses_of_steps": self.losses(mode),
        }


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
