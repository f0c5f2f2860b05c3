"""Array functions without state, one file per operation; each runs on the device of the tensors it is given."""

from thinwire.kernels.blockscale import blockscale_decode_sum, blockscale_encode
from thinwire.kernels.dither import dither_decode_sum, dither_encode
from thinwire.kernels.finite import all_finite, is_zero
from thinwire.kernels.lowrank import lowrank_expand, lowrank_left, lowrank_right, orthonormalise_
from thinwire.kernels.random import uniform_
from thinwire.kernels.sign import num_scales, sign_decode_sum, sign_encode, sign_nbytes, sign_vote
from thinwire.kernels.strata import strata_put_, strata_take
from thinwire.kernels.tail import tail_threshold
from thinwire.kernels.topk import topk_decode_sum, topk_encode

__all__ = [
    "all_finite",
    "blockscale_decode_sum",
    "blockscale_encode",
    "dither_decode_sum",
    "dither_encode",
    "is_zero",
    "lowrank_expand",
    "lowrank_left",
    "lowrank_right",
    "num_scales",
    "orthonormalise_",
    "sign_decode_sum",
    "sign_encode",
    "sign_nbytes",
    "sign_vote",
    "strata_put_",
    "strata_take",
    "tail_threshold",
    "topk_decode_sum",
    "topk_encode",
    "uniform_",
]
