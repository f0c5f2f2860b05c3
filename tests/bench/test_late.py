"""Whatever the options, a method computes what it would without them."""

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from tests.bench.given import users_model
from tests.ranks import on_ranks
from thinwire.bench.contestant import Contestant
from thinwire.bench.job import Job
from thinwire.bench.late import LateDDP
from thinwire.bench.method import parse_method


def train(rank, method, model):
    """Parameters after four steps."""
    job = Job(methods=(parse_method(method),), model=model, num_turns=2)
    contestant = Contestant.build(job.methods[0], job)
    for step in range(4):
        contestant.step(*contestant.batch(step, rank))
    return [p.detach().clone() for p in contestant.ddp.parameters()]


@pytest.mark.parametrize("options", ["wfbp=off", "fusion=off", "wfbp=off, fusion=off", "wfbp=off, bucket_mb=0.03"])
@pytest.mark.parametrize("method", ["ssgd", "ddp_fp16", "fp16", "topk(ratio=0.05)"])
def test_options_change_when_and_not_what(tmp_path, method, options):
    model = users_model(tmp_path)
    inside = f"{method.removesuffix(')')}, {options})" if method.endswith(")") else f"{method}({options})"
    usual, changed = on_ranks(2, train, method, model), on_ranks(2, train, inside, model)
    for rank in range(2):
        for parameter, other in zip(usual[rank], changed[rank], strict=True):
            torch.testing.assert_close(parameter, other, rtol=1e-6, atol=1e-7)
    for parameter, other in zip(*changed, strict=True):
        assert torch.equal(parameter, other)


def gradients_before_calls(rank, wrap):
    """How many gradients backward had made by the time of each call of the hook, in the second step."""
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8, bias=False) for _ in range(3)))
    ddp = wrap(model, bucket_cap_mb=2.0**-20)
    made, calls = [], []
    for parameter in model.parameters():
        parameter.register_hook(made.append)

    def hook(state, bucket):
        calls.append((bucket.index(), len(made)))
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    ddp.register_comm_hook(None, hook)
    for _ in range(2):  # buckets are rebuilt after the first
        made.clear()
        calls.clear()
        ddp(torch.ones(1, 8)).sum().backward()
    return calls


@pytest.mark.parametrize(
    ("wrap", "calls"), [(DistributedDataParallel, [(0, 1), (1, 2), (2, 3)]), (LateDDP, [(0, 3), (1, 3), (2, 3)])]
)
def test_buckets_come_in_order_as_they_are_filled_or_when_all_are(wrap, calls):
    assert on_ranks(2, gradients_before_calls, wrap) == [calls, calls]


def test_a_hook_that_fails_ends_backward(tmp_path):
    assert all("the network is gone" in message for message in on_ranks(2, failing))


def failing(rank):
    ddp = LateDDP(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)), bucket_cap_mb=2.0**-20)

    def hook(state, bucket):
        future = torch.futures.Future()
        future.set_result(bucket.buffer())

        def fail(done):
            raise RuntimeError("the network is gone")

        return future.then(fail) if bucket.index() == 0 else future

    ddp.register_comm_hook(None, hook)
    try:
        ddp(torch.ones(1, 8)).sum().backward()
    except RuntimeError as error:
        return str(error)
    return "it did not fail"
