"""The committed stubs are what the pinned compiler makes of the .proto files."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROTOS = sorted((ROOT / "proto").glob("*.proto"))


def compiler() -> Path:
    """The interpreter that has the pinned grpcio-tools. `make test` names it, and then it must be there."""
    named = os.environ.get("SORDINO_PROTO_PYTHON")
    python = ROOT / (named or ".venv-proto/bin/python")
    if not named and not python.exists():
        pytest.skip("no .venv-proto here: `make test` and `make proto` build it")
    return python


def generate(folder: Path) -> None:
    (folder / "wire").mkdir()
    environment = os.environ | {"PYTHON": str(compiler())}
    subprocess.run([ROOT / "wire" / "generate.sh", folder], env=environment, check=True, timeout=60)


def test_stubs_are_up_to_date(tmp_path: Path) -> None:
    generate(tmp_path)
    made = {path.name: path.read_bytes() for path in (tmp_path / "wire").iterdir()}
    endings = ("_pb2.py", "_pb2.pyi")
    assert set(made) == {f"{proto.stem}{ending}" for proto in PROTOS for ending in endings}
    present = [path for path in (ROOT / "wire").iterdir() if path.name.endswith(endings)]
    committed = {path.name: path.read_bytes() for path in present}
    assert set(committed) == set(made), "a stub without its .proto file, or the other way round"
    differing = [name for name in sorted(made) if made[name] != committed[name]]
    assert not differing, f"{differing} differ from what proto/ gives: run `make proto` and commit the result"


def test_the_proto_files_declare_the_versioned_package() -> None:
    assert PROTOS
    for proto in PROTOS:
        assert "\npackage sordino.v1;\n" in proto.read_text(encoding="utf-8"), proto.name
