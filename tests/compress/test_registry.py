import dataclasses
from typing import ClassVar

import pytest

from tests.compress.laws import SPECS
from thinwire.compress import Identity, Method, OneBit, TopK, known, parse, register, registry, signature


@pytest.mark.parametrize(
    ("spec", "compressor"),
    [
        ("none", Identity()),
        (" topk ( ratio = 1e-3 ) ", TopK(ratio=0.001)),
        ("topk(values=fp32)", TopK(values="fp32")),
        ("topk(values='fp32', ratio=1)", TopK(values="fp32", ratio=1)),
        ("onebit()", OneBit()),
        ("onebit(block=1024)", OneBit(block=1024)),
    ],
)
def test_specs_that_can_be_read(spec, compressor):
    assert parse(spec) == compressor
    assert parse(compressor) is compressor


@pytest.mark.parametrize("spec", SPECS)
def test_shortest_spec_is_what_is_printed(spec):
    assert str(parse(spec)) == spec


def test_settings_at_their_defaults_are_not_printed():
    assert str(parse("topk(ratio=0.01, values=fp16)")) == "topk"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("topkk", r"unknown compressor 'topkk' in 'topkk' \(did you mean topk\?\); known: .*onebit.*topk"),
        ("zip", r"unknown compressor 'zip' in 'zip'; known: .*onebit.*topk"),
        ("topk(rate=0.1)", r"unknown setting rate; write topk\(ratio=0.01, values=fp16\)"),
        ("topk(ratio=2)", r"ratio is a number above 0 and at most 1, not 2; write topk\(ratio="),
        ("topk(0.1)", "cannot read compressor spec"),
        ("topk(ratio=0.1", "cannot read compressor spec"),
        ("topk(ratio=1/10)", "cannot read compressor spec"),
        ("topk(ratio=f())", "cannot read compressor spec"),
        ("topk(**x)", "cannot read compressor spec"),
        ("topk; onebit", "cannot read compressor spec"),
        ("topk(ratio=0.1, ratio=0.2)", "cannot read compressor spec"),
        ("topk(values=[fp16])", "cannot read compressor spec"),
        ("topk(values=[])", "values is one of"),
        ("", "cannot read compressor spec"),
        ("a\0b", "cannot read compressor spec"),
        (None, "not NoneType: None"),
        (0.01, "not float: 0.01"),
    ],
)
def test_specs_that_cannot_be_read_say_why(spec, message):
    with pytest.raises(ValueError, match=message):
        parse(spec)


@pytest.fixture
def empty_registry(monkeypatch):
    monkeypatch.setattr(registry, "_KNOWN", {})


def like_identity(id_):
    return dataclasses.dataclass(frozen=True, kw_only=True, slots=True)(
        type("Custom", (Identity,), {"id": id_, "__annotations__": {"id": ClassVar[str]}})
    )


@pytest.mark.usefixtures("empty_registry")
def test_third_party_compressors_register_and_ids_are_theirs():
    first, second = like_identity("custom"), like_identity("custom")
    assert register(first) is first
    assert register(first) is first
    assert list(known()) == [first]
    assert isinstance(parse("custom"), first)
    with pytest.raises(ValueError, match="'custom' is taken by Custom"):
        register(second)
    with pytest.raises(ValueError, match="'my-id' is not an identifier"):
        register(like_identity("my-id"))


def test_known_are_sorted_and_have_signatures():
    ids = [cls.id for cls in known()]
    assert ids == sorted(ids)
    for cls in known():
        assert issubclass(cls, Method)
        assert signature(cls).startswith(cls.id)
    assert signature(Identity) == "none"
    assert signature(OneBit) == "onebit(block=0)"
