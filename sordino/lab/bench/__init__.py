"""Measurements: the protocol core, the noise, the primitives below them and the peers beside them."""
