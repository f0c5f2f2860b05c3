"""Exceptions in the user's own code, on all ranks, and training that goes on."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import thinwire
from tests.exchange.training import LOSSY, assert_same_bits, assert_same_errors, loss_of, mlp, own_errors
from tests.ranks import on_ranks


class InterruptionError(Exception):
    pass


def raise_it(_: object) -> None:
    raise InterruptionError


def attached(model: nn.Module, spec: str) -> tuple[DistributedDataParallel, thinwire.Sync]:
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.01)
    return ddp, thinwire.attach(ddp, spec, min_numel=256, chunk_bytes=5000)


def train(ddp: nn.Module, rank: int, steps: range) -> None:
    for step in steps:
        ddp.zero_grad()
        loss_of(ddp, rank, step).backward()
        with torch.no_grad():
            for p in ddp.parameters():
                p -= 0.1 * p.grad


def in_forward(rank, spec):
    expected, _ = attached(mlp(), spec)
    train(expected, rank, range(4))
    ddp, sync = attached(mlp(), spec)
    train(ddp, rank, range(2))
    hook = ddp.module[2].register_forward_pre_hook(lambda module, inputs: raise_it(inputs))
    with pytest.raises(InterruptionError):
        loss_of(ddp, rank, 2)
    hook.remove()
    train(ddp, rank, range(2, 4))
    assert sync.step == 4
    for p, q in zip(ddp.parameters(), expected.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("spec", LOSSY)
def test_exception_in_forward_leaves_no_trace(spec):
    on_ranks(2, in_forward, spec)


def between_buckets(rank, spec):
    expected, _ = attached(mlp(), spec)
    train(expected, rank, range(4))
    model = mlp()
    ddp, sync = attached(model, spec)
    train(ddp, rank, range(2))
    errors = own_errors(sync)
    hook = model[0].weight.register_hook(raise_it)  # when the last layers' buckets are on their way
    with pytest.raises(InterruptionError):
        loss_of(ddp, rank, 2).backward()
    hook.remove()
    assert sync.step == 2
    assert_same_errors(sync, errors)
    with pytest.raises(RuntimeError, match="Expected to have finished reduction"):
        loss_of(ddp, rank, 2)  # DDP itself does not go on; a new one does, with the state of the old

    saved, model = sync.state_dict(), copy.deepcopy(model)  # hooks of the old one stay on its parameters
    again, sync = attached(model, spec)
    sync.load_state_dict(saved)
    train(again, rank, range(2, 4))
    assert sync.step == 4
    assert_same_bits(dict(model.named_parameters()))
    for p, q in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("spec", LOSSY)
def test_exception_between_buckets_keeps_the_state_of_the_step_before(spec):
    on_ranks(2, between_buckets, spec)
