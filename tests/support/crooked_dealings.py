"""Dealings that follow the protocol except for the shared values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secagg import shamir
from secagg.commitments import LeavesOfHolder, MerkleTree, pair_node
from secagg.keys import dealing_statement, seed_commitment, self_mask_seed
from secagg.messages import KIND_LABELS, SELF_MASK_SEED, SealedShares
from tests.support.attempts_in_memory import Attempt, keyed_source
from tests.support.naive_variants import CLIENT


def crooked_dealing(dealer: Any, shares: NDArray[np.uint16], commitment: bytes) -> SealedShares:
    """Make a dealing of any shares.

    Args:
        dealer: the client phase of a participant that has just dealt; the honest dealing is replaced.
        shares: shape (holders, 2, 16): any values, to be sealed and committed to.
        commitment: to any self-mask seed.
    """
    cohort, me = dealer._cohort, dealer._cohort.me
    salts = keyed_source("crooked dealing")(32 * len(shares))
    leaves, ciphertexts = [], []
    for row, holder in enumerate(cohort.graph.holders(me)):
        pair = [salts[32 * row + 16 * kind : 32 * row + 16 * kind + 16] for kind in (0, 1)]
        both = [share.astype("<u2").tobytes() for share in shares[row]]
        committed = LeavesOfHolder(KIND_LABELS, cohort.context, cohort.identity(holder), cohort.graph.x(holder))
        leaves += committed.leaves((0, 1), [cohort.identity(me)] * 2, pair, both)
        plaintext = b"".join(salt + share for salt, share in zip(pair, both, strict=True))
        if holder != me:
            ciphertexts.append(cohort.channel(dealer._agreements[holder], me, holder).seal(plaintext))
        else:
            dealer._held[me] = CLIENT.HeldShare(plaintext)
    root = MerkleTree([pair_node(*leaves[at : at + 2]) for at in range(0, len(leaves), 2)]).root
    signature = dealer._identity.sign(dealing_statement(cohort.context, cohort.identity(me), root, commitment))
    return SealedShares(tuple(ciphertexts), tuple(leaves), commitment, signature)


def crooked_shares(attempt: Attempt, dealer: int, change: Callable[[NDArray[np.uint16]], None]) -> SealedShares:
    """Make a dealing whose shares, shape (holders, 2, 16), are changed before they are sealed and committed to."""
    phase, random_bytes = attempt.phases[dealer], keyed_source("crooked secrets")
    graph, context, identity = phase._cohort.graph, phase._cohort.context, phase._identity.public
    secrets = np.stack([attempt.mask_key_symbols[dealer], shamir.random_symbols(16, random_bytes)])
    xs = [graph.x(holder) for holder in graph.holders(dealer)]
    shares = shamir.split(secrets, graph.threshold, xs, random_bytes)
    change(shares)
    phase._seed = self_mask_seed(secrets[SELF_MASK_SEED], context, identity)
    return crooked_dealing(phase, shares, seed_commitment(phase._seed, context, identity))
