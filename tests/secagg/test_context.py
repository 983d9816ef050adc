"""Everything that must be bound is bound, and no two different things are written in the same bytes."""

from __future__ import annotations

import inspect
from dataclasses import fields, replace

import pytest
from attempts_in_memory import identities, make_config, roster_of
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg import keys
from secagg.context import RoundConfig, cohort_context, digest, encode
from secagg.errors import InvalidParameters
from secagg.parameters import RoundParameters
from secagg.roster import Roster, RosterEntry

CONFIG = make_config(12, min_survivors=9, quorum=10, roster=13)
ENTRIES = CONFIG.roster.entries

OTHER_PARAMETERS = {
    name: replace(CONFIG.parameters, **{name: value})
    for name, value in {
        "cohort": 13,
        "colluders": 3,
        "min_survivors": 10,
        "quorum": 11,
        "bits": 17,
        "dim": 5,
    }.items()
}
OTHER_ROSTERS = {
    "study": Roster("tesu", 1, ENTRIES),
    "version": Roster("test", 2, ENTRIES),
    "one participant less": Roster("test", 1, ENTRIES[:-1]),
    "another participant": roster_of(14),
    "a host": Roster("test", 1, (RosterEntry(ENTRIES[0].identity, "elsewhere"), *ENTRIES[1:])),
}
OTHER_CONFIGS = {
    "round": replace(CONFIG, round=2),
    "attempt": replace(CONFIG, attempt=2),
    "study_digest": replace(CONFIG, study_digest=b"S" * 32),
    "model_digest": replace(CONFIG, model_digest=b"M" * 32),
    **{f"parameters: {name}": replace(CONFIG, parameters=one) for name, one in OTHER_PARAMETERS.items()},
    **{f"roster: {name}": replace(CONFIG, roster=one) for name, one in OTHER_ROSTERS.items()},
}


def test_no_field_was_forgotten_below() -> None:
    assert {field.name for field in fields(RoundParameters)} == OTHER_PARAMETERS.keys()
    assert {field.name for field in fields(RoundConfig)} == {name.split(":")[0] for name in OTHER_CONFIGS}
    assert {field.name for field in fields(Roster)} == {"study", "version", "entries"}
    assert {field.name for field in fields(RosterEntry)} == {"identity", "host"}


@pytest.mark.parametrize("name", OTHER_CONFIGS)
def test_each_field_of_the_configuration_is_bound(name: str) -> None:
    assert OTHER_CONFIGS[name].round_context() != CONFIG.round_context()


def test_all_those_contexts_differ_from_each_other_and_are_stable() -> None:
    contexts = {one.round_context() for one in (CONFIG, *OTHER_CONFIGS.values())}
    assert len(contexts) == 1 + len(OTHER_CONFIGS)
    assert CONFIG.round_context() == replace(CONFIG).round_context()
    assert len(CONFIG.round_context()) == 32


def test_the_protocols_version_is_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    before = CONFIG.round_context()
    monkeypatch.setattr("secagg.context.PROTOCOL_VERSION", 2)
    assert CONFIG.round_context() != before


def test_round_and_attempt_do_not_flow_into_each_other() -> None:
    assert (
        replace(CONFIG, round=1, attempt=256).round_context() != replace(CONFIG, round=256, attempt=1).round_context()
    )
    assert replace(CONFIG, round=11, attempt=1).round_context() != replace(CONFIG, round=1, attempt=11).round_context()


MEMBERS = [(identity.public, bytes([at]) * 32) for at, identity in enumerate(identities(6))]


@pytest.mark.parametrize(
    "others",
    [
        MEMBERS[:-1],
        MEMBERS[1:],
        [*MEMBERS, MEMBERS[-1]],
        [MEMBERS[1], MEMBERS[0], *MEMBERS[2:]],
        [(MEMBERS[0][0], b"x" * 32), *MEMBERS[1:]],
        [(b"x" * 32, MEMBERS[0][1]), *MEMBERS[1:]],
        [(MEMBERS[0][1], MEMBERS[0][0]), *MEMBERS[1:]],
        [],
    ],
)
def test_the_cohort_is_bound(others: list[tuple[bytes, bytes]]) -> None:
    assert cohort_context(b"r" * 32, others) != cohort_context(b"r" * 32, MEMBERS)


def test_the_cohort_is_bound_to_its_round() -> None:
    assert cohort_context(b"r" * 32, MEMBERS) != cohort_context(b"R" * 32, MEMBERS)


@pytest.mark.parametrize(
    "wrong",
    [
        {"round": 0},
        {"attempt": 0},
        {"study_digest": b"short"},
        {"model_digest": b""},
        {"roster": roster_of(11)},
    ],
)
def test_a_configuration_that_names_nothing_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidParameters):
        replace(CONFIG, **wrong)


# ---------------------------------------------------------------- encoding


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


