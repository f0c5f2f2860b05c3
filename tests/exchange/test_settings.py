"""Wrong and differing settings are refused on every rank before anything is changed (C09, C11, C12; contract 9)."""

import threading

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, fp16_compress_hook

import thinwire
from tests.exchange.given import SHAPES, Given, attach, bits, exchanged, given_ddp, given_gradients
from tests.ranks import on_ranks
from thinwire.compress import Key, OneBit, parse
from thinwire.exchange.settings import Settings, strategy_by_name
from thinwire.strategy import UNCOMPRESSED, Choice, Place, Strategy, flat_option


def strategy_for(world_size: int, spec: str = "onebit", shapes: dict = SHAPES) -> Strategy:
    parameters = dict(Given(shapes).named_parameters())
    return strategy_by_name(parameters, {"*": parse(spec)}, Settings(), world_size)


def edited(**choices: Choice) -> Strategy:
    strategy = strategy_for(2)
    return strategy.model_copy(update={"gradients": {**strategy.gradients, **choices}})


TOPK = "topk(ratio=0.01)"
ON_GPU = Choice(
    numel=SHAPES["first"][0] * SHAPES["first"][1], option=flat_option("allgather", Place.GPU), compressor=TOPK
)
ADDS_UP = Choice(
    numel=SHAPES["first"][0] * SHAPES["first"][1], option=flat_option("allreduce", Place.CPU), compressor=TOPK
)
UNKNOWN = Choice(numel=ADDS_UP.numel, option=flat_option("allgather", Place.CPU), compressor="zip")

DIFFERING = {
    "compressor": ([TOPK, "topk(ratio=0.02)"], {}, "compressor differs", ["ratio=0.02"]),
    "bits": (["linear_dithering(bits=4)", "linear_dithering(bits=6)"], {}, "compressor differs", ["bits=4", "bits=6"]),
    "kind": (["fp16", "bf16"], {}, "compressor differs", ["'fp16'", "'bf16'"]),
    "seed": ([TOPK] * 2, {"seed": [1, 2]}, "seed differs", ["1", "2"]),
    "min_numel": ([TOPK] * 2, {"min_numel": [64, 65]}, "min_numel differs", ["64", "65"]),
    "chunk_bytes": ([TOPK] * 2, {"chunk_bytes": [1024, 2048]}, "chunk_bytes differs", ["1024", "2048"]),
    "scheme": ([TOPK] * 2, {"scheme": ["allgather", "alltoall"]}, "scheme differs", ["'allgather'", "'alltoall'"]),
    "error_feedback": ([TOPK] * 2, {"error_feedback": [True, False]}, "error_feedback differs", ["True", "False"]),
    "start_step": ([TOPK] * 2, {"start_step": [0, 5]}, "start_step differs", ["0", "5"]),
    "exclude": ([TOPK] * 2, {"exclude": [[], ["first"]]}, "exclude differs", ["()", "('first',)"]),
    "vectors": ([TOPK] * 2, {"compress_vectors": [False, True]}, "compress_vectors differs", ["False", "True"]),
    "strategy": (
        [None] * 2,
        {"strategy": [edited(), edited(third=Choice(numel=3072))]},
        "strategy differs",
        ["digest"],
    ),
}
"""Specs of the two ranks, other settings of the two ranks, what the error begins with, what else it says."""

ON_ONE_RANK = {
    "spec": ([TOPK, "topk(ratio=7)"], "topk(ratio=7)"),
    "name": ([TOPK, "nothing"], "unknown compressor 'nothing'"),
}


def worker_threads() -> set[threading.Thread]:
    """Those of all exchanges in this process; earlier tests may have left some."""
    return {t for t in threading.enumerate() if t.name.startswith("thinwire")}


def answers_to_differing_settings(rank: int) -> dict[str, str]:
    threads_before = worker_threads()
    ddp = given_ddp()
    answers = {}
    for kind, (specs, settings, _, _) in DIFFERING.items():
        with pytest.raises(ValueError) as refused:  # noqa: PT011 -- the message is checked by the caller
            attach(ddp, specs[rank], **{name: values[rank] for name, values in settings.items()})
        answers[kind] = str(refused.value)
    for kind, (specs, _) in ON_ONE_RANK.items():
        with pytest.raises(ValueError) as refused:  # noqa: PT011
            attach(ddp, specs[rank])
        answers[kind] = str(refused.value)
    # Nothing is left of all that; what only concerns a machine may differ.
    assert not ddp._comm_hooks
    assert worker_threads() == threads_before
    sync = attach(ddp, TOPK, num_threads=1 + rank)
    exchanged(ddp, given_gradients(rank, 0))
    assert sync.step == 1
    sync.detach()
    return answers


