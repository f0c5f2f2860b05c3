"""What a person sees: progress while the workers train, then a table and one sentence."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from thinwire.demo.modes import COMPUTE_ONLY, DDP, DDP_FP16, EMBEDDING, SPECS
from thinwire.demo.result import NUM_LOSS_STEPS, Recorder
from thinwire.jobs.events import Event
from thinwire.jobs.progress import progress as progress_of_turns

_LABELS = {COMPUTE_ONLY: "compute only", DDP: "DDP", DDP_FP16: "DDP, fp16 hook", "topk": "thinwire topk 1 %"}


def label(mode: str) -> str:
    """How a mode is called in tables and charts."""
    return _LABELS.get(mode, f"thinwire {mode}")


def progress(console: Console, recorder: Recorder) -> AbstractContextManager[Callable[[Event], None]]:
    """Show how far each mode is, as :func:`thinwire.jobs.progress.progress` says."""
    return progress_of_turns(
        console,
        recorder,
        {mode: label(mode) for mode in recorder.job.modes},
        recorder.job.num_steps,
        lambda mode: _figures_so_far(recorder, mode),
    )


def _figures_so_far(recorder: Recorder, mode: str) -> str:
    steps = recorder.step_seconds(mode)
    if not steps:
        return ""
    figures = f"{recorder.median_step_seconds(mode) or steps[-1]:.2f} s a step"
    return figures if mode == COMPUTE_ONLY else f"{figures}, loss {recorder.losses(mode)[-1]:.2f}"


def table(result: dict[str, Any]) -> Table:
    """The figures of all modes side by side."""
    link = "unshaped loopback" if result["link_mbit"] is None else f"{result['link_mbit']:g} Mbit/s links"
    rows = Table(
        title=f"{result['workers']} workers, {link}, {result['parameters'] / 1e6:.1f} M parameters, "
        f"{result['steps']} steps of each mode",
        title_justify="left",
        caption="step: median; of compute: speed, as a share of that without communication; sent: by each worker in a "
        f"step, as its interface counts; loss: nats per byte, of the last {NUM_LOSS_STEPS} training steps and of "
        f"held-out text; thinwire compresses after the first {result['uncompressed_steps']} steps, the embedding by "
        f"{', '.join(EMBEDDING.values())}",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    rows.add_column("gradients", no_wrap=True)
    for name in ("step", "of compute", "sent", "smaller", "loss", "held-out"):
        rows.add_column(name, justify="right")
    for mode, figures in result["modes"].items():
        rows.add_row(
            label(mode),
            f"{figures['step_seconds']:.3f} s",
            _cell(figures, "share_of_compute_speed", lambda share: f"{share:.0%}"),
            _cell(figures, "tx_bytes_per_step", lambda size: f"{size / 1e6:.2f} MB"),
            _cell(figures, "compression", lambda ratio: f"{ratio:.1f} ×"),
            _cell(figures, "loss", lambda loss: f"{loss:.3f}"),
            _cell(figures, "held_out_loss", lambda loss: f"{loss:.3f}"),
        )
    return rows


def _cell(figures: dict[str, Any], name: str, form: Callable[[float], str]) -> str:
    return form(figures[name]) if name in figures else "–"


def outcome(result: dict[str, Any]) -> str:
    """One sentence: what the fastest thinwire mode gains over plain DDP, and what it costs."""
    modes = result["modes"]
    mode = min(SPECS.keys() & modes.keys(), key=lambda name: modes[name]["step_seconds"])
    best, ddp = modes[mode], modes[DDP]
    link = "On the unshaped loopback" if result["link_mbit"] is None else f"On a {result['link_mbit']:g} Mbit/s link"
    difference = best["loss"] / ddp["loss"] - 1
    return (
        f"{link} {label(mode)} takes {best['step_seconds']:.2f} s a step where plain DDP takes "
        f"{ddp['step_seconds']:.2f} s: {ddp['step_seconds'] / best['step_seconds']:.1f} times as fast, "
        f"at {best['share_of_compute_speed']:.0%} of the speed without communication, "
        f"sending {best['compression']:.0f} times fewer bytes in a step that compresses; its loss after "
        f"{result['steps']} steps is "
        f"{abs(difference):.1%} {'above' if difference >= 0 else 'below'} plain DDP's."
    )
