"""The rules of imports: arrows only run downwards, the cores are sans-IO, the client's path stays light.

Each rule is a function from a tree to the list of its violations, so that the tests can also plant a
violation in a small tree of their own and see it found.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("imports")  # each file is parsed once

ROOT = Path(__file__).resolve().parents[1]

CORES = {"secagg", "mechanisms"}
SHARED = CORES | {"runtime"}
ROLES = {"client", "server"}
ARROWS: dict[str, set[str]] = {
    "runtime": set(),
    "secagg": set(),
    "mechanisms": set(),
    "wire": SHARED,
    "learning": SHARED,
    "server": SHARED | {"wire", "learning"},
    "client": SHARED | {"wire", "learning"},
    "authority": SHARED | {"wire", "learning"} | ROLES,  # founds a study: it writes the files that both sides read
    "sordino": SHARED | {"wire", "learning", "authority"} | ROLES,
}
# The sub-rooms of the face, from the bottom up: each may use those before it. The public API re-exports from all.
FACE = ["planning", "reporting", "flower", "lab", "api", "cli", "__init__", "__main__"]

# A core computes: no network, no file, no clock, no event loop, no randomness of its own.
CORE_PACKAGES = {"numpy", "cryptography", "nacl"}
OUTSIDE_WORLD = {
    *("asyncio", "concurrent", "datetime", "ftplib", "glob", "http", "multiprocessing", "os", "pathlib"),
    *("random", "secrets", "select", "selectors", "shutil", "signal", "smtplib", "socket", "socketserver"),
    *("sqlite3", "ssl", "subprocess", "tempfile", "threading", "time", "urllib", "uuid"),
}
# The source of entropy is the one place that may know the operating system's.
EXEMPT = {("mechanisms/randomness.py", "os"), ("mechanisms/randomness.py", "secrets")}
# The one core module that may load the accountant, inside functions that only a coordinator calls.
ACCOUNTANT = ("mechanisms/pld.py", "dp_accounting")

HEAVY = {"torch", "matplotlib", "pandas", "scipy", "dp_accounting", "ray"}
# The one module that imports Ray, inside a function: a simulation without Ray doesn't need it.
RAY_ENGINE = "runtime/ray_start.py"
# The one module beside the tasks that imports torch: a simulation loads it where such a task trains on an accelerator.
DEVICE_ENCODER = "sordino/lab/simulation/device_encoder.py"
# Scripts that an environment of their own runs: they import what its requirements name.
PEERS_RUNNERS = {
    f"sordino/lab/bench/peers/{one}.py" for one in ("flower_secagg", "flower_app", "flower_rounds", "opendp_noise")
}
PEERS_REQUIREMENTS = ROOT / "sordino" / "lab" / "bench" / "peers" / "requirements.txt"
# The fuzzer lies in an environment of its own too; what else uses the targets never imports it.
FUZZ_RUNNER = "tests/fuzz/run.py"
FUZZ_REQUIREMENTS = ROOT / "tests" / "fuzz" / "requirements.txt"
SKIPPED_FOLDERS = re.compile(r"\.git|\.venv.*|\..*_cache|\.hypothesis|__pycache__|build|dist|.*\.egg-info|\.?demo-.*")
packages_distributions = cache(metadata.packages_distributions)
# A place on one machine only: home and work folders at the root of a file system, drive letters.
MACHINE_PATH = re.compile(r"(?<![\w.:~)}\]-])/(?:home|root|Users|work|mnt)(?![\w-])|\b[A-Z]:\\\w|\.\./shared\b")


@dataclass(frozen=True)
class Import:
    file: str  # relative to the tree's root, with forward slashes
    line: int
    module: str  # absolute dotted name
    lazy: bool  # inside a function, or for the type checker only

    @property
    def root(self) -> str:
        return self.module.partition(".")[0]

    @property
    def room(self) -> str:
        return self.file.partition("/")[0]

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.module}"


def python_files(tree: Path, folders: Iterator[str] | list[str] | set[str]) -> Iterator[Path]:
    for folder in sorted(folders):
        yield from sorted((tree / folder).rglob("*.py"))


@cache
def imports(file: str, source: str, *, names: bool = False) -> list[Import]:
    """Every import of a file: at any depth, relative ones resolved, ``import_module("...")`` included.

    Args:
        file: relative to the tree's root.
        names: of ``from a import b`` yield ``a.b``, which may be a module.
    """
    package = file.split("/")[:-1]
    found: list[Import] = []
    # But for calls, expressions hold no import, and they are most of a tree.
    looked_at = (
        ast.AST
        if "import_module" in source or "__import__" in source
        else (ast.stmt, ast.excepthandler, ast.match_case)
    )

    def visit(node: ast.AST, lazy: bool) -> None:
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Import):
            found.extend(Import(file, line, alias.name, lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            if module and not names:
                found.append(Import(file, line, module, lazy))
            else:  # without a module: `from . import x` at the top of the tree
                prefix = f"{module}." if module else ""
                found.extend(Import(file, line, prefix + alias.name, lazy) for alias in node.names)
        elif isinstance(node, ast.Call) and node.args:
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            first = node.args[0]
            if name in {"import_module", "__import__"} and isinstance(first, ast.Constant):
                found.append(Import(file, line, str(first.value).lstrip(".") or "?", lazy))
        inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or is_type_checking(node)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, looked_at):
                visit(child, lazy or inside)

    visit(ast.parse(source, filename=file), lazy=False)
    return found


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def all_imports(tree: Path, rooms: set[str] | None = None, *, names: bool = False) -> list[Import]:
    return [
        found
        for path in python_files(tree, rooms or set(ARROWS))
        for found in imports(path.relative_to(tree).as_posix(), path.read_text(encoding="utf-8"), names=names)
    ]


# ------------------------------------------------------------------------------------------- the rules


def upward_arrows(tree: Path) -> list[str]:
    """Imports of a room that lies above or beside the importing one."""
    return [
        f"{found}: {found.room} may use only {sorted(ARROWS[found.room]) or 'itself'}"
        for found in all_imports(tree)
        if found.root in ARROWS and found.root not in ARROWS[found.room] | {found.room}
    ] + [
        f"{found}: {found.file} stands below it"
        for found in all_imports(tree)
        if found.room == found.root == "sordino" and _floor(found.file) < _floor(found.module.replace(".", "/"))
    ]


def _floor(path: str) -> int:
    """Of a file or module of the face; what lies in none of its sub-rooms is its public API."""
    part = path.removesuffix(".py").split("/")[1:2] or ["__init__"]
    return FACE.index(part[0]) if part[0] in FACE else FACE.index("__init__")


def circles(tree: Path) -> list[str]:
    """Files that import one another in a circle, lazily or for the type checker only included."""
    files = {path.relative_to(tree).as_posix() for path in python_files(tree, set(ARROWS))}
    uses: dict[str, set[str]] = {file: set() for file in files}
    for found in all_imports(tree, names=True):
        stem = found.module.replace(".", "/")
        above = stem.rpartition("/")[0]
        for target in (f"{stem}.py", f"{stem}/__init__.py", f"{above}.py", f"{above}/__init__.py"):
            if target in files:
                if target != found.file:
                    uses[found.file].add(target)
                break
    while True:  # what uses nothing that is left is in no circle; nor is what nothing left uses
        used = set().union(*uses.values())
        free = {file for file, targets in uses.items() if not targets or file not in used}
        if not free:
            return sorted(f"{file} is in a circle with {', '.join(sorted(uses[file]))}" for file in uses)
        uses = {file: targets - free for file, targets in uses.items() if file not in free}


def impure_cores(tree: Path) -> list[str]:
    """In a core: foreign libraries, the outside world, ``open``, numpy's own randomness."""
    violations = []
    for found in all_imports(tree):
        if found.room not in CORES or found.root in ARROWS or (found.file, found.root) in EXEMPT | {ACCOUNTANT}:
            continue
        known = found.root in CORE_PACKAGES | sys.stdlib_module_names
        if not known or found.root in OUTSIDE_WORLD or found.module.startswith("numpy.random"):
            violations.append(str(found))
    for path in python_files(tree, CORES):
        file = path.relative_to(tree).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open":
                violations.append(f"{file}:{node.lineno} opens a file")
            if isinstance(node, ast.Attribute) and ast.unparse(node) in {"np.random", "numpy.random"}:
                violations.append(f"{file}:{node.lineno} uses numpy's randomness")
    return violations


