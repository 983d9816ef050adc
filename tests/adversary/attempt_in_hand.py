"""One attempt in the hands of a coordinator: what it says in each phase, and what came of it."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from secagg import client_phases
from secagg.client_phases import AdvertiseKeys
from secagg.context import RoundConfig
from secagg.keys import AgreementKey, advertisement_statement
from secagg.messages import Advertisement, MaskedInput, UnmaskingRequest
from tests.adversary.coordinator_notes import Notes
from tests.adversary.script import Seen
from tests.support.attempts_in_memory import Sets, vector_of
from wire import codec
from wire import coordinator_pb2 as pb

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
    pb.REFUSAL_CODE_ALREADY_JOINED: "sits it out",
    pb.REFUSAL_CODE_LOCAL_FAILURE: "fails",
}
Everybody = None  # as the argument `to`: all honest clients who are still in the attempt


class Attempt:
    """One attempt in the coordinator's hands."""

    def __init__(self, coordinator: CheatingCoordinator, config: RoundConfig) -> None:
        self.coordinator, self.config = coordinator, config
        self.number = (config.round, config.attempt)
        self.advertisements: dict[int, Advertisement] = {}
        self.phases: dict[int, Any] = {}  # of colluders
        self.mask_keys: dict[int, AgreementKey] = {}  # private: colluders', and what was opened in any cohort
        self.channel_keys: dict[int, AgreementKey] = {}
        self.cohorts: list[Notes] = []
        self.shown: dict[int, Notes] = {}  # by whom it was shown to

    # ------------------------------------------------------------ who is in it

    def heard(self, who: int, kind: str) -> Any:
        """The last message of a kind of this attempt; None if there is none."""
        said = self.coordinator.clients[who].said
        return next((content for number, one, content in reversed(said) if (number, one) == (self.number, kind)), None)

    def alive(self, to: Iterable[int] | None = Everybody) -> list[int]:
        """Those who have not refused this attempt."""
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
        """Somebody of whom the coordinator has everything."""
        self.phases[who], self.advertisements[who] = phase, advertised
        self.mask_keys[who], self.channel_keys[who] = phase._keys.mask_key, phase._keys.channel_key

    def corrupt(self, who: Iterable[int]) -> None:
        """These collude as well: what they hold is the coordinator's, who says the rest in their place."""
        turned = frozenset(who)
        for one in sorted(turned):
            phase = self.coordinator.clients[one].participant._attempt.phase
            self.colludes(one, phase, self.advertisements[one])
        self.coordinator.colluders |= turned
        self.coordinator.honest -= turned

    def force(self, who: int) -> None:
        """A colluder advertises though its own client would not, not having been drawn."""
        phase = AdvertiseKeys.__new__(AdvertiseKeys)
        phase._config, phase._identity, phase._me = self.config, self.coordinator.keys[who], who
        phase._random_bytes = os.urandom
        self.colludes(who, *phase.advertise())

    def signed_by(self, colluder: int, mask_key: bytes, channel_key: bytes) -> Advertisement:
        """What a colluder advertises: any keys, under its own name."""
        assert colluder in self.coordinator.colluders
        identity = self.coordinator.keys[colluder]
        statement = advertisement_statement(self.config.round_context(), identity.public, mask_key, channel_key)
        return Advertisement(mask_key, channel_key, identity.sign(statement))

    # ------------------------------------------------------------ ShareKeys

    def cohort(
        self,
        u1: Iterable[int] | None = None,
        changed: Mapping[int, Advertisement] | None = None,
        own: Mapping[int, tuple[AgreementKey, AgreementKey]] | None = None,
    ) -> Notes:
        """A cohort to show: of these members, some with other advertisements, some with keys of the coordinator's own
        (private mask key, private channel key) in the member's name.
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

    async def show(self, cohort: Notes | None = None, to: Iterable[int] | None = Everybody) -> Notes:
        """CohortKeys; whoever takes it deals. Colluders in it deal as well, as the protocol says."""
        cohort = cohort or self.cohort()
        audience = [who for who in self.alive(to) if to is not None or who in cohort.u1]
        message = codec.write_cohort_keys(*self.number, cohort.message())
        await self.coordinator.tell({who: pb.CoordinatorMessage(cohort_keys=message) for who in audience})
        for who in audience:
            self.shown[who] = cohort
            dealt = self.heard(who, "share_keys")
            if dealt is not None:
                cohort.sealed[who] = codec.read_sealed_shares(dealt)
                with contextlib.suppress(ValueError, KeyError):  # dealt to another cohort than was written down
                    cohort.read(who)
        for who in sorted(cohort.colluders):
            with contextlib.suppress(client_phases.CoordinatorMisbehaved):  # this cohort is not fit for honest code
                cohort.deal([who])
        return cohort

    # ------------------------------------------------------------ MaskedInputCollection

    async def tell_u2(
        self,
        cohort: Notes,
        u2: Iterable[int] | None = None,
        to: Iterable[int] | None = Everybody,
        *,
        credit: bool = True,
    ) -> None:
        """NeighbourShares with this u2, all who dealt if it isn't given; then a credit for each offer."""
        members = frozenset(cohort.sealed if u2 is None else u2)
        audience = [who for who in self.alive(to) if self.shown.get(who) is cohort and who in cohort.sealed]
        await self.coordinator.tell(
            {
                who: pb.CoordinatorMessage(
                    neighbour_shares=codec.write_neighbour_shares(*self.number, cohort.neighbour_shares(who, members))
                )
                for who in audience
            }
        )
        if credit:
            await self.take_uploads(cohort, members, audience)
        for who in sorted(cohort.colluders & members):
            if who not in cohort.uploads and hasattr(cohort.phases.get(who), "cohort"):
                with contextlib.suppress(client_phases.CoordinatorMisbehaved):
                    cohort.mask(who, members)
                    cohort.inputs[who] = vector_of(who, self.config.parameters)

    async def take_uploads(self, cohort: Notes, u2: frozenset[int], who: Iterable[int]) -> None:
        """Grant a credit to each who asked for one, and note what arrives."""
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
        self, cohort: Notes, sets: Sets | Mapping[int, Sets], to: Iterable[int] | None = Everybody
    ) -> dict[int, bytes]:
        """SurvivorSets, the same for all or for each their own; signatures of honest clients by who gave them."""
        audience = [who for who in self.alive(to) if self.shown.get(who) is cohort]
        told = {who: sets[who] if isinstance(sets, Mapping) else sets for who in audience}
        await self.coordinator.tell(
            {
                who: pb.CoordinatorMessage(
                    survivor_sets=codec.write_survivor_sets(*self.number, cohort.survivor_sets(told[who]))
                )
                for who in audience
            }
        )
        return {who: message.signature for who in audience if (message := self.heard(who, "consistency")) is not None}

    async def ask_to_unmask(
        self,
        cohort: Notes,
        sets: Sets | Mapping[int, Sets],
        signatures: Mapping[int, bytes] | Mapping[int, Mapping[int, bytes]],
        to: Iterable[int] | None = Everybody,
        *,
        evidence: bool = True,
    ) -> None:
        """UnmaskingRequest: the same signatures for all, or for each their own; what is revealed is noted.

        On a ring also the uploads of neighbours that are not among the signers, unless there shall be no such evidence.
        """
        audience = [who for who in self.alive(to) if self.shown.get(who) is cohort]
        requests: dict[int, pb.CoordinatorMessage] = {}
        for who in audience:
            shown = signatures.get(who, signatures)
            pairs = tuple(sorted((shown if isinstance(shown, Mapping) else signatures).items()))
            told = sets[who] if isinstance(sets, Mapping) else sets
            uploads = cohort.evidence(who, told, {signer for signer, _ in pairs}) if evidence else ()
            request = UnmaskingRequest(pairs, uploads)  # type: ignore[arg-type]
            requests[who] = pb.CoordinatorMessage(
                unmasking_request=codec.write_unmasking_request(*self.number, request)
            )
        await self.coordinator.tell(requests)
        for who in audience:
            reply = self.heard(who, "unmasking")
            if reply is not None:
                told = sets[who] if isinstance(sets, Mapping) else sets
                cohort.note_reply(who, told[0], codec.read_unmasking_reply(reply))

    def colluders_sign(self, cohort: Notes, sets: Sets) -> dict[int, bytes]:
        """Colluders sign anything."""
        return {who: cohort.forge(who, sets) for who in sorted(cohort.colluders & sets[1])}

    async def finish(self, cohort: Notes, sets: Sets) -> None:
        """Signatures and shares for these sets from everybody who gives them."""
        signed = await self.ask_to_sign(cohort, sets)
        await self.ask_to_unmask(cohort, sets, signed | self.colluders_sign(cohort, sets))

    async def run(self, cohort: Notes | None = None) -> Notes:
        """All that an honest coordinator would do; a `twist` may see to it that it isn't."""
        cohort = await self.show(cohort)
        await self.tell_u2(cohort)
        await self.finish(cohort, (frozenset(cohort.sealed), frozenset(cohort.uploads)))
        return cohort

    # ------------------------------------------------------------ what came of it

    def verdict(self, victims: Iterable[int] | None = None, never: str = "") -> Seen:
        """How it came out for those who were lied to; all honest clients if not given.

        Args:
            never: the kind of message that none of them may send; "refused" is only said of clients that sent neither
                it nor one of a later phase.
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
        """Promises about secrets and sums that do not hold for this attempt."""
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
            if len(found) > 1 and all(len(members) >= least for members in found):
                broken.append("two sums open")
        return list(dict.fromkeys(broken))

    def opened(self, cohort: Notes, members: Iterable[int]) -> bool:
        """Whether the sum of exactly these inputs came out."""
        members = frozenset(members)
        return members <= cohort.uploads.keys() and cohort.opens(members)
