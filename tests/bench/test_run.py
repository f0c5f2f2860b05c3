"""Small runs from the command line to the files."""

import json
import subprocess
import sys

import pytest

from tests.bench.given import users_model
from thinwire.bench import main
from thinwire.bench.result import PARTS
from thinwire.lab import Lab

METHODS = ["compute", "ssgd", "ssgd(wfbp=off)", "fp16(scheme=allgather)", "topk(ratio=0.05, wfbp=off)", "onebit"]
NUM_BYTES = 4 * 2 * (96 * 128 + 128)
REASON = Lab.unavailable()


def run(*arguments):
    command = [sys.executable, "-m", "thinwire", "bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)


def check(point):
    assert point["parameters"] == NUM_BYTES / 4
    assert list(point["methods"]) == METHODS
    for name, figures in point["methods"].items():
        assert figures["step_seconds"] > 0
        assert len(figures["seconds_of_steps"]) == point["settings"]["steps"] == 12
        assert list(figures["parts"]) == list(PARTS)
        assert all(seconds >= 0 for seconds in figures["parts"].values())
        assert sum(figures["parts"].values()) == pytest.approx(figures["step_seconds"])
        assert figures["speedup"] > 0
        # Two workers that exchange gradients send each about once, and not much beside them.
        assert figures["payload_bytes_per_step"] <= figures["sent_bytes_per_step"] or name == "compute"
        if name != "compute":
            assert len(figures["losses_of_steps"]) == 12
    methods = point["methods"]
    assert methods["ssgd"]["payload_bytes_per_step"] == NUM_BYTES
    assert methods["fp16(scheme=allgather)"]["payload_bytes_per_step"] == pytest.approx(NUM_BYTES / 2, rel=0.05)
    assert methods["ssgd(wfbp=off)"]["losses_of_steps"] == pytest.approx(methods["ssgd"]["losses_of_steps"])
    assert methods["onebit"]["wait_seconds"] > 0


def bench_without_a_lab(monkeypatch, tmp_path, capsys, **settings):
    monkeypatch.setattr(Lab, "unavailable", lambda: "the program tc is missing")
    main.run(METHODS, model=users_model(tmp_path), out=tmp_path / "out", quick=True, as_json=True, **settings)
    return capsys.readouterr()


def test_without_a_lab_it_says_why_and_runs_on_the_loopback(monkeypatch, tmp_path, capsys):
    captured = bench_without_a_lab(monkeypatch, tmp_path, capsys, rates=["10mbit", "20mbit"])
    (point,) = json.loads(captured.out)["points"]
    check(point)
    assert (point["settings"]["network"], point["settings"]["link_mbit"]) == ("loopback", None)
    assert "No shaped links here: the program tc is missing." in captured.err
    again = bench_without_a_lab(monkeypatch, tmp_path, capsys, resume=True)
    assert json.loads(again.out)["points"] == [point]
    assert "measured before" in again.err


@pytest.mark.skipif(REASON is not None, reason=f"no lab: {REASON}")
def test_a_run_over_shaped_links(tmp_path):
    done = run(*METHODS, "--model", users_model(tmp_path), "--rate", "10mbit", "--rate", "unshaped", "--quick",
               "--json", "--out", str(tmp_path / "out"))  # fmt: skip
    assert done.returncode == 0, done.stderr
    points = json.loads(done.stdout)["points"]
    assert [point["settings"]["link_mbit"] for point in points] == [10.0, None]
    assert json.loads((tmp_path / "out" / "result.json").read_text()) == {"points": points}
    for point in points:
        check(point)
        # Only here, as on the loopback interface other programs may send too.
        for name in ("ssgd", "ssgd(wfbp=off)"):
            assert NUM_BYTES < point["methods"][name]["sent_bytes_per_step"] < 1.2 * NUM_BYTES
    shaped = points[0]["methods"]
    assert shaped["ssgd"]["step_seconds"] > 0.9 * NUM_BYTES * 8 / 10e6
    assert shaped["ssgd"]["parts"]["exposed"] > 0.5 * shaped["ssgd"]["step_seconds"]
    assert "10 Mbit/s links" in done.stderr
    assert (tmp_path / "out" / "index.html").exists()


def test_memory_is_that_of_a_process_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setattr(Lab, "unavailable", lambda: "none wanted")
    main.run(["ssgd"], model=users_model(tmp_path), out=tmp_path, steps=12)
    (point,) = json.loads((tmp_path / "result.json").read_text())["points"]
    for figures in point["methods"].values():
        assert 4 * NUM_BYTES < figures["memory_growth_bytes"] < figures["memory_peak_bytes"] < 2**31


def test_a_failing_worker_is_status_1_with_its_last_words(tmp_path):
    done = run("ssgd", "--model", users_model(tmp_path, "broken"), "--quick", "--out", str(tmp_path))
    assert done.returncode == 1
    assert "no such data here" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sgd"], ["unknown compressor 'sgd'", "ssgd"]),
        (["topk(scheme=allreduce)"], ["allowed: allgather, alltoall"]),
        (["ssgd", "ssgd"], ["each once"]),
        (["--model", "bert"], ["lm, vgg, resnet, mlp"]),
        (["--rate", "fast"], ["'fast'", "unshaped"]),
        (["--rate", "1mbit", "--rate", "1mbit"], ["each value once"]),
        (["--workers", "1"], ["workers is 1"]),
        (["--steps", "10"], ["steps is 10", "multiples of 6"]),
        (["--optimizer", "adam"], ["adamw, sgd"]),
        (["--learning-rate", "-1"], ["above 0"]),
        (["--batch-size", "0"], ["1 or more"]),
        (["--out", __file__], ["exists"]),
    ],
)
def test_mistakes_are_one_line_and_status_2(arguments, words):
    done = run(*arguments)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    for word in words:
        assert word in line
