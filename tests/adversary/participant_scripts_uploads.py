"""Vectors that are cut off, crawl, have another length, another content or another owner, or come when none is due."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy as np

from secagg.masking import word_dtype
from secagg.packing import pack, packed_size, unpack
from tests.adversary.cheating_participant import INPUT, Cheat, Cheater
from tests.adversary.participant_scripts_messages import CORE, LEFT_OUT, NAMED, flipped, offer
from tests.adversary.participant_verdict import SHIFTED, SUM_OF_ALL, SUM_OF_OTHERS, Blame, judge, register
from tests.adversary.script import PARTICIPANT, Naive, Places, Script, Seen
from tests.adversary.study_with_cheats import Off, Stage, play
from wire.transport import CHUNK_BYTES, LARGEST_FRAME, frame, frames

UPLOADS, ROUNDS = "server.attempt.uploads", "server.attempt.attempt"
VECTOR = 16  # bytes of the vectors here: 8 entries of 16 bits
STALL_S = 1.0


def one_upload(
    name: str,
    does: str,
    upload: Any,
    reason: str,
    *check: Naive,
    must: str = NAMED,
    excluded: bool = True,
    told: str = "",
    most_read: int = LARGEST_FRAME,
    **options: Any,
) -> None:
    """Register a script in which participant 0 uploads otherwise, once.

    Args:
        told: a piece of what the coordinator answers to the upload, where it can't come before the upload's end.
    """

    async def run(places: Places) -> Seen:
        stage = await play(places, {0: Cheat(uploader=upload)}, **({"participants": 5} | options))
        error = stage.cheaters[0].upload_error
        answer = "" if error is None else error.details() or ""
        # gRPC's own word for an answer that it lost with a write which failed on a call that had ended.
        lost = error is not None and error.code() is grpc.StatusCode.INTERNAL
        also = ("the upload gets another answer",) if told not in answer and not lost else ()
        return judge(stage, Blame(0, INPUT, reason, excluded=excluded), most_read=most_read, also=also)

    register(Script(name, PARTICIPANT, does, must, SUM_OF_OTHERS, check, run))


async def too_long(cheater: Cheater, packed: bytes) -> None:
    await cheater.upload(frames(packed + b"\0"))


async def too_short(cheater: Cheater, packed: bytes) -> None:
    await cheater.upload(frames(packed[:-1]))


async def nothing_at_all(cheater: Cheater, _: bytes) -> None:
    await cheater.upload(frames(b""))


async def another_vector(cheater: Cheater, packed: bytes) -> None:
    await cheater.upload(frames(flipped(packed)))


async def no_chunk(cheater: Cheater, packed: bytes) -> None:
    await cheater.upload([packed])


async def oversize_chunk(cheater: Cheater, _: bytes) -> None:
    await cheater.upload([b"\x0a\x81\x80\x10" + bytes(CHUNK_BYTES + 1)])


async def endless(cheater: Cheater, packed: bytes) -> None:
    async def more() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield frame(bytes(CHUNK_BYTES))
            await asyncio.sleep(0.002)

    await cheater.upload(more())


one_upload(
    "upload-too-long",
    "uploads a byte more than a vector has",
    too_long,
    "longer than",
    Off(
        UPLOADS,
        without=("the vector is longer than", "len(staged) != self.size"),
        also=(Off(CORE, without=("the upload has",)),),
        shows="is not named",
    ),
    told="longer than",
)
one_upload(
    "upload-too-short",
    "uploads a byte less than a vector has",
    too_short,
    "has 15 bytes",
    Off(UPLOADS, without=("len(staged) != self.size",), shows="gets another answer"),
    must=LEFT_OUT,
    excluded=False,
    told="15 bytes",
)
one_upload(
    "empty-upload",
    "ends its upload before it has begun",
    nothing_at_all,
    "has 0 bytes",
    Off(UPLOADS, without=("len(staged) != self.size",), shows="gets another answer"),
    must=LEFT_OUT,
    excluded=False,
    told="0 bytes",
)
one_upload(
    "endless-upload",
    "uploads without an end",
    endless,
    "longer than",
    Off(UPLOADS, without=("the vector is longer than",), shows="more of an upload is read"),
    most_read=2 * LARGEST_FRAME,
)
one_upload(
    "another-vector",
    "uploads another vector than the one it signed",
    another_vector,
    "digest that was signed",
    Off(CORE, without=("doesn't have the digest that was signed",), shows="opens a wrong sum"),
    told="not taken",
)
one_upload(
    "bytes-that-are-no-chunk",
    "uploads bytes that are not framed",
    no_chunk,
    "not a chunk",
    Off("wire.transport", without=("not a chunk",), shows="is not named"),
    told="chunk",
)
one_upload(
    "oversize-chunk",
    "uploads a chunk that is larger than any may be",
    oversize_chunk,
    "chunk",
    told="chunk",
    most_read=2 * LARGEST_FRAME,
)


def too_short_and_signed(cheater: Cheater, _: Any) -> Any:
    return [cheater.wrap(masked_input=offer(cheater, hashlib.sha256(cheater.packed[:-1]).digest()))]


async def short_by_signature(places: Places) -> Seen:
    stage = await play(places, {0: Cheat({INPUT: too_short_and_signed}, too_short)}, participants=5)
    return judge(stage, Blame(0, INPUT, "has 15 bytes"))


register(
    Script(
        "short-vector-that-is-signed",
        PARTICIPANT,
        "signs a vector that is a byte short, and uploads it",
        LEFT_OUT,
        SUM_OF_OTHERS,
        (
            Off(
                UPLOADS,
                without=("len(staged) != self.size",),
                also=(Off(CORE, without=("the upload has",)),),
                shows="is not named",
            ),
        ),
        short_by_signature,
    )
)


# ---------------------------------------------------------------- padding


def padded(packed: bytes) -> bytes:
    """With the last unused bit set."""
    return packed[:-1] + bytes([packed[-1] | 0x80])


async def padding_bits(places: Places) -> Seen:
    """The digest is right, so that only the bits behind the last entry give it away."""

    def signs(cheater: Cheater, _: Any) -> Any:
        return [cheater.wrap(masked_input=offer(cheater, hashlib.sha256(padded(cheater.packed)).digest()))]

    async def uploads(cheater: Cheater, packed: bytes) -> None:
        assert padded(packed) != packed, "the vector has no unused bits"
        await cheater.upload(frames(padded(packed)))

    study = {"task_options": {"dim": 4}, "bits": 15}
    stage = await play(places, {0: Cheat({INPUT: signs}, uploads)}, participants=5, study=study)
    return judge(stage, Blame(0, INPUT, "unused bits", excluded=True))


register(
    Script(
        "padding-bits",
        PARTICIPANT,
        "uploads and signs a vector with bits set behind its last entry",
        NAMED,
        SUM_OF_OTHERS,
        (Off("secagg.packing", without=("unused bits at the end",), shows="is not named"),),
        padding_bits,
    )
)


# ---------------------------------------------------------------- streams that break off or crawl


def half(packed: bytes) -> Any:
    async def chunks() -> AsyncIterator[bytes]:
        yield frame(packed[: len(packed) // 2])
        await asyncio.sleep(3600)

    return chunks()


async def gives_up(cheater: Cheater, packed: bytes) -> None:
    call = asyncio.create_task(cheater.upload(half(packed)))
    while not _reading(cheater):
        await asyncio.sleep(0.002)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)


async def connection_breaks(cheater: Cheater, packed: bytes) -> None:
    """Session, upload and all."""
    call = asyncio.create_task(cheater.upload(half(packed)))
    while not _reading(cheater):
        await asyncio.sleep(0.002)
    assert cheater.channel is not None
    await cheater.channel.close()
    await asyncio.gather(call, return_exceptions=True)


async def breaks_and_returns(cheater: Cheater, packed: bytes) -> None:
    call = asyncio.create_task(cheater.upload(half(packed)))
    while not _reading(cheater):
        await asyncio.sleep(0.002)
    await cheater.leave(returns=True)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)


def _reading(cheater: Cheater) -> bool:
    """Whether the coordinator has the first half."""
    assert cheater.stage is not None
    return cheater.stage.uploaded[cheater.me] > 0


async def stalls(cheater: Cheater, packed: bytes) -> None:
    await cheater.upload(half(packed))


async def crawls(cheater: Cheater, packed: bytes) -> None:
    """Never a stall, and never done."""

    async def chunks() -> AsyncIterator[bytes]:
        for at in range(len(packed)):
            yield frame(packed[at : at + 1])
            await asyncio.sleep(0.2)

    await cheater.upload(chunks())


async def never_begins(cheater: Cheater, packed: bytes) -> None:
    return None


# To gRPC a connection that breaks can look like a sender that has ended its stream.
EXCLUDES = Off(
    UPLOADS,
    changed=(('raise BrokenUpload(f"the vector has', 'raise MalformedUpload(f"the vector has'),),
    shows="is excluded",
)

one_upload(
    "upload-given-up",
    "gives up its upload in the middle",
    gives_up,
    "upload failed",
    EXCLUDES,
    must=LEFT_OUT,
    excluded=False,
)
one_upload(
    "connection-that-breaks-in-an-upload",
    "loses its connection in the middle of its upload, and stays away",
    connection_breaks,
    "",
    must=LEFT_OUT,
    excluded=False,
)
one_upload(
    "upload-broken-off-and-back",
    "cuts its session in the middle of its upload, and comes back at once",
    breaks_and_returns,
    "",
    must="nothing of its upload counts; the round ends in the exact sum of the others, and the next one is with it",
    excluded=False,
)
one_upload(
    "upload-that-stalls",
    "uploads half a vector and then nothing",
    stalls,
    "nothing arrived",
    must=LEFT_OUT,
    excluded=False,
    stall_s=STALL_S,
    told="nothing arrived",
)
one_upload(
    "upload-that-crawls",
    "uploads a byte every now and then, holding its place for as long as it likes",
    crawls,
    "at less than 16 KiB a second",
    Off(UPLOADS, changed=(("(min(arrived + self.stall_s, self._latest(offer)))\n", "(arrived + self.stall_s)\n"),)),
    must=LEFT_OUT,
    excluded=False,
    stall_s=STALL_S,
)
one_upload(
    "upload-that-never-begins",
    "asks for its turn to upload, while others wait for theirs, and then is silent",
    never_begins,
    "nothing arrived",
    must="its turn passes on: the round ends in the exact sum of the others, and it is left out of this attempt only",
    excluded=False,
    stall_s=STALL_S,
    coordinator_table={"upload_credits": 1},
)


# ---------------------------------------------------------------- uploads that nobody asked for


async def in_addition(places: Places, upload: Any, *, allowed: str) -> Seen:
    """An upload beside the one that is due: everything goes on as if it hadn't been."""
    refused: list[str] = []

    async def uploads(cheater: Cheater, packed: bytes) -> None:
        try:
            await upload(cheater, packed)
        except grpc.aio.AioRpcError as error:
            refused.append(error.details() or error.code().name)

    stage = await play(places, {0: Cheat(uploader=uploads)}, participants=5)
    also = () if any(allowed in one for one in refused) else ("the second upload is not refused",)
    return judge(stage, also=also)