def test_settings_that_differ_between_ranks():
    for rank, answers in enumerate(on_ranks(2, answers_to_differing_settings)):
        for kind, (_, _, begins, says) in DIFFERING.items():
            assert answers[kind].startswith(f"{begins} between ranks (rank 0: "), kind
            assert all(word in answers[kind] for word in [*says, "rank 1: ", "all ranks must use the same"]), kind
        for kind, (_, says) in ON_ONE_RANK.items():
            assert says in answers[kind]
            assert ("rank 1 could not attach: ValueError: " in answers[kind]) == (rank == 0)


def another_hook(shapes: dict) -> nn.Module:
    ddp = given_ddp(shapes)
    ddp.register_comm_hook(None, allreduce_hook)
    return ddp


class FullyShardedDataParallel(nn.Linear):
    """Called like the module that people will try."""


WRONG = {
    "unknown spec": ({"spec": "zip"}, ValueError, ["unknown compressor 'zip'", "known: acpsgd, "]),
    "spec is no spec": ({"spec": 0.01}, ValueError, ["spec string or an object, not float"]),
    "pattern": ({"spec": {"frist": TOPK}}, ValueError, ["'frist' fits no", "there are first"]),
    "pattern's spec": ({"spec": {"*": "zip"}}, ValueError, ["unknown compressor 'zip'"]),
    "no patterns": ({"spec": {}}, ValueError, ["the mapping is empty", '{"*": ']),
    "unreadable": ({"spec": "topk(0.01"}, ValueError, ["cannot read compressor spec", "name(setting=value"]),
    "unknown setting": ({"spec": "topk(part=0.1)"}, ValueError, ["unknown setting part", "write topk(ratio="]),
    "ratio 0": ({"spec": "topk(ratio=0)"}, ValueError, ["topk(ratio=0)", "ratio", "at most 1"]),
    "ratio 2": ({"spec": "topk(ratio=2)"}, ValueError, ["topk(ratio=2)", "ratio", "at most 1"]),
    "ratio -1": ({"spec": "randomk(ratio=-1)"}, ValueError, ["ratio", "at most 1"]),
    "ratio NaN": ({"spec": "topk(ratio=nan)"}, ValueError, ["topk(ratio=nan)", "ratio", "at most 1"]),
    "neither": ({}, ValueError, ["give either a compressor", "strategy="]),
    "both": ({"spec": TOPK, "strategy": strategy_for(2)}, ValueError, ["give either a compressor", "strategy="]),
    "scheme": ({"spec": TOPK, "scheme": "ring"}, ValueError, ["scheme='ring'", "alltoall"]),
    "low rank": ({"spec": "acpsgd(approx_rank=0)"}, ValueError, ["approx_rank is a whole number from 1, not 0"]),
    "low rank's scheme": (
        {"spec": "acpsgd", "scheme": "allgather", "min_numel": 64},
        ValueError,
        ["first: acpsgd does not go with", "its schemes are allreduce"],
    ),
    "two rounds": ({"spec": "fp16", "scheme": "allreduce_twice"}, ValueError, ["a second round, which fp16 does not"]),
    "low rank of a vector": (
        {"strategy": edited(vector=Choice(numel=700, option=flat_option("allreduce", Place.CPU), compressor="acpsgd"))},
        ValueError,
        ["vector: acpsgd cannot make (700,) smaller"],
    ),
    "scheme beside strategy": ({"strategy": strategy_for(2), "scheme": "allgather"}, ValueError, ["no effect"]),
    "unsummable": ({"spec": TOPK, "scheme": "allreduce"}, ValueError, ["cannot be added", "allgather or alltoall"]),
    "uncompressed payloads": ({"spec": "none", "scheme": "allgather"}, ValueError, ["allgather", "allreduce"]),
    "error_feedback": ({"spec": TOPK, "error_feedback": "yes"}, ValueError, ["error_feedback='yes'", "True, False"]),
    "min_numel": ({"spec": TOPK, "min_numel": -1}, ValueError, ["min_numel=-1", "whole numbers from 0"]),
    "min_numel float": ({"spec": TOPK, "min_numel": 1e3}, ValueError, ["min_numel=1000.0", "whole numbers from 0"]),
    "chunk_bytes": ({"spec": TOPK, "chunk_bytes": 8}, ValueError, ["chunk_bytes=8", "from 1024"]),
    "seed": ({"spec": TOPK, "seed": -1}, ValueError, ["seed=-1", "from 0"]),
    "start_step": ({"spec": TOPK, "start_step": None}, ValueError, ["start_step=None", "from 0"]),
    "num_threads": ({"spec": TOPK, "num_threads": 0}, ValueError, ["num_threads=0", "from 1"]),
    "exclude": ({"spec": TOPK, "exclude": "first"}, ValueError, ["exclude='first'", "list of name patterns"]),
    "exclude nothing": ({"spec": TOPK, "exclude": ["module.first"]}, ValueError, ["'module.first' fits no", "first, "]),
    "exclude None": ({"spec": TOPK, "exclude": None}, ValueError, ["exclude=None", "list of name patterns"]),
    "pattern 3": ({"spec": {3: TOPK}}, ValueError, ["3 is no pattern of parameter names"]),
    "expands": (
        {"spec": "randomk(scaled=true)", "error_feedback": True},
        ValueError,
        ["error_feedback=True does not go with randomk(scaled=True)", "without bound"],
    ),
    "momentum without errors": (
        {"spec": "dgc", "error_feedback": False, "min_numel": 64},
        ValueError,
        ["first: error_feedback=False does not go with dgc", "sends what it has kept"],
    ),
    "momentum 1": ({"spec": "dgc(momentum=1)"}, ValueError, ["momentum is a finite number from 0 and below 1, not 1"]),
    "votes with errors": (
        {"spec": "signsgd", "error_feedback": True},
        ValueError,
        ["error_feedback=True does not go with signsgd", "without bound"],
    ),
    "votes in parts": (
        {"spec": "signsgd", "scheme": "alltoall"},
        ValueError,
        ["signsgd does not go with", "its schemes are allgather"],
    ),
    "scaler": ({"spec": TOPK, "scaler": True}, TypeError, ["scaler is a torch.amp.GradScaler", "not bool"]),
    "optimizer": ({"spec": TOPK, "optimizer": "adam"}, TypeError, ["optimizer is a torch.optim.Optimizer", "not str"]),
    "other's optimizer": (
        {"spec": TOPK, "optimizer": torch.optim.SGD([torch.zeros(1)], lr=0.1)},
        ValueError,
        ["none of the module's trainable parameters"],
    ),
    "exclude beside strategy": (
        {"strategy": strategy_for(2), "exclude": ["*"]},
        ValueError,
        ["exclude=('*',)", "no effect"],
    ),
    "strategy's type": ({"strategy": {"first": TOPK}}, TypeError, ["thinwire.Strategy or the path", "not dict"]),
    "strategy on GPUs": ({"strategy": edited(first=ON_GPU)}, ValueError, ["first: ", "computes on a GPU"]),
    "few elements": (
        {"spec": "onebit", "scheme": "alltoall", "min_numel": 0, "shapes": {"tiny": (1, 1), "w": (30, 30)}},
        ValueError,
        ["tiny: a part of 1 elements", "among 2 ranks", "exclude=['tiny']"],
    ),
    "strategy's world": ({"strategy": strategy_for(3)}, ValueError, ["is for 3 ranks, but 2"]),
    "strategy's model": (
        {"strategy": strategy_for(2, shapes={"first": (37, 29)})},
        ValueError,
        ["has nothing for parameters: bias, "],
    ),
    "strategy's sizes": (
        {"strategy": edited(first=Choice(numel=7))},
        ValueError,
        ["other sizes for parameters: first (7"],
    ),
    "strategy adds up": ({"strategy": edited(first=ADDS_UP)}, ValueError, ["first: ", "cannot be added"]),
    "strategy's spec": ({"strategy": edited(first=UNKNOWN)}, ValueError, ["unknown compressor 'zip'"]),
    "no file": ({"strategy": "/nonexistent.json"}, ValueError, ["/nonexistent.json", "give a strategy's file"]),
    "hook": ({"spec": TOPK, "module": another_hook}, ValueError, ["communication hook already (allreduce_hook)"]),
    "no DDP": ({"spec": TOPK, "module": lambda _: Given()}, TypeError, ["not Given", "ddp = DistributedDataParallel"]),
    "FSDP": (
        {"spec": TOPK, "module": lambda _: FullyShardedDataParallel(2, 2)},
        TypeError,
        ["not FullyShardedDataParallel", "FSDP shards gradients and is not supported"],
    ),
}
"""What is passed, the error, and what it says."""


