"""Experiments without a network: the same encoder and plans as a study's, many times over."""
