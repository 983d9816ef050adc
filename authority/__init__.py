"""The study's authority: who may take part, and the keys that say so. It is no part of the coordinator.

``folder`` holds its files, ``store`` what it has decided, ``requests`` judges who wants to join, ``roster`` signs the
next version, ``office`` puts these together, and ``link`` talks to the coordinator, which may lie.
"""
