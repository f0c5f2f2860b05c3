"""Jobs of several workers on this machine: starting them, what they report, and the figures that follow from it."""
