import pytest
import torch

from thinwire.kernels import tail_threshold
from thinwire.kernels.cpu import tail as cpu
from thinwire.kernels.reference import tail as reference

INPUTS = {
    "normal": lambda x: x,
    "heavy tails": lambda x: x**5,
    "zero": torch.zeros_like,
    "equal": lambda x: x.sign() * 3,
    "few values": lambda x: (x * 2).round(),
    "mostly zero": lambda x: x * (x > 2.2),
    "tiny": lambda x: x * 1e-42,
    "huge": lambda x: x * 1e37,
}


def vector(numel, seed=0):
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("make", INPUTS.values(), ids=INPUTS.keys())
@pytest.mark.parametrize("numel", [1, 7, 8, 9, 31, 33, 1000, 4095, 4097, 50_001])
@pytest.mark.parametrize("stages", [0, 1, 2, 5])
def test_numba_equals_reference(make, numel, stages):
    x = make(vector(numel))
    for k in {1, max(1, numel // 100), max(1, numel // 3), numel}:
        ours, right = (module.threshold(x, k, stages) for module in (cpu, reference))
        assert ours == pytest.approx(right, rel=1e-6, abs=0)
        assert tail_threshold(x, k, stages=stages) == ours
        assert ours <= x.abs().max()


@pytest.mark.parametrize("stages", [0, 1, 2, 3])
@pytest.mark.parametrize("share", [0.1, 0.01, 0.001])
def test_exponential_magnitudes_are_met_by_any_number_of_stages(stages, share):
    x = torch.empty(1_000_000).exponential_(generator=torch.Generator().manual_seed(1)) * vector(1_000_000).sign()
    k = int(share * x.numel())
    reach = (x.abs() >= tail_threshold(x, k, stages=stages)).sum() / k
    assert 0.85 <= reach <= 1.2


def test_stages_by_hand():
    x = torch.tensor([1.0, -2, 3, -4, 6, 10, 16, -22])  # mean 8
    log_4 = 1.3862943
    assert tail_threshold(x, 2, stages=1) == pytest.approx(8 * log_4)  # 11.09
    assert tail_threshold(x, 1, stages=2) == pytest.approx(8 * log_4 + (19 - 8 * log_4) * log_4 / 2, rel=1e-6)
    assert tail_threshold(x, 2) == pytest.approx(8 * log_4)  # two reach it: enough
    assert tail_threshold(x, 8) == 0


@pytest.mark.parametrize("bad", [float("inf"), -float("inf"), float("nan")])
@pytest.mark.parametrize("place", [0, 500, 999])
@pytest.mark.parametrize("module", [cpu, reference])
def test_non_finite_elements_open_the_gate(bad, place, module):
    x = vector(1000)
    x[place] = bad
    assert module.threshold(x, 10, 0) == 0


def test_arguments_are_checked():
    for k in (0, 5):
        with pytest.raises(ValueError, match=f"k is {k}; it must be from 1 to the number of elements, 4"):
            tail_threshold(vector(4), k)
    with pytest.raises(ValueError, match="stages is -1; it must be 0"):
        tail_threshold(vector(4), 1, stages=-1)
