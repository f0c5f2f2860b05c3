"""The pictures of a report. All need matplotlib, which is in the extra ``report``."""

from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path
from typing import Any

from thinwire.bench.display import title
from thinwire.bench.method import COMPUTE, SSGD
from thinwire.bench.result import NUM_LOSS_STEPS, PARTS
from thinwire.bench.sweeps import AXES, Sweep

_PART_COLOURS = {
    "compute": "#9aa5b1",
    "encode": "#00798c",
    "decode": "#66c2a5",
    "exposed": "#d1495b",
    "optimizer": "#d8dde3",
}


def _colours(methods: Iterable[str]) -> dict[str, Any]:
    """The baseline is black; the others are told apart in their order."""
    from matplotlib import colormaps

    others = [name for name in methods if name not in (SSGD, COMPUTE)]
    colours = [colormaps[name](number) for name in ("tab10", "Dark2", "Set2") for number in range(8)]
    return {SSGD: "black", COMPUTE: "#9aa5b1"} | {
        name: colours[place % len(colours)] for place, name in enumerate(others)
    }


def draw_breakdown(point: dict[str, Any], path: Path) -> None:
    """Stacked bars: what the median step of every method consists of."""
    from matplotlib.figure import Figure

    methods = point["methods"]
    figure = Figure(figsize=(9, 1.4 + 0.42 * len(methods)), layout="constrained")
    axes = figure.subplots()
    longest = max(figures["step_seconds"] for figures in methods.values())
    for place, figures in enumerate(methods.values()):
        left = 0.0
        for part in PARTS:
            axes.barh(
                place,
                figures["parts"][part],
                left=left,
                color=_PART_COLOURS[part],
                label=part if place == 0 else None,
            )
            left += figures["parts"][part]
        note = f"{figures['step_seconds']:.3f} s"
        if "speedup" in figures:
            note += f", {figures['speedup']:.2f} ×"
        axes.text(figures["step_seconds"] + 0.01 * longest, place, note, va="center", fontsize=8)
    axes.set_yticks(range(len(methods)), list(methods), fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.2 * longest)
    axes.set_xlabel(f"median step (s){'; ×: as fast as ssgd' if SSGD in methods else ''}")
    axes.set_title(title(point), fontsize=10)
    axes.legend(frameon=False, fontsize=8, ncols=len(PARTS), loc="upper center", bbox_to_anchor=(0.5, -0.16))
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)


def draw_losses(point: dict[str, Any], path: Path) -> None:
    """Training loss against steps, and against the time that they took."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    against_steps, against_time = figure.subplots(1, 2, sharey=True)
    colours = _colours(point["methods"])
    for method, figures in point["methods"].items():
        if "losses_of_steps" not in figures:
            continue
        losses = _smooth(figures["losses_of_steps"])
        # The baseline is broad and pale, so that what learns just as fast is seen on it.
        broad = {"linewidth": 5, "alpha": 0.3} if method == SSGD else {"linewidth": 1.3}
        style = {"color": colours[method], "label": method, **broad}
        against_steps.plot(range(1, len(losses) + 1), losses, **style)
        against_time.plot(list(accumulate(figures["seconds_of_steps"])), losses, **style)
    against_steps.set_xlabel("steps")
    against_steps.set_ylabel(f"training loss, mean of {NUM_LOSS_STEPS} steps")
    against_time.set_xlabel("time of the method's own steps (s)")
    against_time.legend(frameon=False, fontsize=8)
    for axes in (against_steps, against_time):
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title(point), fontsize=10)
    figure.savefig(path, dpi=130)


def _smooth(losses: list[float]) -> list[float]:
    windows = [losses[max(0, i + 1 - NUM_LOSS_STEPS) : i + 1] for i in range(len(losses))]
    return [sum(window) / len(window) for window in windows]


def draw_sweep(sweep: Sweep, path: Path) -> None:
    """How every method's step time and its speed relative to ssgd change along one setting."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogFormatter

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    times, speeds = figure.subplots(1, 2)
    places = range(len(sweep.points))
    methods = sweep.points[0]["methods"]
    colours = _colours(methods)
    for method in methods:
        style = {"color": colours[method], "label": method, "marker": "o", "markersize": 4}
        if method == COMPUTE:
            style["linestyle"] = "--"
        of_points = [point["methods"][method] for point in sweep.points]
        times.plot(places, [figures["step_seconds"] for figures in of_points], **style)
        if all("speedup" in figures for figures in of_points):
            speeds.plot(places, [figures["speedup"] for figures in of_points], **style)
    times.set_ylabel("median step (s)")
    speeds.set_ylabel("times as fast as ssgd")
    for axes in (times, speeds):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(LogFormatter(labelOnlyBase=False, minor_thresholds=(1.5, 0.6)))
        axes.tick_params(axis="y", which="minor", labelsize=7)
        axes.set_xticks(places, sweep.places)
        axes.set_xlabel(AXES[sweep.axis])
        axes.spines[["top", "right"]].set_visible(False)
    times.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=130)
