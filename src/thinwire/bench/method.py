"""A way to exchange gradients, and how it is written: ``ssgd(bucket_mb=25)``, ``topk(ratio=0.001, wfbp=off)``."""

import ast
from dataclasses import dataclass

from thinwire.compress import parse
from thinwire.strategy import SCHEMES, Place, flat_option

COMPUTE = "compute"
SSGD = "ssgd"
DDP_FP16 = "ddp_fp16"
PLAIN = {
    COMPUTE: "no exchange at all (no_sync): what forward and backward alone take",
    SSGD: "DDP's own all-reduce: the baseline",
    DDP_FP16: "DDP with PyTorch's fp16 hook",
}
"""What can be measured beside thinwire's compressors."""

OPTIONS = "bucket_mb=NUMBER, wfbp=off, fusion=off, and scheme=NAME for compressors"


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """A way to exchange gradients; made from its text by :func:`parse_method`, ``str`` is the way back.

    Raises:
        ValueError: for what does not go together; the message says what is allowed.
    """

    spec: str
    """One of :data:`PLAIN`, or a thinwire compressor's spec."""
    scheme: str | None = None
    """How a compressor's payloads cross the network; None: thinwire chooses."""
    bucket_mb: float | None = None
    """Size of DDP's buckets in MiB (``bucket_cap_mb``); None: DDP's own, 25 after a first one of 1."""
    overlap: bool = True
    """Whether a bucket is exchanged as soon as backward has filled it (WFBP), or after the last one (``wfbp=off``)."""
    fusion: bool = True
    """Whether gradients share buckets (TF), or each has its own (``fusion=off``)."""

    def __post_init__(self) -> None:
        if self.spec == COMPUTE and self._options():
            raise ValueError(f"{COMPUTE} exchanges nothing, so it takes no options")
        if self.bucket_mb is not None and not 0 < self.bucket_mb < float("inf"):
            raise ValueError(f"bucket_mb is {self.bucket_mb:g}; allowed is any size above 0")
        if self.bucket_mb is not None and not self.fusion:
            raise ValueError("fusion=off gives every gradient its own bucket; leave bucket_mb out")
        if self.scheme is not None:
            self._check_scheme(self.scheme)

    def _check_scheme(self, scheme: str) -> None:
        if self.spec in PLAIN:
            raise ValueError(f"scheme={scheme} is for thinwire's compressors; {self.spec} takes none")
        if scheme not in SCHEMES:
            raise ValueError(f"scheme={scheme} is unknown; allowed: {', '.join(SCHEMES)}")
        compressor = parse(self.spec)
        fitting = [
            name
            for name in compressor.schemes or SCHEMES
            if compressor.reducible or not flat_option(name, Place.CPU).sums_payloads
        ]
        if scheme not in fitting:
            raise ValueError(f"scheme={scheme} does not go with {self.spec}; allowed: {', '.join(fitting)}")

    @property
    def name(self) -> str:
        """The text that :func:`parse_method` reads back."""
        head, _, settings = self.spec.removesuffix(")").partition("(")
        inside = [*([settings] if settings else []), *self._options()]
        return f"{head}({', '.join(inside)})" if inside else head

    @property
    def compresses(self) -> bool:
        """Whether it is a thinwire compressor."""
        return self.spec not in PLAIN

    def _options(self) -> list[str]:
        return [
            *([f"scheme={self.scheme}"] if self.scheme is not None else []),
            *([f"bucket_mb={self.bucket_mb:g}"] if self.bucket_mb is not None else []),
            *([] if self.overlap else ["wfbp=off"]),
            *([] if self.fusion else ["fusion=off"]),
        ]


def parse_method(text: str) -> Method:
    """Read a method as it is written on the command line.

    Raises:
        ValueError: if it cannot be read, or asks for what there is not; the message says what is allowed.
    """
    head, settings = _read(text)
    try:
        scheme = settings.pop("scheme", None)
        bucket_mb = _number("bucket_mb", settings.pop("bucket_mb", None))
        overlap = _switch("wfbp", settings.pop("wfbp", "on"))
        fusion = _switch("fusion", settings.pop("fusion", "on"))
        spec = head
        if head not in PLAIN:
            inside = ", ".join(f"{name}={value}" for name, value in settings.items())
            spec = str(parse(f"{head}({inside})" if inside else head))
        elif settings:
            raise ValueError(f"{head} has no setting {', '.join(settings)}")
        return Method(spec=spec, scheme=scheme, bucket_mb=bucket_mb, overlap=overlap, fusion=fusion)
    except ValueError as error:
        raise ValueError(f"method {text!r}: {error}; {_allowed()}") from error


def _read(text: str) -> tuple[str, dict[str, str]]:
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        node = None
    if isinstance(node, ast.Name):
        return node.id, {}
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args:
        settings = {k.arg: ast.unparse(k.value) for k in node.keywords if k.arg is not None}
        if len(settings) == len(node.keywords):
            return node.func.id, settings
    raise ValueError(f"cannot read method {text!r}; {_allowed()}")


def _allowed() -> str:
    return f"a method is {', '.join(PLAIN)} or a compressor's spec like topk(ratio=0.01), with options {OPTIONS}"


def _number(name: str, text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError as error:
        raise ValueError(f"{name} is {text}, which is no number") from error


def _switch(name: str, text: str) -> bool:
    if text.lower() not in ("on", "off"):
        raise ValueError(f"{name} is {text}; allowed: on, off")
    return text.lower() == "on"
