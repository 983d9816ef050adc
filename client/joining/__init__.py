"""Joining a study by code, from the first look at it to a complete folder."""
