"""What the tests of training loops share: modules, and the laws that every exchange keeps."""

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

import thinwire

LOSSY = ("onebit", "topk(ratio=0.05)", "int8")


class Given(nn.Module):
    """Parameters whose gradients are whatever forward is given, one for each."""

    def __init__(self, *parameters: Tensor) -> None:
        super().__init__()
        self.weights = nn.ParameterList(parameters)

    def forward(self, *gradients: Tensor) -> Tensor:
        return sum((p * g.conj()).sum().real for p, g in zip(self.weights, gradients, strict=True))


def mlp() -> nn.Sequential:
    """Three matrices of 2048, 4096 and 512 elements, the same on all ranks."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))


def batch(rank: int, step: int, *shape: int) -> Tensor:
    """Numbers of one rank and step."""
    return torch.randn(shape or (4, 32), generator=torch.Generator().manual_seed(1000 * step + rank))


def loss_of(module: nn.Module, rank: int, step: int) -> Tensor:
    return module(batch(rank, step)).square().mean()


def gradients(module: nn.Module) -> dict[str, Tensor]:
    return {n: p.grad.detach().clone() for n, p in module.named_parameters() if p.grad is not None}


def local_gradients(ddp: nn.Module, rank: int, step: int) -> dict[str, Tensor]:
    """This rank's own gradients, which DDP and its hook do not see."""
    named = {n: p for n, p in ddp.module.named_parameters() if p.requires_grad}
    return dict(zip(named, torch.autograd.grad(loss_of(ddp.module, rank, step), list(named.values())), strict=True))


def mean_over_ranks(tensors: Mapping[str, Tensor], group: ProcessGroup | None = None) -> dict[str, Tensor]:
    """Means in float64. Collective."""
    means = {}
    for name in sorted(tensors):
        means[name] = tensors[name].detach().double().contiguous()
        dist.all_reduce(means[name], group=group)
        means[name] /= dist.get_world_size(group)
    return means


def own_errors(sync: thinwire.Sync) -> dict[tuple[str, int, int], tuple[Tensor, float]]:
    """This rank's committed errors and their units, by parameter, start and stage."""
    return {(e["name"], e["start"], e["stage"]): (e["error"], e["unit"]) for e in sync.state_dict()["errors"]}


def assert_same_errors(sync: thinwire.Sync, before: Mapping[tuple[str, int, int], tuple[Tensor, float]]) -> None:
    after = own_errors(sync)
    assert after.keys() == before.keys()
    for key, (error, unit) in after.items():
        assert torch.equal(error, before[key][0]), key
        assert unit == before[key][1], key


def pending(sync: thinwire.Sync) -> dict[str, Tensor]:
    """What was dropped and is still to reach the model, in float64: the mean over workers and all servers' errors.

    In the unit that it was stored in, divided by it. Collective.
    """
    numels = {n: c.numel for n, c in sync.strategy.gradients.items() if c.option.compresses}
    total = {n: torch.zeros(numel, dtype=torch.float64) for n, numel in numels.items()}
    ranks = sync.state_dict(all_ranks=True)["ranks"]
    for state in ranks:
        for e in state["errors"]:
            share = 1 / len(ranks) if e["stage"] == 0 else 1.0
            total[e["name"]][e["start"] : e["start"] + e["error"].numel()] += e["error"].double() * share / e["unit"]
    return total


def assert_conserved(
    local: Mapping[str, Tensor],
    before: Mapping[str, Tensor],
    result: Mapping[str, Tensor],
    after: Mapping[str, Tensor],
    tolerance: float = 1e-5,
) -> None:
    """Design, contract 2, over all ranks: mean gradient + what was pending == result + what is pending. Collective."""
    assert before
    mean = mean_over_ranks({name: local[name] for name in before})
    for name in before:
        entered = mean[name].flatten() + before[name]
        left = result[name].double().flatten() + after[name]
        slack = tolerance * (entered.abs().max() + before[name].abs().max() + after[name].abs().max())
        assert ((entered - left).abs() <= slack).all(), name


def assert_same_bits(tensors: Mapping[str, Tensor], group: ProcessGroup | None = None) -> None:
    """All ranks hold these, bit for bit. Collective."""
    for name in sorted(tensors):
        mine = tensors[name].detach().contiguous().reshape(-1).view(torch.uint8)
        everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
        dist.all_gather(everyone, mine, group=group)
        assert all(torch.equal(other, mine) for other in everyone), name
