"""The saved form of an exchange on one rank: plain containers and tensors, checked when they come back."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from thinwire.exchange.layout import Region
from thinwire.exchange.memory import WORKER, SavedError, SavedState

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
    states: Sequence[SavedState]

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
            "states": [
                {
                    "name": s.region.name,
                    "start": s.region.start,
                    "stop": s.region.stop,
                    "unit": s.unit,
                    "tensors": dict(s.tensors),
                }
                for s in self.states
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
                states=[_saved_state(s) for s in state["states"]],
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
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
    for field in ("step", "world_size", "seed", "max_numel"):
        values = [getattr(s, field) for s in states]
        if len(set(values)) != 1:
            raise ValueError(f"the states differ in {field}: {values}; give those of one save")
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
    stage, unit = int(saved["stage"]), float(saved["unit"])
    if not isinstance(error, Tensor) or error.dim() != 1 or not error.is_floating_point():
        raise ValueError(f"the error of {saved['name']!r} is no vector")
    if not math.isfinite(unit) or unit <= 0 or start < 0 or stage < 0 or not bool(torch.isfinite(error).all()):
        raise ValueError(f"the error of {saved['name']!r} has a unit, place or element that none can have")
    return SavedError(Region(str(saved["name"]), start, start + error.numel()), stage, error.detach(), unit)


def _saved_state(saved: Mapping[str, Any]) -> SavedState:
    region = Region(str(saved["name"]), int(saved["start"]), int(saved["stop"]))
    tensors = {str(name): tensor.detach() for name, tensor in saved["tensors"].items()}
    unit = float(saved["unit"])
    if not all(t.is_floating_point() and bool(torch.isfinite(t).all()) for t in tensors.values()):
        raise ValueError(f"the state of {region} has an element that none can have")
    if not math.isfinite(unit) or unit <= 0:
        raise ValueError(f"the state of {region} has unit {unit}, which none can have")
    return SavedState(region, tensors, unit)


def _check_model(state: RankState, numels: Mapping[str, int]) -> None:
    """Every worker keeps errors of whole gradients, a server of some parts; none overlap."""
    for s in state.states:
        if s.region.stop > numels.get(s.region.name, 0):
            raise ValueError(f"the state is of {s.region}, which this model does not train or has no room for")
    regions: dict[tuple[str, int], list[Region]] = {}
    for e in state.errors:
        regions.setdefault((e.region.name, e.stage), []).append(e.region)
    for (name, stage), parts in regions.items():
        if name not in numels:
            raise ValueError(f"the state has errors of parameter {name!r}, which this model does not train")
        stop = 0
        for part in sorted(parts, key=lambda r: r.start):
            if part.start < stop or (stage == WORKER and part.start > stop):
                raise ValueError(f"the state's errors of {name!r} overlap or have gaps; it is damaged, load another")
            stop = part.stop
        if stop > numels[name] or (stage == WORKER and stop != numels[name]):
            raise ValueError(f"the state has errors of {stop} elements of {name!r}, which has {numels[name]} here")
