"""Shows how far modes are that take turns."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from thinwire.jobs.events import Event
from thinwire.jobs.turns import Turns


@contextmanager
def progress(
    console: Console, turns: Turns, labels: Mapping[str, str], num_steps: int, figures: Callable[[str], str]
) -> Iterator[Callable[[Event], None]]:
    """Show how far each mode is: live bars on a terminal, else a line after each turn.

    Yields a function that takes each event after ``turns`` has.

    Args:
        console: where to.
        turns: what has been done so far.
        labels: how each mode is called.
        num_steps: that each mode will do.
        figures: what to say of a mode.
    """
    if not console.is_terminal:

        def print_line(event: Event) -> None:
            if event["rank"]:
                return
            if event["event"] == "preparing":
                console.print(f"preparing {labels[event['mode']]}", markup=False, highlight=False)
            elif event["event"] == "round":
                mode = event["mode"]
                done = f"{len(turns.step_seconds(mode))} of {num_steps} steps"
                console.print(f"{labels[mode]}: {done}, {figures(mode)}", markup=False, highlight=False)

        yield print_line
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}", markup=False),
    )
    # Redrawing costs CPU time that the workers are measured on.
    with Progress(*columns, console=console, refresh_per_second=2) as bars:
        tasks = {mode: bars.add_task(label, total=num_steps, figures="") for mode, label in labels.items()}

        def update(event: Event) -> None:
            if event["event"] == "preparing":
                bars.update(tasks[event["mode"]], figures="preparing")
            elif event["event"] == "ready":
                for task in tasks.values():
                    bars.update(task, figures="")
            elif event["event"] == "step":
                mode = event["mode"]
                bars.update(tasks[mode], completed=len(turns.step_seconds(mode)), figures=figures(mode))

        yield update
