"""What a figure was measured on."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

from secagg.masking import choose_keystream

_PACKAGES = ("numpy", "cryptography", "grpcio", "protobuf", "uvloop")


def describe() -> dict[str, Any]:
    """Processor, cores, memory, system, Python, packages, OpenSSL, and which keystream this process chose."""
    from cryptography.hazmat.backends.openssl import backend

    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in _PACKAGES},
        "openssl": backend.openssl_version_text().split()[1],
        "keystream": choose_keystream(),
    }


def one_line(machine: dict[str, Any]) -> str:
    """For the head of a table."""
    return (
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gb']:g} GB, {machine['system']}, "
        f"Python {machine['python']}, numpy {machine['numpy']}, cryptography {machine['cryptography']} "
        f"(OpenSSL {machine['openssl']}), grpcio {machine['grpcio']}; keystream: AES-128-{machine['keystream'].upper()}"
    )


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "Model")):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
