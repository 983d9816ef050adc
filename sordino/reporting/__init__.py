"""What happened, for people: study view, panel, report, budget, transcript."""
