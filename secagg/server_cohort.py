"""What the coordinator's phases share: the base class, u1 and all that follows from it, dealings, signed sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from secagg.commitments import HASH_BYTES, pair_node
from secagg.context import RoundConfig, survivor_statement
from secagg.errors import InvalidMessage, ProtocolError, TooFewClients, UnexpectedMessage
from secagg.graph import Graph
from secagg.messages import (
    CONSISTENCY_CHECK,
    Advertisement,
    CohortKeys,
    ConsistencySignature,
    Messages,
    UnmaskingRequest,
)
from secagg.spot_checks import CHECK_ALL


@dataclass(frozen=True)
class Upload:
    """What stays of an upload once its vector is in the sum."""

    sha256: bytes
    signature: bytes
    noise_commitments: tuple[bytes, ...] = ()


Uploaded = Mapping[int, Upload]  # of each member of u3


@dataclass(frozen=True)
class Checked:
    """What the check of a phase has made of a message, perhaps in another process of the same coordinator."""

    content: Any


class ServerPhase:
    """A phase takes messages until it is closed, once; afterwards what it fixed can't change."""

    name: str
    check: Callable[[int, Any], Any]
    """(sender, message) -> what `receive` takes in its place, as a `Checked`; raises InvalidMessage. Holds all that it
    needs and changes nothing, so it may run elsewhere."""
    _closed = False

    def _made_of(self, sender: int, message: Any) -> Any:
        return message.content if isinstance(message, Checked) else self.check(sender, message)

    def _take(self, sender: int, expected: bool) -> None:
        if self._closed or not expected:
            raise UnexpectedMessage(self.name, sender)

    def _close(self, received: int, needed: int) -> None:
        if self._closed:
            raise ProtocolError(f"{self.name}: this phase was closed before")
        if received < needed:
            raise TooFewClients(self.name, received, needed)
        self._closed = True


@dataclass(frozen=True)
class ServerCohort:
    """u1 and everything derived from it."""

    config: RoundConfig
    round_context: bytes
    context: bytes  # cohort_context
    graph: Graph
    advertisements: Mapping[int, Advertisement] = field(repr=False)
    digests: tuple[tuple[int, bytes], ...] = field(repr=False)  # of the advertisements, ascending

    @property
    def u1(self) -> tuple[int, ...]:
        """Members, ascending."""
        return self.graph.u1

    def identity(self, participant: int) -> bytes:
        return self.config.roster.identity(participant)

    def keys_for(self, receiver: int) -> CohortKeys:
        """All of u1, with the advertisements of the receiver and its neighbours in full."""
        if self.graph.complete:
            return self._everything
        members: list[tuple[int, Advertisement | bytes]] = list(self.digests)
        for who in (receiver, *self.graph.neighbours(receiver)):
            members[self.positions[who]] = (who, self.advertisements[who])
        return CohortKeys(tuple(members))

    @cached_property
    def positions(self) -> dict[int, int]:
        return {member: at for at, member in enumerate(self.u1)}

    @cached_property
    def _everything(self) -> CohortKeys:
        return CohortKeys(tuple(self.advertisements.items()))


@dataclass(frozen=True)
class Dealing:
    """A dealer's signed commitments: to both shares of each holder, ascending, and to its self-mask seed."""

    leaves: bytes = field(repr=False)  # for each holder 32 bytes for the mask key, then 32 for the seed
    root: bytes
    seed_commitment: bytes
    signature: bytes
    wrapped: Mapping[int, bytes] = field(default_factory=dict, repr=False)  # receiver -> the pair's wrapped seed

    def seed_for(self, receiver: int, place: int) -> tuple[bytes, bytes]:
        """The wrapped seed for a receiver, and the node of the commitments at its place; empty if there is none."""
        wrapped = self.wrapped.get(receiver)
        if wrapped is None:
            return b"", b""
        at = 2 * HASH_BYTES * place
        return wrapped, pair_node(self.leaves[at : at + HASH_BYTES], self.leaves[at + HASH_BYTES : at + 2 * HASH_BYTES])


