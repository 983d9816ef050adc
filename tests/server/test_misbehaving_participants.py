"""Participants that break a rule, over gRPC: each is dropped with a reason and the others' round goes on. The next
round takes again who did what honest ones may do as well; who sent what none of them ever sends is excluded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

import server.attempt.attempt
from secagg.commitments import MerkleTree, pair_node
from secagg.keys import dealing_statement
from server.attempt.uploads import Uploads
from tests.support.study_in_process import (
    PARTICIPANTS,
    Coordinator,
    Peer,
    Twist,
    coordinator,
    faults,
    identities,
    refuses,
)
from wire import coordinator_pb2 as pb
from wire.transport import frame, frames

PHASE_OF = {
    "advertise_keys": "AdvertiseKeys",
    "share_keys": "ShareKeys",
    "masked_input": "MaskedInputCollection",
    "consistency": "ConsistencyCheck",
    "unmasking": "Unmasking",
}
Uploader = Callable[[Peer, bytes], Awaitable[Any]]


@dataclass(frozen=True)
class Case:
    """What participant 0 does in round 1, and what the coordinator says about it."""

    name: str
    reason: str
    twists: dict[str, Twist] = field(default_factory=dict)
    uploader: Uploader | None = None
    chunks: Callable[[bytes], Any] | None = None  # what it uploads in place of the vector
    upload_told: str | None = None  # what the coordinator answers to the upload
    cut_off: bool = False  # it answers while more is being sent: a write may fail first, and the answer is lost

    @property
    def kind(self) -> str:
        """The message that it replaces; the offer's phase is that of the upload too."""
        return next(iter(self.twists), "masked_input")


def instead(kind: str, content: Any) -> dict[str, Twist]:
    """Another content of the same kind."""
    return {kind: lambda peer, _: [peer.wrap(**{kind: content})]}


def altered(kind: str, **changes: Any) -> dict[str, Twist]:
    """The honest message with some fields replaced."""

    def twist(peer: Peer, honest: Any) -> list[pb.ParticipantMessage]:
        message = type(honest)()
        message.CopyFrom(honest)
        for name, value in changes.items():
            value = value(getattr(honest, name)) if callable(value) else value
            if isinstance(value, list):
                message.ClearField(name)
                getattr(message, name).extend(value)
            else:
                setattr(message, name, value)
        return [peer.wrap(**{kind: message})]

    return {kind: twist}


def flipped(data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]


def twice(peer: Peer, honest: Any) -> list[pb.ParticipantMessage]:
    kind = {pb.Advertisement: "advertise_keys", pb.SealedShares: "share_keys"}.get(type(honest), "consistency")
    return [peer.wrap(**{kind: honest})] * 2


def flood(peer: Peer, _: Any) -> list[pb.ParticipantMessage]:
    # Of a later phase, so that none is refused by itself.
    return [peer.wrap(consistency=pb.ConsistencySignature(signature=bytes(64)))] * 500


def other_kind(peer: Peer, honest: pb.UnmaskingReply) -> list[pb.ParticipantMessage]:
    first = honest.shares[0].self_mask_seed
    return [peer.wrap(unmasking=pb.UnmaskingReply(shares=[pb.PeerShare(mask_key=first), *honest.shares[1:]]))]


def other_share(share: bytes) -> Twist:
    def twist(peer: Peer, honest: pb.UnmaskingReply) -> list[pb.ParticipantMessage]:
        salt = honest.shares[1].self_mask_seed.salt
        bad = pb.PeerShare(self_mask_seed=pb.RevealedShare(share=share, salt=salt))
        shares = [honest.shares[0], bad, *honest.shares[2:]]
        return [peer.wrap(unmasking=pb.UnmaskingReply(shares=shares))]

    return twist


