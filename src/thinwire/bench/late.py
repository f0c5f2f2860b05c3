"""DDP without wait-free back-propagation: nothing is exchanged before backward has filled the last bucket."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

Hook = Callable[[Any, GradBucket], Future[Tensor]]


class LateDDP(DistributedDataParallel):
    """Gives its communication hook, whichever is registered, the buckets of a step all at once, after the last one.

    The hook gets them in their order, on backward's thread, as always; only later. Without a hook it is plain DDP.
    """

    def register_comm_hook(self, state: object, hook: Hook) -> None:
        """Register a hook, as DDP does."""
        super().register_comm_hook(state, late(hook))


def late(hook: Hook) -> Hook:
    """A communication hook that keeps buckets back from ``hook`` until the last one of a step has come."""
    kept: list[tuple[GradBucket, Future[Tensor]]] = []

    def late_hook(state: object, bucket: GradBucket) -> Future[Tensor]:
        if not bucket.is_last():
            promise: Future[Tensor] = Future()
            kept.append((bucket, promise))
            return promise
        for earlier, promise in kept:
            hook(state, earlier).add_done_callback(partial(_pass_on, promise))
        kept.clear()
        return hook(state, bucket)

    return late_hook


def _pass_on(promise: Future[Tensor], done: Future[Tensor]) -> None:
    try:
        promise.set_result(done.value())
    except Exception as error:
        promise.set_exception(error)  # type: ignore[arg-type]
