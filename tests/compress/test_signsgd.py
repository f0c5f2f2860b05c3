import pytest
import torch

from tests.compress.laws import KEY, decode, encode, rows, vector
from thinwire.compress import OneBit, SignSGD, parse

INF, NAN = float("inf"), float("nan")


def vote(*ballots):
    payloads = rows([encode(SignSGD(), torch.tensor(ballot), weight=1 / len(ballots)) for ballot in ballots])
    return decode(SignSGD(), payloads, len(ballots[0])).tolist()


def test_by_hand():
    assert vote([0.1, -2.0, 3.0]) == [1, -1, 1]
    assert vote([0.1, -2.0, 3.0], [5.0, 7.0, -1.0]) == [1, 0, 0]
    assert vote([0.1, -2.0, 3.0], [5.0, 7.0, -1.0], [-9.0, -1e-9, -1.0]) == [1, -1, -1]


def test_zeros_are_positive_unless_all_are():
    assert vote([0.0, -0.0, -1.0]) == [1, 1, -1]
    assert vote([0.0, -0.0, 0.0]) == [0, 0, 0]
    assert vote([0.0, 0.0, 0.0], [1.0, -1.0, 0.0], [-0.0, 0.0, 0.0]) == [1, -1, 1]
    assert vote([1e-45, -1e-45]) == [1, -1]


@pytest.mark.parametrize("bad", [INF, -INF, NAN])
def test_one_bad_element_of_one_worker_is_seen_everywhere(bad):
    assert all(x != x for x in vote([1.0, bad], [1.0, 1.0], [0.0, 0.0], [1.0, 1.0]))


def test_payload_is_that_of_onebit():
    assert [SignSGD().payload_nbytes(numel) for numel in (0, 1, 8, 9)] == [0, 5, 5, 6]
    assert torch.equal(encode(SignSGD(), vector(100), weight=0.25), encode(OneBit(), vector(100)))


def test_declared_facts():
    assert SignSGD().votes
    assert SignSGD().expands
    assert not SignSGD().keeps_errors
    assert not SignSGD().unbiased
    assert not SignSGD().reducible
    assert SignSGD().schemes == ("allgather",)
    assert SignSGD().is_finite(encode(SignSGD(), vector(100), KEY).unsqueeze(0))
    assert not OneBit().votes


def test_nothing_can_be_set():
    with pytest.raises(ValueError, match="unknown setting block; write signsgd"):
        parse("signsgd(block=8)")