def answers_to_wrong_settings(rank: int) -> dict[str, tuple[str, str]]:
    threads_before = worker_threads()
    answers = {}
    for kind, (arguments, error, _) in WRONG.items():
        settings = dict(arguments)
        make, shapes = settings.pop("module", given_ddp), settings.pop("shapes", SHAPES)
        module = make(shapes)
        hooks = list(getattr(module, "_comm_hooks", ()))
        with pytest.raises(error) as refused:
            attach(module, **settings)
        assert list(getattr(module, "_comm_hooks", ())) == hooks
        answers[kind] = str(refused.value)
    assert worker_threads() == threads_before
    return answers


def test_wrong_settings_are_refused_on_every_rank():
    for answers in on_ranks(2, answers_to_wrong_settings):
        for kind, (_, _, says) in WRONG.items():
            assert all(words in answers[kind] for words in says), (kind, answers[kind])


class BrokenOnRank1(OneBit):
    """A compressor that works on one machine and not on the other."""

    def encode(self, x: torch.Tensor, payload: torch.Tensor, key: Key, *, weight: float = 1.0) -> None:
        if dist.get_rank() == 1:
            raise OSError("no room for compiled code")
        super().encode(x, payload, key, weight=weight)


def compressor_that_fails_on_rank_1(rank: int) -> str:
    with pytest.raises(ValueError, match="fails on a trial vector") as refused:
        attach(given_ddp(), BrokenOnRank1())
    return str(refused.value)


