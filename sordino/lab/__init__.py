"""Simulation, experiments, load tests, benchmarks and the demo."""
