"""Archives made by hand, as `runtime.archive` writes them or not."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

from runtime.archive import MANIFEST


def tar_of(path: Path, *members: tuple[str, bytes]) -> Path:
    """Write an archive with these members, which may be no copy."""
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def manifest_of(**fields: Any) -> tuple[str, bytes]:
    """The last member of a copy, with these fields changed or added."""
    return MANIFEST, json.dumps({"format": 1, "files": {}, "tables": {}, "made": 0, **fields}).encode()
