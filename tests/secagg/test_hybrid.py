"""X25519 with ML-KEM-768 (decision 0016): who may leave, what each side may lie about, what opens later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from secagg import client_phases
from secagg.commitments import MerkleTree, wrapped_node
from secagg.context import RoundConfig
from secagg.errors import ReconstructionFailed
from secagg.keys import (
    KEM_CIPHERTEXT_BYTES,
    AgreementKey,
    ShareChannel,
    dealing_statement,
    encapsulate,
    is_kem_key,
    mask_key_of,
    pair_seed,
    sends_seed,
    unwrap_seed,
    wrap_seed,
)
from secagg.messages import Advertisement, NeighbourShares, SealedShares
from secagg.parameters import HYBRID
from tests.reference.primitive_vectors import LOW_ORDER
from tests.secagg.cheating_participants import signed_keys
from tests.support.attempts_in_memory import (
    ADVERTISE,
    LEAVE,
    LOSE,
    MASK,
    SHARE,
    Attempt,
    Script,
    identities,
    make_config,
    sum_of,
)
from tests.support.small_rings import safe_rings

COMPLETE = make_config(7, min_survivors=5, key_agreement=HYBRID)
RING = make_config(16, min_survivors=12, rings=safe_rings(16, 12), key_agreement=HYBRID)


def few_of(members: int) -> list[tuple[int, ...]]:
    return [gone for count in range(3) for gone in combinations(range(members), count)]


@pytest.mark.parametrize(
    ("config", "fates"),
    [
        *((COMPLETE, dict.fromkeys([(MASK, one) for one in gone], LOSE)) for gone in few_of(7)),
        (COMPLETE, {(SHARE, 3): LOSE, (MASK, 4): LOSE}),
        (COMPLETE, {(ADVERTISE, 0): LOSE, (SHARE, 6): LEAVE}),
        (RING, {(MASK, 0): LOSE, (MASK, 1): LOSE}),
    ],
)
def test_the_sum_is_exact_whoever_leaves(config: RoundConfig, fates: dict[tuple[str, int], str]) -> None:
    """Before the upload as the sender of a seed, as its receiver, or both of a pair; or earlier."""
    attempt = Attempt(config, Script(up=fates))
    completed = attempt.run()
    assert (completed.total == sum_of(completed.u3, config.parameters)).all()
    assert attempt.coordinator.cohort.graph.complete == (config is COMPLETE)


def test_everybody_makes_the_seed_of_half_of_its_pairs() -> None:
    for one, other in combinations(range(9), 2):
        assert sends_seed(one, other) != sends_seed(other, one)
    assert {sum(sends_seed(one, other) for other in range(9) if other != one) for one in range(9)} == {4}


# ---------------------------------------------------------------- what opens a seed, and what doesn't


def pair_of() -> tuple[AgreementKey, AgreementKey, bytes]:
    first, second = (
        mask_key_of(np.arange(16, dtype=np.uint16) + start, b"r" * 32, bytes([start]) * 32, hybrid=True)
        for start in (0, 1)
    )
    return first, second, b"c" * 32


def test_a_seed_opens_only_with_both_secrets() -> None:
    """A quantum computer gives the X25519 agreement, a broken ML-KEM its secret: neither is enough."""
    sender, receiver, context = pair_of()
    shared, ends = sender.agree(receiver.public), (b"s" * 32, b"r" * 32)
    seed = pair_seed(np.arange(16, dtype=np.uint16), context, *ends)
    wrapped = wrap_seed(seed, shared, receiver.public, *ends, context)
    assert receiver.agree(sender.public) == shared
    assert unwrap_seed(wrapped, shared, receiver, *ends, context) == seed
    assert unwrap_seed(wrapped, shared, sender, *ends, context) != seed  # X25519 broken, ML-KEM not
    assert unwrap_seed(wrapped, bytes(32), receiver, *ends, context) != seed  # ML-KEM broken, X25519 not
    assert unwrap_seed(wrapped, shared, receiver, *ends, b"d" * 32) != seed
    assert unwrap_seed(wrapped, shared, receiver, *ends[::-1], context) != seed
    for at in (0, 1087, 1088, 1119):  # any bytes give some seed
        changed = bytearray(wrapped)
        changed[at] ^= 1
        opened = unwrap_seed(bytes(changed), shared, receiver, *ends, context)
        assert len(opened) == 32 != opened
        assert opened != seed


def test_a_channel_opens_only_with_both_secrets() -> None:
    sender, receiver, context = pair_of()
    shared, ends = sender.agree(receiver.public), ((b"s" * 32, sender.public), (b"r" * 32, receiver.public))
    secret, ciphertext = encapsulate(receiver.public)
    sealed = ShareChannel(shared + secret, *ends, context, ciphertext).seal(b"shares")
    assert receiver.decapsulate(ciphertext) == secret
    assert ShareChannel(shared + secret, *ends, context, ciphertext).open(sealed) == b"shares"
    for wrong in (shared, shared + bytes(32), bytes(32) + secret):
        assert ShareChannel(wrong, *ends, context, ciphertext).open(sealed) is None
    assert ShareChannel(shared + secret, *ends, context).open(sealed) is None
    assert ShareChannel(shared + secret, *ends, context, ciphertext, b"w").open(sealed) is None


def test_a_revealed_root_opens_the_seeds_of_its_owner_alone() -> None:
    """Participant 3 leaves, and its root is rebuilt: no channel opens with it, and no seed of two others."""
    attempt = Attempt(COMPLETE, Script(up={(MASK, 3): LOSE}))
    attempt.run()
    cohort = attempt.coordinator.cohort
    symbols = attempt.mask_key_symbols[3]
    root = mask_key_of(symbols, cohort.round_context, cohort.identity(3), hybrid=True)
    assert root.public == cohort.advertisements[3].mask_key
    dealt, keys = attempt.asked[MASK, 3].shares, cohort.advertisements
    for one in dealt:
        ends = ((cohort.identity(who), keys[who].channel_key) for who in (one.dealer, 3))
        encapsulated, sealed = one.ciphertext[:KEM_CIPHERTEXT_BYTES], one.ciphertext[KEM_CIPHERTEXT_BYTES:]
        shared = root.agree(keys[one.dealer].channel_key) + root.decapsulate(encapsulated)
        assert ShareChannel(shared, *ends, cohort.context, encapsulated, one.wrapped).open(sealed) is None
    for one in attempt.asked[MASK, 0].shares:
        if one.wrapped and one.dealer != 3:
            ends = cohort.identity(one.dealer), cohort.identity(0)
            shared = attempt.mask_keys[0].agree(keys[one.dealer].mask_key)  # even if X25519 is broken
            right = unwrap_seed(one.wrapped, shared, attempt.mask_keys[0], *ends, cohort.context)
            assert unwrap_seed(one.wrapped, shared, root, *ends, cohort.context) != right
            assert right == pair_seed(attempt.mask_key_symbols[one.dealer], cohort.context, *ends)


@pytest.mark.parametrize("field", ["ciphertext", "wrapped"])
def test_a_share_that_does_not_open_proves_nothing_of_its_seed(field: str) -> None:
    """Its seed is then held against the dealer's signed root; lies about it are scripts of tests/adversary."""
    dealer = next(one for one in range(1, 7) if sends_seed(one, 0))

    def tampered(message: NeighbourShares) -> NeighbourShares:
        def other(one: Any) -> Any:
            changed = one._replace(ciphertext=one.ciphertext[:-1] + bytes([one.ciphertext[-1] ^ 1]))
            return changed._replace(**{field: getattr(one, field)[:-1] + bytes([getattr(one, field)[-1] ^ 1])})

        return replace(message, shares=tuple(other(one) if one.dealer == dealer else one for one in message.shares))

    attempt = Attempt(COMPLETE, tamper_down={(MASK, 0): tampered})
    attempt.up_to(MASK)
    assert str(attempt.misbehaved.get(0)).endswith("is not its own") == (field == "wrapped")