async def again_when_done(cheater: Cheater, packed: bytes) -> None:
    await cheater.upload(frames(packed))
    await cheater.upload_unread(frames(packed))


async def two_at_once(cheater: Cheater, packed: bytes) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def first() -> AsyncIterator[bytes]:
        yield frame(packed[:3])
        begun.set()
        await go_on.wait()
        yield frame(packed[3:])

    one = asyncio.create_task(cheater.upload(first()))
    await begun.wait()
    while not _reading(cheater):
        await asyncio.sleep(0.002)
    try:
        await cheater.upload_unread(frames(packed))
    finally:
        go_on.set()
        await one


async def upload_twice(places: Places) -> Seen:
    return await in_addition(places, again_when_done, allowed="no upload is expected")


async def upload_two_streams(places: Places) -> Seen:
    return await in_addition(places, two_at_once, allowed="no upload is expected")


# Of `Uploads.stage`: its first words, so that no other place has them.
UNASKED = (("offer is None or offer.begin is None or not offer.granted or offer.complete or", "offer is None and"),)
STILL_HOLDS_IT = ("        if not offer.granted:\n            raise", "        if False:\n            raise")
STILL_READ = (f"{' ' * 24}if not offer.granted:\n", f"{' ' * 24}if False:\n")
SECOND_TIME = (("sender in self.u2 and sender not in self._u3", "sender in self.u2"),)
ONCE = "the vector counts once: the round ends in the exact sum, and the second stream is refused unread"
register(
    Script(
        "uploads-again",
        PARTICIPANT,
        "uploads its vector a second time once it counts",
        ONCE,
        SUM_OF_ALL,
        (
            Off(UPLOADS, changed=UNASKED, shows="participant 0 is dropped"),
            Off(
                UPLOADS,
                changed=(*UNASKED, STILL_HOLDS_IT, STILL_READ),
                also=(Off(CORE, changed=SECOND_TIME),),
                shows="opens a wrong sum",
            ),
        ),
        upload_twice,
    )
)
register(
    Script(
        "uploads-in-two-streams",
        PARTICIPANT,
        "uploads its vector in two streams at the same time",
        ONCE,
        SUM_OF_ALL,
        (Off(UPLOADS, changed=UNASKED, shows="participant 0 is dropped"),),
        upload_two_streams,
    )
)


