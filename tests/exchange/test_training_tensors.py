"""Gradients of every dtype, layout and size."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import thinwire
from tests.compress.laws import SPECS
from tests.exchange.training import (
    LOSSY,
    Given,
    assert_conserved,
    assert_same_bits,
    batch,
    gradients,
    mean_over_ranks,
    pending,
)
from tests.ranks import on_ranks
from thinwire.compress import parse
from thinwire.strategy import Choice, Option, Strategy

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
SHAPES = ((40, 30), (7,), (25, 41))


def parallel(*parameters: Tensor, **options: object) -> DistributedDataParallel:
    return DistributedDataParallel(Given(*parameters), **{"bucket_cap_mb": 0.004} | options)


def given(module: Given, rank: int, step: int) -> dict[str, Tensor]:
    """Gradients in their parameters' dtypes and layouts."""
    return {
        name: torch.empty_like(p).copy_(batch(rank, 100 * step + i, p.numel()).view(p.shape))
        for i, (name, p) in enumerate(module.named_parameters())
    }


def exchange(ddp: DistributedDataParallel, local: dict[str, Tensor]) -> dict[str, Tensor]:
    ddp.zero_grad()
    ddp(*local.values()).backward()
    return gradients(ddp.module)


def mixed_dtypes(rank):
    parameters = [torch.zeros(shape, dtype=dtype) for dtype in DTYPES for shape in SHAPES]
    plain, exact = parallel(*parameters), parallel(*parameters)
    thinwire.attach(exact, "none", min_numel=16)
    packed = parallel(*parameters)
    thinwire.attach(packed, "none", scheme="reduce_scatter", min_numel=16)
    for step in range(2):
        local = given(plain.module, rank, step)
        mean = mean_over_ranks(local)
        expected = exchange(plain, local)
        for name, value in exchange(exact, local).items():
            assert torch.equal(value, expected[name])
        for name, value in exchange(packed, local).items():
            assert value.dtype == expected[name].dtype
            assert torch.equal(value, mean[name].to(value.dtype))  # two addends: rounded once, or not at all


def test_mixed_dtypes_uncompressed():
    on_ranks(2, mixed_dtypes)


def lossy_dtypes(rank, spec):
    ddp = parallel(*(torch.zeros(shape, dtype=dtype) for dtype in DTYPES for shape in SHAPES))
    sync = thinwire.attach(ddp, spec, min_numel=16, chunk_bytes=2000)
    for step in range(5):
        local, before = given(ddp.module, rank, step), pending(sync)
        result = exchange(ddp, local)
        after = pending(sync)
        assert_same_bits(result)
        for i, dtype in enumerate(DTYPES):
            assert result[f"weights.{3 * i}"].dtype == dtype
            names = [f"weights.{3 * i + j}" for j in (0, 2)]
            tolerance = max(torch.finfo(dtype).eps, 1e-6)  # results are rounded to the gradient's dtype
            assert_conserved(local, {n: before[n] for n in names}, result, after, tolerance)


@pytest.mark.parametrize("spec", LOSSY)
def test_mixed_dtypes_compressed(spec):
    on_ranks(2, lossy_dtypes, spec)


def bf16_models(rank):
    eps = 2.0**-8
    for scheme in ("allreduce", "reduce_scatter", "allgather"):  # the last two add up by themselves
        layer = parallel(torch.zeros(40, 30))
        thinwire.attach(layer, "bf16", scheme=scheme, min_numel=16, error_feedback=False)
        for step in range(5):
            local = given(layer.module, rank, step)
            mean = mean_over_ranks(local)["weights.0"]
            result = exchange(layer, local)
            assert_same_bits(result)
            assert (result["weights.0"] - mean).norm() <= eps * mean.norm()
    for spec in (spec for spec in SPECS if not parse(spec).expands):
        ddp = parallel(*(torch.zeros(shape, dtype=torch.bfloat16) for shape in SHAPES))
        sync = thinwire.attach(ddp, spec, min_numel=16, chunk_bytes=2000, error_feedback=True)
        for step in range(5):
            local, before = given(ddp.module, rank, step), pending(sync)
            result = exchange(ddp, local)
            assert_same_bits(result)
            if spec == "none":
                for name, mean in mean_over_ranks(local).items():
                    torch.testing.assert_close(result[name].double(), mean, rtol=eps, atol=0)
            else:
                assert_conserved(local, before, result, pending(sync), eps)


def test_c03_bf16_on_the_wire_and_in_the_model():
    on_ranks(2, bf16_models)


