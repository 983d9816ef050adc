"""A state machine: a coordinator that sends anything to anybody, with some colluding participants.

It is played on the complete graph and on rings: on some of these any two may collude, on others (`CUT` in
small_rings.py) four at the most harmful places. The honest participants are the real code. Hypothesis divides them
into three groups, which can be sent different messages, and chooses the lies; everything else is the truth. After
every step these claims are held against everything that the adversary has seen:

    crash       only protocol errors are raised
    over        a participant that refused a message has left the attempt, holds what it held and answers nothing more
    forged      a signed message with one bit changed is not taken
    nested      an honest participant accepts only u1 ⊇ u2 ⊇ u3, none too small, itself in each, as many neighbours in
                u2 as the threshold requires, all of which have dealt in its cohort, dealings of exactly these, and it
                signs as u2 the set it masked in
    one kind    it never reveals both kinds of share of one dealer
    one answer  it never answers two different requests, nor signs two statements
    one sum     all that answer do so in the same cohort, for the same u2 and u3
    backed      a participant that answers was shown enough signatures: as many honest ones as A colluders leave
    noise       it reveals the noise seeds of exactly the parts that belong to the |u3| it was shown, each once in an
                attempt, and only after as many honest ones have signed that u3
    left out    a participant that takes its charge back is not in the u3 shown, and as many honest ones signed that
    secrets     both secrets of one honest participant are never known together
    few         no sum over fewer than min_survivors - A honest inputs opens

The last two count shares and follow masks; before they fail, the sum or the secrets are really computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from secagg.errors import CoordinatorMisbehaved
from secagg.messages import (
    MASK_KEY,
    SELF_MASK_SEED,
    Advertisement,
    CohortKeys,
    MaskKeyShare,
    NeighbourShares,
    Subset,
    SurvivorSets,
    UnmaskingRequest,
    to_bitmap,
)
from tests.secagg.claims import Broken, ClaimingMachine
from tests.secagg.lying_coordinator_view import (
    Answer,
    Plan,
    Told,
    View,
    answer,
    ask,
    colluders_of,
    config_of,
    fake_key,
    sides_of,
)
from tests.support.attempts_in_memory import Sets, flipped, surplus_parts
from tests.support.comparable import twin
from tests.support.naive_variants import CLIENT

Pairs = Sequence[tuple[int, bytes]]  # signers and signatures, ascending
COMPLETE = (Plan(8, 6, 6), Plan(8, 7, 7), Plan(8, 6, 7), Plan(9, 6, 6), Plan(9, 8, 8))
RINGS = (Plan(10, 7, 7, graph="ring"), Plan(10, 8, 9, graph="ring"), Plan(9, 7, 7, graph="ring"))
CUT = Plan(14, 13, 13, 4, "cut")
CUT_WITH_TOO_MANY_DROPS = Plan(14, 12, 12, 4, "cut")  # degree 6 = 4 colluders + 2 drops: not safe
PLANS = (*COMPLETE, *RINGS, CUT)
EVERYBODY = 7  # three groups as bits
NUMBERS = st.integers(0, 2**16)
GROUPS = st.sampled_from([EVERYBODY, EVERYBODY, EVERYBODY, 1, 2, 4])
SOME = st.integers(0, EVERYBODY)
SCHEMES = ("", "", "", "", "two for u2", "two for u3", "few in u3", "some never deal")
SCHEMES += ("left out", "left out", "asked twice", "in the middle", "another u1", "odd u2")
SCHEMES += ("victims", "victims", "windows")
HONEST_PHASES = {"victims": 1, "two for u2": 1, "odd u2": 1, "asked twice": 4}  # before the lies of a scheme begin
HONEST_PHASES |= dict.fromkeys(("windows", "two for u3", "few in u3", "left out"), 2)
SIGNATURES = ("few", "again", "others", "outside", "none")
UPLOADS = ("none", "one too many", "another's", "a colluder's", "changed")
U2 = ("without itself", "one dealer more", "one dealer less", "no dealers", "one more byte", "no neighbours")


class LyingCoordinator(ClaimingMachine):
    """One attempt."""

    scheme: ClassVar[str] = ""  # one of SCHEMES, instead of a drawn one
    plans: ClassVar[tuple[Plan, ...]] = ()  # instead of PLANS
    joins_again: ClassVar[bool] = False  # a naive participant that forgets in a crash that it had joined

    @initialize(
        at=st.integers(0, len(PLANS) - 1),
        groups=st.lists(st.sampled_from([1, 2, 4]), min_size=10, max_size=10),
        scheme=st.sampled_from(SCHEMES),
        audience=st.sampled_from([1, 2, 4]),
        one=SOME,
        other=SOME,
        how=st.sampled_from(SIGNATURES),
        noise=st.booleans(),
    )
    def begin(
        self, at: int, groups: list[int], scheme: str, audience: int, one: int, other: int, how: str, noise: bool
    ) -> None:
        """Most examples begin with a scheme whose sets are left to chance."""
        plans = self.plans or PLANS
        self.plan = plans[at % len(plans)]
        scheme = self.scheme or scheme
        if scheme in ("victims", "windows") and self.plan.graph != "cut":
            self.plan = CUT
        self.plan = self.plan.with_noise() if noise else self.plan
        self.config = config_of(self.plan)
        size = self.plan.cohort
        self.colluders = colluders_of(self.plan)
        self.honest = frozenset(range(size)) - self.colluders
        self.group = dict(zip(sorted(self.honest), groups, strict=False))
        self.life = dict.fromkeys(range(size), 0)
        self.live: dict[int, list[Told]] = {who: [()] for who in self.honest}
        self.views: dict[CohortKeys, View] = {}
        self.signed: dict[tuple[bytes, Sets], dict[int, bytes]] = {}
        self.signs: dict[tuple[int, int], set[Any]] = {}
        self.answers: dict[tuple[int, int], set[Any]] = {}
        self.noise_parts: dict[tuple[int, int], list[int]] = {}  # revealed
        self.opened_for: set[tuple[bytes, Sets]] = set()
        gone = next(group for group in (1, 2, 4)[:: 1 - 2 * (one % 2)] if group != audience)
        if scheme in ("victims", "windows"):
            self.group, drops = sides_of(self.plan)
        left = sorted(self.honest)[one % len(self.honest)]
        if scheme == "left out":
            self.group = {who: 4 if who == left else 1 for who in self.honest}
        for _ in range(HONEST_PHASES.get(scheme, 0)):
            self.go_on_honestly(EVERYBODY)
        match scheme:
            case "victims":
                # One window hides from the far side; its neighbours there are asked for its seed.
                self.hide_neighbours(4, 2)
                self.go_on_honestly(EVERYBODY)
                self.tell_other_survivors(3, EVERYBODY, EVERYBODY, 4 * drops + 1)
                if one % 2:
                    self.ask_with_other_uploads(3, UPLOADS[other % len(UPLOADS)], other)
                self.go_on_honestly(3)
            case "windows":
                self.tell_other_survivors(3, EVERYBODY, 3, 0)
                self.go_on_honestly(3)
            case "two for u2":
                self.tell_another_u2(audience, audience | gone, 0)
                self.go_on_honestly(EVERYBODY)
                self.tell_other_survivors(EVERYBODY, EVERYBODY, EVERYBODY - gone, 0)
            case "two for u3":
                self.tell_other_survivors(audience, EVERYBODY, EVERYBODY, 0)
                self.tell_other_survivors(EVERYBODY, EVERYBODY, EVERYBODY - gone, 0)
                self.ask_with_other_signatures(EVERYBODY, how, one)
            case "some never deal":
                self.go_on_honestly(EVERYBODY - audience)
                for who in self.those(audience):
                    self.live[who] = []
                if one % 2:
                    self.tell_another_u2(EVERYBODY, EVERYBODY, 0)
                self.go_on_honestly(EVERYBODY)
                self.tell_other_survivors(EVERYBODY, 0, other, 0)
            case "asked twice":
                self.ask_a_phase_again(EVERYBODY, 2, one)
            case "few in u3":
                self.tell_other_survivors(EVERYBODY, EVERYBODY, EVERYBODY - audience, 0)
            case "left out":
                self.tell_other_survivors(1, EVERYBODY, EVERYBODY, 4 * left + 1)
                self.tell_that_they_were_left_out(EVERYBODY, EVERYBODY, how, 2 * other + 1)
                self.tell_that_they_were_left_out(EVERYBODY, EVERYBODY, "all", 1)
            case "odd u2":
                self.tell_a_u2_that_fits_nothing(audience, U2[(one + 8 * other) % len(U2)], other)
            case "another u1":
                self.show_another_u1(audience, one, other)
            case "in the middle":
                self.show_keys_of_its_own(audience, EVERYBODY)

    # ------------------------------------------------------------ telling

    def those(self, groups: int) -> frozenset[int]:
        return frozenset(who for who, group in self.group.items() if group & groups)

    def chosen(self, groups: int, but: int = 0) -> frozenset[int]:
        """Whole groups and the colluders; sometimes with one participant more or less."""
        members = self.those(groups) | self.colluders
        return members ^ {but // 4 % self.plan.cohort} if but % 4 == 1 else members

    def waiting(self, audience: int, phase: int) -> list[tuple[int, Told]]:
        """Those of the audience whose last message was the one before this phase's."""
        return [(who, told) for who in sorted(self.those(audience)) for told in self.live[who] if len(told) == phase]

    def tell(self, who: int, told: Told, message: Any, forged: bool = False) -> None:
        given = answer(self.client, self.plan, who, self.life[who], (*told, message))
        self.live[who].remove(told)
        if isinstance(given.error, Broken):
            self.claim(False, given.error.claim, str(given.error))
        if given.error is not None:
            self.seen[f"refused in phase {len(told)}"] += 1
            return
        self.claim(not forged, "forged", f"{who} took a forged message in phase {len(told)}")
        self.live[who].append((*told, message))
        self.note(who, (*told, message), given)

    def refused(self, call: Callable[..., Any], *arguments: Any) -> Exception | None:
        """What is raised, which must be a refusal; None if nothing is."""
        try:
            call(*arguments)
        except CoordinatorMisbehaved as error:
            return error
        except Exception as error:
            self.claim(False, "crash", f"{type(error).__name__}: {error}")
            return error
        return None

    def view(self, told: Told) -> View:
        return self.views[told[0]]

    def advert(self, who: int) -> Advertisement:
        client = CLIENT if who in self.colluders else self.client
        return answer(client, self.plan, who, self.life[who], ()).reply

    def keys(self, members: Iterable[int], fakes: frozenset[int] = frozenset()) -> CohortKeys:
        """u1, in which some keys may be the coordinator's own."""
        shown = {one: self.advert(one) for one in sorted(members)}
        for one in fakes:
            shown[one] = Advertisement(fake_key(one, 0).public, fake_key(one, 1).public, bytes(64))
        message = CohortKeys(tuple(shown.items()))
        self.shown(message, fakes)
        return message

    def shown(self, message: CohortKeys, fakes: frozenset[int] = frozenset()) -> View:
        if message not in self.views:
            self.views[message] = View.of(self.plan, self.colluders, message, fakes)
        return self.views[message]

    def truth(self, who: int, told: Told) -> Any:
        """What an honest coordinator would say next, as far as that can be said in the cohort it was shown."""
        if not told:
            return self.keys(range(self.plan.cohort))
        view = self.view(told)
        match len(told):
            case 1:
                return view.neighbour_shares(who, view.sealed)
            case 2:
                u2 = view.told_u2[who]
                return view.survivor_sets((u2, u2 & (view.uploads.keys() | self.colluders)))
            case 3:
                sets = self.told_sets(told)
                return self.request(view, who, sets, self.signatures(view, sets))
        return told[3]

    def told_sets(self, told: Told) -> Sets:
        u1 = self.view(told).u1
        return frozenset(Subset(told[2].u2, u1)), frozenset(Subset(told[2].u3, u1))

    def signatures(self, view: View, sets: Sets) -> Pairs:
        """What there is over these sets; colluders sign anything."""
        found = dict(self.signed.get((view.context, sets), {}))
        return sorted((found | {one: view.forge(one, sets) for one in self.colluders & sets[1]}).items())

    def needed(self, view: View) -> int:
        return self.config.parameters.signatures_needed(len(view.u1))

    def some_signatures(self, view: View, sets: Sets, how: str, at: int) -> Pairs:
        """Those there are, or what is wrong with them."""
        good, needed = self.signatures(view, sets), self.needed(view)
        match how:
            case "few":
                good = good[: needed - 1]
            case "again":
                good = good[at % max(1, len(good)) :][:1] * needed
            case "others":
                over_others = {who: one for found in self.signed.values() for who, one in found.items()}
                good = sorted((over_others | dict(good)).items())
            case "outside":
                good = sorted((dict(good) | {one: view.forge(one, sets) for one in self.colluders}).items())
            case "none":
                good = []
        return good

    def request(self, view: View, who: int, sets: Sets, signatures: Pairs) -> UnmaskingRequest:
        """With these signatures, and the uploads that belong to them."""
        return UnmaskingRequest(tuple(signatures), view.evidence(who, sets, {one for one, _ in signatures}))

    # ------------------------------------------------------------ the truth, and lies about each of the sets

    @rule(audience=GROUPS)
    def go_on_honestly(self, audience: int) -> None:
        """The next message to those of the audience that are furthest behind."""
        alive = [(len(told), who, told) for who in sorted(self.those(audience)) for told in self.live[who]]
        behind = min((phase for phase, _, _ in alive), default=4)
        for phase, who, told in alive:
            if phase == behind < 4:
                self.tell(who, told, self.truth(who, told))

    @precondition(lambda self: self.waiting(EVERYBODY, 0))
    @rule(audience=GROUPS, members=SOME, but=NUMBERS)
    def show_another_u1(self, audience: int, members: int, but: int) -> None:
        for who, told in self.waiting(audience, 0):
            self.tell(who, told, self.keys(self.chosen(members, but)))

    @precondition(lambda self: self.waiting(EVERYBODY, 0))
    @rule(audience=GROUPS, fakes=SOME)
    def show_keys_of_its_own(self, audience: int, fakes: int) -> None:
        for who, told in self.waiting(audience, 0):
            self.tell(who, told, self.keys(range(self.plan.cohort), self.those(fakes) - {who}))

    @precondition(lambda self: self.waiting(EVERYBODY, 1))
    @rule(audience=GROUPS, members=SOME, but=NUMBERS)
    def tell_another_u2(self, audience: int, members: int, but: int) -> None:
        for who, told in self.waiting(audience, 1):
            view = self.view(told)
            self.tell(who, told, view.neighbour_shares(who, self.chosen(members, but) & set(view.u1)))

    @precondition(lambda self: self.waiting(EVERYBODY, 2))
    @rule(audience=GROUPS, u2=st.sampled_from([EVERYBODY, EVERYBODY, EVERYBODY, 0, 3, 5, 6]), u3=SOME, but=NUMBERS)
    def tell_other_survivors(self, audience: int, u2: int, u3: int, but: int) -> None:
        """u2 of whole groups, or what each participant masked with."""
        for who, told in self.waiting(audience, 2):
            view = self.view(told)
            known = self.chosen(u2) & set(view.u1) if u2 else view.told_u2[who]
            self.tell(who, told, view.survivor_sets((known, self.chosen(u3, but) & set(view.u1))))

    @precondition(lambda self: self.waiting(EVERYBODY, 3))
    @rule(audience=GROUPS, how=st.sampled_from(SIGNATURES), at=NUMBERS)
    def ask_with_other_signatures(self, audience: int, how: str, at: int) -> None:
        for who, told in self.waiting(audience, 3):
            view, sets = self.view(told), self.told_sets(told)
            # It is no forgery where the honest ones happen to be enough.
            self.tell(who, told, self.request(view, who, sets, self.some_signatures(view, sets, how, at)))

    @precondition(lambda self: self.waiting(EVERYBODY, 1))
    @rule(audience=GROUPS, hidden=SOME)
    def hide_neighbours(self, audience: int, hidden: int) -> None:
        """Everybody is in u2 but the participant's neighbours of some groups."""
        for who, told in self.waiting(audience, 1):
            view = self.view(told)
            gone = self.those(hidden).intersection(view.graph.neighbours(who))
            self.tell(who, told, view.neighbour_shares(who, (view.sealed.keys() - gone) | {who}))

    @precondition(lambda self: self.waiting(EVERYBODY, 1))
    @rule(audience=GROUPS, how=st.sampled_from(U2), at=NUMBERS)
    def tell_a_u2_that_fits_nothing(self, audience: int, how: str, at: int) -> None:
        for who, told in self.waiting(audience, 1):
            view = self.view(told)
            message = view.neighbour_shares(who, view.sealed)
            u2, shares = frozenset(Subset(message.u2, view.u1)), message.shares
            neighbours = [one for one in view.graph.neighbours(who) if one in u2]
            match how:
                case "without itself":
                    u2 -= {who}
                case "one dealer more" if neighbours:
                    u2 -= {neighbours[at % len(neighbours)]}
                case "one dealer less" if shares:
                    shares = (*shares[: at % len(shares)], *shares[at % len(shares) + 1 :])
                case "no dealers":
                    shares = ()
                case "no neighbours":
                    kept = self.colluders.intersection(neighbours)
                    u2 -= set(neighbours) - kept
                    shares = tuple(one for one in shares if one.dealer in kept)
            bitmap = to_bitmap(u2, view.u1) + bytes(how == "one more byte")
            self.tell(who, told, NeighbourShares(shares, bitmap), forged=how == "one more byte")

    @precondition(lambda self: self.waiting(EVERYBODY, 3) and self.plan.graph)
    @rule(audience=GROUPS, how=st.sampled_from(UPLOADS), at=NUMBERS)
    def ask_with_other_uploads(self, audience: int, how: str, at: int) -> None:
        """Uploads of those that have not signed; or of all, if too few have signed."""
        for who, told in self.waiting(audience, 3):
            view, sets = self.view(told), self.told_sets(told)
            right = self.request(view, who, sets, self.signatures(view, sets)[: self.needed(view)])
            shown = list(right.uploads)
            match how:
                case "none":
                    shown = []
                case "one too many":
                    shown.append(view.signed_uploads.get(who, (bytes(32), bytes(64))))
                case "another's" if shown:
                    known = sorted(view.signed_uploads.items())
                    shown[at % len(shown)] = known[at % len(known)][1]
                case "a colluder's" if shown:
                    shown[at % len(shown)] = view.colluders_upload(min(self.colluders), sets[0])
                case "changed" if shown:
                    sha256, signature = shown[at % len(shown)]
                    shown[at % len(shown)] = (flipped(sha256, at), signature)
            request = replace(right, uploads=tuple(shown))
            self.tell(who, told, request, forged=request != right)

    # ------------------------------------------------------------ other misdeeds

    @rule(audience=st.sampled_from([1, 2, 4]), phase=st.integers(0, 3), at=NUMBERS)
    def say_what_belongs_elsewhere(self, audience: int, phase: int, at: int) -> None:
        kinds = [CohortKeys(()), NeighbourShares((), b""), SurvivorSets(b"", b""), UnmaskingRequest(())]
        del kinds[phase]
        for who, told in self.waiting(audience, phase)[:1]:
            self.tell(who, told, kinds[at % len(kinds)], forged=True)

    @rule(who=NUMBERS, where=NUMBERS, bit=NUMBERS)
    def change_a_bit(self, who: int, where: int, bit: int) -> None:
        """Of something that another participant signed."""
        who = sorted(self.honest)[who % len(self.honest)]
        for told in [one for one in self.live[who] if len(one) in (0, 1, 3)]:
            message = self.truth(who, told)
            match message:
                case CohortKeys(members=members):
                    at = where % len(members)
                    name = ("mask_key", "channel_key", "signature")[bit % 3]
                    if members[at][0] == who or not isinstance(members[at][1], Advertisement):
                        continue
                    changed = replace(members[at][1], **{name: flipped(getattr(members[at][1], name), bit)})
                    message = CohortKeys((*members[:at], (members[at][0], changed), *members[at + 1 :]))
                case NeighbourShares(shares=shares) if shares:
                    at = where % len(shares)
                    name = ("root", "seed_commitment", "signature")[bit % 3]
                    fields = {name: flipped(getattr(shares[at], name), bit)}
                    if name != "root":  # what opens, and leads to its root, needs no signature
                        fields["ciphertext"] = flipped(shares[at].ciphertext, bit)
                    changed = shares[at]._replace(**fields)
                    message = replace(message, shares=(*shares[:at], changed, *shares[at + 1 :]))
                case UnmaskingRequest(signatures=signatures) if signatures:
                    at = where % len(signatures)
                    changed = (signatures[at][0], flipped(signatures[at][1], bit))
                    message = replace(message, signatures=(*signatures[:at], changed, *signatures[at + 1 :]))
                case _:
                    continue
            forged = True
            if len(told) == 0:
                # Who is no neighbour of the changed one can't tell, and is then alone with what it was shown.
                view = self.shown(message)
                forged = view.graph.complete or members[at][0] in view.graph.neighbours(who)
            self.tell(who, told, message, forged=forged)

    @rule(audience=GROUPS, back=st.integers(0, 3), members=SOME)
    def ask_a_phase_again(self, audience: int, back: int, members: int) -> None:
        """Something else, of a phase that has answered."""
        for who in sorted(self.those(audience)):
            for told in [one for one in self.live[who] if len(one) > back]:
                phase = twin(answer(self.client, self.plan, who, self.life[who], told[: back + 1]).left)
                ask(phase, told[back], who, self.config)
                other = self.something_else(told, back, members)
                error = self.refused(ask, phase, other, who, self.config)
                if error is None:
                    self.live[who].append(told[:back])
                    self.tell(who, told[:back], other)
                elif isinstance(error, CoordinatorMisbehaved):  # else it had nothing left to answer with
                    self.claim("is over" in str(error), "over", str(error))

    def something_else(self, told: Told, back: int, members: int) -> Any:
        if back == 0:
            return self.keys(self.chosen(members))
        view = self.view(told)
        who = next(one for one in view.u1 if one in self.honest and told in self.live[one])
        match back:
            case 1:
                return view.neighbour_shares(who, view.sealed)
            case 2:
                u2 = self.told_sets(told)[0]
                return view.survivor_sets((u2, (self.chosen(members) & u2) | {who}))
        return self.request(view, who, self.told_sets(told), told[3].signatures[: self.needed(view)])

    @precondition(lambda self: self.waiting(EVERYBODY, 4))
    @rule(who=NUMBERS, how=st.integers(0, 4))
    def ask_a_second_time(self, who: int, how: int) -> None:
        """The same request gets the same reply, byte for byte; no other gets one."""
        waiting = self.waiting(EVERYBODY, 4)
        who, told = waiting[who % len(waiting)]
        given = answer(self.client, self.plan, who, self.life[who], told)
        signatures, uploads = told[3].signatures, told[3].uploads
        others = [signatures[:-1], (*signatures, *signatures[:1]), ((-1, bytes(64)),), ((2**70, bytes(64)),)]
        self.claim(given.phase.receive(told[3]) is given.reply, "one answer", f"{who} changed its reply")
        other = UnmaskingRequest(others[how], uploads) if how < 4 else UnmaskingRequest(signatures, uploads[:-1])
        if other != told[3] and self.refused(given.phase.receive, other) is None:
            self.claim(False, "one answer", f"{who} answered a second, different request")

    @rule(audience=GROUPS, u3=SOME, how=st.sampled_from(["all", *SIGNATURES]), at=NUMBERS)
    def tell_that_they_were_left_out(self, audience: int, u3: int, how: str, at: int) -> None:
        """What takes a charge back, shown with the signatures there are, or with others."""
        for who in sorted(self.those(audience)):
            for told in [one for one in self.live[who] if len(one) >= 2]:
                view = self.view(told)
                sets = view.told_u2[who], self.chosen(u3, at) & view.told_u2[who]
                known = [one for context, one in self.signed if context == view.context]
                if at % 2 and known:
                    sets = known[at % len(known)]
                request = UnmaskingRequest(tuple(self.some_signatures(view, sets, how, at)))
                phase = answer(self.client, self.plan, who, self.life[who], told[:2]).phase
                if self.refused(self.client.excluding_survivors, phase._cohort, view.survivor_sets(sets), request):
                    continue
                self.seen["took its charge back"] += 1
                honest = len(self.signed.get((view.context, sets), {}))
                true = who not in sets[1] and honest >= self.needed(view) - len(self.colluders)
                self.claim(true, "left out", f"{who} takes its charge back: {honest} honest ones signed {sets}")

    @rule(audience=st.sampled_from([1, 2, 4, EVERYBODY]))
    def they_crash(self, audience: int) -> None:
        """A crash loses all messages; the participant's journal says that it must not join this attempt again."""
        for who in self.those(audience) if audience != EVERYBODY or self.joins_again else ():
            self.live[who] = []
            if self.joins_again:
                self.life[who] += 1
                self.live[who] = [()]

    # ------------------------------------------------------------ what the adversary learns

    def note(self, who: int, told: Told, given: Answer) -> None:
        view, parameters = self.view(told), self.config.parameters
        self.seen[f"answered in phase {len(told) - 1}"] += 1
        match len(told):
            case 1:
                view.sealed[who] = given.reply
                view.read(who, given.reply)
                self.claim(who in view.u1 and len(view.u1) >= parameters.quorum, "nested", f"u1 of {who}")
            case 2:
                u2 = frozenset(Subset(told[1].u2, view.u1))
                neighbours = u2.intersection(view.graph.neighbours(who))
                view.note_upload(who, given.reply, neighbours)
                view.told_u2[who] = u2 | {who}
                dealt = neighbours <= view.sealed.keys()
                self.claim(dealt, "nested", f"{who} masks with some who didn't deal in its cohort")
                self.claim(len(u2) >= parameters.quorum, "nested", f"u2 of {who} has {len(u2)}")
                self.claim(who in u2, "nested", f"{who} masks in a u2 without itself")
                enough = len(neighbours) + view.graph.complete >= view.graph.threshold
                self.claim(enough, "nested", f"{who} masks with {len(neighbours)} neighbours")
                dealers = [one.dealer for one in told[1].shares]
                self.claim(dealers == sorted(neighbours), "nested", f"{who} holds from others than it masks with")
            case 3:
                u2, u3 = self.told_sets(told)
                self.signed.setdefault((view.context, (u2, u3)), {})[who] = given.reply.signature
                signs = self.signs.setdefault((who, self.life[who]), set())
                signs.add((view.context, u2, u3))
                self.claim(len(signs) == 1, "one answer", f"{who} signed two statements")
                self.claim(who in u3 and u3 <= u2 <= set(view.u1), "nested", f"sets of {who}")
                self.claim(len(u3) >= parameters.min_survivors, "nested", f"u3 of {who} has {len(u3)}")
                self.claim(len(u2) >= parameters.quorum, "nested", f"u2 of {who} has {len(u2)}")
                self.claim(u2 == view.told_u2[who], "nested", f"{who} masked in another u2")
            case 4:
                self.revealed(who, told, given, view)

    def revealed(self, who: int, told: Told, given: Answer, view: View) -> None:
        sets = self.told_sets(told)
        self.opened_for.add((view.context, sets))
        answers = self.answers.setdefault((who, self.life[who]), set())
        answers.add(told[3])
        self.claim(len(answers) == 1, "one answer", f"{who} answered two requests")
        self.claim(len(self.opened_for) == 1, "one sum", f"{who} answered for other sets than somebody else")
        honest = len(self.signed.get((view.context, sets), {}))
        needed = self.needed(view) - len(self.colluders)
        self.claim(honest >= needed, "backed", f"{who} answered, though only {honest} honest ones signed that")
        u2 = view.told_u2[who]  # what it masked in, whatever it was sent later
        before = len(view.noise_parts.get(who, []))
        view.note_reply(who, u2, given.reply)
        parts = self.noise_parts.setdefault((who, self.life[who]), [])
        parts += view.noise_parts.get(who, [])[before:]
        surplus = surplus_parts(self.config.parameters, len(sets[1]))
        self.claim(parts == surplus, "noise", f"{who} revealed the seeds of {parts} instead of {surplus}")
        self.claim(honest >= needed or not parts, "noise", f"{who} revealed seeds, though only {honest} signed that")
        self.seen["revealed noise seeds"] += bool(parts)
        for dealer, share in zip(view.graph.dealers(who, u2), given.reply.shares, strict=True):
            if share is not None:
                kind = MASK_KEY if isinstance(share, MaskKeyShare) else SELF_MASK_SEED
                kinds = view.kinds.setdefault((who, dealer), set())
                kinds.add(kind)
                self.claim(len(kinds) == 1, "one kind", f"{who} revealed both shares of {dealer}")
        self.what_is_open()

    def what_is_open(self) -> None:
        parameters = self.config.parameters
        for view in self.views.values():
            for dealer in self.honest & view.sealed.keys():
                if view.known(dealer, MASK_KEY) and view.known(dealer, SELF_MASK_SEED):
                    self.claim(not view.both_secrets(dealer), "secrets", f"both secrets of {dealer} are known")
        for view in self.views.values():
            view.mask_keys |= {  # a mask key is the same in all cohorts of an attempt
                one: key
                for other in self.views.values()
                for one in self.honest & other.sealed.keys() & set(view.u1)
                if other.advertisements[one] == view.advertisements[one]
                and other.known(one, MASK_KEY)
                and (key := other.private_mask_key(one)) is not None
            }
            for together in view.openable(self.honest):
                opens = view.opens(together)
                self.seen["a sum opens" if opens else "a sum only seemed to open"] += 1
                few = len(together) < parameters.min_survivors - parameters.colluders
                self.claim(not (few and opens), "few", f"the sum of {sorted(together)} opens")

    def teardown(self) -> None:
        """The coordinator takes what it can still get."""
        if self.broken or not hasattr(self, "live"):
            return
        self.seen["scripts"] += 1
        for _ in range(4):
            self.go_on_honestly(EVERYBODY)
        for how in range(5 if self.waiting(EVERYBODY, 4) else 0):
            self.ask_a_second_time(0, how)
        self.seen["a sum was opened" if self.opened_for else "nobody answered"] += 1
