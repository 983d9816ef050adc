"""How many bytes went over the session port, protobuf framing included, TLS and HTTP/2 not: for metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass


@dataclass
class Traffic:
    """Bytes since the process began; handshakes of sessions aside."""

    control_received: int = 0
    control_sent: int = 0
    vectors_received: int = 0  # of uploads that are refused or break off too
    documents_sent: int = 0  # models, rosters, the study document

    async def of_upload(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The same chunks, counted as they come."""
        async for chunk in chunks:
            self.vectors_received += len(chunk)
            yield chunk