def misplaced_heavy_libraries(tree: Path) -> list[str]:
    """torch outside learning, but for one module; plotting or accounting below server and sordino; accounting loaded
    eagerly."""
    violations = []
    for found in all_imports(tree):
        if found.root == "torch" and found.room != "learning" and found.file not in {*PEERS_RUNNERS, DEVICE_ENCODER}:
            violations.append(f"{found}: only learning may")
        at_home = found.room in {"server", "sordino"} or (found.file, found.root) == ACCOUNTANT
        if found.root == "ray":
            if found.file != RAY_ENGINE or not found.lazy:
                violations.append(f"{found}: only a function of {RAY_ENGINE} may")
        elif found.root in HEAVY - {"torch"} and not at_home:
            violations.append(f"{found}: only server and sordino may")
        if found.root in {"dp_accounting", "scipy"} and not found.lazy:
            violations.append(f"{found} eagerly: it belongs inside the function that needs it")
    return violations


def undeclared_libraries(tree: Path) -> list[str]:
    """Imports that pyproject.toml doesn't bring; what a client runs does without extras (torch apart)."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    base = distributions(project["dependencies"])
    allowed = {room: set(base) for room in ARROWS}
    allowed["learning"] |= distributions([*extras["torch"], *extras["data"], *extras["flower"]])
    allowed["server"] |= distributions(extras["server"])
    allowed["runtime"] |= distributions(extras["ray"])  # in one function of it alone
    allowed["sordino"] |= distributions([*extras["server"], *extras["ray"], *extras["flower"], *extras["notebook"]])
    allowed["tests"] = base | distributions([line for lines in extras.values() for line in lines])
    peers, fuzzers = (
        distributions(file.read_text(encoding="utf-8").splitlines()) for file in (PEERS_REQUIREMENTS, FUZZ_REQUIREMENTS)
    )
    homes = packages_distributions()
    # Modules that tests share lie beside them; a conftest puts the folder on the path, or they're named in full.
    helpers = {path.stem for path in (tree / "tests").glob("*/*.py")} | {"tests"}
    violations = []
    for found in all_imports(tree, set(allowed)):
        if (
            found.root in sys.stdlib_module_names | ARROWS.keys()
            or (found.room == "tests" and found.root in helpers)
            or (found.file, found.root) == ACCOUNTANT  # declared by the extra of its callers
            or (found.file, found.root) == (DEVICE_ENCODER, "torch")  # loaded only for a task that has it
            or (found.file in PEERS_RUNNERS and normalised(found.root) in peers)
            or (found.file == FUZZ_RUNNER and found.lazy and normalised(found.root) in fuzzers)
        ):
            continue
        # What an extra brings and this environment lacks is known by its own name.
        if not {normalised(name) for name in homes.get(found.root, [found.root])} & allowed[found.room]:
            violations.append(f"{found}: not a declared dependency of {found.room}")
    return violations


def distributions(requirements: list[str]) -> set[str]:
    names = (re.match(r"[\w.-]+", line) for line in requirements)
    return {normalised(name.group()) for name in names if name}


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def machine_paths(tree: Path) -> list[str]:
    """Lines of any text file that name a place on one particular machine."""
    violations = []
    for folder, folders, files in os.walk(tree):
        folders[:] = sorted(name for name in folders if not SKIPPED_FOLDERS.fullmatch(name))
        for name in sorted(set(files) - {".git"}):  # a file in a worktree
            path = Path(folder, name)
            try:
                text = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue  # a picture or an archive of arrays
            for number, line in enumerate(text.splitlines(), 1):
                if MACHINE_PATH.search(line):
                    violations.append(f"{path.relative_to(tree).as_posix()}:{number} {line.strip()[:120]}")
    return violations


RULES = [upward_arrows, circles, impure_cores, misplaced_heavy_libraries, undeclared_libraries, machine_paths]


@pytest.mark.parametrize("rule", RULES)
def test_tree_keeps_the_rule(rule: Callable[[Path], list[str]]) -> None:
    violations = rule(ROOT)
    assert not violations, "\n" + "\n".join(violations)


def test_every_room_is_looked_at() -> None:
    looked_at = {found.room for found in all_imports(ROOT)}
    assert looked_at == set(ARROWS)


PLANTED: list[tuple[Callable[[Path], list[str]], str, str]] = [
    (upward_arrows, "secagg/x.py", "import mechanisms.plan"),
    (upward_arrows, "mechanisms/x.py", "from secagg import shamir"),
    (upward_arrows, "wire/x.py", "def f():\n    from learning.task import Task"),
    (upward_arrows, "learning/tasks/x.py", "import wire.codec as codec"),
    (upward_arrows, "server/x.py", "from client.policy import Policy"),
    (upward_arrows, "client/x.py", "import importlib\nimportlib.import_module('server.journal')"),
    (upward_arrows, "server/dashboard/x.py", "if True:\n    from sordino.reporting import study_text"),
    (upward_arrows, "client/x.py", "from authority.folder import AuthorityFolder"),
    (upward_arrows, "runtime/x.py", "def f():\n    import wire.codec"),
    (upward_arrows, "secagg/x.py", "from runtime.durable import DurableStore"),
    (upward_arrows, "sordino/planning/x.py", "from sordino.reporting import report"),
    (upward_arrows, "sordino/lab/bench/x.py", "def f():\n    from sordino.cli import main"),
    (upward_arrows, "sordino/reporting/x.py", "import sordino"),
    (upward_arrows, "secagg/x.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import wire"),
    (impure_cores, "secagg/x.py", "import grpc"),
    (impure_cores, "secagg/x.py", "def f():\n    import time"),
    (impure_cores, "mechanisms/x.py", "from os import urandom"),
    (impure_cores, "mechanisms/x.py", "import asyncio.subprocess"),
    (impure_cores, "mechanisms/x.py", "import numpy as np\nnp.random.default_rng(0)"),
    (impure_cores, "secagg/x.py", "from numpy.random import default_rng"),
    (impure_cores, "secagg/x.py", "open('keys')"),
    (impure_cores, "secagg/x.py", "import pydantic"),
    (misplaced_heavy_libraries, "client/x.py", "def f():\n    import torch"),
    (misplaced_heavy_libraries, "server/x.py", "import torch.nn"),
    (misplaced_heavy_libraries, "server/x.py", "import dp_accounting"),
    (misplaced_heavy_libraries, "mechanisms/x.py", "def f():\n    import scipy.stats"),
    (misplaced_heavy_libraries, "mechanisms/x.py", "def f():\n    import dp_accounting"),
    (misplaced_heavy_libraries, "mechanisms/pld.py", "import dp_accounting"),
    (misplaced_heavy_libraries, "mechanisms/pld.py", "def f():\n    import scipy.stats"),
    (misplaced_heavy_libraries, "learning/x.py", "import matplotlib"),
    (misplaced_heavy_libraries, "sordino/x.py", "def f():\n    import ray"),
    (misplaced_heavy_libraries, "runtime/ray_start.py", "import ray"),
    (undeclared_libraries, "client/x.py", "import matplotlib"),
    (undeclared_libraries, "client/x.py", "import grpc_health.v1"),
    (undeclared_libraries, "server/x.py", "import hypothesis"),
    (undeclared_libraries, "tests/x.py", "import nothing_of_this_name"),
    (undeclared_libraries, "sordino/lab/bench/x.py", "import opendp"),
    (undeclared_libraries, "sordino/lab/bench/peers/opendp_noise.py", "import diffprivlib"),
    (undeclared_libraries, "tests/fuzz/run.py", "import atheris"),
    (undeclared_libraries, "tests/fuzz/target.py", "def f():\n    import atheris"),
    (machine_paths, "docs/x.md", "see " + "/ho" + "me/alice/sordino"),
    (machine_paths, "deploy/run.sh", "cd " + "/wo" + "rk/main"),
    (machine_paths, "Makefile", "P := " + "/ro" + "ot/.venv"),
    (machine_paths, "docs/x.md", "[notes](.." + "/shared/notes.md)"),
]


@pytest.mark.parametrize(("rule", "file", "source"), PLANTED)
def test_planted_violations_are_found(
    rule: Callable[[Path], list[str]], file: str, source: str, tmp_path: Path
) -> None:
    write(tmp_path / file, source)
    violations = rule(tmp_path)
    assert violations
    assert all(line.startswith(file) for line in violations)


def test_a_planted_circle_is_found(tmp_path: Path) -> None:
    write(tmp_path / "wire/a.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from wire import b")
    write(tmp_path / "wire/b.py", "def f():\n    from wire.c import g")
    write(tmp_path / "wire/c.py", "import wire.d")
    write(tmp_path / "wire/d.py", "")
    assert circles(tmp_path) == []
    write(tmp_path / "wire/c.py", "import wire.a")
    assert [line.partition(" ")[0] for line in circles(tmp_path)] == ["wire/a.py", "wire/b.py", "wire/c.py"]


@pytest.mark.parametrize("rule", RULES)
def test_what_is_allowed_is_not_reported(rule: Callable[[Path], list[str]], tmp_path: Path) -> None:
    write(tmp_path / "secagg/a.py", "import hashlib\nimport numpy\nfrom . import b\nfrom secagg.b import c")
    write(tmp_path / "mechanisms/randomness.py", "import os\nfrom cryptography import exceptions")
    write(tmp_path / "learning/tasks/cnn.py", "import torch\nfrom ..task import Task\nimport mechanisms")
    write(tmp_path / "client/a.py", "import grpc\nimport wire.codec\nfrom google.protobuf import message")
    write(tmp_path / "server/a.py", "import secagg\nimport runtime.logs\ndef pld():\n    import dp_accounting")
    write(tmp_path / "runtime/ray_start.py", "def f():\n    import ray")
    write(tmp_path / "sordino/a.py", "import matplotlib\nimport server\nimport client")
    write(tmp_path / "sordino/lab/bench/text.py", "def draw():\n    import matplotlib")
    write(tmp_path / "sordino/lab/bench/peers/opendp_noise.py", "import numpy\nimport opendp.prelude")
    write(tmp_path / "docs/a.md", "a Merkle root/path, https://example.org/wo" + "rk/1, $(ROOT)/work, a/home/b")
    assert rule(tmp_path) == []


# ----------------------------------------------------------------------- the same, by really importing

BLOCKING = """
import importlib, importlib.machinery, sys
blocked = set(sys.argv[1].split(","))
class Refuse:
    def create_module(self, spec):
        raise ModuleNotFoundError(f"{spec.name} is blocked by the test", name=spec.name)
    def exec_module(self, module):
        pass
