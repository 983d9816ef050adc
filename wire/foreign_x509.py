"""What the parsers of certificates, requests and keys raise over those of strangers.

`x509.InvalidVersion` is no ValueError, and an unknown curve or kind of key is told only when the key is asked for.
"""

from __future__ import annotations

from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

UNREADABLE: Final = (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion)
