"""Kernels in plain torch, for any device: what the fast ones are tested against."""
