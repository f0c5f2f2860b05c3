import json
from pathlib import Path

import pytest

from thinwire.strategy import Choice, Place, Strategy, flat_option

STRATEGY = Strategy(
    world_size=2,
    gradients={
        "a.weight": Choice(numel=4096, option=flat_option("allgather", Place.CPU), compressor="topk(ratio=0.01)"),
        "a.bias": Choice(numel=64),
    },
)


def test_file_round_trip(tmp_path: Path) -> None:
    STRATEGY.save(tmp_path / "s.json")
    assert Strategy.load(tmp_path / "s.json") == STRATEGY
    raw = json.loads((tmp_path / "s.json").read_text())
    assert raw["version"] == 1
    assert raw["gradients"]["a.weight"]["option"] == "encode@cpu > allgather@flat > decode@cpu"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version"),
        ({"format": "other"}, "format"),
        ({"colour": "red"}, "colour"),
        ({"world_size": 0}, "world_size"),
        ({"gradients": {"a": {"numel": 4, "option": "allgather@flat"}}}, "gradients.a.option.*encode first"),
        ({"gradients": {"a": {"numel": 4, "compressor": "onebit"}}}, "does not compress"),
        ({"gradients": {"a": {"numel": -1}}}, "gradients.a.numel"),
    ],
)
def test_wrong_files_are_refused_by_field(change: dict[str, object], message: str, tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps(STRATEGY.model_dump(mode="json") | change))
    with pytest.raises(ValueError, match=f"s.json.*{message}"):
        Strategy.load(path)


def test_cut_off_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text(STRATEGY.dumps()[:-40])
    with pytest.raises(ValueError, match="not a valid strategy"):
        Strategy.load(path)


def test_fits_only_its_model_and_world() -> None:
    STRATEGY.check_fits({"a.weight": 4096, "a.bias": 64}, 2)
    with pytest.raises(ValueError, match="2 ranks, but 3"):
        STRATEGY.check_fits({"a.weight": 4096, "a.bias": 64}, 3)
    with pytest.raises(ValueError, match="has nothing for parameters: b"):
        STRATEGY.check_fits({"a.weight": 4096, "a.bias": 64, "b": 1}, 2)
    with pytest.raises(ValueError, match=r"names unknown parameters: a\.bias"):
        STRATEGY.check_fits({"a.weight": 4096}, 2)
    with pytest.raises(ValueError, match=r"a.weight \(4096 elements in the strategy, 4097 in the model\)"):
        STRATEGY.check_fits({"a.weight": 4097, "a.bias": 64}, 2)
