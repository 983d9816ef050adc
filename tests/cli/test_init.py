"""sordino init: what it makes can be served and joined; what can't be made leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import ssl
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key

import client.host_file
import server.study_file
from authority.folder import open_folder
from authority.new_study import make_local_study, new_study
from runtime.failure import Failure
from runtime.key_files import read_key_file
from secagg.roster import Roster, verify_roster
from server.session_port import read_certificate
from tests.support.card_of_a_study import authority_of
from tests.support.commands import Run, one_clear_error, output, refusal, says, words
from tests.support.issued_certificates import named_in
from wire.authority_statements import verify_card


@pytest.fixture(autouse=True)
def _usual_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def roster_of(folder: Path) -> Roster:
    """The roster under the authority that study.toml names."""
    public = server.study_file.load(folder).read_authority_public_key()
    return verify_roster((folder / "roster.json").read_bytes(), public)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_files_and_their_modes(small_study: Path) -> None:
    secret = [
        "authority/authority.key",
        "coordinator/tls/server.key",
        *(str(p.relative_to(small_study)) for p in small_study.glob("hosts/*/keys/*.key")),
    ]
    assert len(secret) == 12
    assert {mode(small_study / name) for name in secret} == {0o600}
    for name in ("study.toml", "roster.json", "authority/authority.pub", "tls/ca.pem", "hosts/host-01/ca.pem"):
        assert (small_study / name).is_file()
    assert not list(small_study.parent.glob(".study-*"))
    assert (small_study / ".gitignore").read_text() == "*\n"


def test_a_port_that_other_machines_cannot_reach_is_said(run: Run, tmp_path: Path) -> None:
    named = ("--separate-machines", "--host", "a.example", "--participants", 16, "--hosts", 8, "--max-dropout", 0.2)
    for folder, listen in (("here", ()), ("everywhere", ("--listen", "0.0.0.0:8443"))):
        said = output(run, "init", tmp_path / folder, *named, *listen)
        assert ("add --listen 0.0.0.0:8443" in said) == (folder == "here")


def test_gateways_are_on_the_card_and_have_time_to_take_over(tmp_path: Path) -> None:
    made = make_local_study(
        tmp_path / "study", new_study(participants=4, enrol=2, hosts=2, rounds=1, coordinator_engine="ray", gateways=2)
    )
    fingerprint = open_folder(made.directory / "authority").keys.fingerprint
    card = verify_card((made.directory / "coordinator/card.json").read_bytes(), fingerprint)
    assert card.address == "localhost:8443,localhost:8444"
    assert client.host_file.load(made.hosts[0]).settings().coordinator.address == card.address
    assert made.study.coordinator.enrolment_listen.endswith(":8445")
    # A broken connection is otherwise kept for as long as its own participant needs to come back.
    assert made.study.deadlines.resume_s == 10
    assert new_study(participants=4, hosts=2).study.deadlines.resume_s == 2


def test_a_loose_umask_leaves_no_folder_open(tmp_path: Path) -> None:
    """Many systems let a user's group write by default; a key in such a folder would be refused."""
    before = os.umask(0o002)
    try:
        folder = tmp_path / "study"
        make_local_study(folder, new_study(name="small", participants=10, hosts=2, rounds=2, epsilon=20.0))
    finally:
        os.umask(before)
    assert [path for path in (folder, *folder.rglob("*")) if path.is_dir() and mode(path) & 0o022] == []
    for key in folder.rglob("*.key"):
        read_key_file(key)


def test_roster_is_signed_and_names_hosts(small_study: Path) -> None:
    roster = roster_of(small_study)
    assert (roster.study, roster.version, len(roster)) == ("small", 1, 10)
    assert roster.largest_host() == 5
    public = server.study_file.load(small_study).read_authority_public_key()
    assert authority_of(small_study).public_key().public_bytes_raw() == public


def test_hosts_cover_all_parts_once(small_study: Path) -> None:
    homes = sorted((small_study / "hosts").iterdir())
    read = [client.host_file.load(home) for home in homes]
    assert sorted(entry.part for host in read for entry in host.participants) == list(range(10))
    assert {host.data.parts for host in read} == {10}
    assert {host.policy.max_epsilon for host in read} == {20.0}
    study = server.study_file.load(small_study)
    assert all(dict(host.task) == dict(study.task) for host in read)
    assert all(bytes.fromhex(host.study.authority_public_key) == study.read_authority_public_key() for host in read)


