"""What a cheating participant makes of an honest message.

`forge` makes messages that must be refused from any sender. The others make messages that may be taken: it signs them.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secagg.context import RoundConfig, set_of
from secagg.keys import advertisement_statement, upload_statement
from secagg.masking import word_dtype
from secagg.messages import (
    Advertisement,
    ConsistencySignature,
    MaskedInput,
    MaskKeyShare,
    SealedShares,
    SelfMaskSeedShare,
    UnmaskingReply,
)
from secagg.packing import pack, packed_size, unpack
from secagg.shamir import PRIME
from tests.reference.primitive_vectors import LOW_ORDER
from tests.support.attempts_in_memory import Vector, flipped, identities
from tests.support.crooked_dealings import crooked_shares


def _with(items: tuple[Any, ...], at: int, item: Any) -> tuple[Any, ...]:
    at %= len(items)
    return (*items[:at], item, *items[at + 1 :])


def forge(message: Any, where: int, bit: int) -> Any:
    """The message with one change that is not signed: no phase may take it.

    Any numbers choose the change (``where``) and the bit or entry (``bit``).
    """
    match message:
        case Advertisement() | ConsistencySignature():
            name = list(vars(message))[where % len(vars(message))]
            return replace(message, **{name: flipped(getattr(message, name), bit)})
        case SealedShares(ciphertexts=ciphertexts, leaves=leaves):
            changes = [
                {"leaves": _with(leaves, bit, flipped(leaves[bit % len(leaves)], bit))},
                {"leaves": leaves[:-1]},
                {"leaves": (*leaves[2:], *leaves[:2])},
                {"ciphertexts": ciphertexts[:-1]},
                {"ciphertexts": _with(ciphertexts, bit, ciphertexts[0] + b"\x00")},
                {"seed_commitment": flipped(message.seed_commitment, bit)},
                {"seed_commitment": message.seed_commitment[:-1]},
                {"signature": flipped(message.signature, bit)},
            ]
            return replace(message, **changes[where % len(changes)])
        case MaskedInput(packed=packed):
            changes = [
                {"packed": flipped(packed, bit)},
                {"packed": packed + b"\x00"},
                {"packed": packed[:-1]},
                {"sha256": flipped(message.sha256, bit)},
                {"signature": flipped(message.signature, bit)},
                {"signature": b""},
            ]
            return replace(message, **changes[where % len(changes)])
        case UnmaskingReply(shares=shares, noise_seeds=seeds):
            # One more, one less, or another one.
            lies = [(*seeds, bytes(32)), *((seeds[:-1], _with(seeds, bit, flipped(seeds[0], bit))) if seeds else ())]
            if where % 12 > 8:
                return replace(message, noise_seeds=lies[where % len(lies)])
            at = next((i for i in range(bit % len(shares), len(shares)) if shares[i] is not None), None)
            if at is None or where % 6 == 0:
                return replace(message, shares=shares[:-1])
            one = shares[at]
            other = MaskKeyShare if isinstance(one, SelfMaskSeedShare) else SelfMaskSeedShare
            changed = [
                replace(one, share=flipped(one.share, 16 * (bit % 16))),
                replace(one, salt=flipped(one.salt, bit)),
                replace(one, share=one.share[:-1]),
                replace(one, salt=one.salt[:-1]),
                other(one.share, one.salt),
            ][where % 5]
            return replace(message, shares=_with(shares, at, changed))
    raise AssertionError(type(message))


def another_secret(shares: NDArray[np.uint16]) -> None:
    shares[:] = (shares.astype(int) + 1) % PRIME  # shares of the secret plus one


CROOKED = 7  # kinds of dealing below


def crooked_deal(machine: Any, dealer: int, honest: SealedShares, how: int, at: int) -> SealedShares:
    """A correctly signed, inconsistent dealing, which the coordinator takes; the dealer is in MaskedInputCollection.

    Any numbers choose the kind (``how``) and the holder (``at``).
    """
    phase = machine.phases[dealer]
    graph, me = phase._cohort.graph, dealer
    neighbours, holders = graph.neighbours(me), graph.holders(me)
    receiver = neighbours[at % len(neighbours)]
    row = holders.index(receiver)

    def one_wrong_share(shares: NDArray[np.uint16]) -> None:
        shares[row] = (shares[row].astype(int) + 1) % PRIME

    def outside_the_field(shares: NDArray[np.uint16]) -> None:
        shares[holders.index(me) if me in holders else row] = PRIME

    def sealed_outside(shares: NDArray[np.uint16]) -> None:  # and committed to
        shares[row] = PRIME + 1

    how %= CROOKED
    changes = {0: another_secret, 1: one_wrong_share, 2: outside_the_field, 5: sealed_outside}
    if how in changes:
        return crooked_shares(machine, dealer, changes[how])
    if how == 6:  # no share can be opened
        return replace(honest, ciphertexts=tuple(bytes(112) for _ in honest.ciphertexts))
    ciphertext = bytes(112)  # which can't be opened
    if how == 4:  # what is sealed is not what is committed to
        ciphertext = phase._cohort.channel(phase._agreements[receiver], me, receiver).seal(bytes(96))
    return replace(honest, ciphertexts=_with(honest.ciphertexts, at, ciphertext))


def signed_keys(config: RoundConfig, who: int, mask_key: bytes, channel_key: bytes) -> Advertisement:
    """Any keys, advertised by a participant under its own name."""
    identity = identities(len(config.roster))[who]
    statement = advertisement_statement(config.round_context(), identity.public, mask_key, channel_key)
    return Advertisement(mask_key, channel_key, identity.sign(statement))


def inconsistent_keys(
    config: RoundConfig, me: int, honest: Advertisement, how: int, theirs: Advertisement | None
) -> Advertisement:
    """Signed, useless keys: of low order, one in two roles, or another participant's point, perhaps in other bytes."""
    low = LOW_ORDER[how % len(LOW_ORDER)]
    keys = [(low, honest.channel_key), (honest.mask_key, low), (honest.mask_key, honest.mask_key)]
    if theirs is not None:
        same_point = theirs.mask_key[:31] + bytes([theirs.mask_key[31] ^ 0x80])
        keys += [(theirs.mask_key, honest.channel_key), (honest.mask_key, theirs.channel_key)]
        keys += [(same_point, honest.channel_key)]
    return signed_keys(config, me, *keys[how % len(keys)])


