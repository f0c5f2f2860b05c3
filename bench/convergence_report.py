"""The table and the curves of the convergence comparison, from its finished runs."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from convergence_runs import PLAIN, Run, Store


def summarise(runs: Sequence[Run], store: Store) -> list[dict[str, Any]]:
    """One row for each compressor, optimizer and number of workers that has finished runs."""
    finished = [run for run in runs if store.path(run).exists()]
    plain = {(run.optimizer, run.seed): store.held_out_loss(run) for run in finished if run.gradients == PLAIN}
    groups: dict[tuple[str, str, int], list[Run]] = {}
    for run in finished:
        if (run.optimizer, run.seed) in plain:
            groups.setdefault((run.label, run.optimizer, run.num_workers), []).append(run)
    return [
        {
            "gradients": label,
            "optimizer": optimizer,
            "num_workers": num_workers,
            "learning_rate": group[0].learning_rate,
            "seeds": [run.seed for run in group],
            "held_out_losses": [store.held_out_loss(run) for run in group],
            "differences": [store.held_out_loss(run) / plain[optimizer, run.seed] - 1 for run in group],
            "compression_ratio": store.load(group[0]).get("compression_ratio", 1.0),
        }
        for (label, optimizer, num_workers), group in groups.items()
    ]


def show(rows: Sequence[dict[str, Any]], console: Console) -> None:
    for optimizer in dict.fromkeys(row["optimizer"] for row in rows):
        mine = [row for row in rows if row["optimizer"] == optimizer]
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
    optimizers = list(dict.fromkeys(run.optimizer for run in runs))
    panels = figure.subplots(2, len(optimizers), sharex=True, sharey="row", squeeze=False)
    labels = dict.fromkeys(run.label for run in runs if run.gradients != PLAIN)
    colours = {PLAIN: "black"} | dict(zip(labels, colormaps["tab20"].colors, strict=False))
    for (top, bottom), optimizer in zip(panels.T, optimizers, strict=True):
        outcomes = {
            run.label: outcome
            for run in runs
            if (run.optimizer, run.seed, run.num_workers) == (optimizer, 0, 2)
            and (outcome := store.load(run)) is not None
        }
        plain = outcomes[PLAIN]["held_out_losses"]
        for label, outcome in outcomes.items():
            losses = outcome["held_out_losses"]
            differences = [100 * (loss / yardstick - 1) for loss, yardstick in zip(losses, plain, strict=True)]
            for axes, values in ((top, losses), (bottom, differences)):
                width = 2.5 if label == PLAIN else 1.3
                axes.plot(outcome["evaluated_steps"], values, label=label, color=colours[label], linewidth=width)
        top.set_title(optimizer)
        bottom.set_xlabel("optimizer steps")
        for axes in (top, bottom):
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(alpha=0.3)
    panels[0, 0].set_ylabel("held-out loss (nats per byte)")
    panels[0, 0].set_ylim(top=3.2)
    panels[1, 0].set_ylabel("difference to plain DDP (%)")
    panels[1, 0].set_ylim(-3, 10)
    panels[1, -1].legend(frameon=False, fontsize=8, ncols=2, loc="upper left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