def test_a_hosts_folder_can_be_copied_away(small_study: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "laptop"
    shutil.copytree(small_study / "hosts" / "host-02", elsewhere)
    shutil.rmtree(small_study)
    assert len(client.host_file.load(elsewhere).participants) == 5


def test_certificate_names_and_key(tmp_path: Path) -> None:
    options = new_study(participants=10, hosts=2, epsilon=20.0, host=("clinic.example", "10.0.0.7"), rounds=2)
    study = make_local_study(tmp_path / "s", options).directory
    names = named_in((study / "coordinator/tls/server.pem").read_bytes(), (study / "tls/ca.pem").read_bytes())
    assert names == ["localhost", "127.0.0.1", "::1", "clinic.example", "10.0.0.7"]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(study / "coordinator/tls/server.pem", study / "coordinator/tls/server.key")
    assert client.host_file.load(study / "hosts/host-01").coordinator.address == "clinic.example:8443"
    keys = {path.read_bytes() for path in study.rglob("*.key")}
    assert len(keys) == 16  # ten identities, two of the authority, two of the coordinator, two clients


def test_verb_prints_the_plan_and_what_comes_next(run: Run, tmp_path: Path) -> None:
    out = output(run, "init", tmp_path / "trial", "--participants", 10, "--hosts", 2, "--epsilon", 20)
    says(out, "min_survivors", "h_min", "sordino serve", "sordino join --home", "honest-but-curious")
    assert max(len(line.replace(str(tmp_path), "")) for line in out.splitlines()) <= 100


def test_plan_and_init_share_the_options_of_clips(run: Run, tmp_path: Path) -> None:
    """The naive pair has its own defaults in each: init's plan is then another than the one that was looked at."""
    clips = ("--clip-update", "geometric", "--bits", 18, "--rounds", 3, "--json")
    made = json.loads(run("init", tmp_path / "one", *clips)[1])["plan"]
    dim = made["dim"]
    planned = json.loads(run("plan", "--clients", 100, "--dim", dim, *clips)[1])
    assert made["clipping"] == planned["clipping"]
    assert made["clipping"]["rate"] == made["clipping"]["bit_weight"] == 0.3
    assert made["quantile_stderr"] == planned["quantile_stderr"]
    sketch = ("--sketch-rows", 15, "--rounds", 3, "--json")
    planned = json.loads(run("plan", "--clients", 100, "--dim", dim, *sketch)[1])
    made = json.loads(run("init", tmp_path / "two", *sketch)[1])["plan"]
    assert made["sketch"] == planned["sketch"] == [15, dim // 150]
    pages = [words(run, verb, "--help") for verb in ("plan", "init")]
    for option in ("update", "quantile", "rate", "bit-weight", "scaling"):
        assert all(f"--clip-{option} " in page for page in pages)


def test_a_trusted_coordinator_is_named(run: Run, tmp_path: Path) -> None:
    out = output(run, "init", tmp_path / "trial", "--mechanism", "gaussian")
    assert "Note: the coordinator is trusted: it sees every sum without noise." in out
    assert "the coordinator sees sums without noise" in (tmp_path / "trial/hosts/host-01/host.toml").read_text()


def test_a_curious_coordinator_is_named(run: Run, tmp_path: Path) -> None:
    said = words(run, "init", tmp_path / "trial", "--participants", 10, "--epsilon", 20, "--adversary", "curious")
    assert "Note: the coordinator is trusted: it follows the protocol and reads all it receives." in said
    assert "accepts that (the hosts' files made here already do: curious_coordinator = true)" in said
    configuration = server.study_file.load(tmp_path / "trial")
    assert (configuration.privacy.adversary, configuration.privacy.graph) == ("curious", "auto")
    host = tmp_path / "trial/hosts/host-01"
    assert "participants don't sign who is in a sum" in (host / "host.toml").read_text()
    told = (tmp_path / "trial/study.toml").read_text()
    says(told, "none in a curious study", "to change it, make a new folder with `sordino init`.")
    assert client.host_file.load(host).settings().policy.curious_coordinator
    run("init", tmp_path / "usual", "--participants", 10, "--epsilon", 20)
    assert "curious" not in (tmp_path / "usual/hosts/host-01/host.toml").read_text()
    for option, name in (("--adversary", "evil"), ("--graph", "star")):
        assert f"{option} {name} is unknown" in refusal(run, "init", tmp_path / "other", option, name)
        assert not (tmp_path / "other").exists()
    err = refusal(run, "init", tmp_path / "other", "--adversary", "semi-malicious")
    says(err, "for comparison only", "malicious or curious")


def test_places_for_participants_that_enrol(run: Run, tmp_path: Path) -> None:
    """The plan is for all of them, so the first to join doesn't make another study of it."""
    folder = tmp_path / "trial"
    text = words(run, "init", folder, "--participants", 4, "--hosts", 2, "--enrol", 6, "--epsilon", 20)
    assert "4 participants on 2 hosts, and 6 places for those who enrol" in text
    says(text, "sordino authority invite", "away from the coordinator's machine")
    study = server.study_file.load(folder)
    assert (study.study.participants, study.coordinator.enrolment_listen) == (10, "127.0.0.1:8444")
    host = client.host_file.load(folder / "hosts/host-01")
    assert (host.coordinator.enrolment, host.data.parts) == ("localhost:8444", 10)
    authority = open_folder(folder / "authority")
    assert (authority.settings.coordinator, authority.settings.places) == ("localhost:8444", 10)
    card = verify_card(study.coordinator.card.read_bytes(), authority.keys.fingerprint)
    assert (card.study, card.address) == ("trial", "localhost:8443")
    assert card.tls_ca == study.coordinator.client_ca.read_bytes()
    transcript = load_pem_private_key(study.coordinator.transcript_key.read_bytes(), None)
    assert transcript.public_key().public_bytes_raw() == card.coordinator_public  # type: ignore[union-attr]
    # All that the coordinator reads lies outside the authority's folder.
    shutil.rmtree(folder / "authority")
    assert server.study_file.load(folder).read_authority_public_key() == authority.keys.public


def test_a_study_without_participants_yet(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "trial"
    out = output(run, "init", folder, "--participants", 0, "--enrol", 10, "--epsilon", 20, "--json")
    assert json.loads(out)["hosts"] == []
    roster = roster_of(folder)
    assert (roster.version, len(roster)) == (1, 0)


def test_a_lottery_has_its_seeds_beside_the_roster(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "trial"
    lottery = ("--sampling", "lottery", "--cohort", 20, "--population", 30)
    options = ("--participants", 40, *lottery, "--epsilon", 50, "--rounds", 3, "--json")
    plan = json.loads(output(run, "init", folder, *options))["plan"]
    assert (plan["clients"], plan["population"], plan["sampling"]) == (20, 30, "lottery")
    study = server.study_file.load(folder)
    privacy = study.privacy
    assert (study.study.participants, privacy.population, privacy.largest_roster) == (20, 30, 40)
    roster = roster_of(folder)
    draws = json.loads((folder / "lottery.json").read_bytes())
    assert mode(folder / "lottery.json") == 0o600  # who is drawn for the rounds to come
    assert roster.lottery is not None
    assert (roster.lottery.draws, len(draws["seeds"]), draws["version"]) == (3, 3, 1)
    said = words(run, "init", tmp_path / "another", *options[:-1])
    says(said, "Each round: 20 of at least 30 on the roster", "the coordinator knows all draws")


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("--participants", 6, "--hosts", 2, "--min-survivors", 4), 3, "Use --min-survivors 5 with --max-dropout 0.26"),
        (("--min-survivors", 101), 2, "--min-survivors 101 exceeds --participants 100"),
        (("--participants", 0, "--enrol", 1), 2, "Use at least 3"),
        (("--participants", 0, "--enrol", 2), 3, "Use --enrol 5."),
        (("--participants", 0, "--enrol", 20, "--hosts", 4), 2, "each host needs at least one. Use --hosts 0."),
        (("--enrol", 8, "--min-survivors", 200), 2, "exceeds --participants and --enrol, together 108"),
        (("--enrol", 8, "--listen", "localhost:65535"), 2, "enrolment takes the port after it"),
        (("--cohort", 7), 2, "add --sampling lottery"),
        (("--sampling", "lottery"), 2, "say how many with --cohort"),
        (
            ("--sampling", "lottery", "--cohort", 200),
            2,
            "--cohort 200 exceeds --population 100 (by default --participants)",
        ),
        (("--sampling", "lottery", "--cohort", 3), 3, "Use --cohort"),
        (
            ("--participants", 0, "--enrol", 40, "--sampling", "lottery", "--cohort", 20),
            2,
            "With --participants 0 say --population: the smallest roster with which rounds run, from 20 to 40.",
        ),
        (("--mechanism", "binomial"), 2, "binomial is planned only (sordino plan), neither served nor simulated"),
        (("--clip-rate", 0.2), 2, "add --clip-update"),
        (("--sketch-rows", 15, "--clip-by-layer"), 2, "a sketch mixes the layers"),
        (("--bits", 4), 3, "Use --bits 9"),
        (("--separate-machines",), 3, "the largest host holds 10 participants"),
        (("--hosts", 200), 2, "--hosts 200 can't share --participants 100: each host needs at least one. Use"),
        (("--task", "gpt"), 2, "--task 'gpt' is unknown"),
        (("--task", "external", "--dataset", "own"), 2, "number of values of the app's model: --task-option dim=N"),
        (("--dataset", "MNIST?"), 2, "--dataset 'MNIST?' is unknown"),
        (("--dataset", "own", "--partition", "iid"), 2, "--partition iid needs a data set that is cut"),
        (("--participants", 1300), 2, "6000 examples are too few for 1300 participants"),
        (("--partition", "odd"), 2, "--partition odd is unknown"),
        (("--client-rate", -1), 2, "--task softmax-regression: --client-rate is -1.0; it must be"),
        (("--task-option", "foo=3"), 2, "--task-option foo is unknown. Known options:"),
        (("--enrol", -1), 2, "--enrol -1 is out of range. Use at least 0."),
        (("--task", "softmx"), 2, "Did you mean softmax-regression?"),
        (("--listen", "nowhere"), 2, "--listen nowhere must read HOST:PORT, such as localhost:8443"),
        (("--host", "a b"), 2, "--host: 'a b' is neither a host name nor an IP address"),
        (("--name", "a b"), 2, "--name"),
        (("--epsilon", "lots"), 2, "--epsilon"),
        (("--participants", 1), 2, "--participants"),
        (("--min-survivors", 85), 3, "Use --min-survivors 70, or --max-dropout 0.15"),
    ],
)
def test_what_cannot_be_made(run: Run, tmp_path: Path, arguments: tuple[object, ...], code: int, told: str) -> None:
    folder = tmp_path / "study"
    err = one_clear_error(run, told, "init", folder, *arguments, code=code)
    assert str(tmp_path) not in err.replace(str(folder), "")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_files_is_left_alone_and_an_empty_one_used(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    assert "is not empty" in refusal(run, "init", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    with pytest.raises(Failure, match="is not a folder"):
        make_local_study(tmp_path / "mine.txt", new_study())
    (tmp_path / "empty").mkdir()
    made = make_local_study(tmp_path / "empty", new_study(participants=10, hosts=2, epsilon=20.0, rounds=2))
    assert (made.directory / "study.toml").is_file()


# ---------------------------------------------------------------- under an authority that is elsewhere


def test_a_study_under_an_authority_that_is_elsewhere(tmp_path: Path, run: Run) -> None:
    made = ("--study", "clinic", "--coordinator", "localhost:9444", "--places", 12)
    assert run("authority", "init", tmp_path / "authority", *made)[0] == 0
    carried = tmp_path / "authority" / "coordinator"
    study = tmp_path / "study"
    body = json.loads(output(run, "init", study, "--authority", carried, "--enrol", 12, "--epsilon", 30, "--json"))
    assert (body["study"], body["authority"], body["hosts"]) == ("clinic", None, [])
    assert not (study / "authority").exists()
    configuration = server.study_file.load(study)
    assert configuration.coordinator.listen == "0.0.0.0:9443"
    assert configuration.coordinator.enrolment_listen == "0.0.0.0:9444"
    assert not configuration.coordinator.one_machine
    assert configuration.read_authority_public_key().hex() == (carried / "authority.pub").read_text().strip()
    assert configuration.roster_file().read().roster.version == 1
    keys = open_folder(tmp_path / "authority").keys
    assert verify_card(configuration.coordinator.card.read_bytes(), keys.fingerprint).address == "localhost:9443"
    assert configuration.coordinator.client_ca.read_bytes() == keys.tls.pem
    read_certificate(configuration.coordinator).credentials()
    assert {mode(study / "coordinator" / name) for name in ("transcript.key", "tls/server.key")} == {0o600}
    for arguments, told in (
        (("--authority", carried, "--participants", 5), "only the authority can add participants to the roster"),
        (("--authority", carried, "--enrol", 12, "--name", "other"), "the authority is that of clinic"),
        (("--authority", carried), "too few"),
        (("--authority", carried, "--enrol", 12, "--sampling", "lottery", "--cohort", 8, "--population", 9), "draws"),
        (("--authority", tmp_path / "authority", "--enrol", 12), "there is no card.json"),
    ):
        assert told in refusal(run, "init", tmp_path / "another", "--epsilon", 30, *arguments)
        assert not (tmp_path / "another").exists()
    changed = (study / "roster.json").read_bytes().replace(b'"version": 1', b'"version": 2')
    (carried / "roster.json").write_bytes(changed)
    given = ("--authority", carried, "--enrol", 12, "--epsilon", 30)
    assert "not signed by this study's authority" in refusal(run, "init", tmp_path / "another", *given)


def test_hosts_are_as_many_as_participants_where_those_are_few(run: Run, tmp_path: Path) -> None:
    out = output(run, "init", tmp_path / "few", "--participants", "6", "--max-dropout", "0.1", "--json")
    assert len(json.loads(out)["hosts"]) == 6


def test_a_test_file_that_is_missing_is_an_options_fault(run: Run, tmp_path: Path) -> None:
    err = refusal(run, "init", tmp_path / "study", "--test", tmp_path / "nofile.csv")
    assert err == f"sordino init: --test {tmp_path / 'nofile.csv'}: there is no such file.\n"
    assert not (tmp_path / "study").exists()
