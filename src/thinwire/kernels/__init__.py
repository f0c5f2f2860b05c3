"""Array functions without state, one file per operation; each runs on the device of the tensors it is given."""

from thinwire.kernels.sign import num_scales, sign_decode_sum, sign_encode

__all__ = ["num_scales", "sign_decode_sum", "sign_encode"]
