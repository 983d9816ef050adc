"""Flower as people run it: in its simulation, and over a SuperLink with ten SuperNodes, one of them killed."""

from __future__ import annotations

import json
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.flower.flower_processes import ROOT, app_in, flower, stop
from tests.support.commands import in_a_process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("processes")]  # see test_rounds
NODES = 10
EXAMPLE, KNOWN = ROOT / "examples" / "flower", Path(__file__).parent / "app"


def new_study(folder: Path, dim: int, **others: Any) -> Path:
    options = {"task": "external", "dataset": "own", "participants": NODES, "hosts": NODES, "rounds": 3, **others}
    words = [f"--{name}={value}" for name, value in options.items()]
    in_a_process("init", folder, *words, "--task-option", f"dim={dim}", "--epsilon", "1000")
    # Each message starts ten processes on this one machine.
    file = folder / "study.toml"
    file.write_text(re.sub(r"\b(15|20|60) (?= *#)", "90 ", file.read_text()))
    return folder


def test_the_example_becomes_private_by_its_patch(tmp_path: Path) -> None:
    patch = (EXAMPLE / "secure.patch").read_text()
    for side in ("client_app", "server_app"):
        [part] = [one for one in patch.split("--- a/") if one.startswith(f"fashion/{side}.py")]
        changed = [line for line in part.splitlines() if re.match(r"[+-](?![+-])", line)]
        assert 0 < len(changed) <= 6, changed
    study = new_study(tmp_path / "study", 44_426)
    app = app_in(tmp_path / "app", EXAMPLE, EXAMPLE / "secure.patch")
    with flower(tmp_path / "flower", simulation=True) as here:
        here.simulate(NODES)
        log = here.run(app, sordino_study=str(study), num_server_rounds=2)
    assert log.count("'participants': 10") == 2, log
    assert len(re.findall(r"MetricRecord: \{'accuracy': [\d.]+", log)) == 2


def test_ten_supernodes_of_which_one_is_killed(tmp_path: Path) -> None:
    study, result = new_study(tmp_path / "study", 610), tmp_path / "result.json"
    with flower(tmp_path / "flower", simulation=False) as here:
        for number, home in enumerate(sorted((study / "hosts").iterdir())):
            here.add_node(number, NODES, home)

        def kill_one() -> None:
            """Soon after it has joined the round."""
            journal = study / "hosts" / "host-01" / "states.sqlite"
            while not journal.exists():
                time.sleep(0.2)
            time.sleep(2)
            stop(here.nodes[0])

        threading.Thread(target=kill_one, daemon=True).start()
        log = here.run(app_in(tmp_path / "app", KNOWN), sordino_study=str(study), result=str(result), rounds=1)
    found = json.loads(result.read_text()) if result.exists() else pytest.fail(log)
    assert "1" in found["metrics"], log
    assert 7 <= found["metrics"]["1"]["participants"] <= NODES
    in_a_process("budget", "verify", study)
