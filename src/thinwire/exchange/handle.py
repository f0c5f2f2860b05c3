"""The handle of an attached exchange: state, figures, and the way to take it off again."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.distributed import ProcessGroup
from torch.futures import Future

from thinwire import comm
from thinwire.exchange import state
from thinwire.exchange.memory import WORKER, SavedError, SavedState, fold, fold_states
from thinwire.exchange.pipeline import Exchange
from thinwire.exchange.program import error_stages
from thinwire.exchange.state import RankState
from thinwire.exchange.stats import Stats
from thinwire.strategy import Strategy


class HookSlot:
    """Where DDP's hook finds the exchange. DDP takes one hook for its lifetime; the slot can be refilled."""

    def __init__(self, group: ProcessGroup) -> None:
        self.group = group
        self.exchange: Exchange | None = None
        self.phase_groups: list[ProcessGroup] = []
        """Made once and used by every exchange in turn: a group has threads and connections of its own."""

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
        """What must be saved to go on with the same bits: step counter, seed, errors, velocities, factors.

        Every rank has errors of its own. Save each rank's state in its own file, or gather them with ``all_ranks``.

        Args:
            all_ranks: collect the states of all ranks, on every rank. Collective: call it on every rank. Such a state
                can be loaded whatever the number of ranks is then.

        Returns:
            Plain containers, numbers and tensors (copies), which ``torch.save`` and ``torch.load`` take as they are.
        """
        group, exchange = self._slot.group, self._exchange
        mine = RankState(
            rank=group.rank(),
            world_size=group.size(),
            step=exchange.step,
            seed=exchange.seed,
            max_numel=exchange.max_numel,
            errors=exchange.memory.save(),
            states=exchange.memory.save_states(),
        ).to_dict()
        if not all_ranks:
            return mine
        everyone = [mine] * group.size()
        if group.size() > 1:
            dist.all_gather_object(everyone, mine, group=group)
        return state.join(everyone)

    def load_state_dict(self, saved: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Go on from a saved state. Collective: call it on every rank, each with its own state or all with the same.

        With as many ranks as when it was saved, every rank continues with its own errors, bit for bit (sums of what
        is not compressed may round differently with three and more, as in plain DDP). With another number, pending
        errors are shared out so that what will reach the model stays the same; that takes the states of all old ranks.

        Args:
            saved: this rank's state, or the states of all ranks: what ``state_dict(all_ranks=True)`` gave, or a list.

        Raises:
            ValueError: if it is no such state, is another rank's, or does not fit the model, on any rank; or if ranks
                were given states of different steps or seeds. Nothing is changed then, on no rank.
        """
        step, seed, errors, states = comm.agree(
            self._slot.group,
            lambda: self._read(saved),
            lambda state: {"the saved state's step": state[0], "the saved state's seed": state[1]},
            action="load the state",
        )
        self._exchange.memory.load(errors, states)
        self._exchange.step, self._exchange.seed = step, seed

    def _read(
        self, saved: Mapping[str, Any] | Sequence[Mapping[str, Any]]
    ) -> tuple[int, int, Sequence[SavedError], Sequence[SavedState]]:
        """The step, the seed, the errors and the states that this rank goes on with."""
        group = self._slot.group
        numels = {name: choice.numel for name, choice in self.strategy.gradients.items()}
        ranks = state.read(saved, numels)
        old_size = ranks[0].world_size
        if old_size == group.size() and not any(map(self._divided_otherwise, ranks)):
            mine = [s for s in ranks if s.rank == group.rank()]
            if not mine:
                raise ValueError(
                    f"this is the state of rank {ranks[0].rank}, and this is rank {group.rank()}; "
                    "give each rank its own state, or save with state_dict(all_ranks=True)"
                )
            errors: Sequence[SavedError] = mine[0].errors
            states: Sequence[SavedState] = mine[0].states
        elif len(ranks) == old_size:
            errors = list(fold([s.errors for s in ranks], numels))
            states = list(fold_states([s.states for s in ranks]))
        else:
            raise ValueError(
                f"this state was saved with {old_size} ranks or with other settings; to share its errors out anew, "
                "give the states of all its ranks: a list, or what state_dict(all_ranks=True) gave"
            )
        self._check_sent(errors)
        self._exchange.memory.check_states(states)
        return ranks[0].step, ranks[0].seed, errors, states

    def _divided_otherwise(self, saved: RankState) -> bool:
        """Whether servers' errors were saved that this strategy would not look for, or look for on other ranks."""
        gradients = self.strategy.gradients
        return any(
            e.stage not in error_stages(gradients[e.region.name].option) or saved.max_numel != self._exchange.max_numel
            for e in saved.errors
            if e.stage != WORKER
        )

    def _check_sent(self, errors: Sequence[SavedError]) -> None:
        """Refuse errors that would never be sent: of what is not compressed now, or where only servers compress."""
        for e in errors:
            option = self.strategy.gradients[e.region.name].option
            if e.stage not in error_stages(option) and bool(e.error.any()):
                raise ValueError(
                    f"the state has pending errors of {e.region.name}, which would never be sent with {str(option)!r}; "
                    "resume with the settings it was saved with and as many ranks, or start without it"
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
