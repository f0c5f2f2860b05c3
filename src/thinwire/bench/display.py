"""What a person sees on the terminal: a table for each point."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table

NOTHING = "–"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the tables of figures."""

    name: str
    short: str
    """For a terminal, where it has to be narrow."""
    cell: Callable[[dict[str, Any]], str]
    """Makes a cell of a method's figures."""


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.0f}"


def _if_known(name: str, form: Callable[[float], str]) -> Callable[[dict[str, Any]], str]:
    return lambda figures: form(figures[name]) if name in figures else NOTHING


def _part(part: str, condition: str) -> Callable[[dict[str, Any]], str]:
    return lambda figures: _milliseconds(figures["parts"][part]) if condition in figures else NOTHING


COLUMNS = (
    Column("step (ms)", "step", lambda f: _milliseconds(f["step_seconds"])),
    Column("speedup over ssgd", "speed", _if_known("speedup", lambda x: f"{x:.2f}")),
    Column("compute (ms)", "compute", _part("compute", "parts")),
    Column("encode (ms)", "encode", _part("encode", "encode_seconds")),
    Column("decode (ms)", "decode", _part("decode", "decode_seconds")),
    Column("exposed (ms)", "exposed", _part("exposed", "losses_of_steps")),
    Column("optimizer (ms)", "opt.", _part("optimizer", "parts")),
    Column("sent (MB)", "sent", lambda f: f"{f['sent_bytes_per_step'] / 1e6:.2f}" if "loss" in f else NOTHING),
    Column("memory (MB)", "mem.", _if_known("memory_growth_bytes", lambda x: f"{x / 1e6:.0f}")),
    Column("loss", "loss", _if_known("loss", lambda x: f"{x:.3f}")),
)

LEGEND = (
    "step: median, in ms, then what it consists of; speed: step of ssgd / step; compute: forward and backward alone; "
    "exposed: communication that was not hidden; sent: MB by each worker, as its interface counts; memory: peak MB of "
    "a process that runs the method alone, less what it had before; loss: mean of the last steps"
)


def title(point: dict[str, Any]) -> str:
    """What was measured, in one line."""
    settings = point["settings"]
    batch = "" if settings["batch_size"] is None else f", batch {settings['batch_size']}"
    return (
        f"{settings['model']}, {point['parameters'] / 1e6:.1f} M parameters{batch}, {settings['workers']} workers, "
        f"{link(settings)}"
    )


def link(settings: dict[str, Any]) -> str:
    """The network in words."""
    if settings["link_mbit"] is not None:
        return f"{settings['link_mbit']:g} Mbit/s links"
    return "unshaped links" if settings["network"] == "lab" else "unshaped loopback"


def table(point: dict[str, Any]) -> Table:
    """The figures of all methods side by side."""
    shown = Table(
        title=title(point),
        title_justify="left",
        caption=LEGEND,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=0,  # the box has a space between columns
    )
    shown.add_column("method", overflow="fold", min_width=12)
    columns = [column for column in COLUMNS if any(column.cell(f) != NOTHING for f in point["methods"].values())]
    for column in columns:
        shown.add_column(column.short, justify="right", no_wrap=True)
    for method, figures in point["methods"].items():
        shown.add_row(method, *(column.cell(figures) for column in columns))
    return shown
