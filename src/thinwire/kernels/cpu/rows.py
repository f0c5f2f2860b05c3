"""How payload rows, which have other bytes between them, reach compiled loops."""

from typing import Any

from torch import Tensor


def flat_rows(rows: Tensor) -> tuple[Any, int]:
    """All rows, each contiguous, as one flat array and the stride from row to row.

    As a strided matrix they would be compiled for twice, and numba would take no row of it to be contiguous.
    """
    stride, width = rows.stride(0), rows.numel() // rows.shape[0]
    return rows.as_strided(((rows.shape[0] - 1) * stride + width,), (1,)).numpy(), stride
