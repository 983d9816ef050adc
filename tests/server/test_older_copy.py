"""A coordinator that runs on an older copy of its state learns it from its participants, and opens no sum."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from client.connection import open_session
from runtime.failure import ExitCode, Failure
from tests.support.study_in_process import PARTICIPANTS, Peer, coordinator, identities, playing, until
from wire import coordinator_pb2 as pb


def joined(round_: int) -> Any:
    """A refusal that says that the participant has joined this round."""

    def refuse(peer: Peer, _: Any) -> Iterable[pb.ParticipantMessage]:
        number = {"round": peer.number[0], "attempt": peer.number[1]}
        refusal = pb.Refusal(
            **number, code=pb.REFUSAL_CODE_ALREADY_JOINED, joined_round=round_, joined_attempt=number["attempt"]
        )
        return [pb.ParticipantMessage(refusal=refusal)]

    return refuse


def joined_before(peer: Peer, content: Any) -> Iterable[pb.ParticipantMessage]:
    """What participants say that have answered the first attempt already, to a coordinator that lost that alone."""
    return joined(1)(peer, content) if peer.number == (1, 1) else [peer.wrap(advertise_keys=content)]


@pytest.mark.parametrize(
    ("said", "answered"),
    [
        pytest.param([joined(8), joined(9), joined(9)], 8, id="most participants are ahead"),
        # It begins that one again. The next would be answered, and the charge of the lost one be missing for good.
        pytest.param([joined_before] * PARTICIPANTS, 1, id="it lacks one attempt"),
    ],
)
async def test_a_copy_that_lacks_something(study_folder: Path, tmp_path: Path, said: list[Any], answered: int) -> None:
    async with coordinator(study_folder, tmp_path / "state.sqlite") as where:
        peers = where.peers({who: {"advertise_keys": one} for who, one in enumerate(said)})
        told = f"answered round {answered}, and this copy of the study ends with round 0"
        with pytest.raises(Failure, match=told) as refused:
            await where.play(peers)
        assert refused.value.code == ExitCode.LEDGER
        assert where.of("survivors_frozen") == []  # nothing was charged
        assert [(one["reason"], one["failed"]) for one in where.of("study_finished")] == [("stopped", True)]


class Further(Peer):
    """In the first attempt it goes on where the copy's original was: it has been asked for shares."""

    async def on_round_start(self, message: pb.RoundStart) -> None:
        if self.number != (1, 1):
            await super().on_round_start(message)
            return
        self.session.close()
        self.session = await open_session(self.channel, self.identity, "seven")
        ready = pb.Ready(resume=pb.Resume(round=1, attempt=1, received=5))
        await self.session.send(pb.ParticipantMessage(ready=ready))

    async def play(self) -> str | None:
        before = self.session
        reason = await super().play()
        return reason if self.session is before else await super().play()


@pytest.mark.parametrize("several", [2, 3])
async def test_a_copy_of_the_attempt_under_way(study_folder: Path, tmp_path: Path, several: int) -> None:
    async with coordinator(study_folder, tmp_path / "state.sqlite", deadlines={"advertise_keys_s": 2.0}) as where:
        honest, keys = where.peers(), identities(study_folder)
        peers = [Further(where, key) if at < several else honest[at] for at, key in enumerate(keys)]
        if several == 2:  # they may lie
            assert (await where.play(peers)).rounds_completed == 2
            return
        with pytest.raises(Failure, match="answered round 1, and this copy of the study ends with round 0"):
            await where.play(peers)
        assert where.of("survivors_frozen") == []


async def test_participants_started_again_within_the_attempt(study_folder: Path, tmp_path: Path) -> None:
    """Their keys are gone, and so they refuse it: all seven, and no copy is older."""

    async def again(peer: Peer) -> str | None:
        await peer.connect()
        return await peer.play()

    async with coordinator(study_folder, tmp_path / "state.sqlite") as where:
        killed = where.peers({who: {"advertise_keys": lambda peer, _: ()} for who in range(PARTICIPANTS)})
        restarted = where.peers({who: {"advertise_keys": joined_before} for who in range(PARTICIPANTS)})
        async with playing(killed):
            where.start()
            await until(lambda: all(peer.number == (1, 1) for peer in killed))
        playing_again = asyncio.gather(*map(again, restarted))
        assert (await where.finish()).rounds_completed == 2
        assert where.study._membership.ahead == {}
        await playing_again
        await asyncio.gather(*(peer.close() for peer in restarted))


@pytest.mark.parametrize("round_", [1, 9])
async def test_a_restart_or_two_liars_are_no_proof(study_folder: Path, tmp_path: Path, round_: int) -> None:
    """Two of seven may lie; and any number may have been started again within the attempt."""
    async with coordinator(study_folder, tmp_path / "state.sqlite") as where:
        peers = where.peers({who: {"advertise_keys": joined(round_)} for who in range(2)})
        assert (await where.play(peers)).rounds_completed == 2


async def test_claims_about_earlier_attempts_do_not_add_up(study_folder: Path, tmp_path: Path) -> None:
    async with coordinator(study_folder, tmp_path / "state.sqlite") as where:
        membership = where.study._membership
        membership.ahead = {bytes([at]) * 32: (1, 1) for at in range(PARTICIPANTS)}
        membership.check_not_older(1, (), (2, 1))
        assert membership.ahead == {}
        membership.ahead = {bytes([at]) * 32: (2, 1) for at in range(PARTICIPANTS)}
        with pytest.raises(Failure, match="answered round 2"):
            membership.check_not_older(1, (), (2, 1))
