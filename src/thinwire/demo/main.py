"""``thinwire demo``: run the comparison, show it, and write it down."""

import json
from pathlib import Path
from typing import Any

from rich.console import Console

from thinwire.demo import chart, display
from thinwire.demo.job import Job
from thinwire.demo.launch import run_job
from thinwire.demo.modes import COMPUTE_ONLY, DDP, DDP_FP16
from thinwire.demo.result import Recorder, summarise
from thinwire.jobs.circumstances import circumstances
from thinwire.lab import Lab, LinkShape

MODES = (COMPUTE_ONLY, DDP, DDP_FP16, "topk", "onebit")
STEPS_PER_ROUND = 5
NUM_STEPS = 30
NUM_QUICK_STEPS = 10


def run(
    *,
    workers: int = 2,
    rate: str = "200mbit",
    steps: int | None = None,
    out: Path = Path("runs/demo"),
    as_json: bool = False,
    quick: bool = False,
) -> None:
    """Train the demo's model in every mode and write ``result.json`` and ``result.png`` into ``out``.

    Args:
        workers: number of processes, each in a network namespace of its own.
        rate: of every link, in each direction, like ``200mbit``.
        steps: optimizer steps of every mode, a multiple of 5; None: 30, or 10 if quick.
        out: folder for the results; made if missing.
        as_json: print the result as JSON on stdout, and everything else on stderr.
        quick: fewer steps: the times are less certain, and the losses say nothing.

    Raises:
        ValueError: for an option out of range.
        WorkerError: if a worker fails; with its last words.
    """
    num_steps = steps if steps is not None else (NUM_QUICK_STEPS if quick else NUM_STEPS)
    if num_steps < 2 * STEPS_PER_ROUND or num_steps % STEPS_PER_ROUND:
        raise ValueError(
            f"steps is {num_steps}; allowed are multiples of {STEPS_PER_ROUND} (a round), from two rounds up"
        )
    if workers < 2:
        raise ValueError(f"workers is {workers}; it takes 2 or more to exchange gradients")
    out.mkdir(parents=True, exist_ok=True)  # found out now, and not after all the training
    job = Job(
        modes=MODES,
        num_rounds=num_steps // STEPS_PER_ROUND,
        steps_per_round=STEPS_PER_ROUND,
        num_uncompressed_steps=STEPS_PER_ROUND,
    )
    result = compare(job, workers, LinkShape.parse(rate=rate), Console(stderr=as_json))
    write(result, out, Console(stderr=as_json))
    if as_json:
        print(json.dumps(result))


def compare(job: Job, num_workers: int, shape: LinkShape, console: Console) -> dict[str, Any]:
    """Run the job and show its progress, its table and its outcome; the content of ``result.json``.

    Where there can be no lab it says why, and runs on the loopback interface.
    """
    rate = shape.rate_bits_per_second
    if (reason := Lab.unavailable(shape)) is not None:
        console.print(
            f"No shaped links here: {reason}. Running on the loopback interface, unshaped.",
            markup=False,
            highlight=False,
        )
        rate = None
    recorder = Recorder(job, num_workers, shared_interface=rate is None)
    with display.progress(console, recorder) as show:

        def on_event(event: dict[str, Any]) -> None:
            recorder.add(event)
            show(event)

        run_job(job, num_workers=num_workers, shape=None if rate is None else shape, on_event=on_event)
    result = summarise(recorder, None if rate is None else rate / 1e6) | circumstances()
    console.print(display.table(result))
    console.print(display.outcome(result), markup=False, highlight=False)
    return result


def write(result: dict[str, Any], out: Path, console: Console) -> None:
    """Write ``result.json``, and ``result.png`` if matplotlib is installed, into the folder ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    written = [out / "result.json"]
    written[0].write_text(json.dumps(result, indent=1) + "\n")
    try:
        chart.draw(result, out / "result.png")
        written.append(out / "result.png")
    except ModuleNotFoundError as error:
        console.print(
            f"No chart, as {error.name} is missing; pip install 'thinwire[report]'", markup=False, highlight=False
        )
    console.print(f"Written: {', '.join(map(str, written))}", markup=False, highlight=False)
