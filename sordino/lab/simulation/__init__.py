"""Studies without a network: `settings` says what, `rounds` plays it, `record` keeps it, `run` does all of it."""
