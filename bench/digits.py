"""Low-rank compression on a task that ends at a known accuracy: handwritten digits, and a small convolutional network.

    python bench/digits.py [--out runs/digits] [--epochs 20] [--seeds 5]

scikit-learn's 1,797 images of 8 × 8 pixels, of which a quarter, the same for all, are the test images; two
convolutions and two linear layers; SGD with momentum, by DDP workers over gloo on the loopback interface. The
learning rate is tuned for plain DDP (S-SGD), on a quarter of the training images, and reused for all; warm-up, then
cosine decay to zero. The batch of a step is the same whatever the number of workers, and a seed gives all the same
initial weights and batches. ACP-SGD and Power-SGD are run as they are meant to be and without what they rest on.

The best rate for plain DDP is less than twice smaller than one at which it diverges, so all is also run at half of it;
and what the comparison is about, also on the network with group normalisation, at that network's best rate.

Every finished training is one JSON file in --out, and is not run again. In the end there are a table, summary.json,
and the curves as a PNG.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from json import dumps
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from digits_runs import BATCH_SIZE, MIN_NUMEL, NUM_WARMUP_EPOCHS, PLAIN, Run, Split, load_splits, run_all
from store import RunStore
from thinwire.jobs.circumstances import circumstances

LEARNING_RATES = (0.025, 0.05, 0.1, 0.2, 0.4)
NUM_TUNING_SEEDS = 3
GUESSING = 20.0
"""A run that ends at a lower accuracy, in per cent, has diverged: guessing is right once in ten times."""
TARGET_POINTS = 0.3
"""How far below S-SGD's the accuracy of what is used as it is meant may be, in the mean over seeds."""

ACP, POWER = "acpsgd(approx_rank=4)", "powersgd(approx_rank=4)"
WAYS: tuple[dict[str, Any], ...] = (
    {"gradients": PLAIN},
    {"gradients": ACP},
    {"gradients": POWER},
    {"gradients": ACP, "error_feedback": False},
    {"gradients": "acpsgd(approx_rank=4, warm_start=false)"},
    {"gradients": "acpsgd(approx_rank=4, warm_start=false)", "error_feedback": False},
    {"gradients": POWER, "error_feedback": False},
    {"gradients": "topk(ratio=0.001)", "scheme": "allgather"},
    {"gradients": "onebit", "scheme": "allgather"},
)


MAIN_WAYS = WAYS[:3]


@dataclass(frozen=True)
class Setting:
    """What the ways of exchanging gradients are compared in."""

    learning_rate: float
    num_workers: int
    normalised: bool = False

    @property
    def title(self) -> str:
        network = ", group normalisation" if self.normalised else ""
        return f"{self.num_workers} workers, learning rate {self.learning_rate:g}{network}"


def tune(num_epochs: int, data: Split, store: RunStore, *, normalised: bool) -> float:
    """The learning rate with the lowest validation loss of plain DDP, in the mean over seeds."""
    runs = {
        rate: [
            Run(
                gradients=PLAIN,
                learning_rate=rate,
                num_epochs=num_epochs,
                seed=seed,
                normalised=normalised,
                validate=True,
            )
            for seed in range(NUM_TUNING_SEEDS)
        ]
        for rate in LEARNING_RATES
    }
    run_all([run for group in runs.values() for run in group], data, store)
    losses = {rate: fmean(last(run, "losses", store) for run in group) for rate, group in runs.items()}
    network = "with group normalisation" if normalised else "without normalisation"
    figures = ", ".join(f"{loss:.4f} at {rate:g}" for rate, loss in losses.items())
    print(f"validation losses of plain DDP {network}: {figures}")
    best = min(losses, key=losses.__getitem__)
    if best in (LEARNING_RATES[0], LEARNING_RATES[-1]):
        print(f"the best learning rate, {best:g}, is at the end of its grid; widen LEARNING_RATES")
    return best


def last(run: Run, what: str, store: RunStore) -> float:
    """An outcome after the last epoch; a loss that is not a number is infinite."""
    value: float = store.load(run)[what][-1]
    return value if value == value else float("inf")


def summarise(setting: Setting, groups: Sequence[Sequence[Run]], store: RunStore) -> list[dict[str, Any]]:
    """One row for each way. Differences are seed by seed, against plain DDP in the same setting."""
    accuracies = {run: 100 * last(run, "accuracies", store) for group in groups for run in group}
    plain = {run.seed: accuracy for run, accuracy in accuracies.items() if run.gradients == PLAIN}
    rows = []
    for group in groups:
        losses = [last(run, "losses", store) for run in group]
        mine = [accuracies[run] for run in group]
        differences = [accuracies[run] - plain[run.seed] for run in group]
        outcome = store.load(group[0])
        rows.append(
            {
                "gradients": group[0].label,
                **asdict(setting),
                "seeds": [run.seed for run in group],
                "compression_ratio": outcome.get("compression_ratio", 1.0),
                "compressed": outcome.get("compressed", []),
                "accuracies": mine,
                "accuracy_mean": fmean(mine),
                "accuracy_sd": stdev(mine),
                "difference_mean": fmean(differences),
                "difference_sd": stdev(differences),
                "num_diverged": sum(accuracy < GUESSING for accuracy in mine),
                "losses": losses,
                "loss_mean": fmean(losses),
                "loss_sd": stdev(losses),
            }
        )
    return rows


