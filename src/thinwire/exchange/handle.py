"""The handle of an attached exchange: state, figures, and the way to take it off again."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.distributed import ProcessGroup
from torch.futures import Future

from thinwire import comm
from thinwire.exchange.layout import Region
from thinwire.exchange.memory import WORKER, SavedError, fold
from thinwire.exchange.pipeline import Exchange
from thinwire.exchange.stats import Stats
from thinwire.strategy import Strategy

_FORMAT = "thinwire-state"
_VERSION = 1


class HookSlot:
    """Where DDP's hook finds the exchange. DDP takes one hook for its lifetime; the slot can be refilled."""

    def __init__(self, group: ProcessGroup) -> None:
        self.group = group
        self.exchange: Exchange | None = None

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        # DDP copies and saves its hooks' states with the module, but a copy exchanges nothing of ours.
        return type(None), ()


def hook(slot: HookSlot, bucket: GradBucket) -> Future[Tensor]:
    """The communication hook that DDP calls for every bucket."""
    if slot.exchange is not None:
        return slot.exchange.on_bucket(bucket)
    buffer = bucket.buffer().div_(slot.group.size())

    def deliver(future: "Future[object]") -> Tensor:
        future.value()
        return buffer

    return comm.allreduce(slot.group, buffer).then(deliver)


class Sync:
    """An exchange attached to a DDP module; made by :func:`thinwire.attach`."""

    def __init__(self, slot: HookSlot, exchange: Exchange, strategy: Strategy) -> None:
        self._slot, self._exchange = slot, exchange
        self.strategy = strategy
        """What is done with each gradient."""

    @property
    def step(self) -> int:
        """Number of exchanges so far; the same on all ranks."""
        return self._exchange.step

    def stats(self) -> Stats:
        """Bytes and seconds of this rank since attach or :meth:`reset_stats`: ``last``, ``total`` and ``mean``."""
        return self._exchange.stats

    def reset_stats(self) -> None:
        """Start counting anew."""
        self._exchange.stats = Stats()

    def detach(self) -> None:
        """Go back to plain all-reduces; pending errors are given up. Call it on every rank between two steps."""
        if self._slot.exchange is self._exchange:
            self._slot.exchange = None
            self._exchange.close()

    def state_dict(self, *, all_ranks: bool = False) -> dict[str, Any]:
        """What must be saved to go on with the same bits: step counter and error memories.

        Every rank has errors of its own. Save each rank's state in its own file, or gather them with ``all_ranks``.

        Args:
            all_ranks: collect the states of all ranks, on every rank. Collective: call it on every rank. Such a state
                can be loaded whatever the number of ranks is then.

        Returns:
            Plain containers, numbers and tensors (copies), which ``torch.save`` and ``torch.load`` take as they are.
        """
        mine = {
            "format": _FORMAT,
            "version": _VERSION,
            "rank": self._slot.group.rank(),
            "world_size": self._slot.group.size(),
            "step": self._exchange.step,
            "max_numel": self._exchange.max_numel,
            "errors": [
                {"name": s.region.name, "start": s.region.start, "stage": s.stage, "unit": s.unit, "error": s.error}
                for s in self._exchange.memory.save()
            ],
        }
        if not all_ranks:
            return mine
        everyone: list[dict[str, Any]] = [mine] * self._slot.group.size()
        if self._slot.group.size() > 1:
            dist.all_gather_object(everyone, mine, group=self._slot.group)
        return {"format": _FORMAT, "version": _VERSION, "ranks": everyone}

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Go on from a saved state.

        With as many ranks as when it was saved, every rank continues with its own errors, bit for bit. With another
        number, pending errors are shared out so that what will reach the model stays the same; that takes the
        states of all old ranks.

        Args:
            state: this rank's state, or the states of all ranks: what ``state_dict(all_ranks=True)`` gave, or a list.

        Raises:
            ValueError: if it is no such state, is another rank's, or does not fit the model. Nothing is changed then.
        """
        states = _all_states(state)
        group = self._slot.group
        numels = {name: choice.numel for name, choice in self.strategy.gradients.items()}
        errors = [[_saved_error(e, numels) for e in s["errors"]] for s in states]
        if states[0]["world_size"] == group.size() and not self._divided_otherwise(states[0], errors):
            mine = errors[_index_of(group.rank(), states)]
        elif len(states) == states[0]["world_size"]:
            mine = list(fold(errors, numels))
        else:
            raise ValueError(
                f"this state was saved with {states[0]['world_size']} ranks or with other settings; to share its "
                "errors out anew, give the states of all its ranks: a list, or what state_dict(all_ranks=True) gave"
            )
        self._exchange.memory.load(mine)
        self._exchange.step = int(states[0]["step"])

    def _divided_otherwise(self, state: Mapping[str, Any], errors: Sequence[Sequence[SavedError]]) -> bool:
        """Whether servers' errors were saved that this strategy would not look for, or look for on other ranks."""
        gradients = self.strategy.gradients
        served = [e for rank in errors for e in rank if e.stage != WORKER]
        return any(
            e.stage >= gradients[e.region.name].option.num_encodes or state["max_numel"] != self._exchange.max_numel
            for e in served
        )

    def __repr__(self) -> str:
        gradients = self.strategy.gradients.values()
        compressed = [c for c in gradients if c.option.compresses]
        kinds = sorted({f"{c.compressor} by {c.option}" for c in compressed}) or ["no compression"]
        numel, total = sum(c.numel for c in compressed), sum(c.numel for c in gradients)
        return (
            f"<thinwire.Sync {'; '.join(kinds)}; {len(compressed)} of {len(gradients)} gradients, "
            f"{numel:,} of {total:,} elements; {self.strategy.world_size} ranks; step {self.step}"
            f"{'' if self._slot.exchange is self._exchange else '; detached'}>"
        )


