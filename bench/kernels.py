"""How fast the CPU kernels are, against memcpy.

    python bench/kernels.py [--only topk] [--repeats 9] [--json runs/kernels.json]

One core, 32 Mi float32 elements (128 MiB), handed over in blocks of 2^20 as the exchange does with its chunks; a case
called "whole" gets them in one piece. A case is one row of CASES: which bytes its algorithm must move (every input
read once, every output written once), and how to set it up. Speed "of memcpy" is the rate at which a case moves those
bytes, over the rate at which torch's ``copy_`` moves its 8 bytes an element, both by the thread's CPU time. "2 threads"
is by the clock, and needs two idle cores; what "memcpy in blocks" gains is what the memory can give. All cases and
memcpy take turns, and medians are compared, so that a noisy machine disturbs all alike.
"""

import os
import platform
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from json import dumps
from pathlib import Path
from statistics import median
from typing import Annotated

import numba
import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from thinwire.compress import PAYLOAD_ALIGNMENT_BYTES, Key, parse

BLOCK = 1 << 20
NUMEL = 32 * BLOCK
Calls = Sequence[Callable[[], object]]


@dataclass(frozen=True)
class Data:
    """Vectors of NUMEL elements that all cases share; ``out`` is for them to write."""

    grad: Tensor = field(default_factory=lambda: torch.randn(NUMEL, generator=torch.Generator().manual_seed(0)))
    error: Tensor = field(default_factory=lambda: torch.randn(NUMEL, generator=torch.Generator().manual_seed(1)))
    out: Tensor = field(default_factory=lambda: torch.zeros(NUMEL))


@dataclass(frozen=True)
class Case:
    """A kernel to measure. ``calls`` makes the calls, one a block, that process all of the data."""

    name: str
    bytes_per_element: float
    calls: Callable[[Data], Calls]
    baseline: Callable[[Data], Calls] | None = None
    """What to compare with beside memcpy: calls that do the work of the first of ``calls``."""


@dataclass(frozen=True)
class Times:
    """Seconds for all calls of a case, once a repeat: of CPU time, and by the clock on one and on two threads."""

    cpu: list[float] = field(default_factory=list)
    one_thread: list[float] = field(default_factory=list)
    two_threads: list[float] = field(default_factory=list)


