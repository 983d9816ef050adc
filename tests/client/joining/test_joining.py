"""Joining by code at a real enrolment port: what is shown, and what is refused before anything is sent."""

from __future__ import annotations

import asyncio
import io
import socket
import sys
import threading
import time
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import client.enrolment
import client.joining.checks
import client.joining.folder
import client.joining.joining
from client.credentials import load_certificate, load_identity
from client.enrolment import EnrolmentUnavailable, Look
from client.host_file import load
from client.joining.checks import accepted_plan, check_accepts
from client.joining.description import _form_asked, describe_study
from client.joining.folder import DataChoice
from client.joining.joining import join_by_code
from client.joining.options import JoinOptions
from client.journal import ClientJournal
from client.policy import PolicyRefusal, check_study
from client.policy_file import PolicyTable
from learning.blocks import DatasetError
from learning.data_checks import check_task_takes
from runtime.failure import ExitCode, Failure
from runtime.processes import free_port
from sordino import Participant
from sordino.api.participant import ParticipantOptions
from tests.client.joining.conftest import LOOSE, Joining
from tests.support.enrolment_port import STUDY, Authority, document, port_in_thread
from wire.authority_statements import verify_card
from wire.join_code import JoinCode
from wire.records.ledger import head_file
from wire.records.ledger_rows import make_entry
from wire.roster_history import NewestRoster
from wire.study import StudyDocument, coding, plan_study

# ---------------------------------------------------------------- it works


def test_with_an_own_file(joining: Joining) -> None:
    file = Path("mine.csv")  # relative to the working directory, absolute in host.toml
    file.write_text("a,b\n1,2\n")
    assert "--part states how a data set is cut" in joining.refused(data=file, part=3)
    with pytest.raises(DatasetError, match=r"other\.csv: put it there"):
        joining.join(data=Path("other.csv"))
    assert joining.join(data=file) == joining.home
    read = load(joining.home)
    assert (read.data.dataset, read.participants[0].part) == ("own", None)
    assert read.participants[0].data == file.absolute()
    assert f"allof{file.absolute()},onthismachine" in "".join("".join(joining.said).split())


