"""What watches a coordinator names metrics that exist, and docs/monitoring.md explains all of them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from authority.new_study import make_local_study, new_study
from server.metrics import ABORTS, DROPOUTS, StudyMetrics
from server.study_file import load
from server.study_view import STATES

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "deploy" / "monitoring"
PAGE = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
NAME = re.compile(r"\b(?:sordino|process)_[a-z0-9_]+\b")
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool isn't installed")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a coordinator shows before its first event."""
    folder = tmp_path_factory.mktemp("study") / "study"
    make_local_study(folder, new_study(name="seven", participants=7, hosts=1, rounds=1))
    metrics = StudyMetrics(load(folder))
    metrics.knows_study = True
    metrics.read()
    return metrics.render().decode()


@pytest.fixture(scope="module")
def families(text: str) -> set[str]:
    """Names as the page has them: of a counter with _total."""
    found = {one.name: one.type for one in text_string_to_metric_families(text)}
    return {f"{name}_total" if kind == "counter" else name for name, kind in found.items()}


@pytest.fixture(scope="module")
def samples(families: set[str]) -> set[str]:
    """Names that a query may ask for."""
    histograms = [one for one in families if one.endswith("_duration_seconds")]
    return families | {f"{one}_{end}" for one in histograms for end in ("bucket", "sum", "count")}


def alerts() -> list[dict[str, Any]]:
    [group] = yaml.safe_load((MONITORING / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    return list(group["rules"])


def dashboard() -> dict[str, Any]:
    found = json.loads((MONITORING / "grafana" / "dashboards" / "sordino.json").read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def provisioned(name: str) -> Any:
    """What Grafana finds when it starts."""
    return yaml.safe_load((MONITORING / "grafana" / "provisioning" / name).read_text(encoding="utf-8"))


def queries() -> Iterator[tuple[str, str]]:
    """Where a query stands, and the query."""
    for rule in alerts():
        yield rule["alert"], rule["expr"]
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for variable in dashboard()["templating"]["list"]:
        yield variable["name"], variable["definition"]


def test_what_is_asked_for_exists(samples: set[str]) -> None:
    asked = {(where, name) for where, query in queries() for name in NAME.findall(query)}
    assert len(asked) > 60
    assert {(where, name) for where, name in asked if name not in samples} == set()


def test_label_values_that_are_asked_for_exist() -> None:
    known = {"phase": set(STATES), "reason": {*ABORTS, *DROPOUTS}, "job": {"sordino"}}
    for where, query in queries():
        for label, value in re.findall(r'(\w+)="([^"]*)"', query):
            assert value in known[label], where


def test_the_page_explains_all_that_is_shown_and_nothing_else(families: set[str], samples: set[str]) -> None:
    table = set(re.findall(r"`((?:sordino|process)_[a-z0-9_]+)`", PAGE))
    assert families - table == set()
    assert table - samples == set()
    for word in (*STATES, *DROPOUTS, *ABORTS):
        assert re.search(rf"\b{word}\b", PAGE), word


def test_each_alert_is_explained_and_tested() -> None:
    names = [rule["alert"] for rule in alerts()]
    assert len(names) == len(set(names))
    assert re.findall(r"^\| `(Sordino\w+)` \|", PAGE, flags=re.MULTILINE) == names
    tests = yaml.safe_load((MONITORING / "alerts_test.yml").read_text(encoding="utf-8"))["tests"]
    done = [(case["alertname"], bool(case["exp_alerts"])) for test in tests for case in test["alert_rule_test"]]
    assert {(name, fires) for name in names for fires in (True, False)} == set(done)
    for rule in alerts():
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"]["summary"]


def test_the_dashboard_is_whole() -> None:
    board = dashboard()
    assert (board["uid"], board["schemaVersion"] >= 39, board["editable"]) == ("sordino-study", True, False)
    [source] = provisioned("datasources/prometheus.yml")["datasources"]
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == source["uid"]
            assert {target["datasource"]["uid"] for target in panel["targets"]} == {source["uid"]}
            assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    places = [panel["gridPos"] for panel in panels]
    for index, one in enumerate(places):
        assert not [other for other in places[index + 1 :] if _overlap(one, other)]


def _overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    sides = (("x", "w"), ("y", "h"))
    return all(one[at] < other[at] + other[size] and other[at] < one[at] + one[size] for at, size in sides)


def test_files_find_each_other() -> None:
    settings = yaml.safe_load((MONITORING / "prometheus.yml").read_text(encoding="utf-8"))
    assert [(MONITORING / name).exists() for name in settings["rule_files"]] == [True]
    [sordino] = [one for one in settings["scrape_configs"] if one["job_name"] == "sordino"]
    assert sordino["static_configs"] == [{"targets": ["coordinator:9464"]}]
    [provider] = provisioned("dashboards/sordino.yml")["providers"]
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    mounted = [volume.split(":")[:2] for name in ("prometheus", "grafana") for volume in compose[name]["volumes"]]
    inside = {target: ROOT / source for source, target in mounted if source.startswith("./")}
    assert inside[provider["options"]["path"]] == MONITORING / "grafana" / "dashboards"
    assert all(source.exists() for source in inside.values())


@needs_promtool
@pytest.mark.parametrize("what", ["check config prometheus.yml", "test rules alerts_test.yml"])
def test_promtool_agrees(what: str) -> None:
    done = subprocess.run(["promtool", *what.split()], cwd=MONITORING, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_promtool_has_nothing_against_the_names(text: str) -> None:
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