# ---------------------------------------------------------------- participants that cheat


def refused_by_the_coordinator(phase: str, change: Callable[[Any], Any]) -> str:
    attempt = Attempt(COMPLETE, tamper={(phase, 2): change})
    attempt.run()
    [error] = attempt.refused
    return str(error)


def advertises(mask_key: Callable[[bytes], bytes] = bytes, channel_key: Callable[[bytes], bytes] = bytes) -> Any:
    def change(real: Advertisement) -> Advertisement:
        return signed_keys(COMPLETE, 2, mask_key(real.mask_key), channel_key(real.channel_key))

    return change


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (advertises(lambda key: key[:32]), "not 1216 bytes"),
        (advertises(channel_key=lambda key: key + b"\0"), "not 1216 bytes"),
        (advertises(lambda key: LOW_ORDER[2] + key[32:]), "low order"),
        (advertises(lambda key: key[:32] + b"\xff" * 1184), "the ML-KEM part"),
        (advertises(channel_key=lambda key: key[:32] + b"\xff\x0f" + key[34:]), "the ML-KEM part"),
        (lambda real: signed_keys(COMPLETE, 2, real.mask_key, real.mask_key[:32] + real.channel_key[32:]), "before"),
        (lambda real: signed_keys(COMPLETE, 2, real.mask_key, real.channel_key[:32] + real.mask_key[32:]), "before"),
    ],
)
def test_keys_that_the_coordinator_refuses(change: Callable[[Any], Any], told: str) -> None:
    assert told in refused_by_the_coordinator(ADVERTISE, change)


