"""The wire contract in Python: generated stubs, the codec to protocol messages, chunks, the study document."""
