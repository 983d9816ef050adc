"""One attempt of a cheating coordinator: what it sends in each phase, and the outcome."""

from __future__ import annotations

import contextlib
import copy
import os
import struct
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from mechanisms.plan import Plan
from secagg import client_phases
from secagg.client_phases import AdvertiseKeys
from secagg.context import RoundConfig
from secagg.keys import AgreementKey, advertisement_statement, noise_commitment
from secagg.messages import Advertisement, MaskedInput, UnmaskingRequest
from secagg.packing import packed_size
from tests.adversary.script import Seen
from tests.support.attempts_in_memory import Sets, vector_of
from tests.support.coordinator_notes import Notes
from wire import codec, coordinator_pb2 as pb

if TYPE_CHECKING:
    from tests.adversary.cheating_coordinator import CheatingCoordinator

ORDER = ["advertise_keys", "share_keys", "masked_input", "upload", "consistency", "unmasking"]
SAID = {
    "advertise_keys": "keys",
    "share_keys": "shares of its secrets",
    "masked_input": "the digest of its masked input",
    "upload": "its masked input",
    "consistency": "a signature over the survivors",
    "unmasking": "shares of the others' secrets",
}
REFUSALS = {
    pb.REFUSAL_CODE_COORDINATOR_MISBEHAVED: "refused",
    pb.REFUSAL_CODE_POLICY: "refused by policy",
    pb.REFUSAL_CODE_BUDGET: "refused by policy",
    pb.REFUSAL_CODE_ALREADY_JOINED: "sits it out",
    pb.REFUSAL_CODE_LOCAL_FAILURE: "fails",
}


