import itertools
import os
import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from thinwire.kernels import lowrank_expand, lowrank_left, lowrank_right, orthonormalise_
from thinwire.kernels.reference import lowrank as reference

SIZES = [1, 2, 7, 8, 9, 31, 33, 64, 65, 127]
SHAPES = [
    *((n, m, rank) for n, m in itertools.product(SIZES, SIZES) for rank in (1, 2, 4, 5) if rank <= min(n, m)),
    *((n, m, 32) for n, m in itertools.product(SIZES, SIZES) if min(n, m) >= 32),
    (5, 1024, 4), (9, 1025, 5), (3, 2500, 3), (1030, 6, 6), (4500, 1, 1),  # more than are in the cache at once
]  # fmt: skip
INF, NAN = float("inf"), float("nan")
LARGEST = torch.finfo(torch.float32).max

every_side = pytest.mark.parametrize("side", ["left", "right"])


@pytest.fixture
def numbers():
    """Other numbers in each run; what a failed test prints makes them again."""
    generator = torch.Generator()
    seed = random.SystemRandom().getrandbits(32)
    print(f"generator.manual_seed({seed})")
    return generator.manual_seed(seed)


def orthonormal(rank, width, numbers):
    rows = torch.randn(rank, width, generator=numbers)
    orthonormalise_(rows)
    return rows


def problem(side, n, m, rank, numbers):
    """A gradient, an error and a basis to project on."""
    grad, error = torch.randn(2, n * m, generator=numbers)
    return grad, error, orthonormal(rank, m if side == "left" else n, numbers)


def project(side, n, m, grad, error, basis, *, keep=True, new_error=None, **factors):
    """The other factor, and what it and the basis leave."""
    factor = torch.full((basis.shape[0], n if side == "left" else m), NAN)
    if keep and new_error is None:
        new_error = torch.full((n * m,), NAN)
    kernel = lowrank_left if side == "left" else lowrank_right
    kernel(grad, error, new_error, basis, factor, **factors)
    return factor, new_error


def expand(left, right):
    out = torch.full((left.shape[1] * right.shape[1],), NAN)
    lowrank_expand(left, right, out)
    return out


def product(side, factor, basis):
    return expand(factor, basis) if side == "left" else expand(basis, factor)


def assert_close(actual, expected, scale, ulps=16):
    """To some units in the last place of ``scale``, a number that bounds what was added up."""
    assert (actual - expected).abs().max() <= ulps * 2**-23 * scale


ON_ANOTHER_CPU = """
import sys, torch
from thinwire.kernels import lowrank_expand, orthonormalise_
left, right, rows = torch.load(sys.argv[1])
out = torch.empty(left.shape[1] * right.shape[1])
lowrank_expand(left, right, out)
orthonormalise_(rows)
torch.save([out, rows], sys.argv[2])
"""


def test_other_instructions_give_the_same_bits(numbers, tmp_path):
    """Compiled for the least of CPUs: short vectors, and no multiplication and addition in one."""
    left, right = torch.randn(6, 33, generator=numbers), torch.randn(6, 1025, generator=numbers)
    rows = torch.randn(6, 6, generator=numbers) @ torch.randn(6, 385, generator=numbers)
    torch.save([left, right, rows], tmp_path / "input.pt")
    subprocess.run(
        [sys.executable, "-c", ON_ANOTHER_CPU, tmp_path / "input.pt", tmp_path / "output.pt"],
        env=os.environ | {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""},
        timeout=120,
        check=True,
    )
    orthonormalise_(rows)
    for actual, expected in zip(torch.load(tmp_path / "output.pt"), [expand(left, right), rows], strict=True):
        assert torch.equal(actual.view(torch.int32), expected.view(torch.int32))


# --- projections


@every_side
def test_numba_equals_reference(side, numbers):
    for n, m, rank in SHAPES:
        grad, error, basis = problem(side, n, m, rank, numbers)
        for given_error, keep in itertools.product([error, None], [True, False]):
            factor, new_error = project(side, n, m, grad, given_error, basis, keep=keep, error_scale=0.7, weight=0.25)
            wanted, rest = torch.empty_like(factor), torch.empty_like(grad) if keep else None
            getattr(reference, side)(grad, given_error, rest, basis, wanted, n, m, 0.7, 0.25)
            torch.testing.assert_close(factor, wanted, rtol=0, atol=1e-5 * wanted.norm().item())
            if keep:
                torch.testing.assert_close(new_error, rest, rtol=0, atol=1e-5 * (grad.norm() + error.norm()).item())


