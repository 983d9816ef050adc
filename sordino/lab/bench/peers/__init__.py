"""Peers measured beside Sordino, each in the environment that `make bench-peers` builds."""
