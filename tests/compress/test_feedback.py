import pytest
import torch

from tests.compress.laws import KEY, blank, decode, vector
from thinwire.compress import ErrorFeedback, OneBit, TopK

TOP = TopK(ratio=0.25, values="fp32")


def step(memory, grad, compressor=TOP, *, commit=True, **settings):
    """One step of error feedback; returns what is delivered."""
    payload = blank(compressor, grad.numel())
    memory.encode(compressor, grad, payload, KEY, **settings)
    if commit:
        memory.commit()
    return decode(compressor, payload, grad.numel())


def test_what_is_dropped_is_sent_later():
    memory, grad = ErrorFeedback(4), torch.tensor([4.0, 3, 2, 1])
    delivered = [step(memory, grad).tolist() for _ in range(3)]
    assert delivered == [[4, 0, 0, 0], [0, 6, 0, 0], [8, 0, 0, 0]]
    assert memory.error.tolist() == [0, 3, 6, 3]


def test_delivered_and_kept_add_up_over_steps():
    memory, total = ErrorFeedback(1000), torch.zeros(1000, dtype=torch.float64)
    for seed in range(20):
        total += step(memory, vector(1000, seed), OneBit())
    expected = sum(vector(1000, seed).double() for seed in range(20))
    torch.testing.assert_close(total + memory.error, expected, rtol=0, atol=1e-5)


def test_nothing_changes_before_commit():
    memory, grad = ErrorFeedback(4), torch.tensor([4.0, 3, 2, 1])
    step(memory, grad)
    before = memory.error.clone()
    first = step(memory, grad, commit=False, unit=2.0)
    assert torch.equal(memory.error, before)
    assert memory.unit == 1
    assert torch.equal(step(memory, grad, commit=False, unit=2.0), first)


def test_rollback_leaves_no_trace_even_of_infinities():
    memory, grad = ErrorFeedback(4), torch.tensor([4.0, 3, 2, 1])
    step(memory, grad)
    before = memory.error.clone()
    step(memory, torch.full((4,), float("inf")), commit=False, unit=2.0)
    memory.rollback()
    memory.commit()
    assert torch.equal(memory.error, before)
    assert memory.unit == 1
    assert step(memory, grad).tolist() == [0, 6, 0, 0]


def test_a_zero_gradient_sends_zeros_and_keeps_the_error():
    memory, grad = ErrorFeedback(4), torch.tensor([4.0, 3, 2, 1])
    step(memory, grad)
    assert step(memory, torch.zeros(4), unit=8.0).tolist() == [0, 0, 0, 0]
    assert memory.error.tolist() == [0, 3, 2, 1]
    assert memory.unit == 1


@pytest.mark.parametrize("place", [0, 7, 8, 999])
def test_a_gradient_with_one_element_is_not_zero(place):
    memory, grad = ErrorFeedback(1000), torch.zeros(1000)
    grad[place] = 1e-30
    assert torch.equal(step(memory, grad, TopK(values="fp32")), grad)


def test_the_error_follows_the_unit():
    """When the loss scale doubles, so does what is kept of earlier steps."""
    memory = ErrorFeedback(4)
    step(memory, torch.tensor([4.0, 3, 2, 1]), unit=1.0)
    assert step(memory, 2 * torch.tensor([4.0, 3, 2, 1]), unit=2.0).tolist() == [0, 12, 0, 0]
    assert memory.error.tolist() == [8, 0, 8, 4]
    assert memory.unit == 2


def test_the_error_is_corrected_for_the_learning_rate():
    """Error dropped at rate 0.1 is worth a tenth at rate 1, so that lr * gradient is what is conserved."""
    memory = ErrorFeedback(2)
    sent = step(memory, torch.tensor([4.0, 2.0]), TopK(ratio=0.5, values="fp32"), unit=1 / 0.1)
    assert sent.tolist() == [4, 0]
    sent = step(memory, torch.tensor([0.0, 1.0]), TopK(ratio=0.5, values="fp32"), unit=1 / 1.0)
    torch.testing.assert_close(sent, torch.tensor([0.0, 1.0 + 0.1 * 2.0]))


def test_weight_is_not_on_the_error():
    plain, weighted = ErrorFeedback(4), ErrorFeedback(4)
    grad = torch.tensor([4.0, 3, 2, 1])
    assert torch.equal(step(weighted, grad, weight=0.5), 0.5 * step(plain, grad))
    assert torch.equal(weighted.error, plain.error)


def test_load_replaces_the_error_by_a_copy():
    memory, error = ErrorFeedback(4), torch.tensor([0.0, 0, 0, 8])
    step(memory, torch.ones(4), commit=False)
    memory.load(error, unit=2.0)
    memory.commit()
    error.zero_()
    assert memory.error.tolist() == [0, 0, 0, 8]
    assert memory.unit == 2
    assert step(memory, torch.tensor([1.0, 0, 0, 0]), unit=1.0).tolist() == [0, 0, 0, 4]


def test_load_refuses_another_shape():
    with pytest.raises(ValueError, match=r"shape \(4,\) cannot load \(1,\)"):
        ErrorFeedback(4).load(torch.ones(1))


def test_a_failing_compressor_leaves_nothing_to_commit():
    memory, grad = ErrorFeedback(4), torch.tensor([4.0, 3, 2, 1])
    step(memory, grad, commit=False)
    with pytest.raises(ValueError, match="3 bytes"):
        memory.encode(TOP, grad, torch.empty(3, dtype=torch.uint8), KEY)
    memory.commit()
    assert memory.error.tolist() == [0, 0, 0, 0]


def test_empty():
    memory = ErrorFeedback(0)
    assert step(memory, torch.empty(0)).numel() == 0
    assert memory.error.numel() == 0


def test_an_error_that_was_never_written_has_no_unit():
    memory, grad = ErrorFeedback(4), torch.tensor([4.0, 3, 2, 1])
    assert step(memory, grad, unit=1e45).tolist() == [4, 0, 0, 0]
    assert memory.error.tolist() == [0, 3, 2, 1]
