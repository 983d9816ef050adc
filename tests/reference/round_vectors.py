"""Test vectors of whole attempts: everything that is said, drops at every phase, dealers that cheat."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from functools import cache
from typing import Any

from tests.reference.coordinator import Coordinator
from tests.reference.mask_and_share_vectors import WIDTHS, decimal
from tests.reference.participant import Participant
from tests.reference.primitive_vectors import Case, flip, setting_json
from tests.reference.rounds import Change, Record, identity_seeds, input_of, run_round, setting_of, stream_of
from tests.reference.setting import Message, Setting, seed_commitment
from tests.reference.sharing import P, random_symbols, share
from tests.reference.vectors_mod_2b import add_vectors


class Played:
    """A round of the reference on both sides; participants and coordinator are in their last state."""

    def __init__(
        self,
        agreed: Setting,
        silent: Mapping[str, set[int]] | None = None,
        change: Mapping[tuple[str, int], Change] | None = None,
        crooks: Mapping[int, type[Participant]] | None = None,
    ) -> None:
        self.agreed, self.silent, self.crooks = agreed, dict(silent or {}), dict(crooks or {})
        self.everybody = range(len(agreed.roster))
        seeds = identity_seeds(len(agreed.roster))
        self.participants = {
            who: self.crooks.get(who, Participant)(agreed, seeds[who], stream_of(agreed, who)) for who in self.everybody
        }
        self.coordinator = Coordinator(agreed)
        self.inputs = {who: input_of(agreed, who) for who in self.everybody}
        self.changed = sorted({who for _, who in change or {}})
        sides = self.participants, self.coordinator, self.inputs
        self.record: Record = run_round(*sides, silent, change, agreed.numbers.phases)

    def participant(self, who: int) -> Case:
        one = self.participants[who]
        secret = {"identity_private": one.identity_seed, "identity": one.identity}
        return {**secret, "randomness": one.stream.taken, "input": decimal(self.inputs[who])}

    def vector(self, name: str, about: str, *, downs_too: bool = False, ends: bool = False) -> Case:
        """For a file; the coordinator's messages can be left out, as they follow from the participants'.

        ``ends``: by a refusal, and not in a sum.
        """
        agreed, coordinator, record = self.agreed, self.coordinator, self.record
        assert ends == (record.ended_by is not None), name
        downs: dict[str, Any] = {}
        for phase, messages in record.to_participants.items():
            if messages and downs_too:
                first = next(iter(messages.values()))
                downs[phase] = first if all(message == first for message in messages.values()) else messages
        sets: Case = {f"u{i}": vars(coordinator)[f"u{i}"] for i in range(1, 6) if f"u{i}" in vars(coordinator)}
        case: Case = {
            "name": name,
            "about": about,
            "setting": setting_json(agreed),
            "round_context": coordinator.round_context,
            "cohort_context": coordinator.context,
            "degree": coordinator.graph.degree,
            "threshold": coordinator.threshold,
            **({} if coordinator.graph.complete else {"ring": coordinator.graph.ring}),
            **sets,
            "survivor_statement": coordinator.statement,
            "crooked": sorted({*self.crooks, *self.changed}),
            "participants": [self.participant(who) for who in self.participants],
            "to_coordinator": record.to_coordinator,
            **({"to_participants": downs} if downs else {}),
            "refused": [{**refusal.stated(), "message": message} for refusal, message in record.refused],
        }
        if record.ended_by is not None:
            return {**case, "ends": record.ended_by.stated()}
        assert record.total is not None
        numbers = agreed.numbers
        plain_sum = add_vectors((self.inputs[who] for who in coordinator.u3), numbers.dim, numbers.bits)
        assert record.total == plain_sum, name
        return {**case, "cheats": coordinator.cheats, "sum": decimal(record.total)}


def deal_again(dealer: Participant, shares: list[list[int]], commitment: bytes) -> Message:
    """A dealing that follows the protocol in everything but what is shared."""
    dealer._following = "MaskedInputCollection"
    return dealer.deal(shares, commitment)


class Crook(Participant, abc.ABC):
    """Deals other shares after it has drawn the right ones, and commits to the seed of the right ones."""

    def share_keys(self, cohort_keys: Message) -> Message:
        super().share_keys(cohort_keys)
        return deal_again(self, self.crooked(), seed_commitment(self.seed, self.context, self.identity))

    def shared(self, secrets: list[int], degree_more: int = 0) -> list[list[int]]:
        """Shares of other secrets: 16 symbols of each kind."""
        return share(secrets, self.threshold + degree_more, self.points, self.stream)

    @abc.abstractmethod
    def crooked(self) -> list[list[int]]:
        """The shares that it deals."""


class SharesAnotherMaskKey(Crook):
    """Deals shares of a mask key that it didn't advertise."""

    def crooked(self) -> list[list[int]]:
        return self.shared(random_symbols(32, self.stream))


