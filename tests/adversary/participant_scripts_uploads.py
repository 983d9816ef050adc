"""Vectors that are cut off, crawl, have another length, content or owner, or come when none is due."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import numpy as np

from secagg.masking import word_dtype
from secagg.packing import pack, packed_size, unpack
from tests.adversary.cheating_participant import INPUT, Cheat, Cheater
from tests.adversary.participant_scripts_messages import CORE, LEFT_OUT, NAMED, offer, sends
from tests.adversary.participant_verdict import SHIFTED, SUM_OF_ALL, SUM_OF_OTHERS, Blame, study_script
from tests.adversary.script import Naive
from tests.adversary.study_with_cheats import Off, Stage
from tests.support.attempts_in_memory import flipped
from wire.transport import CHUNK_BYTES, LARGEST_FRAME, frame, frames

UPLOADS = "server.attempt.uploads"
STALL_S = 1.0
Uploader = Callable[[Cheater, bytes], Awaitable[None]]


def one_upload(
    script: str,
    uploader: Uploader,
    reason: str,
    *check: Naive,
    must: str = NAMED,
    told: str = "",
    most_read: int = LARGEST_FRAME,
    **options: Any,
) -> None:
    """Register a script in which participant 0 uploads differently, once.

    ``told``: a piece of the coordinator's answer to the upload; leave it out if the upload does not end.
    """

    def other_answer(stage: Stage) -> str:
        error = stage.cheaters[0].upload_error
        answer = "" if error is None else error.details() or ""
        # gRPC's own code for an answer that it lost when a write failed on a call that had ended.
        lost = error is not None and error.code() is grpc.StatusCode.INTERNAL
        return "" if told in answer or lost else "the upload gets another answer"

    blames = [Blame(0, INPUT, reason, excluded=must == NAMED)]
    cheats = {0: Cheat(uploader=uploader)}
    study_script(
        script, must, SUM_OF_OTHERS, cheats, *check, blames=blames, broken=other_answer, most_read=most_read, **options
    )


def sending(messages: Callable[[bytes], Any]) -> Uploader:
    """Make the uploader that sends the messages made of the packed vector."""

    async def upload(cheater: Cheater, packed: bytes) -> None:
        await cheater.upload(messages(packed))

    return upload


def signed_and_uploaded(change: Callable[[bytes], bytes]) -> Cheat:
    """Sign and upload the packed vector changed in this way, with a correct digest and signature."""

    def signed(cheater: Cheater, _: Any) -> Any:
        return offer(cheater, hashlib.sha256(change(cheater.packed)).digest())

    return Cheat(sends(INPUT, signed), sending(lambda packed: frames(change(packed))))


async def endless(_: bytes) -> AsyncIterator[bytes]:
    for _ in range(64):
        yield frame(bytes(CHUNK_BYTES))
        await asyncio.sleep(0.002)


one_upload(
    "upload-too-long: uploads a byte more than a vector has",
    sending(lambda packed: frames(packed + b"\0")),
    "longer than",
    Off.lacking(
        UPLOADS,
        "the vector is longer than",
        "len(staged) != self.size",
        also=(Off.lacking(CORE, "the upload has"),),
        shows="is not named",
    ),
    told="longer than",
)
one_upload(
    "upload-too-short: uploads a byte less than a vector has",
    sending(lambda packed: frames(packed[:-1])),
    "has 47 bytes",
    Off.lacking(UPLOADS, "len(staged) != self.size", shows="gets another answer"),
    must=LEFT_OUT,
    told="47 bytes",
)
one_upload(
    "empty-upload: ends its upload before it has begun",
    sending(lambda _: frames(b"")),
    "has 0 bytes",
    Off.lacking(UPLOADS, "len(staged) != self.size", shows="gets another answer"),
    must=LEFT_OUT,
    told="0 bytes",
)
one_upload(
    "endless-upload: uploads without an end",
    sending(endless),
    "longer than",
    Off.lacking(UPLOADS, "the vector is longer than", shows="more of an upload is read"),
    most_read=2 * LARGEST_FRAME,
)
one_upload(
    "another-vector: uploads another vector than the one it signed",
    sending(lambda packed: frames(flipped(packed))),
    "digest that was signed",
    Off.lacking(CORE, "doesn't have the digest that was signed", shows="opens a wrong sum"),
    told="not taken",
)
one_upload(
    "bytes-that-are-no-chunk: uploads bytes that are not framed",
    sending(lambda packed: [packed]),
    "not a chunk",
    Off.lacking("wire.transport", "not a chunk", shows="is not named"),
    told="chunk",
)
one_upload(
    "oversize-chunk: uploads a chunk that is larger than any may be",
    sending(lambda _: [b"\x0a\x81\x80\x10" + bytes(CHUNK_BYTES + 1)]),
    "chunk",
    told="chunk",
    most_read=2 * LARGEST_FRAME,
)


study_script(
    "short-vector-that-is-signed: signs a vector that is a byte short, and uploads it",
    LEFT_OUT,
    SUM_OF_OTHERS,
    {0: signed_and_uploaded(lambda packed: packed[:-1])},
    Off.lacking(UPLOADS, "len(staged) != self.size", also=(Off.lacking(CORE, "the upload has"),), shows="is not named"),
    blames=[Blame(0, INPUT, "has 47 bytes")],
)


# ---------------------------------------------------------------- padding


def padded(packed: bytes) -> bytes:
    """Set the last unused bit: only the bits after the last entry reveal this cheat, the digest is right."""
    changed = flipped(packed, 8 * packed_size(4, 15) - 1)
    assert changed > packed, "the vector has no unused bits"
    return changed


study_script(
    "padding-bits: uploads and signs a vector with bits set after its last entry",
    NAMED,
    SUM_OF_OTHERS,
    {0: signed_and_uploaded(padded)},
    Off.lacking("secagg.packing", "unused bits at the end", shows="is not named"),
    blames=[Blame(0, INPUT, "unused bits", excluded=True)],
    study={"task_options": {"dim": 4}, "bits": 15},
)


# ---------------------------------------------------------------- streams that break off or crawl


async def half(packed: bytes) -> AsyncIterator[bytes]:
    yield frame(packed[: len(packed) // 2])
    await asyncio.sleep(3600)


async def crawl(packed: bytes) -> AsyncIterator[bytes]:
    """Send without a stall, but too slowly."""
    for at in range(len(packed)):
        yield frame(packed[at : at + 1])
        await asyncio.sleep(0.2)


def broken_off(end: Callable[[Cheater], Awaitable[None]]) -> Uploader:
    """Make the uploader that ends in this way when the coordinator has the first half."""

    async def upload(cheater: Cheater, packed: bytes) -> None:
        call = asyncio.create_task(cheater.upload(half(packed)))
        await cheater.until(lambda: cheater.known.uploaded[cheater.me] > 0)
        await end(cheater)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)

    return upload


async def close_channel(cheater: Cheater) -> None:
    """Break the connection of session and upload."""
    assert cheater.channel is not None
    await cheater.channel.close()


# gRPC can report a broken connection as a stream that its sender has ended.
EXCLUDES = Off.instead(
    UPLOADS, 'raise BrokenUpload(f"the vector has', 'raise MalformedUpload(f"the vector has', shows="is excluded"
)

one_upload(
    "upload-given-up: gives up its upload in the middle",
    broken_off(lambda _: asyncio.sleep(0)),
    "upload failed",
    EXCLUDES,
    must=LEFT_OUT,
)
one_upload(
    "connection-that-breaks-in-an-upload: loses its connection in the middle of its upload, and stays away",
    broken_off(close_channel),
    "",
    must=LEFT_OUT,
)
one_upload(
    "upload-broken-off-and-back: cuts its session in the middle of its upload, and comes back at once",
    broken_off(lambda cheater: cheater.leave(returns=True)),
    "",
    must="its upload is ignored; the round ends in the exact sum of the others, and the next one is with it",
)
one_upload(
    "upload-that-stalls: uploads half a vector and then nothing",
    sending(half),
    "nothing arrived",
    must=LEFT_OUT,
    stall_s=STALL_S,
    told="nothing arrived",
)
one_upload(
    "upload-that-crawls: uploads a byte every now and then, and keeps its place without limit",
    sending(crawl),
    "at less than 16 KiB a second",
    Off.instead(UPLOADS, "(min(arrived + self.stall_s, self._latest(offer)))\n", "(arrived + self.stall_s)\n"),
    must=LEFT_OUT,
    stall_s=STALL_S,
)
one_upload(
    "upload-that-never-begins: asks for its turn to upload, while others wait for theirs, and then is silent",
    lambda cheater, packed: asyncio.sleep(0),
    "nothing arrived",
    must="its turn passes on: the round ends in the exact sum of the others, and it is left out of this attempt only",
    stall_s=STALL_S,
    coordinator_table={"upload_credits": 1},
)


# ---------------------------------------------------------------- uploads that are not due


def in_addition(
    script: str, must: str, cheat: Cheat, *check: Naive, refusals: int = 1, reason: str = "no upload is expected"
) -> None:
    """Register a script of uploads beside the one that is due: they are refused and change nothing.

    ``refusals``: how many there must be, all for this reason.
    """

    def taken(stage: Stage) -> str:
        answers = stage.cheaters[0].answers
        right = len(answers) == refusals and all(reason in answer for answer in answers)
        return "" if right else "an upload that is not due is not refused"

    study_script(script, must, SUM_OF_ALL, {0: cheat}, *check, broken=taken)


async def again_when_done(cheater: Cheater, packed: bytes) -> None:
    await cheater.upload(frames(packed))
    await cheater.unread_upload(frames(packed))


async def two_at_once(cheater: Cheater, packed: bytes) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def first() -> AsyncIterator[bytes]:
        yield frame(packed[:3])
        begun.set()
        await go_on.wait()
        yield frame(packed[3:])

    one = asyncio.create_task(cheater.upload(first()))
    await begun.wait()
    await cheater.until(lambda: cheater.known.uploaded[cheater.me] > 0)
    try:
        await cheater.unread_upload(frames(packed))
    finally:
        go_on.set()
        await one


async def too_early(cheater: Cheater, honest: Any) -> Any:
    await cheater.unread_upload(frames(cheater.packed))
    return honest


async def with_wrong_tokens(cheater: Cheater, packed: bytes) -> None:
    """Use a guess, a piece of the token, none, and one with a changed bit; a token is 32 random bytes."""
    assert cheater.session is not None
    own = cheater.session.welcome.session_token
    for token in (bytes(32), own[:16], b"", flipped(own)):
        await cheater.unread_upload(frames(packed), token)
    await cheater.upload(frames(packed))


# In `Uploads.stage`: the beginning of its condition, which no other place has.
EXPECTED = "offer is None or offer.begin is None or not offer.granted or offer.complete or"
UNASKED = {EXPECTED: "offer is None and"}
STILL_HOLDS_IT = {"        if not offer.granted:\n            raise": "        if False:\n            raise"}
STILL_READ = {f"{' ' * 24}if not offer.granted:\n": f"{' ' * 24}if False:\n"}
SECOND_TIME = {"sender in self.u2 and sender not in self._u3": "sender in self.u2"}
ONCE = "the vector counts once: the round ends in the exact sum, and the second stream is refused unread"
in_addition(
    "uploads-again: uploads its vector a second time once it counts",
    ONCE,
    Cheat(uploader=again_when_done),
    Off(UPLOADS, changed=UNASKED, shows="participant 0 is dropped"),
    Off(
        UPLOADS,
        changed={**UNASKED, **STILL_HOLDS_IT, **STILL_READ},
        also=(Off(CORE, changed=SECOND_TIME),),
        shows="opens a wrong sum",
    ),
)
in_addition(
    "uploads-in-two-streams: uploads its vector in two streams at the same time",
    ONCE,
    Cheat(uploader=two_at_once),
    Off(UPLOADS, changed=UNASKED, shows="participant 0 is dropped"),
)
in_addition(
    "upload-without-credit: uploads a vector that it has not offered",
    "the upload is refused unread; offered and sent in its turn the same vector counts once",
    Cheat(sends(INPUT, too_early)),
    Off.instead(UPLOADS, EXPECTED, "offer is not None and"),
)
in_addition(
    "token-of-another-participant: uploads with tokens that it guesses",
    "each is refused; the round ends in the exact sum, and no other participant is affected",
    Cheat(uploader=with_wrong_tokens),
    Off.instead(
        "server.sessions", "return self._by_token.get(token)", "return next(iter(self._by_token.values()), None)"
    ),
    refusals=4,
    reason="no open session has this token",
)


async def by_a_partner(cheater: Cheater, packed: bytes) -> None:
    """Let participant 1 upload the vector with the token of participant 0, where that is known: at its gateway."""
    assert cheater.session is not None
    partner = cheater.known.cheaters[1]
    async with partner.dial(cheater.at) as channel:  # the partner's own upload is under way on the other one
        await partner.upload(frames(packed), cheater.session.welcome.session_token, channel)


study_script(
    "upload-for-a-partner: uploads the signed vector of a participant that gave it the token",
    "it counts as that participant's, once: the round ends in the exact sum",
    SUM_OF_ALL,
    {0: Cheat(uploader=by_a_partner), 1: Cheat()},
)


# ---------------------------------------------------------------- what nothing stops

SHIFT, BITS = np.arange(8, dtype=np.uint16) * 8191 + 1, 16


def shifted(packed: bytes) -> bytes:
    size = packed_size(8, BITS)
    vector = unpack(packed[:size], 8, BITS) + SHIFT
    return bytes(pack(vector.astype(word_dtype(BITS)), BITS)) + packed[size:]


study_script(
    "shift-of-the-sum: adds anything to its own vector, of any size",
    "the sum is shifted by exactly that, modulo 2^B, and nothing reveals it",
    SHIFTED,
    {0: signed_and_uploaded(shifted)},
    possible=True,
    shift={1: SHIFT},
)
