"""What a compressor is: the contract that everything else relies on, and the randomness it may use.

A *codec* turns a flat float32 vector into a *payload*, one flat uint8 tensor whose size is a function of the vector's
length alone, and back. A *method* is what users choose, with its settings, and gives the codec for each gradient and
step. Most are the same object for all, a *compressor*. What compression dropped is kept by whoever calls it (see
:mod:`thinwire.compress.feedback`), what else has to be remembered in a *state*.
"""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import ClassVar

import torch
from torch import Tensor

PAYLOAD_ALIGNMENT_BYTES = 16
"""Payloads start at multiples of this inside a buffer, so their parts can be viewed as any dtype."""

_MASK64 = (1 << 64) - 1


def _mix64(z: int) -> int:
    """The finaliser of splitmix64: a bijection of 64-bit numbers that spreads every input bit over the output."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK64
    return z ^ (z >> 31)


def unit_hash(name: str) -> int:
    """A 64-bit number for a name, the same in every process and on every machine."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def payload_part(payloads: Tensor, start: int, stop: int, dtype: torch.dtype) -> Tensor:
    """View bytes ``start`` to ``stop`` of a payload, or of each row of a matrix of them, as ``dtype``."""
    if payloads.dim() == 2 and payloads.shape[0] == 1:  # the stride of a single row is arbitrary; view would check it
        return payloads[0, start:stop].view(dtype).unsqueeze(0)
    return payloads[..., start:stop].view(dtype)


def num_selected(ratio: float, numel: int) -> int:
    """How many of ``numel`` elements a sparsifier sends: ``ratio`` of them, half rounded up, but at least one."""
    return min(numel, max(1, math.floor(ratio * numel + 0.5)))


@dataclass(frozen=True, slots=True)
class Key:
    """Names one use of randomness: which seed, step, part of the model, and rank.

    Every random number is a function of a key and the element's index, never of a global generator, so the same key
    gives the same bits whatever ran before (design, contract 7).
    """

    seed: int
    step: int
    unit: int
    rank: int = 0

    def shared(self) -> int:
        """64 random bits that are the same on all ranks."""
        z = 0
        for part in (self.seed, self.step, self.unit):
            z = _mix64((z ^ part) + 0x9E3779B97F4A7C15 & _MASK64)
        return z

    def local(self) -> int:
        """64 random bits of this rank alone."""
        return _mix64((self.shared() ^ (self.rank + 1)) + 0x9E3779B97F4A7C15 & _MASK64)


class State(ABC):
    """What a compressor remembers of one region from step to step, beside its error. A step is a transaction."""

    @abstractmethod
    def commit(self) -> None:
        """Keep what this step has brought."""

    @abstractmethod
    def rollback(self) -> None:
        """Forget what this step has brought."""

    @abstractmethod
    def save(self) -> Mapping[str, Tensor]:
        """What is kept, by name; aliases, valid until the next commit."""

    @abstractmethod
    def load(self, saved: Mapping[str, Tensor]) -> None:
        """Replace what is kept by copies of what :meth:`save` gave; names and shapes are the same."""


class Codec(ABC):
    """Turns flat float32 vectors into payloads and back.

    *Non-finite input.* If any element of the vector is Inf or NaN, whatever :meth:`decode` makes of its payload holds
    at least one non-finite value and :meth:`is_finite` says no, also where the element itself is not sent.
    """

    __slots__ = ()

    @property
    def sum_dtype(self) -> torch.dtype | None:
        """The dtype under which payloads can be added element by element, as they are; None: they cannot."""
        return None

    @property
    def votes(self) -> bool:
        """Whether what is decoded is the sign that most payloads have, not a sum; such payloads carry no weight."""
        return False

    @abstractmethod
    def payload_nbytes(self, numel: int) -> int:
        """Exact size in bytes of the payload of a vector of ``numel`` elements; 0 for 0."""

    @abstractmethod
    def encode(self, x: Tensor, payload: Tensor, key: Key, *, weight: float = 1.0) -> None:
        """Write the payload of ``weight * x``.

        Args:
            x: float32, 1-D, contiguous, any length (0 too); not changed.
            payload: uint8, 1-D, contiguous, ``payload_nbytes(x.numel())`` bytes, aligned to
                ``PAYLOAD_ALIGNMENT_BYTES``; every byte of it is written.
            key: the only source of randomness.
            weight: positive factor that the decoded vector carries. Workers use 1/n, so that payloads or decoded
                vectors add up to the mean, and 16-bit sums cannot overflow where the mean would not.
        """

    @abstractmethod
    def decode(self, payloads: Tensor, out: Tensor, key: Key) -> None:
        """Write the sum of what ``m`` payloads decode to; the majority's signs where :attr:`votes`.

        Args:
            payloads: uint8, 2-D ``[m, payload_nbytes(out.numel())]``, m ≥ 1, rows contiguous (the stride between rows
                may be larger than a row and is a multiple of ``PAYLOAD_ALIGNMENT_BYTES``); all encoded with the
                same ``key`` up to its rank.
            out: float32, 1-D, contiguous; overwritten. Rows are added in order, so equal input gives equal bits.
        """

    @abstractmethod
    def is_finite(self, payloads: Tensor) -> bool:
        """Whether none of the ``[m, payload_nbytes]`` payloads came from a vector with an Inf or NaN."""

    def encode_with_error(
        self,
        grad: Tensor,
        error: Tensor,
        new_error: Tensor,
        payload: Tensor,
        key: Key,
        *,
        weight: float = 1.0,
        error_scale: float = 1.0,
    ) -> None:
        """Encode ``q = grad + error_scale * error`` and keep what was dropped: ``new_error = q - decoded / weight``.

        The plain form, in three passes; compressors override it with one that fuses them. ``new_error`` may be
        ``error`` itself; else ``error`` is not changed. With non-finite input ``new_error`` holds garbage.
        Shapes and dtypes as in :meth:`encode`; all three vectors have the same length and do not partially overlap.

        Source: BytePS-Compress (arXiv 2105.07829), section on two-way push/pull with error feedback.
        """
        torch.add(grad, error, alpha=error_scale, out=new_error)
        self.encode(new_error, payload, key, weight=weight)
        decoded = torch.empty_like(new_error)
        self.decode(payload.unsqueeze(0), decoded, key)
        new_error.sub_(decoded, alpha=1.0 / weight)


