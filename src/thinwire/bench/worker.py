"""One worker of a measurement: ``python -m thinwire.bench.worker JOB``, started once per rank."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from thinwire.bench.contestant import Contestant
from thinwire.bench.job import Job
from thinwire.bench.memory import peak_bytes, resident_bytes
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

    resident_before = resident_bytes()
    contestants = []
    for method in job.methods:
        report("preparing", mode=method.name)
        contestants.append(Contestant.build(method, job))
    report("ready", parameters=sum(p.numel() for p in contestants[0].ddp.parameters()))
    for turn in range(job.num_turns):
        first_step = turn * job.steps_per_turn
        for contestant in contestants:
            _train(contestant, range(first_step, first_step + job.steps_per_turn), report)
    report("memory", peak_bytes=peak_bytes(), resident_before_bytes=resident_before)
    dist.destroy_process_group()


def _train(contestant: Contestant, steps: Sequence[int], report: Report) -> None:
    """Train a method for some steps, alone on the link, and report each step and the bytes of all."""
    mode = contestant.method.name
    sent_before, payload_before = _settled_bytes(contestant)
    for step in steps:
        inputs, targets = contestant.batch(step, dist.get_rank())
        report("step", mode=mode, step=step, **contestant.step(inputs, targets))
    sent_after, payload_after = _settled_bytes(contestant)
    report(
        "round",
        mode=mode,
        first_step=steps[0],
        num_steps=len(steps),
        sent_bytes=sent_after - sent_before,
        payload_bytes=payload_after - payload_before,
    )


def _settled_bytes(contestant: Contestant) -> tuple[int, int]:
    """Bytes sent by the interface, and payload bytes, when nothing of any rank is under way any more."""
    dist.barrier()
    return interface_bytes()[0], contestant.payload_bytes()


if __name__ == "__main__":
    main()
