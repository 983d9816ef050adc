"""Secure aggregation: what each side learns. A pure core without input, output or clock (docs/protocol.md)."""
