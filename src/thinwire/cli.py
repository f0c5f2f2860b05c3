"""The command ``thinwire``: one function per subcommand.

What a subcommand needs is imported inside it, so that help comes at once.
"""

import json
import math
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from thinwire import __version__

TABLE_SHAPE = (1024, 1024)
"""Of the gradient for which ``thinwire compressors`` states bits per element."""

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command line and exit with its status: 2 for wrong usage, 1 if something cannot be done here."""
    app()


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"thinwire {__version__}")
        raise typer.Exit


@app.callback()
def _thinwire(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train data-parallel PyTorch models over slow networks as if the network were fast."""


@contextmanager
def _failing_with(status: int, *kinds: type[Exception]) -> Iterator[None]:
    """Turn these exceptions into one line on the error stream and an exit status."""
    try:
        yield
    except kinds as error:
        print(f"thinwire: {error}", file=sys.stderr)
        raise typer.Exit(status) from error


def _exit_on_signals() -> None:
    """Let signals unwind the stack, so that a command that started others ends them in order."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))


Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def demo(
    workers: Annotated[int, typer.Option(help="Number of workers.")] = 2,
    rate: Annotated[str, typer.Option(help="Of each link, in each direction: 200mbit, 1gbit.")] = "200mbit",
    steps: Annotated[int | None, typer.Option(help="Optimizer steps of each mode, a multiple of 5.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for result.json and result.png.")] = Path("runs/demo"),
    quick: Annotated[bool, typer.Option("--quick", help="Fewer steps: rougher times, and no word on losses.")] = False,
    as_json: Json = False,
) -> None:
    """Train a small model over a slow network, plainly and compressed, and compare.

    Example: thinwire demo --rate 100mbit
    """
    from thinwire.demo.main import run
    from thinwire.jobs.launch import WorkerError
    from thinwire.lab import LabUnavailable

    _exit_on_signals()
    with _failing_with(2, ValueError, FileExistsError), _failing_with(1, WorkerError, LabUnavailable):
        run(workers=workers, rate=rate, steps=steps, out=out, as_json=as_json, quick=quick)


@app.command()
def bench(
    methods: Annotated[
        list[str] | None,
        typer.Argument(metavar="[METHOD]...", help="What to compare; by default plain DDP, and some compressors."),
    ] = None,
    model: Annotated[str, typer.Option(help="lm, vgg, resnet, mlp, or path/to/file.py:function.")] = "lm",
    workers: Annotated[list[int], typer.Option(help="Number of workers; may be repeated.")] = [2],  # noqa: B006
    rate: Annotated[
        list[str], typer.Option(help="Of each link, in each direction: 200mbit, 1gbit, unshaped; may be repeated.")
    ] = ["200mbit"],  # noqa: B006
    batch_size: Annotated[
        list[int] | None, typer.Option(help="On each worker, for built-in models; may be repeated.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of each method, a multiple of 6; by default 36.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="adamw or sgd; by default the model's own.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="By default the model's own.")] = None,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for index.html, its pictures, and result.json.")] = Path(
        "runs/bench"
    ),
    memory: Annotated[bool, typer.Option(help="Run each method once more, alone, for its memory.")] = True,
    resume: Annotated[bool, typer.Option("--resume", help="Keep what was measured with the same settings.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="12 steps and no memory: rougher times.")] = False,
    as_json: Json = False,
) -> None:
    """Measure ways to exchange a model's gradients, and where the time of their steps goes.

    A METHOD is compute (no exchange), ssgd (plain DDP), ddp_fp16 (PyTorch's fp16
    hook), or a compressor's spec; thinwire compressors lists them. Options in its
    parentheses: bucket_mb=25; wfbp=off, which exchanges only after backward;
    fusion=off, which gives every gradient its own bucket; and for compressors
    scheme=allgather. Methods take turns of 6 steps on the same workers.

    The function of --model takes no arguments and returns (model, batch, loss): a
    module; batch(step, rank), which returns (inputs, targets); and
    loss(model(inputs), targets). Inputs are a tensor, or a tuple of arguments.

    Example: thinwire bench ssgd 'ssgd(wfbp=off)' onebit 'topk(ratio=0.001)' --model vgg --rate 100mbit --rate 1gbit
    """
    from thinwire.bench.main import run
    from thinwire.jobs.launch import WorkerError
    from thinwire.lab import LabUnavailable

    _exit_on_signals()
    with (
        _failing_with(2, ValueError, FileExistsError, NotADirectoryError),
        _failing_with(1, WorkerError, LabUnavailable),
    ):
        run(
            methods or (),
            model=model,
            workers=workers,
            rates=rate,
            batch_sizes=batch_size or (),
            steps=steps,
            optimizer=optimizer,
            learning_rate=learning_rate,
            seed=seed,
            out=out,
            memory=memory,
            resume=resume,
            quick=quick,
            as_json=as_json,
        )


@app.command(context_settings={"allow_interspersed_args": False})
def lab(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="What to run, once per worker.")],
    workers: Annotated[int, typer.Option(help="Number of workers.")] = 2,
    rate: Annotated[str | None, typer.Option(help="Of each link, in each direction: 200mbit, 1gbit.")] = None,
    delay: Annotated[str | None, typer.Option(help="From one worker to another: 100us, 1ms.")] = None,
    loss: Annotated[str | None, typer.Option(help="Share of packets lost on the way: 0.1%.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds after which the command is ended.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the links' counters as JSON; output of COMMAND goes to stderr.")
    ] = False,
) -> None:
    """Run a command on several workers joined by a slow network, all on this machine.

    Every worker is a process in a network namespace of its own, with the
    environment variables that torchrun sets. The first worker that fails ends
    all, and its exit status is passed on. Needs root or user namespaces, and the
    programs ip and tc (package iproute2).

    Example: thinwire lab --workers 2 --rate 200mbit -- python train.py --epochs 1
    """
    from thinwire.lab import Lab, LabUnavailable, LinkShape

    _exit_on_signals()
    with _failing_with(2, ValueError):
        if timeout is not None and not 0 < timeout < float("inf"):
            raise ValueError(f"timeout is {timeout:g} seconds; allowed is any time above 0")
        network = Lab(num_workers=workers, shape=LinkShape.parse(rate=rate, delay=delay, loss=loss))
    with _failing_with(1, LabUnavailable, FileNotFoundError, TimeoutError), network:
        status = network.run(command, timeout_seconds=timeout, on_line=_to_stderr if as_json else None)
        counters = [{"rank": rank, **asdict(link)} for rank, link in enumerate(network.counters())]
    if as_json:
        print(json.dumps({"status": status, "shape": asdict(network.shape), "links": counters}))
    else:
        for link in counters:
            sent, received = link["sent_bytes"] / 1e6, link["received_bytes"] / 1e6
            print(f"[{link['rank']}] sent {sent:.2f} MB, received {received:.2f} MB", file=sys.stderr)
    raise typer.Exit(status)


def _to_stderr(rank: int, line: str) -> None:
    print(f"[{rank}] {line}", file=sys.stderr, flush=True)


@app.command()
def compressors(as_json: Json = False) -> None:
    """List the compressors: how their spec is written, what they send, and what they need."""
    from thinwire.compress import known, signature

    rows = [
        {
            "id": cls.id,
            "spec": signature(cls),
            "bits_per_element": method.average_nbytes(TABLE_SHAPE) * 8 / math.prod(TABLE_SHAPE),
            "reducible": method.reducible,
            "unbiased": method.unbiased,
            "error_feedback": method.keeps_errors,
        }
        for cls in known()
        for method in [cls()]
    ]
    if as_json:
        print(json.dumps(rows))
        return
    title = "Compressors with their settings' defaults"
    table = Table("spec", title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("bits per\nelement", justify="right")
    for name in ("reducible", "unbiased", "error\nfeedback"):
        table.add_column(name, justify="center")
    for row in rows:
        facts = ["yes" if row[name] else "–" for name in ("reducible", "unbiased", "error_feedback")]
        table.add_row(str(row["spec"]), f"{row['bits_per_element']:.2f}", *facts)
    Console().print(table)
