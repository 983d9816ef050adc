"""Without Flower nothing here is collected: `make flower-test` has an environment of its own."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("flwr") else ["test_*.py"]
