"""Messages that are damaged, out of order or unreadable, in each phase; and hybrid keys and seeds."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from secagg.commitments import MerkleTree, wrapped_node
from secagg.keys import KEY_BYTES, wrap_seed
from tests.adversary.attempt_in_hand import Attempt
from tests.adversary.cheating_coordinator import ANSWERS, CheatingCoordinator, in_attempt, with_coordinator
from tests.adversary.coordinator_scripts import ALL, COVERS, HONEST, VICTIM, naive
from tests.adversary.coordinator_scripts_keys import OTHER_DOCUMENT, UNSIGNED, by_colluder, cohort_shown, completes
from tests.adversary.script import Naive, Seen
from tests.support.attempts_in_memory import flipped
from tests.support.coordinator_notes import Notes
from wire import coordinator_pb2 as pb

DEALING = "the dealing of {dealt.dealer} is not signed by it"


flip = partial(flipped, bit=77)


# ---------------------------------------------------------------- one bit, one byte

Damage = Callable[[Any], None]


def of(path: str, change: Callable[[bytes], bytes]) -> Damage:
    """Change the field at the end of a path of names and indices, separated by dots."""

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


def damaged(kind: str, damages: list[Damage], script: str, must: str, *check: Naive, study: str = "nine") -> None:
    """Register a script in which each honest participant gets a message of a kind with another damage.

    If there are more damages than participants, the others follow in later rounds.
    """

    @with_coordinator(must, *check, script=script, study=study)
    async def run(coordinator: CheatingCoordinator) -> Seen:
        for round_, start in enumerate(range(0, len(damages), len(HONEST)), 1):
            those = damages[start : start + len(HONEST)]
            coordinator.twist[kind] = lambda who, message, those=those: those[who % len(those)](message)
            attempt = await coordinator.begin(round_)
            await attempt.run()
            seen = attempt.verdict(never=ANSWERS[kind])
            if seen.outcome != "refused":
                return seen
        return seen


NEIGHBOUR = "members.4.advertisement"  # for participant 4 it is its own


def renamed(message: Any) -> None:
    message.signatures[-1].participant = 99


def swapped(message: Any) -> None:
    one, other = message.signatures[0], message.signatures[1]
    one.signature, other.signature = other.signature, one.signature


damaged(
    "cohort_keys",
    [
        of(f"{NEIGHBOUR}.{name}", how)
        for name in ("mask_key", "channel_key", "signature")
        for how in (flip, cut, longer, much_longer)
    ],
    "damaged-advertisements: Changes one bit, or the length, of a key or a signature in u1.",
    "All refuse before they deal.",
    naive(UNSIGNED, shows="goes on"),
)
damaged(
    "neighbour_shares",
    [*(of("shares.2.root", how) for how in (flip, cut)), *(of("u2", how) for how in (longer, cut, flip))],
    "damaged-dealings: Changes one bit of a dealing's root, or of u2.",
    "All refuse before they mask.",
    naive(DEALING, shows="goes on"),
)
damaged(
    "survivor_sets",
    [*(of("u3", how) for how in (cut, longer, much_longer)), *(of("u2", how) for how in (cut, longer, flip))],
    "damaged-survivor-sets: Changes a bit of u2, or cuts or lengthens a bitmap, up to a megabyte.",
    "All refuse to sign.",
    Naive.lacking(
        "secagg.messages", "the bitmap doesn't have one bit for each member of u1", "unused bits of the bitmap are set"
    ),
)
damaged(
    "unmasking_request",
    [*(of("signatures.1.signature", how) for how in (flip, cut, longer, much_longer)), renamed, swapped],
    "damaged-request: Changes a bit of one signature in the request for shares, or its length, or names another "
    "signer.",
    "All refuse.",
    naive(COVERS, shows="goes on"),
)


UNREADABLE = "        if plaintext is None:\n            "


@in_attempt(
    "The dealer stays in u2, its share counts as missing, and the sum opens.",
    naive(
        changed={f"{UNREADABLE}return None\n": f"{UNREADABLE}raise CoordinatorMisbehaved(self.name, 'no share')\n"},
        shows="some refuse",
    ),
    outcome="sum",
)
async def damaged_shares(attempt: Attempt) -> Seen:
    """Changes a bit of one ciphertext, or of its path, for each participant."""

    def damage(who: int, message: pb.NeighbourShares) -> None:
        one = message.shares[who % len(message.shares)]
        if who % 2:
            one.path = flip(one.path)
        else:
            one.ciphertext = flip(one.ciphertext) if who % 4 else one.ciphertext[:-1]

    attempt.coordinator.twist["neighbour_shares"] = damage
    cohort = await attempt.run()
    return attempt.coordinator.came_out("sum") if attempt.opened(cohort, ALL) else attempt.verdict()


@with_coordinator("All refuse, and take part in the next round.", OTHER_DOCUMENT, outcome="sum")
async def damaged_round_start(coordinator: CheatingCoordinator) -> Seen:
    """Changes a bit of the study's or the roster's digest in the announcement of a round, or its length."""
    changes = [of(name, how) for name in ("study_sha256", "roster_sha256") for how in (flip, cut, longer)]
    coordinator.twist["round_start"] = lambda who, message: changes[who % len(changes)](message)
    seen = (await coordinator.begin()).verdict(never="advertise_keys")
    coordinator.twist.clear()
    return await completes(coordinator, 2) if seen.outcome == "refused" else seen


# ---------------------------------------------------------------- noise

KINDS = ["cohort_keys", "neighbour_shares", "upload_credit", "survivor_sets", "unmasking_request"]


@with_coordinator(
    "Nothing crashes or opens; a participant that can't read a message refuses or reconnects, and an honest round "
    "afterwards gives a sum.",
    Naive(
        "client.participant",
        changed={
            "except (CoordinatorMisbehaved, MalformedMessage, DocumentMismatch) as": "except DocumentMismatch as",
            "except (InvalidUpdate, ValueError, ArithmeticError) as": "except ArithmeticError as",
        },
        shows="crashes",
    ),
    outcome="sum",
)
async def noise_in_every_phase(coordinator: CheatingCoordinator) -> Seen:
    """Replaces one message of each phase by bytes that were cut, flipped anywhere or drawn at random, and by messages
    of megabytes."""
    for round_, kind in enumerate(["round_start", *KINDS], 1):
        coordinator.twist[kind] = partial(spoilt, random.Random(f"noise {kind}"), kind)
        attempt = await coordinator.begin(round_)
        await attempt.run()
        coordinator.twist.clear()
        faults = [fault for one in coordinator.clients.values() for fault in one.faults]
        if faults:
            return coordinator.came_out("crashes", faults[0])
        await coordinator.ready()
    return await completes(coordinator, len(KINDS) + 2)


def spoilt(source: random.Random, kind: str, who: int, message: Any) -> list[bytes]:
    """Return the message with another kind of damage for each participant."""
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
            return [flipped(whole, source.randrange(16, 8 * len(whole)))]


def swollen(kind: str, message: Any) -> pb.CoordinatorMessage:
    """Return the message with megabytes in each field of bytes and thousands of entries in each list."""
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


@with_coordinator(
    "Each is refused, and nothing else is sent. The only exception: survivors may be signed before the coordinator "
    "has asked for the upload.",
    Naive.lacking("client.participant", "is out of order", also=(naive("is not what this phase waits for"),)),
)
async def out_of_order(coordinator: CheatingCoordinator) -> Seen:
    """Sends, in each phase, the messages of all other phases, unchanged from the attempt before."""
    kept: dict[str, pb.CoordinatorMessage] = {}

    def keep(kind: str, who: int, message: Any) -> None:
        if who == VICTIM:
            kept[kind] = pb.CoordinatorMessage(**{kind: message})

    coordinator.twist = {kind: partial(keep, kind) for kind in KINDS}
    await (await coordinator.begin(1, 1)).run()
    coordinator.twist.clear()
    for number, expected in enumerate([*KINDS, "nothing"], 2):
        attempt = await coordinator.begin(1, number)
        await up_to(attempt, attempt.cohort(), expected)
        wrong = [kind for kind in KINDS if kind != expected and (kind, expected) not in EARLIER]
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


# A participant that has masked may sign: it has sent the digest of its upload, and u3 must hold it.
EARLIER = {("survivor_sets", "upload_credit")}


async def up_to(attempt: Attempt, cohort: Notes, expected: str) -> None:
    """Run the attempt honestly until this message would be next."""
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


# ---------------------------------------------------------------- hybrid keys and seeds

# They would open a pair once X25519 is broken (decision 0016).

NOT_ITS_OWN = "is not its own"
NOT_KEM = b"\xff" * 1184
KEYS_DIFFER = "All to which it would send a secret refuse before they deal."


def own_seed(cohort: Notes, receiver: int) -> bytes:
    """Return a seed whose ML-KEM secret the coordinator knows; it lacks the X25519 agreement, as yet."""
    return wrap_seed(
        bytes(32), bytes(32), cohort.advertisements[receiver].mask_key, b"d" * 32, b"r" * 32, cohort.context
    )


async def dealt(attempt: Attempt, change: Callable[[Notes, int, Any], None]) -> Seen:
    """Change each dealing that carries a seed, by cohort and receiver."""
    cohort = await attempt.show()

    def changed(who: int, message: Any) -> None:
        for one in message.shares:
            if one.wrapped:
                change(cohort, who, one)

    attempt.coordinator.twist["neighbour_shares"] = changed
    await attempt.tell_u2(cohort)
    return attempt.verdict(never="masked_input")


@in_attempt(
    "All refuse before they mask: the dealer's signed root covers its seeds.",
    naive(NOT_ITS_OWN, shows="goes on"),
    study="hybrid",
)
async def a_seed_of_its_own(attempt: Attempt) -> Seen:
    """Replaces each wrapped seed by one of its own, whose ML-KEM secret it knows."""

    def change(cohort: Notes, who: int, one: Any) -> None:
        one.wrapped = own_seed(cohort, who)

    return await dealt(attempt, change)


@in_attempt(
    "All refuse before they mask: a share opens only beside the seed that its dealer wrapped.",
    naive(
        changed={
            ', ciphertext, wrapped.get(holder, b"")': ", ciphertext",
            "encapsulated, dealt.wrapped)": "encapsulated)",
        },
        shows="goes on",
    ),
    study="hybrid",
)
async def a_seed_under_a_root_of_its_own(attempt: Attempt) -> Seen:
    """The same, under a root of its own that covers that seed."""

    def change(cohort: Notes, who: int, one: Any) -> None:
        one.wrapped, place = own_seed(cohort, who), cohort.graph.places(who)[one.dealer]
        nodes = [bytes(32)] * len(cohort.u1)
        nodes[place] = wrapped_node(one.pair, one.wrapped)
        tree = MerkleTree(nodes)
        one.root, one.path = tree.root, b"".join(tree.path(place))

    return await dealt(attempt, change)


def seeds(change: Callable[[bytes], bytes]) -> Damage:
    """Change the seeds of all dealings."""

    def damage(message: Any) -> None:
        for one in message.shares:
            one.wrapped = change(one.wrapped)

    return damage


damaged(
    "neighbour_shares",
    [seeds(lambda _: b""), seeds(cut), seeds(longer), seeds(lambda seed: seed or bytes(1120))],
    "dealings-without-their-seeds: Leaves out the wrapped seeds, changes their length, or adds some.",
    "All refuse before they mask: a pair without its seed would fall back to X25519.",
    naive("lacks the seed of the pair", NOT_ITS_OWN),
    study="hybrid",
)


cohort_shown(
    "mask-key-that-is-no-ml-kem-key: Lets a colluder advertise a mask key that is no ML-KEM key.",
    KEYS_DIFFER,
    by_colluder(lambda real: (real[8].mask_key[:KEY_BYTES] + NOT_KEM, real[8].channel_key), 8),
    study="hybrid",
)
cohort_shown(
    "channel-key-that-is-no-ml-kem-key: Lets a colluder advertise a channel key that is no ML-KEM key.",
    KEYS_DIFFER,
    by_colluder(lambda real: (real[8].mask_key, real[8].channel_key[:KEY_BYTES] + NOT_KEM), 8),
    study="hybrid",
)