class Blocker:  # a blocked module can be looked for, but not loaded
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in blocked:
            return None
        machinery = importlib.machinery
        spec = machinery.PathFinder.find_spec(name, path) or machinery.ModuleSpec(name, None)
        spec.loader = Refuse()
        return spec
for name in [name for name in sys.modules if name.partition(".")[0] in blocked]:
    del sys.modules[name]
sys.meta_path.insert(0, Blocker())
"""
IMPORT_ALL = BLOCKING + "for name in sys.argv[2:]:\n    importlib.import_module(name)\n"
RUN_COMMAND = BLOCKING + "sys.argv[:2] = ['sordino']\nfrom sordino.cli import main\nsys.exit(main())\n"


def run_blocked(script: str, blocked: set[str], *arguments: str, tree: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a script in the tree with some libraries made impossible to import."""
    command = [sys.executable, "-c", script, ",".join(sorted(blocked)), *arguments]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=60)


def imports_without(blocked: set[str], *names: str) -> None:
    done = run_blocked(IMPORT_ALL, blocked, *names)
    assert done.returncode == 0, done.stderr


def modules(tree: Path, *rooms: str) -> list[str]:
    """Dotted names of all modules of some rooms, but entry points, which run when imported."""
    names = []
    for path in python_files(tree, list(rooms)):
        parts = path.relative_to(tree).with_suffix("").parts
        if parts[-1] != "__main__":
            names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return names


