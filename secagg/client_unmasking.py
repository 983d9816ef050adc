"""One participant's side of an attempt after its upload: sign the survivor sets, then reveal shares.

    ConsistencyCheck -> Unmasking -> Answered

Against a coordinator that is at most semi-malicious, `UnsignedUnmasking` replaces the first two phases. These phases
follow those of `secagg.client_phases` and obey the same rules.
"""

from __future__ import annotations

from itertools import pairwise

from secagg.client_cohort import ClientPhase, Cohort, HeldShare
from secagg.context import set_of, survivor_statement
from secagg.errors import CoordinatorMisbehaved
from secagg.keys import IdentityKey, upload_statement
from secagg.messages import (
    CONSISTENCY_CHECK,
    UNMASKING,
    ConsistencySignature,
    MaskKeyShare,
    SelfMaskSeedShare,
    Subset,
    SurvivorSets,
    UnmaskingReply,
    UnmaskingRequest,
    request_digest,
)
from secagg.spot_checks import signatures_to_check


class _AfterUpload(ClientPhase):
    """The upload is sent; the coordinator states whose inputs the sum contains."""

    def __init__(
        self,
        cohort: Cohort,
        identity: IdentityKey,
        u2: Subset,
        held: dict[int, HeldShare | None],
        noise_seeds: tuple[bytes, ...] = (),
    ) -> None:
        self._cohort, self._identity, self._u2, self._held = cohort, identity, u2, held
        self._noise_seeds = noise_seeds

    def _survivors(self, message: SurvivorSets) -> Subset:
        """u3, after both sets were compared with what this participant did."""
        cohort, parameters, me = self._cohort, self._cohort.config.parameters, self._cohort.me
        try:
            u2, u3 = Subset(message.u2, cohort.u1), Subset(message.u3, cohort.u1)
        except ValueError as error:
            raise CoordinatorMisbehaved(self.name, str(error)) from error
        if u2.bitmap != self._u2.bitmap:
            raise CoordinatorMisbehaved(self.name, "u2 is not the set this participant masked in")
        if not u3 <= u2:
            raise CoordinatorMisbehaved(self.name, "u3 is not a subset of u2")
        if me not in u3:
            raise CoordinatorMisbehaved(self.name, "this participant's upload was left out of u3")
        if len(u3) < parameters.min_survivors:
            raise CoordinatorMisbehaved(self.name, f"u3 has {len(u3)}, {parameters.min_survivors} needed")
        return u3


class ConsistencyCheck(_AfterUpload):
    """Compare the survivor sets with what this participant did, and sign them."""

    name = CONSISTENCY_CHECK

    def receive(self, message: SurvivorSets) -> tuple[Unmasking, ConsistencySignature]:
        """Durable before the signature is sent: the statement that was signed (`Unmasking.statement`).

        Raises CoordinatorMisbehaved: the sets are malformed, too small, without this participant, or u2 differs from
        the set it masked in (else a few could be shown a u2 without the others, and the sum of those few opens).
        """
        self._leave(message, SurvivorSets)
        u3 = self._survivors(message)
        statement = survivor_statement(self._cohort.config, self._cohort.context, self._u2, u3)
        following = Unmasking(self._cohort, statement, self._u2, u3, self._held, self._noise_seeds)
        return following, ConsistencySignature(self._identity.sign(statement))


class UnsignedUnmasking(_AfterUpload):
    """Reveal one kind of share of each dealer. The coordinator is trusted to state the same u3 to all."""

    name = UNMASKING

    def receive(self, message: SurvivorSets) -> tuple[Answered, UnmaskingReply]:
        """Durable before the reply is sent: the digest of the request (`Answered.request_digest`).

        Raises CoordinatorMisbehaved: as in `ConsistencyCheck.receive`.
        """
        self._leave(message, SurvivorSets)
        u3 = self._survivors(message)
        self.survivors = frozenset(u3)
        reply = _reveal(self._cohort, self._u2, u3, self._held, self._noise_seeds)
        self._noise_seeds = ()
        return Answered(message, reply), reply


def excluding_survivors(cohort: Cohort, sets: SurvivorSets, request: UnmaskingRequest) -> frozenset[int]:
    """u3, signed by a quorum, of an attempt whose sum doesn't contain this participant's input.

    Two quorums have an honest signer in common, and it signs once. So no sum of this attempt over another u3 can be
    opened, and the participant may take its charge back. It must not go on with the attempt. Raises
    CoordinatorMisbehaved: the sets are malformed or hold this participant, or too few have signed them.
    """
    try:
        u2, u3 = Subset(sets.u2, cohort.u1), Subset(sets.u3, cohort.u1)
    except ValueError as error:
        raise CoordinatorMisbehaved(CONSISTENCY_CHECK, str(error)) from error
    if cohort.me in u3:
        raise CoordinatorMisbehaved(CONSISTENCY_CHECK, "u3 was said to be without this participant, and contains it")
    if not cohort.config.parameters.signed:
        raise CoordinatorMisbehaved(CONSISTENCY_CHECK, "unsigned survivor sets prove nothing")
    # Every signature that is shown is checked: the coordinator may send such proofs as often as it likes.
    _check_signatures(cohort, request, u3, survivor_statement(cohort.config, cohort.context, u2, u3), frozenset(u3))
    return frozenset(u3)


