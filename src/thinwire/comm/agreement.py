"""Finding out before training starts whether all ranks are set up alike."""

from collections.abc import Callable, Mapping
from typing import TypeVar

import torch.distributed as dist
from torch.distributed import ProcessGroup

T = TypeVar("T")


def agree(
    group: ProcessGroup,
    prepare: Callable[[], T],
    describe: Callable[[T], Mapping[str, object]],
    *,
    action: str = "attach",
) -> T:
    """Run ``prepare`` on every rank and return its result, if it succeeded everywhere with the same description.

    Collective over ``group``: every rank must call it. A rank where ``prepare`` fails still takes part, so that no
    other waits for it.

    Args:
        group: the ranks that must agree.
        prepare: local work that may raise.
        describe: what must be equal on all ranks, by name; values are picklable and comparable.
        action: what the ranks are about to do, for the message on those where nothing is wrong.

    Raises:
        ValueError: on every rank where another's ``prepare`` failed, saying which rank's and why; or where
            descriptions differ, with the field and each rank's value.
        Exception: whatever this rank's own ``prepare`` raised.
    """
    result: T | None = None
    failure: Exception | None = None
    try:
        result = prepare()
    except Exception as error:  # told to the other ranks, then raised again below
        failure = error
    mine = (f"{type(failure).__name__}: {failure}" if failure else None, describe(result) if result is not None else {})
    everyone: list[tuple[str | None, Mapping[str, object]]] = [mine] * group.size()
    if group.size() > 1:
        dist.all_gather_object(everyone, mine, group=group)
    if failure is not None:
        raise failure
    for rank, (problem, _) in enumerate(everyone):
        if problem is not None:
            raise ValueError(f"rank {rank} could not {action}: {problem}")
    for field in mine[1]:
        values = [description.get(field) for _, description in everyone]
        if any(value != values[0] for value in values):
            listed = ", ".join(f"rank {rank}: {value!r}" for rank, value in enumerate(values))
            raise ValueError(f"{field} differs between ranks ({listed}); all ranks must use the same")
    assert result is not None
    return result
