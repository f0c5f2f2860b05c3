"""A model whose gradients are what the test says, and what an exchange made of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import thinwire

Gradients = Mapping[str, Tensor]

SHAPES = {
    "first": (37, 29),
    "bias": (29,),
    "second": (5, 101),
    "scalar": (),
    "third": (64, 48),
    "vector": (700,),
    "fourth": (3, 5, 7),
    "last": (1, 257),
}
"""Several buckets of :data:`BUCKET_CAP_MB`, several chunks of :data:`CHUNK_BYTES`; no size divides evenly."""

BUCKET_CAP_MB = 0.002
CHUNK_BYTES = 1024

SPECS = [
    "fp16",
    "bf16",
    "onebit",
    "onebit(block=64)",
    "topk(ratio=0.05)",
    "randomk(ratio=0.2)",
    "randomk(ratio=0.2, values=fp16)",
    "randomk(ratio=0.2, scaled=True)",
    "int8",
    "fp8",
    "linear_dithering",
    "natural_dithering",
    "signsgd",
    "qsgd",
    "terngrad",
    "sidco(ratio=0.05)",
]


LOW_RANK = ["acpsgd(approx_rank=2)", "powersgd(approx_rank=2)"]
"""These see whole gradients, and keep more than errors."""

WITH_STATE = [*LOW_RANK, "dgc(ratio=0.05)"]
"""These keep more than errors."""


class Given(nn.Module):
    """Its output's gradient with respect to each parameter is the tensor that it was called with for it."""

    def __init__(self, shapes: Mapping[str, Sequence[int]] = SHAPES) -> None:
        super().__init__()
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(shape)))

    def forward(self, gradients: Gradients) -> Tensor:
        parameters = dict(self.named_parameters())
        return torch.stack([(parameters[name] * gradient).sum() for name, gradient in gradients.items()]).sum()


def given_gradients(rank: int, step: int, shapes: Mapping[str, Sequence[int]] = SHAPES) -> dict[str, Tensor]:
    """Normally distributed, different for every rank, step and parameter."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def given_ddp(shapes: Mapping[str, Sequence[int]] = SHAPES, **settings: Any) -> DistributedDataParallel:
    return DistributedDataParallel(Given(shapes), **{"bucket_cap_mb": BUCKET_CAP_MB, **settings})


def attach(ddp: nn.Module, spec: str | None = None, **settings: Any) -> thinwire.Sync:
    small = {} if "strategy" in settings else {"min_numel": 64}  # a strategy says it for each gradient
    return thinwire.attach(ddp, spec, **small | {"chunk_bytes": CHUNK_BYTES, "num_threads": 2} | settings)


def exchanged(ddp: DistributedDataParallel, gradients: Gradients) -> dict[str, Tensor]:
    """What one step makes of the gradients."""
    ddp.zero_grad()
    ddp(gradients).backward()
    return {name: p.grad.clone() for name, p in ddp.module.named_parameters() if p.grad is not None}


def errors_of(sync: thinwire.Sync) -> dict[tuple[str, int, int], Tensor]:
    """All error memories by parameter name, stage and first element."""
    return {(e["name"], e["stage"], e["start"]): e["error"] for e in sync.state_dict()["errors"]}


@dataclass
class Trace:
    """What one rank saw: the result of every step, and the errors before the first and after each."""

    results: list[dict[str, Tensor]]
    errors: list[dict[tuple[str, int, int], Tensor]]
    bucket_counts: tuple[int, int]
    """Number of DDP's buckets in the first step, and after they were rebuilt: 0 if they were not."""


def traced(
    rank: int, steps: Sequence[int], ddp_settings: Mapping[str, Any], attach_settings: Mapping[str, Any]
) -> Trace:
    """Attach, exchange the given gradients of some steps, detach."""
    ddp = given_ddp(**ddp_settings)
    sync = attach(ddp, **attach_settings)
    results, errors = [], [errors_of(sync)]
    for step in steps:
        results.append(exchanged(ddp, given_gradients(rank, step)))
        errors.append(errors_of(sync))
    log = ddp._get_ddp_logging_data()
    sync.detach()
    return Trace(results, errors, (_count(log["bucket_sizes"]), _count(log.get("rebuilt_bucket_sizes", ""))))


def _count(sizes: str) -> int:
    return len(sizes.split(",")) if sizes else 0


def bits(tensors: Mapping[Any, Tensor]) -> dict[Any, bytes]:
    """The tensors' bytes: equal also where a comparison of numbers would not tell 0 from -0, or be false for NaN."""
    return {name: t.detach().contiguous().numpy().tobytes() for name, t in tensors.items()}
