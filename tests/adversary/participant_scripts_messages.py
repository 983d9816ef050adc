"""Messages that are not what a phase asks for: malformed, unsigned, replayed, repeated, in somebody else's name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from secagg.keys import advertisement_statement, consistency_statement, upload_statement
from tests.adversary.cheating_participant import (
    ADVERTISE,
    CHECK,
    INPUT,
    KINDS,
    SHARE,
    SUM_OF_ALL,
    SUM_OF_OTHERS,
    UNMASK,
    Blame,
    Cheat,
    Cheater,
    Off,
    Twist,
    judge,
    play,
)
from tests.adversary.script import PARTICIPANT, Naive, Places, Script, Seen, register
from tests.secagg.attempts_in_memory import LOW_ORDER
from wire import codec
from wire import coordinator_pb2 as pb

NAMED = "the round ends in the exact sum of the others, and the cheat is named"
CORE, OPENING, CODEC = "secagg.server_phases", "secagg.unmasking", "wire.codec"
PROVED = False  # what the core refuses is the end of the study for its sender


def altered(content: Any, **changes: Any) -> Any:
    """A message with some fields replaced."""
    message = type(content)()
    message.CopyFrom(content)
    for name, value in changes.items():
        if isinstance(value, list):
            message.ClearField(name)
            getattr(message, name).extend(value)
        else:
            setattr(message, name, value)
    return message


def sends(kind: str, change: Callable[[Cheater, Any], Any]) -> dict[str, Twist]:
    """One message of a kind, made from the honest one."""
    return {kind: lambda cheater, honest: [cheater.wrap(**{kind: change(cheater, honest)})]}


def flipped(data: bytes, bit: int = 0) -> bytes:
    """One bit changed."""
    return data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]


def one_cheat(
    name: str,
    does: str,
    kind: str,
    twists: Mapping[str, Twist],
    reason: str,
    *check: Naive,
    must: str = NAMED,
    excluded: bool = PROVED,
    in_sum: bool | None = None,
    **options: Any,
) -> None:
    """Register a script in which participant 0 cheats once and is named in that phase for that reason."""
    counted = KINDS.index(kind) > KINDS.index(INPUT) if in_sum is None else in_sum

    async def run(places: Places) -> Seen:
        stage = await play(places, {0: Cheat(twists)}, **options)
        return judge(stage, Blame(0, kind, reason, excluded=excluded))

    outcome = SUM_OF_ALL if counted else SUM_OF_OTHERS
    register(Script(name, PARTICIPANT, does, must, outcome, check, run))


# ---------------------------------------------------------------- AdvertiseKeys


def resigned(cheater: Cheater, honest: pb.Advertisement, mask_key: bytes, channel_key: bytes) -> pb.Advertisement:
    """Other keys, signed as they should be."""
    keys = cheater.phase._keys
    statement = advertisement_statement(keys.round_context, cheater.identity.public, mask_key, channel_key)
    message = pb.Advertisement(mask_key=mask_key, channel_key=channel_key, signature=cheater.identity.sign(statement))
    cheater.phase._advertisement = codec.read_advertisement(message)  # else it would object itself
    return message


one_cheat(
    "keys-without-signature",
    "advertises keys that its identity has not signed",
    ADVERTISE,
    sends(ADVERTISE, lambda _, honest: altered(honest, signature=bytes(64))),
    "not signed",
    Off(CORE, without=("the keys are not signed by",), shows="an honest participant refused"),
)
one_cheat(
    "mask-key-of-low-order",
    "advertises a mask key with which every agreement is zero",
    ADVERTISE,
    sends(ADVERTISE, lambda me, honest: resigned(me, honest, LOW_ORDER[2], honest.channel_key)),
    "low order",
    Off(CORE, without=("a public key is of low order",), shows="an honest participant refused"),
)
one_cheat(
    "channel-key-of-low-order",
    "advertises a channel key with which every agreement is zero",
    ADVERTISE,
    sends(ADVERTISE, lambda me, honest: resigned(me, honest, honest.mask_key, LOW_ORDER[5])),
    "low order",
    Off(CORE, without=("a public key is of low order",), shows="an honest participant refused"),
)
one_cheat(
    "one-key-for-two-purposes",
    "advertises one key as mask key and as channel key",
    ADVERTISE,
    sends(ADVERTISE, lambda me, honest: resigned(me, honest, honest.mask_key, honest.mask_key)),
    "advertised before",
    Off(CORE, without=("a public key was advertised before",), shows="an honest participant refused"),
)
one_cheat(
    "short-key",
    "advertises a key of one byte",
    ADVERTISE,
    sends(ADVERTISE, lambda _, honest: altered(honest, mask_key=b"k")),
    "32 bytes",
    Off(
        CODEC,
        without=("bytes, not",),
        also=(Off(CORE, without=("a public key is not 32 bytes long",)),),
        shows="low order",
    ),
    excluded=False,
)


async def key_of_another(places: Places) -> Seen:
    """Two in league advertise one key between them."""

    async def second(cheater: Cheater, honest: pb.Advertisement) -> Any:
        assert cheater.stage is not None
        first = cheater.stage.cheaters[0]
        while ADVERTISE not in first.before:
            await _moment()
        key = first.before[ADVERTISE].mask_key
        return [cheater.wrap(advertise_keys=resigned(cheater, honest, key, honest.channel_key))]

    stage = await play(places, {0: Cheat(), 1: Cheat({ADVERTISE: second})})
    return judge(stage, Blame(1, ADVERTISE, "advertised before", excluded=PROVED))


register(
    Script(
        "key-of-another",
        PARTICIPANT,
        "advertises the mask key of another one",
        NAMED,
        SUM_OF_OTHERS,
        (Off(CORE, without=("a public key was advertised before",), shows="an honest participant refused"),),
        key_of_another,
    )
)


async def _moment() -> None:
    import asyncio

    await asyncio.sleep(0.002)