def test_a_key_whose_coefficients_are_too_large_is_none() -> None:
    """FIPS 203, section 7.2: each of 12 bits must be below 3329."""
    key = AgreementKey(b"x" * 32, b"k" * 64).public
    assert is_kem_key(key[32:])
    assert is_kem_key((3328).to_bytes(2, "little") + key[34:])
    assert not is_kem_key((3329).to_bytes(2, "little") + key[34:])


COUNT = "there must be 3 seeds of 1120 bytes"


@pytest.mark.parametrize(
    ("wrapped", "told"),
    [
        (lambda real: real[:-1], COUNT),
        (lambda real: (*real, real[0]), COUNT),
        (lambda real: (real[0][:-1], *real[1:]), COUNT),
        (lambda real: real[::-1], "not signed"),
    ],
)
def test_seeds_that_the_coordinator_refuses(wrapped: Callable[[Any], Any], told: str) -> None:
    assert told in refused_by_the_coordinator(SHARE, lambda real: replace(real, wrapped=wrapped(real.wrapped)))


def resigned(attempt: Attempt, dealer: int, message: SealedShares) -> SealedShares:
    """The dealer's own signature over other seeds than it uses."""
    cohort, identity = attempt.coordinator.cohort, identities(7)[dealer]
    receivers = [who for who in range(7) if who != dealer and sends_seed(dealer, who)]
    wrapped = dict(zip(receivers, message.wrapped, strict=True))
    leaves = b"".join(message.leaves)
    nodes = client_phases.pair_nodes(leaves)
    tree = MerkleTree([wrapped_node(node, wrapped.get(who, b"")) for who, node in enumerate(nodes)])
    statement = dealing_statement(cohort.context, identity.public, tree.root, message.seed_commitment)
    return replace(message, signature=identity.sign(statement))


@pytest.mark.parametrize("stays", [True, False])
@pytest.mark.parametrize("at", [10, 1100], ids=["ciphertext", "seed"])
def test_a_dealer_of_another_seed_than_it_uses_spoils_the_sum_and_nothing_else(stays: bool, at: int) -> None:
    """As if it uploaded a random vector; the same whether it stays or leaves, and nobody honest is named."""

    def change(real: SealedShares) -> SealedShares:
        changed = bytearray(real.wrapped[0])
        changed[at] ^= 1
        return resigned(attempt, 2, replace(real, wrapped=(bytes(changed), *real.wrapped[1:])))

    fates = {} if stays else {(MASK, 2): LOSE}
    attempt = Attempt(COMPLETE, Script(up=fates), tamper={(SHARE, 2): change})
    completed = attempt.run()
    assert (attempt.refused, attempt.misbehaved, completed.cheats) == ([], {}, {})
    assert (2 in completed.u3) == stays
    assert not (completed.total == sum_of(completed.u3, attempt.config.parameters)).any()


def test_a_root_that_makes_another_ml_kem_key_is_found() -> None:
    """The naive coordinator compares the X25519 part, and opens a wrong sum."""

    def change(real: Advertisement) -> Advertisement:
        return signed_keys(
            COMPLETE, 2, real.mask_key[:32] + AgreementKey(b"x" * 32, b"k" * 64).public[32:], real.channel_key
        )

    cheat = Attempt(COMPLETE, Script(up={(MASK, 2): LOSE}), tamper={(ADVERTISE, 2): change})

    def keep_own(message: Any) -> Any:  # it goes on as if it had advertised its own key
        real = signed_keys(COMPLETE, 2, cheat.mask_keys[2].public, dict(message.members)[2].channel_key)
        return replace(message, members=tuple((who, real if who == 2 else one) for who, one in message.members))

    cheat.tamper_down[SHARE, 2] = keep_own
    with pytest.raises(ReconstructionFailed) as caught:
        dealing_with_another_context(cheat)
    assert caught.value.culprits == {2: "its shares rebuild another mask key than it advertised"}


def dealing_with_another_context(attempt: Attempt) -> None:
    """Let participant 2 deal in the cohort's real context although its own view differs."""
    honest = client_phases.cohort_context
    attempt.step()
    context = attempt.coordinator.cohort.context
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_phases, "cohort_context", lambda *given: context if given else honest(*given))
        attempt.step()
    attempt.run()