def test_fields_do_not_run_into_each_other() -> None:
    assert len({encode("x", *parts) for parts in ((b"ab",), (b"a", b"b"), (b"", b"ab"), (b"ab", b""), ())}) == 5
    assert encode("xa", b"") != encode("x", b"a")
    assert digest("x", b"") != digest("x")


# ---------------------------------------------------------------- what is derived and signed

A, B = (b"a" * 32, b"1" * 32), (b"b" * 32, b"2" * 32)
PAIRWISE = {"shared": b"s" * 32, "low": A, "high": B, "bits": 16, "dim": 10, "cohort_context": b"c" * 32, "vector": "x"}
SELF = {"seed": b"s" * 32, "identity": A[0], "bits": 16, "dim": 10, "cohort_context": b"c" * 32, "vector": "x"}
CHANGED = {
    "shared": b"S" * 32,
    "seed": b"S" * 32,
    "low": B,
    "high": A,
    "identity": B[0],
    "bits": 17,
    "dim": 11,
    "cohort_context": b"C" * 32,
    "vector": "y",
}


@pytest.mark.parametrize("name", PAIRWISE)
def test_a_pairwise_mask_is_bound_to_everything(name: str) -> None:
    """Two participants whose contexts differ in anything have masks that don't cancel."""
    assert set(inspect.signature(keys.pairwise_mask_key).parameters) == PAIRWISE.keys()
    one = keys.pairwise_mask_key(**PAIRWISE)
    assert len(one) == 16
    assert keys.pairwise_mask_key(**{**PAIRWISE, name: CHANGED[name]}) != one


@pytest.mark.parametrize("name", SELF)
def test_a_self_mask_is_bound_to_everything(name: str) -> None:
    assert set(inspect.signature(keys.self_mask_key).parameters) == SELF.keys()
    assert keys.self_mask_key(**{**SELF, name: CHANGED[name]}) != keys.self_mask_key(**SELF)


def test_a_pairwise_mask_key_is_bound_to_the_public_keys_and_not_only_to_the_identities() -> None:
    other = keys.pairwise_mask_key(**{**PAIRWISE, "low": (A[0], b"9" * 32)})
    assert other != keys.pairwise_mask_key(**PAIRWISE)
    assert keys.self_mask_key(**SELF) != keys.pairwise_mask_key(**PAIRWISE)


def test_a_channel_opens_only_what_was_sealed_for_its_ends_direction_and_cohort() -> None:
    sealed = keys.ShareChannel(b"s" * 32, A, B, b"c" * 32).seal(b"text")
    assert keys.ShareChannel(b"s" * 32, A, B, b"c" * 32).open(sealed) == b"text"
    for shared, sender, receiver, context in (
        (b"S" * 32, A, B, b"c" * 32),
        (b"s" * 32, B, A, b"c" * 32),
        (b"s" * 32, A, (B[0], A[1]), b"c" * 32),
        (b"s" * 32, (A[0], B[1]), B, b"c" * 32),
        (b"s" * 32, A, B, b"C" * 32),
    ):
        assert keys.ShareChannel(shared, sender, receiver, context).open(sealed) is None
    for wrong in (b"", sealed[:-1], sealed + b"x", bytes(len(sealed))):
        assert keys.ShareChannel(b"s" * 32, A, B, b"c" * 32).open(wrong) is None


def test_a_signature_for_one_purpose_is_worth_nothing_for_another() -> None:
    x, y, z, w = (bytes([at]) * 32 for at in range(4))
    statements = [
        keys.session_statement("study", x, y, z),
        keys.advertisement_statement(x, y, z, w),
        keys.advertisement_statement(x, y, w, z),
        keys.dealing_statement(x, y, z, w),
        keys.dealing_statement(x, y, w, z),
        keys.upload_statement(x, y, z),
        keys.consistency_statement(x, y, z),
        keys.consistency_statement(x, z, y),
    ]
    assert len(set(statements)) == len(statements)
    labels = {decode(statement)[0] for statement in statements}
    assert len(labels) == 5


def test_sets_are_bound_to_their_name_and_cohort() -> None:
    one = keys.set_digest("u2", b"c" * 32, [A[0], B[0]])
    others = [
        keys.set_digest("u3", b"c" * 32, [A[0], B[0]]),
        keys.set_digest("u2", b"C" * 32, [A[0], B[0]]),
        keys.set_digest("u2", b"c" * 32, [A[0]]),
        keys.set_digest("u2", b"c" * 32, []),
    ]
    assert len({one, *others}) == 5


def test_hkdf_is_that_of_the_rfc() -> None:
    """RFC 5869, test case 1, first 32 bytes; and test case 3 without salt and info."""
    ikm, salt = b"\x0b" * 22, bytes(range(13))
    okm = "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"
    assert keys.hkdf(ikm, salt, bytes(range(0xF0, 0xFA)), 32).hex() == okm
    assert keys.hkdf(ikm, b"", b"", 32).hex() == "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"
    for length in (0, 33):
        with pytest.raises(ValueError):
            keys.hkdf(ikm, salt, b"", length)
