import pytest

from tests.bench.given import SECONDS, fill, measured, point
from thinwire.bench.result import DEFINITIONS, PARTS, parts, summarise

POINT = point(num_turns=2)


def test_a_step_is_the_median_of_its_slowest_rank_without_what_settles():
    methods = measured(POINT)["methods"]
    assert {name: figures["step_seconds"] for name, figures in methods.items()} == SECONDS
    assert methods["ssgd"]["seconds_of_steps"] == [54.0] * 7 + [4.0] * 5
    assert methods["ssgd"]["step_seconds_quartiles"] == [4.0, 4.0]


def test_the_parts_are_what_they_are_said_to_be_and_sum_to_the_step():
    methods = measured(POINT)["methods"]
    for figures in methods.values():
        assert list(figures["parts"]) == list(PARTS)
        assert sum(figures["parts"].values()) == pytest.approx(figures["step_seconds"])
    assert methods["compute"]["parts"] == {
        "compute": 0.75, "encode": 0.0, "decode": 0.0, "exposed": 0.0, "optimizer": 0.25
    }  # fmt: skip
    assert methods["ssgd"]["parts"]["exposed"] == pytest.approx(3.0)
    fp16 = methods["fp16"]["parts"]
    assert (fp16["encode"], fp16["decode"], fp16["exposed"]) == pytest.approx((0.3, 0.1, 1.1))
    assert methods["fp16"]["wait_seconds"] == 1.2


def test_hidden_encoding_is_not_shown():
    figures = {"step_seconds": 1.4, "forward_backward_seconds": 1.2, "encode_seconds": 0.6, "decode_seconds": 0.2}
    shown = parts(figures, compute_seconds=1.0)
    assert shown == pytest.approx({"compute": 1.0, "encode": 0.15, "decode": 0.05, "exposed": 0.0, "optimizer": 0.2})


def test_a_method_faster_than_compute_has_no_negative_parts():
    shown = parts({"step_seconds": 1.1, "forward_backward_seconds": 0.9, "encode_seconds": 0.1}, compute_seconds=1.0)
    assert shown == pytest.approx({"compute": 0.9, "encode": 0.0, "decode": 0.0, "exposed": 0.0, "optimizer": 0.2})


def test_speeds_bytes_and_losses():
    methods = measured(POINT)["methods"]
    assert [figures["speedup"] for figures in methods.values()] == [4.0, 1.0, 1.6]
    assert methods["fp16"]["share_of_compute_speed"] == 0.4
    assert [figures["sent_bytes_per_step"] for figures in methods.values()] == [0, 800_000, 410_000]
    assert methods["fp16"]["payload_bytes_per_step"] == 409_900
    assert methods["fp16"]["compression"] == pytest.approx(800 / 410)
    assert methods["fp16"]["loss"] == pytest.approx(3.0 - 0.1 * 9)
    assert "loss" not in methods["compute"]
    assert "compression" not in methods["compute"]


def test_on_a_shared_interface_the_bytes_of_all_are_divided():
    methods = measured(point(num_turns=2, in_lab=False))["methods"]
    assert methods["ssgd"]["sent_bytes_per_step"] == 400_000
    assert methods["fp16"]["payload_bytes_per_step"] == 409_900


def test_without_a_baseline_there_are_no_speedups():
    alone = point("fp16", num_turns=2)
    turns = alone.turns()
    fill(turns, ("compute", "fp16"))
    assert "speedup" not in summarise(turns, alone.job)["fp16"]


def test_every_part_is_defined():
    assert set(PARTS) <= DEFINITIONS.keys()
