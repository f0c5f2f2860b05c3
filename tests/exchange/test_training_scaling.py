"""Loss scaling and learning rates: errors keep their worth when the unit of gradients changes."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel

import thinwire
from tests.exchange.training import (
    LOSSY,
    Given,
    assert_conserved,
    assert_same_bits,
    assert_same_errors,
    batch,
    gradients,
    local_gradients,
    loss_of,
    mlp,
    own_errors,
    pending,
)
from tests.ranks import on_ranks


def overflow_step(rank, spec):
    ddp = DistributedDataParallel(mlp(), bucket_cap_mb=0.01)
    scaler = GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    sync = thinwire.attach(ddp, spec, min_numel=256, chunk_bytes=5000, scaler=scaler)
    scales = []
    for step in range(6):
        overflows = step == 3
        optimizer.zero_grad()
        old_scale, weights, errors = scaler.get_scale(), ddp.module.state_dict(), own_errors(sync)
        weights = {n: w.clone() for n, w in weights.items()}
        local, before = local_gradients(ddp, rank, step), pending(sync)
        loss = loss_of(ddp, rank, step)
        if overflows and rank == 1:
            loss = loss * torch.inf
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        result = gradients(ddp.module)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        assert_same_bits(dict(ddp.module.named_parameters()))
        if overflows:
            for name, weight in ddp.module.state_dict().items():
                assert torch.equal(weight, weights[name])
            assert_same_errors(sync, errors)
            assert sync.stats().non_finite_steps == 1
        else:
            # Pending is in the unit of gradients that are not scaled, so the law holds across changes of scale.
            assert_conserved(local, before, result, pending(sync))
            assert {unit for _, unit in own_errors(sync).values()} == {old_scale}
    assert scales == [1024.0, 2048.0, 2048.0, 1024.0, 1024.0, 2048.0]


@pytest.mark.parametrize("spec", LOSSY)
def test_overflow_is_skipped_everywhere_and_errors_follow_the_scale(spec):
    on_ranks(2, overflow_step, spec)


def rates_in_use(rank, spec):
    ddp = DistributedDataParallel(Given(torch.zeros(40, 30), torch.zeros(25, 41)))
    first, second = ddp.module.weights
    optimizer = torch.optim.SGD([{"params": [first], "lr": 0.5}, {"params": [second], "lr": 2.0}])
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (0.0, 0.0, 1.0, 0.25)[min(step, 3)])
    sync = thinwire.attach(ddp, spec, min_numel=256, optimizer=optimizer)
    rates = []
    kept: Mapping[str, Tensor] = {}
    for step in range(5):
        optimizer.zero_grad()
        local = {f"weights.{i}": batch(rank, 10 * step + i, *p.shape) for i, p in enumerate(ddp.module.weights)}
        ddp(*local.values()).backward()
        rates.append(tuple(g["lr"] for g in optimizer.param_groups))
        after = _mean_error(sync)
        if step:
            # Learning-rate-corrected: what was dropped at the rate before is worth lr_then / lr_now of it today.
            carried = {n: e * _ratio(rates, int(n[-1])) for n, e in kept.items()}
            assert_conserved(local, carried, gradients(ddp.module), after)
        kept = after
        optimizer.step()
        warmup.step()
    assert rates == [(0.0, 0.0), (0.0, 0.0), (0.5, 2.0), (0.125, 0.5), (0.125, 0.5)]


def _ratio(rates: list[tuple[float, ...]], index: int) -> float:
    then, now = rates[-2][index], rates[-1][index]
    return 1.0 if then == now else then / now


def _mean_error(sync: thinwire.Sync) -> dict[str, Tensor]:
    """Errors as they are stored, in the gradients' unit of the step that stored them."""
    units = {name: unit for (name, _, _), (_, unit) in own_errors(sync).items()}
    return {name: error * units[name] for name, error in pending(sync).items()}


@pytest.mark.parametrize("spec", LOSSY)
def test_errors_are_corrected_by_the_learning_rates(spec):
    on_ranks(2, rates_in_use, spec)


def rate_of_zero_after_training(rank):
    # A step at rate 0 moves nothing. What it drops is worth nothing, but what was dropped before stays.
    ddp = DistributedDataParallel(Given(torch.zeros(40, 30)))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.5)
    sync = thinwire.attach(ddp, "onebit", min_numel=256, optimizer=optimizer)
    for step, rate in enumerate((0.5, 0.0, 0.5)):
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        local = {"weights.0": batch(rank, step, 40, 30)}
        before = _mean_error(sync) if step else {"weights.0": torch.zeros(1200)}
        ddp(*local.values()).backward()
        assert_conserved(local, before, gradients(ddp.module), _mean_error(sync))


def test_a_rate_of_zero_in_between_keeps_errors():
    on_ranks(2, rate_of_zero_after_training)


def tensor_rates_and_state(rank):
    ddp = DistributedDataParallel(Given(torch.zeros(40, 30)))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=torch.tensor(0.5))
    scaler = GradScaler("cpu", init_scale=8.0)
    sync = thinwire.attach(ddp, "onebit", min_numel=256, optimizer=optimizer, scaler=scaler)
    ddp(8.0 * batch(rank, 0, 40, 30)).backward()
    assert {unit for _, unit in own_errors(sync).values()} == {8.0 / 0.5}
    saved = sync.state_dict()
    sync.detach()
    again = thinwire.attach(ddp, "onebit", min_numel=256, optimizer=optimizer, scaler=scaler)
    again.load_state_dict(saved)
    before = pending(again)
    optimizer.param_groups[0]["lr"] = 0.25
    ddp.zero_grad()
    ddp(8.0 * batch(rank, 1, 40, 30)).backward()
    result = {"weights.0": ddp.module.weights[0].grad / (8.0 / 0.25)}
    assert_conserved({"weights.0": batch(rank, 1, 40, 30) * 0.25}, before, result, pending(again))


def test_units_survive_a_restart():
    on_ranks(2, tensor_rates_and_state)
