"""The manifests against the schema of Kubernetes, and against what containers and scripts here are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.support.commands import says

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
KUSTOMIZATION: dict[str, Any] = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
VERSION = "1.33"

SCALE: dict[str, Any] = yaml.safe_load((FOLDER / "scale/kustomization.yaml").read_text())


def objects_of(*paths: str) -> list[dict[str, Any]]:
    return [one for path in paths for one in yaml.safe_load_all((FOLDER / path).read_text())]


PLAIN = objects_of(*KUSTOMIZATION["resources"])
ENGINE = objects_of("scale/engine.yaml")
CLUSTER = ENGINE.pop(0)
CHANGES = objects_of("scale/changes.yaml")
OBJECTS = [pytest.param(one, id=f"{one['kind']}-{one['metadata']['name']}") for one in [*PLAIN, *ENGINE]]

# Of KubeRay's RayCluster, version v1, as far as it is used here; what isn't known is refused.
_PARAMETERS = {"type": "object", "additionalProperties": {"type": "string"}}
_GROUP = {"rayStartParams": _PARAMETERS, "template": {"type": "object"}}
_WORKERS = (
    _GROUP
    | {"groupName": {"type": "string"}}
    | {key: {"type": "integer"} for key in ("replicas", "minReplicas", "maxReplicas")}
)


def closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


RAY_CLUSTER = closed(
    {
        "rayVersion": {"type": "string"},
        "authOptions": closed({"mode": {"enum": ["disabled", "token"]}}),
        "headGroupSpec": closed(_GROUP),
        "workerGroupSpecs": {"type": "array", "items": closed(_WORKERS)},
    }
)


def test_every_file_is_a_resource() -> None:
    assert {path.name for path in FOLDER.glob("*.yaml")} == {"kustomization.yaml", *KUSTOMIZATION["resources"]}
    used = {*SCALE["resources"], *(patch["path"] for patch in SCALE["patches"]), "kustomization.yaml"} - {".."}
    assert {path.name for path in (FOLDER / "scale").glob("*.yaml")} == used


@pytest.mark.parametrize("one", OBJECTS)
def test_an_object_is_of_its_schema(one: dict[str, Any]) -> None:
    kubernetes_validate.validate(one, VERSION, strict=True)


def test_the_ray_cluster_is_of_its_schema() -> None:
    jsonschema.validate(CLUSTER["spec"], RAY_CLUSTER)
    for pod in nodes():
        one = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": pod}
        kubernetes_validate.validate(one, VERSION, strict=True)
    assert CLUSTER["spec"]["authOptions"]["mode"] == "token"  # without it anybody could run programs on the nodes


def test_gateways_are_reached_where_they_listen() -> None:
    """At a service each, with the ports from 8443 on; the cluster has a node for each."""
    services = {one["metadata"]["name"]: one["spec"] for one in ENGINE if one["kind"] == "Service"}
    for number, group in enumerate(CLUSTER["spec"]["workerGroupSpecs"]):
        name, port = f"gateway-{number}", 8443 + number
        assert group["groupName"] == name
        assert json.loads(json.loads(group["rayStartParams"]["resources"])) == {name: 1}
        assert services[name]["selector"] == {"ray.io/cluster": "engine", "ray.io/group": name}
        assert [one["port"] for one in services[name]["ports"]] == [port]
    options, address = SCALE["configMapGenerator"][0]["literals"]
    says(options, "--engine ray", f"--gateways {len(services)}")
    assert address == f"RAY_ADDRESS={CLUSTER['metadata']['name']}-head-svc:6379"  # as the operator names it


def test_what_is_changed_is_there() -> None:
    names = {(one["kind"], one["metadata"]["name"]) for one in PLAIN}
    assert {(one["kind"], one["metadata"]["name"]) for one in CHANGES} <= names


def test_the_schema_refuses_what_is_none() -> None:
    wrong = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": {"ports": "8443"}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSION, strict=True)


def pods() -> list[dict[str, Any]]:
    return [one["spec"]["template"]["spec"] for one in PLAIN if one["kind"] == "StatefulSet"]


def nodes() -> list[dict[str, Any]]:
    """Pods of the Ray cluster."""
    spec = CLUSTER["spec"]
    return [group["template"]["spec"] for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]


def test_pods_keep_to_the_restricted_standard() -> None:
    """The namespace enforces it: a pod that breaks it is not started."""
    assert (len(pods()), len(nodes())) == (2, 3)
    for pod in [*pods(), *nodes()]:
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
