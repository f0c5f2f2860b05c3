"""From the workers' events to the figures of each method."""

import statistics
from typing import Any

from thinwire.bench.job import Job
from thinwire.bench.method import COMPUTE, SSGD, Method
from thinwire.jobs.turns import Turns

NUM_LOSS_STEPS = 5
"""The loss of a method is the mean over its last steps."""

PARTS = ("compute", "encode", "decode", "exposed", "optimizer")
"""What a step consists of, in the order of charts and tables."""

DEFINITIONS = {
    "step": "median over the steps that count, of the time on the slowest worker; the first turn and the first step "
    "of each turn do not count",
    "compute": "forward and backward of the method 'compute', which exchanges nothing",
    "encode": "time that thinwire's threads spent encoding, as far as the step was longer than compute and optimizer. "
    "They run beside backward; where encoding and decoding took more time than that, the rest was hidden, and both "
    "are scaled down alike (encode_seconds and decode_seconds have all of it; mean over workers)",
    "decode": "the same of decoding",
    "exposed": "communication that was not hidden: the step, less compute, encode, decode and optimizer. For thinwire "
    "this is a lower bound, as encoding that was hidden makes encode too long; wait_seconds, from the last bucket to "
    "the end of the exchange with what is encoded and decoded then, is an upper one. For DDP it includes its copies "
    "to buckets and the casts of its fp16 hook",
    "optimizer": "what follows backward: the step, less forward and backward with the exchange",
    "sent": "bytes that the worker's interface sent in a step, with headers; mean over workers, first turn left out. "
    "On the loopback interface, which all share: those of all workers, divided by their number",
    "payload": "without headers: by thinwire's own account; for DDP 2 (n - 1) / n times the size of the gradients",
    "memory": "highest resident set (VmHWM) of a worker process that runs this method alone for a few steps on "
    "loopback; growth: less what was resident before the model was built",
    "loss": f"training loss, mean of the last {NUM_LOSS_STEPS} steps and over workers",
}
"""What the figures mean."""


def summarise(turns: Turns, job: Job) -> dict[str, dict[str, Any]]:
    """The figures of every method by name, with speeds relative to ``compute`` and ``ssgd`` where they were run."""
    figures = {method.name: _figures(turns, method) for method in job.methods}
    compute, baseline = figures.get(COMPUTE), figures.get(SSGD)
    for own in figures.values():
        if compute is not None:
            own["parts"] = parts(own, compute["forward_backward_seconds"])
            own["share_of_compute_speed"] = compute["step_seconds"] / own["step_seconds"]
        if baseline is not None:
            own["speedup"] = baseline["step_seconds"] / own["step_seconds"]
            if own["sent_bytes_per_step"] and own["payload_bytes_per_step"]:
                own["compression"] = baseline["sent_bytes_per_step"] / own["sent_bytes_per_step"]
    return figures


def _figures(turns: Turns, method: Method) -> dict[str, Any]:
    name = method.name
    steps = turns.step_seconds(name)
    quarter, median, three_quarters = statistics.quantiles(turns.counted(steps), n=4, method="inclusive")
    figures: dict[str, Any] = {
        "spec": method.spec,
        "step_seconds": median,
        "step_seconds_quartiles": [quarter, three_quarters],
        "forward_backward_seconds": turns.median(turns.slowest(name, "forward_backward_seconds")),
        "sent_bytes_per_step": turns.sent_bytes_per_step(name),
        "payload_bytes_per_step": turns.payload_bytes_per_step(name),
        "seconds_of_steps": steps,
    }
    if method.compresses:
        for what in ("encode_seconds", "decode_seconds", "wait_seconds"):
            figures[what] = turns.median([statistics.fmean(e[what] for e in events) for events in turns.steps(name)])
    if method.spec != COMPUTE:  # whose workers' models drift apart
        losses = turns.losses(name)
        figures |= {"loss": statistics.fmean(losses[-NUM_LOSS_STEPS:]), "losses_of_steps": losses}
    return figures


def parts(figures: dict[str, Any], compute_seconds: float) -> dict[str, float]:
    """A step taken apart, as :data:`DEFINITIONS` says; the sum is the step."""
    forward_backward = figures["forward_backward_seconds"]
    compute = min(compute_seconds, forward_backward)
    added = forward_backward - compute
    encode, decode = figures.get("encode_seconds", 0.0), figures.get("decode_seconds", 0.0)
    shown = min(1.0, added / (encode + decode)) if encode + decode else 0.0
    return {
        "compute": compute,
        "encode": shown * encode,
        "decode": shown * decode,
        "exposed": max(0.0, added - shown * (encode + decode)),
        "optimizer": figures["step_seconds"] - forward_backward,
    }
