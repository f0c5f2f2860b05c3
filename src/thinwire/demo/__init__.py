"""The main job: a byte-level transformer trained over a slow link, uncompressed and with thinwire, side by side."""
