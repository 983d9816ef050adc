"""The metrics of a study: its own figures, fixed labels, no identity."""

from __future__ import annotations

import ast
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from secagg.messages import PHASES
from server.events import (
    CONNECTING,
    AttemptAborted,
    AttemptStarted,
    ParticipantDropped,
    ParticipantLost,
    Pausing,
    PhaseEnded,
    PhaseProgress,
    PhaseStarted,
    StudyFinished,
    WaitingForParticipants,
)
from server.metrics import DROPOUTS, StudyMetrics, class_of_dropout
from tests.server.scraping import Samples, http_port, quietly, scrape
from tests.support.study_in_process import PARTICIPANTS, Coordinator, coordinator, identities, playing, refuses
from wire import coordinator_pb2 as pb

ROOT = Path(__file__).resolve().parents[2]


def check_figures(where: Coordinator, shown: Samples) -> None:
    """Each figure against what the study itself said."""
    first, last = where.of("round_completed")
    assert shown.get_one("sordino_rounds_completed_total") == 2
    assert shown.get_one("sordino_round") == 2
    assert shown.get_one("sordino_round_duration_seconds_count") == 2
    assert shown.get_one("sordino_round_duration_seconds_sum") == pytest.approx(first["seconds"] + last["seconds"])
    for phase in PHASES:
        spent = first["phase_seconds"][phase] + last["phase_seconds"][phase]
        assert shown.get_one("sordino_phase_duration_seconds_sum", phase=phase) == pytest.approx(spent)
    for reader in ("coordinator", "released"):
        budget, spent = shown.get_one("sordino_epsilon_budget", reader=reader), last[f"epsilon_{reader}"]
        assert shown.get_one("sordino_epsilon_spent", reader=reader) == spent > first[f"epsilon_{reader}"]
        assert shown.get_one("sordino_epsilon_left", reader=reader) == budget - spent
    assert shown.get_one("sordino_ledger_rows") == last["ledger_rows"] == 2
    assert shown.get_one("sordino_model_accuracy_ratio") == last["accuracy"]
    assert shown.get_one("sordino_round_upload_bytes") == last["upload_bytes"]
    assert shown.get_one("sordino_last_round_completed_timestamp_seconds") == last["at"]
    assert shown.get_one("sordino_attempt_event_loop_lag_seconds", statistic="max") == last["loop_lag_ms"]["max"] / 1000
    dropped = {key: value for key, value in shown.items() if key[0] == "sordino_dropouts_total" and value}
    assert dropped == {("sordino_dropouts_total", (("phase", PHASES[2]), ("reason", "policy"))): 1}


async def test_a_studys_figures(study_folder: Path, tmp_path: Path) -> None:
    async with coordinator(study_folder, tmp_path / "state.sqlite") as where, http_port(where) as port:
        before, _ = await scrape(port)
        assert before.get_one("sordino_rounds_completed_total") == 0
        assert before.get_one("sordino_epsilon_spent", reader="coordinator") == 0
        assert before.get_one("sordino_participants", state="roster") == PARTICIPANTS
        stated = json.loads((study_folder / "newest.json").read_text())
        assert before.get_one("sordino_roster_statement_expiry_timestamp_seconds") == stated["until"] > time.time()
        assert before.get_one("sordino_model_accuracy_ratio") is None  # not 0: it wasn't evaluated
        async with playing(where.peers({2: {"masked_input": refuses(pb.REFUSAL_CODE_POLICY)}})):
            connected, _ = await scrape(port)
            assert connected.get_one("sordino_participants", state="connected") == PARTICIPANTS
            where.start()
            await where.finish()
        shown, text = await scrape(port)
        check_figures(where, shown)
        assert shown.get_one("sordino_sessions_opened_total") == PARTICIPANTS
        # Every vector whole, in frames of a few bytes more, but for the one that wasn't sent.
        sizes = where.of("round_completed")[0]["vector_bytes"], 32 * where.study._plan.noise_parts
        vectors = (2 * PARTICIPANTS - 1) * sum(sizes)
        assert vectors <= shown.get_one("sordino_received_vector_bytes_total") < 1.01 * vectors
        spoken = sum(event["upload_bytes"] for event in where.of("round_completed")) * (PARTICIPANTS - 1)
        assert shown.get_one("sordino_received_control_bytes_total") > (spoken - vectors) / 2
        check_nobody_is_named(text, study_folder)
    await again(study_folder, tmp_path / "state.sqlite", shown)


async def again(folder: Path, state: Path, shown: Samples) -> None:
    """After a restart, from the journal and before the first event."""
    async with coordinator(folder, state) as where, http_port(where) as port:
        assert not where.events
        later, _ = await scrape(port)
    for name in (
        *("sordino_rounds_completed_total", "sordino_ledger_rows", "sordino_model_accuracy_ratio", "sordino_round"),
        *("sordino_last_round_completed_timestamp_seconds", "sordino_round_upload_bytes", "sordino_delta"),
    ):
        assert later.get_one(name) == pytest.approx(shown.get_one(name), abs=0.01), name
    for reader in ("coordinator", "released"):
        for name in ("sordino_epsilon_spent", "sordino_epsilon_left"):
            assert later.get_one(name, reader=reader) == shown.get_one(name, reader=reader)


def check_nobody_is_named(text: str, folder: Path) -> None:
    for key in identities(folder):
        assert key.public.hex()[:8] not in text
    assert "host-01" not in text
    assert not re.search(r"[0-9a-f]{16}", re.sub(r"\d+", "", text))


