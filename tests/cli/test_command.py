"""The command as a whole: help, version, exit codes, errors without tracebacks, light imports."""

from __future__ import annotations

import ast
import importlib.util
import json
import logging
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
import structlog

import sordino
from runtime.extras import EXTRAS
from runtime.failure import ExitCode
from runtime.logs import configure_logs
from server.opening import check_client_ca, check_gateways
from server.study_file import load as load_study
from sordino import cli
from sordino.cli import explain
from tests.support.commands import Run, one_clear_error, output, refusal, says, words
from wire.certificates import CertificateAuthority

VERBS = ("demo", "init", "plan", "serve", "join", "report", "simulate")
ROOT = Path(sordino.__file__).parent.parent


def commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """A command, and all that it groups."""
    yield command, path
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


COMMANDS = [one for name in cli.VERBS for one in commands(cli.verb(name), (name,))]


@pytest.mark.parametrize("path", [path for one, path in COMMANDS if not hasattr(one, "commands")], ids=" ".join)
def test_help_of_every_verb_reads_as_documentation(run: Run, path: tuple[str, ...]) -> None:
    text = words(run, *path, "--help")
    assert re.search(rf"Examples?:( \S+:)? ?sordino {' '.join(path[:1])}", text)
    assert "Exit codes: 0 done" in text
    assert "--json" in text


def test_help_loses_no_word_in_brackets(run: Run) -> None:
    """What isn't escaped is markup to the renderer, and vanishes."""
    found = 0
    for command, path in COMMANDS:
        sources = [command.help, command.epilog, *(getattr(option, "help", None) for option in command.params)]
        words = {word for text in sources if text for word in re.findall(r"\[(?!/?bold\])[^\[\]\\]+\]", text)}
        if words:
            shown = re.sub(r"[\s│]+", " ", run(*path, "--help")[1])
            assert {word for word in words if word not in shown} == set(), path
        found += len(words)
    assert found >= 3


def test_no_arguments_is_help(run: Run) -> None:
    _, out, err = run()
    assert all(verb in out + err for verb in VERBS)


@pytest.mark.parametrize("group", [(), ("authority",), ("budget",), ("data",)])
def test_a_group_alone_shows_its_help_and_no_empty_message(run: Run, group: tuple[str, ...]) -> None:
    code, out, err = run(*group)
    assert (code, err, "Usage: sordino" in out) == (2, "", True)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("init", "x", "--dataset", "minst"), "Did you mean mnist? Use one of fashion-mnist"),
        (("init", "x", "--task", "mpl"), "--task 'mpl' is unknown. Did you mean mlp? Use one of: softmax-regression"),
        (("plan", "--mechanism", "skelam"), "--mechanism skelam is unknown."),
        (("plan", "--mechanism", "skelam"), "Did you mean skellam?"),
        (("init", "x", "--mechanism", "dgauss"), "Did you mean ddgauss?"),
        (("plan", "--cohort", "20"), "--cohort is --clients here"),
    ],
)
def test_a_name_that_is_nearly_right(run: Run, arguments: tuple[str, ...], told: str) -> None:
    assert told in refusal(run, *arguments)


def test_a_ring_may_be_asked_for_by_the_word_that_is_printed(run: Run, tmp_path: Path) -> None:
    asked = ("--clients", "100", "--max-dropout", "0.1", "--bits", "20", "--graph", "ring", "--no-alternatives")
    assert json.loads(output(run, "plan", *asked, "--json"))["graph"] == "harary"
    small = ("--clients", "64", "--dim", "1", "--graph", "ring", "--dropout", "0")
    figures = json.loads(output(run, "bench", "secagg", *small, "--json"))
    assert (figures["graph"], figures["min_survivors"]) == ("harary", 64)
    made = ("--participants", "100", "--max-dropout", "0.1", "--bits", "20", "--graph", "ring")
    assert run("init", str(tmp_path / "study"), *made)[0] == 0
    assert tomllib.loads((tmp_path / "study" / "study.toml").read_text())["privacy"]["graph"] == "harary"
    assert "Use one of: auto, complete, harary, ring." in refusal(run, "plan", "--graph", "star")


@pytest.mark.parametrize(("given", "share"), [("10%", "0.1"), ("2.5 %", "0.025")])
def test_a_share_in_percent_is_suggested_as_a_decimal(run: Run, given: str, share: str) -> None:
    for verb in (("plan", "--dropout"), ("graph", "--dropout"), ("bench", "secagg", "--drop")):
        assert f"write {share}." in refusal(run, *verb, given)


