"""What this device's processor can do, as far as it matters here; read from Linux, which is asked for nothing else.

The wheels of numpy need the second level of x86-64 (x86-64-v2, about 2009) and end with an illegal instruction on
an older processor; on arm64 they need nothing beyond the first version of it (ARMv8-A). AES instructions are needed by
nothing: without them OpenSSL makes the same masks, more slowly. docs/edge.md tells what that costs.
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Final

CPUINFO: Final = Path("/proc/cpuinfo")
# Names as in /proc/cpuinfo: SSE3 is "pni" there.
_LEVEL_2: Final = ("cx16", "lahf_lm", "popcnt", "pni", "ssse3", "sse4_1", "sse4_2")
_FIRST: Final = 1 << 14  # bytes that hold the first processor, however many there are


def features(cpuinfo: Path = CPUINFO) -> frozenset[str]:
    """Flags of the first processor ("flags" on x86-64, "Features" on arm64); nothing where they can't be read."""
    try:
        with cpuinfo.open(errors="replace") as file:
            text = file.read(_FIRST)
    except OSError:
        return frozenset()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def has_aes(cpuinfo: Path = CPUINFO) -> bool | None:
    """Whether the processor has AES instructions (AES-NI, the ARMv8 Cryptography Extension); None: nothing tells."""
    found = features(cpuinfo)
    return "aes" in found if found else None


def too_old(cpuinfo: Path = CPUINFO, machine: str | None = None) -> str | None:
    """Why numpy can't run on this processor: one sentence. None where it can, or nothing tells.

    Args:
        machine: as `platform.machine` names it; by default this one's.
    """
    found = features(cpuinfo)
    if (platform.machine() if machine is None else machine) != "x86_64" or not found:
        return None
    missing = [name for name in _LEVEL_2 if name not in found]
    if not missing:
        return None
    return (
        f"this processor lacks {', '.join(missing)}, which numpy's wheels need (x86-64-v2, in processors since about "
        "2009): use another machine, or a numpy built for this one with SORDINO_ANY_PROCESSOR=1"
    )
