"""Distributed differential privacy: what a sum reveals. A pure core without input, output or clock."""
