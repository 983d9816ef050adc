"""Messages that are damaged, out of order or no messages at all, in each phase."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from tests.adversary.attempt_in_hand import Attempt
from tests.adversary.cheating_coordinator import cheating
from tests.adversary.coordinator_notes import Notes
from tests.adversary.coordinator_scripts import ALL, COVERS, HONEST, VICTIM, naive
from tests.adversary.coordinator_scripts_keys import UNSIGNED, completes
from tests.adversary.script import COORDINATOR, Naive, Places, Seen, scripted
from wire import coordinator_pb2 as pb

DEALING = "the dealing of {dealt.dealer} is not signed by it"


def flip(data: bytes, bit: int = 77) -> bytes:
    """One bit changed."""
    at = bit // 8 % len(data)
    return data[:at] + bytes([data[at] ^ (1 << bit % 8)]) + data[at + 1 :]


# ---------------------------------------------------------------- one bit, one byte

Damage = Callable[[Any], None]


def of(path: str, change: Callable[[bytes], bytes]) -> Damage:
    """Change the field at the end of a path: names and indices with dots between them."""

    def damage(message: Any) -> None:
        *way, name = path.split(".")
        for step in way:
            message = message[int(step)] if step.lstrip("-").isdigit() else getattr(message, step)
        setattr(message, name, change(getattr(message, name)))

    return damage


def cut(data: bytes) -> bytes:
    return data[:-1]


def longer(data: bytes) -> bytes:
    return data + bytes(1)


def much_longer(data: bytes) -> bytes:
    return data + bytes(1 << 20)


async def damaged(places: Places, kind: str, never: str, *damages: Damage) -> Seen:
    """Each honest participant gets the message with another damage; more damages than participants take turns."""
    async with cheating(places) as coordinator:
        for round_, start in enumerate(range(0, len(damages), len(HONEST)), 1):
            those = damages[start : start + len(HONEST)]
            coordinator.twist[kind] = lambda who, message, those=those: those[who % len(those)](message)
            attempt = await coordinator.begin(round_)
            await attempt.run()
            seen = attempt.verdict(never=never)
            if seen.outcome != "refused":
                return seen
        return seen


NEIGHBOUR = "members.4.advertisement"  # of everybody but participant 4, to whom it is its own


@scripted(
    name="damaged-advertisements",
    cheat=COORDINATOR,
    does="Changes one bit, or the length, of a key or a signature in u1.",
    must="Everybody refuses before they deal.",
    outcome="refused",
    check=(naive(UNSIGNED, shows="goes on"),),
)
async def damaged_advertisements(places: Places) -> Seen:
    fields = [f"{NEIGHBOUR}.{name}" for name in ("mask_key", "channel_key", "signature")]
    changes = (flip, cut, longer, much_longer)
    return await damaged(places, "cohort_keys", "share_keys", *(of(path, how) for path in fields for how in changes))


@scripted(
    name="damaged-dealings",
    cheat=COORDINATOR,
    does="Changes one bit of a dealing's root, or of u2.",
    must="Everybody refuses before they mask.",
    outcome="refused",
    check=(naive(DEALING, shows="goes on"),),
)
async def damaged_dealings(places: Places) -> Seen:
    fields = [of("shares.2.root", how) for how in (flip, cut)]
    return await damaged(
        places, "neighbour_shares", "masked_input", *fields, of("u2", longer), of("u2", cut), of("u2", flip)
    )


@scripted(
    name="damaged-shares",
    cheat=COORDINATOR,
    does="Changes a bit of one ciphertext, or of its path, for each participant.",
    must="The dealer stays in u2, its share counts as missing, and the sum comes out.",
    outcome="sum",
    check=(
        naive(
            changed=(
                (
                    "        if plaintext is None:\n            return None\n",
                    "        if plaintext is None:\n            raise CoordinatorMisbehaved(self.name, 'no share')\n",
                ),
            ),
            shows="some refuse",
        ),
    ),
)
async def damaged_shares(places: Places) -> Seen:
    async with cheating(places) as coordinator:

        def damage(who: int, message: pb.NeighbourShares) -> None:
            one = message.shares[who % len(message.shares)]
            if who % 2:
                one.path = flip(one.path)
            else:
                one.ciphertext = flip(one.ciphertext) if who % 4 else one.ciphertext[:-1]

        coordinator.twist["neighbour_shares"] = damage
        attempt = await coordinator.begin()
        cohort = await attempt.run()
        return coordinator.came_out("sum") if attempt.opened(cohort, ALL) else attempt.verdict()


@scripted(
    name="damaged-survivor-sets",
    cheat=COORDINATOR,
    does="Changes a bit of u2, or cuts or lengthens a bitmap, up to a megabyte.",
    must="Everybody refuses to sign.",
    outcome="refused",
    check=(
        Naive(
            "secagg.messages",
            without=("the bitmap doesn't have one bit for each member of u1", "unused bits of the bitmap are set"),
        ),
    ),
)
async def damaged_sets(places: Places) -> Seen:
    changes = [of("u3", how) for how in (cut, longer, much_longer)] + [of("u2", how) for how in (cut, longer, flip)]
    return await damaged(places, "survivor_sets", "consistency", *changes)


@scripted(
    name="damaged-request",
    cheat=COORDINATOR,
    does="Changes a bit of one signature in the request for shares, or its length, or names another signer.",
    must="Everybody refuses.",
    outcome="refused",
    check=(naive(COVERS, shows="goes on"),),
)
async def damaged_request(places: Places) -> Seen:
    def renamed(message: Any) -> None:
        message.signatures[-1].participant = 99

    def swapped(message: Any) -> None:
        one, other = message.signatures[0], message.signatures[1]
        one.signature, other.signature = other.signature, one.signature

    changes = [of("signatures.1.signature", how) for how in (flip, cut, longer, much_longer)]
    return await damaged(places, "unmasking_request", "unmasking", *changes, renamed, swapped)


@scripted(
    name="damaged-round-start",
    cheat=COORDINATOR,
    does="Changes a bit of the study's or the roster's digest in the announcement of a round, or its length.",
    must="Everybody refuses, and takes part in the next round.",
    outcome="sum",
    check=(Naive("client.participant", without=("the round names another study document",), shows="goes on"),),
)
async def damaged_start(places: Places) -> Seen:
    changes = [of(name, how) for name in ("study_sha256", "roster_sha256") for how in (flip, cut, longer)]
    async with cheating(places) as coordinator:
        coordinator.twist["round_start"] = lambda who, message: changes[who % len(changes)](message)
        attempt = await coordinator.begin(1)
        seen = attempt.verdict(never="advertise_keys")
        coordinator.twist.clear()
        return await completes(coordinator, 2, 1) if seen.outcome == "refused" else seen


# ---------------------------------------------------------------- noise


@scripted(
    name="noise-in-every-phase",
    cheat=COORDINATOR,
    does="Sends each participant, in the place of one message of each phase, bytes that were cut, flipped anywhere or "
    "drawn at random, and messages of megabytes.",
    must="Nothing crashes or opens; whoever can't read a message refuses or connects again, and an honest round "
    "afterwards gives a sum.",
    outcome="sum",
    check=(
        Naive(
            "client.participant",
            changed=(
                ("except (CoordinatorMisbehaved, MalformedMessage, DocumentMismatch) as", "except DocumentMismatch as"),
                ("except (InvalidUpdate, ValueError, ArithmeticError) as", "except ArithmeticError as"),
            ),
            shows="crashes",
        ),
    ),
)
async def noise(places: Places) -> Seen:
    kinds = ["round_start", "cohort_keys", "neighbour_shares", "upload_credit", "survivor_sets", "unmasking_request"]
    async with cheating(places) as coordinator:
        for round_, kind in enumerate(kinds, 1):
            coordinator.twist[kind] = partial(spoilt, random.Random(f"noise {kind}"), kind)
            attempt = await coordinator.begin(round_)
            await attempt.run()
            coordinator.twist.clear()
            faults = [fault for one in coordinator.clients.values() for fault in one.faults]
            if faults:
                return coordinator.came_out("crashes", faults[0])
            await coordinator.ready()
        return await completes(coordinator, len(kinds) + 1, 1)


def spoilt(source: random.Random, kind: str, who: int, message: Any) -> list[bytes]:
    """Another kind of damage for each participant."""
    whole = pb.CoordinatorMessage(**{kind: message}).SerializeToString()
    match who:
        case 0:
            return [whole[: len(whole) // 2]]
        case 1:
            return [source.randbytes(100)]
        case 2:
            return [whole + b"\x0a" + b"\xff" * 5]
        case 3:
            return [swollen(kind, message).SerializeToString()]
        case _:
            return [flip(whole, source.randrange(16, 8 * len(whole)))]


def swollen(kind: str, message: Any) -> pb.CoordinatorMessage:
    """Megabytes in each field of bytes, thousands of entries in each list."""
    big = pb.CoordinatorMessage(**{kind: message})
    content = getattr(big, kind)
    for field in content.DESCRIPTOR.fields:
        value = getattr(content, field.name)
        if isinstance(value, bytes):
            setattr(content, field.name, bytes(4 << 20))
        elif field.message_type is not None and hasattr(value, "extend") and value:
            value.extend([value[0]] * 20_000)
    return big


# ---------------------------------------------------------------- order


@scripted(
    name="out-of-order",
    cheat=COORDINATOR,
    does="Sends, in each phase, the messages of all other phases, word for word from the attempt before.",
    must="Each is refused, and nothing but the refusal is said; only survivors may be signed before the upload that "
    "they count on was asked for.",
    outcome="refused",
    check=(
        Naive("client.participant", without=("is out of order",), also=(naive("is not what this phase waits for"),)),
    ),
)
async def out_of_order(places: Places) -> Seen:
    kept: dict[str, pb.CoordinatorMessage] = {}

    def keep(kind: str) -> Callable[[int, Any], None]:
        def note(who: int, message: Any) -> None:
            if who == VICTIM:
                kept[kind] = pb.CoordinatorMessage(**{kind: message})

        return note

    kinds = ["cohort_keys", "neighbour_shares", "upload_credit", "survivor_sets", "unmasking_request"]
    async with cheating(places) as coordinator:
        coordinator.twist = {kind: keep(kind) for kind in kinds}
        first = await coordinator.begin(1, 1)
        await first.run()
        coordinator.twist.clear()
        for number, expected in enumerate([*kinds, "nothing"], 2):
            attempt = await coordinator.begin(1, number)
            cohort = attempt.cohort()
            await up_to(attempt, cohort, expected)
            wrong = [kind for kind in kinds if kind != expected and (kind, expected) not in EARLIER]
            said = {who: len(coordinator.clients[who].said) for who in HONEST}
            for who, kind in zip(sorted(HONEST), wrong, strict=False):
                message = pb.CoordinatorMessage()
                message.CopyFrom(kept[kind])
                getattr(message, kind).attempt = number
                await coordinator.tell({who: message})
                answers = coordinator.clients[who].said[said[who] :]
                if [one[1:] for one in answers] != [("refusal", pb.REFUSAL_CODE_COORDINATOR_MISBEHAVED)]:
                    seen = attempt.verdict([who])
                    what = "crashes" if seen.outcome == "crashes" else "goes on"
                    return replace(seen, outcome=what, detail=f"{kind} where {expected} was due: {seen.detail}")
        return coordinator.came_out("refused")


# Whoever has masked may sign: the digest of the upload is out, and u3 must hold it.
EARLIER = {("survivor_sets", "upload_credit")}


async def up_to(attempt: Attempt, cohort: Notes, expected: str) -> None:
    """Honestly, until this message would be next."""
    if expected == "cohort_keys":
        return
    await attempt.show(cohort)
    if expected == "neighbour_shares":
        return
    await attempt.tell_u2(cohort, credit=expected != "upload_credit")
    if expected in ("upload_credit", "survivor_sets"):
        return
    signed = await attempt.ask_to_sign(cohort, (ALL, ALL))
    if expected != "unmasking_request":
        await attempt.ask_to_unmask(cohort, (ALL, ALL), signed)
