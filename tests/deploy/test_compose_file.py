"""What can be said of the compose project, its images and its scripts without a container engine."""

from __future__ import annotations

import http.server
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.commands import says

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = ("authority", "coordinator", "client")
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()


# The images' shell. Bash 5.2 forgets the code of a process that ends at once, when a signal interrupts `wait`.
SHELL = shutil.which("dash") or "sh"
SUPERVISED = [SHELL, "-euc", f'. {ROOT}/deploy/supervised.sh; supervised sh -c "$1"', "sh"]


def supervised_script(commands: str) -> subprocess.CompletedProcess[str]:
    """Run commands in a shell that knows the functions of supervised.sh."""
    script = f". {ROOT}/deploy/supervised.sh; {commands}"
    return subprocess.run([SHELL, "-euc", script], capture_output=True, text=True, check=False)


def mounts(service: str) -> dict[str, str]:
    """Volume -> where a service mounts it."""
    return dict(str(one).split(":")[:2] for one in SERVICES[service]["volumes"])


def test_the_coordinator_sees_neither_the_authoritys_keys_nor_its_codes() -> None:
    assert set(mounts("coordinator")) == {"study", "handover", "engine"}
    authority, client = mounts("authority"), mounts("client")
    assert authority["desk"] == client["desk"]
    assert set(authority) & set(client) == {"desk"}
    assert "desk:/run/sordino/desk:ro" in SERVICES["client"]["volumes"]  # or one could pass for the desk
    assert "sessions" not in SERVICES["authority"]["networks"]
    assert SERVICES["client"]["networks"] == ["sessions"]


@pytest.mark.parametrize("service", OURS)
def test_containers_are_confined(service: str) -> None:
    about = SERVICES[service]
    assert about["read_only"] is True
    assert about["cap_drop"] == ["ALL"]
    assert about["security_opt"] == ["no-new-privileges:true"]
    assert not {"user", "privileged"} & set(about)  # the user is the image's, who is nobody on the host
    [stage] = re.findall(rf"^FROM \S+ AS {service}\n(.*?)(?=^FROM |\Z)", DOCKERFILE, re.S | re.M)
    says(stage, "USER 10001:10001", "HEALTHCHECK", "LABEL org.opencontainers.image.title")


@pytest.mark.parametrize("service", [*OURS, "prometheus", "grafana"])
def test_services_come_back_and_end_in_time(service: str) -> None:
    assert SERVICES[service]["restart"] == "on-failure"
    if service in OURS:
        assert SERVICES[service]["stop_grace_period"]


def test_another_study_beside_the_old_one_has_homes_of_its_own() -> None:
    """A home is given up at the word of its own authority alone, and another study has another one."""
    study = COMPOSE["x-study"]["STUDY"]
    assert SERVICES["client"]["entrypoint"][:3] == ["sh", "/opt/client-start.sh", study]
    assert '--homes "/var/lib/sordino/clients/${1:-}"' in (ROOT / "deploy" / "client-start.sh").read_text()


def test_clients_need_no_lines_of_their_own_and_no_secret_is_in_the_file() -> None:
    assert "environment" not in SERVICES["client"]
    # Else each `up` without a number would bring the clients to 1.
    assert SERVICES["client"]["scale"] == "${SORDINO_CLIENTS:-10}"
    assert [name for name in SERVICES if name.startswith("client")] == ["client"]
    assert not re.search(r"pass(word|wd)?\s*[:=]|SORD2-|BEGIN .*KEY", (ROOT / "docker-compose.yml").read_text())