def test_two_by_three_by_hand():
    grad, basis = torch.tensor([1.0, 2, 3, 4, 5, 6]), torch.tensor([[0.0, 1, 0]])
    left, rest = project("left", 2, 3, grad, None, basis, weight=0.5)
    assert left.tolist() == [[1.0, 2.5]]
    assert rest.tolist() == [1, 0, 3, 4, 0, 6]
    right, rest = project("right", 2, 3, grad, torch.ones(6), torch.tensor([[1.0, 0]]), error_scale=-1, weight=0.5)
    assert right.tolist() == [[0, 0.5, 1.0]]
    assert rest.tolist() == [0, 0, 0, 3, 4, 5]


@every_side
def test_what_is_sent_and_what_is_kept_are_all_there_was(side, numbers):
    for n, m, rank in SHAPES:
        grad, error, basis = problem(side, n, m, rank, numbers)
        factor, new_error = project(side, n, m, grad, error, basis, error_scale=0.7, weight=0.25)
        q = grad + 0.7 * error
        # A projection of a row, or column, on a unit vector is no longer than it.
        lengths = torch.linalg.vector_norm(q.view(n, m), dim=1 if side == "left" else 0)
        assert_close(product(side, factor, basis) / 0.25 + new_error, q, rank * lengths.max())


@every_side
def test_no_more_is_kept_than_there_was(side, numbers):
    for n, m, rank in SHAPES:
        grad, error, basis = problem(side, n, m, rank, numbers)
        factor, new_error = project(side, n, m, grad, error, basis)
        q = grad + error
        assert new_error.norm() <= q.norm() * (1 + 1e-5)
        torch.testing.assert_close(new_error.norm() ** 2 + factor.norm() ** 2, q.norm() ** 2, rtol=1e-4, atol=0)


@every_side
def test_a_matrix_of_low_rank_is_sent_whole(side, numbers):
    for n, m, rank in SHAPES:
        basis = orthonormal(rank, m if side == "left" else n, numbers)
        other = torch.randn(rank, n if side == "left" else m, generator=numbers)
        grad = product(side, other, basis)
        factor, new_error = project(side, n, m, grad, None, basis)
        assert_close(factor, other, rank * grad.norm())
        assert new_error.norm() <= 1e-5 * grad.norm()


@every_side
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_factors_are_linear_in_the_gradient(side, data):
    numbers = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32 - 1), "seed"))
    n, m = data.draw(st.integers(1, 40), "n"), data.draw(st.integers(1, 40), "m")
    grad, other, basis = problem(side, n, m, data.draw(st.integers(1, min(n, m)), "rank"), numbers)
    scale, weight = data.draw(st.floats(-4, 4, width=32), "scale"), data.draw(st.floats(2**-10, 1, width=32), "weight")
    first, second = (project(side, n, m, x, None, basis, keep=False)[0] for x in (grad, other))
    both, _ = project(side, n, m, grad + scale * other, None, basis, keep=False, weight=weight)
    assert_close(both, weight * (first + scale * second), weight * (grad.norm() + abs(scale) * other.norm()))


@every_side
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_non_finite_elements_show(side, data):
    numbers = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32 - 1), "seed"))
    n, m = data.draw(st.integers(1, 40), "n"), data.draw(st.integers(1, 40), "m")
    grad, error, basis = problem(side, n, m, data.draw(st.integers(1, min(n, m)), "rank"), numbers)
    place, bad = data.draw(st.integers(0, n * m - 1), "place"), data.draw(st.sampled_from([INF, -INF, NAN]), "bad")
    in_grad, in_error = data.draw(st.sampled_from([(True, False), (False, True), (True, True)]), "where")
    if data.draw(st.booleans(), "axes"):  # of which nearly all elements are zero
        basis = torch.eye(*basis.shape)
    if in_grad:
        grad[place] = bad
    if in_error:
        error[place] = -bad
    with_error = in_error or data.draw(st.booleans(), "with error")
    keep = data.draw(st.booleans(), "keep")
    factor, _ = project(side, n, m, grad, error if with_error else None, basis, keep=keep, weight=0.25)
    column = place // m if side == "left" else place % m
    assert not factor[:, column].isfinite().any()
    others = torch.arange(factor.shape[1]) != column
    assert factor[:, others].isfinite().all()


@every_side
def test_new_error_may_be_the_error(side, numbers):
    for n, m, rank in [(9, 33, 4), (33, 9, 5), (3, 2500, 2)]:
        grad, error, basis = problem(side, n, m, rank, numbers)
        apart = project(side, n, m, grad, error, basis, error_scale=0.3)
        together = project(side, n, m, grad, error, basis, error_scale=0.3, new_error=error)
        assert together[1] is error
        for actual, expected in zip(together, apart, strict=True):
            assert torch.equal(actual, expected)


