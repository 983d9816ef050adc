"""Measurements of the protocol core, the noise, the primitives that both use, and other systems."""
