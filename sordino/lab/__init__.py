"""Studies played for knowledge: simulation, experiments, load tests, benchmarks, the demo."""