async def without_credit(places: Places) -> Seen:
    """Before it has offered anything, and while it waits for its turn."""
    refused: list[str] = []

    async def early(cheater: Cheater, honest: Any) -> Any:
        try:
            await cheater.upload_unread(frames(cheater.packed))
        except grpc.aio.AioRpcError as error:
            refused.append(error.details() or "")
        return [cheater.wrap(masked_input=honest)]

    stage = await play(places, {0: Cheat({INPUT: early})}, participants=5)
    also = () if any("no upload is expected" in one for one in refused) else ("the upload is not refused",)
    return judge(stage, also=also)


register(
    Script(
        "upload-without-credit",
        PARTICIPANT,
        "uploads a vector that it has not offered",
        "the upload is refused unread; offered and sent in its turn the same vector counts once",
        SUM_OF_ALL,
        (
            Off(
                UPLOADS,
                changed=(
                    (
                        "offer is None or offer.begin is None or not offer.granted or offer.complete or",
                        "offer is not None and",
                    ),
                ),
            ),
        ),
        without_credit,
    )
)


async def others_token(places: Places) -> Seen:
    """A token is 32 random bytes of one session: a guess, a piece of one, none at all."""
    refused: list[str] = []

    async def uploads(cheater: Cheater, packed: bytes) -> None:
        assert cheater.session is not None
        own = cheater.session.welcome.session_token
        for token in (bytes(32), own[:16], b"", flipped(own)):
            try:
                await cheater.upload_unread(frames(packed), token)
            except grpc.aio.AioRpcError as error:
                refused.append(error.details() or "")
        await cheater.upload(frames(packed))

    stage = await play(places, {0: Cheat(uploader=uploads)}, participants=5)
    right = len(refused) == 4 and all("no open session has this token" in one for one in refused)
    return judge(stage, also=() if right else ("tokens that are nobody's are taken",))


