"""Mechanisms that no study is served with: to compare with, from Python and in `sordino plan`."""
