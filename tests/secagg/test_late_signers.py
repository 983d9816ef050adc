"""A participant that signs the survivor sets after others were asked for shares may reveal its own too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from secagg.context import RoundConfig
from secagg.errors import InvalidMessage, ProtocolError, TooFewClients, UnexpectedMessage
from secagg.messages import PHASES, ConsistencySignature
from secagg.sharing import SEMI_MALICIOUS
from tests.support.attempts_in_memory import Attempt, Script, make_config, sum_of
from tests.support.comparable import freeze
from tests.support.small_rings import safe_rings

ADVERTISE, SHARE, MASK, SIGN, UNMASK = PHASES
GONE, LATE = 2, (1, 4, 7)  # in no sum; in u3, and slow to sign
COMPLETE = make_config(12, min_survivors=8)
# In this attempt the ring, which follows from all that is agreed, gives the late ones neighbours enough.
RING = make_config(16, min_survivors=12, attempt=1, rings=safe_rings(16, 12))
CONFIGS = pytest.mark.parametrize("config", [COMPLETE, RING], ids=["complete", "ring"])


class Slow(Attempt):
    """An attempt up to the first requests for shares, and the signatures of the late participants."""

    def __init__(self, config: RoundConfig) -> None:
        super().__init__(config, Script(up={(MASK, GONE): "lose"}))
        answers, self.check = self.up_to(SIGN), self.coordinator
        assert not self.check.proven
        for who in answers.keys() - set(LATE):
            self.check.receive(who, answers[who])
        assert self.check.proven
        self.signatures: dict[int, ConsistencySignature] = {who: answers[who] for who in LATE}
        self.unmasking, self.made = self.check.close()
        self.requests: dict[int, Any] = dict(self.made.items())

    def admit(self, who: int) -> None:
        requests = self.unmasking.admit(who, self.signatures[who])
        assert list(requests) == [who]
        self.requests[who] = requests[who]

    def reveal(self, who: int) -> None:
        _, reply = self.phases[who].receive(self.requests[who])
        self.unmasking.receive(who, reply)


@CONFIGS
def test_a_sum_that_needs_their_shares_waits_for_them(config: RoundConfig) -> None:
    attempt = Slow(config)
    threshold, others = attempt.unmasking.needed, sorted(attempt.unmasking.u3 - set(LATE))
    for who in others[: threshold - 2]:
        attempt.reveal(who)
    assert not attempt.unmasking.enough
    with pytest.raises(TooFewClients):
        attempt.unmasking.close()
    for who in LATE:
        attempt.admit(who)
        attempt.reveal(who)
    for who in others[threshold - 2 :]:
        if not attempt.unmasking.enough:
            attempt.reveal(who)
    completed = attempt.unmasking.close()
    assert set(LATE) <= completed.u5
    np.testing.assert_array_equal(completed.total, sum_of(completed.u3, config.parameters))


@CONFIGS
def test_requests_do_not_change_when_others_sign(config: RoundConfig) -> None:
    """What was sent is made again where a connection broke: by then more have signed."""
    attempt = Slow(config)
    requests, proof = attempt.made, attempt.check.proof
    before = dict(requests.items())
    first = attempt.unmasking.admit(LATE[0], attempt.signatures[LATE[0]])
    told = first[LATE[0]]
    for who in LATE[1:]:
        attempt.admit(who)
    assert dict(requests.items()) == before
    assert first[LATE[0]] == told
    assert attempt.check.proof == proof


@CONFIGS
def test_signers_that_are_not_admitted(config: RoundConfig) -> None:
    attempt = Slow(config)
    unmasking, before = attempt.unmasking, freeze(attempt.unmasking)
    early = min(unmasking.u4)

    def refused(sender: int, message: Any, error: type[ProtocolError]) -> None:
        with pytest.raises(error) as caught:
            unmasking.admit(sender, message)
        assert type(caught.value) is error
        assert caught.value.sender == sender
        assert freeze(unmasking) == before

    honest = attempt.signatures[LATE[0]]
    refused(GONE, honest, UnexpectedMessage)  # its input isn't in the sum
    refused(len(config.roster), honest, UnexpectedMessage)
    refused(early, attempt.sent.get((SIGN, early), honest), UnexpectedMessage)  # it has signed
    refused(LATE[0], None, UnexpectedMessage)
    refused(LATE[0], attempt.signatures[LATE[1]], InvalidMessage)
    refused(LATE[0], ConsistencySignature(bytes(64)), InvalidMessage)  # else others would accuse the coordinator
    with pytest.raises(UnexpectedMessage):  # no shares before the signature
        unmasking.receive(LATE[0], object())
    attempt.admit(LATE[0])
    before = freeze(unmasking)
    refused(LATE[0], honest, UnexpectedMessage)
    for who in sorted(unmasking.u4):
        attempt.reveal(who)
    unmasking.close()
    before = freeze(unmasking)
    refused(LATE[1], attempt.signatures[LATE[1]], UnexpectedMessage)  # the sum is open


def test_a_plan_without_signatures_admits_no_signer() -> None:
    attempt = Attempt(make_config(9, adversary=SEMI_MALICIOUS))
    attempt.run()
    with pytest.raises(UnexpectedMessage):
        attempt.coordinator.admit(3, ConsistencySignature(bytes(64)))
