"""One worker of a job: ``python -m thinwire.demo.worker JOB``, started once per rank by torchrun or the lab."""

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from thinwire.demo.data import Text, sample_batch, standard_library_text
from thinwire.demo.job import Job
from thinwire.demo.model import next_byte_loss
from thinwire.demo.modes import COMPUTE_ONLY, Contestant
from thinwire.jobs.events import format_event
from thinwire.lab import interface_bytes

Report = Callable[..., None]


def main() -> None:
    """Run the job given as the only argument."""
    job = Job.from_json(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    def report(event: str, **facts: Any) -> None:
        print(format_event({"event": event, "rank": rank, **facts}), flush=True)

    text = standard_library_text()
    contestants = []
    for mode in job.modes:
        report("preparing", mode=mode)
        contestants.append(Contestant.build(mode, job))
    report("ready", parameters=sum(p.numel() for p in contestants[0].ddp.parameters()))
    for round_number in range(job.num_rounds):
        first_step = round_number * job.steps_per_round
        for contestant in contestants:
            _train(contestant, range(first_step, first_step + job.steps_per_round), text, job, report)
    _evaluate(contestants, text, job, report)
    dist.destroy_process_group()


def _train(contestant: Contestant, steps: Sequence[int], text: Text, job: Job, report: Report) -> None:
    """Train a mode for some steps, alone on the link, and report each step and the bytes of all."""
    sent_before, payload_before = _settled_bytes(contestant)
    for step in steps:
        seed = step * dist.get_world_size() + dist.get_rank()
        inputs, targets = sample_batch(text.train, job.batch_size, job.model.sequence_length, seed)
        started = time.perf_counter()
        loss = contestant.step(inputs, targets)
        seconds = time.perf_counter() - started
        report("step", mode=contestant.mode, step=step, seconds=seconds, loss=loss.item())
    sent_after, payload_after = _settled_bytes(contestant)
    report(
        "round",
        mode=contestant.mode,
        first_step=steps[0],
        num_steps=len(steps),
        sent_bytes=sent_after - sent_before,
        payload_bytes=payload_after - payload_before,
    )


def _settled_bytes(contestant: Contestant) -> tuple[int, int]:
    """Bytes sent by the interface, and payload bytes, when nothing of any rank is under way any more."""
    dist.barrier()
    return interface_bytes()[0], contestant.payload_bytes() or 0


def _evaluate(contestants: Sequence[Contestant], text: Text, job: Job, report: Report) -> None:
    """Report each mode's loss on held-out text; ranks share the batches."""
    for contestant in contestants:
        if contestant.mode == COMPUTE_ONLY:  # its ranks' models have drifted apart
            continue
        losses = []
        for batch in range(dist.get_rank(), job.num_held_out_batches, dist.get_world_size()):
            inputs, targets = sample_batch(text.held_out, job.batch_size, job.model.sequence_length, batch)
            with torch.no_grad():
                losses.append(next_byte_loss(contestant.ddp.module(inputs), targets).item())
        report("held_out", mode=contestant.mode, losses=losses)


if __name__ == "__main__":
    main()
