"""One attempt at a round: its phases, its messages in both directions, and its uploads."""