class Attempt:
    """One attempt that the coordinator controls."""

    def __init__(self, coordinator: CheatingCoordinator, config: RoundConfig) -> None:
        self.coordinator, self.config = coordinator, config
        self.number = (config.round, config.attempt)
        self.advertisements: dict[int, Advertisement] = {}
        self.phases: dict[int, Any] = {}  # of colluders
        self.mask_keys: dict[int, AgreementKey] = {}  # private: colluders', and what was opened in any cohort
        self.channel_keys: dict[int, AgreementKey] = {}
        self.cohorts: list[Notes] = []
        self.shown: dict[int, Notes] = {}  # by receiver

    # ------------------------------------------------------------ who is in it

    def shown_it(self, cohort: Notes, to: Iterable[int] | None) -> list[int]:
        """Return those that have not refused this attempt and were shown this cohort."""
        return [who for who in self.alive(to) if self.shown.get(who) is cohort]

    def heard(self, who: int, kind: str) -> Any:
        """Return a participant's last message of a kind in this attempt; None if there is none."""
        said = self.coordinator.clients[who].said
        return next((content for number, one, content in reversed(said) if (number, one) == (self.number, kind)), None)

    def alive(self, to: Iterable[int] | None = None) -> list[int]:
        """Return the participants that have not refused this attempt."""
        candidates = self.coordinator.honest if to is None else frozenset(to)
        return [who for who in sorted(candidates) if self.heard(who, "refusal") is None]

    def collect_advertisements(self, audience: Iterable[int]) -> None:
        for who in audience:
            message = self.heard(who, "advertise_keys")
            if message is not None:
                self.advertisements[who] = codec.read_advertisement(message)
        for who in sorted(self.coordinator.colluders):
            with contextlib.suppress(client_phases.CoordinatorMisbehaved):  # not drawn
                self.colludes(who, *AdvertiseKeys(self.config, self.coordinator.keys[who], os.urandom).advertise())

    def colludes(self, who: int, phase: Any, advertised: Advertisement) -> None:
        """Add a participant whose secrets the coordinator has."""
        self.phases[who], self.advertisements[who] = phase, advertised
        self.mask_keys[who], self.channel_keys[who] = phase._keys.mask_key, phase._keys.channel_key

    def corrupt(self, who: Iterable[int]) -> None:
        """Let these collude as well: the coordinator has what they hold, and sends the rest in their place."""
        turned = frozenset(who)
        for one in sorted(turned):
            self.colludes(one, self.coordinator.clients[one].participant._attempt.phase, self.advertisements[one])
        self.coordinator.colluders |= turned
        self.coordinator.honest -= turned

    def force(self, who: int) -> None:
        """Let a colluder advertise although it was not drawn."""
        phase = AdvertiseKeys.__new__(AdvertiseKeys)
        phase._config, phase._identity, phase._me = self.config, self.coordinator.keys[who], who
        phase._random_bytes = os.urandom
        self.colludes(who, *phase.advertise())

    def signed_by(self, colluder: int, mask_key: bytes, channel_key: bytes) -> Advertisement:
        """Return any keys as a colluder's advertisement, signed by it."""
        assert colluder in self.coordinator.colluders
        identity = self.coordinator.keys[colluder]
        statement = advertisement_statement(self.config.round_context(), identity.public, mask_key, channel_key)
        return Advertisement(mask_key, channel_key, identity.sign(statement))

    async def send(self, kind: str, messages: Mapping[int, Any]) -> None:
        """Send messages of the core, by receiver; ``kind`` is their field of `CoordinatorMessage`."""
        write = getattr(codec, f"write_{kind}")
        await self.coordinator.tell(
            {who: pb.CoordinatorMessage(**{kind: write(*self.number, one)}) for who, one in messages.items()}
        )

    # ------------------------------------------------------------ ShareKeys

    def cohort(
        self,
        u1: Iterable[int] | None = None,
        changed: Mapping[int, Advertisement] | None = None,
        own: Mapping[int, tuple[AgreementKey, AgreementKey]] | None = None,
    ) -> Notes:
        """Make a cohort to show.

        Args:
            changed: other advertisements of some members.
            own: keys made by the coordinator (private mask key, private channel key) in a member's name.
        """
        own = own or {}
        shown = {**self.advertisements, **(changed or {})}
        shown |= {
            who: Advertisement(mask_key.public, channel_key.public, bytes(64))
            for who, (mask_key, channel_key) in own.items()
        }
        members = tuple(sorted(shown if u1 is None else u1))
        notes = Notes(
            self.config,
            members,
            {who: shown[who] for who in members},
            {who: copy.copy(phase) for who, phase in self.phases.items() if who in members},
            self.coordinator.colluders & frozenset(members),
            self.mask_keys if not own else {**self.mask_keys, **{who: pair[0] for who, pair in own.items()}},
            identity_keys=self.coordinator.keys,
            channel_keys={**self.channel_keys, **{who: pair[1] for who, pair in own.items()}},
        )
        self.cohorts.append(notes)
        return notes

    async def show(self, cohort: Notes | None = None, to: Iterable[int] | None = None) -> Notes:
        """Send CohortKeys; receivers that accept it deal, and so do its colluders, as the protocol says."""
        cohort = cohort or self.cohort()
        audience = [who for who in self.alive(to) if to is not None or who in cohort.u1]
        await self.send("cohort_keys", dict.fromkeys(audience, cohort.keys()))
        for who in audience:
            self.shown[who] = cohort
            dealt = self.heard(who, "share_keys")
            if dealt is not None:
                cohort.sealed[who] = codec.read_sealed_shares(dealt)
                with contextlib.suppress(ValueError, KeyError):  # dealt to another cohort than was written down
                    cohort.read(who, cohort.sealed[who])
        for who in sorted(cohort.colluders):
            with contextlib.suppress(client_phases.CoordinatorMisbehaved):  # this cohort is not fit for honest code
                cohort.deal([who])
        return cohort

    # ------------------------------------------------------------ MaskedInputCollection

    async def tell_u2(
        self, cohort: Notes, u2: Iterable[int] | None = None, to: Iterable[int] | None = None, *, credit: bool = True
    ) -> None:
        """Send NeighbourShares with this u2, by default all that dealt; then a credit for each offer."""
        members = frozenset(cohort.sealed if u2 is None else u2)
        audience = [who for who in self.shown_it(cohort, to) if who in cohort.sealed]
        await self.send("neighbour_shares", {who: cohort.neighbour_shares(who, members) for who in audience})
        if credit:
            await self.take_uploads(cohort, members, audience)
        for who in sorted(cohort.colluders & members):
            if who not in cohort.uploads and hasattr(cohort.phases.get(who), "cohort"):
                with contextlib.suppress(client_phases.CoordinatorMisbehaved):
                    cohort.mask(who, members)
                    cohort.inputs[who] = vector_of(who, self.config.parameters)

    async def masked(self) -> Notes:
        """Show the whole cohort and the true u2 to all, and take their uploads."""
        cohort = await self.show()
        await self.tell_u2(cohort)
        return cohort

    async def take_uploads(self, cohort: Notes, u2: frozenset[int], who: Iterable[int]) -> None:
        """Grant a credit to each that asked for one, and note what arrives."""
        round_, attempt = self.number
        credit = pb.CoordinatorMessage(upload_credit=pb.UploadCredit(round=round_, attempt=attempt))
        offers = {one: self.heard(one, "masked_input") for one in who}
        await self.coordinator.tell({one: credit for one, offer in offers.items() if offer is not None})
        for one, offer in offers.items():
            packed = self.heard(one, "upload")
            if offer is not None and packed is not None:
                neighbours = u2 & frozenset(cohort.graph.neighbours(one))
                cohort.note_upload(one, MaskedInput(packed, offer.sha256, offer.signature), neighbours)
                cohort.inputs[one] = self.coordinator.clients[one].inputs[self.number]

    # ------------------------------------------------------------ ConsistencyCheck and Unmasking

    async def ask_to_sign(
        self, cohort: Notes, sets: Sets | Mapping[int, Sets], to: Iterable[int] | None = None
    ) -> dict[int, bytes]:
        """Send SurvivorSets, the same to all or by receiver; return the honest signatures by signer."""
        told = {who: sets[who] if isinstance(sets, Mapping) else sets for who in self.shown_it(cohort, to)}
        await self.send("survivor_sets", {who: cohort.survivor_sets(one) for who, one in told.items()})
        return {who: message.signature for who in told if (message := self.heard(who, "consistency")) is not None}

    async def ask_to_unmask(
        self,
        cohort: Notes,
        sets: Sets | Mapping[int, Sets],
        signatures: Mapping[int, bytes] | Mapping[int, Mapping[int, bytes]],
        to: Iterable[int] | None = None,
        *,
        evidence: bool = True,
    ) -> None:
        """Send UnmaskingRequest, with the same signatures to all or by receiver, and note what is revealed.

        ``evidence``: on a ring, include the uploads of neighbours that are not signers.
        """
        told = {who: sets[who] if isinstance(sets, Mapping) else sets for who in self.shown_it(cohort, to)}
        requests: dict[int, UnmaskingRequest] = {}
        for who in told:
            shown = signatures.get(who, signatures)
            pairs = tuple(sorted((shown if isinstance(shown, Mapping) else signatures).items()))
            uploads = cohort.evidence(who, told[who], {signer for signer, _ in pairs}) if evidence else ()
            requests[who] = UnmaskingRequest(pairs, uploads)  # type: ignore[arg-type]
        await self.send("unmasking_request", requests)
        for who, (u2, _) in told.items():
            reply = self.heard(who, "unmasking")
            if reply is not None:
                cohort.note_reply(who, u2, codec.read_unmasking_reply(reply))

    def colluders_sign(self, cohort: Notes, sets: Sets) -> dict[int, bytes]:
        """Return signatures of the colluders; they sign anything."""
        return {who: cohort.forge(who, sets) for who in sorted(cohort.colluders & sets[1])}

    async def all_sign(self, cohort: Notes, sets: Sets, to: Iterable[int] | None = None) -> dict[int, bytes]:
        """As `ask_to_sign`, with the colluders' signatures."""
        return await self.ask_to_sign(cohort, sets, to) | self.colluders_sign(cohort, sets)

    async def finish(
        self, cohort: Notes, sets: Sets, to: Iterable[int] | None = None, *, evidence: bool = True
    ) -> None:
        """Ask these participants to sign and to open these sets, with all signatures there are."""
        await self.ask_to_unmask(cohort, sets, await self.all_sign(cohort, sets, to), to, evidence=evidence)

    async def run(self, cohort: Notes | None = None) -> Notes:
        """Do all that an honest coordinator does; a `twist` may change it."""
        cohort = await self.show(cohort)
        await self.tell_u2(cohort)
        await self.finish(cohort, (frozenset(cohort.sealed), frozenset(cohort.uploads)))
        return cohort

    # ------------------------------------------------------------ the outcome

    def verdict(self, victims: Iterable[int] | None = None, never: str = "") -> Seen:
        """Return the outcome for the victims of a lie, by default all honest participants.

        Args:
            never: the kind of message that they must not send; the outcome is "refused" only if they sent neither it
                nor one of a later phase.
        """
        coordinator = self.coordinator
        lied_to = sorted(coordinator.honest if victims is None else victims)
        faults = [fault for who in lied_to for fault in coordinator.clients[who].faults]
        if faults:
            return coordinator.came_out("crashes", faults[0])
        forbidden = ORDER[ORDER.index(never) :] if never else []
        gave = [kind for kind in forbidden if any(self.heard(who, kind) is not None for who in lied_to)]
        if gave:
            return coordinator.came_out("goes on", f"it sends {SAID[gave[0]]}")
        codes = {self.heard(who, "refusal") for who in lied_to}
        if codes == {None}:
            done = [kind for kind in ORDER if any(self.heard(who, kind) is not None for who in lied_to)]
            return coordinator.came_out("goes on", f"it sends {SAID[done[-1]]}" if done else "it says nothing")
        return coordinator.came_out(REFUSALS.get(codes.pop(), "refused") if len(codes) == 1 else "some refuse")

    def lost(self) -> list[str]:
        """Return the promises about secrets and sums that do not hold for this attempt."""
        honest, parameters = self.coordinator.honest, self.config.parameters
        broken = []
        for cohort in self.cohorts:
            for who in sorted(honest & frozenset(cohort.u1)):
                if cohort.private_mask_key(who) is not None:
                    self.mask_keys.setdefault(who, cohort.private_mask_key(who))  # good in every cohort of the attempt
        for cohort in self.cohorts:
            for who, key in self.mask_keys.items():
                cohort.mask_keys.setdefault(who, key)
            broken += [
                f"both secrets of participant {who} are known"
                for who in sorted(honest & frozenset(cohort.sealed))
                if cohort.both_secrets(who)
            ]
            found = [members for members in cohort.openable(honest) if cohort.opens(members)]
            least = parameters.min_survivors - parameters.colluders
            for members in sorted(found, key=sorted):
                if len(members) == 1:
                    broken.append(f"the input of participant {next(iter(members))} is exposed")
                elif len(members) < least:
                    broken.append(f"the sum of {len(members)} honest inputs opens, {least} were promised")
                elif self._unknown_noise(cohort, members) < least * self._plan.local_variance:
                    broken.append(f"the sum of {len(members)} honest inputs opens with less noise than was promised")
            if len(found) > 1 and all(len(members) >= least for members in found):
                broken.append("two sums open")
        return list(dict.fromkeys(broken))

    @property
    def _plan(self) -> Plan:
        return self.coordinator.public.document.plan

    def _unknown_noise(self, cohort: Notes, members: frozenset[int]) -> Fraction:
        """Return the variance of these participants' noise, but for parts whose seeds they revealed in any attempt."""
        plan, known = self._plan, 0
        size = packed_size(plan.padded_dim, plan.bits)
        for who in members:
            commitments = [one for (one,) in struct.iter_unpack("32s", self.heard(who, "upload")[size:])]
            said = [content for _, kind, content in self.coordinator.clients[who].said if kind == "unmasking"]
            for seed in {seed for reply in said for seed in reply.noise_seeds}:
                for part, commitment in enumerate(commitments):
                    opened = noise_commitment(seed, part, cohort.context, self.config.roster.identity(who))
                    known += (opened == commitment) << part
        whole = plan.local_variance
        return whole * len(members) - plan.noise_unit(whole) * known

    def opened(self, cohort: Notes, members: Iterable[int]) -> bool:
        """Tell whether the sum of exactly these inputs opens."""
        members = frozenset(members)
        return members <= cohort.uploads.keys() and cohort.opens(members)
