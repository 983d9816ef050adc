"""When a silent connection is noticed: one place for both ends, since each must put up with what the other does.

gRPC's pings travel on the connection and keep a NAT's entry alive; heartbeats are messages of a session, and travel
through proxies that answer pings themselves. docs/connections.md says which of them notices what.
"""

from __future__ import annotations

from typing import Final

PARTICIPANT_PING_S: Final = 20.0
"""A participant pings when nothing came for so long: below the 30 s after which mobile carriers' NATs forget."""
COORDINATOR_PING_S: Final = 30.0
PING_ANSWER_S: Final = 20.0
"""Without an answer to a ping in that time the connection is closed, at either end."""
LEAST_BETWEEN_PINGS_S: Final = 10.0
"""A participant that pings faster is sent away (GOAWAY, too many pings)."""
HEARTBEAT_S: Final = 45.0
"""Between two heartbeats of a participant: below the 60 s after which common proxies close a stream without data."""
HEARTBEAT_ANSWER_S: Final = 30.0
"""Without a message of the coordinator in that time the participant opens a new session."""

PARTICIPANT_OPTIONS: Final = (
    ("grpc.keepalive_time_ms", round(PARTICIPANT_PING_S * 1000)),
    ("grpc.keepalive_timeout_ms", round(PING_ANSWER_S * 1000)),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
COORDINATOR_OPTIONS: Final = (
    ("grpc.keepalive_time_ms", round(COORDINATOR_PING_S * 1000)),
    ("grpc.keepalive_timeout_ms", round(PING_ANSWER_S * 1000)),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", round(LEAST_BETWEEN_PINGS_S * 1000)),
    ("grpc.http2.max_pings_without_data", 0),
)
