"""The saved form of an exchange on one rank: plain containers and tensors, checked when they come back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor

from thinwire.exchange.layout import Region
from thinwire.exchange.memory import WORKER, SavedError

_HEADER = {"format": "thinwire-state", "version": 1}


@dataclass(frozen=True, slots=True)
class RankState:
    """What one rank saved."""

    rank: int
    world_size: int
    step: int
    seed: int
    max_numel: int
    """Most elements of a chunk: together with ``world_size`` it says which part of a gradient a rank served."""
    errors: Sequence[SavedError]

    def to_dict(self) -> dict[str, Any]:
        """What ``torch.save`` and ``torch.load(weights_only=True)`` take as it is; tensors are not copied."""
        return {
            **_HEADER,
            "rank": self.rank,
            "world_size": self.world_size,
            "step": self.step,
            "seed": self.seed,
            "max_numel": self.max_numel,
            "errors": [
                {"name": e.region.name, "start": e.region.start, "stage": e.stage, "unit": e.unit, "error": e.error}
                for e in self.errors
            ],
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_dict` wrote.

        Raises:
            ValueError: if it is something else, of another version, or incomplete.
        """
        _check_header(state)
        try:
            return cls(
                rank=int(state["rank"]),
                world_size=int(state["world_size"]),
                step=int(state["step"]),
                seed=int(state["seed"]),
                max_numel=int(state["max_numel"]),
                errors=[_saved_error(e) for e in state["errors"]],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"this state is incomplete or damaged ({error!r}); load another") from error


def join(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The states of all ranks as one."""
    return {**_HEADER, "ranks": list(states)}


def read(state: Mapping[str, Any] | Sequence[Mapping[str, Any]], numels: Mapping[str, int]) -> list[RankState]:
    """One rank's state, or those of all ranks in their order: as :func:`join` put them together, or a list.

    Args:
        state: what was saved.
        numels: number of elements of every trainable parameter, by name.

    Raises:
        ValueError: if it is no such state, if ranks are missing, or if it is of another model.
    """
    if isinstance(state, Sequence):
        saved, whole = state, True
    else:
        _check_header(state)
        saved, whole = state.get("ranks", [state]), "ranks" in state
    states = sorted((RankState.from_dict(s) for s in saved), key=lambda s: s.rank)
    if not states:
        raise ValueError("no states given; pass what state_dict() returned")
    ranks, world_size = [s.rank for s in states], states[0].world_size
    if whole and ranks != list(range(world_size)):
        raise ValueError(f"got the states of ranks {ranks} of {world_size}; give one of every rank")
    if len({s.step for s in states}) != 1:
        raise ValueError(f"the states are of different steps: {[s.step for s in states]}; give those of one save")
    for s in states:
        _check_model(s, numels)
    return states


def _check_header(state: object) -> None:
    if not isinstance(state, Mapping) or state.get("format") != _HEADER["format"]:
        raise ValueError("this is not a state that thinwire saved; pass what state_dict() returned")
    if state.get("version") != _HEADER["version"]:
        raise ValueError(
            f"state version {state.get('version')!r} is unknown to this release; it reads {_HEADER['version']}"
        )


def _saved_error(saved: Mapping[str, Any]) -> SavedError:
    error, start = saved["error"], int(saved["start"])
    if not isinstance(error, Tensor) or error.dim() != 1:
        raise ValueError(f"the error of {saved['name']!r} is no vector")
    region = Region(str(saved["name"]), start, start + error.numel())
    return SavedError(region, int(saved["stage"]), error, float(saved["unit"]))


def _check_model(state: RankState, numels: Mapping[str, int]) -> None:
    """Every worker keeps errors of whole gradients, so the last one of each ends where the gradient ends."""
    stops: dict[str, int] = {}
    for e in state.errors:
        if e.stage == WORKER:
            stops[e.region.name] = max(e.region.stop, stops.get(e.region.name, 0))
    for name, stop in stops.items():
        if name not in numels:
            raise ValueError(f"the state has errors of parameter {name!r}, which this model does not train")
        if stop != numels[name]:
            raise ValueError(f"the state has errors of {stop} elements of {name!r}, which has {numels[name]} here")
