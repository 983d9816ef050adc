"""Every phase of both sides, with messages of an honest attempt that an input changes.

An input is a script: whose message of which attempt, the changed field of the protobuf message and its change, and the
sender. The result is serialised, parsed and read by the codec. A phase must refuse it with a protocol error and stay
unchanged, or take it; then the attempt, in which all others are honest, must end, and with the right sum.

A coordinator that sends different messages to different participants only spoils its own sum. tests/secagg shows what
it can't learn by that; here its messages must not break a participant.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Any, Final

from google.protobuf.message import DecodeError

from secagg import client_unmasking
from secagg.errors import CoordinatorMisbehaved
from secagg.messages import UNMASKING, MaskedInput
from tests.fuzz.mutations import change_bytes, change_message
from tests.fuzz.played import GRAPHS, answer, finish, reference_round, take
from tests.fuzz.target import Choices, Steering, Target, must
from tests.support.comparable import freeze, held, twin
from tests.support.message_codecs import CODECS
from tests.support.recorded_attempts import Recorded, Step
from wire.codec import MalformedMessage, read_survivor_proof

_MOST_MESSAGES: Final = 8


def travelled(message: Any, choose: Choices, changes: int) -> Any | None:
    """A message after this number of changes and the codec; None if the codec refuses it."""
    codec = CODECS[type(message)]
    packed = message.packed if isinstance(message, MaskedInput) else b""
    written = codec.write(message)
    for _ in range(changes):
        if packed and not choose.below(3):
            packed = change_bytes(packed, choose)
        else:
            change_message(written, choose)
    try:
        found = codec.read(type(written).FromString(written.SerializeToString()))
    except (MalformedMessage, DecodeError):
        return None
    return replace(found, packed=packed) if isinstance(message, MaskedInput) else found


def _rounds(graph: str) -> tuple[Recorded, ...]:
    """The attempt itself, another one of it, and one of another round."""
    return reference_round(graph), reference_round(graph, 2)


def server_target(name: str, data: bytes) -> None:
    """Messages to one phase of the coordinator."""
    choose = Steering(data)
    graphs = [graph for graph in GRAPHS if name in _collecting(graph)]
    graph = graphs[choose.below(len(graphs))]
    # One participant may have left in the phase before, and be back.
    names = _collecting(graph)
    at = names.index(name)
    left = names[at - 1] if at > 1 and choose.below(3) == 1 else ""
    played = reference_round(graph, 1, left)
    step = played.steps[name]
    server = twin(step.server)
    clients = {who: twin(phase) for who, phase in step.clients.items()}
    known = [played, *_rounds(graph)]
    changed = 0
    for _ in range(_MOST_MESSAGES):
        if not choose.left:
            break
        kind = choose.below(8)
        source = known[choose.below(len(known))] if kind == 7 else played
        letters = _any_of(source, choose).up if kind == 6 else source.steps[name].up
        author = sorted(letters)[choose.below(len(letters))]
        sender = author if choose.below(4) else choose.below(len(played.config.roster) + 2) - 1
        message = travelled(letters[author], choose, choose.below(4))
        if message is not None and take(server, sender, message):
            changed += freeze(message) != freeze(step.up.get(sender))
    if not changed and _short(data):
        return
    completed = finish(played.config, server, clients, step.up)
    if not changed:
        must(completed is not None, "an attempt whose every strange message was refused was aborted")


def client_target(name: str, data: bytes) -> None:
    """A message of the coordinator to one phase of a participant."""
    choose = Steering(data)
    graphs = [graph for graph in GRAPHS if name in _asked(graph)]
    graph = graphs[choose.below(len(graphs))]
    # Somebody may have left before the inputs were summed up, so that there is a mask key to be rebuilt.
    played = reference_round(graph, 1, _collecting(graph)[2] if choose.below(3) == 1 else "")
    step = next(one for one in played.steps.values() if name in {type(phase).__name__ for phase in one.asked.values()})
    me = sorted(step.up)[choose.below(len(step.up))]
    phase = twin(step.asked[me])
    kind = choose.below(8)
    source = _rounds(graph)[1] if kind == 7 else played
    letters = _any_of(source, choose).down if kind == 6 else step.down
    if kind == 7:
        letters = next((one.down for one in source.steps.values() if type(one.server) is type(step.server)), letters)
    letters = letters or step.down
    receiver = me if choose.below(4) and me in letters else sorted(letters)[choose.below(len(letters))]
    message = travelled(letters[receiver], choose, choose.below(4))
    if message is None:
        return
    before = held(phase)
    try:
        following, reply = answer(played.config, me, phase, message)
    except CoordinatorMisbehaved as error:
        must(bool(error.reason), "a refusal without a reason")
        must(held(phase) == before, "a refused message changed what a participant holds")
        must(_over(played, me, phase, step.down[me]), "a participant goes on after a refusal")
        return
    honest = freeze(message) == freeze(step.down[me])
    if honest and _short(data):
        return
    clients = {who: twin(after) for who, after in step.clients.items() if who != me} | {me: following}
    completed = finish(played.config, twin(step.server), clients, {**step.up, me: reply}, exact=honest)
    must(completed is not None or not honest, "an honest attempt was aborted")


def answered_target(data: bytes) -> None:
    """An unmasking request to a participant that has answered one: the same gets the same reply, any other none."""
    choose = Steering(data)
    played = reference_round(GRAPHS[choose.below(len(GRAPHS))])
    step = played.steps[UNMASKING]
    me = sorted(step.up)[choose.below(len(step.up))]
    phase = twin(step.clients[me])
    other = sorted(step.down)[choose.below(len(step.down))]
    message = travelled(step.down[other], choose, choose.below(4))
    if message is None:
        return
    try:
        reply = phase.receive(message)
    except CoordinatorMisbehaved:
        return
    must(freeze(message) == freeze(step.down[me]), "a second request was answered")
    must(freeze(reply) == freeze(step.up[me]), "the same request was answered otherwise")


def excluded_target(data: bytes) -> None:
    """A proof that a sum was opened without a participant: believed where a quorum signed it, and only so."""
    choose = Steering(data)
    graph = ("complete", "ring")[choose.below(2)]
    name = _collecting(graph)[2]
    played = reference_round(graph, 1, name)
    step = played.steps[name]
    me = max(step.asked)
    cohort = _excluded_cohort(graph)
    source = reference_round(graph, 1, name) if choose.below(4) else reference_round(graph)
    sets, request = (next(iter(one.down.values())) for one in list(source.steps.values())[-2:])
    written = CODECS[tuple].write((sets, request))
    for _ in range(choose.below(4)):
        change_message(written, choose)
    try:
        told = read_survivor_proof(type(written).FromString(written.SerializeToString()))
    except (MalformedMessage, DecodeError):
        return
    try:
        survivors = client_unmasking.excluding_survivors(cohort, *told)
    except CoordinatorMisbehaved:
        must(source is not played or told != (sets, request), "an honest proof was refused")
        return
    must(played.completed is not None and survivors == played.completed.u3, "another u3 was believed than was signed")
    must(me not in survivors, "a participant was told that it is excluded by a set that holds it")


@cache
def _excluded_cohort(graph: str) -> Any:
    """u1, as the participant that leaves before its upload knows it."""
    step = reference_round(graph, 1, _collecting(graph)[2]).steps[_collecting(graph)[2]]
    me = max(step.asked)
    return twin(step.asked[me]).receive(step.down[me]).cohort


def _any_of(played: Recorded, choose: Choices) -> Step:
    steps = list(played.steps.values())
    return steps[choose.below(len(steps))]


def _short(data: bytes) -> bool:
    """Whether to skip the rest of an attempt that took only honest messages: it takes longest, and seeds play it."""
    return data[-1:] != b"\x00"


def _over(played: Recorded, me: int, phase: Any, honest: Any) -> bool:
    try:
        answer(played.config, me, phase, honest)
    except CoordinatorMisbehaved:
        return True
    return False


def _collecting(graph: str) -> list[str]:
    """Phases of the coordinator, in their order."""
    return list(reference_round(graph).steps)


def _asked(graph: str) -> list[str]:
    """Phases of a participant that take a message of the coordinator, in their order."""
    steps = reference_round(graph).steps.values()
    return [type(next(iter(step.asked.values()))).__name__ for step in steps if step.asked]


def _seeds() -> Iterator[bytes]:
    """Nothing strange; one change of each sort; a few scripts of everything."""
    for graph in range(len(GRAPHS)):
        yield bytes([graph])
        for sort in range(8):
            yield bytes([graph, graph, sort, 1, 1, 0, 0, 1, 2, sort, 0])
    for first in range(24):
        yield bytes((first * 37 + 11 * at * at + at) % 256 for at in range(48)) + b"\x00"


def _targets() -> Iterator[Target]:
    for name in dict.fromkeys(name for graph in GRAPHS for name in _collecting(graph)):
        yield Target(f"coordinator_{name}", partial(server_target, name), _seeds, largest=512)
    for name in dict.fromkeys(name for graph in GRAPHS for name in _asked(graph)):
        yield Target(f"participant_{name}", partial(client_target, name), _seeds, largest=256)
    yield Target("participant_Answered", answered_target, _seeds, largest=128)
    yield Target("participant_SurvivorProof", excluded_target, _seeds, largest=128)


TARGETS: Final = tuple(_targets())