def test_the_profile_scale_is_told_where_its_gateways_are() -> None:
    """The settings that go with it, as its services and the authority read them."""
    lines = (ROOT / "deploy" / "scale.env").read_text().splitlines()
    told = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    nodes = {name for name, one in SERVICES.items() if one.get("profiles") == ["scale"]}
    gateways = sorted(nodes - {"head"})
    assert told["SORDINO_SESSIONS"] == ",".join(f"{name}:{8443 + at}" for at, name in enumerate(gateways))
    assert told["SORDINO_ENROLMENT"] == f"coordinator:{8443 + len(gateways)}"
    assert told["SORDINO_RAY_ADDRESS"] == "head:6379"
    says(told["SORDINO_STUDY_OPTIONS"], "--engine ray", f"--gateways {len(gateways)}")
    text = (ROOT / "docker-compose.yml").read_text()
    assert all(f"${{{name}:-" in text for name in told)  # without the settings nothing changes
    for name in nodes:
        assert SERVICES[name]["entrypoint"] == ["sh", "/opt/ray-node.sh", name]
        assert (SERVICES[name]["read_only"], SERVICES[name]["cap_drop"]) == (True, ["ALL"])
        # Clients reach the gateways, and the head, which anybody with the token commands, not at all.
        assert ("sessions" in SERVICES[name]["networks"]) == (name != "head")


def test_named_volumes_are_declared_and_ports_stay_on_this_machine() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", ()):
            name = str(volume).split(":")[0]
            assert name in COMPOSE["volumes"] or (ROOT / name).exists(), f"{name} is neither a volume nor a file"
        for port in service.get("ports", ()):
            assert "127.0.0.1" in port, f"{port} is open to the network"


def test_images_hold_every_package_and_no_torch_before_the_last() -> None:
    """The wheel is made of what .dockerignore lets through."""
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    rooms = {name.split(".")[0] for name in packages}
    let_through = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert rooms <= let_through
    copied = [name for line in re.findall(r"^COPY (deploy/.*) /opt/$", DOCKERFILE, re.M) for name in line.split()]
    assert copied, "no scripts are copied"
    assert all((ROOT / name).is_file() for name in copied)
    stages = re.findall(r"^FROM (\S+) AS (\S+)$", DOCKERFILE, re.M)
    assert [name for _, name in stages][-2:] == ["client-torch-environment", "client-torch"]
    before, _, after = DOCKERFILE.partition("AS client-torch-environment")
    assert ("torch==" in before, "torch==2.13.0" in after) == (False, True)
    made = {"${BASE}", *(name for _, name in stages)}
    assert {base for base, _ in stages} <= made


@pytest.mark.parametrize("script", sorted((ROOT / "deploy").glob("*.sh")), ids=lambda path: path.name)
def test_scripts_can_be_read_by_a_plain_shell(script: Path) -> None:
    subprocess.run(["sh", "-n", script], check=True)


@pytest.mark.parametrize(("code", "told"), [(0, 0), (2, 0), (3, 0), (40, 0), (5, 5), (4, 4), (70, 70)])
def test_only_endings_that_may_pass_are_started_again(code: int, told: int) -> None:
    assert supervised_script(f"supervised sh -c 'exit {code}'").returncode == told


MAKES = '[ "$1" != init ] || { mkdir -p "$2"; touch "$2/study.toml"; }'


def started(script: str, tmp_path: Path, *, does: str = MAKES, **variables: str) -> subprocess.CompletedProcess[str]:
    """A start script with the container's folders elsewhere, and a `sordino` that says what it is told."""
    (tmp_path / "bin").mkdir(exist_ok=True)
    told = tmp_path / "bin" / "sordino"
    told.write_text(f'#!/bin/sh\necho "sordino $*"\n{does}\nexit 0\n')
    told.chmod(0o755)
    (tmp_path / "study").mkdir(exist_ok=True)  # where a volume is mounted
    text = (ROOT / "deploy" / script).read_text()
    text = text.replace("/opt/", f"{ROOT}/deploy/").replace("/var/lib/sordino", str(tmp_path))
    environment = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "STUDY": "s", "ROUNDS": "3", "PLACES": "12"}
    environment |= {"COHORT": "10", "EPSILON": "8"} | variables
    return subprocess.run([SHELL, "-c", text], env=environment, capture_output=True, text=True, check=False)


