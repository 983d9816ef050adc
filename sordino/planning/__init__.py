"""From what people mean to a plan: alternatives, refusals, notes, expected errors."""
