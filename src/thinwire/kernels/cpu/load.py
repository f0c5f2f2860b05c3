"""Reading a tile of what is to be compressed, ``grad + error_scale * error``."""

from thinwire.kernels.cpu.compiled import compiled


@compiled
def load(grad, error, error_scale, tile):  # type: ignore[no-untyped-def]
    """Write ``q = grad + error_scale * error`` to ``tile``, which may be ``error`` itself."""
    if error is None:
        for i in range(grad.size):
            tile[i] = grad[i]
    else:
        for i in range(grad.size):
            tile[i] = grad[i] + error_scale * error[i]
