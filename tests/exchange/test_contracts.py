"""Contracts 1, 4 and 5 of the exchange: equal bits whatever the timing, non-finite gradients that leave no trace."""

import random
import time

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tests.exchange.given import SPECS, WITH_STATE, attach, bits, errors_of, exchanged, given_ddp, given_gradients
from tests.exchange.test_schemes import fitting_schemes
from tests.ranks import on_ranks
from thinwire.compress import parse
from thinwire.strategy import Choice, Place, Strategy, flat_option

INF, NAN = float("inf"), float("nan")

PLACES = [
    ("bias", 3, INF),  # uncompressed
    ("first", 0, INF),  # the first chunk
    ("first", 1072, NAN),  # the last chunk
    ("third", 1500, -INF),  # a chunk in between
    ("third", 1501, NAN),
    ("fourth", 104, INF),
    ("vector", 699, NAN),
]
"""Parameter, element, value. Random-k takes a fifth of the elements, so most of these places are not among them."""


def poisoned(rank: int, step: int, place: tuple[str, int, float]) -> dict[str, Tensor]:
    """The given gradients, with the value at its place on rank 1 alone."""
    gradients = given_gradients(rank, step)
    if rank == 1:
        name, element, value = place
        gradients[name].view(-1)[element] = value
    return gradients


def forget_step_counts(sync, *, num_steps: int) -> None:
    """As if so many steps more had been: randomness depends on the number of the step."""
    state = sync.state_dict()
    sync.load_state_dict(state | {"step": state["step"] + num_steps})


def non_finite_steps(rank: int, spec: str, scheme: str) -> None:
    settings = {"spec": spec, "scheme": scheme, "error_feedback": True}
    ddp, clean_ddp = given_ddp(), given_ddp()
    sync, clean = attach(ddp, **settings), attach(clean_ddp, **settings)

    # In the very first step, when no error memory has been made yet.
    result = exchanged(ddp, poisoned(rank, 0, PLACES[0]))
    assert not torch.isfinite(result["bias"]).all()
    assert all(not error.any() for error in errors_of(sync).values())
    forget_step_counts(clean, num_steps=1)

    assert bits(exchanged(ddp, given_gradients(rank, 1))) == bits(exchanged(clean_ddp, given_gradients(rank, 1)))
    before = bits(errors_of(sync))
    assert any(error.any() for error in errors_of(sync).values())
    for count, place in enumerate(PLACES, start=2):
        result = exchanged(ddp, poisoned(rank, count, place))
        assert not torch.isfinite(result[place[0]]).all(), place
        assert bits(errors_of(sync)) == before, place
    forget_step_counts(clean, num_steps=len(PLACES))

    after = exchanged(ddp, given_gradients(rank, 10))
    assert all(torch.isfinite(gradient).all() for gradient in after.values())
    assert bits(after) == bits(exchanged(clean_ddp, given_gradients(rank, 10)))
    assert bits(errors_of(sync)) == bits(errors_of(clean))
    assert sync.stats().non_finite_steps == len(PLACES) + 1
    sync.detach()
    clean.detach()


@pytest.mark.parametrize("spec", [spec for spec in SPECS + WITH_STATE if not parse(spec).expands])
def test_non_finite_gradients_are_seen_and_leave_no_trace(spec):
    for scheme in fitting_schemes(spec):
        on_ranks(2, non_finite_steps, spec, scheme)


def non_finite_results(rank: int, spec: str, scheme: str) -> list[dict[str, bytes]]:
    ddp = given_ddp()
    sync = attach(ddp, spec, scheme=scheme)
    results = [exchanged(ddp, poisoned(rank, step, place)) for step, place in enumerate(PLACES)]
    sync.detach()
    return [{name: torch.isfinite(g).all().item() for name, g in result.items()} for result in results]


@pytest.mark.parametrize(("spec", "scheme"), [("onebit", "alltoall"), ("randomk(ratio=0.2)", "allreduce")])
def test_non_finite_gradients_are_seen_on_every_rank_and_nowhere_else(spec, scheme):
    for finite in on_ranks(3, non_finite_results, spec, scheme):
        for step, (name, _, _) in enumerate(PLACES):
            assert [n for n, is_finite in finite[step].items() if not is_finite] == [name]


