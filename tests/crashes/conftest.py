"""Makes the helper modules of tests/client and tests/server importable by name, as those folders do themselves."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).parent.parent
sys.path += [str(TESTS / "client"), str(TESTS / "server")]
