"""Lies about hybrid keys and seeds, which would open a pair once X25519 is broken (decision 0016)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from secagg.commitments import MerkleTree, wrapped_node
from secagg.keys import KEY_BYTES, wrap_seed
from tests.adversary.attempt_in_hand import Attempt
from tests.adversary.cheating_coordinator import in_attempt
from tests.adversary.coordinator_scripts import naive
from tests.adversary.coordinator_scripts_keys import by_colluder, cohort_shown
from tests.adversary.coordinator_scripts_messages import Damage, cut, damaged, longer
from tests.adversary.script import Seen
from tests.support.coordinator_notes import Notes

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
    "Replaces each wrapped seed by one of its own, whose ML-KEM secret it knows.",
    "All refuse before they mask: the dealer's signed root covers its seeds.",
    naive(NOT_ITS_OWN, shows="goes on"),
    study="hybrid",
)
async def a_seed_of_its_own(attempt: Attempt) -> Seen:
    def change(cohort: Notes, who: int, one: Any) -> None:
        one.wrapped = own_seed(cohort, who)

    return await dealt(attempt, change)


@in_attempt(
    "The same, under a root of its own that covers that seed.",
    "All refuse before they mask: a share opens only beside the seed that its dealer wrapped.",
    naive(
        changed=(
            (', ciphertext, wrapped.get(holder, b"")', ", ciphertext"),
            ("encapsulated, dealt.wrapped)", "encapsulated)"),
        ),
        shows="goes on",
    ),
    study="hybrid",
)
async def a_seed_under_a_root_of_its_own(attempt: Attempt) -> Seen:
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
    "dealings-without-their-seeds",
    "Leaves out the wrapped seeds, changes their length, or adds some.",
    "All refuse before they mask: a pair without its seed would fall back to X25519.",
    naive("lacks the seed of the pair", NOT_ITS_OWN),
    study="hybrid",
)


cohort_shown(
    "mask-key-that-is-no-ml-kem-key",
    "Lets a colluder advertise a mask key that is no ML-KEM key.",
    KEYS_DIFFER,
    by_colluder(lambda real: (real[8].mask_key[:KEY_BYTES] + NOT_KEM, real[8].channel_key), 8),
    study="hybrid",
)
cohort_shown(
    "channel-key-that-is-no-ml-kem-key",
    "Lets a colluder advertise a channel key that is no ML-KEM key.",
    KEYS_DIFFER,
    by_colluder(lambda real: (real[8].mask_key, real[8].channel_key[:KEY_BYTES] + NOT_KEM), 8),
    study="hybrid",
)
