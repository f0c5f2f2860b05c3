"""One training of the digits comparison: a small convolutional network on scikit-learn's handwritten digits."""

import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import thinwire
from store import RunStore
from thinwire.demo.modes import warmup_then_cosine

BATCH_SIZE = 64
"""Of all workers together."""
NUM_WARMUP_EPOCHS = 2
MIN_NUMEL = 256
"""Small enough that all weights of the network are compressed, also the 288 elements of the first convolution."""

PLAIN = "S-SGD (plain DDP)"


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training."""

    gradients: str
    """A compressor's spec, or PLAIN."""
    learning_rate: float
    num_epochs: int
    seed: int = 0
    num_workers: int = 2
    error_feedback: bool | None = None
    """None: as usual for the compressor."""
    scheme: str | None = None
    normalised: bool = False
    """With group normalisation after the convolutions."""
    validate: bool = False
    """Train on a part of the training images and judge by the rest: for tuning, which must not see test images."""

    @property
    def label(self) -> str:
        """What tells it from other ways to exchange gradients."""
        return self.gradients + (", no error feedback" if self.error_feedback is False else "")

    @property
    def name(self) -> str:
        """Names the run's file."""
        words = re.sub(r"[^\w.=]+", "-", self.label).strip("-")
        return (
            f"{'tuning-' if self.validate else ''}{words}-{self.num_workers}workers-seed{self.seed}"
            f"-lr{self.learning_rate:g}-{self.num_epochs}epochs{'-groupnorm' if self.normalised else ''}"
        )


@dataclass(frozen=True)
class Split:
    """Images and labels to train on, and others to judge by."""

    images: Tensor
    labels: Tensor
    held_out_images: Tensor
    held_out_labels: Tensor


def load_splits() -> tuple[Split, Split]:
    """The split into training and test images, and that of the training images alone, for tuning.

    Both are 3 to 1, the same every time, with equal shares of every digit.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pixels, digits = load_digits(return_X_y=True)

    def split(pixels: Any, digits: Any) -> Any:
        return train_test_split(pixels, digits, test_size=0.25, stratify=digits, random_state=0)

    def tensors(pixels: Any, held_out_pixels: Any, digits: Any, held_out_digits: Any) -> Split:
        return Split(_images(pixels), _labels(digits), _images(held_out_pixels), _labels(held_out_digits))

    train_and_test = split(pixels, digits)
    return tensors(*train_and_test), tensors(*split(train_and_test[0], train_and_test[2]))


def _images(pixels: Any) -> Tensor:
    """From 0 to 1."""
    return torch.from_numpy(pixels).float().div(16).reshape(-1, 1, 8, 8)


def _labels(digits: Any) -> Tensor:
    return torch.from_numpy(digits).long()


def make_model(*, normalised: bool) -> nn.Module:
    """Normalised by groups: unlike batches, they are the same whatever the number of workers."""

    def norm(num_channels: int) -> nn.Module:
        return nn.GroupNorm(8, num_channels) if normalised else nn.Identity()

    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        norm(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        norm(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 256),
        nn.ReLU(),
        nn.Linear(256, 10),
    )


def train(run: Run, data: Split) -> dict[str, Any]:
    """Train in the current process group; every rank calls and gets the same."""
    torch.manual_seed(run.seed)
    ddp = DistributedDataParallel(make_model(normalised=run.normalised), gradient_as_bucket_view=True, init_sync=False)
    sync = attach(run, ddp)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=run.learning_rate, momentum=0.9)
    steps_per_epoch = len(data.labels) // BATCH_SIZE
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: warmup_then_cosine(step, NUM_WARMUP_EPOCHS * steps_per_epoch, run.num_epochs * steps_per_epoch),
    )
    accuracies, losses = [], []
    started = time.perf_counter()
    for epoch in range(run.num_epochs):
        for mine in batches(len(data.labels), run.seed * run.num_epochs + epoch):
            optimizer.zero_grad()
            functional.cross_entropy(ddp(data.images[mine]), data.labels[mine]).backward()
            optimizer.step()
            schedule.step()
        accuracy, loss = judge(ddp.module, data)
        accuracies.append(accuracy)
        losses.append(loss)
    outcome = {
        "accuracies": accuracies,
        "losses": losses,
        "steps": run.num_epochs * steps_per_epoch,
        "seconds": time.perf_counter() - started,
    }
    if sync is not None:
        outcome["compression_ratio"] = sync.stats().total.compression_ratio
        outcome["compressed"] = [name for name, c in sync.strategy.gradients.items() if c.option.compresses]
        sync.detach()
    return outcome


def batches(num_images: int, key: int) -> Iterator[Tensor]:
    """The part that this rank has of every batch of an epoch, without the images left after the last full batch."""
    order = torch.randperm(num_images, generator=torch.Generator().manual_seed(key))
    for batch in order[: num_images // BATCH_SIZE * BATCH_SIZE].split(BATCH_SIZE):
        yield batch[dist.get_rank() :: dist.get_world_size()]


def attach(run: Run, ddp: DistributedDataParallel) -> thinwire.Sync | None:
    if run.gradients == PLAIN:
        return None
    return thinwire.attach(
        ddp,
        run.gradients,
        scheme=run.scheme,
        error_feedback=run.error_feedback,
        min_numel=MIN_NUMEL,
        seed=run.seed,
        num_threads=1,
    )


@torch.no_grad()
def judge(model: nn.Module, data: Split) -> tuple[float, float]:
    """The share of held-out images that the model is right about, and its mean loss on them; ranks share them."""
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    labels = data.held_out_labels[mine]
    logits = model(data.held_out_images[mine]).double()
    num_right = (logits.argmax(dim=1) == labels).sum()
    totals = torch.stack([num_right.double(), functional.cross_entropy(logits, labels, reduction="sum")])
    dist.all_reduce(totals)
    accuracy, loss = (totals / len(data.held_out_labels)).tolist()
    return accuracy, loss


def _worker(rank: int, runs: Sequence[Run], data: Split, rendezvous: str, store: RunStore) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=runs[0].num_workers)
    started, done, total = time.perf_counter(), 0, sum(run.num_epochs for run in runs)
    for number, run in enumerate(runs, 1):
        outcome = train(run, data)
        if rank == 0:
            store.save(run, outcome)
            done += run.num_epochs
            seconds = time.perf_counter() - started
            result = f"{outcome['accuracies'][-1]:.2%}, loss {outcome['losses'][-1]:.4f}"
            times = f"{seconds / 60:.0f} min, {seconds / done * (total - done) / 60:.0f} min left"
            print(f"[{number}/{len(runs)}] {run.name}: {result}; {times}", flush=True)
    dist.destroy_process_group()


def run_all(runs: Sequence[Run], data: Split, store: RunStore) -> None:
    """Run what is missing, one after another; those with the same number of workers share their processes."""
    by_num_workers: dict[int, list[Run]] = {}
    for run in runs:
        if not store.path(run).exists():
            by_num_workers.setdefault(run.num_workers, []).append(run)
    for num_workers, missing in by_num_workers.items():
        with tempfile.TemporaryDirectory() as folder:
            arguments = (missing, data, f"file://{folder}/rendezvous", store)
            torch.multiprocessing.spawn(_worker, args=arguments, nprocs=num_workers)
