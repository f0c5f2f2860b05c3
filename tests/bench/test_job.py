import pytest

from thinwire.bench.job import Job, with_compute
from thinwire.bench.method import parse_method

METHODS = (parse_method("ssgd(wfbp=off)"), parse_method("topk(ratio=0.001, bucket_mb=4)"))
JOB = Job(methods=METHODS, model="vgg", num_turns=3, batch_size=8, learning_rate=0.1)


def test_a_job_reaches_the_workers_as_it_is():
    assert Job.from_json(JOB.to_json()) == JOB
    assert JOB.num_steps == 18


def test_what_is_not_given_is_the_models_own():
    assert JOB.resolved() | {"seed": 0} == {
        "model": "vgg",
        "batch_size": 8,
        "optimizer": "sgd",
        "learning_rate": 0.1,
        "seed": 0,
        "steps": 18,
        "steps_per_turn": 6,
    }
    resolved = Job(methods=METHODS).resolved()
    assert (resolved["batch_size"], resolved["optimizer"], resolved["learning_rate"]) == (4, "adamw", 4e-4)
    # Another optimizer than the model's own does not get the model's own rate.
    assert Job(methods=METHODS, optimizer="sgd").resolved()["learning_rate"] == 0.01


def test_compute_is_always_measured_and_first():
    names = [method.name for method in with_compute((METHODS[0], parse_method("compute")))]
    assert names == ["compute", "ssgd(wfbp=off)"]
    assert with_compute(METHODS)[0].name == "compute"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"model": "bert"}, "'bert'; allowed: lm, vgg, resnet, mlp, or path/to/file.py:function"),
        ({"model": "missing.py:make"}, "there is no file"),
        ({"model": f"{__file__}:make"}, "no function 'make'; it has test_a_job"),
        ({"model": f"{__file__}:test_a_job_reaches_the_workers_as_it_is", "batch_size": 2}, "built-in models"),
        ({"batch_size": 0}, "batch size is 0; allowed is 1 or more"),
        ({"num_turns": 0}, "num_turns is 0"),
        ({"optimizer": "adam"}, "'adam'; allowed: adamw, sgd"),
        ({"learning_rate": 0.0}, "learning rate is 0; allowed is any above 0"),
        ({"methods": ()}, "none"),
        ({"methods": METHODS * 2}, "each once"),
    ],
)
def test_wrong_settings_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        Job(**({"methods": METHODS} | settings))