def payload_rows(nbytes: int, num_rows: int) -> Tensor:
    """Room for payloads, aligned as they must be."""
    stride = -(-nbytes // PAYLOAD_ALIGNMENT_BYTES) * PAYLOAD_ALIGNMENT_BYTES
    return torch.empty(num_rows, stride, dtype=torch.uint8)[:, :nbytes]


def encode_calls(data: Data, spec: str, block: int, with_error: bool) -> Calls:
    compressor = parse(spec)
    payloads = payload_rows(compressor.payload_nbytes(block), NUMEL // block)
    vectors = zip(data.grad.split(block), data.error.split(block), data.out.split(block), payloads, strict=True)
    return [
        partial(compressor.encode_with_error, grad, error, new_error, payload, Key(0, 0, unit))
        if with_error
        else partial(compressor.encode, grad, payload, Key(0, 0, unit))
        for unit, (grad, error, new_error, payload) in enumerate(vectors)
    ]


def decode_calls(data: Data, spec: str, num_rows: int) -> Calls:
    compressor = parse(spec)
    calls = []
    for unit, (grad, out) in enumerate(zip(data.grad.split(BLOCK), data.out.split(BLOCK), strict=True)):
        key = Key(0, 0, unit)
        payloads = payload_rows(compressor.payload_nbytes(BLOCK), num_rows)
        compressor.encode(grad, payloads[0], key)
        payloads[1:] = payloads[0]
        calls.append(partial(compressor.decode, payloads, out, key))
    return calls


def copy_calls(data: Data) -> Calls:
    return [partial(out.copy_, grad) for grad, out in zip(data.grad.split(BLOCK), data.out.split(BLOCK), strict=True)]


def torch_topk_calls(data: Data, k: int, block: int, with_error: bool) -> Calls:
    """The same with torch: only ``torch.topk``, of magnitudes made before, or all of error feedback."""
    if not with_error:
        return [partial(torch.topk, data.grad[:block].abs(), k)]
    grad, error, new_error = data.grad[:block], data.error[:block], data.out[:block]

    def select() -> None:
        torch.add(grad, error, out=new_error)
        indices = torch.topk(new_error.abs(), k).indices
        values = new_error[indices]
        new_error[indices] = values - values.half()

    return [select]


def compressor_cases(spec: str) -> list[Case]:
    """Encoding without and with error feedback, and decoding."""
    payload = parse(spec).payload_nbytes(BLOCK) / BLOCK
    return [
        Case(f"{spec} encode", 4 + payload, partial(encode_calls, spec=spec, block=BLOCK, with_error=False)),
        Case(f"{spec} encode + error", 12 + payload, partial(encode_calls, spec=spec, block=BLOCK, with_error=True)),
        *(
            Case(
                f"{spec} decode, {n} row{'s' if n > 1 else ''}",
                4 + n * payload,
                partial(decode_calls, spec=spec, num_rows=n),
            )
            for n in (1, 4)
        ),
    ]


def topk_cases(ratio: float) -> list[Case]:
    """Selection in blocks and in one piece, beside torch."""
    topk = parse(f"topk(ratio={ratio})")
    return [
        Case(
            f"topk {ratio:.1%} encode{' + error' if with_error else ''}, {name}",
            (12 if with_error else 4) + topk.payload_nbytes(block) / block,
            partial(encode_calls, spec=str(topk), block=block, with_error=with_error),
            partial(torch_topk_calls, k=topk.num_values(block), block=block, with_error=with_error),
        )
        for name, block in (("blocks", BLOCK), ("whole", NUMEL))
        for with_error in (False, True)
    ]


CASES = [
    Case("memcpy in blocks", 8, copy_calls),
    *compressor_cases("onebit"),
    *topk_cases(0.01),
    *topk_cases(0.001),
    *compressor_cases("int8"),
    *compressor_cases("fp8"),
    *compressor_cases("linear_dithering"),
    *compressor_cases("natural_dithering"),
    *compressor_cases("randomk"),
]


def cpu_seconds(calls: Calls) -> float:
    """Time on the CPU, so that waiting for one that others use does not count."""
    begin = time.thread_time()
    for call in calls:
        call()
    return time.thread_time() - begin


def wall_seconds(calls: Calls, pool: ThreadPoolExecutor) -> float:
    begin = time.perf_counter()
    for future in [pool.submit(call) for call in calls]:
        future.result()
    return time.perf_counter() - begin


def measure(cases: Sequence[Case], repeats: int) -> dict[str, object]:
    """All numbers of the bench, as they are written to JSON."""
    data = Data()
    prepared = [(case, case.calls(data), Times()) for case in cases]
    for _, calls, _ in prepared:
        calls[0]()  # compiles
    memcpy = []
    with ThreadPoolExecutor(1) as one_thread, ThreadPoolExecutor(2) as two_threads:
        for _ in track(range(repeats), "measuring"):
            for _, calls, times in prepared:
                memcpy.append(cpu_seconds([partial(data.out.copy_, data.grad)]))
                times.cpu.append(cpu_seconds(calls))
                if len(calls) > 1:
                    times.one_thread.append(wall_seconds(calls, one_thread))
                    times.two_threads.append(wall_seconds(calls, two_threads))
    memcpy_rate = 8 * NUMEL / median(memcpy)
    rows: dict[str, dict[str, float]] = {}
    for case, calls, times in prepared:
        seconds = median(times.cpu)
        row = rows[case.name] = {
            "input_gb_per_second": 4 * NUMEL / seconds / 1e9,
            "bytes_per_element": case.bytes_per_element,
            "of_memcpy": case.bytes_per_element * NUMEL / seconds / memcpy_rate,
        }
        if times.two_threads:
            row["two_threads"] = median(times.one_thread) / median(times.two_threads)
        if case.baseline is not None:
            baseline = median(cpu_seconds(case.baseline(data)) for _ in range(3))
            row["of_baseline"] = baseline * len(calls) / seconds
    return {
        "cpu": _cpu_name(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numba": numba.__version__,
        "numel": NUMEL,
        "block": BLOCK,
        "repeats": repeats,
        "memcpy_gb_per_second": memcpy_rate / 1e9,
        "kernels": rows,
    }


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    names = [line.partition(": ")[2] for line in info.read_text().splitlines() if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} CPUs"


def show(result: dict, console: Console) -> None:
    table = Table(title=f"{result['cpu']}; memcpy {result['memcpy_gb_per_second']:.1f} GB/s (read + written)")
    table.add_column("kernel", no_wrap=True)
    for heading in ("GB/s in", "B/element", "of memcpy", "2 threads", "of torch"):
        table.add_column(heading, justify="right")
    for name, row in result["kernels"].items():
        table.add_row(
            name,
            f"{row['input_gb_per_second']:.2f}",
            f"{row['bytes_per_element']:.3f}",
            f"{row['of_memcpy']:.0%}",
            f"{row['two_threads']:.2f} ×" if "two_threads" in row else "",
            f"{row['of_baseline']:.1f} ×" if "of_baseline" in row else "",
        )
    console.print(table)


def main(
    only: Annotated[str, typer.Option(help="Only cases whose name contains this.")] = "",
    repeats: Annotated[int, typer.Option(help="How often each case runs; medians are shown.")] = 9,
    json: Annotated[Path | None, typer.Option(help="Also write the numbers to this file.")] = None,
) -> None:
    """Measure the CPU kernels against memcpy."""
    torch.set_num_threads(1)
    result = measure([case for case in CASES if only in case.name], repeats)
    show(result, Console())
    if json is not None:
        json.parent.mkdir(parents=True, exist_ok=True)
        json.write_text(dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
