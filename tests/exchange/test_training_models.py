"""Models of every kind: parameters that are unused, frozen, shared or excluded; buffers; several modules; compiled."""

import copy
import io

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import thinwire
from tests.exchange.training import (
    LOSSY,
    assert_conserved,
    assert_same_bits,
    batch,
    gradients,
    local_gradients,
    loss_of,
    mlp,
    own_errors,
    pending,
)
from tests.ranks import on_ranks

SMALL_BUCKETS = {"bucket_cap_mb": 0.01}
SETTINGS = {"min_numel": 256, "chunk_bytes": 5000}


def train(module: nn.Module, rank: int, num_steps: int = 3) -> dict[str, Tensor]:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    for step in range(num_steps):
        optimizer.zero_grad()
        loss_of(module, rank, step).backward()
        optimizer.step()
    inner = module.module if isinstance(module, DistributedDataParallel) else module
    return {n: t.detach().clone() for n, t in inner.state_dict().items()}


def assert_equal(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name in expected:
        assert torch.equal(actual[name], expected[name]), name


class Skipping(nn.Module):
    """Its middle block is used where ``skip`` does not say otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.block, self.last = nn.Linear(32, 64), nn.Linear(64, 64), nn.Linear(64, 8)

    def forward(self, x: Tensor, skip: bool) -> Tensor:
        x = self.first(x).relu()
        return self.last(x if skip else x + self.block(x))


def skipped_block(rank, spec):
    torch.manual_seed(0)
    ddp = DistributedDataParallel(Skipping(), find_unused_parameters=True, **SMALL_BUCKETS)
    expected = DistributedDataParallel(copy.deepcopy(ddp.module), find_unused_parameters=True, **SMALL_BUCKETS)
    sync = thinwire.attach(ddp, spec, **SETTINGS)
    for step in range(8):
        skip = step in (3, 4) or (step == 6 and rank == 1)
        ddp.zero_grad()
        expected.zero_grad()
        named = dict(ddp.module.named_parameters())
        loss = ddp.module(batch(rank, step), skip).square().mean()
        local = torch.autograd.grad(loss, list(named.values()), allow_unused=True, materialize_grads=True)
        before, kept = pending(sync), own_errors(sync)
        ddp(batch(rank, step), skip).square().mean().backward()
        expected(batch(rank, step), skip).square().mean().backward()
        result = gradients(ddp.module)
        assert result.keys() == gradients(expected.module).keys()
        if spec == "none":
            assert_equal(result, gradients(expected.module))
            continue
        assert_same_bits(result)
        everything = {n: torch.zeros_like(p) for n, p in named.items()} | result
        assert_conserved(dict(zip(named, local, strict=True)), before, everything, pending(sync))
        if "block.weight" not in result:
            assert step in (3, 4)
            for key, (error, _) in own_errors(sync).items():
                assert key[0] != "block.weight" or torch.equal(error, kept[key][0])


@pytest.mark.parametrize("spec", ["none", *LOSSY])
def test_c05_an_unused_block_keeps_its_errors_until_it_is_used_again(spec):
    on_ranks(2, skipped_block, spec)


def mostly_frozen(rank):
    model = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(20)), nn.Linear(256, 48, bias=False))
    model[:-1].requires_grad_(False)
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert trainable < 0.01 * sum(p.numel() for p in model.parameters())
    ddp = DistributedDataParallel(model)
    sync = thinwire.attach(ddp, "onebit", **SETTINGS)
    ddp(batch(rank, 0, 4, 256)).square().mean().backward()
    stored = io.BytesIO()
    torch.save(sync.state_dict(), stored)
    assert 4 * trainable <= len(stored.getvalue()) <= 1.1 * 4 * trainable
    assert list(sync.strategy.gradients) == ["20.weight"]


def test_c05_frozen_parameters_take_no_state():
    on_ranks(2, mostly_frozen)


def frozen_behind_the_back_of_ddp(rank):
    # As with two networks that take turns: DDP knows the parameter, and attach finds it frozen.
    model = mlp()
    ddp = DistributedDataParallel(model, find_unused_parameters=True, **SMALL_BUCKETS)
    model[2].requires_grad_(False)
    sync = thinwire.attach(ddp, "onebit", **SETTINGS)
    loss_of(ddp, rank, 0).backward()
    assert model[2].weight.grad is None
    model[2].requires_grad_(True)
    before, local = pending(sync), local_gradients(ddp, rank, 1)
    ddp.zero_grad()
    loss_of(ddp, rank, 1).backward()
    result = gradients(model)
    assert_same_bits(result)
    assert_conserved(local, before, result, pending(sync))
    assert before.keys() == {"0.weight", "4.weight"}  # what was frozen is all-reduced as it is
    assert_conserved(local, {"2.weight": torch.zeros(4096)}, result, {"2.weight": torch.zeros(4096)})


def test_parameters_frozen_while_attaching():
    on_ranks(2, frozen_behind_the_back_of_ddp)


def ignored_by_ddp(rank):
    model = mlp()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["2.weight"])
    ddp = DistributedDataParallel(model, **SMALL_BUCKETS)
    sync = thinwire.attach(ddp, "onebit", **SETTINGS)
    assert "2.weight" not in sync.strategy.gradients
    local = local_gradients(ddp, rank, 0)
    loss_of(ddp, rank, 0).backward()
    assert torch.equal(model[2].weight.grad, local["2.weight"])


def test_parameters_that_ddp_ignores():
    on_ranks(2, ignored_by_ddp)


def shared_parameters(rank):
    def tied() -> DistributedDataParallel:
        model = mlp()
        model[2].weight = nn.Parameter(model[2].weight.detach().clone())
        model.append(nn.Linear(8, 64)).append(nn.Linear(64, 64))
        model[-1].weight = model[2].weight
        return DistributedDataParallel(model, **SMALL_BUCKETS)

    torch.manual_seed(0)
    expected = train(tied(), rank)
    exact = tied()
    thinwire.attach(exact, "none", scheme="reduce_scatter", **SETTINGS)
    assert_equal(train(exact, rank), expected)
    for spec in LOSSY:
        ddp = tied()
        sync = thinwire.attach(ddp, spec, **SETTINGS)
        assert "2.weight" in sync.strategy.gradients
        assert "6.weight" not in sync.strategy.gradients
        for step in range(2):
            ddp.zero_grad()
            before, local = pending(sync), local_gradients(ddp, rank, step)
            loss_of(ddp, rank, step).backward()
            assert_conserved(local, before, gradients(ddp.module), pending(sync))
        assert_same_bits(gradients(ddp.module))


def test_shared_parameters_are_exchanged_once():
    on_ranks(2, shared_parameters)


def nothing_left_to_compress(rank):
    expected = train(DistributedDataParallel(mlp(), **SMALL_BUCKETS), rank)
    ddp = DistributedDataParallel(mlp(), **SMALL_BUCKETS)
    sync = thinwire.attach(ddp, "onebit", exclude=["*"], **SETTINGS)
    assert_equal(train(ddp, rank), expected)
    assert sync.state_dict()["errors"] == []
    assert sync.stats().mean.compression_ratio == 1.0


def test_a_model_that_is_all_excluded_trains_as_in_ddp():
    on_ranks(2, nothing_left_to_compress)


def batch_norm(rank):
    def normed() -> DistributedDataParallel:
        return DistributedDataParallel(mlp().insert(1, nn.BatchNorm1d(64)), **SMALL_BUCKETS)

    expected = train(normed(), rank)
    exact = normed()
    thinwire.attach(exact, "none", scheme="reduce_scatter", **SETTINGS)
    assert_equal(train(exact, rank), expected)
    for spec in LOSSY:
        ddp = normed()
        thinwire.attach(ddp, spec, **SETTINGS)
        state = train(ddp, rank)
        assert_same_bits(dict(ddp.module.named_parameters()))
        assert state["1.num_batches_tracked"] == 3


def test_batch_norm_buffers():
    on_ranks(2, batch_norm)


def two_modules(rank):
    def run(*, together: bool) -> list[dict[str, Tensor]]:
        pair = [DistributedDataParallel(mlp(), **SMALL_BUCKETS) for _ in range(2)]
        syncs = [thinwire.attach(ddp, spec, **SETTINGS) for ddp, spec in zip(pair, ("onebit", "int8"), strict=True)]
        for step in range(3):
            losses = [loss_of(ddp, rank, step + 5 * i) for i, ddp in enumerate(pair)]
            if together:  # buckets of both modules alternate
                sum(losses).backward()
            else:
                for loss in losses:
                    loss.backward()
        assert [sync.step for sync in syncs] == [3, 3]
        return [gradients(ddp.module) for ddp in pair]

    for one, other in zip(run(together=True), run(together=False), strict=True):
        assert_equal(one, other)
        assert_same_bits(one)


def test_two_modules_in_one_process():
    on_ranks(2, two_modules)


def alone(rank):
    expected = train(mlp(), rank)
    for scheme in (None, "reduce_scatter"):
        ddp = DistributedDataParallel(mlp(), **SMALL_BUCKETS)
        sync = thinwire.attach(ddp, "none", scheme=scheme, **SETTINGS)
        assert_equal(train(ddp, rank), expected)
    for spec in LOSSY:
        for scheme in ("allgather", "alltoall"):
            ddp = DistributedDataParallel(mlp(), **SMALL_BUCKETS)
            sync = thinwire.attach(ddp, spec, scheme=scheme, **SETTINGS)
            for step in range(3):
                ddp.zero_grad()
                before, local = pending(sync), local_gradients(ddp, rank, step)
                loss_of(ddp, rank, step).backward()
                assert_conserved(local, before, gradients(ddp.module), pending(sync))
            assert sync.stats().total.payload_bytes == 0


def test_c10_one_rank_trains_and_sends_nothing():
    on_ranks(1, alone)


def compiled(rank):
    def wide() -> nn.Sequential:  # the compiler wants buckets of a megabyte at least
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512))

    eager = DistributedDataParallel(wide(), bucket_cap_mb=1)
    expected_sync = thinwire.attach(eager, "onebit", **SETTINGS)
    expected = train(eager, rank)

    inside = DistributedDataParallel(torch.compile(wide(), backend="aot_eager"), bucket_cap_mb=1)
    sync = thinwire.attach(inside, "onebit", **SETTINGS)
    assert sync.strategy == expected_sync.strategy  # names as without the compiler: states and patterns stay valid
    train(inside, rank)
    outside = torch.compile(DistributedDataParallel(wide(), bucket_cap_mb=1), backend="aot_eager")
    assert thinwire.attach(outside, "onebit", **SETTINGS).strategy == expected_sync.strategy
    train(outside, rank)

    for module in (inside.module._orig_mod, outside._orig_mod.module):
        state = dict(module.named_parameters())
        assert_same_bits(state)
        for name, value in state.items():
            torch.testing.assert_close(value, expected[name], rtol=1e-6, atol=1e-6)
    torch.compiler.reset()


def test_c11_compiled_equals_eager():
    on_ranks(2, compiled)


def copied(rank):
    ddp = DistributedDataParallel(mlp(), **SMALL_BUCKETS)
    thinwire.attach(ddp, "onebit", **SETTINGS)
    train(ddp, rank)
    stored = io.BytesIO()
    torch.save(ddp, stored)
    stored.seek(0)
    for twin in (copy.deepcopy(ddp), torch.load(stored, weights_only=False)):
        expected = DistributedDataParallel(copy.deepcopy(ddp.module), **SMALL_BUCKETS)
        assert_equal(train(twin, rank), train(expected, rank))  # a copy exchanges as plain DDP does
        sync = thinwire.attach(twin, "onebit", **SETTINGS)  # until it is attached itself
        for step in range(2):
            before, local = pending(sync), local_gradients(twin, rank, step)
            twin.zero_grad()
            loss_of(twin, rank, step).backward()
            assert_conserved(local, before, gradients(twin.module), pending(sync))
        assert sync.step == 2


def test_an_attached_module_can_be_copied_and_saved():
    on_ranks(2, copied)
