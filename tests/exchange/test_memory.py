import pytest
import torch

from thinwire.compress import Key, OneBit
from thinwire.exchange.layout import Region, cut
from thinwire.exchange.memory import WORKER, ErrorMemory, SavedError, fold

CPU = torch.device("cpu")
KEY = Key(seed=0, step=0, unit=0)


def saved(name: str, start: int, values: list[float], *, stage: int = WORKER, unit: float = 1.0) -> SavedError:
    return SavedError(Region(name, start, start + len(values)), stage, torch.tensor(values), unit)


def as_dict(errors: list[SavedError]) -> dict:
    return {(str(e.region), e.stage): (e.error.tolist(), e.unit) for e in errors}


def encode(memory: ErrorMemory, region: Region, gradient: torch.Tensor) -> None:
    payload = torch.empty(OneBit().payload_nbytes(region.numel), dtype=torch.uint8)
    memory.of(region, WORKER).encode(OneBit(), gradient, payload, KEY)


def test_commit_and_rollback_are_of_all_regions():
    memory, regions = ErrorMemory(CPU), cut("w", 20, 8)
    for region in regions:
        encode(memory, region, torch.arange(1.0, region.numel + 1))
    memory.rollback()
    assert all(not e.error.any() for e in memory.save())
    for region in regions:
        encode(memory, region, torch.arange(1.0, region.numel + 1))
    memory.commit()
    assert all(e.error.any() for e in memory.save())


def test_saved_errors_are_copies():
    memory = ErrorMemory(CPU)
    memory.load([saved("w", 0, [1, 2])])
    memory.save()[0].error.zero_()
    memory.of(Region("w", 0, 2), WORKER)
    memory.save()[0].error.zero_()
    assert memory.save()[0].error.tolist() == [1, 2]


@pytest.mark.parametrize("load_first", [True, False], ids=["before the first step", "between steps"])
def test_other_regions_pick_up_what_overlaps_them(load_first):
    old = [saved("w", 0, [1, 2, 3]), saved("w", 3, [4, 5]), saved("v", 0, [9]), saved("w", 0, [7, 7], stage=1)]
    new = [Region("w", 0, 2), Region("w", 2, 5)]
    memory = ErrorMemory(CPU)
    if load_first:
        memory.load(old)
    for region in new:
        memory.of(region, WORKER)
    if not load_first:
        memory.load(old)
    assert memory.of(new[0], WORKER).error.tolist() == [1, 2]
    assert memory.of(new[1], WORKER).error.tolist() == [3, 4, 5]
    # What nobody has asked for is saved again, and nothing twice.
    assert as_dict(memory.save()) == {
        ("w[0:2]", 0): ([1, 2], 1.0),
        ("w[2:5]", 0): ([3, 4, 5], 1.0),
        ("v[0:1]", 0): ([9], 1.0),
        ("w[0:2]", 1): ([7, 7], 1.0),
    }


def test_what_is_picked_up_in_part_is_saved_in_part():
    memory = ErrorMemory(CPU)
    memory.load([saved("w", 0, [1, 2, 3, 4, 5])])
    memory.of(Region("w", 1, 3), WORKER)
    assert as_dict(memory.save()) == {
        ("w[1:3]", 0): ([2, 3], 1.0),
        ("w[0:1]", 0): ([1], 1.0),
        ("w[3:5]", 0): ([4, 5], 1.0),
    }


def test_errors_of_different_units_are_brought_to_one():
    memory = ErrorMemory(CPU)
    memory.load([saved("w", 0, [8.0, 8.0], unit=4.0), saved("w", 2, [3.0], unit=1.0)])
    entry = memory.of(Region("w", 0, 3), WORKER)
    assert (entry.error / entry.unit).tolist() == [2, 2, 3]


def test_loading_replaces_everything():
    memory = ErrorMemory(CPU)
    memory.load([saved("w", 0, [1, 2]), saved("v", 0, [3])])
    memory.of(Region("w", 0, 2), WORKER)
    memory.load([])
    assert as_dict(memory.save()) == {("w[0:2]", 0): ([0, 0], 1.0)}


def test_fold_keeps_what_will_reach_the_model():
    ranks = [
        [saved("w", 0, [2, 4]), saved("w", 2, [6]), saved("w", 0, [10, 0], stage=1)],
        [saved("w", 0, [0, 2]), saved("w", 2, [-2]), saved("w", 2, [1], stage=1)],
        [saved("w", 0, [4, 0], unit=1.0), saved("w", 2, [4], unit=2.0)],
    ]
    [pending] = fold(ranks, {"w": 3})
    assert (pending.region, pending.stage, pending.unit) == (Region("w", 0, 3), WORKER, 1.0)
    assert pending.error.tolist() == [2 + 10, 2, 2 + 1]
