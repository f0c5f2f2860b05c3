"""Majority vote: one bit an element, and of all workers' bits the one that most have."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from thinwire.compress.base import Compressor, Key
from thinwire.compress.registry import register
from thinwire.kernels import all_finite, sign_encode, sign_nbytes, sign_vote


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class SignSGD(Compressor):
    """The sign that most workers' elements have: 1, −1, or 0 for a tie, whatever the magnitude.

    0 counts as positive, except that a vector that is zero everywhere abstains. Payload: that of onebit with one scale
    in all, which says whether the vector takes part in the vote: not if it is 0.

    Source: signSGD with majority vote (Bernstein et al., arXiv 1802.04434 and 1810.05291).
    """

    id: ClassVar[str] = "signsgd"
    schemes: ClassVar[tuple[str, ...]] = ("allgather",)

    @property
    def votes(self) -> bool:
        return True

    @property
    def expands(self) -> bool:
        return True  # a sign is larger than the element, if that is small

    @property
    def keeps_errors(self) -> bool:
        return False

    def payload_nbytes(self, numel: int) -> int:
        return sign_nbytes(numel, 0)

    def encode(self, x: Tensor, payload: Tensor, key: Key, *, weight: float = 1.0) -> None:
        sign_encode(x, None, None, payload)

    def decode(self, payloads: Tensor, out: Tensor, key: Key) -> None:
        sign_vote(payloads, out)

    def is_finite(self, payloads: Tensor) -> bool:
        return all_finite(payloads, 0, min(payloads.shape[-1], 4), torch.float32)