register(
    Script(
        "token-of-somebody-else",
        PARTICIPANT,
        "uploads with tokens that it guesses",
        "each is refused; the round ends in the exact sum, and nobody else is touched",
        SUM_OF_ALL,
        (
            Off(
                "server.sessions",
                changed=(("return self._by_token.get(token)", "return next(iter(self._by_token.values()), None)"),),
            ),
        ),
        others_token,
    )
)


async def token_of_a_partner(places: Places) -> Seen:
    """One uploads for another who gave it the token: it is that one's vector, once, and signed by it."""

    async def instead(cheater: Cheater, packed: bytes) -> None:
        assert cheater.stage is not None
        partner = cheater.stage.cheaters[1]
        assert cheater.session is not None
        await partner.upload(frames(packed), cheater.session.welcome.session_token)

    stage = await play(places, {0: Cheat(uploader=instead), 1: Cheat()}, participants=5)
    return judge(stage)


register(
    Script(
        "upload-for-a-partner",
        PARTICIPANT,
        "uploads the signed vector of somebody who gave it the token",
        "it counts as that one's, once: the round ends in the exact sum",
        SUM_OF_ALL,
        (),
        token_of_a_partner,
    )
)


# ---------------------------------------------------------------- what nothing stops


async def shift(places: Places) -> Seen:
    """Its own vector, moved by what it likes, with a digest and a signature that are right."""
    by = np.arange(8, dtype=np.uint16) * 8191 + 1
    bits = 16

    def moved(packed: bytes) -> bytes:
        vector = unpack(packed, 8, bits)
        return pack((vector + by).astype(word_dtype(bits)), bits)

    def signs(cheater: Cheater, _: Any) -> Any:
        return [cheater.wrap(masked_input=offer(cheater, hashlib.sha256(moved(cheater.packed)).digest()))]

    async def uploads(cheater: Cheater, packed: bytes) -> None:
        assert len(packed) == packed_size(8, bits)
        await cheater.upload(frames(moved(packed)))

    stage: Stage = await play(places, {0: Cheat({INPUT: signs}, uploads)}, participants=5)
    return judge(stage, shift={1: by})


register(
    Script(
        "shift-of-the-sum",
        PARTICIPANT,
        "adds what it likes to its own vector, of any size",
        "the sum is shifted by exactly that, modulo 2^B, and nothing tells",
        SHIFTED,
        (),
        shift,
        documented_as_possible=True,
    )
)
