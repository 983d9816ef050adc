"""Both sides of a served study in Python: awaited in an event loop, or as calls that block."""
