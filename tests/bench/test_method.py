import pytest

from thinwire.bench.method import Method, parse_method


@pytest.mark.parametrize(
    ("text", "method"),
    [
        ("compute", Method(spec="compute")),
        ("ssgd", Method(spec="ssgd")),
        ("ssgd(bucket_mb=25)", Method(spec="ssgd", bucket_mb=25.0)),
        ("ssgd(wfbp=off, fusion=off)", Method(spec="ssgd", overlap=False, fusion=False)),
        ("ddp_fp16(wfbp=off)", Method(spec="ddp_fp16", overlap=False)),
        ("topk(ratio=0.001)", Method(spec="topk(ratio=0.001)")),
        ("onebit(scheme=alltoall)", Method(spec="onebit", scheme="alltoall")),
        (
            "topk(ratio=0.001, values=fp32, scheme=allgather, bucket_mb=0.5, wfbp=off)",
            Method(spec="topk(ratio=0.001, values=fp32)", scheme="allgather", bucket_mb=0.5, overlap=False),
        ),
    ],
)
def test_a_method_is_read_and_written(text, method):
    assert parse_method(text) == method
    assert method.name == text
    assert method.compresses is (method.spec not in ("compute", "ssgd", "ddp_fp16"))


@pytest.mark.parametrize(
    ("text", "same"),
    [
        (" topk( wfbp = off, ratio=1e-3 ) ", "topk(ratio=0.001, wfbp=off)"),
        ("ssgd(wfbp=on, fusion=on)", "ssgd"),
        ("topk(ratio=0.01)", "topk"),
        ("ssgd(bucket_mb=25.0)", "ssgd(bucket_mb=25)"),
    ],
)
def test_what_means_the_same_is_called_the_same(text, same):
    assert parse_method(text).name == same


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["cannot read", "compute, ssgd, ddp_fp16"]),
        ("ssgd(", ["cannot read", "topk(ratio=0.01)"]),
        ("ssgd(25)", ["cannot read"]),
        ("sgd", ["unknown compressor 'sgd'", "known: ", "compute, ssgd, ddp_fp16"]),
        ("topk(ratio=2)", ["ratio", "2"]),
        ("topk(ratio=0.1, wfpb=off)", ["unknown setting wfpb", "wfbp=off"]),
        ("ssgd(ratio=0.1)", ["ssgd has no setting ratio", "bucket_mb"]),
        ("ssgd(wfbp=maybe)", ["wfbp is maybe", "on, off"]),
        ("ssgd(bucket_mb=-1)", ["bucket_mb is -1", "above 0"]),
        ("ssgd(bucket_mb=big)", ["bucket_mb is big"]),
        ("ssgd(bucket_mb=1, fusion=off)", ["leave bucket_mb out"]),
        ("ssgd(scheme=allgather)", ["scheme", "compressors"]),
        ("compute(wfbp=off)", ["compute", "no options"]),
        ("topk(scheme=allreduce)", ["allreduce", "allowed: allgather, alltoall"]),
        ("topk(scheme=gossip)", ["gossip", "allgather"]),
    ],
)
def test_what_cannot_be_is_refused_with_what_is_allowed(text, words):
    with pytest.raises(ValueError, match="method") as refused:
        parse_method(text)
    assert "\n" not in str(refused.value)
    for word in words:
        assert word in str(refused.value)