def test_exit_codes_are_stable() -> None:
    assert [int(code) for code in ExitCode] == [0, 1, 2, 3, 4, 5, 40, 41, 42, 43, 70, 130]


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("play",), 2, "No such command 'play'"),
        (("invite",), 2, "Did you mean `sordino authority invite`?"),
        (("join",), 2, "the current folder holds no host.toml"),
        (("plan", "--clients", "many"), 2, "--clients many is not a whole number."),
        (("graph", "--clients", "1"), 2, "--clients 1 is out of range. Use 2 to 1,000,000."),
        (("graph", "--adversarial", "1"), 2, "--adversarial 1 is out of range. Use at least 0 and below 1."),
        (("graph", "--dropout", "-0.1"), 2, "--dropout -0.1 is out of range. Use at least 0 and below 1."),
        (("graph", "--adversary", "evil"), 2, "evil is unknown. Use one of: curious, semi-malicious, malicious."),
        (("graph", "--adversarial", "malicious"), 2, "what the coordinator may do is --adversary."),
        (("bench", "secagg", "--degree", "24"), 2, "--degree without --threshold: give --threshold as well."),
        (("plan", "--sampling", "lottery"), 2, "--sampling lottery needs --population"),
        (("plan", "--mechanism", "laplace"), 2, "skellam, gaussian, local-gaussian, binomial"),
        (("plan", "--target", "nobody"), 2, "coordinator, released, conditional"),
        (("plan", "--population", "5000"), 2, "--population 5000 needs --sampling lottery, epochs, poisson or fixed"),
        (("plan", "--epsilon", "nan"), 2, "--epsilon nan is out of range"),
        (("plan", "--max-dropout", "20"), 2, "such as 0.2 for 20 %"),
        (("plan", "--max-dropout", "1"), 2, "at least 0 and below 1"),
        (("plan", "--min-survivors", "100"), 3, "100 % of the attempts miss min_survivors 100 of 100"),
        (("serve", "/nowhere"), 2, "there is no such file"),
        (("join", "--home", "/nowhere"), 2, "there is no such file"),
        (("report", "/nowhere"), 2, "there is no such file"),
        (("join", "here", "--home", "HOME"), 2, "must read HOST:PORT"),
        (("join", "localhost:0", "--home", "HOME"), 2, "names no port"),
        (("serve", "HOME"), 2, "is the folder of a study's host. Run sordino join --home"),
        (("status", "HOME"), 2, "is the folder of a study's host. Run sordino join --status --home"),
        (("status", "AUTHORITY"), 2, "is the folder of a study's authority. Run sordino authority show"),
        (("status", "STUDY", "--password", "p"), 2, "--password is for the address of a page. Leave it out"),
        (("join", "--accept", "--home", "HOME"), 2, "Terms are accepted anew only in a folder that a join code"),
        (("join", "--home", "STUDY"), 2, "is a study's folder; its hosts are under"),
        (("demo", "--participants", "3", "--processes", "5"), 2, "--processes 5 can't share --participants 3"),
        (("report", "STUDY"), 2, "nothing is recorded yet"),
    ],
)
def test_one_clear_error(
    run: Run,
    small_study: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    code: int,
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    places = {"HOME": small_study / "hosts" / "host-01", "STUDY": small_study, "AUTHORITY": small_study / "authority"}
    given = [str(places.get(part, part)) for part in arguments]
    err = one_clear_error(run, told, *given, code=code)
    assert err.splitlines()[0].endswith((".", "?", "`"))
    if arguments[0] in ("play", "invite"):
        return
    ended, out, err = run(*given, "--json")
    body = json.loads(out)
    assert (ended, body["exit_code"]) == (code, code)
    assert told in body["error"] + str(body["suggestion"])


@pytest.mark.parametrize(
    ("arguments", "spoken"),
    [
        (("play",), "sordino play: "),
        (("plan", "--bits", 0), "sordino plan: "),
        (("experiment", "dme", "--trials", -1), "sordino experiment dme: "),
        (("budget", "show", "/nowhere"), "sordino budget show: "),
        (("budget", "wipe", "/nowhere"), "sordino budget wipe: "),
    ],
)
def test_an_error_names_the_whole_command(run: Run, arguments: tuple[object, ...], spoken: str) -> None:
    assert run(*arguments)[2].startswith(spoken)


def test_small_studies_stay_possible_and_delta_is_noted(run: Run) -> None:
    said = words(run, "plan", "--clients", 5, "--delta", 0.25)
    assert "left independently with probability 0.3, 47 % of the attempts" in said
    assert "Note: delta 0.25 is above 1/participants = 0.2" in said


def test_a_fault_of_ours_is_one_line() -> None:
    failure = explain(RuntimeError("boom"))
    assert failure.code is ExitCode.INTERNAL
    says(failure.message, "boom", "SORDINO_TRACEBACK")


def test_a_signal_while_a_class_is_made_ends_with_the_code_of_a_signal(tmp_path: Path) -> None:
    """As `python -m`, which would otherwise end by SIGINT itself: to a supervisor, a death."""
    (tmp_path / "interrupted.py").write_text(
        "import sordino.cli\n"
        "def invoked(arguments):\n"
        "    exec('raise KeyboardInterrupt')\n"  # as in the middle of `@dataclass`
        "sordino.cli._invoke = invoked\n"
        "sordino.cli.main()\n"
    )
    ended = subprocess.run([sys.executable, "-m", "interrupted"], cwd=tmp_path, timeout=60, check=False)
    assert ended.returncode == ExitCode.INTERRUPTED


def test_a_missing_extra_is_named() -> None:
    failure = explain(ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib.figure"))
    assert failure.code is ExitCode.INPUT
    assert f"In the checkout of Sordino, run {sys.executable} -m pip install '.[server]'" in failure.message


def modules_after(code: str) -> set[str]:
    """First names of all modules that are loaded after running ``code`` in a process of its own."""
    code += "; import sys, json; print(json.dumps(sorted({m.split('.')[0] for m in sys.modules})))"
    return set(json.loads(subprocess.check_output([sys.executable, "-c", code], cwd=ROOT).splitlines()[-1]))


def test_help_is_light() -> None:
    loaded = modules_after("import sordino.cli")
    assert not loaded & {"numpy", "grpc", "torch", "matplotlib", "scipy", "cryptography", "server", "pydantic"}


@pytest.mark.parametrize("verb", ["init", "plan", "simulate", "config"])
def test_options_of_a_study_are_light(verb: str) -> None:
    """They come from the model, which loads nothing that only a study's making or serving needs."""
    loaded = modules_after(f"import sordino.cli; sordino.cli.verb('{verb}').params")
    assert not loaded & {"numpy", "grpc", "google", "torch", "cryptography", "pydantic_settings"}


def test_a_file_that_hides_a_room_is_named(tmp_path: Path) -> None:
    (tmp_path / "client.py").write_text("")
    script = tmp_path / "mine.py"
    script.write_text(f"import sys; sys.path.append({str(ROOT)!r}); from sordino import Plan")
    out = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert out.returncode == 1
    assert f"{tmp_path / 'client.py'} hides sordino's own package 'client'" in out.stderr


def test_public_names_resolve_to_what_static_tools_see() -> None:
    tree = ast.parse(Path(sordino.__file__).read_text())
    static = [part for part in ast.walk(tree) if isinstance(part, ast.ImportFrom) and part.col_offset]
    assert {one.asname: part.module for part in static for one in part.names} == sordino._PUBLIC
    without_torch = set() if importlib.util.find_spec("torch") else {"TorchTask"}
    for name in set(sordino.__all__) - without_torch:
        assert getattr(sordino, name) is not None
    assert set(sordino.__all__) <= set(dir(sordino))
    with pytest.raises(AttributeError):
        sordino.nothing  # noqa: B018


def test_serve_wants_the_tls_authority_of_its_card(run: Run, small_study: Path) -> None:
    """With another one every participant would be refused, and the study would wait for them in vain."""
    configuration = load_study(small_study)
    another = CertificateAuthority.make("another", datetime.now(UTC))
    check_client_ca(configuration)
    ca = configuration.coordinator.client_ca
    right = ca.read_bytes()
    ca.write_bytes(another.pem + right)
    check_client_ca(configuration)  # several authorities, its own among them
    ca.write_bytes(another.pem)
    card = configuration.coordinator.card
    told = f"{ca} isn't the TLS authority that {card} names: copy tls/ca.pem of the authority's folder there"
    one_clear_error(run, told, "serve", small_study, "--quiet")
    card.unlink()
    check_client_ca(configuration)  # nothing to compare with


def test_serve_knows_whether_participants_find_its_gateways(
    run: Run, small_study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configuration = load_study(small_study)

    def gateways(count: int, **coordinator: Any) -> list[str]:
        engine = configuration.engine.changed({"gateways": count})
        table = configuration.coordinator.model_copy(update=coordinator)
        with structlog.testing.capture_logs() as lines:
            check_gateways(configuration.model_copy(update={"engine": engine, "coordinator": table}))
        return [one["event"] for one in lines]

    fixed = {"listen": "127.0.0.1:8443", "enrolment_listen": "127.0.0.1:8445"}
    assert gateways(0, **fixed) == gateways(1, **fixed) == []
    assert gateways(1) == []
    [told] = gateways(2, **fixed)
    assert "of 2 gateways the others hold no sessions" in told
    for name, value in fixed.items():
        monkeypatch.setenv(f"SORDINO_COORDINATOR__{name.upper()}", value)
    told = "is a port of the 3 gateways, which begin at 127.0.0.1:8443: serve with fewer"
    one_clear_error(run, told, "serve", small_study, "--quiet", "--gateways", "3")


def test_warnings_between_plain_lines_are_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    def said(plain: bool) -> list[str]:
        configure_logs(lowest=logging.WARNING, plain=plain)
        log = structlog.get_logger()
        log.info("small")
        log.warning("the roster file can't be used", reason="line\n2\x1b[2J", version=3)
        return capsys.readouterr().err.splitlines()

    try:
        [line] = said(plain=True)
        assert re.fullmatch(
            r"\d\d:\d\d:\d\d  warning: the roster file can't be used \(reason: line 2\?\[2J, version: 3\)", line
        )
        [line] = said(plain=False)
        assert json.loads(line)["version"] == 3
    finally:
        structlog.reset_defaults()


def test_packages_of_the_server_are_told_with_their_extra() -> None:
    """Else a verb that lacks one of them would be a fault in sordino."""
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["server"]
    brought = packages_distributions()
    told = {name.lower() for module, names in brought.items() if EXTRAS.get(module) == "server" for name in names}
    assert {re.split("[<>=]", one)[0].lower() for one in needed} <= {name.replace("_", "-") for name in told}
