"""Learning tasks: numpy arrays in, numpy arrays out."""
