import io
import json

import pytest
from rich.console import Console

from tests.bench.given import measured, point, users_model
from thinwire.bench import main
from thinwire.bench.point import Store


@pytest.mark.parametrize(
    "change",
    [{"seed": 1}, {"link_mbit": 50.0}, {"num_workers": 3}, {"batch_size": 8}, {"num_turns": 3}, {"in_lab": False}],
)
def test_points_with_different_settings_have_different_files(change):
    assert point().name != point(**change).name
    assert point("ssgd").name != point("ssgd(wfbp=off)").name


def test_a_default_that_is_given_makes_the_same_point():
    assert point(batch_size=4).name == point().name


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_workers": 1}, "workers is 1"),
        ({"link_mbit": 50.0, "in_lab": False}, "takes a lab"),
        ({"num_turns": 1}, "2 turns or more"),
    ],
)
def test_points_without_a_meaning_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        point(**settings)


def test_resuming_skips_what_is_there(tmp_path, monkeypatch):
    runs = []

    def measure_one(of, console):
        runs.append(of.name)
        return measured(of)

    monkeypatch.setattr(main, "_measure_one", measure_one)
    console, store = Console(file=io.StringIO()), Store(tmp_path)
    first, second = point(num_turns=2), point(num_turns=2, link_mbit=50.0)
    main.measure_all([first], store, console, resume=True)
    results = main.measure_all([first, second], store, console, resume=True)
    assert runs == [first.name, second.name]
    assert [result["name"] for result in results] == runs
    assert json.loads(store.path(second).read_text()) == results[1] == store.load(second)
    main.measure_all([first], store, console, resume=False)
    assert runs == [first.name, second.name, first.name]


def test_a_file_with_other_settings_does_not_count(tmp_path):
    store = Store(tmp_path)
    other = measured(point(num_turns=2, seed=5))
    store.save(point(num_turns=2), other)
    assert store.load(point(num_turns=2)) is None


def test_a_users_model_that_was_changed_is_another_point(tmp_path):
    before = point(model=users_model(tmp_path)).name
    assert point(model=users_model(tmp_path)).name == before
    (tmp_path / "users_model.py").write_text("def make(): ...")
    assert point(model=f"{tmp_path}/users_model.py:make").name != before
