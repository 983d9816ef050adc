"""Fetching a package by its name and version, through the package manager that is installed; never by an address.

npm runs no script, and apt-get downloads and installs nothing. pip takes a wheel as it is and builds none
(``--only-binary``). Of an archive of sources it runs the package's own ``setup.py`` to learn its name: only once the
archive has the pinned SHA-256 (``--require-hashes``), and with the setuptools that is installed here
(``--no-build-isolation``). By default it would fetch the newest setuptools, which is not pinned, and run that.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from runtime.failure import InputFailure, NetworkFailure
from sordino.lab.preparation.sources import Package

_TIMEOUT_S = 900
_MAKES_WHEELS = (70, 1)  # the first setuptools that needs no package wheel for it; Python 3.11 brings 65.5


def installed(package: Package) -> Path | None:
    """Where its files lie on this machine already; only Debian packages do."""
    return package.installed if package.installed is not None and package.installed.is_dir() else None


def command(package: Package, folder: Path) -> list[str]:
    """What fetches it into ``folder``, where it is run."""
    if package.manager == "npm":
        return ["npm", "pack", f"{package.name}@{package.version}", "--ignore-scripts", "--silent"]
    if package.manager == "debian":
        return ["apt-get", "download", package.name]
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check", "--quiet"]
    build = "--no-build-isolation" if _is_sources(package) else "--only-binary=:all:"
    return [*pip, build, "--require-hashes", "-r", str(folder / "requirements.txt")]


def spoken(package: Package) -> str:
    """The command in short, for the question to the user."""
    if package.manager == "pypi":
        if not _is_sources(package):
            return f"pip download --no-deps --only-binary=:all: --require-hashes {package.name}=={package.version}"
        return (
            f"pip download --no-deps --no-build-isolation --require-hashes {package.name}=={package.version} (runs its "
            "setup.py with the setuptools installed here, once the archive has that SHA-256; --from runs nothing)"
        )
    return " ".join(command(package, Path()))


def _is_sources(package: Package) -> bool:
    return package.manager == "pypi" and not package.file.endswith(".whl")


def _no_builder() -> str:
    """What is wrong with the setuptools that is installed; empty where it can build."""
    try:
        found = version("setuptools")
    except PackageNotFoundError:
        return "none is installed"
    old = tuple(map(int, re.findall(r"\d+", found)[:2])) < _MAKES_WHEELS
    return f"{found} is installed" if old and importlib.util.find_spec("wheel") is None else ""


def fetch(package: Package, folder: Path) -> Path:
    """The archive, in ``folder``; `Opened` checks its SHA-256.

    Raises Failure: the package manager, or setuptools for an archive of sources, isn't installed; or fetching fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if package.manager == "pypi":
        line = f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n"
        (folder / "requirements.txt").write_text(line, encoding="utf-8")
    words = command(package, folder)
    otherwise = f"Fetch {package.file} in another way and name it with --from."
    if shutil.which(words[0]) is None:
        raise InputFailure(f"{words[0]} isn't installed, so {package} can't be fetched", otherwise)
    if _is_sources(package) and (lacking := _no_builder()):
        raise InputFailure(
            f"{package} is an archive of sources: pip can't fetch it without setuptools 70.1 or newer, and {lacking} "
            "here",
            f"Install it (pip install -U setuptools), or fetch {package.file} in another way and name it with --from.",
        )
    try:
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise NetworkFailure(f"{words[0]} didn't fetch {package} in {_TIMEOUT_S} s", otherwise) from None
    found = [folder / package.file, *sorted(folder.glob(f"{package.name}_*.deb"))]
    archive = next((path for path in found if path.is_file()), None)
    if done.returncode or archive is None:
        lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower() or line.startswith("E:")] or lines or ["no file"]
        raise NetworkFailure(f"{words[0]} can't fetch {package}: {errors[-1][:300]}", otherwise)
    return archive
