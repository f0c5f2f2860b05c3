"""Which implementation of a kernel runs on which device, and what all kernels check and convert on entry."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

F = TypeVar("F", bound=Callable[..., object])


def pick(device: torch.device, *, cpu: F, reference: F) -> F:
    """The implementation for tensors on ``device``: numba on a CPU, plain torch everywhere else."""
    return cpu if device.type == "cpu" else reference


def as_float32(x: Tensor) -> Tensor:
    """``x`` as contiguous float32: itself where it is that already, else a converted copy.

    Kernels have one arithmetic, so 16-bit and float64 gradients, strided ones too, take this one way in.
    """
    return x if x.dtype is torch.float32 and x.is_contiguous() else x.to(torch.float32).contiguous()


def expect_shape(name: str, x: Tensor, *shape: int) -> None:
    """Check what a kernel is about to index: compiled loops do not check bounds.

    Raises:
        ValueError: naming the tensor, its shape and the shape that the other arguments call for.
    """
    if x.shape != shape:
        raise ValueError(f"{name} has shape {tuple(x.shape)}; the other arguments call for {shape}")
