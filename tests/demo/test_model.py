import math

import pytest
import torch

from thinwire.demo.model import NUM_BYTES, ByteTransformer, ModelSize, next_byte_loss

SMALL = ModelSize(width=32, num_layers=2, num_heads=4, sequence_length=16)


def _count(size):
    return sum(parameter.numel() for parameter in ByteTransformer(size).parameters())


def test_the_default_has_about_eleven_million_parameters():
    width, layers, length = 384, 6, 128
    matrices = 12 * width**2  # 3 + 1 for attention, 4 + 4 around the GELU
    norms = 2 * width
    assert _count(ModelSize()) == layers * (matrices + 2 * norms) + norms + (NUM_BYTES + length) * width
    assert 10.5e6 < _count(ModelSize()) < 11.5e6


@pytest.mark.parametrize("changed", [0, 7, 15])
def test_a_byte_changes_no_logits_before_it_and_its_own(changed):
    torch.manual_seed(0)
    model = ByteTransformer(SMALL)
    text = torch.randint(NUM_BYTES, (2, 16))
    other = text.clone()
    other[:, changed] = (text[:, changed] + 1) % NUM_BYTES
    before, after = model(text), model(other)
    torch.testing.assert_close(before[:, :changed], after[:, :changed])
    assert (before[:, changed] - after[:, changed]).abs().max() > 1e-3


def test_later_logits_depend_on_earlier_bytes():
    torch.manual_seed(0)
    model = ByteTransformer(SMALL)
    text = torch.randint(NUM_BYTES, (1, 16))
    other = text.clone()
    other[:, 0] = (text[:, 0] + 1) % NUM_BYTES
    assert (model(text)[:, -1] - model(other)[:, -1]).abs().max() > 1e-6


def test_an_untrained_model_knows_nothing():
    torch.manual_seed(0)
    text = torch.randint(NUM_BYTES, (4, 17))
    loss = next_byte_loss(ByteTransformer(SMALL)(text[:, :-1]), text[:, 1:])
    assert loss.item() == pytest.approx(math.log(NUM_BYTES), abs=0.1)


def test_a_shorter_text_is_fine():
    torch.manual_seed(0)
    model = ByteTransformer(SMALL)
    text = torch.randint(NUM_BYTES, (2, 16))
    torch.testing.assert_close(model(text[:, :5]), model(text)[:, :5])


def test_every_parameter_has_a_gradient():
    torch.manual_seed(0)
    model = ByteTransformer(SMALL)
    text = torch.randint(NUM_BYTES, (2, 17))
    next_byte_loss(model(text[:, :-1]), text[:, 1:]).backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in model.parameters())