def shifted(
    config: RoundConfig, context: bytes, u2: frozenset[int], me: int, honest: MaskedInput, by: int
) -> tuple[MaskedInput, Vector]:
    """An upload whose first entry is moved, and the shift: a participant can lie about its input."""
    parameters = config.parameters
    size = packed_size(parameters.dim, parameters.bits)
    vector = unpack(honest.packed[:size], parameters.dim, parameters.bits)
    shift = np.zeros(parameters.dim, dtype=word_dtype(parameters.bits))
    shift[0] = by % (1 << parameters.bits)
    top = np.uint64((1 << parameters.bits) - 1)
    moved = ((vector.astype(np.uint64) + shift) & top).astype(vector.dtype)
    packed = b"".join((pack(moved, parameters.bits), honest.packed[size:]))
    sha256 = hashlib.sha256(packed).digest()
    identity = identities(len(config.roster))[me]
    statement = upload_statement(context, identity.public, sha256, set_of(config, context, "u2", u2))
    return MaskedInput(packed, sha256, identity.sign(statement)), shift


def silent_on(reply: UnmaskingReply, at: int) -> UnmaskingReply:
    """It reports that it has no share of one dealer, or of any."""
    if at % 4 == 0:
        return replace(reply, shares=tuple(None for _ in reply.shares))
    return replace(reply, shares=_with(reply.shares, at, None))
