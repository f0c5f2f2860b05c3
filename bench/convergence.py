"""Whether compression changes what a model learns: every compressor under AdamW and SGD with momentum.

    python bench/convergence.py [--out runs/convergence] [--steps 1500] [--only topk] [--list]

A byte-level transformer of 1.3 M parameters on the text of Python's standard library, trained by DDP workers over
gloo on the unshaped loopback interface, until the held-out loss is far below the 3.1 nats of byte frequencies. The
learning rate is tuned for plain DDP, on a grid for each optimizer, and reused for all; warm-up, then cosine decay to
zero. The batch of a step is the same whatever the number of workers, so plain DDP with 2 workers is everyone's
yardstick, seed by seed.

Every finished run is one JSON file in --out, and is not run again. In the end there are a table, summary.json, and
the curves as a PNG.
"""

from collections.abc import Sequence
from json import dumps
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from convergence_report import draw, show, summarise
from convergence_runs import NUM_EVALUATIONS, PLAIN, Run, Store, run_all
from thinwire.jobs.circumstances import circumstances

LEARNING_RATES = {"adamw": (1e-3, 2e-3, 4e-3), "sgd": (0.015, 0.03, 0.06)}
STRONG = {"onebit(block=64)": 0.2, "topk(ratio=0.01)": 0.5}
"""Run as they are, and carefully: with embeddings by int8, after this part of the steps."""
LIGHT = ("fp16", "bf16", "int8", "fp8", "linear_dithering(bits=5)", "linear_dithering(bits=7)")
OTHERS = ("onebit", "natural_dithering(bits=3)", "natural_dithering(bits=5)", "randomk")
RECOMMENDED = {"int8": "adamw", "onebit(block=64)": "adamw", "topk(ratio=0.01)": "adamw"}
"""With the optimizer under which they are run with three seeds, and with four workers too."""


def tuning_runs(num_steps: int) -> list[Run]:
    """Plain DDP at every learning rate; the best one of each optimizer is also the yardstick of seed 0."""
    return [
        Run(gradients=PLAIN, optimizer=optimizer, learning_rate=rate, num_steps=num_steps)
        for optimizer, rates in LEARNING_RATES.items()
        for rate in rates
    ]


def comparison_runs(rates: dict[str, float], num_steps: int) -> list[Run]:
    """Everything else, at the best learning rate of each optimizer; what is recommended comes first."""

    def run(gradients: str, optimizer: str, *, careful: float = 0.0, seed: int = 0, num_workers: int = 2) -> Run:
        return Run(
            gradients=gradients,
            optimizer=optimizer,
            learning_rate=rates[optimizer],
            num_steps=num_steps,
            seed=seed,
            num_workers=num_workers,
            careful_from=careful,
        )

    def recommended(seed: int = 0, num_workers: int = 2) -> list[Run]:
        return [
            run(g, optimizer, careful=STRONG.get(g, 0.0), seed=seed, num_workers=num_workers)
            for g, optimizer in RECOMMENDED.items()
        ]

    def under_both(*all_gradients: str) -> list[Run]:
        return [run(g, optimizer) for g in all_gradients for optimizer in LEARNING_RATES]

    yardsticks = [run(PLAIN, optimizer, seed=seed) for seed in (1, 2) for optimizer in set(RECOMMENDED.values())]
    careful = [run(g, optimizer, careful=share) for g, share in STRONG.items() for optimizer in LEARNING_RATES]
    runs = [
        *recommended(),
        *under_both(*LIGHT),
        *yardsticks,
        *recommended(seed=1),
        *recommended(seed=2),
        *careful,
        *under_both(*STRONG, *OTHERS),
        *recommended(num_workers=4),
    ]
    return list(dict.fromkeys(runs))


def best_of(tuned: Sequence[Run], store: Store) -> dict[str, Run]:
    """The run with the lowest held-out loss of each optimizer."""
    best = {}
    for optimizer, rates in LEARNING_RATES.items():
        candidates = [run for run in tuned if run.optimizer == optimizer]
        best[optimizer] = min(candidates, key=store.held_out_loss)
        if best[optimizer].learning_rate in (rates[0], rates[-1]):
            print(f"{optimizer}: the best learning rate is at the end of its grid {rates}; widen LEARNING_RATES")
    return best


def main(
    out: Annotated[Path, typer.Option(help="Folder of the finished runs.")] = Path("runs/convergence"),
    steps: Annotated[int, typer.Option(min=NUM_EVALUATIONS, help="Optimizer steps of a run.")] = 1500,
    only: Annotated[str, typer.Option(help="Of the compressors, only runs whose name contains this.")] = "",
    chart: Annotated[Path | None, typer.Option(help="Where to draw the curves; by default in --out.")] = None,
    show_list: Annotated[bool, typer.Option("--list", help="Say which runs there are, and run nothing.")] = False,
) -> None:
    """Train with every compressor and compare with plain DDP."""
    store = Store(out)
    tuning = tuning_runs(steps)
    if not show_list:
        run_all(tuning, store)
    elif any(not store.path(run).exists() for run in tuning):
        print_list(tuning, store)
        print("... and the comparisons, once these have found the learning rates")
        return
    best = best_of(tuning, store)
    rates = {optimizer: run.learning_rate for optimizer, run in best.items()}
    comparisons = [run for run in comparison_runs(rates, steps) if run.gradients == PLAIN or only in run.name]
    if show_list:
        print_list([*tuning, *comparisons], store)
        return
    run_all(comparisons, store)
    runs = [*best.values(), *comparisons]
    rows = summarise(runs, store)
    show(rows, Console())
    (out / "summary.json").write_text(dumps({"steps": steps, "rows": rows, **circumstances()}, indent=1) + "\n")
    draw(runs, store, chart or out / "convergence.png")


def print_list(runs: Sequence[Run], store: Store) -> None:
    for run in runs:
        print(f"{'done' if store.path(run).exists() else 'to do'}  {run.name}")


if __name__ == "__main__":
    typer.run(main)
