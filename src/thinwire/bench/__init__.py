"""The benchmark: ways to exchange a model's gradients, side by side, and where the time of their steps goes."""
