"""What the block-scaled kernels share: a block's peak, and dividing by it."""

import torch
from torch import Tensor
from torch.nn.functional import pad


def corrected(grad: Tensor, error: Tensor | None, error_scale: float) -> Tensor:
    """``q = grad + error_scale * error``, in two roundings, not the one of ``torch.add``: the same bits everywhere."""
    return grad.clone() if error is None else grad + error * error_scale


def split_peaks(q: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """``q`` in rows of ``block`` elements, the last one filled up with zeros, and the largest magnitude of each."""
    rows = pad(q, (0, -q.numel() % block)).view(-1, block)
    return rows, (rows.view(torch.int32) & 0x7FFFFFFF).amax(1).view(torch.float32)


def normalise(rows: Tensor, peaks: Tensor) -> Tensor:
    """Each row divided by its peak: in [-1, 1], and all zeros for a row whose peak is zero or not finite."""
    peaks = peaks.unsqueeze(1)
    return torch.where((peaks > 0) & torch.isfinite(peaks), rows / peaks, 0.0)


def scales_from_squares(rows: Tensor, peaks: Tensor, numel: int, norm: bool, clip: float) -> Tensor:
    """Each row's Euclidean norm, or its peak but at most ``clip`` times its root mean square; non-finite peaks stay."""
    squares = rows.double().square().sum(1)
    counts = torch.full_like(squares, rows.shape[1])
    counts[-1] = numel - (rows.shape[0] - 1) * rows.shape[1]
    limits = (squares.sqrt() if norm else clip * (squares / counts).sqrt()).float()
    return torch.where(peaks.isfinite(), limits if norm else torch.minimum(peaks, limits), peaks)
