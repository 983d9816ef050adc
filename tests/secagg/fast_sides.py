"""The protocol core behind the reference's interface: messages as dictionaries, refusals as `Refused`.

So a round can be played by the core, by the reference (tests/reference/), or by some of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from secagg import client_phases, keys, messages as core
from secagg.commitments import siblings
from secagg.context import RoundConfig
from secagg.errors import InvalidKey, ProtocolError, ReconstructionFailed, TooFewClients
from secagg.keys import IdentityKey
from secagg.masking import word_dtype
from secagg.parameters import RoundParameters
from secagg.roster import Roster, RosterEntry
from secagg.server_unmasking import Completed
from secagg.sharing import Sharing
from tests.reference import hybrid
from tests.reference.setting import Refused, Setting
from tests.support.naive_variants import CLIENT, SERVER

Message = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class StatedSharing(RoundParameters):
    """Degree and threshold as a vector states them: the rule has no ring for so few."""

    stated: Sharing

    def sharing(self, u1: int) -> Sharing:
        return self.stated


def parameters_of(agreed: Setting) -> RoundParameters:
    if agreed.sharing is None:
        return RoundParameters(**vars(agreed.numbers))
    return StatedSharing(**vars(agreed.numbers), stated=Sharing(*agreed.sharing))


def config_of(agreed: Setting) -> RoundConfig:
    entries = tuple(RosterEntry(identity, host) for identity, host in agreed.roster)
    return RoundConfig(
        roster=Roster(agreed.study, agreed.roster_version, entries, None, agreed.study_digest, agreed.previous_roster),
        round=agreed.round,
        attempt=agreed.attempt,
        study_digest=agreed.study_digest,
        model_digest=agreed.model_digest,
        parameters=parameters_of(agreed),
        newest=agreed.newest,
    )


@contextmanager
def refusals() -> Iterator[None]:
    """Say what the core raises in the reference's words."""
    try:
        yield
    except ProtocolError as error:
        facts: dict[str, Any] = {}
        if isinstance(error, TooFewClients):
            facts = {"received": error.received, "needed": error.needed}
        elif isinstance(error, ReconstructionFailed):
            facts = {"culprits": sorted(error.culprits)}
        elif hasattr(error, "sender"):
            facts = {"sender": error.sender}
        raise Refused(type(error).__name__, getattr(error, "phase", ""), **facts) from error


@contextmanager
def encapsulating(random_bytes: Callable[[int], bytes]) -> Iterator[None]:
    """Encapsulate with coins from a participant's randomness; the library draws its own."""

    def encapsulate(public: bytes) -> tuple[bytes, bytes]:
        found = hybrid.encapsulate(public, random_bytes(32))
        if found is None:
            raise InvalidKey
        return found

    with pytest.MonkeyPatch.context() as patch:
        for module in (keys, client_phases):
            patch.setattr(module, "encapsulate", encapsulate)
        yield


def read_advertisement(message: Message) -> core.Advertisement:
    return core.Advertisement(message["mask_key"], message["channel_key"], message["signature"])


def read_cohort_keys(message: Message) -> core.CohortKeys:
    def read(member: Message) -> core.Advertisement | bytes:
        full = "advertisement" in member
        return read_advertisement(member["advertisement"]) if full else member["advertisement_sha256"]

    return core.CohortKeys(tuple((member["participant"], read(member)) for member in message["members"]))


def read_sealed_shares(message: Message) -> core.SealedShares:
    lists = {name: tuple(message[name]) for name in ("ciphertexts", "leaves", "wrapped") if name in message}
    return core.SealedShares(**{**message, **lists})


def read_neighbour_shares(message: Message) -> core.NeighbourShares:
    shares = (core.DealtShare(**{**entry, "path": b"".join(entry["path"])}) for entry in message["shares"])
    return core.NeighbourShares(tuple(shares), message["u2"])


def read_request(message: Message) -> core.UnmaskingRequest | core.SurvivorSets:
    """Whichever asks for shares: without signatures the survivor sets do."""
    if message.keys() == {"u2", "u3"}:
        return core.SurvivorSets(**message)
    return core.UnmaskingRequest(
        tuple((entry["participant"], entry["signature"]) for entry in message["signatures"]),
        tuple((entry["sha256"], entry["signature"]) for entry in message["uploads"]),
    )


KINDS: dict[str, type[core.SelfMaskSeedShare | core.MaskKeyShare]] = {
    "self_mask_seed": core.SelfMaskSeedShare,
    "mask_key": core.MaskKeyShare,
}


