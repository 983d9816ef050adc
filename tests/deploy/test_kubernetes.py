"""The manifests against the schema of Kubernetes, and against what containers and scripts here are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
KUSTOMIZATION: dict[str, Any] = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
VERSION = "1.33"

OBJECTS = [
    pytest.param(one, id=f"{one['kind']}-{one['metadata']['name']}")
    for name in KUSTOMIZATION["resources"]
    for one in yaml.safe_load_all((FOLDER / name).read_text())
]


def test_every_file_is_a_resource() -> None:
    assert {path.name for path in FOLDER.glob("*.yaml")} == {"kustomization.yaml", *KUSTOMIZATION["resources"]}


@pytest.mark.parametrize("one", OBJECTS)
def test_an_object_is_of_its_schema(one: dict[str, Any]) -> None:
    kubernetes_validate.validate(one, VERSION, strict=True)


def test_the_schema_refuses_what_is_none() -> None:
    wrong = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": {"ports": "8443"}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSION, strict=True)


def pods() -> list[dict[str, Any]]:
    objects = [param.values[0] for param in OBJECTS]
    return [one["spec"]["template"]["spec"] for one in objects if one["kind"] == "StatefulSet"]


def test_pods_keep_to_the_restricted_standard() -> None:
    """The namespace enforces it: a pod that breaks it is not started."""
    assert len(pods()) == 2
    for pod in pods():
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in [*pod.get("initContainers", ()), *pod["containers"]]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["limits"]["memory"]


def test_what_containers_run_and_mount_is_there() -> None:
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    copied = {Path(name).name for line in re.findall(r"^COPY (.*) /opt/$", dockerfile, re.M) for name in line.split()}
    images = {image["name"] for image in KUSTOMIZATION["images"]}
    for pod in pods():
        volumes = {volume["name"] for volume in pod.get("volumes", ())} | {"study", "home"}  # claims
        for container in [*pod.get("initContainers", ()), *pod["containers"]]:
            assert container["image"] in images
            assert Path(container["command"][-1]).name in copied
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes


def test_a_pod_sees_no_join_code_but_its_own() -> None:
    [client] = [pod for pod in pods() if pod["containers"][0]["name"] == "client"]
    [mount] = [one for one in client["containers"][0]["volumeMounts"] if one["name"] == "codes"]
    [volume] = [one for one in client["volumes"] if one["name"] == "codes"]
    assert mount["subPathExpr"] == "$(POD_NAME)"
    assert volume["secret"]["optional"] is True  # a pod that is moved later needs none


def test_the_study_is_told_every_variable_that_its_scripts_need() -> None:
    [study] = KUSTOMIZATION["configMapGenerator"]
    told = {literal.partition("=")[0] for literal in study["literals"]}
    for name in ("coordinator-start.sh", "handover.sh"):
        needed = set(re.findall(r"\$\{?([A-Z_]+)\b", (ROOT / "deploy" / name).read_text()))
        assert needed <= told, name


def test_the_port_for_metrics_starts_nothing_again() -> None:
    """A client that holds its connections keeps answers out (docs/monitoring.md): only readiness may be asked there."""
    for pod in pods():
        for container in pod["containers"]:
            for probe in ("startupProbe", "livenessProbe"):
                assert "httpGet" not in container.get(probe, {}), (container["name"], probe)
            assert container["livenessProbe"]["exec"]["command"][-1] == "file"
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    for target in ("client", "authority", "coordinator"):
        stage = dockerfile.split(f" AS {target}\n")[1].split("\nFROM ")[0]
        assert "SORDINO_HEALTH_FILE=" in stage
