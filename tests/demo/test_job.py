import pytest

from thinwire.demo.job import Job
from thinwire.demo.model import ModelSize

JOB = Job(modes=("ddp", "topk"), num_rounds=3, steps_per_round=5, model=ModelSize(width=64), learning_rate=0.01)


def test_a_job_reaches_the_workers_as_it_is():
    assert Job.from_json(JOB.to_json()) == JOB
    assert JOB.num_steps == 15


@pytest.mark.parametrize("setting", ["num_rounds", "steps_per_round", "batch_size"])
def test_a_job_of_nothing_is_refused(setting):
    settings = {"modes": ("ddp",), "num_rounds": 1, "steps_per_round": 1} | {setting: 0}
    with pytest.raises(ValueError, match=f"{setting} is 0; allowed is 1 or more"):
        Job(**settings)
