"""A whole study, with a killed session, a lie and a training that diverges, at the lowest log level: nothing that is
secret appears in any log, event or error, in any spelling.

In one process, since that is the only place where all secrets of a run can be collected: every byte that the operating
system's randomness gave, every value that was derived from it, and every update.
"""

from __future__ import annotations

import asyncio
import base64
import io
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog

HERE = Path(__file__).parent
sys.path += [str(HERE.parent / "server"), str(HERE.parent / "client")]

from host_in_process import host, settings_of  # noqa: E402  # found through the line above
from study_in_process import coordinator, identities, make_folder  # noqa: E402

import client.participant  # noqa: E402
import secagg.client_phases  # noqa: E402
import secagg.keys  # noqa: E402
import secagg.shamir  # noqa: E402
import server.sessions  # noqa: E402
from wire import coordinator_pb2 as pb  # noqa: E402

LEAST = 12  # bytes: what is shorter could appear by chance


def spellings(secret: bytes) -> Iterator[str]:
    """How a value would look in a log: hexadecimal, base64, Python, a list of numbers."""
    yield secret.hex()
    yield secret.hex().upper()
    yield base64.b64encode(secret).decode().rstrip("=")
    yield repr(secret)[2:-1]
    yield ", ".join(str(byte) for byte in secret)
    yield " ".join(str(byte) for byte in secret)
    if len(secret) % 2 == 0:
        symbols = np.frombuffer(secret, dtype="<u2").tolist()
        yield ", ".join(str(symbol) for symbol in symbols)
        yield " ".join(str(symbol) for symbol in symbols)


def plain(text: str) -> str:
    """With one blank where numpy puts several, or a new line."""
    return " ".join(text.split())


class Collector:
    """Secrets of a run, by kind."""

    def __init__(self) -> None:
        self.found: dict[str, set[bytes]] = {}
        self.updates: list[Any] = []

    def note(self, kind: str, value: Any) -> Any:
        data = value.astype("<u2").tobytes() if isinstance(value, np.ndarray) else bytes(value)
        for at in range(0, len(data), 64):  # long values in pieces: a log would cut them too
            if len(piece := data[at : at + 64]) >= LEAST:
                self.found.setdefault(kind, set()).add(piece)
        return value


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> Collector:
    collector = Collector()
    system = os.urandom

    def urandom(count: int) -> bytes:
        # Four bytes and less are jitter and the like; the large draws are noise and rounding.
        return collector.note("randomness", system(count))

    monkeypatch.setattr(os, "urandom", urandom)

    def watch(module: Any, name: str, kind: str) -> None:
        original = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, **k: collector.note(kind, original(*a, **k)))

    watch(secagg.client_phases, "mask_private_key", "mask key")
    watch(secagg.client_phases, "self_mask_seed", "self-mask seed")
    watch(secagg.client_phases, "self_mask_key", "self mask")
    watch(secagg.client_phases, "pairwise_mask_key", "pairwise mask")
    agree = secagg.keys.AgreementKey.agree
    monkeypatch.setattr(
        secagg.keys.AgreementKey, "agree", lambda self, public: collector.note("agreement", agree(self, public))
    )
    split = secagg.shamir.split

    def watched_split(*arguments: Any) -> Any:
        shares = split(*arguments)
        collector.note("secret", arguments[0])
        for share in shares.reshape(-1, secagg.shamir.SYMBOLS):
            collector.note("share", share)
        return shares

    monkeypatch.setattr(secagg.client_phases.shamir, "split", watched_split)
    update = client.participant.Participant._local_update

    def watched_update(self: Any, parameters: Any) -> Any:
        result = update(self, parameters)
        if result is not None:  # a training that failed, as some here do
            collector.updates.append(result)
        return result

    monkeypatch.setattr(client.participant.Participant, "_local_update", watched_update)
    opened = server.sessions.Sessions.open

    def watched_open(self: Any, *arguments: Any) -> Any:
        session = opened(self, *arguments)
        collector.note("session token", session.token)
        return session

    monkeypatch.setattr(server.sessions.Sessions, "open", watched_open)
    return collector


