"""The result as a picture: where a step's time goes, and the loss against the clock."""

from itertools import accumulate
from pathlib import Path
from typing import Any

from thinwire.demo.display import label
from thinwire.demo.modes import COMPUTE_ONLY
from thinwire.demo.result import NUM_LOSS_STEPS

_COMPUTE_COLOUR = "#9aa5b1"
_COLOURS = {"compute_only": "#9aa5b1", "ddp": "#d1495b", "ddp_fp16": "#edae49", "topk": "#00798c", "onebit": "#30638e"}


def draw(result: dict[str, Any], path: Path) -> None:
    """Write ``result`` (as in ``result.json``) as a PNG.

    Raises:
        ModuleNotFoundError: without matplotlib, which is in the extra ``report``.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.6), layout="constrained")
    bars, curves = figure.subplots(1, 2)
    _draw_steps(bars, result)
    _draw_losses(curves, result)
    link = "unshaped loopback" if result["link_mbit"] is None else f"{result['link_mbit']:g} Mbit/s"
    figure.suptitle(
        f"{result['parameters'] / 1e6:.0f} M parameter transformer, {result['workers']} workers, {link}",
        fontweight="bold",
    )
    figure.savefig(path, dpi=150)


def _draw_steps(axes: Any, result: dict[str, Any]) -> None:
    """Bars of the median step: what compute alone takes, and what the exchange adds."""
    modes = result["modes"]
    compute = modes[COMPUTE_ONLY]["step_seconds"]
    longest = max(figures["step_seconds"] for figures in modes.values())
    for place, (mode, figures) in enumerate(modes.items()):
        seconds = figures["step_seconds"]
        axes.barh(place, min(compute, seconds), color=_COMPUTE_COLOUR, label="compute" if place == 0 else None)
        axes.barh(place, max(0.0, seconds - compute), left=compute, color=_COLOURS.get(mode))
        note = f"{seconds:.2f} s"
        if mode != COMPUTE_ONLY:
            note += f"   {seconds / compute:.2f} × compute, {figures['tx_bytes_per_step'] / 1e6:.1f} MB sent"
        axes.text(seconds + 0.01 * longest, place, note, va="center", fontsize=9)
    axes.set_yticks(range(len(modes)), [label(mode) for mode in modes])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.6 * longest)
    axes.set_xlabel("median step (s): compute in grey, what the exchange adds in colour")
    axes.spines[["top", "right"]].set_visible(False)


def _draw_losses(axes: Any, result: dict[str, Any]) -> None:
    """Training loss against the time that the steps took."""
    for mode, figures in result["modes"].items():
        if mode == COMPUTE_ONLY:
            continue
        clock = list(accumulate(figures["seconds_of_steps"]))
        losses = figures["losses_of_steps"]
        smooth = [
            sum(losses[max(0, i + 1 - NUM_LOSS_STEPS) : i + 1]) / min(i + 1, NUM_LOSS_STEPS) for i in range(len(losses))
        ]
        axes.plot(clock, smooth, color=_COLOURS.get(mode), label=label(mode), linewidth=2)
        axes.plot(clock[-1], smooth[-1], "o", color=_COLOURS.get(mode))
    axes.set_xlabel("time spent training (s)")
    axes.set_ylabel(f"training loss (nats per byte, mean of {NUM_LOSS_STEPS} steps)")
    axes.set_title(f"the same {result['steps']} steps, each mode on its own clock", fontsize=10)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
