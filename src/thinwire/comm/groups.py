"""Process groups of the exchange's own, beside the one that DDP uses."""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup


def timeout_of(group: ProcessGroup, device: torch.device) -> timedelta:
    """How long the group's collectives wait for a peer before they fail."""
    timeout = group._get_backend(device).options._timeout
    assert isinstance(timeout, timedelta)
    return timeout


def like(group: ProcessGroup, count: int, device: torch.device) -> list[ProcessGroup]:
    """``count`` new groups of the same ranks, backend and timeout as ``group``.

    Collective over the ranks of ``group`` alone: other subgroups of the job neither take part nor wait.
    """
    ranks = dist.get_process_group_ranks(group)
    return [
        dist.new_group(
            ranks,
            timeout=timeout_of(group, device),
            backend=dist.get_backend(group),
            use_local_synchronization=True,
        )
        for _ in range(count)
    ]
