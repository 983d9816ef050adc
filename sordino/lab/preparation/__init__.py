"""Making prepared sets from packages that public registries carry, and what is known of each of these packages."""