@every_side
def test_keeping_changes_no_factor_and_weight_no_error(side, numbers):
    grad, error, basis = problem(side, 33, 65, 5, numbers)
    factor, new_error = project(side, 33, 65, grad, error, basis)
    weighted, same_error = project(side, 33, 65, grad, error, basis, weight=0.25)
    assert torch.equal(weighted, 0.25 * factor)
    assert torch.equal(same_error, new_error)
    assert torch.equal(project(side, 33, 65, grad, error, basis, keep=False)[0], factor)


@every_side
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_any_float_dtype_and_stride(side, dtype, numbers):
    grad, error, basis = problem(side, 16, 20, 3, numbers)
    strided = grad.to(dtype).repeat_interleave(2)[::2]
    expected = project(side, 16, 20, grad.to(dtype).float(), error, basis)
    for actual, wanted in zip(project(side, 16, 20, strided, error, basis), expected, strict=True):
        assert torch.equal(actual, wanted)


@every_side
@pytest.mark.parametrize(("n", "m"), [(0, 0), (0, 5), (5, 0)])
def test_nothing_to_project(side, n, m):
    basis = torch.empty(0, m if side == "left" else n)
    factor, new_error = project(side, n, m, torch.empty(0), torch.empty(0), basis)
    assert factor.numel() == new_error.numel() == 0
    assert product(side, factor, basis).numel() == 0


@every_side
def test_without_a_basis_all_is_kept(side):
    grad = torch.arange(6.0)
    _, new_error = project(side, 2, 3, grad, None, torch.empty(0, 3 if side == "left" else 2))
    assert torch.equal(new_error, grad)


def test_wrong_shapes_are_named():
    grad, left, right = torch.zeros(12), torch.zeros(2, 3), torch.zeros(2, 4)
    with pytest.raises(ValueError, match=r"grad has shape \(11,\); the other arguments call for \(12,\)"):
        lowrank_left(grad[:11], None, None, right, left)
    with pytest.raises(ValueError, match=r"^error has shape \(11,\)"):
        lowrank_left(grad, grad[:11], None, right, left)
    with pytest.raises(ValueError, match=r"new_error has shape \(3, 4\)"):
        lowrank_right(grad, None, grad.view(3, 4), left, right)
    with pytest.raises(ValueError, match=r"left has shape \(1, 3\)"):
        lowrank_left(grad, None, None, right, left[:1])
    with pytest.raises(ValueError, match=r"right has shape \(1, 4\)"):
        lowrank_right(grad, None, None, left, right[:1])
    with pytest.raises(ValueError, match=r"basis has shape \(4,\)"):
        lowrank_left(grad, None, None, right[0], left)
    with pytest.raises(ValueError, match=r"right has shape \(1, 4\)"):
        lowrank_expand(left, right[:1], grad)
    with pytest.raises(ValueError, match=r"out has shape \(3, 4\)"):
        lowrank_expand(left, right, grad.view(3, 4))
    with pytest.raises(ValueError, match=r"rows has shape \(3, 2\)"):
        orthonormalise_(torch.zeros(3, 2))
    with pytest.raises(ValueError, match=r"rows has shape \(3,\)"):
        orthonormalise_(torch.zeros(3))


# --- the product


def test_product_has_the_bits_of_a_plain_loop(numbers):
    for n, m, rank in SHAPES:
        left, right = torch.randn(rank, n, generator=numbers), torch.randn(rank, m, generator=numbers)
        expected = np.zeros((n, m), np.float32)
        for k in range(rank):
            expected += np.multiply.outer(left[k].numpy(), right[k].numpy())
        out, other = expand(left, right), torch.empty(n * m)
        reference.expand(left, right, other)
        assert np.array_equal(out.numpy().view(np.int32), expected.ravel().view(np.int32))
        assert torch.equal(other.view(torch.int32), out.view(torch.int32))


def test_product_rounds_after_each_multiplication():
    x = 1 + 2**-12  # x * x has one bit more than float32
    left, right = torch.tensor([[1.0], [x]]), torch.tensor([[-1.0] * 33, [x] * 33])
    assert expand(left, right).tolist() == [2**-11] * 33


def test_product_of_no_terms_is_zero():
    assert expand(torch.empty(0, 3), torch.empty(0, 4)).tolist() == [0.0] * 12


# --- orthonormal rows


