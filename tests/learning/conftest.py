"""Makes the helper modules of this folder importable by name; their names are unique in the project."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
