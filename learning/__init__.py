"""Models, data sets, partitions, local updates and server optimisers."""
