"""One training of the convergence comparison, and the folder of those that are finished."""

import re
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from json import loads
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import thinwire
from store import RunStore
from thinwire.demo.data import Text, sample_batch, standard_library_text
from thinwire.demo.model import ByteTransformer, ModelSize, next_byte_loss
from thinwire.demo.modes import warmup_then_cosine

SIZE = ModelSize(width=160, num_layers=4, num_heads=5, sequence_length=64)
BATCH_SIZE = 8
NUM_WARMUP_STEPS = 100
NUM_EVALUATIONS = 12
NUM_HELD_OUT_BATCHES = 32
HELD_OUT_BATCH_SIZE = 16

PLAIN = "plain DDP"
LIGHTLY_COMPRESSED = {"embedding.weight": "int8", "position": "int8"}


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
    careful_from: float = 0.0
    """More than 0: embeddings by int8, and no compression before this part of the steps."""
    error_feedback: bool | None = None
    """None: as usual for the compressor."""

    @property
    def label(self) -> str:
        """What tells it from other ways to exchange gradients."""
        careful = f", careful from {self.careful_from:.0%}" if self.careful_from else ""
        return self.gradients + careful + (", no error feedback" if self.error_feedback is False else "")

    @property
    def name(self) -> str:
        """Names the run's file."""
        words = re.sub(r"[^\w.=]+", "-", self.label).strip("-")
        return (
            f"{self.optimizer}-{words}-{self.num_workers}workers-seed{self.seed}"
            f"-lr{self.learning_rate:g}-{self.num_steps}steps"
        )

    @property
    def cost(self) -> int:
        """How long it takes, relative to others."""
        return self.num_steps * self.num_workers


class Store(RunStore):
    """The finished runs, and what is compared of them."""

    def held_out_loss(self, run: Run) -> float:
        """At the end; infinite if it diverged.

        Raises:
            FileNotFoundError: if it has not been run.
        """
        loss: float = loads(self.path(run).read_text())["held_out_losses"][-1]
        return loss if loss == loss else float("inf")


def train(run: Run, text: Text) -> dict[str, Any]:
    """Train in the current process group; every rank calls and gets the same."""
    torch.manual_seed(run.seed)
    ddp = DistributedDataParallel(ByteTransformer(SIZE), gradient_as_bucket_view=True, init_sync=False)
    sync = attach(run, ddp)
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


def attach(run: Run, ddp: DistributedDataParallel) -> thinwire.Sync | None:
    if run.gradients == PLAIN:
        return None
    if not run.careful_from:
        return thinwire.attach(ddp, run.gradients, seed=run.seed, error_feedback=run.error_feedback)
    return thinwire.attach(
        ddp,
        LIGHTLY_COMPRESSED | {"*": run.gradients},
        seed=run.seed,
        start_step=round(run.careful_from * run.num_steps),
        error_feedback=run.error_feedback,
    )


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
