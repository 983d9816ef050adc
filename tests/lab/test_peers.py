"""The peers' runners: what they print is read, what fails is told, and both peers really run where they are built."""

from __future__ import annotations

import ast
import json
import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from sordino.lab.bench.peers import run as peers

RUNNERS = ("flower_secagg.py", "opendp_noise.py")
OURS = {"sum_ok": True, "cpu_s": 0.5, "threshold": 27, "survivors": 40}
FLOWER = {"peer": "flower", "sum_ok": True, "cpu_s": 25.0, "survivors": 40, "versions": {"flwr": "1.41.0"}}


def printing(text: str, status: int = 0) -> tuple[str, ...]:
    """A command that prints this and ends so, whatever arguments follow."""
    return (sys.executable, "-c", f"import sys; print({text!r}); sys.exit({status})")


def built_environment() -> Path:
    try:
        return peers.find_environment()
    except peers.PeersMissing as missing:
        pytest.skip(str(missing))


def fake_environment(root: Path, **versions: str) -> Path:
    python = root / ".venv-peers" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    packages = root / ".venv-peers" / "lib" / "python3.11" / "site-packages"
    for name, version in versions.items():
        (packages / f"{name}-{version}.dist-info").mkdir(parents=True)
    return python


def test_sordino_can_be_installed_beside_flower() -> None:
    """Flower pins what both use: a higher bound of ours would leave `sordino[flower,server]` without a solution."""
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)", peers.REQUIREMENTS.read_text(), re.M))
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    wanted = [Requirement(one) for one in project["dependencies"] + project["optional-dependencies"]["server"]]
    both = [one for one in wanted if one.name in pins]
    assert len(both) > 10
    assert [str(one) for one in both if not one.specifier.contains(pins[one.name])] == []


def test_an_environment_is_found_once_it_is_built_with_these_versions(tmp_path: Path) -> None:
    for made, told in ((None, "make bench-peers"), ({"flwr": "1.0.0"}, "flwr .*make bench-peers")):
        root = tmp_path / told[:4]
        if made is not None:
            fake_environment(root, **peers.pins() | made)
        with pytest.raises(peers.PeersMissing, match=told):
            peers.find_environment(root)
    python = fake_environment(tmp_path, **peers.pins())
    assert peers.find_environment(tmp_path) == python


def test_every_requirement_is_pinned_to_one_version() -> None:
    lines = [line for line in peers.REQUIREMENTS.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    assert [line for line in lines if line.count("==") != 1 or set(line) & set("<>~*;@ ")] == []
    assert set(peers.pins()) == {"flwr", "opendp"}


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_runner_imports_nothing_of_ours(runner: str) -> None:
    tree = ast.parse((peers.HERE / runner).read_text(encoding="utf-8"))
    roots = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    }
    assert roots <= set(sys.stdlib_module_names) | {"numpy", "flwr", "opendp"}


def test_the_figures_are_read() -> None:
    figures = peers._run(printing(json.dumps(FLOWER)), 30)
    assert (peers._compared("secagg", figures), figures) == (25.0, FLOWER)
    wrong = FLOWER | {"sum_ok": False}
    assert peers._run(printing(json.dumps(wrong), 1), 30) == wrong  # although it ends with 1


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (printing("no JSON"), "ended with 0: no JSON"),
        (printing("[1, 2]"), r"ended with 0: \[1, 2\]"),
        (printing("{}", 2), "ended with 2"),
        ((sys.executable, "-c", "import sys; sys.exit('the last word')"), "ended with 1: the last word"),
        ((sys.executable, "-c", "pass"), "nothing was printed"),
        (("/nowhere/python",), "cannot be started"),
    ],
)
def test_a_run_without_figures_is_told_as_what_it_is(command: Sequence[str], said: str) -> None:
    with pytest.raises(peers.PeerFailed, match=said):
        peers._run(command, 30)


