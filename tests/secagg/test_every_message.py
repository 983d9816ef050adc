"""Every message in every phase of both sides: taken, and where that leads, or refused, and with what.

The tables are written by hand; the phases and the kinds of message are read from the code. A new one without an entry
fails `test_the_tables_are_complete`. A refusal must leave the phase unchanged, with all that it holds.

A participant's phase is over once it has refused a message: only the mark `_left` may change, and
`CoordinatorMisbehaved` ends the attempt for the participant. A phase of the coordinator takes the next message as if
nothing had come: the shell drops the sender. The codec checks the types of the fields inside a message.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, Final

import numpy as np
import pytest

from secagg import messages
from secagg.context import RoundConfig
from secagg.errors import CoordinatorMisbehaved, InvalidMessage, ProtocolError, UnexpectedMessage
from secagg.messages import PHASES, ConsistencySignature, MaskedInput, RevealedShare, SelfMaskSeedShare
from secagg.sharing import MALICIOUS, SEMI_MALICIOUS
from tests.support.attempts_in_memory import Cohort, Script, identities, keyed_source, make_config, vector_of
from tests.support.comparable import freeze, held, twin
from tests.support.naive_variants import CLIENT, SERVER
from tests.support.recorded_attempts import Recorded

ADVERTISE, SHARE, MASK, SIGN, UNMASK = PHASES

# The one kind of message that a phase takes (it refuses all others; None: it takes no messages, and has no `receive`),
# and the phase that follows; None is the end. Without signatures over the sets, `UNSIGNED` follows instead.
CLIENT_CHAIN: Final[Mapping[str, tuple[str | None, str | None]]] = {
    "AdvertiseKeys": (None, "ShareKeys"),
    "ShareKeys": ("CohortKeys", "MaskedInputCollection"),
    "MaskedInputCollection": ("NeighbourShares", "Masking"),
    "Masking": (None, "ConsistencyCheck"),
    "ConsistencyCheck": ("SurvivorSets", "Unmasking"),
    "Unmasking": ("UnmaskingRequest", "Answered"),
    "UnsignedUnmasking": ("SurvivorSets", "Answered"),
    "Answered": ("UnmaskingRequest", None),  # the same request, the same reply
}
SERVER_CHAIN: Final[Mapping[str, tuple[str | None, str | None]]] = {
    "AdvertiseKeys": ("Advertisement", "ShareKeys"),
    "ShareKeys": ("SealedShares", "MaskedInputCollection"),
    "MaskedInputCollection": ("MaskedInput", "ConsistencyCheck"),
    "ConsistencyCheck": ("ConsistencySignature", "Unmasking"),
    "Unmasking": ("UnmaskingReply", "Completed"),
    "Completed": (None, None),
}
UNSIGNED: Final = {"Masking": "UnsignedUnmasking"}
KINDS: Final = (
    *("Advertisement", "CohortKeys", "SealedShares", "DealtShare", "NeighbourShares", "MaskedInput", "SurvivorSets"),
    *("ConsistencySignature", "UnmaskingRequest", "RevealedShare", "SelfMaskSeedShare", "MaskKeyShare"),
    "UnmaskingReply",
)

# The kind that a phase takes, in every circumstance. Three messages of the coordinator are the same for everybody on
# the complete graph, and bitmaps say nothing of the attempt they belong to: what is signed over them does.
CLIENT_CIRCUMSTANCES: Final = """
                                ShareKeys MaskedInputCollection ConsistencyCheck Unmasking Unsigned Answered
the one it waits for            taken     taken                 taken            taken     taken    taken
a second time                   refused   refused               refused          refused   refused  taken
for another participant         taken     refused               taken            taken     taken    taken
of another attempt              refused   refused               taken            refused   taken    refused
of another round                refused   refused               taken            refused   taken    refused
after the phase refused one     refused   refused               refused          refused   refused  taken
"""
# unexpected: UnexpectedMessage; invalid: InvalidMessage; no way: the phase has no `drop`.
SERVER_CIRCUMSTANCES: Final = """
                                AdvertiseKeys ShareKeys  MaskedInputCollection ConsistencyCheck Unmasking