def test_a_study_stays_as_it_was_made(tmp_path: Path) -> None:
    (tmp_path / "handover" / "s" / "tls").mkdir(parents=True)
    (tmp_path / "handover" / "s" / "transcript.key").touch()
    made = started("coordinator-start.sh", tmp_path)
    says(made.stdout, "sordino init", "sordino serve")
    assert not (tmp_path / "handover" / "s" / "transcript.key").exists()  # the coordinator has its own
    again = started("coordinator-start.sh", tmp_path)
    assert "sordino init" not in again.stdout
    assert again.stderr == ""
    changed = started("coordinator-start.sh", tmp_path, ROUNDS="60")
    assert "sordino serve" in changed.stdout
    assert "stays as it was made (rounds 3," in changed.stderr


def test_an_authority_that_was_killed_while_it_handed_over_goes_on(tmp_path: Path) -> None:
    """Between any two steps; and no copy of the coordinator's secrets is left with the authority, or beside."""
    kept, handed = tmp_path / "authority" / "s" / "coordinator", tmp_path / "handover" / "s"
    (tmp_path / "handover").mkdir()
    for there in ([kept], [kept, Path(f"{handed}.coming")], [kept, handed], [kept, handed, Path(f"{handed}.coming")]):
        for folder in there:
            folder.mkdir(parents=True)
            (folder / "transcript.key").write_text("half" if folder.name.endswith(".coming") else "whole")
        for _ in range(2):
            done = started("authority-start.sh", tmp_path)
            assert (done.returncode, done.stderr) == (0, "")
            assert "sordino authority run" in done.stdout
            assert not kept.exists()
            assert [path.name for path in handed.parent.iterdir()] == ["s"]
            assert [path.name for path in handed.iterdir()] == ["transcript.key"]
            assert (handed / "transcript.key").read_text() == "whole"
        shutil.rmtree(handed)


@pytest.mark.parametrize("writable", [True, False])
def test_a_coordinator_that_was_killed_once_its_study_was_made_goes_on(tmp_path: Path, writable: bool) -> None:
    handed = tmp_path / "handover" / "s"
    (handed / "tls").mkdir(parents=True)
    (handed / "transcript.key").touch()
    if not writable:  # for root, too
        (handed / "taken").mkdir()
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "touch").write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / "bin" / "touch").chmod(0o755)
    (tmp_path / "study" / "s").mkdir(parents=True)
    (tmp_path / "study" / "s" / "study.toml").touch()
    done = started("coordinator-start.sh", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "sordino serve" in done.stdout
    assert (handed / "taken").is_file() == writable
    assert (handed / "tls").exists() == (handed / "transcript.key").exists() == (not writable)


def test_what_a_study_was_made_with_is_known_however_its_making_ended(tmp_path: Path) -> None:
    """Killed in `sordino init`, which leaves a folder without its name, or right after it."""
    (tmp_path / "handover" / "s").mkdir(parents=True)
    half, others = tmp_path / "study" / ".s-a1b2c3d4", tmp_path / "study" / ".s-2-a1b2c3d4"
    killed = 'case "$1" in init) mkdir -p "$2"; touch "$2/study.toml";; esac; kill -KILL $PPID'
    assert started("coordinator-start.sh", tmp_path, does="kill -KILL $PPID").returncode < 0
    half.mkdir()
    others.mkdir()
    assert started("coordinator-start.sh", tmp_path, does=killed, ROUNDS="4").returncode < 0
    assert [half.exists(), others.exists()] == [False, True]
    again = started("coordinator-start.sh", tmp_path, ROUNDS="5")
    assert (again.returncode, "sordino init" in again.stdout) == (0, False)
    assert "stays as it was made (rounds 4," in again.stderr
    assert sorted(path.name for path in (tmp_path / "study").iterdir()) == [".s-2-a1b2c3d4", "s"]


def test_a_lost_volume_is_said_and_nothing_is_begun_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "handover" / "s").mkdir(parents=True)
    started("coordinator-start.sh", tmp_path)
    (tmp_path / "study" / "s" / "study.toml").unlink()
    lost = started("coordinator-start.sh", tmp_path)
    assert (lost.returncode, lost.stdout) == (0, "")  # a restart would change nothing
    assert "volume study" in lost.stderr
    keys = started("authority-start.sh", tmp_path)
    assert (keys.returncode, keys.stdout) == (0, "")
    assert "volume authority" in keys.stderr


