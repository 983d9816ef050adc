"""Participants at several gateways, one of which ends in each phase: right sums, nobody asked twice."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tests.support.study_in_process
import wire.gateway_channel
from client.behaviour import Behaviour, Encoding, Words
from client.connection import Channels
from server.attempt import outgoing
from server.attempt.steps import PHASE_FIELDS
from server.engine.gateway import Gateway
from sordino.lab.loadtest.sums import plain_sum, vector
from tests.support.host_in_process import Story, host, ledger_of, rows_of, settings_of
from tests.support.near_gateways import DistantGateway, near_gateways
from tests.support.study_in_process import PATIENCE_S, Coordinator, coordinator, identities, sums_of, until
from wire import coordinator_pb2 as pb
from wire.study import round_parameters

SEED = 7
SURVIVES_S = {"resume_s": 20.0}


class Known(Behaviour):
    """Masks a vector that the test knows."""

    __slots__ = ("_identity",)

    def __init__(self, identity: bytes) -> None:
        self._identity = identity

    async def mask(self, encoding: Encoding, encode: Any) -> Words:
        return vector(SEED, *encoding.number, self._identity, dim=encoding.plan.padded_dim, bits=encoding.plan.bits)


def watch(where: Coordinator, story: Story, kind: str, *, every: bool) -> list[int]:
    """Note what arrives at the first gateways, and kill that of a participant as its message arrives, in round 1.

    Returns the numbers of those killed.

    ``every``: all gateways together.
    """
    killed: list[int] = []
    handle, stage = Gateway.phase_message, Gateway.upload

    def kill(gateway: Gateway) -> None:
        if not killed:
            killed.extend(at for at, one in enumerate(where.gateways) if every or one.gateway is gateway)
            for number in killed:
                asyncio.get_running_loop().call_soon(where.gateways[number].kill)

    def on_phase(gateway: Gateway, session: Any, message: pb.PhaseMessage, size: int) -> None:
        story.messages.append((session.participant, message))
        if message.WhichOneof("message") == kind:
            kill(gateway)
        handle(gateway, session, message, size)

    async def on_upload(gateway: Gateway, session: Any, chunks: Any) -> bytes:
        if kind == "upload":
            kill(gateway)
        return await stage(gateway, session, chunks)

    for one in where.gateways:
        made: Any = one.gateway
        made.phase_message, made.upload = on_phase.__get__(made), on_upload.__get__(made)
    return killed


async def play(
    folder: Path, work: Path, kind: str = "", *, every: bool = False
) -> tuple[Story, Coordinator, list[int]]:
    """A study of seven with the real client, at two gateways."""
    story = Story(journal=work / "journal.sqlite")
    tables = {"deadlines": SURVIVES_S, "coordinator": {"max_attempts": 1}}
    async with coordinator(folder, work / "state.sqlite", gateways=2, **tables) as where:
        killed = watch(where, story, kind, every=every)
        where.start()
        settings = settings_of(folder, story.journal, ",".join(where.addresses))
        async with host(settings, behaviours=Known) as task, asyncio.timeout(PATIENCE_S):
            story.ended = await task
        story.events = where.events
    return story, where, killed


@pytest.mark.parametrize("kind", ["", *PHASE_FIELDS, "upload"])
async def test_sums_with_a_gateway_that_ends(
    kind: str, study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outgoing, "FAR_AT_ONCE", 2)
    sums = sums_of(monkeypatch)
    story, where, killed = await play(study_folder, tmp_path, kind)
    assert story.ended == 0
    assert bool(killed) == bool(kind)
    assert [one["reason"] for one in story.of("participant_dropped")] == []
    keys = identities(study_folder)
    plan = where.study.terms.plan
    assert [sorted(one.u3) for one in sums] == [list(range(7))] * 2
    for round_, completed in enumerate(sums, 1):
        members = [keys[who].public for who in completed.u3]
        expected = plain_sum(SEED, round_, 1, members, dim=plan.padded_dim, bits=plan.bits)
        np.testing.assert_array_equal(completed.total, expected)
    # Nobody is asked twice: whatever a participant says again, after its gateway has ended, has the same bytes.
    assert len(story.messages) > 50
    said = defaultdict(set)
    for who, message in story.messages:
        said[who, message.round, message.attempt, message.WhichOneof("message")].add(message.SerializeToString())
    assert all(len(several) == 1 for several in said.values())
    charges = [row for row in rows_of(ledger_of(story.journal)) if row.kind == "charge"]
    assert sorted((row.round, row.identity) for row in charges) == sorted(
        (round_, key.public.hex()) for round_ in (1, 2) for key in keys
    )


async def test_all_gateways_end_and_come_back(study_folder: Path, tmp_path: Path) -> None:
    """Places are kept until others have started in their place, and vectors that weren't merged are asked for again."""
    story, where, killed = await play(study_folder, tmp_path, "upload", every=True)
    assert (story.ended, len(killed), len(where.gateways)) == (0, 2, 4)
    assert story.of("participant_dropped") == []
    assert [one["u3"] for one in story.of("round_completed")] == [7, 7]