def layouts(rank):
    strided = [
        torch.zeros(64, 32, 1, 1).contiguous(memory_format=torch.channels_last),
        torch.zeros(16, 32, 3, 3).contiguous(memory_format=torch.channels_last),
        torch.zeros(48, 40).t(),
        torch.empty_strided((1, 64), (1, 1)).zero_(),
        torch.zeros(64, 1).t(),
        torch.zeros(30, 40)[:, ::2],
        torch.zeros(2, 3, 4, 5, 6).contiguous(memory_format=torch.channels_last_3d),
    ]
    contiguous = [torch.zeros(p.shape) for p in strided]
    for spec, scheme in (("none", None), ("none", "reduce_scatter"), *((s, None) for s in LOSSY), ("int8", "alltoall")):
        for options in ({}, {"gradient_as_bucket_view": True}):
            ddp, reference, plain = (parallel(*ps, **options) for ps in (strided, contiguous, strided))
            for module in (ddp, reference):
                thinwire.attach(module, spec, scheme=scheme, min_numel=16, chunk_bytes=2000)
            for step in range(3):
                expected = exchange(reference, given(reference.module, rank, step))
                local = given(ddp.module, rank, step)
                for name, value in exchange(ddp, local).items():
                    assert torch.equal(value, expected[name]), (spec, scheme, name)
                exchange(plain, local)
            for p, q in zip(ddp.module.weights, plain.module.weights, strict=True):
                assert p.grad.shape == p.shape
                assert p.grad.stride() == q.grad.stride()


def test_c08_strided_gradients_are_decoded_as_their_contiguous_copies():
    on_ranks(2, layouts)


class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(200, 16, sparse=True)
        self.linear = nn.Linear(16, 48)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.linear(self.embedding(tokens)).square().mean()


def sparse_embedding(rank):
    torch.manual_seed(0)
    model = Embedded()
    plain = DistributedDataParallel(model)
    results = {}
    for spec in (None, "none", *LOSSY):
        ddp = plain if spec is None else DistributedDataParallel(Embedded())
        ddp.module.load_state_dict(model.state_dict())
        sync = thinwire.attach(ddp, spec, min_numel=16) if spec else None
        for step in range(2):
            ddp.zero_grad()
            tokens = torch.randint(0, 200, (64,), generator=torch.Generator().manual_seed(10 * step + rank))
            ddp(tokens).backward()
        gradient = ddp.module.embedding.weight.grad
        assert gradient.is_sparse
        results[spec] = gradients(ddp.module) | {"embedding.weight": gradient.to_dense()}
        if sync is not None:
            assert {e["name"] for e in sync.state_dict()["errors"]} <= {"linear.weight"}
    for result in results.values():
        assert torch.equal(result["embedding.weight"], results[None]["embedding.weight"])
        assert_same_bits(result)
    assert torch.equal(results["none"]["linear.weight"], results[None]["linear.weight"])
    assert not torch.equal(results["onebit"]["linear.weight"], results[None]["linear.weight"])


def test_sparse_embedding_gradients_are_averaged_as_they_are():
    on_ranks(2, sparse_embedding)


def odd_sizes(rank):
    shapes = ((0,), (), (1,), (0, 4), (1, 1), (3, 1))
    parameters = [torch.zeros(shape) for shape in shapes]
    parameters += [torch.zeros(33, 40, dtype=torch.complex64), torch.zeros(5, dtype=torch.complex128)]
    for spec in ("none", *LOSSY):
        for options in ({}, {"gradient_as_bucket_view": True}):
            ddp, plain = parallel(*parameters, **options), parallel(*parameters, **options)
            scheme = None if spec == "none" else "allgather"  # others divide a unit, which takes two elements at least
            sync = thinwire.attach(ddp, spec, scheme=scheme, min_numel=0, compress_vectors=True)
            compressed = [n for n, c in sync.strategy.gradients.items() if c.option.compresses]
            assert compressed == ([] if spec == "none" else [f"weights.{i}" for i in (1, 2, 4, 5)])
            for step in range(3):
                local = {n: g * (1 + 2j) if g.is_complex() else g for n, g in given(ddp.module, rank, step).items()}
                before, expected = pending(sync), exchange(plain, local)
                result = exchange(ddp, local)
                assert_same_bits(result)
                for name, value in result.items():
                    assert value.shape == expected[name].shape
                    assert name in compressed or torch.equal(value, expected[name])
                if compressed:
                    assert_conserved(local, before, result, pending(sync))


def test_c21_empty_single_and_complex_parameters_are_carried_through():
    on_ranks(2, odd_sizes)


def only_empty(rank):
    for spec in ("none", *LOSSY):
        ddp = parallel(torch.zeros(0), torch.zeros(0, 4))
        thinwire.attach(ddp, spec, min_numel=0, compress_vectors=True)
        result = exchange(ddp, {"weights.0": torch.zeros(0), "weights.1": torch.zeros(0, 4)})
        assert [tuple(g.shape) for g in result.values()] == [(0,), (0, 4)]


def test_c21_nothing_but_empty_parameters():
    on_ranks(2, only_empty)


def complex_in_a_strategy(rank):
    ddp = parallel(torch.zeros(40, 30, dtype=torch.complex64))
    choice = Choice(numel=1200, option=Option.parse("encode@cpu > allgather@flat > decode@cpu"), compressor="onebit")
    with pytest.raises(TypeError, match=r"weights\.0.*complex64"):
        thinwire.attach(ddp, strategy=Strategy(world_size=2, gradients={"weights.0": choice}))


def test_c21_complex_gradients_are_not_compressed():
    on_ranks(2, complex_in_a_strategy)
