"""A state machine: the honest coordinator, honest participants on a bad network, and two that cheat.

Hypothesis chooses what happens, on the complete graph and on rings, with signatures over the sets and without. These
claims must always hold; `watch` selects some, so that a test shows which of them a broken implementation breaks:

    crash      only protocol errors are raised
    unchanged  a refused message leaves every phase unchanged
    forged     a message that its sender didn't sign, or signed for another purpose, is not taken
    blame      no honest participant is blamed or named as a cheat, and none accuses the coordinator
    sets       u1 ⊇ u2 ⊇ u3 ⊇ u4 ⊇ u5, each exactly those whose message was taken in time, none below its bound
    reason     an abort states its true reason
    sum        a finished attempt's total is the plain sum of u3 modulo 2^B
    one kind   no participant reveals both kinds of share of one dealer, and both secrets of an honest dealer stay apart
    noise      a participant reveals the noise seeds of exactly the parts that belong to |u3|, each once and only after
               enough have signed u3; with the sum come those of u5
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from secagg.context import RoundConfig
from secagg.errors import (
    CoordinatorMisbehaved,
    InvalidMessage,
    ProtocolError,
    ReconstructionFailed,
    TooFewClients,
    UnexpectedMessage,
)
from secagg.graph import Graph
from secagg.messages import MASK_KEY, PHASES, SELF_MASK_SEED, MaskKeyShare
from secagg.sharing import MALICIOUS, SEMI_MALICIOUS
from tests.secagg.cheating_participants import crooked_deal, forge, inconsistent_keys, shifted, silent_on
from tests.secagg.claims import ClaimingMachine
from tests.support.attempts_in_memory import Vector, advertise, make_config, sum_of, surplus_parts, vector_of
from tests.support.comparable import freeze
from tests.support.naive_variants import SERVER, Side
from tests.support.small_rings import safe_rings

ADVERTISE, SHARE, MASK, SIGN, UNMASK = PHASES
SETS = {ADVERTISE: "u1", SHARE: "u2", MASK: "u3", SIGN: "u4"}  # fixed at the end of each phase
NUMBERS = st.integers(0, 2**16)
PLANS = [(kind, phase) for kind in ("forge", "lie", "twice", "late", "never") for phase in PHASES]
PLANS += [("lie", SHARE)] * 8 + [("forge", MASK), ("forge", UNMASK)] * 2 + [("late", SIGN)] * 4


@dataclass(frozen=True, eq=False)
class Letter:
    """A participant's message on its way."""

    sender: int
    phase: str
    message: Any
    attempt: int
    forged: bool = False
    shift: Vector | None = None  # what a lying sender added to its input


