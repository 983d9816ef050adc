"""The participant shell: connection, policy, key store, calling the task."""