COORDINATORS = HEAVY | {"server", "grpc_health", "grpc_reflection"}
SANS_IO = {"grpc", "google", "torch", "asyncio", "socket", "ssl", "selectors", "sqlite3", "pydantic"} | HEAVY


@pytest.mark.parametrize("room", sorted(CORES))
def test_core_imports_without_network_and_event_loop(room: str) -> None:
    imports_without(SANS_IO | set(ARROWS) - {room}, *modules(ROOT, room))


def test_client_imports_without_the_coordinators_libraries() -> None:
    imports_without(COORDINATORS, *modules(ROOT, "client", "wire"))


def test_the_running_client_needs_no_settings_checker_and_no_command_line() -> None:
    """12 MB for as long as it runs: whatever it imports, it must not come by way of `runtime.settings_file`."""
    without = COORDINATORS | {"pydantic", "pydantic_settings", "typer", "rich", "safetensors"}
    imports_without(without, "client.participant_host", "client.process")


def test_learning_imports_without_torch_but_for_torch_tasks() -> None:
    """And without Flower but for its apps."""
    eager = {
        found.file
        for found in all_imports(ROOT)
        if not found.lazy and (found.root == "torch" or (found.root, found.room) == ("flwr", "learning"))
    } - {*PEERS_RUNNERS, DEVICE_ENCODER}
    assert all(file.startswith("learning/tasks/") for file in eager)
    names = {file.removesuffix(".py").replace("/", ".") for file in eager} | {"learning.tasks.flower_arrays"}
    imports_without(HEAVY | {"flwr"}, *(name for name in modules(ROOT, "learning") if name not in names))


@pytest.mark.parametrize("verb", ["", "join", "serve", "demo"])
def test_help_needs_no_heavy_library(verb: str) -> None:
    done = run_blocked(RUN_COMMAND, COORDINATORS if verb == "join" else HEAVY, *verb.split(), "--help")
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout


def test_verbs_load_no_numpy_before_they_run() -> None:
    imports_without({"numpy"}, *(f"sordino.cli.{verb}" for verb in ("serve", "graph", "data", "doctor")))


def test_serve_loads_structlog_without_rich() -> None:
    script = "import sys, sordino.cli.serve, runtime.logs, structlog\nsys.exit('rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, timeout=60).returncode == 0


@pytest.mark.parametrize("source", ["import socket", "from asyncio import run", "import grpc.aio"])
def test_a_planted_import_is_blocked(source: str, tmp_path: Path) -> None:
    write(tmp_path / "secagg/__init__.py", source)
    done = run_blocked(IMPORT_ALL, SANS_IO, *modules(tmp_path, "secagg"), tree=tmp_path)
    assert done.returncode != 0
    assert "blocked by the test" in done.stderr


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")
