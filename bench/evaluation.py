"""The published evaluation of gradient compression (ACP-SGD, arXiv 2306.08881), with thinwire, on slow links.

    python bench/evaluation.py [--out runs/evaluation] [--only rates] [--steps 18] [--list]

Sweeps of `thinwire bench`: every method against link rates, numbers of workers, batch sizes, ranks of low-rank methods
and bucket sizes; and with wait-free back-propagation (WFBP) and tensor fusion (TF) switched off. S-SGD is plain DDP.

Every point is one run and one JSON file in --out/points, and is not run again. Each sweep gets a report of its own:
--out/SWEEP/index.html. Methods whose compressor this version does not have are left out.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from thinwire.bench.job import Job, with_compute
from thinwire.bench.main import measure_all, write
from thinwire.bench.method import PLAIN, Method, parse_method
from thinwire.bench.point import Point, Store
from thinwire.compress import known
from thinwire.lab import Lab

LINKS = (50.0, 100.0, 200.0, 1000.0, None)
"""Mbit/s; None is unshaped."""
USUAL_LINK = 200.0
WORKERS = (2, 3, 4)
RANKS = (1, 2, 4, 8, 16)
BATCH_SIZES = (1, 2, 4, 8)
BUCKETS_MB = (1, 5, 25, 100)

BASELINES = ("ssgd", "ddp_fp16")
COMPRESSORS = ("onebit", "topk(ratio=0.001)", "powersgd(approx_rank=4)", "acpsgd(approx_rank=4)")
STEPS_PER_TURN = 6
MODELS = ("lm", "vgg", "resnet")


def methods(*texts: str) -> tuple[Method, ...]:
    """The methods that this version has, after compute."""
    heads = {*PLAIN, *(cls.id for cls in known())}
    return with_compute(tuple(parse_method(text) for text in texts if text.partition("(")[0] in heads))


def with_options(spec: str, *options: str) -> str:
    """A method's text with more options in its parentheses."""
    head, _, settings = spec.removesuffix(")").partition("(")
    inside = ", ".join([*([settings] if settings else []), *options])
    return f"{head}({inside})" if inside else head


def _point(
    model: str,
    *texts: str,
    steps: int,
    workers: int = 2,
    link: float | None = USUAL_LINK,
    batch_size: int | None = None,
) -> Point:
    job = Job(
        methods=methods(*texts),
        model=model,
        num_turns=steps // STEPS_PER_TURN,
        steps_per_turn=STEPS_PER_TURN,
        batch_size=batch_size,
    )
    return Point(job=job, num_workers=workers, link_mbit=link)


def rates(steps: int) -> list[Point]:
    """Every method on every model, against the link's rate."""
    return [_point(m, *BASELINES, *COMPRESSORS, steps=steps, link=link) for m in MODELS for link in LINKS]


def workers(steps: int) -> list[Point]:
    """Every method, against the number of workers."""
    return [_point("lm", *BASELINES, *COMPRESSORS, steps=steps, workers=n) for n in WORKERS]


def batches(steps: int) -> list[Point]:
    """Every method, against the batch size: more compute for the same communication."""
    return [_point("lm", *BASELINES, *COMPRESSORS, steps=steps, batch_size=n) for n in BATCH_SIZES]


def ranks(steps: int) -> list[Point]:
    """Low-rank methods, against the rank: more bytes and more work."""
    specs = [f"{name}(approx_rank={rank})" for name in ("powersgd", "acpsgd") for rank in RANKS]
    return [_point(model, "ssgd", *specs, steps=steps) for model in ("lm", "vgg")]


def buckets(steps: int) -> list[Point]:
    """Methods whose payloads can be summed, against the size of DDP's buckets."""
    specs = ("ssgd", "powersgd(approx_rank=4)", "acpsgd(approx_rank=4)")
    sized = [with_options(spec, f"bucket_mb={size}") for spec in specs for size in BUCKETS_MB]
    return [_point("lm", "ssgd", *sized, steps=steps)]


def ablation(steps: int) -> list[Point]:
    """With and without wait-free back-propagation and tensor fusion."""
    specs = ("ssgd", "powersgd(approx_rank=4)", "acpsgd(approx_rank=4)")
    switches: tuple[tuple[str, ...], ...] = ((), ("wfbp=off",), ("fusion=off",), ("wfbp=off", "fusion=off"))
    switched = [with_options(spec, *options) for spec in specs for options in switches]
    return [_point(model, *switched, steps=steps) for model in ("lm", "resnet")]


def memory(steps: int) -> list[Point]:
    """What each method needs, on every model; bytes and times come along, unshaped."""
    points = [_point(model, *BASELINES, *COMPRESSORS, steps=steps, link=None) for model in MODELS]
    return [Point(job=point.job, link_mbit=None, with_memory=True) for point in points]


SWEEPS: dict[str, Callable[[int], list[Point]]] = {
    sweep.__name__: sweep for sweep in (rates, workers, batches, ranks, buckets, ablation, memory)
}


def main(
    out: Annotated[Path, typer.Option(help="Folder of the points and the reports.")] = Path("runs/evaluation"),
    only: Annotated[list[str] | None, typer.Option(help=f"Of the sweeps ({', '.join(SWEEPS)}); repeatable.")] = None,
    steps: Annotated[int, typer.Option(help="Steps of each method, a multiple of 6 from 12.")] = 18,
    show_list: Annotated[bool, typer.Option("--list", help="Say which points there are, and run nothing.")] = False,
) -> None:
    """Run the sweeps and write a report of each."""
    if steps < 2 * STEPS_PER_TURN or steps % STEPS_PER_TURN:
        raise typer.BadParameter(f"steps is {steps}; allowed are multiples of {STEPS_PER_TURN}, from 12")
    if unknown := set(only or ()) - SWEEPS.keys():
        raise typer.BadParameter(f"no sweep {', '.join(unknown)}; there are {', '.join(SWEEPS)}")
    console, store = Console(), Store(out / "points")
    if not show_list and (reason := Lab.unavailable()) is not None:
        console.print(f"No shaped links here: {reason}", markup=False, highlight=False)
        raise typer.Exit(1)
    for name, sweep in SWEEPS.items():
        if only and name not in only:
            continue
        points = sweep(steps)
        if show_list:
            show(name, points, store, console)
            continue
        console.rule(name)
        about = str(sweep.__doc__)
        write(measure_all(points, store, console, resume=True), out / name, console, heading=name, about=about)


def show(name: str, points: Sequence[Point], store: Store, console: Console) -> None:
    """One line for each point, and its methods."""
    console.print(f"{name}: {SWEEPS[name].__doc__}", highlight=False)
    for point in points:
        state = "done " if store.load(point) is not None else "to do"
        names = json.dumps([method.name for method in point.job.methods])
        console.print(f"  {state} {point.name} {names}", markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    typer.run(main)