of a member                     taken         taken      taken                 taken            taken
a second time                   unexpected    unexpected unexpected            unexpected       unexpected
beyond the roster               unexpected    unexpected unexpected            unexpected       unexpected
below the roster                unexpected    unexpected unexpected            unexpected       unexpected
of one that left before         unexpected    unexpected unexpected            unexpected       unexpected
of another member               invalid       invalid    invalid               invalid          invalid
of another attempt              invalid       invalid    invalid               invalid          invalid
of another round                invalid       invalid    invalid               invalid          invalid
after one that was refused      taken         taken      taken                 taken            taken
after it was dropped            taken         taken      no_way                no_way           no_way
"""


def table(text: str) -> dict[tuple[str, str], str]:
    """(row, column) -> entry; rows may have blanks in their names."""
    header, *lines = text.strip("\n").splitlines()
    columns = [{"Unsigned": "UnsignedUnmasking"}.get(one, one) for one in header.split()]
    entries = {}
    for line in lines:
        words = line.split()
        row = " ".join(words[: -len(columns)])
        entries |= {(row, column): word for column, word in zip(columns, words[-len(columns) :], strict=True)}
    return entries


def columns(text: str) -> list[str]:
    return list(dict.fromkeys(column for _, column in table(text)))


# ---------------------------------------------------------------- what there is, read from the code


def led_to(phase: type, known: set[type]) -> set[type]:
    """Phases that a method of this one may return, by its annotation."""
    found: set[type] = set()
    for name, method in inspect.getmembers(phase, inspect.isfunction):
        if not name.startswith("_"):
            result = typing.get_type_hints(method).get("return")
            inside = [part for one in typing.get_args(result) for part in (one, *typing.get_args(one))]
            found |= {one for one in (result, *inside) if one in known}
    return found


def classes(*modules: Any) -> set[type]:
    """Public classes that are defined in these modules."""
    return {
        one
        for module in modules
        for name, one in vars(module).items()
        if inspect.isclass(one) and one.__module__ == module.__name__ and not name.startswith("_")
    }


def phases_from(start: type, known: set[type]) -> dict[str, set[str]]:
    """Every phase that can be reached from the first, and where each leads."""
    chain: dict[str, set[str]] = {}
    waiting = [start]
    while waiting:
        phase = waiting.pop()
        following = led_to(phase, known - {phase})
        chain[phase.__name__] = {one.__name__ for one in following}
        waiting += [one for one in following if one.__name__ not in chain]
    return chain


def test_the_tables_are_complete() -> None:
    # Subset is what is made of a bitmap in a message, Messages are many of one kind.
    assert set(KINDS) == {one.__name__ for one in classes(messages)} - {"Subset", "Messages"}
    client = {one for one in classes(*CLIENT.modules) if not hasattr(one, "__dataclass_fields__")}
    assert {one.__name__ for one in client - {CLIENT.ClientPhase}} == set(CLIENT_CHAIN)
    server = {one.__name__ for one in classes(*SERVER.modules) if issubclass(one, SERVER.ServerPhase)}
    assert server - {"ServerPhase"} | {"Completed"} == set(SERVER_CHAIN)
    for chain, by_circumstance in ((CLIENT_CHAIN, CLIENT_CIRCUMSTANCES), (SERVER_CHAIN, SERVER_CIRCUMSTANCES)):
        assert {name for name, (kind, _) in chain.items() if kind} == set(columns(by_circumstance))
    assert set(table(CLIENT_CIRCUMSTANCES).values()) == {"taken", "refused"}
    assert set(table(SERVER_CIRCUMSTANCES).values()) == {"taken", "unexpected", "invalid", "no_way"}


def test_the_chains_are_those_of_the_annotations() -> None:
    for side, chain in ((CLIENT, CLIENT_CHAIN), (SERVER, SERVER_CHAIN)):
        assert phases_from(side.AdvertiseKeys, classes(*side.modules)) == {
            name: {one for one in (after, side is CLIENT and UNSIGNED.get(name)) if one}
            for name, (_, after) in chain.items()
        }


# ---------------------------------------------------------------- phases and messages to try

ME, OTHER, FIRST, LEFT = 2, 3, 0, 5  # of six; 0 and 1 have answered already, 5 left in the phase before


def config(round_: int = 1, attempt: int = 1, adversary: str = MALICIOUS) -> RoundConfig:
    return make_config(6, round_=round_, attempt=attempt, adversary=adversary)


@cache
def record(left_before: str = "", round_: int = 1, attempt: int = 1, adversary: str = MALICIOUS) -> Recorded:
    """A whole attempt; the one that leaves does so in the phase before this one."""
    fates = {}
    if left_before not in ("", ADVERTISE):
        fates = {(PHASES[PHASES.index(left_before) - 1], LEFT): "lose"}
    recorded = Recorded(config(round_, attempt, adversary), Script(up=fates))
    recorded.run()
    return recorded


def client_phase(name: str) -> Any:
    """Participant ME in one phase."""
    recorded = record()
    match name:
        case "AdvertiseKeys":
            return CLIENT.AdvertiseKeys(config(), identities(6)[ME], keyed_source("table"))
        case "Masking":
            return client_phase(MASK).receive(recorded.steps[MASK].down[ME])
        case "Answered":
            return client_phase(UNMASK).receive(recorded.steps[UNMASK].down[ME])[0]
        case "UnsignedUnmasking":
            return twin(record(adversary=SEMI_MALICIOUS).steps[UNMASK].asked[ME])
    return twin(recorded.steps[name].asked[ME])


def server_phase(name: str) -> Any:
    """The coordinator in one phase, after 0 and 1 have answered."""
    if name == "Completed":
        return closed(server_phase(UNMASK), UNMASK)
    recorded = record(name)
    phase = twin(recorded.steps[name].server)
    if name == ADVERTISE:
        phase.cohort -= {LEFT}
    for who in (0, 1):
        phase.receive(who, recorded.steps[name].up[who])
    return phase


def closed(phase: Any, name: str) -> Any:
    for who in (2, 3, 4):
        phase.receive(who, record(name).steps[name].up[who])
        assert who in phase.received
    return phase.close()


@cache
def samples() -> dict[str, Any]:
    """A message of every kind from an attempt in which all goes well; sent by ME, or to it."""
    steps = record().steps
    whole = [steps[name].up[ME] for name in PHASES] + [steps[name].down[ME] for name in PHASES[1:]]
    share = steps[UNMASK].up[ME].shares[0]
    others = [kind(share.share, share.salt) for kind in (messages.MaskKeyShare, RevealedShare)]
    return {type(one).__name__: one for one in [*whole, steps[MASK].down[ME].shares[0], share, *others]}


NO_MESSAGES: Final = (None, b"", 0, "CohortKeys", (), object())


def refused_by_participant(phase: Any, message: Any) -> None:
    before = held(phase)
    with pytest.raises(CoordinatorMisbehaved) as caught:
        phase.receive(message)
    assert caught.value.phase in PHASES
    assert caught.value.reason
    assert held(phase) == before
    if not isinstance(phase, CLIENT.Answered):
        assert phase._left


def refused_by_coordinator(phase: Any, sender: int, message: Any, error: type[ProtocolError]) -> None:
    before = freeze(phase)
    with pytest.raises(error) as caught:
        phase.receive(sender, message)
    assert type(caught.value) is error
    assert (caught.value.phase, caught.value.sender) == (phase.name, sender)
    assert caught.value.reason
    assert freeze(phase) == before


# ---------------------------------------------------------------- every kind in every phase


def test_there_is_a_sample_of_every_kind() -> None:
    assert set(samples()) == set(KINDS)


def next_phase(result: Any) -> str:
    return type(result[0] if isinstance(result, tuple) else result).__name__


def after(name: str) -> str:
    return CLIENT_CHAIN[name][1] or "UnmaskingReply"


@pytest.mark.parametrize("name", CLIENT_CHAIN)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_in_every_phase_of_a_participant(kind: str, name: str) -> None:
    phase, message = client_phase(name), samples()[kind]
    if CLIENT_CHAIN[name][0] is None:
        assert not hasattr(phase, "receive")
    elif CLIENT_CHAIN[name][0] == kind:
        assert next_phase(phase.receive(message)) == after(name)
    else:
        refused_by_participant(phase, message)


@pytest.mark.parametrize("name", SERVER_CHAIN)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_in_every_phase_of_the_coordinator(kind: str, name: str) -> None:
    phase = server_phase(name)
    if SERVER_CHAIN[name][0] is None:
        assert not hasattr(phase, "receive")
    elif SERVER_CHAIN[name][0] == kind:
        assert next_phase(closed(phase, name)) == SERVER_CHAIN[name][1]
    else:
        for sender in (ME, FIRST, LEFT, -1, 6):
            refused_by_coordinator(phase, sender, samples()[kind], UnexpectedMessage)


@pytest.mark.parametrize("name", columns(CLIENT_CIRCUMSTANCES))
def test_what_is_no_message_at_all_is_refused_by_participants(name: str) -> None:
    for nothing in NO_MESSAGES:
        refused_by_participant(client_phase(name), nothing)


@pytest.mark.parametrize("name", columns(SERVER_CIRCUMSTANCES))
def test_what_is_no_message_at_all_is_refused_by_the_coordinator(name: str) -> None:
    phase = server_phase(name)
    for nothing in NO_MESSAGES:
        refused_by_coordinator(phase, ME, nothing, UnexpectedMessage)


# ---------------------------------------------------------------- the right kind, in every circumstance


def down(name: str, who: int = ME, **which: int) -> Any:
    """What the coordinator tells a participant in a phase. In Answered it is the request once more."""
    if name == "UnsignedUnmasking":
        return record(adversary=SEMI_MALICIOUS, **which).steps[UNMASK].down[who]
    return record("", **which).steps[UNMASK if name == "Answered" else name].down[who]


@pytest.mark.parametrize(("circumstance", "name"), table(CLIENT_CIRCUMSTANCES))
def test_every_circumstance_at_a_participant(circumstance: str, name: str) -> None:
    phase, message = client_phase(name), down(name)
    match circumstance:
        case "a second time":
            phase.receive(message)
        case "for another participant":
            message = down(name, OTHER)
        case "of another attempt":
            message = down(name, attempt=2)
        case "of another round":
            message = down(name, round_=2)
        case "after the phase refused one":
            refused_by_participant(phase, samples()["Advertisement"])
        case _:
            assert circumstance == "the one it waits for"
    if table(CLIENT_CIRCUMSTANCES)[circumstance, name] == "refused":
        refused_by_participant(phase, message)
        if name != "Answered":  # and nothing better is taken afterwards
            refused_by_participant(phase, down(name))
        return
    assert next_phase(phase.receive(message)) == after(name)


@pytest.mark.parametrize(("circumstance", "name"), table(SERVER_CIRCUMSTANCES))
def test_every_circumstance_at_the_coordinator(circumstance: str, name: str) -> None:
    phase, sender, message = server_phase(name), ME, record(name).steps[name].up[ME]
    match circumstance:
        case "a second time":
            phase.receive(sender, message)
        case "beyond the roster":
            sender = 6
        case "below the roster":
            sender = -4  # which Python would read as position 2, that of ME
        case "of one that left before":
            sender, message = LEFT, record().steps[name].up[LEFT]
        case "of another member":
            message = record(name).steps[name].up[OTHER]
        case "of another attempt":
            message = record(name, attempt=2).steps[name].up[ME]
        case "of another round":
            message = record(name, round_=2).steps[name].up[ME]
        case "after one that was refused":
            refused_by_coordinator(phase, ME, record(name).steps[name].up[OTHER], InvalidMessage)
        case "after it was dropped":
            if not hasattr(phase, "drop"):
                assert table(SERVER_CIRCUMSTANCES)[circumstance, name] == "no_way"
                return
            before = freeze(phase)
            phase.receive(sender, message)
            phase.drop(sender)
            assert freeze(phase) == before
        case _:
            assert circumstance == "of a member"
    match table(SERVER_CIRCUMSTANCES)[circumstance, name]:
        case "taken":
            phase.receive(sender, message)
            assert sender in phase.received
        case "unexpected":
            refused_by_coordinator(phase, sender, message, UnexpectedMessage)
        case "invalid":
            refused_by_coordinator(phase, sender, message, InvalidMessage)
        case entry:
            raise AssertionError(entry)


@pytest.mark.parametrize("name", columns(SERVER_CIRCUMSTANCES))
def test_a_closed_phase_takes_nothing_from_anybody(name: str) -> None:
    phase = server_phase(name)
    following = closed(phase, name)
    after_close = freeze(following)
    for message in samples().values():
        for sender in (ME, FIRST, LEFT):
            refused_by_coordinator(phase, sender, message, UnexpectedMessage)
    before = freeze(phase)
    with pytest.raises(ProtocolError, match="closed before"):
        phase.close()
    assert freeze(phase) == before
    assert freeze(following) == after_close


@pytest.mark.parametrize("name", columns(SERVER_CIRCUMSTANCES))
def test_a_phase_with_too_few_is_unchanged_by_an_early_close(name: str) -> None:
    phase = server_phase(name)
    before = freeze(phase)
    with pytest.raises(ProtocolError, match="2 participants, 5 needed"):
        phase.close()
    assert freeze(phase) == before
    closed(phase, name)


def test_keys_are_advertised_once() -> None:
    phase = client_phase("AdvertiseKeys")
    phase.advertise()
    before = held(phase)
    with pytest.raises(CoordinatorMisbehaved, match="over for this participant"):
        phase.advertise()
    assert held(phase) == before


def test_a_vector_is_masked_once_and_one_that_does_not_fit_changes_nothing() -> None:
    phase = client_phase("Masking")
    vector = vector_of(ME, config().parameters)
    before = freeze(phase)
    for ill_fitting in (vector[:-1], vector.astype(np.int64), vector.reshape(2, 2)):
        with pytest.raises(ValueError, match="the vector must have shape"):
            phase.mask(ill_fitting)
        assert freeze(phase) == before
    following, upload = phase.mask(vector)
    assert type(following).__name__ == after("Masking")
    assert isinstance(upload, MaskedInput)
    with pytest.raises(CoordinatorMisbehaved, match="over for this participant"):
        phase.mask(vector)


def test_an_offer_is_checked_like_the_upload_that_follows_it() -> None:
    """`check_offer` decides before an upload is staged; it must refuse every sender that `receive` refuses."""
    phase, upload = server_phase(MASK), record(MASK).steps[MASK].up[ME]
    phase.check_offer(ME, upload)
    assert ME not in phase.received
    before = freeze(phase)  # with the signature that needn't be verified again
    for sender in (FIRST, LEFT, -4, OTHER):
        error = InvalidMessage if sender == OTHER else UnexpectedMessage
        with pytest.raises(error):
            phase.check_offer(sender, upload)
        assert freeze(phase) == before


# ---------------------------------------------------------------- the tables would notice


def stray(phase: Any) -> Iterator[Callable[[], None]]:
    """Small changes of what a phase holds, wherever it holds something."""
    for name, value in list(vars(phase).items()):
        if isinstance(value, dict) and value:
            yield lambda held=value: held.popitem()
        elif isinstance(value, set):
            yield lambda held=value: held.add(b"stray")
        elif isinstance(value, np.ndarray):
            yield lambda held=value: held.__setitem__(0, held[0] ^ 1)
        elif isinstance(value, frozenset | bytes | bool):
            yield lambda at=name: setattr(phase, at, None)


@pytest.mark.parametrize("name", columns(SERVER_CIRCUMSTANCES))
def test_a_changed_phase_is_seen_as_changed(name: str) -> None:
    for at in range(len(list(stray(server_phase(name))))):
        phase = server_phase(name)
        before = freeze(phase)
        list(stray(phase))[at]()
        assert freeze(phase) != before


def test_a_recorded_attempt_is_left_as_it_was() -> None:
    """Phases are copied for every test; a copy that shared something would let one test spoil the next."""
    recorded = record(UNMASK)
    before = freeze(recorded.steps[UNMASK].server)
    server_phase("Completed")
    assert freeze(recorded.steps[UNMASK].server) == before
    ours = freeze(record().steps[UNMASK].asked[ME])
    client_phase("Answered")
    assert freeze(record().steps[UNMASK].asked[ME]) == ours
    assert isinstance(record().steps[SIGN].up[ME], ConsistencySignature)
    assert isinstance(record().steps[UNMASK].up[ME].shares[0], SelfMaskSeedShare)
    assert isinstance(record().cohort, Cohort)
