"""A coordinator in several processes: gateways that hold sessions, workers that open sums."""
