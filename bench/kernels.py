"""How fast the CPU kernels are, against memcpy.

    python bench/kernels.py [--only sign] [--repeats 9] [--json runs/kernels.json]

One core, 32 Mi float32 elements (128 MiB), handed over in blocks of 2^20 as the exchange does with its chunks; a case
whose name ends in "whole" gets them in one piece. A case is one row of CASES: which bytes its algorithm must move
(every input read once, every output written once), and how to set it up. Speed "of memcpy" is the rate at which a case
moves those bytes, over the rate at which torch's ``copy_`` moves its 8 bytes an element. All cases and memcpy take
turns, and medians are compared, so that a noisy machine disturbs all alike.
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

from thinwire.compress import Key, parse
from thinwire.kernels import sign_decode_sum, sign_encode

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
    """What to compare with beside memcpy: calls of which the first does the work of the first of ``calls``."""


def blocks(x: Tensor) -> Sequence[Tensor]:
    return x.split(BLOCK)


def sign_encode_calls(data: Data) -> Calls:
    outputs = [(torch.empty(BLOCK // 8, dtype=torch.uint8), torch.empty(1)) for _ in blocks(data.grad)]
    return [
        partial(sign_encode, grad, error, new_error, signs, scales)
        for grad, error, new_error, (signs, scales) in zip(
            blocks(data.grad), blocks(data.error), blocks(data.out), outputs, strict=True
        )
    ]


def sign_encode_plain_calls(data: Data) -> Calls:
    outputs = [(torch.empty(BLOCK // 8, dtype=torch.uint8), torch.empty(1)) for _ in blocks(data.grad)]
    return [
        partial(sign_encode, grad, None, None, signs, scales)
        for grad, (signs, scales) in zip(blocks(data.grad), outputs, strict=True)
    ]


def sign_decode_calls(data: Data, num_rows: int) -> Calls:
    generator = torch.Generator().manual_seed(2)
    payloads = [
        (
            torch.randint(256, (num_rows, BLOCK // 8), dtype=torch.uint8, generator=generator),
            torch.rand(num_rows, 1, generator=generator),
        )
        for _ in blocks(data.out)
    ]
    return [
        partial(sign_decode_sum, signs, scales, out)
        for (signs, scales), out in zip(payloads, blocks(data.out), strict=True)
    ]


def encode_calls(data: Data, spec: str) -> Calls:
    compressor = parse(spec)
    payloads = torch.empty(NUMEL // BLOCK, compressor.payload_nbytes(BLOCK), dtype=torch.uint8)
    return [
        partial(compressor.encode_with_error, grad, error, new_error, payload, Key(0, 0, unit))
        for unit, (grad, error, new_error, payload) in enumerate(
            zip(blocks(data.grad), blocks(data.error), blocks(data.out), payloads, strict=True)
        )
    ]


def decode_calls(data: Data, spec: str, num_rows: int) -> Calls:
    compressor = parse(spec)
    calls = []
    for unit, (grad, out) in enumerate(zip(blocks(data.grad), blocks(data.out), strict=True)):
        key = Key(0, 0, unit)
        payloads = torch.empty(num_rows, compressor.payload_nbytes(BLOCK), dtype=torch.uint8)
        compressor.encode(grad, payloads[0], key)
        payloads[1:] = payloads[0]
        calls.append(partial(compressor.decode, payloads, out, key))
    return calls


def compressor_cases(spec: str) -> list[Case]:
    """Encoding with error feedback, and decoding."""
    payload = parse(spec).payload_nbytes(BLOCK) / BLOCK
    return [
        Case(f"{spec} encode + error", 12 + payload, partial(encode_calls, spec=spec)),
        *(
            Case(
                f"{spec} decode, {n} row{'s' if n > 1 else ''}",
                4 + n * payload,
                partial(decode_calls, spec=spec, num_rows=n),
            )
            for n in (1, 4)
        ),
    ]


CASES = [
    Case("sign encode", 4 + 1 / 8, sign_encode_plain_calls),
    Case("sign encode + error", 12 + 1 / 8, sign_encode_calls),
    Case("sign decode, 1 row", 4 + 1 / 8, partial(sign_decode_calls, num_rows=1)),
    Case("sign decode, 2 rows", 4 + 2 / 8, partial(sign_decode_calls, num_rows=2)),
    Case("sign decode, 4 rows", 4 + 4 / 8, partial(sign_decode_calls, num_rows=4)),
    *compressor_cases("int8"),
    *compressor_cases("fp8"),
    *compressor_cases("linear_dithering"),
    *compressor_cases("natural_dithering"),
    *compressor_cases("randomk"),
]


def seconds(calls: Calls) -> float:
    begin = time.perf_counter()
    for call in calls:
        call()
    return time.perf_counter() - begin


def seconds_on_two_threads(calls: Calls, pool: ThreadPoolExecutor) -> float:
    begin = time.perf_counter()
    for future in [pool.submit(call) for call in calls]:
        future.result()
    return time.perf_counter() - begin


def measure(cases: Sequence[Case], repeats: int) -> dict[str, object]:
    """All numbers of the bench, as they are written to JSON."""
    data = Data()
    memcpy: list[float] = []
    rows: dict[str, dict[str, float]] = {}
    with ThreadPoolExecutor(2) as pool:
        pool.map(abs, range(2))  # starts the threads
        prepared = [(case, case.calls(data), [], []) for case in cases]
        for _, calls, _, _ in prepared:
            calls[0]()  # compiles
        for _ in track(range(repeats), "measuring"):
            for _, calls, one, two in prepared:
                memcpy.append(seconds([partial(data.out.copy_, data.grad)]))
                one.append(seconds(calls))
                if len(calls) > 1:
                    two.append(seconds_on_two_threads(calls, pool))
    rate = 8 * NUMEL / median(memcpy)
    for case, calls, one, two in prepared:
        row = rows[case.name] = {
            "input_gb_per_second": 4 * NUMEL / median(one) / 1e9,
            "bytes_per_element": case.bytes_per_element,
            "of_memcpy": case.bytes_per_element * NUMEL / median(one) / rate,
        }
        if two:
            row["two_threads"] = median(one) / median(two)
        if case.baseline is not None:
            row["of_baseline"] = median(seconds(case.baseline(data)[:1]) for _ in range(3)) * len(calls) / median(one)
    return {
        "cpu": _cpu_name(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numba": numba.__version__,
        "numel": NUMEL,
        "block": BLOCK,
        "repeats": repeats,
        "memcpy_gb_per_second": rate / 1e9,
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