@dataclass(frozen=True)
class SignatureCheck:
    """Of a signature over the survivor sets; makes its bytes of it."""

    config: RoundConfig
    statement: bytes

    def __call__(self, sender: int, message: ConsistencySignature) -> bytes:
        if not self.config.roster.verify(sender, message.signature, self.statement):
            raise InvalidMessage(CONSISTENCY_CHECK, sender, "the signature doesn't cover these sets")
        return message.signature


class SignedSets:
    """Signatures over u2 and u3 by signer, and the requests to the signers."""

    def __init__(self, cohort: ServerCohort, u2: frozenset[int], u3: frozenset[int], uploads: Uploaded) -> None:
        self._cohort, self._u3, self._uploads = cohort, u3, uploads
        self.statement = survivor_statement(cohort.config, cohort.context, u2, u3)
        self.check = SignatureCheck(cohort.config, self.statement)
        self.signatures: dict[int, bytes] = {}
        self._at_hand: tuple[tuple[tuple[int, bytes], ...], frozenset[int]] | None = None  # at the first request

    @property
    def signers(self) -> frozenset[int]:
        """u4: it may grow until the sum is opened."""
        return frozenset(self.signatures)

    @property
    def needed(self) -> int:
        """Signatures that each participant requires."""
        return self._cohort.config.parameters.signatures_needed(len(self._cohort.u1))

    @property
    def proven(self) -> bool:
        return len(self.signatures) >= self.needed

    @cached_property
    def proof(self) -> tuple[tuple[int, bytes], ...]:
        """The required number of signatures, those of the first participants, ascending: a proof for any verifier.

        Fixed at its first use, since messages that contain it may have to be repeated.
        """
        return tuple(sorted(self.signatures.items())[: self.needed])

    def requests(self, receivers: frozenset[int]) -> Messages[UnmaskingRequest]:
        """The requests to these, with signatures that were present at the first request.

        Only the required number if a participant verifies every signature shown to it. Otherwise all: the more are
        shown, the fewer it verifies.
        """
        if self._at_hand is None:  # one copy for all requests
            self._at_hand = tuple(sorted(self.signatures.items())), frozenset(self.signatures)
        signatures, signers = self._at_hand
        if self._cohort.graph.complete:
            to_everybody = UnmaskingRequest(signatures if self.needed > CHECK_ALL else self.proof)
            return Messages(tuple(sorted(receivers)), lambda _: to_everybody)
        return Messages(tuple(sorted(receivers)), partial(self._request_for, signatures, signers))

    def _request_for(
        self, signatures: tuple[tuple[int, bytes], ...], signers: frozenset[int], receiver: int
    ) -> UnmaskingRequest:
        needed = self.needed
        if needed > CHECK_ALL:
            return UnmaskingRequest(signatures, self._uploads_near(receiver, signers))
        # Prefer its neighbours' signatures: for a neighbour without one the request must contain its upload.
        neighbours = [one for one in self._cohort.graph.neighbours(receiver) if one in self._u3]
        nearest = frozenset([one for one in neighbours if one in signers][:needed])
        others = [pair for pair in signatures if pair[0] not in nearest][: needed - len(nearest)]
        furthest = others[-1][0] if others else -1
        shown = [pair for pair in signatures if pair[0] <= furthest or pair[0] in nearest]
        return UnmaskingRequest(tuple(shown), self._uploads_near(receiver, frozenset(signer for signer, _ in shown)))

    def _uploads_near(self, receiver: int, proven: frozenset[int]) -> tuple[tuple[bytes, bytes], ...]:
        """Uploads of its neighbours in u3 whose signatures the request doesn't contain."""
        near = self._cohort.graph.neighbours(receiver)
        uploads = (self._uploads[one] for one in near if one in self._u3 and one not in proven)
        return tuple((one.sha256, one.signature) for one in uploads)
