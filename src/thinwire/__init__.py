"""Train data-parallel PyTorch models over slow networks as if the network were fast."""

__version__ = "0.1.0"
