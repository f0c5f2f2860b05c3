"""Contract 6: what is saved and restored, on as many ranks or on others."""

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tests.exchange.given import SHAPES, attach, bits, errors_of, exchanged, given_ddp, given_gradients
from tests.ranks import fresh_ranks, on_ranks
from thinwire.strategy import Option

ONE_WAY, TWO_WAY = {"spec": "onebit", "scheme": "allgather"}, {"spec": "onebit", "scheme": "alltoall"}
STOCHASTIC = {"spec": "linear_dithering(bits=2)", "scheme": "alltoall", "error_feedback": True}
REDUCED = {"spec": "randomk(ratio=0.1)", "scheme": "allreduce"}
ALTERNATING, IN_TWO_ROUNDS = {"spec": "acpsgd(approx_rank=2)"}, {"spec": "powersgd(approx_rank=2)"}
VELOCITIES = {"spec": "dgc(ratio=0.05, warmup_steps=6)", "scheme": "alltoall"}
HALF, END = 3, 8


def train(rank: int, folder: Path | None, first: int, last: int, settings: dict) -> tuple[dict, dict, int]:
    """Some steps of a run; goes on from what is in the folder if there is something, and leaves its state there."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(24, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 24))
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.002)
    sync = attach(ddp, **settings)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.01)
    file = folder / f"{rank}.pt" if folder is not None else None
    if file is not None and file.exists():
        saved = torch.load(file, weights_only=True)
        ddp.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        sync.load_state_dict(saved["sync"])
    for step in range(first, last):
        x = torch.randn(8, 24, generator=torch.Generator().manual_seed(100 * step + rank))
        optimizer.zero_grad()
        (ddp(x) - x.roll(1, 1)).square().mean().backward()
        optimizer.step()
    if file is not None:
        saved = {"model": ddp.state_dict(), "optimizer": optimizer.state_dict(), "sync": sync.state_dict()}
        torch.save(saved, file)
    sync.detach()
    return bits(dict(model.named_parameters())), bits(errors_of(sync)), sync.step


def train_each(rank: int, folder: Path | None, first: int, last: int, each: list[dict]) -> list:
    folders = [folder and folder / str(number) for number in range(len(each))]
    for own in folders:
        if own is not None:
            own.mkdir(exist_ok=True)
    return [train(rank, own, first, last, settings) for own, settings in zip(folders, each, strict=True)]


def test_a_restart_changes_no_bit(tmp_path):
    # Two ranks, because restarted, DDP begins with other buckets, and the backend adds three ranks' uncompressed
    # gradients in an order that depends on their place in a bucket.
    each = [ONE_WAY, TWO_WAY, STOCHASTIC, REDUCED, ALTERNATING, IN_TWO_ROUNDS, VELOCITIES]
    fresh_ranks(2, train_each, tmp_path, 0, HALF, each)
    other_seed = [settings | {"seed": 99} for settings in each]  # the saved one goes on
    resumed = fresh_ranks(2, train_each, tmp_path, HALF, END, other_seed)
    uninterrupted = on_ranks(2, train_each, None, 0, END, each)
    for (_, got), want in zip(resumed, uninterrupted, strict=True):
        assert got == want
        assert all(step == END for _, _, step in got)
        assert all(any(any(error) for error in errors.values()) for _, errors, _ in got)


def run(rank: int, num_steps: int, settings: dict) -> dict:
    """The state of all ranks after some steps of given gradients."""
    ddp = given_ddp()
    sync = attach(ddp, **settings)
    for step in range(num_steps):
        exchanged(ddp, given_gradients(rank, step))
    sync.detach()
    return sync.state_dict(all_ranks=True)


def resume(rank: int, state: dict | list, settings: dict) -> tuple[dict, dict[str, Tensor], dict]:
    """The state of all ranks after loading, the result of one step, and the state after it."""
    ddp = given_ddp()
    sync = attach(ddp, **settings)
    sync.load_state_dict(state)
    loaded = sync.state_dict(all_ranks=True)
    result = exchanged(ddp, given_gradients(rank, sync.step))
    sync.detach()
    return loaded, result, sync.state_dict(all_ranks=True)


def pending(state: dict) -> dict[str, Tensor]:
    """By parameter: the mean of the workers' errors, plus the servers' errors."""
    sums: dict[str, Tensor] = {}
    for saved in state["ranks"]:
        for e in saved["errors"]:
            total = sums.setdefault(e["name"], torch.zeros(SHAPES[e["name"]], dtype=torch.float64))
            share = 1 if e["stage"] else 1 / len(state["ranks"])
            total.view(-1)[e["start"] : e["start"] + len(e["error"])] += share * e["error"].double() / e["unit"]
    return sums


OTHER_CHUNKS = {"chunk_bytes": 1700}


@pytest.mark.parametrize(
    ("before", "after", "old_size", "new_size"),
    [
        (TWO_WAY, TWO_WAY, 3, 2),
        (TWO_WAY, TWO_WAY, 2, 3),
        (TWO_WAY, TWO_WAY, 2, 1),
        (TWO_WAY, TWO_WAY, 1, 2),
        (ONE_WAY, ONE_WAY, 3, 2),
        (TWO_WAY, ONE_WAY, 2, 2),
        (ONE_WAY, TWO_WAY, 2, 2),
        (TWO_WAY, TWO_WAY | OTHER_CHUNKS, 3, 3),
        (ONE_WAY, TWO_WAY | OTHER_CHUNKS, 3, 3),
        (ALTERNATING, ALTERNATING, 3, 2),
        (ALTERNATING, ALTERNATING | OTHER_CHUNKS, 2, 3),
        (IN_TWO_ROUNDS, IN_TWO_ROUNDS, 2, 1),
    ],
    ids=lambda value: (
        value.get("scheme", value["spec"][:3]) + "*" * ("chunk_bytes" in value)
        if isinstance(value, dict)
        else str(value)
    ),
)
def test_pending_errors_survive_other_ranks_chunks_and_schemes(before, after, old_size, new_size):
    old = on_ranks(old_size, run, 3, before)[0]
    assert any(error.any() for error in pending(old).values())
    outcomes = on_ranks(new_size, resume, old, after)
    loaded, result, stepped = outcomes[0]
    want, got, left = pending(old), pending(loaded), pending(stepped)
    assert want.keys() == got.keys()
    for name in want:
        torch.testing.assert_close(got[name], want[name], rtol=1e-6, atol=1e-6)
        mean = torch.stack([given_gradients(rank, 3)[name].double() for rank in range(new_size)]).mean(0)
        torch.testing.assert_close(result[name] + left[name], mean + want[name], rtol=1e-5, atol=1e-5)
    assert all(saved["step"] == 4 for saved in stepped["ranks"])
    assert all(bits(other) == bits(result) for _, other, _ in outcomes)


def test_one_way_errors_are_each_ranks_own_under_other_chunks():
    # Nothing is shared out where every rank finds its own errors.
    old = on_ranks(3, run, 3, ONE_WAY)[0]
    loaded, _, _ = on_ranks(3, resume, old, ONE_WAY | OTHER_CHUNKS)[0]
    for before, after in zip(old["ranks"], loaded["ranks"], strict=True):
        alone = [{"ranks": [saved]} for saved in (before, after)]
        assert bits(pending(alone[0])) == bits(pending(alone[1]))


def resume_where_only_servers_compress(rank: int, state: dict) -> None:
    ddp = given_ddp()
    flat = attach(ddp, **ONE_WAY)
    flat.detach()
    option = Option.parse("reduce_scatter@flat > encode@cpu > allgather@flat > decode@cpu")
    gradients = {
        name: choice.model_copy(update={"option": option}) if choice.option.compresses else choice
        for name, choice in flat.strategy.gradients.items()
    }
    sync = attach(ddp, strategy=flat.strategy.model_copy(update={"gradients": gradients}))
    with pytest.raises(ValueError, match="would never be sent"):
        sync.load_state_dict(state)
    assert sync.step == 0
    assert errors_of(sync) == {}
    sync.detach()


def resume_where_one_is_not_compressed(rank: int, state: dict) -> None:
    ddp = given_ddp()
    sync = attach(ddp, **ONE_WAY, exclude=["first"])
    with pytest.raises(ValueError, match="pending errors of first, which would never be sent with"):
        sync.load_state_dict(state)
    assert sync.step == 0
    sync.detach()


@pytest.mark.parametrize("old_size", [2, 3])
def test_errors_of_what_is_not_compressed_any_more_are_refused(old_size):
    on_ranks(2, resume_where_one_is_not_compressed, on_ranks(old_size, run, 2, ONE_WAY)[0])


def test_errors_that_nobody_would_send_are_refused():
    on_ranks(2, resume_where_only_servers_compress, on_ranks(3, run, 2, TWO_WAY)[0])


def refusals(rank: int) -> dict[str, tuple[str, bool]]:
    """What each wrong state is answered, and whether the exchange is as it was."""
    ddp = given_ddp()
    sync = attach(ddp, **TWO_WAY)
    for step in range(2):
        exchanged(ddp, given_gradients(rank, step))
    mine, everyone = sync.state_dict(), sync.state_dict(all_ranks=True)
    before = bits(errors_of(sync)), sync.step
    exchanged(ddp, given_gradients(rank, 2))
    now = bits(errors_of(sync)), sync.step

    def changed(**entries: object) -> dict:
        return {k: v for k, v in {**mine, **entries}.items() if v is not None}

    def with_error(**entries: object) -> dict:
        errors = deepcopy(mine["errors"])
        errors[0] = {k: v for k, v in {**errors[0], **entries}.items() if v is not None}
        return changed(errors=errors)

    others_state = everyone["ranks"][1 - rank]
    wrong = {
        "nothing": {},
        "None": None,
        "empty list": [],
        "model's state": ddp.state_dict(),
        "format": changed(format="other"),
        "version": changed(version=2),
        "no version": changed(version=None),
        "no errors": changed(errors=None),
        "no step": changed(step=None),
        "no tensor": with_error(error=None),
        "matrix": with_error(error=torch.zeros(2, 2)),
        "no name": with_error(name=None),
        "other model": with_error(name="other"),
        "smaller": changed(errors=[e for e in mine["errors"] if e["name"] != "third" or e["start"] == 0]),
        "larger": changed(errors=[*mine["errors"], mine["errors"][0] | {"start": 37 * 29, "stage": 0}]),
        "gap": changed(errors=[*mine["errors"], mine["errors"][0] | {"start": 9999, "stage": 0}]),
        "other rank's": others_state,
        "other name's server": with_error(name="other", stage=1),
        "unit 0": with_error(unit=0.0),
        "unit NaN": with_error(unit=float("nan")),
        "NaN": with_error(error=torch.full_like(mine["errors"][0]["error"], float("nan"))),
        "cut": with_error(error=mine["errors"][0]["error"][:10]),
        "twice": changed(errors=[*mine["errors"], mine["errors"][0]]),
        "negative": with_error(start=-1),
        "other chunks": [mine, others_state | {"max_numel": 7}],
        "other world": changed(world_size=3),
        "rank missing": [others_state],
        "rank twice": [mine, mine],
        "other steps": [mine, others_state | {"step": 7}],
        "damaged rank": everyone | {"ranks": [mine, {}]},
    }
    answers = {}
    for kind, state in wrong.items():
        with pytest.raises(ValueError) as refused:  # noqa: PT011 -- the message is checked by the caller
            sync.load_state_dict(state)
        answers[kind] = str(refused.value), (bits(errors_of(sync)), sync.step) == now
    sync.load_state_dict(mine)
    answers["its own"] = "loaded", (bits(errors_of(sync)), sync.step) == before
    sync.detach()
    return answers


MESSAGES = {
    "nothing": "not a state that thinwire saved",
    "None": "not a state that thinwire saved",
    "empty list": "no states given",
    "model's state": "not a state that thinwire saved",
    "format": "not a state that thinwire saved",
    "version": "state version 2 is unknown to this release; it reads 1",
    "no version": "state version None is unknown",
    "no errors": "incomplete or damaged (KeyError('errors'))",
    "no step": "incomplete or damaged (KeyError('step'))",
    "no tensor": "incomplete or damaged (KeyError('error'))",
    "matrix": "is no vector",
    "no name": "incomplete or damaged (KeyError('name'))",
    "other model": "parameter 'other', which this model does not train",
    "smaller": "elements of 'third', which has 3072 here",
    "larger": "which has",
    "gap": "overlap or have gaps",
    "other rank's": "give each rank its own state",
    "other name's server": "parameter 'other', which this model does not train",
    "unit 0": "incomplete or damaged",
    "unit NaN": "incomplete or damaged",
    "NaN": "a unit, place or element that none can have",
    "cut": "overlap or have gaps",
    "twice": "overlap or have gaps",
    "negative": "a unit, place or element",
    "other chunks": "differ in max_numel",
    "other world": "this state was saved with 3 ranks",
    "rank missing": "of 2; give one of every rank",
    "rank twice": "of 2; give one of every rank",
    "other steps": "differ in step: [",
    "damaged rank": "not a state that thinwire saved",
    "its own": "loaded",
}


def test_wrong_states_are_refused_and_change_nothing():
    for answers in on_ranks(2, refusals):
        assert answers.keys() == MESSAGES.keys()
        for kind, (message, as_expected) in answers.items():
            assert MESSAGES[kind] in message, kind
            assert as_expected, kind


def factors_elsewhere(rank: int) -> dict[str, str]:
    """What states with low-rank factors are answered where they do not belong, and those without where they do."""
    saved = {rank_: run(rank, 3, ALTERNATING | {"spec": f"acpsgd(approx_rank={rank_})"}) for rank_ in (2, 3)}
    answers = {}
    for kind, settings, change in [
        ("other method", ONE_WAY, {}),
        ("other rank", ALTERNATING, {}),
        ("no tensors", ALTERNATING, {"tensors": None}),
        ("no name", ALTERNATING, {"name": "other"}),
        ("NaN", ALTERNATING, {"tensors": {"left": torch.tensor(float("nan"))}}),
    ]:
        states = deepcopy(saved[3 if kind == "other rank" else 2])["ranks"]
        states[rank]["states"][0] |= change
        if kind == "other method":  # the errors would fit
            states[rank]["errors"] = []
        sync = attach(given_ddp(), **settings)
        with pytest.raises(ValueError) as refused:  # noqa: PT011 -- the message is checked by the caller
            sync.load_state_dict(states[rank])
        answers[kind] = str(refused.value)
        assert sync.step == 0
        sync.detach()
    # Without factors it starts with new ones; then with those that were saved, the same as where they were saved.
    ddp = given_ddp()
    sync = attach(ddp, **ALTERNATING)
    exchanged(ddp, given_gradients(rank, 0))
    first = sync.state_dict()
    sync.load_state_dict(first | {"states": [], "errors": [], "step": 0})
    exchanged(ddp, given_gradients(rank, 0))
    again = sync.state_dict()
    for mine, want in zip(again["states"], first["states"], strict=True):
        assert bits(mine["tensors"]) == bits(want["tensors"])
    sync.detach()
    return answers


def test_factors_are_taken_where_they_belong():
    for answers in on_ranks(2, factors_elsewhere):
        assert "is not one of the compressor that it has now; resume with" in answers["other method"]
        assert "is not one of the compressor that it has now" in answers["other rank"]
        assert "incomplete or damaged" in answers["no tensors"]
        assert "the state is of other[" in answers["no name"]
        assert "has an element that none can have" in answers["NaN"]


def load_other_steps(rank: int) -> list[str]:
    """What ranks are told that load states of different steps, and where one of them loads what is none."""
    ddp = given_ddp()
    sync = attach(ddp, **ONE_WAY)
    early = sync.state_dict()
    exchanged(ddp, given_gradients(rank, 0))
    late, answers = sync.state_dict(), []
    before = bits(errors_of(sync))
    for state in (late if rank else early, late if rank else {}):
        with pytest.raises(ValueError) as refused:  # noqa: PT011 -- the message is checked by the caller
            sync.load_state_dict(state)
        answers.append(str(refused.value))
        assert (bits(errors_of(sync)), sync.step) == (before, 1)
    sync.detach()
    return answers


def test_ranks_go_on_together():
    first, second = on_ranks(2, load_other_steps)
    assert "the saved state's step differs between ranks (rank 0: 0, rank 1: 1)" in first[0]
    assert first[0] == second[0]
    assert first[1].startswith("this is not a state")
    assert second[1].startswith("rank 0 could not load the state: ValueError: this is not a state")


def late_start(rank: int) -> list[bool]:
    """Whether anything was compressed in steps 19, 20, and 50 after a restart at 50."""
    settings = {**ONE_WAY, "start_step": 20}
    ddp = given_ddp()
    sync = attach(ddp, **settings)
    compressed = []

    def step(ddp, sync) -> None:
        exchanged(ddp, given_gradients(rank, sync.step))
        compressed.append(sync.stats().last.compression_ratio > 1)

    while sync.step < 50:
        step(ddp, sync)
    state = sync.state_dict()
    sync.detach()

    ddp = given_ddp()
    sync = attach(ddp, **settings)
    sync.load_state_dict(state)
    assert sync.step == 50
    step(ddp, sync)
    assert sync.step == 51
    sync.detach()
    return compressed


def test_uncompressed_start_is_not_repeated():  # C22
    for compressed in on_ranks(2, late_start):
        assert compressed == [False] * 20 + [True] * 31