def _check_signatures(
    cohort: Cohort, request: UnmaskingRequest, u3: Subset, statement: bytes, certain: frozenset[int] = frozenset()
) -> None:
    """Check that enough members of u3 have signed a statement over u2 and u3.

    Deviation: of many signatures a random sample is checked (`secagg.spot_checks`, decision 0013).

    Args:
        certain: signers whose signatures, if shown, are always checked.
    """
    signers = tuple(signer for signer, _ in request.signatures)
    if any(a >= b for a, b in pairwise(signers)) or not frozenset(u3).issuperset(signers):
        raise CoordinatorMisbehaved(UNMASKING, "the signers are not an ascending list of members of u3")
    # Deviation: [BIK+17] asks for as many signatures as the threshold. This count excludes two different sets on any
    # graph of shares.
    needed = cohort.config.parameters.signatures_needed(len(cohort.u1))
    if len(signers) < needed:
        raise CoordinatorMisbehaved(UNMASKING, f"{len(signers)} signatures over the survivors, {needed} needed")
    theirs = [pair for pair in request.signatures if pair[0] in certain]
    others = [pair for pair in request.signatures if pair[0] not in certain]
    for signer, signature in sorted(signatures_to_check(others, theirs, needed, cohort.random_bytes)):
        if not cohort.config.roster.verify(signer, signature, statement):
            raise CoordinatorMisbehaved(UNMASKING, f"the signature of {signer} doesn't cover these sets")


class Unmasking(ClientPhase):
    """Reveal exactly one kind of share of each dealer, and the seeds of the surplus noise of its own upload.

    Only after enough others signed the same sets. The seeds depend on |u3| alone, and no second u3 is signed in an
    attempt: so every honest survivor reveals the same parts, and keeps those that this many survivors need.
    """

    name = UNMASKING

    def __init__(
        self,
        cohort: Cohort,
        statement: bytes,
        u2: Subset,
        u3: Subset,
        held: dict[int, HeldShare | None],
        noise_seeds: tuple[bytes, ...] = (),
    ) -> None:
        self._cohort, self.statement, self._u2, self._u3, self._held = cohort, statement, u2, u3, held
        self._noise_seeds = noise_seeds

    @property
    def survivors(self) -> frozenset[int]:
        """u3, as signed."""
        return frozenset(self._u3)

    def receive(self, message: UnmaskingRequest) -> tuple[Answered, UnmaskingReply]:
        """Durable before the reply is sent: the digest of the request (`Answered.request_digest`).

        Raises CoordinatorMisbehaved: too few signatures, one that doesn't verify, or signers that are not in u3.
        """
        self._leave(message, UnmaskingRequest)
        cohort = self._cohort
        near = frozenset() if cohort.graph.complete else frozenset(cohort.graph.neighbours(cohort.me))
        _check_signatures(cohort, message, self._u3, self.statement, near)
        # A signer of the sets masked in this u2. For each other dealer whose seed is requested here, its upload must
        # prove the same: a dealer that was shown another u2 would not sign, but its mask may open with the seed alone
        # (docs/graph.md). On the complete graph this cannot happen: u2 has the quorum, and all of it are neighbours.
        signers = {signer for signer, _ in message.signatures}
        others = [one for one in cohort.graph.dealers(cohort.me, self.survivors - signers) if one != cohort.me]
        if len(message.uploads) != (0 if cohort.graph.complete else len(others)):
            raise CoordinatorMisbehaved(UNMASKING, "there must be one upload for each neighbour that isn't a signer")
        u2 = set_of(cohort.config, cohort.context, "u2", self._u2)
        for one, (sha256, signature) in zip(others, message.uploads, strict=False):
            statement = upload_statement(cohort.context, cohort.identity(one), sha256, u2)
            if not cohort.config.roster.verify(one, signature, statement):
                raise CoordinatorMisbehaved(UNMASKING, f"{one} did not upload what was masked in this u2")
        reply = _reveal(cohort, self._u2, self._u3, self._held, self._noise_seeds)
        self._noise_seeds = ()
        return Answered(message, reply), reply


def _reveal(
    cohort: Cohort, u2: Subset, u3: Subset, held: dict[int, HeldShare | None], noise_seeds: tuple[bytes, ...]
) -> UnmaskingReply:
    """One kind of share of each dealer in u2 whose shares it holds, and the seeds of surplus noise.

    All held shares are deleted.
    """
    shares: list[SelfMaskSeedShare | MaskKeyShare | None] = []
    survivors = frozenset(u3)
    for dealer in cohort.graph.dealers(cohort.me, frozenset(u2)):
        pair = held.get(dealer)
        if pair is None:
            shares.append(None)
        else:
            shares.append(pair.self_mask_seed if dealer in survivors else pair.mask_key)
    held.clear()
    surplus = cohort.config.parameters.released_seeds(len(u3))
    return UnmaskingReply(tuple(shares), tuple(noise_seeds[number] for number in surplus))


class Answered:
    """The request was answered; only an identical request gets the reply again."""

    def __init__(self, request: UnmaskingRequest | SurvivorSets, reply: UnmaskingReply) -> None:
        self._request, self._reply = request, reply
        self.request_digest = request_digest(request)

    def receive(self, message: UnmaskingRequest | SurvivorSets) -> UnmaskingReply:
        """The same reply to the same request; CoordinatorMisbehaved if the request differs."""
        # The message itself is compared. Its digest, for the journal, is not defined for signers out of range.
        if message != self._request:
            raise CoordinatorMisbehaved(UNMASKING, "a second, different unmasking request")
        return self._reply
