import pytest

from thinwire.demo.job import Job
from thinwire.demo.launch import run_job
from thinwire.demo.model import ModelSize
from thinwire.jobs.launch import WorkerError

TINY = ModelSize(width=32, num_layers=1, num_heads=2, sequence_length=16)


def test_a_failing_worker_is_reported_with_its_last_words():
    job = Job(modes=("ddp", "no_such_compressor"), num_rounds=1, steps_per_round=1, model=TINY)
    with pytest.raises(WorkerError, match=r"(?s)a worker failed with status 1.*ValueError.*no_such_compressor"):
        run_job(job, num_workers=2, shape=None, on_event=lambda event: None)


def test_workers_that_take_too_long_are_ended():
    job = Job(modes=("ddp",), num_rounds=10**6, steps_per_round=1, model=TINY)
    with pytest.raises(WorkerError, match="more than 1 s"):
        run_job(job, num_workers=2, shape=None, on_event=lambda event: None, timeout_seconds=1.0)


def test_every_rank_reports_every_step_of_every_mode():
    events = []
    job = Job(modes=("compute_only", "ddp"), num_rounds=2, steps_per_round=3, model=TINY, num_held_out_batches=3)
    run_job(job, num_workers=2, shape=None, on_event=events.append)
    steps = [(e["rank"], e["mode"], e["step"]) for e in events if e["event"] == "step"]
    assert sorted(steps) == [(rank, mode, step) for rank in (0, 1) for mode in job.modes for step in range(6)]
    rounds = [e for e in events if e["event"] == "round"]
    assert all(e["sent_bytes"] > 3 * 30_000 for e in rounds if e["mode"] == "ddp")
    held_out = {e["rank"]: len(e["losses"]) for e in events if e["event"] == "held_out"}
    assert held_out == {0: 2, 1: 1}
