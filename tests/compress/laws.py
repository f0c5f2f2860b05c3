"""The configured compressors that every law is checked against. A new compressor joins with one row.

Its golden payload is added with ``python -m tests.compress.laws``, which never changes one that exists: a released
payload format does not change.
"""

import json
from pathlib import Path

import torch
from torch import Tensor

from thinwire.compress import Compressor, Key, parse, unit_hash

SPECS = [
    "none",
    "fp16",
    "bf16",
    "onebit",
    "onebit(block=64)",
    "topk",
    "topk(ratio=0.1, values=fp32)",
    "topk(ratio=1.0)",
    "int8",
    "int8(block=0)",
    "fp8",
    "fp8(block=40)",
    "linear_dithering",
    "linear_dithering(bits=2, block=0)",
    "linear_dithering(bits=8, block=256)",
    "natural_dithering",
    "natural_dithering(bits=2, block=256)",
    "natural_dithering(bits=8, block=0)",
    "randomk",
    "randomk(ratio=0.25, values=fp16)",
    "randomk(ratio=0.1, scaled=True)",
    "randomk(ratio=1.0)",
    "signsgd",
    "qsgd",
    "qsgd(bits=8, block=0)",
    "terngrad",
    "terngrad(clip=0.0, block=256)",
    "sidco",
    "sidco(ratio=0.1, values=fp32, stages=2)",
]

GOLDEN = Path(__file__).with_name("golden.json")
GOLDEN_INPUT = (torch.arange(203) * 37 % 128 - 64) / 8  # sums of these are exact, in any order
KEY = Key(seed=1, step=2, unit=unit_hash("layer.weight"), rank=3)


def vector(numel: int, seed: int = 0) -> Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


def blank(compressor: Compressor, numel: int, fill: int = 0xA5) -> Tensor:
    """A payload that holds what was there before."""
    return torch.full((compressor.payload_nbytes(numel),), fill, dtype=torch.uint8)


def encode(compressor: Compressor, x: Tensor, key: Key = KEY, *, weight: float = 1.0, fill: int = 0xA5) -> Tensor:
    payload = blank(compressor, x.numel(), fill)
    compressor.encode(x, payload, key, weight=weight)
    return payload


def decode(compressor: Compressor, payloads: Tensor, numel: int, key: Key = KEY) -> Tensor:
    out = torch.full((numel,), float("nan"))
    compressor.decode(payloads if payloads.dim() == 2 else payloads.unsqueeze(0), out, key)
    return out


def rows(payloads: list[Tensor], gap_bytes: int = 16) -> Tensor:
    """The payloads as rows of one matrix, aligned and with other bytes between them."""
    nbytes = payloads[0].numel()
    stride = -(-nbytes // 16) * 16 + gap_bytes
    matrix = torch.full((len(payloads), stride), 0xC3, dtype=torch.uint8)[:, :nbytes]
    for row, payload in zip(matrix, payloads, strict=True):
        row.copy_(payload)
    return matrix


def golden_payloads() -> dict[str, str]:
    return json.loads(GOLDEN.read_text())


def _add_golden_payloads() -> None:
    known = golden_payloads() if GOLDEN.exists() else {}
    new = {spec: encode(parse(spec), GOLDEN_INPUT).numpy().tobytes().hex() for spec in SPECS if spec not in known}
    GOLDEN.write_text(json.dumps(known | new, indent=1) + "\n")


if __name__ == "__main__":
    _add_golden_payloads()
