"""Makes the helper modules of tests/secagg importable by the names under which they import each other."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "secagg"))