def _all_states(state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    if isinstance(state, Mapping):
        _check_format(state)
        states = list(state["ranks"]) if "ranks" in state else [state]
    else:
        states = list(state)
    for s in states:
        _check_format(s)
    if not states:
        raise ValueError("no states given; pass what state_dict() returned")
    if len(states) > 1 or "ranks" in state:
        states.sort(key=lambda s: int(s["rank"]))
        if [s["rank"] for s in states] != list(range(states[0]["world_size"])):
            ranks, world_size = [s["rank"] for s in states], states[0]["world_size"]
            raise ValueError(f"got the states of ranks {ranks} of {world_size}; give one of every rank")
        if len({s["step"] for s in states}) != 1:
            raise ValueError(f"the states are of different steps: {[s['step'] for s in states]}")
    return states


def _index_of(rank: int, states: Sequence[Mapping[str, Any]]) -> int:
    for index, state in enumerate(states):
        if state["rank"] == rank:
            return index
    raise ValueError(
        f"this is the state of rank {states[0]['rank']}, and this is rank {rank}; "
        "give each rank its own state, or save with state_dict(all_ranks=True)"
    )


def _check_format(state: Mapping[str, Any]) -> None:
    if not isinstance(state, Mapping) or state.get("format") != _FORMAT:
        raise ValueError("this is not a state that thinwire saved; pass what state_dict() returned")
    if state.get("version") != _VERSION:
        raise ValueError(f"state version {state.get('version')!r} is unknown to this release; it reads {_VERSION}")


def _saved_error(saved: Mapping[str, Any], numels: Mapping[str, int]) -> SavedError:
    name, start, error = saved["name"], int(saved["start"]), saved["error"]
    if name not in numels:
        raise ValueError(f"the state has an error for parameter {name!r}, which this model does not train")
    region = Region(name, start, start + error.numel())
    if region.stop > numels[name]:
        raise ValueError(f"the state has an error for {region}, but {name!r} has only {numels[name]} elements here")
    return SavedError(region, int(saved["stage"]), error, float(saved["unit"]))