@pytest.fixture
def metrics(study_folder: Path) -> StudyMetrics:
    found = StudyMetrics(quietly(study_folder))
    found.knows_study = True
    return found


ODD = ["", "x" * 10_000, 'a"b\nc\\', "\x1b[31m", "participant 17 of host-03 says ünïcödé", "42", "None"]


def test_reasons_make_no_new_series(metrics: StudyMetrics) -> None:
    """A naive label would be a series for each sentence, and repeat what a peer wrote."""
    metrics.read()
    before = set(Samples.of(metrics.render().decode()))
    for number, odd in enumerate(ODD * 5):
        who: dict[str, Any] = {"participant": number, "host": f"host-{number}"}
        reason = f"{odd}{number}"
        for phase in (*PHASES, odd):
            about: dict[str, Any] = {"round": 1, "attempt": 1, "phase": phase}
            metrics.note(ParticipantDropped(**about, **who, reason=reason))
            metrics.note(AttemptAborted(**about, reason=reason, received=1, needed=2))
            metrics.note(PhaseEnded(**about, received=1, seconds=1.0))
        metrics.note(ParticipantLost(**who, reason=reason))
    metrics.read()
    text = metrics.render().decode()
    lags = {key for key in Samples.of(text) if key[0] == "sordino_attempt_event_loop_lag_seconds"}
    assert set(Samples.of(text)) - lags == before
    assert "host-" not in text
    assert "xxx" not in text
    assert Samples.of(text).get_one("sordino_sessions_lost_total", reason="other") == 5 * len(ODD)


def peer_texts() -> Iterator[str]:
    """What the coordinator says of messages that no honest participant sends: the texts in the code itself."""
    errors = {"InvalidMessage": 2, "MalformedMessage": 0}
    files = ["secagg/server_cohort.py", "secagg/server_phases.py", "secagg/server_unmasking.py"]
    for file in (*files, "wire/codec.py", "server/attempt/attempt.py"):
        for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in errors:
                said = node.args[errors[node.func.id]]
                if isinstance(said, ast.Constant):
                    yield said.value
                elif isinstance(said, ast.JoinedStr):
                    yield "".join(getattr(part, "value", "7") if hasattr(part, "kind") else "7" for part in said.values)


def test_the_coordinators_own_reasons_have_a_class() -> None:
    texts = list(peer_texts())
    assert len(texts) > 15
    assert {text: class_of_dropout(text) for text in texts} == dict.fromkeys(texts, "invalid")


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("did not answer before the deadline", "deadline"),
        ("connection closed", "connection"),
        ("upload failed: connection closed", "connection"),
        ("upload failed: nothing arrived for 30 s", "slow_upload"),
        ("upload failed: it arrived at less than 16 KiB a second", "slow_upload"),
        ("upload failed: the vector has 5 bytes, not 7", "upload"),
        ("refused: the round breaks its policy or budget", "policy"),
        ("refused: one more round would pass the study's budget", "policy"),
        ("refused: a message of the coordinator failed its checks", "distrust"),
        ("refused", "refused"),
        ("failed on its own side", "failed"),
        ("sits this attempt out after a restart", "restarted"),
        ("sent more bytes than an attempt has", "overran"),
        ("replaced by a newer connection", "replaced"),
        ("revoked", "revoked"),
        ("the dog ate it", "other"),
    ],
)
def test_classes_of_reasons(reason: str, expected: str) -> None:
    assert class_of_dropout(reason) == expected
    assert expected in DROPOUTS


def test_whom_a_study_waits_for(metrics: StudyMetrics) -> None:
    def people() -> tuple[float | None, ...]:
        metrics.read()
        shown = Samples.of(metrics.render().decode())
        states = ("attempt", "waited_for")
        more = ("sordino_participants_needed", "sordino_attempt_remaining")
        return (*(shown.get_one("sordino_participants", state=one) for one in states), *map(shown.get_one, more))

    def phase() -> list[str]:
        shown = Samples.of(metrics.render().decode())
        return [dict(labels)["phase"] for (name, labels), value in shown.items() if name == "sordino_phase" and value]

    note = metrics.note
    first, second = {"round": 3, "attempt": 2}, {"round": 3, "attempt": 3}
    about: dict[str, Any] = first | {"phase": PHASES[0]}
    note(WaitingForParticipants(**first, received=4, needed=5, expected=7, left_s=9.0))
    assert people() == (0, 3, 5, 0)
    assert phase() == ["Connecting"]
    note(AttemptStarted(**first, cohort=6, absent=(1,)))
    note(PhaseStarted(**about, expected=6, needed=5, deadline_s=9))
    assert people() == (6, 6, 5, 6)
    note(PhaseProgress(**about, received=2, expected=6, needed=5, left_s=8))
    note(ParticipantDropped(**about, participant=3, reason="connection closed"))
    assert people() == (5, 3, 5, 5)
    assert phase() == [PHASES[0]]
    note(PhaseEnded(**about, received=4, seconds=0.5))
    note(AttemptAborted(**about, reason="4 participants, 5 needed", received=4, needed=5))
    assert people() == (0, 0, 0, 5)
    note(AttemptAborted(**second, phase=CONNECTING, reason="", received=2, needed=5))
    assert people() == (0, 0, 0, 2)
    note(Pausing(round=3, left_s=60.0))
    people()
    assert phase() == ["Pausing"]
    note(StudyFinished(reason="rounds done"))
    people()
    assert phase() == ["Finished"]