class HonestCoordinator(ClaimingMachine):
    """The attempts of one round, one after another."""

    server: ClassVar[Side] = SERVER
    # Replace what is drawn: plans with the messages they are for, how a cheater carries them out, the graph.
    focus: ClassVar[tuple[tuple[str, str], ...]] = ()
    trick: ClassVar[int | None] = None
    on_a_ring: ClassVar[bool | None] = None

    ended: str | None = None
    graph: Graph

    def core(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call the code under test: protocol errors are its answers, anything else is a crash."""
        try:
            return call(*arguments)
        except ProtocolError:
            raise
        except Exception as error:
            self.fail("crash", f"{type(error).__name__}: {error}")

    # ------------------------------------------------------------ attempts begin and end

    @initialize(
        cohort=st.integers(6, 8),
        survivors=st.integers(0, 1),
        quorum=st.integers(0, 1),
        bits=st.sampled_from([1, 7, 16, 33, 62]),
        dim=st.integers(1, 5),
        cheaters=st.frozensets(st.integers(0, 5), min_size=1, max_size=2),
        losses=st.integers(0, 3),
        calm=st.sampled_from([0, 0, 1, 2, 3, 4]),
        plans=st.lists(st.sampled_from(PLANS), max_size=2),
        how=st.integers(0, 83),
        ring=st.booleans(),
        adversary=st.sampled_from([MALICIOUS, MALICIOUS, MALICIOUS, SEMI_MALICIOUS]),
        noise=NUMBERS,
    )
    def begin(self, cohort, survivors, quorum, bits, dim, cheaters, losses, calm, plans, how, ring, adversary, noise):
        """Of a round: at most `losses` messages are lost, and `calm` phases go well, so that late ones see cheating.

        One cheater has a plan for some of its messages (see `as_planned`); its other actions are chosen on the way.
        """
        ring = ring if self.on_a_ring is None else self.on_a_ring
        cohort += 2 * ring
        fewest = min(cohort, (cohort + 2) // 2 + 1 + survivors)
        numbers = {"min_survivors": fewest, "quorum": min(cohort, fewest + quorum), "bits": bits, "dim": dim}
        numbers |= {"adversary": adversary, "rings": safe_rings(cohort, fewest) if ring else ()}
        draw = random.Random(noise)
        seeds = draw.choice((0, 0, 1, 3, 5))
        released = tuple(draw.randrange(1 << seeds) for _ in range(fewest, cohort + 1)) if seeds else ()
        self.numbers: dict[str, Any] = numbers | {"released": released}
        self.cohort_size = cohort
        self.cheaters = frozenset(who % cohort for who in cheaters)
        self.earlier: list[Letter] = []  # of attempts that are over
        self.attempt, self.losses = 0, losses
        self.plans, self.how = self.focus or tuple(plans), how if self.trick is None else self.trick
        self.start()
        for _ in range(calm):
            self.all_are_asked()
            self.all_arrive(0)
            self.the_deadline_passes()

    def start(self) -> None:
        self.attempt += 1
        self.config: RoundConfig = make_config(self.cohort_size, attempt=self.attempt, **self.numbers)
        everybody = range(self.cohort_size)
        self.phases, adverts = advertise(self.config, everybody, self.client)
        self.mask_key_symbols = {who: phase._keys.mask_key_symbols for who, phase in self.phases.items()}
        self.coordinator: Any = self.server.AdvertiseKeys(self.config, frozenset(everybody))
        self.closed: dict[str, Any] = {}
        self.taken: dict[str, set[int]] = {name: set() for name in PHASES}
        self.sets: dict[str, frozenset[int]] = {}
        self.adverts: dict[int, Any] = {}
        self.shifts: dict[int, Vector] = {}
        self.not_its_own: set[int] = set()  # cheaters that advertise a mask key that isn't theirs
        self.up: list[Letter] = []
        self.sent: list[Letter] = []
        self.held_back: list[Letter] = []
        self.down: list[tuple[int, str, Any]] = []
        self.used: list[tuple[int, Any, Any, Any]] = []  # receiver, phase that is over, its message, reply
        self.revealed: dict[tuple[int, int], set[int]] = {}
        self.kinds: dict[tuple[int, int], set[int]] = {}  # (who, dealer) -> kinds revealed
        self.noise_seeds: dict[int, tuple[bytes, ...]] = {}
        self.noise_parts: dict[int, list[int]] = {}  # revealed
        self.ended = None
        for who, message in adverts.items():
            self.posts(Letter(who, ADVERTISE, message, self.attempt))

    @precondition(lambda self: self.ended is not None)
    @rule()
    def next_attempt(self) -> None:
        """All are back: a participant that crashed skipped the rest of the last attempt."""
        if self.attempt < 2:
            self.earlier += self.sent
            self.start()

    def end(self, how: str) -> None:
        self.ended = how
        self.seen[how] += 1

    # ------------------------------------------------------------ towards the coordinator

    def posts(self, letter: Letter) -> None:
        self.up.append(letter)
        self.sent.append(letter)
        if letter.sender == min(self.cheaters):
            for plan, phase in self.plans:
                if phase == letter.phase and letter in self.up:
                    self.as_planned(letter, plan)

    def as_planned(self, letter: Letter, plan: str) -> None:
        match plan:
            case "forge":
                self.arrives(replace(letter, message=forge(letter.message, self.how, self.how), forged=True))
            case "lie":
                self.lies(letter, self.how, self.how // 6)
            case "twice":
                self.arrives(letter)
            case "late":
                self.up.remove(letter)
                self.held_back.append(letter)
            case "never":
                self.up.remove(letter)

    def arrives(self, letter: Letter) -> None:
        name = self.coordinator.name
        if letter.attempt == self.attempt and letter.phase in self.closed:
            self.late(letter, self.closed[letter.phase])
        if letter.phase == SIGN and name == UNMASK:
            self.signs_late(letter)
            return
        if not self.taken_by(self.coordinator.receive, letter, {name}, f"in {name}"):
            return
        self.claim(letter.phase == name, "forged", f"{name} took a message of {letter.phase}")
        self.taken[name].add(letter.sender)
        if name == ADVERTISE:
            self.adverts[letter.sender] = letter.message
        elif name == MASK and letter.shift is not None:
            self.shifts[letter.sender] = letter.shift

    def signs_late(self, letter: Letter) -> None:
        """The others have their requests already; a participant that signs the same sets now gets one too."""
        sender = letter.sender
        requests = self.taken_by(self.coordinator.admit, letter, {SIGN, UNMASK}, "of a late signature")
        if not requests:
            return
        self.claim(sender in self.sets[MASK] - self.taken[SIGN], "sets", f"{sender} was let in late")
        self.taken[SIGN].add(sender)
        self.sets[SIGN] |= {sender}
        self.claim(set(requests[0]) == {sender}, "sets", "others than the late signer are sent a request")
        self.down += [(who, UNMASK, message) for who, message in requests[0].items()]
        self.seen["let in late"] += 1

    def taken_by(self, call: Callable[..., Any], letter: Letter, phases: set[str], where: str) -> list[Any]:
        """The coordinator's result in a list; empty if it refused the message, which must change nothing."""
        current, before = self.coordinator, freeze(self.coordinator)
        try:
            result = self.core(call, letter.sender, letter.message)
        except (InvalidMessage, UnexpectedMessage) as error:
            self.claim(freeze(current) == before, "unchanged", f"{where} by {error}")
            blamed = error.phase in phases and error.sender == letter.sender
            self.claim(blamed, "blame", f"not the sender: {error}")
            if isinstance(error, InvalidMessage):
                self.claim(letter.sender in self.cheaters, "blame", str(error))
                self.leaves(letter.sender)
            self.seen[f"{type(error).__name__} {where}"] += 1
            return []
        self.claim(not letter.forged, "forged", f"{current.name} took a forged message of {letter.sender}")
        return [result]

    def late(self, letter: Letter, closed: Any) -> None:
        """A message for a phase that is over: it must not change the phase's result, and the next phase gets it too."""
        before = freeze(self.coordinator)
        try:
            self.core(closed.receive, letter.sender, letter.message)
        except UnexpectedMessage:
            self.claim(freeze(self.coordinator) == before, "unchanged", f"late for {letter.phase}")
        except InvalidMessage as error:
            self.claim(False, "reason", f"a late message for {letter.phase} was looked at: {error}")
        else:
            self.claim(False, "forged", f"a late message was taken by {letter.phase}")
        self.seen["late"] += 1

    def leaves(self, who: int) -> None:
        """As the shell drops a participant that is gone, or that sent something invalid."""
        if self.coordinator.name in (ADVERTISE, SHARE):
            self.coordinator.drop(who)
            self.taken[self.coordinator.name].discard(who)

    def of_a_cheater(self, at: int) -> Letter:
        """One of their messages on the way: where `cheating`, there is one."""
        fitting = [one for one in self.up if one.sender in self.cheaters]
        return fitting[at % len(fitting)]

    going_on = precondition(lambda self: self.ended is None)
    post = precondition(lambda self: self.ended is None and self.up)
    asked = precondition(lambda self: self.ended is None and self.down)
    cheating = precondition(lambda self: self.ended is None and any(one.sender in self.cheaters for one in self.up))

    @post
    @rule(at=NUMBERS)
    def one_arrives(self, at: int) -> None:
        self.arrives(self.up.pop(at % len(self.up)))

    @post
    @rule(order=NUMBERS)
    def all_arrive(self, order: int) -> None:
        letters, self.up = self.up, []
        random.Random(order).shuffle(letters)
        for letter in letters:
            self.arrives(letter)

    @going_on
    @rule(at=NUMBERS)
    def one_is_late(self, at: int) -> None:
        """Everybody else is in time, and the coordinator waits no longer."""
        self.all_are_asked()
        letters, self.up = self.up, []
        if letters:
            self.up.append(letters.pop(at % len(letters)))
        for letter in letters:
            self.arrives(letter)
        self.close(final=False)

    @precondition(
        lambda self: self.ended is None and self.coordinator.name == SIGN and any(one.phase == SIGN for one in self.up)
    )
    @rule(order=NUMBERS)
    def enough_have_signed(self, order: int) -> None:
        """Shares are requested as soon as possible; the other signatures come later, or never."""
        letters, self.up = self.up, []
        random.Random(order).shuffle(letters)
        while letters and not self.coordinator.proven:
            self.arrives(letters.pop())
        self.up += letters
        if self.coordinator.proven:
            self.close(final=False)

    @post
    @rule(at=NUMBERS)
    def one_arrives_and_will_again(self, at: int) -> None:
        self.arrives(self.up[at % len(self.up)])

    @precondition(lambda self: self.ended is None and self.up and self.losses)
    @rule(at=NUMBERS)
    def one_is_lost(self, at: int) -> None:
        self.losses -= 1
        self.phases.pop(self.up.pop(at % len(self.up)).sender, None)

    @going_on
    @rule(at=NUMBERS)
    def an_old_one_comes_once_more(self, at: int) -> None:
        """Reconnecting resends the same bytes."""
        letter = self.sent[at % len(self.sent)]
        if not any(one.sender == letter.sender and one.phase == letter.phase for one in self.up):
            self.arrives(letter)

    # ------------------------------------------------------------ towards participants

    def reaches(self, who: int, name: str, message: Any) -> None:
        phase = self.phases.get(who)
        if phase is None:
            return
        try:
            result = self.core(phase.receive, message)
            if name == MASK:
                self.used.append((who, phase, message, None))
                phase, message = result, vector_of(who, self.config.parameters)
                self.noise_seeds[who] = phase.noise_seeds
                result = self.core(phase.mask, message)
        except CoordinatorMisbehaved as error:
            self.claim(who in self.cheaters, "blame", f"{who} accuses the coordinator: {error}")
            del self.phases[who]
            return
        self.phases[who], reply = result
        self.used.append((who, phase, message, reply))
        if name == UNMASK:
            self.reveals(who, reply)
        self.posts(Letter(who, name, reply, self.attempt))

    def reveals(self, who: int, reply: Any) -> None:
        parts = [self.noise_seeds[who].index(seed) for seed in reply.noise_seeds]
        self.noise_parts.setdefault(who, []).extend(parts)
        parameters = self.config.parameters
        needed = parameters.signatures_needed(len(self.sets[ADVERTISE])) if parameters.signed else 0
        self.claim(len(self.taken[SIGN]) >= needed or not parts, "noise", f"{who} reveals seeds, though too few signed")
        self.seen["revealed noise seeds"] += bool(parts)
        for dealer, share in zip(self.graph.dealers(who, self.sets[SHARE]), reply.shares, strict=True):
            if share is not None:
                kind = MASK_KEY if isinstance(share, MaskKeyShare) else SELF_MASK_SEED
                self.kinds.setdefault((who, dealer), set()).add(kind)
                self.revealed.setdefault((dealer, kind), set()).add(who)

    @asked
    @rule(at=NUMBERS)
    def one_is_asked(self, at: int) -> None:
        self.reaches(*self.down.pop(at % len(self.down)))

    @asked
    @rule()
    def all_are_asked(self) -> None:
        asked, self.down = self.down, []
        for one in asked:
            self.reaches(*one)

    @precondition(lambda self: self.ended is None and self.down and self.losses)
    @rule(at=NUMBERS)
    def one_is_never_asked(self, at: int) -> None:
        self.losses -= 1
        self.phases.pop(self.down.pop(at % len(self.down))[0], None)

    @precondition(lambda self: self.used)
    @rule(at=NUMBERS)
    def one_is_asked_again(self, at: int) -> None:
        """The phase that answered refuses; the request of the last phase gets the same reply once more."""
        who, phase, message, reply = self.used[at % len(self.used)]
        before = freeze(self.phases.get(who))
        call = phase.receive if hasattr(phase, "receive") else phase.mask
        try:
            self.core(call, message)
            self.fail("one kind", f"{who} answered twice in {type(phase).__name__}")
        except CoordinatorMisbehaved:
            self.claim(freeze(self.phases.get(who)) == before, "unchanged", f"{who} asked again")
        answered = self.phases.get(who)
        if isinstance(answered, self.client.Answered) and phase.name == UNMASK:
            self.claim(answered.receive(message) is reply, "one kind", f"{who} gave another reply")

    @precondition(lambda self: self.ended is None and self.losses)
    @rule(who=NUMBERS, tells=st.booleans())
    def one_crashes(self, who: int, tells: bool) -> None:
        """A closed connection is a dropout at once, a silent one at the deadline. It comes back in the next attempt."""
        who %= self.cohort_size
        self.losses -= 1
        self.phases.pop(who, None)
        if tells:
            self.leaves(who)

    # ------------------------------------------------------------ cheating

    @cheating
    @rule(at=NUMBERS, where=NUMBERS, bit=NUMBERS)
    def a_forged_message_arrives(self, at: int, where: int, bit: int) -> None:
        letter = self.of_a_cheater(at)
        self.arrives(replace(letter, message=forge(letter.message, where, bit), forged=True))

    @cheating
    @rule(at=NUMBERS, of=NUMBERS)
    def the_message_of_another_arrives(self, at: int, of: int) -> None:
        """Of another participant in the same phase, of any phase, or of an attempt that is over."""
        letter = self.of_a_cheater(at)
        others = [one for one in self.sent + self.earlier if one.message is not letter.message]
        same = [one for one in others if one.phase == letter.phase]
        if others:
            chosen = (same or others)[of % len(same or others)] if of % 4 else others[of % len(others)]
            if chosen.sender != letter.sender or chosen.attempt != self.attempt:
                self.arrives(replace(letter, phase=chosen.phase, message=chosen.message, forged=True))

    @cheating
    @rule(at=NUMBERS)
    def a_cheater_keeps_silent(self, at: int) -> None:
        self.up.remove(self.of_a_cheater(at))

    def exchange(self, letter: Letter, message: Any, shift: Vector | None = None) -> None:
        """The lie takes the place of what it was made from: a dealing and an upload must belong together."""
        lie = replace(letter, message=message, shift=shift)
        self.up = [lie if one is letter else one for one in self.up]
        self.sent = [lie if one is letter else one for one in self.sent]

    @cheating
    @rule(at=NUMBERS, how=NUMBERS, of=NUMBERS)
    def a_cheater_lies(self, at: int, how: int, of: int) -> None:
        """It signs something wrong. The coordinator may take it, and the others' attempt must still end correctly."""
        self.lies(self.of_a_cheater(at), how, of)

    def lies(self, letter: Letter, how: int, of: int) -> None:
        if letter.attempt != self.attempt or letter.shift is not None:
            return
        who, message = letter.sender, letter.message
        if who in self.taken[letter.phase]:
            return
        match letter.phase:
            case "AdvertiseKeys":
                theirs = [one for other, one in sorted(self.adverts.items()) if other != who]
                keys = inconsistent_keys(self.config, who, message, how, theirs[of % len(theirs)] if theirs else None)
                self.exchange(letter, keys)
                if keys.mask_key != message.mask_key:
                    self.not_its_own.add(who)
                if who in self.phases:
                    self.phases[who]._advertisement = keys
            case "ShareKeys" if isinstance(self.phases.get(who), self.client.MaskedInputCollection):
                self.exchange(letter, crooked_deal(self, who, message, how, of))
            case "MaskedInputCollection" if MASK in self.closed or self.coordinator.name == MASK:
                context, u2 = self.coordinator.cohort.context, self.sets[SHARE]
                self.exchange(letter, *shifted(self.config, context, u2, who, message, how))
            case "Unmasking":
                self.exchange(letter, silent_on(message, how))

    @going_on
    @rule()
    def the_deadline_passes(self) -> None:
        self.close(final=not self.up and not self.down)

    def close(self, final: bool) -> None:
        """Close the phase if possible; if no message is outstanding (``final``), too few is the end."""
        phase, name = self.coordinator, self.coordinator.name
        before = freeze(phase)
        try:
            result = self.core(phase.close)
        except TooFewClients as error:
            self.claim(freeze(phase) == before, "unchanged", f"{name} by {error}")
            true = error.phase == name and error.received < error.needed and error.received <= len(self.taken[name])
            self.claim(true and str(error.needed) in str(error), "reason", str(error))
            if final:
                self.end(f"aborted in {name}")
            return
        except ReconstructionFailed as error:
            self.claim(error.culprits.keys() <= self.cheaters, "blame", str(error))
            self.claim(bool(error.culprits) and all(error.culprits.values()), "reason", "no reason")
            if final:  # until then more replies may help
                self.end("aborted by a bad dealer")
            return
        except ProtocolError as error:
            self.fail("reason", f"no reason to abort: {error!r}")
        self.closed[name] = phase
        self.up += [one for one in self.held_back if one.phase == name]
        if name == UNMASK:
            self.finished(result)
            return
        self.coordinator, messages = result
        if name == ADVERTISE:
            self.graph = self.coordinator.cohort.graph
        holder = self.coordinator.cohort if name == ADVERTISE else self.coordinator
        self.sets[name] = frozenset(getattr(holder, SETS[name]))
        self.sets_are_nested_and_large_enough()
        self.claim(set(messages) == self.sets[name], "sets", f"others than those of {name} are told")
        if name != MASK:
            self.claim(self.sets[name] == self.taken[name], "sets", f"{name} ended with others than it took")
        following = PHASES[PHASES.index(name) + 1]
        if following == SIGN and not self.config.parameters.signed:
            self.coordinator, following = self.core(self.coordinator.without_signatures), UNMASK
            self.sets[SIGN] = self.coordinator.u4
        self.down += [(who, following, message) for who, message in messages.items()]

    def finished(self, completed: Any) -> None:
        self.sets[UNMASK] = completed.u5
        parameters = self.config.parameters
        self.claim(completed.u3 == self.sets[MASK] and completed.u4 == self.sets[SIGN], "sets", "changed at the end")
        self.claim(completed.u3 == self.taken[MASK], "sets", "u3 is not those whose upload was taken")
        wanted = {
            who: tuple(self.noise_seeds[who][part] for part in surplus_parts(parameters, len(completed.u3)))
            for who in completed.u5
        }
        self.claim(completed.noise_seeds == wanted, "noise", "not the seeds of u5")
        self.claim(completed.cheats.keys() <= self.cheaters, "blame", f"named as cheats: {completed.cheats}")
        self.seen["cheats named"] += bool(completed.cheats)
        self.seen["completed on a ring"] += not self.graph.complete
        self.seen["completed without signatures"] += not parameters.signed
        total = sum_of(completed.u3, parameters).astype(np.uint64)
        for who, shift in self.shifts.items():
            if who in completed.u3:
                total += shift.astype(np.uint64)
        total &= np.uint64((1 << parameters.bits) - 1)
        self.end("completed")
        if self.not_its_own & completed.u3:
            # Its masks belong to another key and don't cancel: like a lie about its input, of unknown size.
            self.seen["completed with somebody's masks beside those of its key"] += 1
            return
        self.claim(completed.total.tolist() == total.tolist(), "sum", "not the plain sum of u3")

    # ------------------------------------------------------------ what holds after every step

    @invariant()
    def sets_are_nested_and_large_enough(self) -> None:
        parameters = self.config.parameters
        chain = [frozenset(range(self.cohort_size))] + [self.sets[name] for name in PHASES if name in self.sets]
        for larger, smaller in pairwise(chain):
            self.claim(smaller <= larger, "sets", f"{sorted(smaller)} is not within {sorted(larger)}")
        u1 = len(self.sets.get(ADVERTISE, ()))
        bounds = dict(zip(PHASES, (parameters.quorum, parameters.quorum, parameters.min_survivors), strict=False))
        bounds |= {SIGN: parameters.signatures_needed(u1), UNMASK: parameters.threshold(u1)}
        for name, members in self.sets.items():
            self.claim(len(members) >= bounds[name], "sets", f"{name} has {len(members)} of {bounds[name]}")
        if MASK in self.sets:
            honest = len(self.sets[MASK] - self.cheaters)
            self.claim(honest >= parameters.min_survivors - parameters.colluders, "sets", f"{honest} honest inputs")

    @invariant()
    def secrets_stay_apart(self) -> None:
        for (who, dealer), kinds in self.kinds.items():
            self.claim(len(kinds) == 1, "one kind", f"{who} revealed both shares of {dealer}")
        for who, parts in self.noise_parts.items():
            surplus = surplus_parts(self.config.parameters, len(self.sets[MASK]))
            self.claim(parts == surplus, "noise", f"{who} revealed the seeds of {parts} instead of {surplus}")
        for dealer in self.sets.get(SHARE, frozenset()) - self.cheaters:
            theirs = self.cheaters.intersection(self.graph.holders(dealer))
            known = [len(self.revealed.get((dealer, kind), set()) | theirs) for kind in (0, 1)]
            self.claim(min(known) < self.graph.threshold, "one kind", f"both secrets of {dealer} can be rebuilt")

    def teardown(self) -> None:
        """Whatever was left open comes to its end: no attempt hangs."""
        if self.broken or not hasattr(self, "sets"):
            return
        self.seen["scripts"] += 1
        for _ in range(3 * len(PHASES)):
            if self.ended is not None:
                return
            self.all_are_asked()
            self.all_arrive(0)
            self.close(final=not self.up and not self.down)
            self.sets_are_nested_and_large_enough()
            self.secrets_stay_apart()
        self.fail("reason", f"it hangs in {self.coordinator.name}")
