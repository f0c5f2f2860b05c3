"""Whether compression changes what a model learns: every compressor under AdamW and SGD with momentum.

    python bench/convergence.py [--out runs/convergence] [--steps 600] [--only topk] [--list]

A byte-level transformer of 1.3 M parameters on the text of Python's standard library, trained by DDP workers over
gloo on the unshaped loopback interface, until the held-out loss is far below the 3.1 nats of byte frequencies. The
learning rate is tuned for plain DDP, on a grid for each optimizer, and reused for all; warm-up, then cosine decay to
zero. The batch of a step is the same whatever the number of workers, so plain DDP with 2 workers is everyone's
yardstick, seed by seed.

Every finished run is one JSON file in --out, and is not run again. In the end there are a table, summary.json, and
the curves as a PNG.
"""

import re
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from json import dumps, loads
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import torch
import torch.distributed as dist
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import thinwire
from thinwire.demo.data import Text, sample_batch, standard_library_text
from thinwire.demo.model import ByteTransformer, ModelSize, next_byte_loss
from thinwire.demo.modes import warmup_then_cosine
from thinwire.demo.result import circumstances

SIZE = ModelSize(width=160, num_layers=4, num_heads=5, sequence_length=64)
BATCH_SIZE = 8
NUM_WARMUP_STEPS = 100
NUM_EVALUATIONS = 12
NUM_HELD_OUT_BATCHES = 32
HELD_OUT_BATCH_SIZE = 16

PLAIN = "plain DDP"
LEARNING_RATES = {"adamw": (1e-3, 2e-3, 4e-3, 8e-3), "sgd": (0.1, 0.3, 1.0, 3.0)}
SPREAD = ("int8", "onebit", "topk(ratio=0.01)")
"""Run with three seeds under SPREAD_OPTIMIZER, and so is plain DDP."""
SPREAD_OPTIMIZER = "adamw"
OTHERS = (
    "fp16",
    "bf16",
    "fp8",
    "linear_dithering(bits=5)",
    "linear_dithering(bits=7)",
    "natural_dithering(bits=3)",
    "natural_dithering(bits=5)",
    "randomk",
)
"""Run with one seed."""
FOUR_WORKERS = ("int8", "onebit", "topk(ratio=0.01)")
"""Run with four workers too."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training."""

    gradients: str
    """A compressor's spec, or PLAIN."""
    optimizer: str
    learning_rate: float
    num_steps: int
    seed: int = 0
    num_workers: int = 2

    @property
    def name(self) -> str:
        """Names the run's file."""
        words = re.sub(r"[^\w.=]+", "-", self.gradients).strip("-")
        return (
            f"{self.optimizer}-{words}-{self.num_workers}workers-seed{self.seed}"
            f"-lr{self.learning_rate:g}-{self.num_steps}steps"
        )

    @property
    def cost(self) -> int:
        """How long it takes, relative to others."""
        return self.num_steps * self.num_workers


def tuning_runs(num_steps: int) -> list[Run]:
    """Plain DDP at every learning rate; the best one of each optimizer is also the yardstick of seed 0."""
    return [
        Run(gradients=PLAIN, optimizer=optimizer, learning_rate=rate, num_steps=num_steps)
        for optimizer, rates in LEARNING_RATES.items()
        for rate in rates
    ]


def comparison_runs(best: dict[str, Run]) -> list[Run]:
    """Everything else, at the learning rate of each optimizer's best run."""
    runs = []
    for yardstick in best.values():
        settings = asdict(yardstick)
        for gradients, seeds, num_workers in (
            *((g, (0,), 2) for g in SPREAD + OTHERS),
            *((g, (1, 2), 2) for g in (PLAIN, *SPREAD) if yardstick.optimizer == SPREAD_OPTIMIZER),
            *((g, (0,), 4) for g in FOUR_WORKERS),
        ):
            runs += [
                Run(**settings | {"gradients": gradients, "seed": seed, "num_workers": num_workers}) for seed in seeds
            ]
    return runs


