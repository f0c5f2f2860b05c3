from tests.ranks import on_ranks
from thinwire import comm


def asked(rank: int, size: int) -> list[str]:
    """What ``agree`` answers on this rank to several kinds of agreement and disagreement."""
    import torch.distributed as dist

    group = dist.group.WORLD

    def answer(prepare, describe) -> str:
        try:
            return str(comm.agree(group, prepare, describe))
        except Exception as error:  # the answer is the test's subject
            return f"{type(error).__name__}: {error}"

    def fail_on(*failing: int):
        def prepare() -> int:
            if rank in failing:
                raise KeyError(f"of rank {rank}")
            return rank

        return prepare

    return [
        answer(lambda: f"mine {rank}", lambda _: {"ratio": 0.5, "names": ("a", "b")}),
        answer(lambda: 1, lambda _: {"seed": 7, "ratio": 0.01 if rank == size - 1 else 0.02}),
        answer(fail_on(size - 1), lambda _: {"seed": rank}),
        answer(fail_on(*range(size)), lambda _: {}),
    ]


def test_all_ranks_hear_the_same():
    size = 3
    for rank, (agreed, differs, one_failed, all_failed) in enumerate(on_ranks(size, asked, size)):
        assert agreed == f"mine {rank}"
        assert differs == (
            "ValueError: ratio differs between ranks (rank 0: 0.02, rank 1: 0.02, rank 2: 0.01); all ranks must use "
            "the same"
        )
        told = "ValueError: rank 2 could not attach: KeyError: 'of rank 2'"
        assert one_failed == (told if rank != 2 else "KeyError: 'of rank 2'")
        assert all_failed == f"KeyError: 'of rank {rank}'"


def test_one_rank_agrees_with_itself():
    [[agreed, one_value, failed, _]] = on_ranks(1, asked, 1)
    assert agreed == "mine 0"
    assert one_value == "1"
    assert failed == "KeyError: 'of rank 0'"
