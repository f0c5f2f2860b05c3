"""Compressors: what turns a gradient into a payload and back, and the memory of what they dropped."""

from thinwire.compress.base import (
    PAYLOAD_ALIGNMENT_BYTES,
    Codec,
    Compressor,
    Key,
    Method,
    State,
    TwoRoundCodec,
    payload_part,
    unit_hash,
)
from thinwire.compress.blockscale import Float8, Int8
from thinwire.compress.casts import BFloat16, Float16
from thinwire.compress.dgc import DGC
from thinwire.compress.dithering import LinearDithering, NaturalDithering
from thinwire.compress.feedback import ErrorFeedback
from thinwire.compress.lowrank import AcpSgd, PowerSgd
from thinwire.compress.none import Identity
from thinwire.compress.onebit import OneBit
from thinwire.compress.qsgd import QSGD
from thinwire.compress.randomk import RandomK
from thinwire.compress.registry import known, parse, register, signature
from thinwire.compress.sidco import SIDCo
from thinwire.compress.signsgd import SignSGD
from thinwire.compress.terngrad import TernGrad
from thinwire.compress.topk import TopK

__all__ = [
    "DGC",
    "PAYLOAD_ALIGNMENT_BYTES",
    "QSGD",
    "AcpSgd",
    "BFloat16",
    "Codec",
    "Compressor",
    "ErrorFeedback",
    "Float8",
    "Float16",
    "Identity",
    "Int8",
    "Key",
    "LinearDithering",
    "Method",
    "NaturalDithering",
    "OneBit",
    "PowerSgd",
    "RandomK",
    "SIDCo",
    "SignSGD",
    "State",
    "TernGrad",
    "TopK",
    "TwoRoundCodec",
    "known",
    "parse",
    "payload_part",
    "register",
    "signature",
    "unit_hash",
]
