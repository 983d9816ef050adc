"""Sdist and wheel are complete: built as a fresh clone builds them, installed apart, used outside the checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from runtime import VERSION

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("commands")]  # one process at a time

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES: list[str] = PROJECT["tool"]["setuptools"]["packages"]
ROOMS = sorted({name.partition(".")[0] for name in PACKAGES})
# Files of a room that serve the checkout alone.
CHECKOUT_ONLY = {"wire/generate.sh"}


@dataclass(frozen=True)
class Installed:
    python: Path
    site_packages: Path
    outside: Path  # a folder that holds nothing of ours
    wheel: Path
    sources: frozenset[str]  # what it was built from

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a command of the installation in a folder outside the checkout."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        return subprocess.run(command, cwd=self.outside, env=environment, capture_output=True, text=True, timeout=60)

    def evaluate(self, script: str) -> str:
        done = self.run(self.python, "-c", script)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


def sources() -> list[str]:
    """Files that a clone has: what git tracks or would track. Without git, everything but build outputs."""
    listing = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    done = subprocess.run(listing, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        names = [name for name in done.stdout.split("\0") if name]
    else:
        paths = [path for room in ROOMS for path in (ROOT / room).rglob("*")]
        names = [path.relative_to(ROOT).as_posix() for path in paths]
        names += ["pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"]
    return [name for name in names if (ROOT / name).is_file() and "__pycache__" not in name]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """A clean environment with the wheel; libraries come from the tests' own environment, by a path file."""
    folder = tmp_path_factory.mktemp("packaging")
    checkout, environment, outside = folder / "checkout", folder / "environment", folder / "outside"
    outside.mkdir()
    names = sources()
    for name in names:
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, checkout / name)
    call(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, checkout)  # the wheel from the sdist
    (wheel,) = folder.glob("*.whl")

    call(sys.executable, "-m", "venv", "--without-pip", environment)
    python = environment / "bin" / "python"
    call(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", wheel)
    script = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site_packages = Path(subprocess.check_output([python, "-c", script], text=True).strip())
    libraries = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    (site_packages / "libraries-of-the-tests.pth").write_text("\n".join(libraries) + "\n", encoding="utf-8")
    return Installed(python, site_packages, outside, wheel, frozenset(names))


def call(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


@pytest.mark.long
def test_every_file_of_every_room_is_in_the_wheel(installed: Installed) -> None:
    with zipfile.ZipFile(installed.wheel) as archive:
        names = {name for name in archive.namelist() if not name.startswith(f"sordino-{VERSION}.dist-info/")}
    expected = {name for name in installed.sources if name.partition("/")[0] in ROOMS} - CHECKOUT_ONLY
    assert names == expected, "declare packages and data files in pyproject.toml"


@pytest.mark.long
def test_both_can_be_published_and_hold_no_tests_and_no_pages(installed: Installed) -> None:
    (sdist,) = installed.wheel.parent.glob("*.tar.gz")
    call(sys.executable, "-m", "twine", "check", "--strict", installed.wheel, sdist)
    with tarfile.open(sdist) as archive:
        names = {file.name.partition("/")[2] for file in archive if file.isfile()}
    ours = {name for name in installed.sources if name.partition("/")[0] in ROOMS} - CHECKOUT_ONLY
    made = {name for name in names if name.startswith("sordino.egg-info/")} | {"PKG-INFO", "setup.cfg"}
    assert names - made == ours | {"LICENSE", "MANIFEST.in", "README.md", "pyproject.toml"}


def test_licence_and_metadata_travel_with_it(installed: Installed) -> None:
    with zipfile.ZipFile(installed.wheel) as archive:
        licence = archive.read(f"sordino-{VERSION}.dist-info/licenses/LICENSE")
        metadata = archive.read(f"sordino-{VERSION}.dist-info/METADATA").decode()
    assert licence == (ROOT / "LICENSE").read_bytes()
    extras = [f"Provides-Extra: {extra}" for extra in ("server", "torch", "dev")]
    assert {"License-Expression: Apache-2.0", "Requires-Python: >=3.11", *extras} <= set(metadata.splitlines())


def test_the_command_tells_its_version(installed: Installed) -> None:
    done = installed.run(installed.python.with_name("sordino"), "--version")
    assert VERSION in done.stdout, done.stderr
    assert installed.run(installed.python, "-m", "sordino", "--version").stdout == done.stdout


def test_every_package_comes_from_the_installation(installed: Installed) -> None:
    script = f"import importlib.util\nfor name in {PACKAGES}: print(importlib.util.find_spec(name).origin)"
    places = installed.evaluate(script).splitlines()
    assert len(places) == len(PACKAGES)
    assert all(Path(place).is_relative_to(installed.site_packages) for place in places), places


def test_no_package_is_named_as_the_wire_contract(installed: Installed) -> None:
    """A package named `proto` exists elsewhere: ours must not hide it, nor bring tests or documents along."""
    record = next(installed.site_packages.glob("sordino-*.dist-info")) / "RECORD"
    tops = {line.partition("/")[0] for line in record.read_text(encoding="utf-8").splitlines()}
    assert {top for top in tops if not re.fullmatch(r"sordino-.*\.dist-info|\.\.", top)} == set(ROOMS)


# Each line that ends with a comment is an error of that kind, and no other line is one.
MISUSE = """
from sordino import SimulationSettings, simulated_study, load_dataset, make_task, plan_study, secure_sum, simulate_study
from sordino import Coordinator, join, serve, sweep
from sordino import Plann  # attr-defined
plan_study(clients=9, dim=5, bits=16, epsilon=8.0, delta=1e-5, rounds=15, max_dropout=0.3, adversarial=0.0).h_min + 1
plan_study(clients=9, dim=5, bits=16, epsilon=8.0, delta=1e-5, rounds=1, max_dropout=0.3, adversariall=0)  # call-arg
plan_study(clients=9, dim=5, bits=16, epsilon="8", delta=1e-5, rounds=1, max_dropout=0.3, adversarial=0)  # arg-type
SimulationSettings(study=simulated_study(), sed=1)  # call-arg
simulate_study(SimulationSettings(study=simulated_study()), outputt=None)  # call-arg
make_task("votes", optionz={})  # call-arg
load_dataset(3)  # arg-type
secure_sum([[1]] * 3, dropp=[1])  # call-arg
serve("my-study").accuracyy  # attr-defined
Coordinator("my-study").rounds(3)  # call-arg
join("host-01", adress="localhost:8443")  # call-arg
join("host-01", data=3)  # arg-type
sweep(SimulationSettings(study=simulated_study()), seeds=1, epsilon=[1, 2])  # arg-type
"""
OTHERS = "torch.*,pandas.*,matplotlib.*,scipy.*,starlette.*,IPython.*,ray.*,rich.*,typer.*,grpc.*,cryptography.*"


@pytest.mark.long
def test_misuse_of_the_public_names_is_an_error_of_static_types(installed: Installed) -> None:
    """Only our own types are read: those of torch and others take three times as long."""
    script, config = installed.outside / "misuse.py", installed.outside / "mypy.ini"
    script.write_text(MISUSE, encoding="utf-8")
    config.write_text(f"[mypy]\nstrict = true\n[mypy-{OTHERS}]\nfollow_imports = skip\n", encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--python-executable", installed.python, script.name]
    done = subprocess.run(command, cwd=installed.outside, capture_output=True, text=True, timeout=120)
    found = re.findall(r"^misuse.py:(\d+): error: .*\[([a-z-]+)\]$", done.stdout, re.M)
    lines = [line.partition("  # ")[2] for line in MISUSE.split("\n")]
    expected = [(str(number), kind) for number, kind in enumerate(lines, 1) if kind]
    assert found == expected, done.stdout


def test_the_shipped_images_load(installed: Installed) -> None:
    script = """
from learning.datasets import load_dataset
train, test = load_dataset("fashion-mnist-subset")
print(len(train.features), len(train.labels), len(test.features), len(test.labels))
"""
    assert installed.evaluate(script) == "6000 6000 2000 2000"