class TwoRoundCodec(Codec):
    """A codec whose payloads, once summed, lead to a second round with payloads of their own, which are what decodes.

    Whatever the first round keeps as new error, the second one replaces.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def second(self) -> Codec:
        """What encodes and decodes in the second round."""

    @abstractmethod
    def absorb(self, payload: Tensor) -> None:
        """Take over the summed payload of the first round. Comes before :attr:`second` encodes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Method(ABC):
    """A way to compress, with its settings: what a spec string names.

    Subclasses are frozen, keyword-only, slotted dataclasses: their fields are the settings, checked in
    ``__post_init__`` with a :class:`ValueError` that names field, value and range. They hold no state, so one object
    serves every gradient and every thread.
    """

    id: ClassVar[str]
    """Names the payload's format in spec strings and strategy files; a released format never changes."""
    schemes: ClassVar[tuple[str, ...]] = ()
    """Names of the only schemes that it goes with, the usual one first; empty: all that its payloads fit."""
    whole: ClassVar[bool] = False
    """Whether it sees whole gradients, with their shape, instead of chunks; then a bucket's are sent together."""

    @property
    @abstractmethod
    def reducible(self) -> bool:
        """Whether decode(a) + decode(b) == decode(a + b), to rounding; such payloads fit an all-reduce."""

    @property
    def unbiased(self) -> bool:
        """Whether the expectation of decode(encode(x)) over keys is x."""
        return False

    @property
    def expands(self) -> bool:
        """Whether what is dropped can be larger than the vector itself; with error feedback it would grow and grow."""
        return False

    @property
    def keeps_errors(self) -> bool:
        """Whether error feedback is on unless the user says otherwise."""
        return not self.unbiased

    @property
    def needs_errors(self) -> bool:
        """Whether it makes no sense without error feedback."""
        return False

    def fits(self, shape: Sequence[int]) -> bool:
        """Whether a gradient of this shape gets smaller; others are sent as they are."""
        return True

    @abstractmethod
    def average_nbytes(self, shape: Sequence[int]) -> float:
        """Bytes of payload of a gradient of this shape, on average over steps."""

    def phase(self, step: int) -> int:
        """Steps of the same phase use the same codec."""
        return 0

    def new_state(self, shape: Sequence[int], key: Key) -> State | None:
        """What it remembers of a region, as it is before the first step; None: nothing.

        Args:
            shape: of the gradient, if it sees whole ones, else of the region.
            key: of randomness; the same on all ranks.
        """
        return None

    @abstractmethod
    def codec(self, phase: int, state: State | None) -> Codec:
        """What encodes and decodes a region in the steps of a phase."""

    def __str__(self) -> str:
        """The spec string that :func:`thinwire.compress.parse` reads back; settings at their defaults are left out."""
        settings = [
            f"{f.name}={value}"
            for f in fields(self)
            if (value := getattr(self, f.name)) != f.default or f.default is MISSING
        ]
        return f"{self.id}({', '.join(settings)})" if settings else self.id


@dataclass(frozen=True, kw_only=True, slots=True)
class Compressor(Method, Codec):
    """A method that is its own codec, in every step and for vectors of every length."""

    @property
    def reducible(self) -> bool:
        return self.sum_dtype is not None

    def average_nbytes(self, shape: Sequence[int]) -> float:
        return self.payload_nbytes(math.prod(shape))

    def codec(self, phase: int, state: State | None) -> Codec:
        return self
