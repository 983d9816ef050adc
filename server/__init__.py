"""The coordinator shell: gRPC service, round driver, journal, ledger."""
