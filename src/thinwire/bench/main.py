"""``thinwire bench``: measure, show, and write down."""

import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console

from thinwire.bench.display import table, title
from thinwire.bench.job import Job, with_compute
from thinwire.bench.method import COMPUTE, parse_method
from thinwire.bench.point import Point, Store, measure
from thinwire.bench.report import write_report
from thinwire.jobs.progress import progress
from thinwire.lab import Lab, LinkShape

DEFAULT_METHODS = ("ssgd", "ddp_fp16", "fp16", "topk(ratio=0.01)", "onebit")
DEFAULT_RATE = "200mbit"
UNSHAPED = "unshaped"
STEPS_PER_TURN = 6
NUM_STEPS = 36
NUM_QUICK_STEPS = 12


def run(
    methods: Sequence[str] = (),
    *,
    model: str = "lm",
    workers: Sequence[int] = (2,),
    rates: Sequence[str] = (DEFAULT_RATE,),
    batch_sizes: Sequence[int] = (),
    steps: int | None = None,
    optimizer: str | None = None,
    learning_rate: float | None = None,
    seed: int = 0,
    out: Path = Path("runs/bench"),
    memory: bool = True,
    resume: bool = False,
    quick: bool = False,
    as_json: bool = False,
) -> None:
    """Measure every combination of workers, rates and batch sizes, and write a report into ``out``.

    Args:
        methods: what to compare, as :func:`thinwire.bench.method.parse_method` reads it; none: a usual choice.
        model: a built-in model, or ``path/to/file.py:function``.
        workers: numbers of processes.
        rates: of every link, in each direction, like ``200mbit``, or ``unshaped``.
        batch_sizes: on each worker, of a built-in model; none: the model's own.
        steps: of every method, a multiple of 6; None: 36, or 12 if quick.
        optimizer: ``adamw`` or ``sgd``; None: the model's own.
        learning_rate: None: the model's own.
        seed: of the model, the data's order and thinwire.
        out: folder of the report; made if missing.
        memory: run every method once more, alone, for its memory.
        resume: leave what ``out`` has with the same settings as it is.
        quick: fewer steps, and no memory.
        as_json: print the result as JSON on stdout, and everything else on stderr.

    Raises:
        ValueError: for an option out of range; the message says what is allowed.
        WorkerError: if a worker fails; with its last words.
    """
    console = Console(stderr=as_json)
    num_steps = steps if steps is not None else (NUM_QUICK_STEPS if quick else NUM_STEPS)
    if num_steps < 2 * STEPS_PER_TURN or num_steps % STEPS_PER_TURN:
        raise ValueError(f"steps is {num_steps}; allowed are multiples of {STEPS_PER_TURN} (a turn), from two turns up")
    parsed = with_compute(tuple(parse_method(text) for text in methods or DEFAULT_METHODS))
    jobs = [
        Job(
            methods=parsed,
            model=model,
            num_turns=num_steps // STEPS_PER_TURN,
            steps_per_turn=STEPS_PER_TURN,
            batch_size=batch_size,
            optimizer=optimizer,
            learning_rate=learning_rate,
            seed=seed,
        )
        for batch_size in batch_sizes or (None,)
    ]
    links, notice = usable_links([read_rate(rate) for rate in rates])
    points = [
        Point(job=job, num_workers=size, link_mbit=link, in_lab=in_lab, with_memory=memory and not quick)
        for job, size, (link, in_lab) in product(jobs, workers, links)
    ]
    if len({point.name for point in points}) < len(points):
        raise ValueError("workers, rates and batch sizes: give each value once")
    out.mkdir(parents=True, exist_ok=True)  # found out now, and not after all the training
    if notice:
        console.print(notice, markup=False, highlight=False)
    measured = measure_all(points, Store(out / "points"), console, resume=resume)
    write(measured, out, console, heading=f"thinwire bench: {model}")
    if as_json:
        print(json.dumps({"points": measured}))


def read_rate(text: str) -> float | None:
    """Mbit/s; None for ``unshaped``.

    Raises:
        ValueError: if it is neither that nor a rate.
    """
    if text == UNSHAPED:
        return None
    try:
        rate = LinkShape.parse(rate=text).rate_bits_per_second
    except ValueError as error:
        raise ValueError(f"{error}; or {UNSHAPED}") from error
    assert rate is not None
    return rate / 1e6


def usable_links(links: Sequence[float | None]) -> tuple[list[tuple[float | None, bool]], str]:
    """Each link with whether it is in a lab; where there can be none, only the loopback, and a notice why."""
    if (reason := Lab.unavailable()) is None:
        return [(link, True) for link in links], ""
    return [(None, False)], f"No shaped links here: {reason}. Running on the loopback interface, unshaped."


def measure_all(points: Sequence[Point], store: Store, console: Console, *, resume: bool) -> list[dict[str, Any]]:
    """Measure one point after another, show each, and save it at once; with ``resume`` only what is missing."""
    results = []
    for number, point in enumerate(points, 1):
        result = store.load(point) if resume else None
        if result is not None:
            console.print(
                f"[{number}/{len(points)}] measured before: {store.path(point)}", markup=False, highlight=False
            )
        else:
            if len(points) > 1:
                console.print(f"[{number}/{len(points)}] {point.name}", markup=False, highlight=False)
            result = _measure_one(point, console)
            store.save(point, result)
            console.print(table(result))
        results.append(result)
    return results


def _measure_one(point: Point, console: Console) -> dict[str, Any]:
    turns = point.turns()

    def figures(mode: str) -> str:
        steps = turns.step_seconds(mode)
        if not steps:
            return ""
        step = f"{turns.median_step_seconds(mode) or steps[-1]:.3f} s a step"
        return step if mode == COMPUTE else f"{step}, loss {turns.losses(mode)[-1]:.2f}"

    labels = {method.name: method.name for method in point.job.methods}
    with progress(console, turns, labels, point.job.num_steps, figures) as show:
        return measure(
            point,
            turns,
            on_event=show,
            on_memory=lambda name: console.print(f"memory of {name}", markup=False, highlight=False),
        )


def write(
    measured: list[dict[str, Any]], out: Path, console: Console, *, heading: str, about: str | None = None
) -> None:
    """Write ``result.json`` and the report into the folder ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    result = out / "result.json"
    result.write_text(json.dumps({"points": measured}, indent=1) + "\n")
    about = about if about is not None else "; ".join(map(title, measured))
    try:
        page = write_report(measured, out, heading, about)[0]
    except ModuleNotFoundError as error:
        page = out / "index.html"
        console.print(
            f"No charts, as {error.name} is missing; pip install 'thinwire[report]'", markup=False, highlight=False
        )
    console.print(f"Written: {result}, {page}", markup=False, highlight=False)