class Store:
    """The finished runs, one JSON file each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, run: Run) -> Path:
        return self.folder / f"{run.name}.json"

    def load(self, run: Run) -> dict[str, Any] | None:
        """What :func:`train` returned for this run; None if it has not been run."""
        return loads(self.path(run).read_text()) if self.path(run).exists() else None

    def save(self, run: Run, outcome: dict[str, Any]) -> None:
        partial = self.path(run).with_suffix(".partial")
        partial.write_text(dumps(asdict(run) | outcome | circumstances(), indent=1) + "\n")
        partial.rename(self.path(run))

    def held_out_loss(self, run: Run) -> float | None:
        outcome = self.load(run)
        return None if outcome is None else outcome["held_out_losses"][-1]


def train(run: Run, text: Text) -> dict[str, Any]:
    """Train in the current process group; every rank calls and gets the same."""
    torch.manual_seed(run.seed)
    ddp = DistributedDataParallel(ByteTransformer(SIZE), gradient_as_bucket_view=True, init_sync=False)
    sync = None if run.gradients == PLAIN else thinwire.attach(ddp, run.gradients, seed=run.seed)
    optimizer = make_optimizer(run, ddp)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: warmup_then_cosine(step, NUM_WARMUP_STEPS, run.num_steps)
    )
    rank, num_workers = dist.get_rank(), dist.get_world_size()
    steps, losses = [], []
    started = time.perf_counter()
    for step in range(run.num_steps):
        inputs, targets = sample_batch(text.train, BATCH_SIZE, SIZE.sequence_length, run.seed * run.num_steps + step)
        optimizer.zero_grad()
        next_byte_loss(ddp(inputs[rank::num_workers]), targets[rank::num_workers]).backward()
        optimizer.step()
        schedule.step()
        if (step + 1) * NUM_EVALUATIONS // run.num_steps > step * NUM_EVALUATIONS // run.num_steps:
            steps.append(step + 1)
            losses.append(held_out_loss(ddp.module, text))
    seconds = time.perf_counter() - started
    outcome = {"evaluated_steps": steps, "held_out_losses": losses, "seconds": seconds}
    if sync is not None:
        outcome["compression_ratio"] = sync.stats().total.compression_ratio
    return outcome


def make_optimizer(run: Run, module: nn.Module) -> torch.optim.Optimizer:
    if run.optimizer == "adamw":
        return torch.optim.AdamW(module.parameters(), lr=run.learning_rate, fused=True)
    return torch.optim.SGD(module.parameters(), lr=run.learning_rate, momentum=0.9, fused=True)


@torch.no_grad()
def held_out_loss(model: nn.Module, text: Text) -> float:
    """The mean over all held-out batches; ranks share them."""
    total = torch.zeros((), dtype=torch.float64)
    for batch in range(dist.get_rank(), NUM_HELD_OUT_BATCHES, dist.get_world_size()):
        inputs, targets = sample_batch(text.held_out, HELD_OUT_BATCH_SIZE, SIZE.sequence_length, batch)
        total += next_byte_loss(model(inputs), targets)
    dist.all_reduce(total)
    return total.item() / NUM_HELD_OUT_BATCHES


def _worker(rank: int, run: Run, rendezvous: str, store: Store) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=run.num_workers)
    outcome = train(run, standard_library_text())
    if rank == 0:
        store.save(run, outcome)
    dist.destroy_process_group()


def run_all(runs: Sequence[Run], store: Store) -> None:
    """Run what is missing, one after another, with a line for each."""
    missing = [run for run in runs if not store.path(run).exists()]
    started, done, total = time.perf_counter(), 0, sum(run.cost for run in missing)
    for number, run in enumerate(missing, 1):
        print(f"[{number}/{len(missing)}] {run.name}", end=" ", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            arguments = (run, f"file://{folder}/rendezvous", store)
            torch.multiprocessing.spawn(_worker, args=arguments, nprocs=run.num_workers)
        done += run.cost
        seconds = time.perf_counter() - started
        left = seconds / done * (total - done)
        print(f"held-out {store.held_out_loss(run):.4f}; {seconds / 60:.0f} min, {left / 60:.0f} min left", flush=True)


def best_of(tuned: Sequence[Run], store: Store) -> dict[str, Run]:
    """The run with the lowest held-out loss of each optimizer."""
    best = {}
    for optimizer, rates in LEARNING_RATES.items():
        candidates = [run for run in tuned if run.optimizer == optimizer]
        best[optimizer] = min(candidates, key=store.held_out_loss)
        if best[optimizer].learning_rate in (rates[0], rates[-1]):
            print(f"{optimizer}: the best learning rate is at the end of its grid {rates}; widen LEARNING_RATES")
    return best


def summarise(runs: Sequence[Run], store: Store) -> list[dict[str, Any]]:
    """One row for each compressor, optimizer and number of workers that has finished runs."""
    plain = {(run.optimizer, run.seed): store.held_out_loss(run) for run in runs if run.gradients == PLAIN}
    groups: dict[tuple[str, str, int], list[Run]] = {}
    for run in runs:
        if store.path(run).exists() and plain.get((run.optimizer, run.seed)) is not None:
            groups.setdefault((run.gradients, run.optimizer, run.num_workers), []).append(run)
    return [
        {
            "gradients": gradients,
            "optimizer": optimizer,
            "num_workers": num_workers,
            "learning_rate": group[0].learning_rate,
            "seeds": [run.seed for run in group],
            "held_out_losses": [store.held_out_loss(run) for run in group],
            "differences": [store.held_out_loss(run) / plain[optimizer, run.seed] - 1 for run in group],
            "compression_ratio": store.load(group[0]).get("compression_ratio", 1.0),
        }
        for (gradients, optimizer, num_workers), group in groups.items()
    ]


def show(rows: Sequence[dict[str, Any]], console: Console) -> None:
    for optimizer in LEARNING_RATES:
        mine = [row for row in rows if row["optimizer"] == optimizer]
        if not mine:
            continue
        title = f"{optimizer}, learning rate {mine[0]['learning_rate']:g}"
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("gradients", no_wrap=True)
        for heading in ("workers", "smaller", "loss", "to DDP", "over seeds"):
            table.add_column(heading, justify="right")
        for row in mine:
            differences = row["differences"]
            spread = f"{min(differences):+.2%} to {max(differences):+.2%}" if len(differences) > 1 else ""
            table.add_row(
                row["gradients"],
                str(row["num_workers"]),
                f"{row['compression_ratio']:.1f} ×",
                f"{fmean(row['held_out_losses']):.4f}",
                f"{fmean(differences):+.2%}",
                spread,
            )
        console.print(table)


def draw(runs: Sequence[Run], store: Store, path: Path) -> None:
    """Against steps, with a column for each optimizer: held-out loss, and how far it is from plain DDP's."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 8), layout="constrained")
    panels = figure.subplots(2, len(LEARNING_RATES), sharex=True, sharey="row")
    colours = {PLAIN: "black"} | dict(zip((*SPREAD, *OTHERS), colormaps["tab20"].colors, strict=False))
    for (top, bottom), optimizer in zip(panels.T, LEARNING_RATES, strict=True):
        outcomes = {
            run.gradients: outcome
            for run in runs
            if (run.optimizer, run.seed, run.num_workers) == (optimizer, 0, 2)
            and (outcome := store.load(run)) is not None
        }
        plain = outcomes[PLAIN]["held_out_losses"]
        for gradients, outcome in outcomes.items():
            losses = outcome["held_out_losses"]
            differences = [100 * (loss / yardstick - 1) for loss, yardstick in zip(losses, plain, strict=True)]
            for axes, values in ((top, losses), (bottom, differences)):
                width = 2.5 if gradients == PLAIN else 1.3
                axes.plot(
                    outcome["evaluated_steps"], values, label=gradients, color=colours[gradients], linewidth=width
                )
        top.set_title(optimizer)
        bottom.set_xlabel("optimizer steps")
        for axes in (top, bottom):
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(alpha=0.3)
    panels[0, 0].set_ylabel("held-out loss (nats per byte)")
    panels[0, 0].set_ylim(top=3.2)
    panels[1, 0].set_ylabel("difference to plain DDP (%)")
    panels[1, 0].set_ylim(-3, 10)
    panels[0, -1].legend(frameon=False, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def main(
    out: Annotated[Path, typer.Option(help="Folder of the finished runs.")] = Path("runs/convergence"),
    steps: Annotated[int, typer.Option(min=NUM_EVALUATIONS, help="Optimizer steps of a run.")] = 600,
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
    comparisons = [run for run in comparison_runs(best) if run.gradients == PLAIN or only in run.name]
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