def test_a_compressor_that_fails_on_one_rank_is_heard_of_on_all():
    first, second = on_ranks(2, compressor_that_fails_on_rank_1)
    assert second == "compressor onebit fails on a trial vector of 64 elements: OSError: no room for compiled code"
    assert first == f"rank 1 could not attach: ValueError: {second}"


def attach_and_detach(rank: int) -> None:
    ddp, plain = given_ddp(), given_ddp()
    first = attach(ddp, "onebit", scheme="allgather")
    with pytest.raises(ValueError, match=r"attached to this module already; call detach\(\) on the first handle"):
        attach(ddp, TOPK)
    assert bits(exchanged(ddp, given_gradients(rank, 0))) != bits(exchanged(plain, given_gradients(rank, 0)))
    first.detach()
    assert repr(first).endswith("; step 1; detached>")
    for step in (1, 2):
        assert bits(exchanged(ddp, given_gradients(rank, step))) == bits(exchanged(plain, given_gradients(rank, step)))
    assert first.step == 1

    second = attach(ddp, "fp16", scheme="allreduce")
    first.detach()  # the handle of what is gone takes nothing else away
    exchanged(ddp, given_gradients(rank, 3))
    assert (first.step, second.step) == (1, 1)
    second.detach()
    second.detach()
    assert bits(exchanged(ddp, given_gradients(rank, 4))) == bits(exchanged(plain, given_gradients(rank, 4)))
    with pytest.raises(RuntimeError):  # DDP's own rule, which attach tells of beforehand
        ddp.register_comm_hook(None, fp16_compress_hook)


def test_attach_detach_attach():
    on_ranks(2, attach_and_detach)


def attach_compiled(rank: int) -> None:
    ddp = given_ddp()
    sync = attach(torch.compile(ddp, backend="eager"), "onebit")
    with pytest.raises(ValueError, match="attached to this module already"):
        attach(ddp, "onebit")
    sync.detach()


def test_compiled_module_is_the_module():
    on_ranks(2, attach_compiled)


def strategy_files(rank: int, folder: str) -> str:
    path = f"{folder}/strategy.json"
    ddp = given_ddp()
    sync = thinwire.attach(ddp, strategy=path, chunk_bytes=1024)
    result = exchanged(ddp, given_gradients(rank, 0))
    sync.detach()
    sync = thinwire.attach(ddp, "onebit", chunk_bytes=1024)
    assert bits(exchanged(ddp, given_gradients(rank, 0))) == bits(result)
    sync.detach()
    return str(sync.strategy.dumps())


