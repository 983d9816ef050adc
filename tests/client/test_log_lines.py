"""The log that an owner reads while rounds run: one line per attempt, and why the coordinator is unreachable."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from client.log_lines import RoundLines, join_line
from client.unreachable import trouble_of
from tests.support.host_in_process import Play
from tests.support.study_in_process import PARTICIPANTS
from wire import coordinator_pb2 as pb

ANNA, BERTA = b"a" * 32, b"b" * 32


@pytest.fixture
def logs() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as found:
        yield found


def test_one_line_when_all_are_through(logs: list[Any]) -> None:
    lines = RoundLines(lambda: {"epsilon": 1.5, "max_epsilon": 8.0})
    for who in (ANNA, BERTA):
        lines.begun((3, 1), who)
    for who in (ANNA, BERTA):
        lines.in_sum((3, 1), who, 95)
    lines.over((3, 1), ANNA)
    lines.over((3, 1), ANNA)
    assert not logs
    lines.over((3, 1), BERTA)
    assert logs == [
        {"event": "round over", "log_level": "info", "round": 3, "in_the_sum": "2 of 2 here", "sum_of": 95}
        | {"epsilon": 1.5, "max_epsilon": 8.0}
    ]


def test_what_may_be_spent_is_the_less_of_plan_and_policy(played: Play) -> None:
    """`check_budget` stops at either: a line that names the policy's alone promises rounds that never come."""
    story = played(policy={"max_epsilon": 5000.0})
    told = [entry["max_epsilon"] for entry in story.logs if entry["event"] == "round over" and "epsilon" in entry]
    assert told
    assert set(told) == {1000.0}  # the study's


def test_who_is_left_out_and_why(logs: list[Any]) -> None:
    lines = RoundLines(dict)
    for number in ((1, 1), (1, 2)):
        lines.begun(number, ANNA)
        lines.begun(number, BERTA)
        lines.in_sum(number, BERTA, 40)
        lines.over(number, ANNA, "too late")
    lines.gone(BERTA)
    assert [(line["round"], line.get("attempt"), line["in_the_sum"]) for line in logs] == [
        (1, None, "1 of 2 here"),  # Berta, who began the next attempt, is through with this one
        (1, 2, "1 of 2 here"),
    ]
    lines.begun((2, 1), ANNA)
    lines.over((2, 1), ANNA, "too few survived")
    assert logs[-1]["reason"] == "too few survived"
    lines.begun((3, 1), ANNA)
    lines.begun((4, 1), ANNA)
    assert logs[-1]["reason"] == "the coordinator reported no end"


def test_an_end_that_nobody_heard_is_unknown_to_those_that_uploaded(logs: list[Any]) -> None:
    lines = RoundLines(dict)
    for number in (1, 2, 3):
        for who in (ANNA, BERTA):
            lines.begun((number, 1), who)
            lines.uploads((number, 1), who)
        if number > 1:
            lines.over((number, 1), ANNA, "left out: too late", left_out=True)
        if number > 2:
            lines.in_sum((number, 1), BERTA, 40)
        lines.gone(ANNA)
        lines.gone(BERTA)
    base = {"event": "round over", "log_level": "info"}
    assert logs == [
        {**base, "round": 1, "outcome_unknown": "2 of 2 here", "reason": "the connection ended"},
        {**base, "round": 2, "outcome_unknown": "1 of 2 here", "reason": "left out: too late"},
        {**base, "round": 3, "in_the_sum": "1 of 2 here", "sum_of": 40},
    ]


def test_a_coordinator_that_goes_away_after_the_uploads(played: Play) -> None:
    def silent(participant: int, message: pb.CoordinatorMessage) -> list[pb.CoordinatorMessage]:
        return [] if message.WhichOneof("message") in ("survivor_sets", "round_end") else [message]

    story = played(silent, tables={"deadlines": {"consistency_check_s": 0.5}})
    [over] = [entry for entry in story.logs if entry["event"] == "round over"]
    assert over["outcome_unknown"] == f"{PARTICIPANTS} of {PARTICIPANTS} here"
    assert "in_the_sum" not in over


def test_only_those_that_take_part_are_counted(logs: list[Any]) -> None:
    lines = RoundLines(dict)
    lines.over((1, 1), ANNA)
    lines.in_sum((1, 1), ANNA, 5)
    lines.gone(ANNA)
    assert not logs


@pytest.mark.parametrize(
    ("details", "words", "tells"),
    [
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:9443: Tls handshake failed "
            "(TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:1000007d:SSL routines:OPENSSL_internal:"
            "CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate: OK",
            "isn't signed by this study's authority: another study is served there, or mine/ca.pem isn't",
            4,
        ),
        (
            "ipv4:127.0.0.1:9555: Tls handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: WRONG_VERSION_NUMBER",
            "what answers there isn't a coordinator",
            3,
        ),
        ("last error: UNAVAILABLE: ipv4:127.0.0.1:9443: Socket closed", "this host's certificate (tls/client.pem)", 2),
        ("ipv6:%5B::1%5D:9443: Failed to connect to remote host: Connection refused", "nothing listens there", 1),
        ("address lookup failed for nowhere.invalid:9443: Domain name not found]", "there is no machine of this", 1),
        ("something \x1b[2J else", "something ?[2J else", 0),
    ],
)
def test_grpcs_words_in_plain_ones(details: str, words: str, tells: int) -> None:
    found = trouble_of(details, ca="mine/ca.pem", certificate="tls/client.pem")
    assert (found.tells, words in found.words) == (tells, True), found.words
    assert "error:" not in found.words


def test_lines_on_a_terminal_are_sentences() -> None:
    at = {"level": "info", "timestamp": "14:52:07"}
    over = {**at, "event": "round over", "round": 3, "in_the_sum": "2 of 2 here", "sum_of": 95}
    spent = {"epsilon": 1.5, "max_epsilon": 8.0}
    told = join_line(None, "", over | spent)
    assert told == "14:52:07  round 3: 2 of 2 here in the sum of 95; epsilon 1.500 of at most 8"
    left = {**at, "event": "round over", "round": 3, "attempt": 2, "in_the_sum": "0 of 2 here", "reason": "too\nlate"}
    assert join_line(None, "", left) == "14:52:07  round 3, attempt 2: no participant here in a sum (too late)"
    del left["in_the_sum"]
    told = join_line(None, "", {**left, "outcome_unknown": "1 of 2 here"})
    assert told == "14:52:07  round 3, attempt 2: outcome unknown of 1 of 2 here that uploaded (too late)"
    told = join_line(None, "", {**over, "outcome_unknown": "1 of 4 here"})
    assert told == "14:52:07  round 3: 2 of 2 here in the sum of 95, outcome unknown of 1 of 4 here that uploaded"
    terms = {"study": "s", "participants": 9, "rounds": 1, "epsilon": 8.0, "delta": 1e-5, "mechanism": "ddgauss"}
    terms |= {"adjacency": "zero-out", "A": 2, "trusts": "nobody alone", "study_sha256": "ab", "task_sha256": "cd"}
    assert join_line(None, "", {**at, "event": "study accepted", **terms}) == (
        "14:52:07  study s accepted: 9 participants, 1 round, epsilon at most 8 at delta 1e-05 (ddgauss, zero-out, if "
        "at most 2 collude; trusts nobody alone); study_sha256 ab, task_sha256 cd"
    )
    refused = {**at, "level": "warning", "event": "refused by policy", "round": 1, "reason": "hours\x1b[2J"}
    assert join_line(None, "", refused) == "14:52:07  warning: refused by policy (round: 1, reason: hours [2J)"
