"""What thinwire costs when it compresses nothing, against plain DDP.

    python bench/overhead.py [--rounds 12] [--workers 2] [--json runs/overhead.json]

The demo's model and workers, on the unshaped loopback interface. Both ways take turns, a few steps each, in the same
processes; the first step after a turn does not count. A step takes as long as on its slowest rank.
"""

from dataclasses import asdict
from json import dumps
from pathlib import Path
from statistics import median, quantiles
from typing import Annotated, Any

import typer
from rich.console import Console

from thinwire.demo import display
from thinwire.demo.job import Job
from thinwire.demo.launch import Event, run_job
from thinwire.demo.modes import DDP
from thinwire.demo.result import Recorder
from thinwire.jobs.circumstances import circumstances

NOTHING = "none"
TARGET = 1.03


def measure(job: Job, num_workers: int, console: Console) -> dict[str, Any]:
    """All numbers of the bench, as they are written to JSON."""
    recorder = Recorder(job, num_workers, shared_interface=True)
    with display.progress(console, recorder) as show:

        def on_event(event: Event) -> None:
            recorder.add(event)
            show(event)

        run_job(job, num_workers=num_workers, shape=None, on_event=on_event)
    seconds = {mode: recorder.median_step_seconds(mode) for mode in job.modes}
    turns = {mode: _medians_of_turns(recorder.step_seconds(mode), job.steps_per_round) for mode in job.modes}
    return {
        "ratio": seconds[NOTHING] / seconds[DDP],
        "ratio_of_turns_quartiles": quantiles(
            [nothing / ddp for nothing, ddp in zip(turns[NOTHING], turns[DDP], strict=True)]
        ),
        "step_seconds": seconds,
        "seconds_of_steps": {mode: recorder.step_seconds(mode) for mode in job.modes},
        "parameters": recorder.parameters,
        "workers": num_workers,
        "job": asdict(job),
        **circumstances(),
    }


def _medians_of_turns(seconds: list[float], steps_per_turn: int) -> list[float]:
    """The median of each turn but the first, without a turn's first step."""
    starts = range(steps_per_turn, len(seconds), steps_per_turn)
    return [median(seconds[start + 1 : start + steps_per_turn]) for start in starts]


def main(
    rounds: Annotated[int, typer.Option(min=3, help="Turns of each way.")] = 12,
    steps: Annotated[int, typer.Option(min=2, help="Steps of a turn.")] = 6,
    workers: Annotated[int, typer.Option(min=2, help="Number of workers.")] = 2,
    json: Annotated[Path | None, typer.Option(help="Also write the numbers to this file.")] = None,
) -> None:
    """Measure thinwire without compression against plain DDP."""
    job = Job(modes=(DDP, NOTHING), num_rounds=rounds, steps_per_round=steps, num_held_out_batches=0)
    result = measure(job, workers, Console())
    low, middle, high = result["ratio_of_turns_quartiles"]
    print(
        f"plain DDP {result['step_seconds'][DDP]:.4f} s a step, thinwire without compression "
        f"{result['step_seconds'][NOTHING]:.4f} s: {result['ratio']:.3f} × (target: at most {TARGET}); "
        f"turn by turn {middle:.3f} ×, quartiles {low:.3f} to {high:.3f}"
    )
    if json is not None:
        json.parent.mkdir(parents=True, exist_ok=True)
        json.write_text(dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