async def half_then_silence(packed: bytes) -> Any:
    yield frame(packed[: len(packed) // 2])
    await asyncio.sleep(3600)


async def gives_up(peer: Peer, packed: bytes) -> None:
    call = asyncio.create_task(peer.upload(half_then_silence(packed)))
    await asyncio.sleep(0.05)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)


async def never_begins(peer: Peer, _: bytes) -> None:
    pass


CASES = [
    Case("unsigned keys", "not signed", altered("advertise_keys", signature=bytes(64))),
    Case("short key", "mask_key must have 32 bytes", altered("advertise_keys", mask_key=b"k")),
    Case("low-order key", "low order", altered("advertise_keys", mask_key=bytes(32))),
    Case("no keys", "must have 32 bytes", instead("advertise_keys", pb.Advertisement())),
    Case("advertises twice", "not expected", {"advertise_keys": twice}),
    Case("empty phase message", "an empty phase message", {"advertise_keys": lambda peer, _: [peer.wrap()]}),
    Case("flood", "more messages than an attempt has", {"advertise_keys": flood}),
    Case("refuses", "policy or budget", {"advertise_keys": refuses(pb.REFUSAL_CODE_POLICY)}),
    Case("refuses without a known code", "refused", {"advertise_keys": refuses(77)}),
    Case("no shares", "seed_commitment must have 32 bytes", instead("share_keys", pb.SealedShares())),
    Case("one share short", "exactly the neighbours", altered("share_keys", ciphertexts=lambda c: list(c)[1:])),
    Case("short share", "ciphertext must have 112", altered("share_keys", ciphertexts=lambda c: [b"", *list(c)[1:]])),
    Case("another root", "not signed", altered("share_keys", leaves=lambda c: [flipped(c[0]), *list(c)[1:]])),
    Case("deals twice", "not expected", {"share_keys": twice}),
    Case("sits out", "sits this attempt out", {"share_keys": refuses(pb.REFUSAL_CODE_ALREADY_JOINED)}),
    Case("short digest", "32 bytes", altered("masked_input", sha256=b"d")),
    Case("unsigned offer", "not signed", altered("masked_input", signature=bytes(64))),
    Case("offers twice", "offered before", {"masked_input": lambda p, m: [p.wrap(masked_input=m)] * 2}),
    Case("fails on its side", "own side", {"masked_input": refuses(pb.REFUSAL_CODE_LOCAL_FAILURE)}),
    Case("too long", "longer than", chunks=lambda packed: frames(packed + b"\0"), upload_told="longer than"),
    Case("too short", "has 1023 bytes, not 1024", chunks=lambda packed: frames(packed[:-1]), upload_told="1023"),
    Case("empty upload", "has 0 bytes", chunks=lambda _: frames(b""), upload_told="0 bytes"),
    Case(
        "endless upload",
        "longer than",
        chunks=lambda packed: [frame(packed)] * 1000,
        upload_told="longer than",
        cut_off=True,
    ),
    Case(
        "another vector",
        "digest that was signed",
        chunks=lambda packed: frames(flipped(packed)),
        upload_told="not taken",
    ),
    Case("no chunk", "upload failed", chunks=lambda packed: [packed], upload_told="chunk"),
    Case(
        "empty chunk",
        "upload failed",
        chunks=lambda packed: [frame(packed[:100]), b"\x0a\x00", frame(packed[100:])],
        upload_told="chunk",
        cut_off=True,
    ),
    Case(
        "oversize chunk",
        "upload failed",
        chunks=lambda _: [b"\x0a\x81\x80\x10" + bytes(256 * 1024 + 1)],
        upload_told="chunk",
    ),
    Case("stalled upload", "nothing arrived", chunks=half_then_silence, upload_told="nothing arrived"),
    Case("upload given up", "upload failed", uploader=gives_up),
    Case("upload that never begins", "nothing arrived", uploader=never_begins),
    Case("bad signature of the sets", "doesn't cover", altered("consistency", signature=bytes(64))),
    Case("short signature", "64 bytes", altered("consistency", signature=b"")),
    Case("refuses the sets", "failed its checks", {"consistency": refuses(pb.REFUSAL_CODE_COORDINATOR_MISBEHAVED)}),
    Case("empty reply", "one entry for each", instead("unmasking", pb.UnmaskingReply())),
    Case(
        "empty entries",
        "an entry of the reply is empty",
        altered("unmasking", shares=lambda s: [pb.PeerShare()] * len(s)),
    ),
    Case("wrong kind of share", "wrong kind", {"unmasking": other_kind}),
    Case("share of the wrong length", "share must have 32 bytes", {"unmasking": other_share(b"s")}),
    Case("false share", "doesn't match the commitment", {"unmasking": other_share(bytes(32))}),
    Case("share outside the field", "doesn't match the commitment", {"unmasking": other_share(b"\xff" * 32)}),
]


# What happens to honest participants too, or looks the same from where the coordinator stands.
SPARED = {
    *("advertises twice", "flood", "refuses", "refuses without a known code", "deals twice", "sits out"),
    *("offers twice", "fails on its side", "too short", "empty upload", "stalled upload", "upload given up"),
    *("upload that never begins", "refuses the sets"),
}


class Patient(Peer):
    """Answers the culprit's phase of round 1 when the culprit has been dropped: else the phase could end before."""

    waits_at = ""

    async def say(self, kind: str, content: Any) -> None:
        if kind == self.waits_at and self.number[0] == 1:
            await self.where.wait_for("participant_dropped")
        await super().say(kind, content)


def peers_of(where: Coordinator, case: Case) -> list[Peer]:
    """Seven peers; 0 misbehaves, the last two are patient."""
    keys = identities(where.folder)
    patient = [Patient(where, key) for key in keys[-2:]]
    for peer in patient:
        peer.waits_at = case.kind

    async def uploads(peer: Peer, packed: bytes) -> None:
        assert case.chunks is not None
        await peer.upload(case.chunks(packed))

    uploader = case.uploader if case.chunks is None else uploads
    return [Peer(where, keys[0], case.twists, uploader), *(Peer(where, key) for key in keys[1:-2]), *patient]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_dropped_and_the_round_goes_on(
    study_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    case: Case,
) -> None:
    if case.name in ("stalled upload", "upload that never begins"):
        monkeypatch.setattr(server.attempt.attempt, "Uploads", lambda *given: Uploads(*given, stall_s=1.0))

    async with coordinator(study_folder, tmp_path / "state.sqlite") as where:
        peers = peers_of(where, case)
        outcome = await where.play(peers)
        assert outcome.rounds_completed == 2
        first, second = where.of("round_completed")
        [drop] = where.of("participant_dropped")
        assert (drop["round"], drop["participant"], drop["phase"]) == (1, 0, PHASE_OF[case.kind])
        assert case.reason in drop["reason"]
        assert first["dropouts"] == 1
        assert first["u3"] == PARTICIPANTS - (case.kind not in ("consistency", "unmasking"))
        left_out = next(end for end in peers[0].heard("round_end") if end.round == 1)
        assert not left_out.completed
        assert left_out.reason.startswith("left out")
        # Nothing else is lost: the same session takes part in the next round, unless it is excluded.
        excluded = where.of("participant_excluded")
        assert len(excluded) == (case.name not in SPARED)
        left = PARTICIPANTS - len(excluded)
        assert (second["u1"], second["u3"], second["dropouts"]) == (left, left, 0)
        for one in excluded:
            assert one["participant"] == 0
            phase, _, reason = one["reason"].partition(": ")
            assert phase == PHASE_OF[case.kind]
            assert drop["reason"].removeprefix("upload failed: ") == reason
            assert where.journal.excluded() == {0: one["reason"]}
        if case.upload_told is not None:
            error = peers[0].upload_error
            assert error is not None
            lost = case.cut_off and error.code() == grpc.StatusCode.INTERNAL
            assert lost or case.upload_told in (error.details() or "")
    assert faults(caplog) == []


def false_commitment(peer: Peer, honest: pb.SealedShares) -> list[pb.ParticipantMessage]:
    """Shares that match what was signed, and a signed seed that they are not the shares of."""
    pairs = zip(honest.leaves[::2], honest.leaves[1::2], strict=True)
    root = MerkleTree([pair_node(*pair) for pair in pairs]).root
    other = pb.SealedShares()
    other.CopyFrom(honest)
    other.seed_commitment = bytes(32)
    statement = dealing_statement(peer.phase.cohort.context, peer.identity.public, root, bytes(32))
    other.signature = peer.identity.sign(statement)
    return [peer.wrap(share_keys=other)]


async def test_a_proved_cheat_is_not_invited_again(study_folder: Path, tmp_path: Path) -> None:
    """The attempt can't be opened, and its own signature names who made it so; a restart doesn't forget."""
    state = tmp_path / "state.sqlite"
    async with coordinator(study_folder, state) as where:
        peers = where.peers({3: {"share_keys": false_commitment}})
        await where.play(peers)
        aborted = where.of("attempt_aborted")[0]
        assert (aborted["round"], aborted["attempt"], aborted["phase"]) == (1, 1, "Unmasking")
        assert aborted["reason"] == "shares rebuild no secret"
        [excluded] = where.of("participant_excluded")
        assert (excluded["participant"], excluded["host"]) == (3, "host-01")
        assert excluded["reason"] == "its shares rebuild another self-mask seed than it committed to"
        # Its charge stays, so that the budget of two rounds may end with the first.
        assert {round_["u1"] for round_ in where.of("round_completed")} == {PARTICIPANTS - 1}
        assert len(peers[3].heard("round_start")) == 1
    async with coordinator(study_folder, state) as where:
        assert list(where.study._membership.excluded) == [3]
