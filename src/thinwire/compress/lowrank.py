"""Low-rank compression: a gradient as a matrix, and of it two thin factors, whose sums over workers mean something.

M [n, m] is approximated by leftᵀ·right with left [r, n] and right [r, m]. One factor is projected onto the other, which
is made orthonormal first and is equal on all workers; so projections add up, and what they leave of M is orthogonal to
what is sent. Power-SGD finds both factors anew in each step, in two rounds; ACP-SGD one of them, in turns.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from thinwire.compress.base import Codec, Key, Method, State, TwoRoundCodec
from thinwire.compress.registry import register
from thinwire.kernels import all_finite, is_zero, lowrank_expand, lowrank_left, lowrank_right, orthonormalise_


class Side(StrEnum):
    """A factor: the one as long as a column of the matrix, or the one as long as a row."""

    LEFT = "left"
    RIGHT = "right"

    @property
    def other(self) -> "Side":
        return Side.RIGHT if self is Side.LEFT else Side.LEFT


class Factors(State):
    """The factors of one matrix, as last summed over the workers: the directions in which the next step looks.

    Without ``warm_start`` every step looks in new random directions, equal on all workers.
    """

    def __init__(self, rows: int, columns: int, rank: int, key: Key, *, warm_start: bool) -> None:
        self.rank, self.warm_start = rank, warm_start
        self.lengths = {Side.LEFT: rows, Side.RIGHT: columns}
        self._kept = {side: self._random(side, key) for side in Side}
        self._new: dict[Side, Tensor] = {}
        self._basis = {side: torch.zeros_like(factor) for side, factor in self._kept.items()}

    def _random(self, side: Side, key: Key) -> Tensor:
        generator = np.random.Generator(np.random.Philox(key.shared()))
        rows, columns = self.lengths.values()
        numbers = torch.from_numpy(generator.standard_normal((self.rank, rows + columns), dtype=np.float32))
        return numbers[:, :rows].clone() if side is Side.LEFT else numbers[:, rows:].clone()

    def basis(self, side: Side) -> Tensor:
        """The orthonormal rows that this step projects onto, float32 ``[rank, lengths[side]]``."""
        return self._basis[side]

    def choose_basis(self, side: Side, key: Key) -> None:
        """Project this step onto the factor kept from an earlier one."""
        self.take_basis(side, self._kept[side] if self.warm_start else self._random(side, key))

    def take_basis(self, side: Side, factor: Tensor) -> None:
        """Project this step onto ``factor``, made orthonormal."""
        self._basis[side].copy_(factor)
        orthonormalise_(self._basis[side])

    def renew(self, side: Side, factor: Tensor) -> None:
        """Keep a factor from this step on. A zero one, as of an unused parameter, says nothing: the old one stays."""
        if not is_zero(factor.view(-1)):
            self._new[side] = factor.clone()

    def commit(self) -> None:
        self._kept |= self._new
        self._new = {}

    def rollback(self) -> None:
        self._new = {}

    def save(self) -> Mapping[str, Tensor]:
        return {str(side): factor for side, factor in self._kept.items()}

    def load(self, saved: Mapping[str, Tensor]) -> None:
        self._kept = {side: saved[side].clone() for side in Side}
        self._new = {}


class _FactorCodec(Codec):
    """Sends one factor: the projection of the matrix onto the other factor's basis."""

    __slots__ = ("_factors", "_is_second", "_side")

    def __init__(self, factors: Factors, side: Side, *, is_second: bool = False) -> None:
        self._factors, self._side, self._is_second = factors, side, is_second

    @property
    def sum_dtype(self) -> torch.dtype:
        return torch.float32

    def payload_nbytes(self, numel: int) -> int:
        if numel != math.prod(self._factors.lengths.values()):
            raise ValueError(f"a matrix of {self._factors.lengths} has no vector of {numel} elements")
        return 4 * self._factors.rank * self._factors.lengths[self._side]

    def encode(self, x: Tensor, payload: Tensor, key: Key, *, weight: float = 1.0) -> None:
        self._encode(x, None, None, payload, key, 1.0, weight)

    def decode(self, payloads: Tensor, out: Tensor, key: Key) -> None:
        factor = self._factor(payloads[0])
        for payload in payloads[1:]:
            factor = factor + self._factor(payload)
        basis = self._factors.basis(self._side.other)
        left, right = (factor, basis) if self._side is Side.LEFT else (basis, factor)
        lowrank_expand(left, right, out)
        self._factors.renew(self._side, factor)

    def is_finite(self, payloads: Tensor) -> bool:
        return all_finite(payloads, 0, payloads.shape[1], torch.float32)

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
        self._encode(grad, error, new_error, payload, key, error_scale, weight)

    def _encode(
        self,
        grad: Tensor,
        error: Tensor | None,
        new_error: Tensor | None,
        payload: Tensor,
        key: Key,
        error_scale: float,
        weight: float,
    ) -> None:
        if not self._is_second:
            self._factors.choose_basis(self._side.other, key)
        project = lowrank_left if self._side is Side.LEFT else lowrank_right
        basis = self._factors.basis(self._side.other)
        project(grad, error, new_error, basis, self._factor(payload), error_scale=error_scale, weight=weight)

    def _factor(self, payload: Tensor) -> Tensor:
        return payload.view(torch.float32).view(self._factors.rank, self._factors.lengths[self._side])


