"""Secure aggregation: who learns what. A pure core without input, output or clock (docs/protocol.md)."""