def test_the_file_is_tried_only_after_agreement(unsigned: Joining, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial runs a stranger's study: nothing of it runs before the participant agreed."""
    tried: list[dict[str, Any]] = []

    def check(*given: Any, **more: Any) -> None:
        tried.append(more)
        raise Failure(ExitCode.INPUT, "the task can't use the examples")

    monkeypatch.setattr("client.joining.joining.check_task_takes", check)
    Path("mine.csv").write_text("a,b\n1,2\n")
    assert "add --yes if you agree" in unsigned.refused(data=Path("mine.csv"), agreed=False)
    assert tried == []
    assert "can't use" in unsigned.refused(data=Path("mine.csv"))
    assert tried == [{"planned": document().plan.dim}]


def test_the_same_from_python(joining: Joining) -> None:
    given: dict[str, Any] = {"code": joining.authority.code().to_text(), "address": joining.where.address, "part": 2}
    with pytest.raises(Failure, match=r"no terminal for the question .* in Python yes=True"):
        asyncio.run(Participant(joining.home, say=joining.said.append, **given).settings())
    settings = asyncio.run(Participant(str(joining.home), say=joining.said.append, yes=True, **given).settings())
    assert (settings.study.name, settings.participants[0].part) == (STUDY, 1)
    assert settings.coordinator.give_up_s == 0  # until it is stopped
    assert asyncio.run(Participant(joining.home).settings()) == settings
    elsewhere = asyncio.run(Participant(joining.home, address="study.example:1").settings())
    assert elsewhere.coordinator.address == "study.example:1"


def test_a_cancelled_join_continues(unsigned: Joining) -> None:
    """Cancelled while it waits for the authority; its request and its identity are kept."""
    given: dict[str, Any] = {"code": unsigned.authority.code().to_text(), "address": unsigned.where.address}

    async def join_for_a_while() -> None:
        task = asyncio.create_task(Participant(unsigned.home, say=unsigned.said.append, yes=True, **given).settings())
        while not unsigned.requests():
            await asyncio.sleep(0.01)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(join_for_a_while())
    unsigned.publish_answer()
    settings = asyncio.run(Participant(unsigned.home, say=unsigned.said.append).settings())
    assert settings.study.name == STUDY
    assert unsigned.said[-1].startswith(f"Joined {STUDY}")


def softmax(**more: Any) -> StudyDocument:
    """A study of two classes of three numbers."""
    plan = plan_study(
        clients=7,
        dim=8,
        bits=16,
        epsilon=50.0,
        delta=1e-5,
        rounds=2,
        max_dropout=0.3,
        adversarial=0.0,
        min_survivors=5,
        **coding([8], clip=1.0),
    )
    options = {"features": 3, "classes": 2}
    return StudyDocument(study=STUDY, task="softmax-regression", task_options=options, plan=plan, **more)


def test_a_study_over_own_data_is_joined_with_own_data(joining: Joining) -> None:
    """Once, its code joined with images of clothing: each round failed without a message."""
    joining.serve(softmax(own_data=True))
    file = Path("visits.csv")
    file.write_text("age,weight,puls,label\n" + "0.1,-1.3,0.4,1\n" * 39 + "0.2,1.1,0.5,0\n")
    assert "add --data FILE, your file or folder" in joining.refused()
    assert "add --data FILE" in joining.refused(dataset="fashion-mnist-subset")
    assert joining.join(data=file) == joining.home
    said = " ".join("\n".join(joining.said).split())
    assert "each participant brings its own data" in said
    assert "it takes examples of 3 numbers, and a label from 0 to 1" in said
    assert "40 rows: age, weight, puls; label 0/1" in said
    predicted = replace(softmax(own_data=True), task="regression", task_options={"features": 7, "high": 2.5})
    assert _form_asked(predicted)[0] == "it takes examples of 7 numbers, and a number to predict from 0 to 2.5"


READING = """import numpy as np

from sordino import Dataset, ModelTask, TaskOptions


class Rows(ModelTask):
    Options = TaskOptions

    def __init__(self, options):
        self.options = options

    def initial_parameters(self):
        return {"weights": np.zeros(8, np.float32)}

    def local_update(self, parameters, data, rng, l2_clip):
        return {"weights": np.full(8, data.labels.sum(), np.float32)}

    def evaluate(self, parameters, data):
        return {"mean_absolute_error": 0.0}

    @staticmethod
    def read(path):
        READ
"""


def test_a_read_that_fails_loses_nothing(joining: Joining, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same code joins once the class is right; a stranger's study that names a class reads nothing before."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    joining.serve(replace(softmax(own_data=True), task="reading:Rows", task_options={}))
    Path("ward").mkdir()
    Path("ward", "one.txt").write_text("secret")
    chosen = {"data": Path("ward"), "code": joining.authority.code().to_text()}
    works = "return np.ones((3, 2)), np.array([0.5, 1, 1.5])"
    for body, told in (
        ("return float((path / 'one.txt').read_text())", "line 23, in read: ValueError at data file ward; correct it"),
        ("return {'features': 1}", "read returns dict; it must return a sordino.Dataset, or features and labels"),
        ("return np.ones((3, 2)), np.ones(2)", "data file ward: (3, 2) features do not match 2 labels"),
        (works, ""),
    ):
        Path("reading.py").write_text(READING.replace("READ", body))
        sys.modules.pop("reading", None)
        if told:
            assert told in joining.refused(**chosen, task="reading:Rows")
    assert "joining would run that module" in joining.refused(**chosen)
    assert joining.join(**chosen, task="reading:Rows") == joining.home
    said = " ".join("\n".join(joining.said).split())
    assert "3 rows: 2 numbers each; label 0.5/1.0/1.5" in said
    assert load(joining.home).participants[0].data == Path("ward").absolute()


def test_a_study_of_a_flower_app_is_joined_with_a_name_for_what_it_loads(joining: Joining) -> None:
    """No part of the app is imported before it takes part: there is none here."""
    app = "flower:my_app.client_app:app"
    joining.serve(replace(softmax(own_data=True), task=app, task_options={"learning-rate": 0.1}))
    assert f"if you trust it, add --task {app}" in joining.refused(data_identity="mine")
    told = "a Flower app, which loads your data by itself: add --data-identity NAME"
    assert told in joining.refused(task=app)
    assert told in joining.refused(task=app, data=Path("mine.csv"), data_identity="mine")
    assert joining.join(task=app, data_identity="patients of A", parts=7, part=3) == joining.home
    held = tomllib.loads((joining.home / "host.toml").read_text())
    assert held["data"] == {"dataset": "app", "parts": 7}
    assert {**held["participants"][0], "key": ""} == {"key": "", "part": 2, "data_identity": "patients of A"}
    said = " ".join("\n".join(joining.said).split())
    assert "what the app loads, known as 'patients of A' to the ledger" in said
    assert "with the options learning-rate 0.1" in said  # what the owner's code is told to do by somebody else


def test_an_app_is_given_all_its_data_unless_their_owner_cuts_them(joining: Joining) -> None:
    """Two studies of other sizes would cut it otherwise, and charge one person's name for another's examples."""
    app = "flower:my_app.client_app:app"
    joining.serve(replace(softmax(own_data=True), task=app, task_options={}))
    assert joining.join(task=app, data_identity="patients of A") == joining.home
    held = tomllib.loads((joining.home / "host.toml").read_text())
    assert (held["data"]["parts"], held["participants"][0]["part"]) == (1, 0)


def test_python_can_join_with_whatever_the_command_can() -> None:
    inside = {"home", "policy_file", "agreed", "kept"}
    assert JoinOptions.model_fields.keys() - inside <= ParticipantOptions.__annotations__.keys()
    assert Participant(code="x", seed=0, yes=False)._options == {"code": "x", "seed": 0}  # nought is a choice


def test_foreign_labels_are_reported_and_keep_no_participant_away(joining: Joining) -> None:
    """Otherwise each round's training would fail silently and send zeros."""
    joining.serve(softmax(own_data=True))
    Path("mine.csv").write_text("age,weight,puls,label\n0.1,0.2,0.3,1\n0.1,0.2,0.3,2\n")
    assert joining.join(data=Path("mine.csv")) == joining.home
    [told] = [line for line in joining.said if line.startswith("Warning")]
    assert "mine.csv: 1 label of 2 is outside the labels 0 to 1" in told


def test_prepared_data_of_another_form_is_refused_before_anything_is_sent(unsigned: Joining) -> None:
    unsigned.serve(softmax())
    told = unsigned.refused()  # the usual data: images of clothing
    assert "can't use the examples of fashion-mnist-subset: examples have shape (28, 28)" in told
    assert "examples have shape (28, 28)" in unsigned.refused(agreed=False)  # and before the question


@pytest.mark.parametrize(
    ("content", "told"),
    [("age,weight,label\n1,2,0\n", "examples have shape (2,)"), ("age,weight,pulse\n1,2,3\n", "label")],
)
def test_a_file_without_a_column_is_refused_before_the_question(unsigned: Joining, content: str, told: str) -> None:
    unsigned.serve(softmax(own_data=True))
    Path("mine.csv").write_text(content)
    refused = unsigned.refused(data=Path("mine.csv"), agreed=False)
    assert "can't use the examples of mine.csv" in refused
    assert told in refused
    assert "Its columns are 0 age, 1 weight" in refused
    assert unsigned.said == []


@pytest.mark.parametrize(
    ("task", "options", "dim", "rows"),
    [
        ("softmax-regression", {"features": 1, "classes": 2}, 4, ("0.3,0", "0.3,1", "0.3,2", "x,0", "1e39,0", "0.3,")),
        ("regression", {"features": 1, "high": 9.0}, 2, ("0.3,0.5", "0.3,1e9", "0.3,1e39", "x,0", "0.3,", "0.3,x")),
        ("mean", {"column": "age"}, 2, ("1,0", ">9,0", "inf,x", ",0", "1,2,3")),
        ("histogram", {"bins": 2}, 2, ("1,0", "1,7", "1,x", "1,0.5")),
    ],
)
def test_the_content_of_the_first_row_never_decides(task: str, options: dict[str, Any], dim: int, rows: Any) -> None:
    """Otherwise a study with `classes=2` would get no request if the first label is 2, which its owner would notice."""
    file = Path("mine.csv")
    seen: Any = SimpleNamespace(
        document=SimpleNamespace(task=task, task_options=options, plan=SimpleNamespace(dim=dim))
    )
    chosen = JoinOptions(address="localhost:1", code="", home=None, data=file)
    for row in rows:
        file.write_text(f"age,label\n{row}\n")
        held = client.joining.checks.read_own_file(chosen, file, seen)
        client.joining.checks.unread(file, held, seen)
        check_task_takes(task, options, held, str(file), planned=dim)
        file.write_text(f"size,class\n{row}\n")  # the form does
        other = client.joining.checks.read_own_file(chosen, file, seen)
        assert client.joining.checks.unread(file, other, seen) == [] or task.endswith("regression")
        with pytest.raises(Failure, match="can't use the examples of mine"):
            check_task_takes(task, options, other, str(file), planned=dim)


def test_a_folder_that_is_complete(joining: Joining) -> None:
    assert joining.join(name="laptop", part=3, parts=9, ledger=joining.work / "spent.sqlite") == joining.home
    read = load(joining.home)
    assert (read.host.name, read.study.name, read.study.task) == ("laptop", STUDY, "synthetic")
    assert read.study.authority_public_key == joining.authority.public.hex()
    assert (read.participants[0].part, read.data.parts) == (2, 9)
    assert read.host.ledger == joining.work / "spent.sqlite"
    assert read.coordinator.enrolment == joining.where.address
    policy, plan = read.policy, joining.where.study.terms.plan
    assert (policy.max_epsilon, policy.mechanisms) == (plan.budget_coordinator, (plan.mechanism,))
    assert policy.study_digests == (joining.where.study.terms.digest().hex(),)
    who = load_identity(read.participants[0].key)
    certificate = load_certificate(read.coordinator.certificate, read.coordinator.key)
    assert certificate.names == (f"urn:sordino:identity:{who.public.hex()}",)
    assert joining.where.study.has_identity(who.public)
    for secret in (read.participants[0].key, read.coordinator.key):
        assert secret.stat().st_mode & 0o777 == 0o600
    said = " ".join("\n".join(joining.said).split())
    for expected in ("What never leaves this machine", "epsilon 50", "ddgauss", "laptop", "at most 2 of 7 collude"):
        assert expected in said
    assert "spent.sqlite: A NEW ONE, since there is no such file. Nothing that was spent before counts" in said
    assert joining.join(code=joining.authority.code().to_text()) == joining.home  # the same code: joined already
    assert "already" in joining.said[-1]


def test_the_folder_is_named_after_the_study(joining: Joining) -> None:
    code = joining.authority.code(valid_s=120.0).to_text()
    assert joining.join(home=None, code=code) == Path(STUDY)
    assert Path(STUDY, "tls", "client.pem").exists()
    assert joining.join(home=None, code=code) == Path(STUDY)


def test_the_folder_has_another_name_where_the_study_s_is_taken(joining: Joining) -> None:
    """As after `sordino init`, in the same place."""
    Path(STUDY).mkdir()
    Path(STUDY, "study.toml").write_text("")
    Path(f"{STUDY}-participant").write_text("a file")
    code = joining.authority.code(valid_s=120.0).to_text()
    assert joining.join(home=None, code=code) == Path(f"{STUDY}-participant-2")
    assert joining.join(home=None, code=code) == Path(f"{STUDY}-participant-2")  # it continues there
    assert sorted(one.name for one in Path(STUDY).iterdir()) == ["study.toml"]


@pytest.mark.parametrize(
    ("task", "options"), [("planted:Task", {}), ("votes", {"of": "planted:Task"})], ids=["a task", "a task that votes"]
)
def test_foreign_code_is_named_by_the_participant(task: str, options: dict[str, object], joining: Joining) -> None:
    """A module runs when it is imported: a study can't decide that."""
    ran, module = Path("ran"), Path("planted.py")
    module.write_text(f"open({str(ran)!r}, 'w').close()\n")
    own = replace(joining.where.study.terms, task=task, task_options=options)
    joining.serve(own)
    assert "joining would run that module" in joining.refused()
    if options:
        assert "joining would run that module" in joining.refused(task=task)
    assert f"the study's task is {task}" in joining.refused(task="planted:Other")
    assert joining.join(task="planted:Task") == joining.home
    assert load(joining.home).study.task == task
    assert not ran.exists()  # only when it takes part


def test_with_a_policy(joining: Joining) -> None:
    file = joining.work / "mine.toml"
    file.write_text(LOOSE)
    joining.join(policy_file=file)
    assert (joining.home / "policy.toml").read_text() == LOOSE
    read = load(joining.home)
    assert read.policy.max_epsilon == 60
    # The policy allows many plans; the participant agreed to the shown one.
    assert read.study.sha256 == joining.where.study.terms.digest().hex()
    agreed, sha256 = joining.where.study.terms, joining.where.study.terms.digest()
    check_study(read.settings(), agreed, sha256)
    with pytest.raises(PolicyRefusal, match="another-study"):
        check_study(read.settings(), agreed, bytes(32))


def test_another_name_than_requested(unsigned: Joining) -> None:
    """The authority assigns the name; host.toml follows."""

    def sign() -> None:
        while not unsigned.requests():
            time.sleep(0.02)
        unsigned.publish_answer(host="laptop-2")

    thread = threading.Thread(target=sign)
    thread.start()
    unsigned.join(name="laptop")
    thread.join()
    assert load(unsigned.home).host.name == "laptop-2"
    identity = load_identity(unsigned.home / "keys/participant.key").public.hex()
    shown = " ".join(identity[at : at + 4] for at in range(0, 16, 4))  # as on the authority's page
    waits = f"waiting for the study's authority to sign the next roster with identity {shown}."
    assert any(waits in line for line in unsigned.said)


# ---------------------------------------------------------------- refused, with nothing sent and nothing left


def test_codes_that_are_no_good(unsigned: Joining) -> None:
    good = unsigned.authority.code().to_text()
    swapped = good[:-1] + ("0" if good[-1] != "0" else "1")
    assert "mistyped" in unsigned.refused(code=swapped)
    assert "not complete" in unsigned.refused(code=good[:-6])
    told = unsigned.refused(code=unsigned.authority.code(valid_s=-120.0).to_text())
    assert "has expired" in told
    assert "this machine's clock says" in told
    assert good not in told
    assert "expired" in unsigned.refused(code=unsigned.authority.code(valid_s=-120.0).to_text(), home=None)


def test_another_authority_than_the_code_names(unsigned: Joining) -> None:
    told = unsigned.refused(code=Authority().code().to_text())
    assert "another authority than the join code names" in told


def test_a_total_without_room_for_the_plan_is_refused_before_anything_is_paid(joining: Joining) -> None:
    """The named ledger holds another study: with this plan it would exceed the policy's total."""
    file, ledger = Path("total.toml"), Path("spent.sqlite")
    file.write_text(LOOSE + "max_epsilon_total = 60\n")
    plan = joining.where.study.terms.plan
    journal = ClientJournal(Path("journal.sqlite"), ledger)
    earlier = make_entry(
        plan, study="old", study_sha256=bytes(32), round=1, attempt=1, identity=bytes(32), data="dd" * 32
    )
    journal.ledger.append(earlier).result()
    journal.close()
    told = joining.refused(policy_file=file, ledger=ledger)
    assert f"epsilon-in-total: the {plan.rounds} rounds of the study's plan would bring epsilon over all" in told
    assert "Nothing was sent, and no folder was made." in told
    head = head_file(ledger)
    head.write_bytes(bytes(len(head.read_bytes())))
    assert "there is no folder typo. Nothing was sent" in joining.refused(ledger=Path("typo/spent.sqlite"))
    assert "--ledger: " in joining.refused(policy_file=file, ledger=ledger)
    assert joining.join(policy_file=file) == joining.home  # with its own ledger


def test_a_copied_card_of_the_right_authority(unsigned: Joining, tmp_path: Path, authority: Authority) -> None:
    """A copy of the public card doesn't help: the server can't show a certificate of that authority."""
    (tmp_path / "mallory").mkdir()
    (tmp_path / "mallory" / "card.json").write_bytes(authority.card())
    mallory = replace(authority, tls=Authority().tls)
    with port_in_thread(tmp_path / "mallory", mallory, signs=False) as (where, _):
        told = unsigned.refused(address=where.address)
    assert "isn't signed by the study's authority" in told


def test_a_policy_that_refuses_the_study(unsigned: Joining) -> None:
    file = unsigned.work / "strict.toml"
    file.write_text(LOOSE.replace("60", "1"))
    told = unsigned.refused(policy_file=file)
    assert "your policy refuses this study (epsilon-in-study" in told
    assert "Nothing was sent" in told
    file.write_text(LOOSE + 'tasks = ["mlp"]\n')
    told = unsigned.refused(policy_file=file)
    assert told.startswith(f"{file}: your policy refuses this study (task: ")
    assert "'synthetic'" in told


def test_options_that_can_t_be(unsigned: Joining) -> None:
    assert "use 1 to 7" in unsigned.refused(part=8)
    assert "host.name" in unsigned.refused(name="my laptop")
    assert "--dataset MNIST? is unknown" in unsigned.refused(dataset="MNIST?")
    assert "name it with --data FILE" in unsigned.refused(dataset="own")


def test_a_set_that_is_not_there(unsigned: Joining, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SORDINO_DATA_FOLDER", str(unsigned.work))
    with pytest.raises(DatasetError, match="sordino data prepare shakespeare"):
        unsigned.join(dataset="shakespeare")
    assert not unsigned.home.exists()
    assert unsigned.requests() == []


def test_without_a_terminal_or_agreement(unsigned: Joining, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert "add --yes" in unsigned.refused(agreed=False)

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for answer in ("n\n", "\n", ""):
        monkeypatch.setattr(sys, "stdin", Terminal(answer))
        assert "not joined" in unsigned.refused(agreed=False)


def test_clocks(unsigned: Joining, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's clock is put forward and back; the other side's stays."""

    def at(offset_s: float) -> None:
        clock = SimpleNamespace(time=lambda: time.time() + offset_s, monotonic=time.monotonic)
        for module in (client.enrolment, client.joining.joining):
            monkeypatch.setattr(module, "time", clock)

    code = unsigned.authority.code(valid_s=300 * 86_400.0).to_text()
    at(-7200.0)
    told = unsigned.refused(code=code)
    assert "is valid from" in told
    assert "the clock may be wrong" in told
    at(+7200.0)
    told = unsigned.refused(code=code)
    assert "one of the two is wrong" in told
    assert told.count(" UTC") == 2
    at(4000 * 86_400.0)
    assert "expired" in unsigned.refused(code=code)


def test_a_closed_port_and_another_server(unsigned: Joining, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client.joining.joining, "LISTENS_S", 0.1)
    monkeypatch.setattr(client.joining.joining, "LISTENS_POLL_S", 0.05)
    with pytest.raises(EnrolmentUnavailable, match="nothing listens there; check the address"):
        unsigned.join(address=f"localhost:{free_port()}")
    with pytest.raises(EnrolmentUnavailable, match="can't be reached"):
        unsigned.join(address="nowhere.invalid:8444")  # not tried again: no start of a coordinator helps
    with socket.create_server(("127.0.0.1", 0)) as plain:

        def answer() -> None:
            connection, _ = plain.accept()
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        assert "doesn't speak TLS" in unsigned.refused(address=f"localhost:{plain.getsockname()[1]}")
        thread.join()


def test_a_coordinator_that_listens_a_little_later(unsigned: Joining, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two refused connections, then it listens: as when join starts before serve."""
    looked: list[str] = []
    look = client.enrolment.look

    async def later(address: str, fingerprint: bytes, terms: bytes) -> Any:
        looked.append(address)
        if len(looked) < 3:
            raise client.enrolment.NobodyListens(f"{address} can't be reached: nothing listens there")
        return await look(address, fingerprint, terms)

    monkeypatch.setattr(client.joining.joining, "look", later)
    monkeypatch.setattr(client.joining.joining, "LISTENS_POLL_S", 0.01)
    said: list[str] = []
    options = unsigned.options(agreed=False)
    with pytest.raises(Failure, match="no terminal for the question"):
        asyncio.run(join_by_code(options, said.append))
    assert len(looked) == 3
    assert [line for line in said if "nothing listens there" in line] == [
        f"{options.address} can't be reached: nothing listens there. Trying again for 60 s. Ctrl-C is safe: nothing "
        "was sent."
    ]


def test_a_folder_of_something_else(unsigned: Joining) -> None:
    unsigned.home.mkdir()
    (unsigned.home / "notes.txt").write_text("mine")
    assert "not empty" in unsigned.refused()
    (unsigned.home / "host.toml").write_text("")
    assert "was not made by a join code" in unsigned.refused()


# ---------------------------------------------------------------- the description


def described(authority: Authority, study: StudyDocument, width: int) -> tuple[Look, list[str]]:
    """A study as it is seen, and the lines that are shown of it."""
    card = verify_card(authority.card(), JoinCode.from_text(authority.code().to_text()).fingerprint)
    newest = NewestRoster(STUDY, 1, bytes(32), bytes(32), 0, 0)
    seen = Look(card, study, bytes(32), newest, None)
    data = DataChoice("fashion-mnist-subset", "iid", 1.0, 1, 9, 3)
    chosen = JoinOptions(name="laptop", part=4)
    return seen, describe_study(seen, chosen, home=Path("home"), host="laptop", data=data, held=None, width=width)


def test_the_description_of_a_lottery(authority: Authority) -> None:
    drawn = document(sampling="lottery", population=9, largest_roster=9)
    for study, expected in ((drawn, True), (document(), False)):
        text = " ".join(" ".join(described(authority, study, 80)[1]).split())
        assert ("in each round for which you are drawn (the coordinator knows in advance" in text) == expected
        assert ("7 of 9 or more, drawn by the authority's seeds" in text) == expected
        assert "drawn at random" not in text


@pytest.mark.parametrize("adversary", ["malicious", "curious"])
def test_the_description_of_the_coordinators_powers(authority: Authority, adversary: str) -> None:
    """The accepted plan becomes the policy, which must accept the shown study; the naive policy would refuse it."""
    study = document(clients=70, min_survivors=66, adversarial=0.03, max_dropout=0.01, adversary=adversary)
    seen, lines = described(authority, study, 78)
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    degree, threshold = {"malicious": (12, 8), "curious": (8, 3)}[adversary]
    assert f"go to {degree} of 69 others, your neighbours on a ring that nobody chooses; {threshold} of them" in text
    trusted = adversary == "curious"
    for told in (
        "TRUSTED to send all participants the same (curious)",
        "survivor sets are not signed",
        "If your update misses a sum you stay charged for it; there are no transcripts",
        "if at most 2 of 70 collude and the coordinator doesn't lie",
        "ddgauss; trusts the coordinator, to follow the protocol: it sends everybody the same",
    ):
        assert (told in text) == trusted, told
    for told in ("may lie (malicious)", "ddgauss; trusts nobody alone"):
        assert (told in text) != trusted, told
    policy = accepted_plan(seen)
    assert policy.get("curious_coordinator", False) == trusted
    check_accepts(Path("policy.toml"), PolicyTable(**policy), seen, nothing="")
    if trusted:
        del policy["curious_coordinator"]
        with pytest.raises(Failure, match="curious-coordinator"):
            check_accepts(Path("policy.toml"), PolicyTable(**policy), seen, nothing="")
