"""The evaluation's sweeps, as it lists them."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "bench" / "evaluation.py"


def run(*arguments):
    return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_all_sweeps_can_be_made(tmp_path):
    done = run("--list", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    for sweep in ("rates", "workers", "batches", "ranks", "buckets", "ablation", "memory"):
        assert f"{sweep}: " in done.stdout
    for words in ("lm-batch4-2workers-50mbit", "lm-batch4-4workers", "vgg-batch32-2workers-unshaped", "resnet-batch16"):
        assert f"to do {words}" in done.stdout
    assert '"ssgd(wfbp=off, fusion=off)"' in done.stdout


def test_an_unknown_sweep_is_refused_with_those_there_are(tmp_path):
    done = run("--only", "speed", "--out", str(tmp_path))
    assert done.returncode == 2
    assert "no sweep speed" in done.stderr
