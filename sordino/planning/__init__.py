"""From options to a plan: alternatives, refusals, notes, expected errors."""