def made_orthonormal(rows):
    """A copy made orthonormal; checks what holds whatever the rows are."""
    basis, other = rows.clone(), rows.clone()
    orthonormalise_(basis)
    reference.orthonormalise_(other)
    assert torch.equal(basis.view(torch.int32), other.view(torch.int32))
    wide = basis.double()
    assert (wide @ wide.T - torch.eye(rows.shape[0])).abs().max() <= 1e-6
    for i, row in enumerate(rows.double()):
        rest = row - wide[: i + 1].T @ (wide[: i + 1] @ row)
        assert rest.norm() <= 1e-5 * row.norm()
    return basis


@pytest.mark.parametrize("width", [*SIZES, 1536])
def test_well_conditioned_rows_become_those_of_qr(width, numbers):
    for rank in {1, 2, 4, 5, 32, min(width, 127)}:
        if rank > width:
            continue
        rows = torch.randn(rank, width, generator=numbers)
        basis = made_orthonormal(rows)
        q, r = torch.linalg.qr(rows.double().T)
        if torch.linalg.cond(r) < 1e4:
            torch.testing.assert_close(basis.double(), (q * r.diagonal().sign()).T, rtol=0, atol=1e-6)
        assert ((basis.double() * rows.double()).sum(1) > 0).all()


def test_rows_without_a_direction_get_an_axis():
    assert torch.equal(made_orthonormal(torch.zeros(5, 5)), torch.eye(5))
    assert torch.equal(made_orthonormal(torch.tensor([[0.0, 0, 0], [3, 0, 0]])), torch.eye(2, 3))
    assert (
        made_orthonormal(torch.tensor([[3.0, 4.0], [-6, -8]])).tolist()
        == torch.tensor([[0.6, 0.8], [0.8, -0.6]]).tolist()
    )


@pytest.mark.parametrize("name", ["duplicates", "an ulp apart", "slowly dependent", "constant", "one axis", "graded"])
@pytest.mark.parametrize(("rank", "width"), [(1, 1), (4, 4), (4, 33), (8, 8), (32, 32), (32, 64), (64, 127)])
@pytest.mark.parametrize("exponent", [-149, -126, 0, 100])
def test_nasty_rows(name, rank, width, exponent, numbers):
    noise = torch.randn(rank, width, generator=numbers)
    steps = torch.arange(rank).unsqueeze(1)
    rows = {
        "duplicates": noise[steps[:, 0] // 3],
        "an ulp apart": noise[:1] * (1 + 2**-23 * torch.randint(2, noise.shape, generator=numbers)),
        "slowly dependent": noise[:1] + torch.ldexp(noise, -steps),
        "constant": torch.ones(rank, width),
        "one axis": torch.eye(1, width).repeat(rank, 1) * noise,
        "graded": torch.ldexp(noise, steps * 25 // rank),
    }[name]
    made_orthonormal(torch.ldexp(rows, torch.tensor(exponent)).clamp(-LARGEST, LARGEST))


@settings(max_examples=150, deadline=None)
@given(
    rows=st.integers(1, 8)
    .flatmap(lambda rank: st.tuples(st.just(rank), st.integers(rank, 20)))
    .flatmap(
        lambda shape: arrays(
            np.float32,
            shape,
            elements=st.floats(width=32, allow_nan=False, allow_infinity=False)
            | st.sampled_from([0.0, -0.0, 1.0, -1.0]),
        )
    )
)
def test_any_finite_rows(rows):
    made_orthonormal(torch.from_numpy(rows))


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), rank=st.integers(1, 8), rows=st.integers(1, 8), exponents=st.integers(0, 60))
def test_rows_of_any_rank_and_size(seed, rank, rows, exponents):
    numbers = torch.Generator().manual_seed(seed)
    assume(rank <= rows)
    left, right = torch.randn(rows, rank, generator=numbers), torch.randn(rank, 50, generator=numbers)
    sizes = torch.randint(-exponents, exponents + 1, (rows, 1), generator=numbers)
    made_orthonormal(torch.ldexp(left @ right, sizes))


@pytest.mark.parametrize("bad", [INF, -INF, NAN])
@pytest.mark.parametrize("place", [(0, 0), (1, 3), (2, 6)])
def test_non_finite_rows_become_nan(bad, place, numbers):
    rows = torch.randn(3, 7, generator=numbers)
    rows[place] = bad
    for run in (orthonormalise_, reference.orthonormalise_):
        spoilt = rows.clone()
        run(spoilt)
        assert spoilt.isnan().all()


def test_no_rows():
    for width in (0, 5):
        orthonormalise_(torch.empty(0, width))
