"""One executor for each routine, over a torch.distributed process group.

All of them start a collective and return a future at once. Tensors are flat; every rank passes the same sizes, which
are known beforehand, so nothing is negotiated. The tensors must not be touched until the future is done; a dead peer
or the group's timeout ends it with an exception. On a group of one rank nothing is sent.
"""

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.futures import Future


def allreduce(group: ProcessGroup, buffer_: Tensor) -> "Future[object]":
    """Replace ``buffer_`` by its sum over ranks: dense or sparse, any floating or complex dtype that the backend adds.

    Each rank sends 2(n−1)/n of the buffer's bytes.
    """
    if group.size() == 1:
        return _done()
    return group.allreduce([torch.view_as_real(buffer_) if buffer_.is_complex() else buffer_]).get_future()


def allgather(group: ProcessGroup, sent: Tensor, received_: Tensor) -> "Future[object]":
    """Put every rank's ``sent`` (m elements) into ``received_`` (n·m), in rank order. Each rank sends (n−1)·m."""
    if group.size() == 1:
        received_.copy_(sent)
        return _done()
    return group._allgather_base(received_, sent).get_future()


def alltoall(group: ProcessGroup, sent: Tensor, received_: Tensor) -> "Future[object]":
    """Send the j-th of n equal parts of ``sent`` to rank j, whose i-th part of ``received_`` comes from rank i."""
    if group.size() == 1:
        received_.copy_(sent)
        return _done()
    return group.alltoall_base(received_, sent, [], []).get_future()


def add_rows(parts: Tensor, received_: Tensor, dtype: torch.dtype) -> None:
    """Add up ``parts`` (n·m bytes, received by :func:`alltoall`) into ``received_`` (m), as elements of ``dtype``.

    A reduce-scatter is an all-to-all followed by this: as few bytes are sent, the result does not depend on the
    backend's order of additions, and backends without a reduce-scatter of their own can do it.
    """
    total = received_.view(dtype)
    rows = parts.view(-1, received_.numel()).view(dtype)
    total.copy_(rows[0])
    for row in rows[1:]:
        total.add_(row)


def _done() -> "Future[object]":
    future: Future[object] = Future()
    future.set_result(None)
    return future
