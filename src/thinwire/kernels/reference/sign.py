"""Sign packing in plain torch; contracts in :mod:`thinwire.kernels.sign`."""

import torch
from torch import Tensor


def encode(
    grad: Tensor,
    error: Tensor | None,
    new_error: Tensor | None,
    payload: Tensor,
    block: int,
    error_scale: float,
    weight: float,
) -> None:
    scales, signs = _parts(payload, grad.numel(), block)
    # Two roundings, not the one of torch.add's fused alpha: the same bits on every device.
    q = grad.clone() if error is None else grad + error * error_scale
    parts = torch.split(q, block)
    means = torch.stack([part.abs().sum(dtype=torch.float64) / part.numel() for part in parts])
    scales.copy_(means * weight)
    negative = torch.nn.functional.pad(q < 0, (0, -q.numel() % 8)).view(-1, 8)
    bit = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8, device=q.device)
    torch.sum(negative * bit, 1, dtype=torch.uint8, out=signs)
    if new_error is not None:
        sent = (scales.double() / weight).float()
        for part, kept, scale in zip(parts, torch.split(new_error, block), sent, strict=True):
            torch.sub(part, torch.where(part < 0, -scale, scale), out=kept)


def decode_sum(payloads: Tensor, out: Tensor, block: int) -> None:
    shifts = torch.arange(8, dtype=torch.uint8, device=out.device)
    out.zero_()
    for payload in payloads:
        scales, signs = _parts(payload.clone(), out.numel(), block)
        negative = (signs.unsqueeze(1) >> shifts & 1).view(-1)[: out.numel()].bool()
        for total, minus, scale in zip(torch.split(out, block), torch.split(negative, block), scales, strict=True):
            total.add_(torch.where(minus, -scale, scale))


def vote(payloads: Tensor, out: Tensor) -> None:
    decode_sum(torch.stack([_ballot(payload.clone(), out.numel()) for payload in payloads]), out, out.numel())
    out.copy_(torch.where(out.isnan(), out, out.sign()))


def _ballot(payload: Tensor, numel: int) -> Tensor:
    scale, _ = _parts(payload, numel, numel)
    scale.copy_(torch.where(scale.isfinite(), (scale > 0).float(), torch.nan))
    return payload


def _parts(payload: Tensor, numel: int, block: int) -> tuple[Tensor, Tensor]:
    nbytes = 4 * -(-numel // block)
    return payload[:nbytes].view(torch.float32), payload[nbytes:]