def test_a_strategy_from_a_file_is_what_a_spec_would_do(tmp_path):
    strategy_for(2).save(tmp_path / "strategy.json")
    assert on_ranks(2, strategy_files, str(tmp_path)) == [strategy_for(2).dumps()] * 2


class TestStrategyByName:
    def compressed(self, shapes: dict, **settings: object) -> set[str]:
        parameters = {name: nn.Parameter(torch.zeros(shape)) for name, shape in shapes.items()}
        strategy = strategy_by_name(parameters, {"*": parse(TOPK)}, Settings(**settings), 2)
        assert {n: c.numel for n, c in strategy.gradients.items()} == {n: p.numel() for n, p in parameters.items()}
        return {name for name, choice in strategy.gradients.items() if choice.option != UNCOMPRESSED}

    def test_small_gradients_and_vectors_are_left_out(self):
        shapes = {"big": (64, 64), "edge": (32, 32), "small": (31, 33), "vector": (5000,), "scalar": (), "none": (0, 9)}
        assert self.compressed(shapes) == {"big", "edge"}
        assert self.compressed(shapes, min_numel=0) == {"big", "edge", "small"}
        assert self.compressed(shapes, min_numel=0, compress_vectors=True) == {*shapes} - {"none"}

    def test_excluded_names(self):
        shapes = {"embedding.weight": (64, 64), "layers.0.weight": (64, 64), "layers.1.weight": (64, 64)}
        assert self.compressed(shapes, exclude=["embedding*", "*.1.*"]) == {"layers.0.weight"}
        assert self.compressed(shapes, exclude=["EMBEDDING*", "layers"]) == {*shapes}

    def test_the_first_pattern_that_fits_counts(self):
        parameters = {name: nn.Parameter(torch.zeros(64, 64)) for name in ("embedding", "a.weight", "b.weight", "rest")}
        specs = {"embedding": "int8", "a.*": TOPK, "*.weight": "onebit"}
        strategy = strategy_by_name(parameters, {n: parse(s) for n, s in specs.items()}, Settings(), 2)
        kinds = {name: choice.compressor for name, choice in strategy.gradients.items()}
        assert kinds == {"embedding": "int8", "a.weight": str(parse(TOPK)), "b.weight": "onebit", "rest": "none"}
        assert strategy.gradients["rest"].option == UNCOMPRESSED

    def test_a_scheme_beside_none_is_for_the_others(self):
        parameters = {name: nn.Parameter(torch.zeros(64, 64)) for name in ("a", "b")}
        specs = {"a": parse("none"), "*": parse("onebit")}
        strategy = strategy_by_name(parameters, specs, Settings(scheme="alltoall"), 2)
        assert strategy.gradients["a"].option == UNCOMPRESSED
        assert strategy.gradients["b"].option == flat_option("alltoall", Place.CPU)

    def test_complex_gradients_travel_as_they_are(self):
        parameters = {"z": nn.Parameter(torch.zeros(64, 64, dtype=torch.complex64))}
        strategy = strategy_by_name(parameters, {"*": parse(TOPK)}, Settings(), 2)
        assert strategy.gradients["z"].option == UNCOMPRESSED

    @pytest.mark.parametrize(
        ("spec", "world_size", "scheme"),
        [
            ("fp16", 8, "allreduce"),
            ("onebit", 2, "allgather"),
            ("onebit", 64, "alltoall"),
            ("int8", 2, "allgather"),
            ("int8", 3, "alltoall"),
            ("signsgd", 64, "allgather"),
            ("dgc", 8, "allgather"),
            ("dgc(ratio=0.1)", 8, "alltoall"),
        ],
    )
    def test_scheme_follows_from_payload_and_ranks(self, spec, world_size, scheme):
        parameters = {"w": nn.Parameter(torch.zeros(64, 64))}
        strategy = strategy_by_name(parameters, {"*": parse(spec)}, Settings(), world_size)
        assert strategy.gradients["w"].option == flat_option(scheme, Place.CPU)


@pytest.mark.parametrize(
    ("cores", "ranks_here", "threads"), [(1, "1", 1), (2, "1", 1), (4, "1", 2), (4, "4", 1), (64, "1", 4), (16, "2", 4)]
)
def test_worker_threads(monkeypatch, cores, ranks_here, threads):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks_here)
    assert Settings().threads() == threads
    assert Settings(num_threads=7).threads() == 7
