"""Everything that must be bound is bound, and no two different things are written in the same bytes."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given, settings, strategies as st

from secagg.context import RoundConfig
from secagg.encoding import encode
from secagg.errors import InvalidParameters
from secagg.lottery import Lottery, Ticket
from secagg.parameters import RoundParameters
from secagg.roster import Roster, RosterEntry
from tests.support.attempts_in_memory import make_config, roster_of

CONFIG = make_config(15, min_survivors=10, quorum=11, roster=13)
ENTRIES = CONFIG.roster.entries

OTHER_NUMBERS = {
    **{"cohort": 16, "colluders": 3, "min_survivors": 11, "quorum": 12, "bits": 17, "dim": 5, "epoch_rounds": 2},
    **{"graph": "harary", "adversary": "semi-malicious", "key_agreement": "x25519-mlkem768"},
    "released": (0,) * (CONFIG.parameters.cohort - CONFIG.parameters.min_survivors) + (1,),
}
OTHER_PARAMETERS = {name: replace(CONFIG.parameters, **{name: value}) for name, value in OTHER_NUMBERS.items()}
OTHER_ROSTERS = {
    "study": Roster("tesu", 1, ENTRIES),
    "version": Roster("test", 2, ENTRIES),
    "one participant less": Roster("test", 1, ENTRIES[:-1]),
    "another participant": roster_of(14),
    "a lottery": Roster("test", 1, ENTRIES, Lottery(5, b"r" * 32)),
    "more draws": Roster("test", 1, ENTRIES, Lottery(6, b"r" * 32)),
    "other draws": Roster("test", 1, ENTRIES, Lottery(5, b"R" * 32)),
    "terms": Roster("test", 1, ENTRIES, None, CONFIG.study_digest),
    "the version before": Roster("test", 1, ENTRIES, previous=b"p" * 32),
    "a host": Roster("test", 1, (RosterEntry(ENTRIES[0].identity, "elsewhere"), *ENTRIES[1:])),
}
OTHER_CONFIGS = {
    "round": replace(CONFIG, round=2),
    "attempt": replace(CONFIG, attempt=2),
    "study_digest": replace(CONFIG, study_digest=b"S" * 32),
    "model_digest": replace(CONFIG, model_digest=b"M" * 32),
    "newest": replace(CONFIG, newest=b"n" * 32),
    **{f"parameters: {name}": replace(CONFIG, parameters=one) for name, one in OTHER_PARAMETERS.items()},
    **{f"roster: {name}": replace(CONFIG, roster=one) for name, one in OTHER_ROSTERS.items()},
    "parameters: curious": replace(CONFIG, parameters=replace(CONFIG.parameters, adversary="curious")),
}


def test_no_field_was_forgotten_below() -> None:
    assert {field.name for field in fields(RoundParameters)} == OTHER_PARAMETERS.keys()
    # The ticket follows from the round and the root under the roster's signature: only one verifies.
    bound = {name.split(":")[0] for name in OTHER_CONFIGS} | {"ticket"}
    assert {field.name for field in fields(RoundConfig)} == bound
    assert {field.name for field in fields(Roster)} == {
        *("study", "version", "entries", "lottery", "terms", "previous")
    }
    assert {field.name for field in fields(Lottery)} == {"draws", "root"}
    assert {field.name for field in fields(RosterEntry)} == {"identity", "host"}


def test_each_field_of_the_configuration_is_bound() -> None:
    """All those contexts differ from each other, and are stable."""
    contexts = {one.round_context() for one in (CONFIG, *OTHER_CONFIGS.values())}
    assert len(contexts) == 1 + len(OTHER_CONFIGS)
    assert CONFIG.round_context() == replace(CONFIG).round_context()
    assert len(CONFIG.round_context()) == 32


def test_the_protocols_version_is_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    before = CONFIG.round_context()
    monkeypatch.setattr("secagg.context.PROTOCOL_VERSION", 2)
    assert CONFIG.round_context() != before


@pytest.mark.parametrize(
    "wrong",
    [
        {"round": 0},
        {"attempt": 0},
        {"study_digest": b"short"},
        {"model_digest": b""},
        {"roster": Roster("test", 1, ENTRIES, terms=b"t" * 32)},
        {"roster": roster_of(11), "ticket": Ticket(b"s" * 32, ())},
    ],
)
def test_a_configuration_that_names_nothing_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidParameters):
        replace(CONFIG, **wrong)


def decode(data: bytes) -> tuple[str, list[bytes]]:
    """The inverse of `encode`: that there is one shows that no two inputs share their bytes."""
    at = 0

    def take(count: int) -> bytes:
        nonlocal at
        at += count
        assert at <= len(data)
        return data[at - count : at]

    def number() -> int:
        return int.from_bytes(take(8), "little")

    label = take(number()).decode("ascii")
    parts = [take(number()) for _ in range(number())]
    assert at == len(data)
    return label, parts


@settings(max_examples=200, deadline=None, derandomize=True)
@given(label=st.text("abc/1", max_size=4), parts=st.lists(st.binary(max_size=20), max_size=5))
def test_encoding_has_an_inverse(label: str, parts: list[bytes]) -> None:
    assert decode(encode(label, *parts)) == (label, parts)
