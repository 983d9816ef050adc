"""The authority's statement of the newest roster, and the history that leads from one version to a later one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from secagg.roster import InvalidRoster, Roster, RosterEntry
from wire.roster_history import (
    NewestRoster,
    StaleRoster,
    check_descent,
    read_history,
    sign_newest,
    verify_newest,
    write_history,
)

STUDY, TERMS = "clinics", b"\x01" * 32
AUTHORITY = Ed25519PrivateKey.from_private_bytes(b"\x02" * 32)
PUBLIC = AUTHORITY.public_key().public_bytes_raw()
ENTRIES = tuple(RosterEntry(bytes([n]) * 32, f"host-{n}") for n in range(1, 6))


def versions(count: int, first: Roster | None = None, entries: tuple[RosterEntry, ...] = ENTRIES) -> list[Roster]:
    made = [first or Roster(STUDY, 1, entries, terms=TERMS)]
    while len(made) < count:
        made.append(Roster(STUDY, made[-1].version + 1, entries, terms=TERMS, previous=made[-1].digest()))
    return made


def seen(roster: Roster) -> tuple[int, bytes]:
    return roster.version, roster.digest()


def test_only_one_history_is_taken() -> None:
    one = versions(5)
    other = versions(4, one[1], ENTRIES[:4])  # a fork after version 2, up to 5
    heads = read_history(write_history(roster.head for roster in one))
    assert heads == tuple(roster.head for roster in one)
    for before in one:
        check_descent(seen(before), one[4], heads)
    check_descent((0, b""), one[4])
    check_descent(seen(one[3]), one[4])  # the next one names it
    forked = [*heads[:2], *(roster.head for roster in other[1:])]
    check_descent(seen(one[1]), other[3], forked)
    with pytest.raises(InvalidRoster, match="doesn't lead back to version 3"):
        check_descent(seen(one[2]), other[3], forked)
    with pytest.raises(InvalidRoster, match="doesn't lead back to version 3"):
        check_descent(seen(one[2]), other[3], heads)  # of the other history
    with pytest.raises(InvalidRoster, match="doesn't lead back"):
        check_descent(seen(one[1]), one[4], [heads[2]])  # a gap
    with pytest.raises(InvalidRoster, match="older than version 5"):
        check_descent(seen(one[4]), one[3], heads)
    with pytest.raises(InvalidRoster, match="another version 4"):
        check_descent(seen(one[3]), other[2], heads)


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "format": lambda body: body.update(format="sordino-roster-history-9"),
    "doesn't follow": lambda body: body["versions"].pop(1),
    "doesn't follow ": lambda body: body["versions"].reverse(),
    "doesn't follow  ": lambda body: body["versions"][0].update(terms="02" * 32),
    "previous is missing": lambda body: body["versions"][0].pop("previous"),
    "previous isn't hexadecimal": lambda body: body["versions"][0].update(previous="xy"),
    "versions is of another type": lambda body: body.update(versions=5),
}


@pytest.mark.parametrize("told", CHANGES)
def test_histories_that_are_none(told: str) -> None:
    body = json.loads(write_history(roster.head for roster in versions(3)))
    CHANGES[told](body)
    with pytest.raises(InvalidRoster, match=told.strip()):
        read_history(json.dumps(body).encode())


def test_a_thousand_versions_fit() -> None:
    """A participant that was away for a thousand versions: `sordino bench` has the time."""
    listed = versions(1001)
    data = write_history(roster.head for roster in listed)
    assert len(data) < 400_000
    check_descent(seen(listed[0]), listed[-1], read_history(data))


def stated(of: Roster, **changes: Any) -> NewestRoster:
    return replace(NewestRoster(STUDY, of.version, of.digest(), of.terms, 1000, 1600), **changes)


def test_a_statement_holds_for_one_roster_and_a_time() -> None:
    first, second = versions(2)
    data = sign_newest(stated(first), AUTHORITY)
    newest = verify_newest(data, PUBLIC)
    newest.check(first, 600, 1599.0)
    with pytest.raises(StaleRoster, match="has ended"):
        newest.check(first, 600, 1600.0)
    with pytest.raises(StaleRoster, match="has ended"):
        newest.check(first, 600, 1000.0, 1600.0)  # a clock that went back
    newest.check(first, 600, 1000.0 - 3600)
    with pytest.raises(StaleRoster, match="s from now"):  # it would hold for an hour longer
        newest.check(first, 600, 999.0 - 3600)
    with pytest.raises(StaleRoster, match="longer than the terms allow"):
        newest.check(first, 599, 1000.0)
    with pytest.raises(StaleRoster, match="version 1 of the roster is the newest, and the coordinator shows version 2"):
        newest.check(second, 600, 1000.0)
    for changed in ({"until": 9000}, {"version": 2}, {"roster": second.digest()}, {"terms": b"\x05" * 32}):
        forged = json.loads(sign_newest(stated(first, **changed), AUTHORITY)) | {
            "signature": json.loads(data)["signature"]
        }
        with pytest.raises(InvalidRoster, match="not signed by this study's authority"):
            verify_newest(json.dumps(forged).encode(), PUBLIC)
    with pytest.raises(InvalidRoster, match="not signed by"):
        verify_newest(data, Ed25519PrivateKey.generate().public_key().public_bytes_raw())


@pytest.mark.parametrize(("field", "value"), [("signed", -1), ("until", 2**40), ("version", 0), ("signed", True)])
def test_statements_with_impossible_numbers(field: str, value: object) -> None:
    body = json.loads(sign_newest(stated(versions(1)[0]), AUTHORITY)) | {field: value}
    with pytest.raises(InvalidRoster):
        verify_newest(json.dumps(body).encode(), PUBLIC)


def test_every_change_of_a_byte_is_noticed() -> None:
    data = sign_newest(stated(versions(1)[0]), AUTHORITY)
    for position in islice(range(len(data)), 0, None, 3):
        changed = data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]
        with pytest.raises(InvalidRoster):
            verify_newest(changed, PUBLIC)
