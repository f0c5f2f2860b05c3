import io

import pytest
from rich.console import Console

from thinwire.demo import display
from thinwire.demo.job import Job
from thinwire.demo.result import Recorder, summarise

NUM_WORKERS = 2
MODES = ("compute_only", "ddp", "topk")
SECONDS = {"compute_only": 1.0, "ddp": 4.0, "topk": 1.25}
SENT_BYTES = {"compute_only": 0, "ddp": 800_000, "topk": 16_000}
LOSSES = {"compute_only": 0.0, "ddp": 3.0, "topk": 3.06}


def _recorder(*, shared_interface=False):
    """Two rounds of five steps. Rank 1 is faster; the first round and every round's first step are very slow."""
    recorder = Recorder(
        Job(modes=MODES, num_rounds=2, steps_per_round=5, num_uncompressed_steps=5), NUM_WORKERS, shared_interface
    )
    for rank in range(NUM_WORKERS):
        recorder.add({"event": "ready", "rank": rank, "parameters": 11_000_000})
        for mode in MODES:
            for step in range(10):
                seconds = 100.0 if step <= 5 else SECONDS[mode] - 0.5 * rank
                loss = LOSSES[mode] + (0.5 if rank else -0.5) + (1.0 if step < 5 else 0.0)
                event = {"event": "step", "rank": rank, "mode": mode, "step": step, "seconds": seconds, "loss": loss}
                recorder.add(event)
            for first_step, extra_bytes in ((0, 1000), (5, 0)):  # more is sent while settling down
                recorder.add(
                    {
                        "event": "round",
                        "rank": rank,
                        "mode": mode,
                        "first_step": first_step,
                        "num_steps": 5,
                        "sent_bytes": 5 * SENT_BYTES[mode] + extra_bytes,
                        "payload_bytes": 5 * SENT_BYTES[mode] - 500 if mode == "topk" else 0,
                    }
                )
            recorder.add({"event": "held_out", "rank": rank, "mode": mode, "losses": [2.0 + rank]})
    return recorder


def test_a_step_takes_as_long_as_its_slowest_rank_and_the_first_round_does_not_count():
    assert [_recorder().median_step_seconds(mode) for mode in MODES] == list(SECONDS.values())


def test_no_median_before_a_step_that_counts():
    recorder = Recorder(Job(modes=MODES, num_rounds=2, steps_per_round=5), 1, False)
    for step in range(3):
        recorder.add({"event": "step", "rank": 0, "mode": "ddp", "step": step, "seconds": 1.0, "loss": 3.0})
    assert recorder.median_step_seconds("ddp") is None
    assert recorder.step_seconds("ddp") == [1.0, 1.0, 1.0]


def test_a_step_counts_once_all_ranks_have_done_it():
    recorder = Recorder(Job(modes=MODES, num_rounds=1, steps_per_round=5), 2, False)
    recorder.add({"event": "step", "rank": 1, "mode": "ddp", "step": 0, "seconds": 2.0, "loss": 3.0})
    assert recorder.step_seconds("ddp") == []
    recorder.add({"event": "step", "rank": 0, "mode": "ddp", "step": 0, "seconds": 1.0, "loss": 4.0})
    assert recorder.step_seconds("ddp") == [2.0]
    assert recorder.losses("ddp") == [3.5]


def test_the_result_of_a_run():
    result = summarise(_recorder(), link_mbit=200.0)
    seconds = {mode: result["modes"][mode].pop("seconds_of_steps") for mode in MODES}
    assert seconds["ddp"] == [100.0] * 6 + [4.0] * 4
    losses = {mode: result["modes"][mode].pop("losses_of_steps") for mode in MODES[1:]}
    assert losses["ddp"] == [4.0] * 5 + [3.0] * 5
    assert result["modes"]["topk"].pop("loss") == pytest.approx(3.06)
    assert result == {
        "link_mbit": 200.0,
        "workers": 2,
        "parameters": 11_000_000,
        "steps": 10,
        "uncompressed_steps": 5,
        "modes": {
            "compute_only": {"step_seconds": 1.0, "share_of_compute_speed": 1.0},
            "ddp": {
                "step_seconds": 4.0,
                "share_of_compute_speed": 0.25,
                "tx_bytes_per_step": 800_000,
                "payload_bytes_per_step": 0,
                "compression": 1.0,
                "loss": 3.0,
                "held_out_loss": 2.5,
            },
            "topk": {
                "spec": "topk(ratio=0.01)",
                "step_seconds": 1.25,
                "share_of_compute_speed": 0.8,
                "tx_bytes_per_step": 16_000,
                "payload_bytes_per_step": 15_900,
                "compression": 50.0,
                "held_out_loss": 2.5,
            },
        },
    }


def test_an_interface_that_all_workers_share_shows_the_bytes_of_all():
    figures = summarise(_recorder(shared_interface=True), link_mbit=None)["modes"]["topk"]
    assert figures["tx_bytes_per_step"] == 16_000 / NUM_WORKERS
    assert figures["payload_bytes_per_step"] == 15_900


def test_the_table_and_the_sentence_say_what_the_result_says():
    result = summarise(_recorder(), link_mbit=200.0)
    out = io.StringIO()
    Console(file=out, width=80).print(display.table(result))
    rows = {line.split("  ")[0].strip(): line.split() for line in out.getvalue().splitlines()}
    assert "2 workers, 200 Mbit/s links, 11.0 M parameters, 10 steps" in out.getvalue()
    assert rows["thinwire topk 1 %"][4:] == ["1.250", "s", "80%", "0.02", "MB", "50.0", "×", "3.060", "2.500"]
    assert rows["compute only"][2:] == ["1.000", "s", "100%", "–", "–", "–", "–"]
    assert display.outcome(result) == (
        "On a 200 Mbit/s link thinwire topk 1 % takes 1.25 s a step where plain DDP takes 4.00 s: 3.2 times as fast, "
        "at 80% of the speed without communication, sending 50 times fewer bytes in a step that compresses; "
        "its loss after 10 steps is 2.0% above plain DDP's."
    )
