"""How fast rows are made orthonormal, and how orthonormal they are, by each of a few ways.

    python bench/orthonormalise.py [--repeats 15] [--json runs/orthonormalise.json]

One thread. The ways: the kernel ``orthonormalise_``; ``torch.linalg.qr``, one matrix after the other and all at once;
and Cholesky-QR, all at once, with QR where the Cholesky factorisation fails. A time is that of one of several equal
matrices, as a model has them, by the thread's CPU time; all ways take turns, and medians are compared. What is wrong
with a result is the largest element of ``|R Rᵀ - I|``, over well-conditioned input and over input of each nasty kind.
"""

import platform
import time
from collections.abc import Callable
from json import dumps
from pathlib import Path
from statistics import median
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from thinwire.kernels import orthonormalise_

RANKS = (1, 4, 8, 32)
WIDTHS = (64, 384, 1536, 4096)
MATRICES = 16


def kernel(batch: Tensor) -> Tensor:
    for rows in batch:
        orthonormalise_(rows)
    return batch


def qr_looped(batch: Tensor) -> Tensor:
    for rows in batch:
        rows.copy_(torch.linalg.qr(rows.T).Q.T)
    return batch


def qr_batched(batch: Tensor) -> Tensor:
    return batch.copy_(torch.linalg.qr(batch.mT).Q.mT)


def cholesky(batch: Tensor) -> Tensor:
    """R Rᵀ = L Lᵀ, and so L⁻¹ R has orthonormal rows; QR for all where an L does not exist."""
    lower, failed = torch.linalg.cholesky_ex(batch @ batch.mT)
    if failed.any():
        return qr_batched(batch)
    return batch.copy_(torch.linalg.solve_triangular(lower, batch, upper=False))


WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "kernel": kernel,
    "qr, looped": qr_looped,
    "qr, batched": qr_batched,
    "cholesky, batched": cholesky,
}

NASTY: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": lambda rows: rows,
    "zero": torch.zeros_like,
    "a row twice": lambda rows: torch.cat([rows[:1], rows[:-1]]),
    "rank 1": lambda rows: rows[:, :1] * rows[:1],
    "nearly rank 1": lambda rows: rows[:1] + 1e-4 * rows,
    "an ulp apart": lambda rows: rows[:1] * (1 + 2**-23 * (rows > 0)),
    "times 1e-38": lambda rows: 1e-38 * rows,
    "times 1e-44": lambda rows: 1e-44 * rows,
    "times 1e37": lambda rows: 1e37 * rows,
    "rows of 1e-38 to 1e37": lambda rows: torch.logspace(-38, 37, rows.shape[0]).unsqueeze(1) * rows,
}


def normal(count: int, rank: int, width: int) -> Tensor:
    return torch.randn(count, rank, width, generator=torch.Generator().manual_seed(rank * width))


def cpu_seconds(way: Callable[[Tensor], Tensor], batch: Tensor) -> float:
    begin = time.thread_time()
    way(batch)
    return time.thread_time() - begin


def wrong(rows: Tensor) -> float:
    """The largest element of ``|R Rᵀ - I|``; infinite where something is not finite."""
    rows = rows.double()
    worst = (rows @ rows.mT - torch.eye(rows.shape[-2])).abs().max().item()
    return worst if worst == worst else float("inf")


def times(repeats: int) -> list[dict[str, object]]:
    """Microseconds for one matrix, for each shape and way."""
    rows = []
    for rank in track(RANKS, "measuring"):
        for width in WIDTHS:
            batch = normal(MATRICES, rank, width)
            seconds: dict[str, list[float]] = {name: [] for name in WAYS}
            for turn in range(repeats + 1):
                for name, way in WAYS.items():
                    taken = cpu_seconds(way, batch.clone())
                    if turn:  # the first compiles
                        seconds[name].append(taken)
            us = {name: 1e6 * median(taken) / MATRICES for name, taken in seconds.items()}
            rows.append({"rank": rank, "width": width, "us": us})
    return rows


def errors() -> dict[str, dict[str, float]]:
    """What is wrong with the worst result over all shapes, for each kind of input and way."""
    inputs = [normal(1, rank, width)[0] for rank in RANKS for width in WIDTHS]
    return {
        kind: {name: max(wrong(way(spoil(rows).unsqueeze(0).clone())) for rows in inputs) for name, way in WAYS.items()}
        for kind, spoil in NASTY.items()
    }


def show(result: dict, console: Console) -> None:
    table = Table(title=f"µs of CPU time for a matrix, {MATRICES} of a shape")
    table.add_column("rows")
    for name in WAYS:
        table.add_column(name, justify="right")
    for row in result["times"]:
        table.add_row(f"{row['rank']} × {row['width']}", *(f"{row['us'][name]:.1f}" for name in WAYS))
    console.print(table)
    table = Table(title="largest element of |R Rᵀ - I|, over all shapes")
    table.add_column("input", no_wrap=True)
    for name in WAYS:
        table.add_column(name, justify="right")
    for kind, row in result["errors"].items():
        table.add_row(kind, *(f"{row[name]:.0e}" for name in WAYS))
    console.print(table)


def main(
    repeats: Annotated[int, typer.Option(help="How often each shape and way runs; medians are shown.")] = 15,
    json: Annotated[Path | None, typer.Option(help="Also write the numbers to this file.")] = None,
) -> None:
    """Compare ways to make rows orthonormal."""
    torch.set_num_threads(1)
    result = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "matrices": MATRICES,
        "repeats": repeats,
        "times": times(repeats),
        "errors": errors(),
    }
    show(result, Console())
    if json is not None:
        json.parent.mkdir(parents=True, exist_ok=True)
        json.write_text(dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
