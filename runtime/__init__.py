"""Shared by all processes, whatever their role: settings and key files, durable writes, logs, exit codes."""
