import pytest
import torch

from thinwire.demo.data import HELD_OUT_EVERY, sample_batch, standard_library_text


def _library(folder, num_files):
    for index in range(num_files):
        (folder / f"module_{index:02}.py").write_bytes(bytes([index]) * 10)
    return folder


def test_whole_files_are_held_out_and_never_trained_on(tmp_path):
    text = standard_library_text(_library(tmp_path, 2 * HELD_OUT_EVERY + 1))
    held_out = [0, HELD_OUT_EVERY, 2 * HELD_OUT_EVERY]
    assert text.held_out.tolist() == [byte for byte in held_out for _ in range(10)]
    train = [index for index in range(2 * HELD_OUT_EVERY + 1) if index not in held_out]
    assert text.train.tolist() == [byte for byte in train for _ in range(10)]


def test_the_library_of_this_python_is_enough_and_always_the_same():
    text, again = standard_library_text(), standard_library_text()
    assert len(text.train) > 2_000_000
    assert len(text.held_out) > 100_000
    assert torch.equal(text.train, again.train)
    assert torch.equal(text.held_out, again.held_out)


def test_a_python_without_its_library_as_files_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="3 Python modules, too few"):
        standard_library_text(_library(tmp_path, 3))


def test_targets_are_the_bytes_that_follow_the_inputs():
    text = torch.arange(200, dtype=torch.uint8)
    inputs, targets = sample_batch(text, batch_size=50, sequence_length=16, seed=3)
    assert inputs.shape == targets.shape == (50, 16)
    assert inputs.dtype == targets.dtype == torch.int64
    assert torch.equal(targets, inputs + 1)


def test_the_shortest_text_gives_its_only_window():
    inputs, targets = sample_batch(torch.tensor([7, 8, 9], dtype=torch.uint8), 2, 2, seed=0)
    assert inputs.tolist() == [[7, 8]] * 2
    assert targets.tolist() == [[8, 9]] * 2


def test_a_batch_is_a_function_of_its_seed_alone():
    text = standard_library_text().train
    torch.manual_seed(1)
    first = sample_batch(text, 4, 32, seed=5)
    torch.manual_seed(2)
    assert torch.equal(first[0], sample_batch(text, 4, 32, seed=5)[0])
    assert not torch.equal(first[0], sample_batch(text, 4, 32, seed=6)[0])