class _PowerCodec(TwoRoundCodec, _FactorCodec):
    """The left factor first; the sum of those is the basis on which the right one is found, which is what decodes."""

    __slots__ = ("_second",)

    def __init__(self, factors: Factors) -> None:
        super().__init__(factors, Side.LEFT)
        self._second = _FactorCodec(factors, Side.RIGHT, is_second=True)

    @property
    def second(self) -> Codec:
        return self._second

    def absorb(self, payload: Tensor) -> None:
        self._factors.take_basis(Side.LEFT, self._factor(payload))

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
        self._encode(grad, error, None, payload, key, error_scale, weight)


@dataclass(frozen=True, kw_only=True, slots=True)
class _LowRank(Method):
    whole: ClassVar[bool] = True

    approx_rank: int = 4
    """Rows of a factor; of a matrix with fewer rows or columns, as many as it has."""
    warm_start: bool = True
    """Whether to look in the directions that the steps before have found; else in random ones."""

    def __post_init__(self) -> None:
        if type(self.approx_rank) is not int or self.approx_rank < 1:
            raise ValueError(f"approx_rank is a whole number from 1, not {self.approx_rank!r}")
        if type(self.warm_start) is not bool:
            raise ValueError(f"warm_start is true or false, not {self.warm_start!r}")

    @property
    def reducible(self) -> bool:
        return True

    def fits(self, shape: Sequence[int]) -> bool:
        rows, columns, rank = self._sizes(shape)
        return rank * (rows + columns) < rows * columns

    def new_state(self, shape: Sequence[int], key: Key) -> Factors:
        rows, columns, rank = self._sizes(shape)
        return Factors(rows, columns, rank, key, warm_start=self.warm_start)

    def _sizes(self, shape: Sequence[int]) -> tuple[int, int, int]:
        """Rows and columns of a gradient as a matrix, and the rank of its factors; all 0 for what is none.

        A convolution's weight ``[out, in, height, width]`` has a row for each output.
        """
        if len(shape) < 2:
            return 0, 0, 0
        rows, columns = shape[0], math.prod(shape[1:])
        return rows, columns, min(self.approx_rank, rows, columns)


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class AcpSgd(_LowRank):
    """One factor of rank ``approx_rank``, the left and the right one in turns; use it with error feedback.

    Each is projected onto what the step before has found for the other, so one all-reduce of half of Power-SGD's bytes
    does. Vectors, and matrices that are smaller than their factors, are sent as they are.

    Payload: the factor, as float32.

    Source: ACP-SGD (arXiv 2306.08881), section on alternate compression.
    """

    id: ClassVar[str] = "acpsgd"
    schemes: ClassVar[tuple[str, ...]] = ("allreduce",)

    def average_nbytes(self, shape: Sequence[int]) -> float:
        rows, columns, rank = self._sizes(shape)
        return 4 * rank * (rows + columns) / 2

    def phase(self, step: int) -> int:
        return step % 2

    def codec(self, phase: int, state: State | None) -> Codec:
        assert isinstance(state, Factors)
        return _FactorCodec(state, Side.RIGHT if phase else Side.LEFT)


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class PowerSgd(_LowRank):
    """Both factors of rank ``approx_rank``, by a step of subspace iteration in two rounds; use it with error feedback.

    The error is what the worker's own second factor leaves of its gradient; its mean over workers is what the sum
    leaves of the mean. Vectors, and matrices that are smaller than their factors, are sent as they are.

    Payload: the factor, as float32, in each round.

    Source: Power-SGD (arXiv 1905.13727), algorithm 1, as described in ACP-SGD (arXiv 2306.08881).
    """

    id: ClassVar[str] = "powersgd"
    schemes: ClassVar[tuple[str, ...]] = ("allreduce_twice",)

    def average_nbytes(self, shape: Sequence[int]) -> float:
        rows, columns, rank = self._sizes(shape)
        return 4 * rank * (rows + columns)

    def codec(self, phase: int, state: State | None) -> Codec:
        assert isinstance(state, Factors)
        return _PowerCodec(state)
