import io
import json
import sys

import pytest
from rich.console import Console

from thinwire.demo import main
from thinwire.demo.job import Job
from thinwire.demo.model import ModelSize
from thinwire.lab import Lab, LinkShape

JOB = Job(
    modes=main.MODES,
    num_rounds=2,
    steps_per_round=5,
    model=ModelSize(width=64, num_layers=2, num_heads=2, sequence_length=32),
    num_held_out_batches=4,
    num_uncompressed_steps=5,
)
SHAPE = LinkShape.parse(rate="100mbit")


def _compare():
    """The result of a run of seconds, and what it printed."""
    out = io.StringIO()
    result = main.compare(JOB, 2, SHAPE, Console(file=out, width=80))
    return result, out.getvalue()


def _check(result):
    assert list(result["modes"]) == list(main.MODES)
    assert result["workers"] == 2
    assert result["steps"] == 10
    num_bytes = 4 * result["parameters"]
    modes = result["modes"]
    assert all(figures["step_seconds"] > 0 for figures in modes.values())
    # Two workers exchange all gradients by sending each about once.
    assert modes["ddp"]["tx_bytes_per_step"] > num_bytes
    assert modes["ddp_fp16"]["tx_bytes_per_step"] > num_bytes / 2
    for mode in ("topk", "onebit"):
        assert 0 < modes[mode]["payload_bytes_per_step"] < modes[mode]["tx_bytes_per_step"]
    assert 4 < modes["ddp"]["loss"] < 5.5
    assert all(modes[mode]["loss"] == pytest.approx(modes["ddp"]["loss"], rel=0.1) for mode in main.MODES[2:])
    assert all(modes[mode]["held_out_loss"] < 5.5 for mode in main.MODES[1:])


@pytest.mark.skipif(Lab.unavailable(SHAPE) is not None, reason=f"no lab: {Lab.unavailable(SHAPE)}")
def test_a_run_over_shaped_links():
    result, printed = _compare()
    _check(result)
    assert result["link_mbit"] == 100
    # Only here, as on the loopback interface other programs may send too.
    num_bytes = 4 * result["parameters"]
    sent = {mode: figures["tx_bytes_per_step"] for mode, figures in result["modes"].items() if mode != "compute_only"}
    assert sent["ddp"] < 1.1 * num_bytes
    assert sent["ddp_fp16"] < 1.1 * num_bytes / 2
    assert sent["topk"] < num_bytes / 4
    assert sent["onebit"] < num_bytes / 4
    assert "2 workers, 100 Mbit/s links" in printed
    assert "On a 100 Mbit/s link thinwire" in " ".join(printed.split())


def test_without_a_lab_it_says_why_and_runs_on_the_loopback(monkeypatch):
    monkeypatch.setattr(Lab, "unavailable", lambda shape: "the program tc is missing")
    result, printed = _compare()
    _check(result)
    assert result["link_mbit"] is None
    assert "No shaped links here: the program tc is missing." in printed
    assert "On the unshaped loopback thinwire" in " ".join(printed.split())


@pytest.mark.parametrize("steps", [0, 5, 12, -10])
def test_steps_that_make_no_rounds_are_refused(steps):
    with pytest.raises(ValueError, match=f"steps is {steps}; allowed are multiples of 5"):
        main.run(steps=steps)


def test_a_single_worker_is_refused():
    with pytest.raises(ValueError, match="workers is 1"):
        main.run(workers=1)


def _result():
    figures = {"step_seconds": 1.0, "seconds_of_steps": [1.0, 1.0]}
    communicating = figures | {"tx_bytes_per_step": 10, "loss": 3.0, "losses_of_steps": [3.5, 3.0]}
    modes = dict.fromkeys(main.MODES, communicating) | {"compute_only": figures}
    return {"link_mbit": None, "workers": 2, "parameters": 1, "steps": 2, "modes": modes}


def test_the_result_is_written_with_its_chart(tmp_path):
    pytest.importorskip("matplotlib")
    main.write(_result(), tmp_path / "new" / "folder", Console(file=io.StringIO()))
    assert json.loads((tmp_path / "new/folder/result.json").read_text()) == _result()
    assert (tmp_path / "new/folder/result.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_it_says_so_and_goes_on(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    out = io.StringIO()
    main.write(_result(), tmp_path, Console(file=out, width=200))
    assert "matplotlib" in out.getvalue()
    assert "pip install 'thinwire[report]'" in out.getvalue()
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]