async def test_an_address_that_does_not_answer_is_left_for_the_next(study_folder: Path, tmp_path: Path) -> None:
    """A gateway that was cut off refuses no connection: participants would wait half a minute for it."""
    async with (
        coordinator(study_folder, tmp_path / "state.sqlite", gateways=1) as where,
        await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0) as silent,
    ):
        port = silent.sockets[0].getsockname()[1]
        where.start()
        settings = settings_of(study_folder, tmp_path / "journal", f"localhost:{port},{where.addresses[0]}")
        async with host(settings, behaviours=Known) as task, asyncio.timeout(20):
            await until(lambda: len(where.study.sessions) == 7)
            assert not task.done()


@pytest.mark.parametrize("kind", ["masked_input", "upload"])  # the first while shares are still handed out
async def test_a_gateway_that_is_cut_off(
    kind: str, study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing reaches it and nothing comes from it any more; both sides end its sessions by themselves."""
    monkeypatch.setattr(outgoing, "FAR_AT_ONCE", 1)
    monkeypatch.setattr(wire.gateway_channel, "BEAT_S", 0.2)
    monkeypatch.setattr(wire.gateway_channel, "SILENT_S", 3.0)
    monkeypatch.setattr(tests.support.study_in_process, "near_gateways", partial(near_gateways, kind=DistantGateway))
    story, where, killed = await play(study_folder, tmp_path, kind)
    assert (story.ended, len(killed), len(where.gateways)) == (0, 1, 3)
    assert story.of("participant_dropped") == []
    assert [one["u3"] for one in story.of("round_completed")] == [7, 7]
    gone = [one for one in story.of("participant_lost") if one["reason"] != "not needed for a while"]
    assert gone


async def test_participants_are_spread_and_one_journal_tells_of_all(study_folder: Path, tmp_path: Path) -> None:
    """What is recorded is that of a coordinator without gateways: nothing tells how many there were."""
    story, where, _ = await play(study_folder, tmp_path)
    assert not [event for event in story.events if "gateway" in str(event)]
    traffic = where.study.sessions.traffic
    assert traffic.vectors_received >= 2 * 7 * where.study.terms.plan.padded_dim * where.study.terms.plan.bits // 8
    study = where.study.terms.study
    begin = {where.addresses[Channels.first_turn(study, key.public) % 2] for key in identities(study_folder)}
    heard = {one.address for one in where.gateways if one.gateway.sessions.traffic.control_received}
    assert begin <= {one.replace("127.0.0.1", "localhost") for one in heard}


async def test_one_that_starts_later_has_the_roster_in_use(
    study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Positions are those of the roster in use: by an older one, an honest message would be checked as another's."""
    async with coordinator(study_folder, tmp_path / "state.sqlite", gateways=2) as where:
        later = replace(where.study.roster, version=where.study.roster.version + 1)
        monkeypatch.setattr(type(where.study), "roster", property(lambda _: later))
        where.gateways[0].kill()
        await until(lambda: len(where.gateways) == 3 and hasattr(where.gateways[2], "address"))
        assert where.gateways[2].gateway.sessions.roster.version == later.version


async def test_a_vector_may_be_expected_here_again(study_folder: Path, tmp_path: Path) -> None:
    """Its participant went to another gateway and came back: were that refused, anybody could end a gateway by it."""
    async with coordinator(study_folder, tmp_path / "state.sqlite", gateways=1) as where:
        gateway = where.gateways[0].gateway
        parameters = round_parameters(where.study.terms.plan)
        offer, forget = (("vectors", (1, *call)) for call in (("offer", 3, bytes(32), bytes(64)), ("forget", 3)))
        await gateway.hear([("begin_attempt", (1, parameters, 4)), offer, forget, offer])
        calls = await gateway.said()
        assert [arguments[:3] for name, arguments in calls if name == "vector"] == [(1, 3, "grant_credit")] * 2
