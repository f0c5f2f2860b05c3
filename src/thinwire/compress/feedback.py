"""Error feedback: what compression dropped from one region of a gradient, kept for the next step."""

import torch
from torch import Tensor

from thinwire.compress.base import Codec, Key
from thinwire.kernels import is_zero


class ErrorFeedback:
    """The error memory of one region of one gradient, and its use.

    A step is a transaction. :meth:`encode` reads the error of the last committed step and writes the new one beside
    it; :meth:`commit` makes it the current one, :meth:`rollback` forgets it. So a step that turns out non-finite on
    any worker, after other gradients were already encoded, leaves every error memory as it was (design, contract 5).

    *Units.* A stored error is worth what it was when it was stored. If the loss scale or the learning rate has changed
    since, ``unit`` passed to :meth:`encode` says so: the error is read as ``error * unit / unit_then``. With
    ``unit = loss_scale`` errors follow a GradScaler; with ``unit = 1 / lr`` this is the learning-rate-corrected error
    feedback of BytePS-Compress (arXiv 2105.07829).
    """

    __slots__ = ("_current", "_is_zero", "_pending", "_spare", "_unit", "_unit_pending")

    def __init__(self, numel: int, device: torch.device | str = "cpu") -> None:
        self._current = torch.zeros(numel, dtype=torch.float32, device=device)
        self._spare = torch.empty(numel, dtype=torch.float32, device=device)
        self._pending = False
        self._is_zero = True  # never written: zero in any unit
        self._unit = 1.0
        self._unit_pending = 1.0

    @property
    def error(self) -> Tensor:
        """The committed error: float32, 1-D, in the unit of :attr:`unit`. An alias, valid until the next commit."""
        return self._current

    @property
    def unit(self) -> float:
        """The unit that :attr:`error` is stored in."""
        return self._unit

    def encode(
        self,
        codec: Codec,
        grad: Tensor,
        payload: Tensor,
        key: Key,
        *,
        weight: float = 1.0,
        unit: float = 1.0,
    ) -> None:
        """Write the payload of ``grad`` plus the error, and hold the new error until :meth:`commit`.

        A gradient that is zero everywhere sends zeros and keeps its error for later. It is most likely unused in this
        step, and DDP throws away what is exchanged for a parameter that no rank used.
        """
        self._pending = False
        if is_zero(grad):
            codec.encode(grad, payload, key, weight=weight)
            return
        scale = 1.0 if self._is_zero else unit / self._unit
        codec.encode_with_error(grad, self._current, self._spare, payload, key, weight=weight, error_scale=scale)
        self._pending = True
        self._unit_pending = unit

    def commit(self) -> None:
        """Make the error of the last :meth:`encode` the current one."""
        if self._pending:
            self._current, self._spare = self._spare, self._current
            self._unit = self._unit_pending
            self._is_zero = False
            self._pending = False

    def rollback(self) -> None:
        """Forget the last :meth:`encode`."""
        self._pending = False

    def load(self, error: Tensor, unit: float = 1.0) -> None:
        """Replace the current error by a copy of ``error``.

        Raises:
            ValueError: if ``error`` has another shape; copying would spread a single element over all.
        """
        if error.shape != self._current.shape:
            raise ValueError(f"error memory of shape {tuple(self._current.shape)} cannot load {tuple(error.shape)}")
        self._current.copy_(error)
        self._is_zero = is_zero(error)
        self._unit = unit
        self._pending = False