def early_inf(rank: int) -> dict[tuple[str, int, int], Tensor]:
    # Bigger than DDP's bucket, so each is in a bucket of its own; the uncompressed one comes long before the other.
    shapes = {"weight": (40, 40), "bias": (900,)}
    ddp = given_ddp(shapes, find_unused_parameters=True)
    sync = attach(ddp, "onebit")
    ddp.module.weight.register_hook(lambda _: time.sleep(0.2 * rank))
    gradients = given_gradients(rank, 0, shapes)
    gradients["bias"][0] = INF
    exchanged(ddp, gradients)
    sync.detach()
    return errors_of(sync)


def test_an_inf_before_the_first_error_is_kept():
    for errors in on_ranks(2, early_inf):
        assert {name for name, _, _ in errors} == {"weight"}
        assert all(not error.any() for error in errors.values())


def delayed_training(rank: int, num_steps: int, specs: dict[str, str]) -> tuple[dict[str, bytes], int, int]:
    """Train under random delays that differ between ranks; the spec and scheme of each weight come from ``specs``."""
    torch.manual_seed(5)
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in specs))
    delays = random.Random(rank)

    def delay(*_: object) -> None:
        time.sleep(min(delays.expovariate(1 / 30e-6), 2e-3) if delays.random() < 0.98 else 3e-3 * delays.random())

    for layer in model:
        layer.register_forward_hook(delay)
        layer.weight.register_hook(delay)
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.001)
    choices = {}
    for name, p in model.named_parameters():
        choices[name] = Choice(numel=p.numel())
        if name in specs:
            spec, scheme = specs[name].split("@")
            choices[name] = Choice(numel=p.numel(), option=flat_option(scheme, Place.CPU), compressor=spec)
    strategy = Strategy(world_size=3, gradients=choices)
    sync = attach(ddp, strategy=strategy)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01, momentum=0.9)
    inputs = torch.Generator().manual_seed(rank)
    for _ in range(num_steps):
        optimizer.zero_grad()
        x = torch.randn(4, 16, generator=inputs)
        (ddp(x) - x.roll(1, 1)).square().mean().backward()
        optimizer.step()
    num_buckets = len(ddp._get_ddp_logging_data()["rebuilt_bucket_sizes"].split(","))
    sync.detach()
    assert all(torch.isfinite(p).all() for p in ddp.parameters())
    return bits(dict(ddp.named_parameters())), num_buckets, sync.step


REDUCIBLE, OTHER = "randomk(ratio=0.1)", "onebit"
MIXED = ["onebit@alltoall", "randomk(ratio=0.1)@allreduce", "int8@allgather", "fp16@reduce_scatter", "onebit@allgather"]
MIXED += ["powersgd(approx_rank=2)@allreduce_twice", "acpsgd(approx_rank=2)@allreduce", "dgc(ratio=0.1)@alltoall"]


THOUSAND = {
    "allreduce": [f"{REDUCIBLE}@allreduce"] * 3,
    "reduce_scatter": [f"{REDUCIBLE}@reduce_scatter"] * 3,
    "allgather": [f"{OTHER}@allgather"] * 3,
    "alltoall": [f"{OTHER}@alltoall"] * 3,
    "acpsgd": ["acpsgd(approx_rank=2)@allreduce"] * 3,
    "powersgd": ["powersgd(approx_rank=2)@allreduce_twice"] * 3,
    "dgc": ["dgc(ratio=0.1)@allgather"] * 3,
    "mixed": MIXED,
}
"""A spec and a scheme for each layer."""


@pytest.mark.parametrize("kind", THOUSAND)
def test_a_thousand_steps_under_random_delays(kind):
    each = THOUSAND[kind]
    specs = {f"{layer}.weight": one for layer, one in enumerate(each)}
    (first, num_buckets, num_steps), *others = on_ranks(3, delayed_training, 1000, specs, limit_seconds=170)
    assert num_buckets > 2
    assert num_steps == 1000
    assert all(parameters == first for parameters, _, _ in others)