def test_nothing_secret_is_logged(
    tmp_path: Path, secrets: Collector, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = make_folder(tmp_path / "study", rounds=3)
    for key in identities(folder):
        secrets.note("identity", key._private.private_bytes_raw())
    log = io.StringIO()
    handler = logging.StreamHandler(log)
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    structlog.configure(
        processors=[structlog.processors.format_exc_info, structlog.processors.KeyValueRenderer(repr_native_str=True)],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=lambda *_: structlog.PrintLogger(log),
        cache_logger_on_first_use=False,
    )
    diverged = 0
    training = client.participant.Participant._local_update

    def sometimes_fails(self: Any, parameters: Any) -> Any:
        nonlocal diverged
        diverged += 1
        if diverged == 1:
            task = self._task

            class Failing:
                dim = task.dim

                def local_update(self, *_: Any) -> Any:
                    raise ValueError(f"bad example: {parameters}")

            self._task = Failing()
            try:
                return training(self, parameters)
            finally:
                self._task = task
        return training(self, parameters)

    monkeypatch.setattr(client.participant.Participant, "_local_update", sometimes_fails)
    monkeypatch.setattr("client.participant_host.RETRY_S", (0.01, 0.01))
    honest = server.sessions.Session.send

    def lie_once(session: server.sessions.Session, data: bytes) -> None:
        """To one participant in round 2; another one is thrown out in round 1, and comes back."""
        message = pb.CoordinatorMessage.FromString(data)
        if message.WhichOneof("message") == "survivor_sets" and session.participant == 1 and where_round(message) == 2:
            message = pb.CoordinatorMessage(
                survivor_sets=pb.SurvivorSets(round=2, attempt=message.survivor_sets.attempt, u2=b"", u3=b"")
            )
        if message.WhichOneof("message") == "cohort_keys" and session.participant == 2 and where_round(message) == 1:
            session.close()
        honest(session, message.SerializeToString())

    monkeypatch.setattr(server.sessions.Session, "send", lie_once)

    async def scenario() -> list[dict[str, Any]]:
        async with coordinator(folder, tmp_path / "state.sqlite") as where:
            settings = settings_of(folder, tmp_path / "journal.sqlite", where.address)
            where.start()
            async with host(settings) as task, asyncio.timeout(60):
                await task
            return where.events

    try:
        events = asyncio.run(scenario(), debug=True)
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        structlog.reset_defaults()
    captured = capfd.readouterr()
    told = plain("\n".join([log.getvalue(), captured.out, captured.err, *(str(event) for event in events)]))

    assert [event["round"] for event in events if event["kind"] == "round_completed"] == [1, 2, 3]
    for wanted in ("study accepted", "refused", "coordinator away", "zeros are sent", "ValueError"):
        assert wanted in told, wanted
    kinds = set(secrets.found)
    assert kinds >= {
        "randomness",
        "identity",
        "mask key",
        "self-mask seed",
        "self mask",
        "pairwise mask",
        "agreement",
        "secret",
        "share",
        "session token",
    }
    leaked = {
        kind
        for kind, values in secrets.found.items()
        for value in values
        if any(spelling in told for spelling in spellings(value))
    }
    assert leaked == set()
    values = {float(value) for update in secrets.updates for value in update if value}
    assert len(values) > 1000
    written = {text for value in values for text in (repr(value), f"{value:.8g}", f"{value:.6g}")}
    # Shorter ones are as likely to be a time or an accuracy.
    assert [text for text in written if len(text) >= 10 and text in told] == []
    assert "bad example" not in told


def where_round(message: pb.CoordinatorMessage) -> int:
    return int(getattr(message, message.WhichOneof("message")).round)


def test_the_search_would_find_them() -> None:
    """The spellings are those that Python and our own loggers use."""
    secret = bytes(range(100, 132))
    symbols = np.frombuffer(secret, dtype="<u2")
    for told in (
        secret.hex(),
        f"{secret!r}",
        f"{list(secret)}",
        f"{symbols}",
        f"{symbols!r}",
        f"{symbols.tolist()}",
        base64.b64encode(secret).decode(),
        str({"key": secret}),
    ):
        assert any(spelling in plain(told) for spelling in spellings(secret)), told