def test_a_run_that_does_not_end_is_stopped() -> None:
    with pytest.raises(peers.PeerFailed, match="still running after"):
        peers._run((sys.executable, "-c", "import time; time.sleep(60)"), 0.2)


@pytest.mark.parametrize("figures", [{}, {"cpu_s": None, "sum_ok": True}, {"cpu_s": 1.0}])
def test_figures_that_lack_the_one_compared_are_refused(figures: dict[str, Any]) -> None:
    with pytest.raises(peers.PeerFailed, match="sordino: no cpu_s or sum_ok among"):
        peers._compared("secagg", figures)


def comparison(monkeypatch: pytest.MonkeyPatch, flower: Sequence[dict[str, Any]]) -> peers.Comparison:
    """Compare with a Flower that prints these figures in turn, after its warm-up."""
    answers = iter([FLOWER, *flower])

    def run_peer(_: Path, script: str, **arguments: Any) -> peers.Figures:
        assert script == "flower_secagg"
        assert arguments["clients"] == 5 or arguments["threshold"] == OURS["threshold"]
        return next(answers)

    monkeypatch.setattr(peers, "run_peer", run_peer)
    return peers.compare_secagg(
        Path("unused"), clients=50, dim=100, drop=0.2, repeats=len(flower), command=printing(json.dumps(OURS))
    )


def test_a_ratio_is_the_peers_figure_over_ours_pair_by_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = comparison(monkeypatch, [{**FLOWER, "cpu_s": seconds} for seconds in (30.0, 20.0, 25.0)])
    assert compared.ratio.to_json() == {"minimum": 40.0, "median": 50.0, "maximum": 60.0}
    written = json.loads(json.dumps(compared.to_json()))
    assert written["setting"]["threshold"] == 27
    assert written["versions"] == {"flwr": "1.41.0"}
    assert written["last"] == {"ours": OURS, "peer": {**FLOWER, "cpu_s": 25.0}}
    assert any("signs nothing" in line for line in written["includes"]["peer"])


@pytest.mark.parametrize(
    ("found", "told"),
    [({"sum_ok": False}, "the result is wrong"), ({"survivors": 41}, "not the same work: 40 survivors in ours, 41")],
)
def test_what_is_not_compared(monkeypatch: pytest.MonkeyPatch, found: dict[str, Any], told: str) -> None:
    with pytest.raises(peers.PeerFailed, match=told):
        comparison(monkeypatch, [{**FLOWER, **found}])


@pytest.mark.slow
@pytest.mark.xdist_group("commands")
@pytest.mark.parametrize(("threshold", "drop", "survivors"), [(None, 0.2, 8), (5, 0.0, 10)])
def test_flower_makes_the_right_sum(threshold: int | None, drop: float, survivors: int) -> None:
    options = {"clients": 10, "dim": 50, "drop": drop, "threshold": threshold}
    figures = peers.run_peer(built_environment(), "flower_secagg", timeout_s=120, **options)
    assert figures["survivors"] == survivors
    assert peers._compared("secagg", figures) > figures["server_cpu_s"] > 0
    assert figures["versions"]["flwr"] == peers.pins()["flwr"]


@pytest.mark.slow
@pytest.mark.xdist_group("commands")
def test_flower_refuses_what_it_cannot_run() -> None:
    with pytest.raises(peers.PeerFailed, match="--threshold: 2 to 9"):
        peers.run_peer(built_environment(), "flower_secagg", clients=10, dim=50, drop=0.0, threshold=10, timeout_s=120)


@pytest.mark.slow
@pytest.mark.xdist_group("commands")
def test_opendp_draws_noise_of_the_spread_asked_for() -> None:
    figures = peers.run_peer(built_environment(), "opendp_noise", stddev=3.5, dim=2000, timeout_s=120)
    assert peers._compared("noise", figures) > figures["conversion_ns_per_sample"] > 0
    assert figures["versions"]["opendp"] == peers.pins()["opendp"]