def test_a_setting_that_cant_be_is_not_tried_for_ever(tmp_path: Path) -> None:
    done = supervised_script("first sh -c 'exit 2'; echo went on")
    assert (done.returncode, done.stdout) == (0, "")


def test_a_signal_reaches_what_is_supervised_and_its_code_is_kept() -> None:
    child = "trap 'exit 7' TERM; echo up; while :; do sleep 0.05; done"
    with subprocess.Popen([*SUPERVISED, child], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.terminate()
        assert process.wait(10) == 7


def test_a_signal_that_comes_as_soon_as_the_process_runs_is_not_lost() -> None:
    child = "trap 'exit 7' TERM; kill -TERM $PPID; for _ in 1 2 3 4 5 6 7 8 9 10; do sleep 0.2; done"
    codes = [subprocess.run([*SUPERVISED, child], timeout=10, check=False).returncode for _ in range(20)]
    assert codes == [7] * 20


@pytest.mark.parametrize("moment", [r"(?=    (\(|\"\$@\" &)$)", r"(?=    child=\$!$)"], ids=["before", "after"])
def test_a_signal_around_the_fork_is_not_lost(moment: str) -> None:
    """A fork of dash has its parent's traps at first, and forgets a signal that they caught."""
    text, count = re.subn(
        moment, "    kill -TERM $$\n", (ROOT / "deploy" / "supervised.sh").read_text(), count=1, flags=re.M
    )
    assert count == 1
    # It lives until it is told, however long a busy machine keeps its parent waiting.
    command = [SHELL, "-euc", text + "\nsupervised sh -c \"trap 'exit 7' TERM; while :; do sleep 0.1; done\""]
    codes = {subprocess.run(command, timeout=10, check=False).returncode for _ in range(30)}
    assert codes <= {7, 143}  # 143: it wasn't up yet


def test_a_second_signal_is_passed_on_and_the_end_waited_for() -> None:
    count = "n=0; trap 'n=$((n + 1)); echo $n' TERM; echo up"
    child = f"{count}; while [ $n -lt 2 ]; do sleep 0.02; done; sleep 0.2; exit 7"
    with subprocess.Popen([*SUPERVISED, child], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for told in (b"up\n", b"1\n"):
            assert process.stdout.readline() == told
            process.terminate()
        assert process.stdout.readline() == b"2\n"
        assert process.wait(10) == 7


def test_a_signal_while_a_study_is_made_ends_that(tmp_path: Path) -> None:
    began = time.monotonic()
    done = supervised_script("first sh -c 'kill -TERM $PPID; exec sleep 5'; supervised echo went on")
    assert (done.returncode, done.stdout) == (143, "")
    assert time.monotonic() - began < 4


def healthcheck(kind: str, **environment: str) -> int:
    command = [sys.executable, "-IS", str(ROOT / "deploy" / "healthcheck.py"), kind]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, check=False).returncode


def test_a_client_that_shows_no_life_is_unhealthy(tmp_path: Path) -> None:
    file = tmp_path / "health"
    assert healthcheck("file", SORDINO_HEALTH_FILE=str(file)) == 1
    file.touch()
    assert healthcheck("file", SORDINO_HEALTH_FILE=str(file)) == 0
    long_ago = time.time() - 120
    os.utime(file, (long_ago, long_ago))
    assert healthcheck("file", SORDINO_HEALTH_FILE=str(file)) == 1


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_a_coordinator_is_healthy_when_it_is_ready(status: int, code: int) -> None:
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/readyz" else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            assert healthcheck("http", SORDINO_HTTP_PORT=str(server.server_port)) == code
        finally:
            server.shutdown()
            thread.join()
    assert healthcheck("http", SORDINO_HTTP_PORT=str(server.server_port)) == 1  # no process listens any more