def show(setting: Setting, rows: Sequence[dict[str, Any]], console: Console) -> None:
    table = Table(title=setting.title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("gradients")
    for heading in ("smaller", "test accuracy, %", "points to S-SGD", "test loss", "diverged"):
        table.add_column(heading, justify="right")
    for row in rows:
        is_plain = row["gradients"] == PLAIN
        table.add_row(
            row["gradients"],
            f"{row['compression_ratio']:.1f} ×",
            f"{row['accuracy_mean']:.2f} ± {row['accuracy_sd']:.2f}",
            "" if is_plain else f"{row['difference_mean']:+.2f} ± {row['difference_sd']:.2f}",
            f"{row['loss_mean']:.3g} ± {row['loss_sd']:.2g}",
            f"{row['num_diverged']} of {len(row['seeds'])}" if row["num_diverged"] else "",
        )
    console.print(table)
    for row in rows:
        if row["gradients"] in (ACP, POWER):
            verdict = "within" if row["difference_mean"] >= -TARGET_POINTS else "NOT within"
            console.print(f"{row['gradients']}: {verdict} {TARGET_POINTS} points of S-SGD")


def draw(compared: dict[Setting, list[list[Run]]], store: RunStore, path: Path) -> None:
    """Test loss and accuracy against epochs, with a column for each setting: means and ± s.d. over seeds."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5 * len(compared), 8), layout="constrained")
    labels = dict.fromkeys(group[0].label for groups in compared.values() for group in groups)
    colours = dict(zip(labels, ("black", *colormaps["tab10"].colors), strict=False))
    panels = figure.subplots(2, len(compared), sharex=True, sharey="row", squeeze=False)
    for (setting, groups), (losses, accuracies) in zip(compared.items(), panels.T, strict=True):
        for group in groups:
            label, outcomes = group[0].label, [store.load(run) for run in group]
            width, style = (2.5 if label == PLAIN else 1.5), ("--" if is_ablation(group[0]) else "-")
            for axes, what, unit in ((losses, "losses", 1), (accuracies, "accuracies", 100)):
                by_epoch = list(zip(*(outcome[what] for outcome in outcomes), strict=True))
                epochs = range(1, len(by_epoch) + 1)
                means, spreads = [unit * fmean(v) for v in by_epoch], [unit * stdev(v) for v in by_epoch]
                low, high = ([m + sign * s for m, s in zip(means, spreads, strict=True)] for sign in (-1, 1))
                axes.plot(epochs, means, style, label=label, color=colours[label], linewidth=width)
                axes.fill_between(epochs, low, high, color=colours[label], alpha=0.12, linewidth=0)
        losses.set_title(setting.title.replace(", group", "\ngroup"), fontsize=10)
        accuracies.set_xlabel("epochs")
        for axes in (losses, accuracies):
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(alpha=0.3)
    panels[0, 0].set_yscale("log")
    panels[0, 0].set_ylim(0.02, 4)
    panels[1, 0].set_ylim(80, 100)
    panels[0, 0].set_ylabel("test loss")
    panels[1, 0].set_ylabel("test accuracy (%)")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), frameon=False, ncols=3, loc="outside lower center")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def is_ablation(run: Run) -> bool:
    return run.error_feedback is False or "warm_start=false" in run.gradients


def main(
    out: Annotated[Path, typer.Option(help="Folder of the finished runs.")] = Path("runs/digits"),
    epochs: Annotated[int, typer.Option(min=NUM_WARMUP_EPOCHS + 1, help="Epochs of a run.")] = 20,
    seeds: Annotated[int, typer.Option(min=2, help="Runs of each way.")] = 5,
    chart: Annotated[Path | None, typer.Option(help="Where to draw the curves; by default in --out.")] = None,
) -> None:
    """Train by every way of exchanging gradients and compare test accuracies."""
    store = RunStore(out)
    data, tuning_data = load_splits()
    best = tune(epochs, tuning_data, store, normalised=False)
    best_normalised = tune(epochs, tuning_data, store, normalised=True)
    settings = {
        Setting(best, 2): WAYS,
        Setting(best, 4): MAIN_WAYS,
        Setting(best / 2, 2): WAYS,
        Setting(best / 2, 4): WAYS,
        Setting(best_normalised, 2, normalised=True): MAIN_WAYS,
    }
    compared = {
        setting: [
            [Run(**way, **asdict(setting), num_epochs=epochs, seed=seed) for seed in range(seeds)] for way in ways
        ]
        for setting, ways in settings.items()
    }
    run_all([run for groups in compared.values() for group in groups for run in group], data, store)
    console = Console()
    rows = []
    for setting, groups in compared.items():
        rows += summarise(setting, groups, store)
        show(setting, rows[-len(groups) :], console)
    console.print("compressed:", ", ".join(next(row["compressed"] for row in rows if row["compressed"])))
    common = {
        "training_images": len(data.labels),
        "test_images": len(data.held_out_labels),
        "epochs": epochs,
        "batch_size": BATCH_SIZE,
        "min_numel": MIN_NUMEL,
    }
    (out / "summary.json").write_text(dumps({**common, "rows": rows, **circumstances()}, indent=1) + "\n")
    draw(compared, store, chart or out / "digits.png")


if __name__ == "__main__":
    typer.run(main)