class CommitsToAnotherSeed(Crook):
    """Deals shares of a self-mask seed that it isn't committed to."""

    def crooked(self) -> list[list[int]]:
        return self.shared([*self.mask_secret, *random_symbols(16, self.stream)])


class SharesAtAnotherThreshold(Crook):
    """Deals by polynomials of one degree more, so that the threshold's shares rebuild something else."""

    def crooked(self) -> list[list[int]]:
        return self.shared([*self.mask_secret, *random_symbols(16, self.stream)], degree_more=1)


class CommitsToASymbolOutside(Crook):
    """Commits to shares with a symbol of 65521: it seals those of others, and reveals its own."""

    def crooked(self) -> list[list[int]]:
        return [[P, *row[1:16], P, *row[17:]] for row in self.shared([0] * 32)]


def spoil_ciphertext(*positions: int) -> Change:

    def change(message: Message) -> Message:
        ciphertexts = list(message["ciphertexts"])
        for position in positions:
            ciphertexts[position] = flip(ciphertexts[position], 50)
        return {**message, "ciphertexts": ciphertexts}

    return change


@cache
def base_round() -> Played:
    """The round that refusals start from: five of five, of whom 3 deals shares and is silent then.

    12 bits and 9 values leave 4 unused bits in a packed vector.
    """
    return Played(setting_of(5, bits=12, dim=9), {"MaskedInputCollection": {3}})


def round_vectors() -> Case:
    five = setting_of(5, bits=12, dim=9)
    six = setting_of(6, bits=33, dim=5, colluders=3, round_=1, attempt=1)
    nine = setting_of(9, bits=20, dim=11, quorum=7, min_survivors=6)
    rounds = [
        base_round().vector(
            "five",
            "Of five participants, 3 deals its shares and sends no input: its mask key is rebuilt.",
            downs_too=True,
        ),
        Played(six, {"ConsistencyCheck": {1}}).vector(
            "six, one doesn't sign",
            "1 sends its input and is silent then: it stays in the sum. The values have 33 bits, and 3 may collude.",
        ),
        Played(nine, {"AdvertiseKeys": {0}, "ShareKeys": {4}, "MaskedInputCollection": {7}}).vector(
            "nine, one leaves in each of three phases",
            "0 never advertises, so that points and positions in the roster differ; 4 advertises and doesn't deal; 7 "
            "deals and sends no input.",
        ),
        Played(five, change={("ShareKeys", 2): spoil_ciphertext(1)}).vector(
            "five, one sealed share is rubbish",
            "2 seals rubbish for 1, which is its second neighbour: 1 goes on, masks with 2 and reveals no share of it. "
            "All five sign, and the four signatures that are needed are shown.",
        ),
        Played(five, crooks={4: CommitsToAnotherSeed}).vector(
            "five, a seed that was not committed to",
            "The shares of 4 match their commitments and rebuild another self-mask seed: the attempt ends and names 4.",
            ends=True,
        ),
        Played(five, {"MaskedInputCollection": {0}}, crooks={0: SharesAnotherMaskKey}).vector(
            "five, a mask key that was not advertised",
            "The shares of 0 match their commitments and rebuild another mask key: the attempt ends and names 0.",
            ends=True,
        ),
        Played(five, crooks={1: SharesAtAnotherThreshold}).vector(
            "five, shares at another threshold",
            "1 dealt by polynomials of degree 4 where 3 is right: four of its shares rebuild something else.",
            ends=True,
        ),
        Played(five, crooks={2: CommitsToASymbolOutside}).vector(
            "five, a symbol outside the field",
            "2 commits to shares with a symbol of 65521. The others find that and report none; its own reply, which "
            "matches its commitment, is refused. Too few shares of its seed come together, and as more have none than "
            "may collude, the attempt names 2.",
            ends=True,
        ),
    ]
    return {"rounds": rounds}


def width_vectors() -> Case:
    """Small rounds of the widths that no other round has."""
    rounds = []
    for bits in sorted(set(WIDTHS) - {12, 16, 20, 33}):
        agreed = setting_of(3, bits=bits, dim=19, round_=1 + bits, attempt=1)
        about = f"Three participants, values of {bits} bits."
        rounds.append(Played(agreed).vector(f"{bits} bits", about))
    return {"rounds": rounds}