def read_reply(message: Message) -> core.UnmaskingReply:
    def read(entry: Message) -> core.SelfMaskSeedShare | core.MaskKeyShare | None:
        [(name, share)] = entry.items()
        return KINDS[name](**share) if name in KINDS else None

    return core.UnmaskingReply(tuple(read(entry) for entry in message["shares"]), tuple(message.get("noise_seeds", ())))


OPTIONAL = ("wrapped", "pair", "noise_seeds")  # left out where they are empty


def written(message: Any) -> Message:
    """A message of the core, or a part of one, as a dictionary."""
    match message:
        case None:
            return {"none": {}}
        case core.SelfMaskSeedShare() | core.MaskKeyShare():
            return {name: dict(vars(message)) for name, kind in KINDS.items() if isinstance(message, kind)}
        case core.CohortKeys():
            members = []
            for who, entry in message.members:
                full = isinstance(entry, core.Advertisement)
                shown = {"advertisement": written(entry)} if full else {"advertisement_sha256": entry}
                members.append({"participant": who, **shown})
            return {"members": members}
        case core.UnmaskingRequest():
            return {
                "signatures": [{"participant": who, "signature": one} for who, one in message.signatures],
                "uploads": [{"sha256": sha256, "signature": one} for sha256, one in message.uploads],
            }
        case core.DealtShare():
            fields = {**message._asdict(), "path": siblings(message.path)}
        case core.NeighbourShares() | core.UnmaskingReply():
            fields = {**vars(message), "shares": [written(one) for one in message.shares]}
        case _:
            fields = vars(message)
    there = {name: one for name, one in fields.items() if one or name not in OPTIONAL}
    return {name: list(one) if isinstance(one, tuple) else one for name, one in there.items()}


TO_PARTICIPANT: dict[str, Callable[[Message], Any]] = {
    **{"ShareKeys": read_cohort_keys, "MaskedInputCollection": read_neighbour_shares},
    **{"ConsistencyCheck": lambda message: core.SurvivorSets(**message), "Unmasking": read_request},
}
TO_COORDINATOR: dict[str, Callable[[Message], Any]] = {
    **{"AdvertiseKeys": read_advertisement, "ShareKeys": read_sealed_shares, "Unmasking": read_reply},
    "MaskedInputCollection": lambda message: core.MaskedInput(**message),
    "ConsistencyCheck": lambda message: core.ConsistencySignature(**message),
}


class FastParticipant:
    """secagg.client_phases as `tests.reference.rounds.ParticipantSide`."""

    def __init__(self, agreed: Setting, identity_seed: bytes, random_bytes: Callable[[int], bytes]) -> None:
        identity = IdentityKey(Ed25519PrivateKey.from_private_bytes(identity_seed))
        self.bits, self.random_bytes = agreed.numbers.bits, random_bytes
        with refusals():
            self.now: Any = CLIENT.AdvertiseKeys(config_of(agreed), identity, random_bytes)

    def hear(self, phase: str, message: Message, vector: Sequence[int]) -> Message:
        with refusals(), encapsulating(self.random_bytes):
            if phase == "AdvertiseKeys":
                self.now, answer = self.now.advertise()
                return written(answer)
            result = self.now.receive(TO_PARTICIPANT[phase](message))
            if phase == "MaskedInputCollection":
                result = result.mask(np.array(vector, dtype=word_dtype(self.bits)))
            # The same request gets the same reply, and no further phase.
            self.now, answer = result if isinstance(result, tuple) else (self.now, result)
        return written(answer)


class FastCoordinator:
    """secagg.server_phases as `tests.reference.rounds.CoordinatorSide`."""

    def __init__(self, agreed: Setting) -> None:
        config = config_of(agreed)
        self.now: Any = SERVER.AdvertiseKeys(config, frozenset(range(len(config.roster))))
        self._signed = config.parameters.signed

    def receive(self, sender: int, message: Message) -> None:
        with refusals():
            self.now.receive(sender, TO_COORDINATOR[self.now.name](message))

    def close(self) -> Any:
        with refusals():
            closed = self.now.close()
        if isinstance(closed, Completed):
            self.now = closed
            self.noise_seeds = {who: list(seeds) for who, seeds in closed.noise_seeds.items()}
            return closed.total.tolist()
        self.now, messages = closed
        if isinstance(self.now, SERVER.ConsistencyCheck) and not self._signed:
            self.now = self.now.without_signatures()
        return {who: written(message) for who, message in messages.items()}
