import pytest
import torch

from thinwire.kernels import all_finite, is_zero
from thinwire.kernels.reference import finite as reference

DTYPES = [torch.float16, torch.bfloat16, torch.float32]
BAD = [float("inf"), -float("inf"), float("nan")]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 31, 33, 1000])
@pytest.mark.parametrize("run", [all_finite, reference.all_finite])
def test_finds_each_non_finite_element_between_start_and_stop(run, count, dtype):
    values = torch.randn(3, 2 + count + 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    values[:, 0], values[:, 1], values[0, 2:] = BAD[0], BAD[2], torch.finfo(dtype).max
    values[:, 2 + count :] = BAD[1]
    start, stop = 2 * dtype.itemsize, (2 + count) * dtype.itemsize
    assert run(values.view(torch.uint8), start, stop, dtype)
    for place in range(count):
        row, bad = place % 3, BAD[place % 3]
        spoilt = values.clone()
        spoilt[row, 2 + place] = bad
        assert not run(spoilt.view(torch.uint8), start, stop, dtype)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
@pytest.mark.parametrize("numel", [0, 1, 7, 8, 9, 31, 33, 1000])
def test_zero_is_zero_of_either_sign_and_nothing_else(numel, dtype):
    zeros = torch.zeros(numel, dtype=dtype).copysign(torch.tensor(-1.0) ** torch.arange(numel))
    assert is_zero(zeros)
    assert is_zero(torch.stack([zeros, zeros + 1], 1)[:, 0])
    for place in range(numel):
        for value in (torch.finfo(dtype).smallest_normal, *BAD):
            x = zeros.clone()
            x[place] = value
            assert not is_zero(x)
