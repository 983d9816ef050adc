"""Mask keys that a participant makes while others deal: the same as those that it would make later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from secagg.errors import CoordinatorMisbehaved, InvalidKey
from secagg.keys import AgreementKey
from tests.support.attempts_in_memory import Attempt, Script, make_config, sum_of
from tests.support.comparable import twin
from tests.support.naive_variants import CLIENT

Act = Callable[[int, Any, Any], None]


class Watched(Attempt):
    """Calls `before` and `after` around the masking of each participant, with it, its phase and the message."""

    def __init__(self, members: int, before: Act, after: Act = lambda *_: None, **lost: int) -> None:
        super().__init__(make_config(members), Script(up=dict.fromkeys(lost.items(), "lose")))
        self._before, self._after = before, after

    def answer(self, who: int, message: Any) -> Any:
        phase = self.phases[who]
        if not isinstance(phase, CLIENT.MaskedInputCollection):
            return super().answer(who, message)
        self._before(who, phase, message)
        answered = super().answer(who, message)
        self._after(who, phase, message)
        return answered


@pytest.mark.parametrize("beforehand", [False, True])
def test_mask_keys_can_be_made_while_others_deal(beforehand: bool) -> None:
    """The masked input is the same, with any later dropouts."""
    agreed: list[int] = []

    def agree(who: int, phase: Any, message: Any) -> None:
        if beforehand:
            phase.agree()
            agreed.append(len(phase._agreed))

    def forgotten(who: int, phase: Any, message: Any) -> None:
        assert not phase._agreed

    attempt = Watched(9, agree, forgotten, ShareKeys=4, MaskedInputCollection=7)
    completed = attempt.run()
    assert completed.total.tolist() == sum_of(completed.u3, attempt.config.parameters).tolist()
    assert set(agreed) == ({8} if beforehand else set())
    plain = Attempt(attempt.config, attempt.script)
    plain.run()
    assert attempt.sent["MaskedInputCollection", 2].packed == plain.sent["MaskedInputCollection", 2].packed


def test_mask_keys_made_beforehand_are_those_made_later(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def compare(who: int, phase: Any, message: Any) -> None:
        agreeing, later = twin(phase), twin(phase)
        agreeing.agree()
        with monkeypatch.context() as patch:
            patch.setattr(AgreementKey, "agree", lambda *_: pytest.fail("agreed with twice"))
            seen.append(agreeing.receive(message)._masks)
        assert seen[-1] == later.receive(message)._masks

    Watched(6, compare).run()
    assert len(seen) == 6


def test_nothing_is_agreed_on_in_a_phase_that_is_over() -> None:
    def too_late(who: int, phase: Any, message: Any) -> None:
        phase.agree()
        assert not phase._agreed

    Watched(6, lambda *_: None, too_late).run()


@pytest.mark.parametrize(("lost", "refuses"), [({"ShareKeys": 4}, 0), ({}, 5)])
def test_a_low_order_key_matters_only_in_u2(
    lost: dict[str, int], refuses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bad(phase: Any, dealer: int, honest: Any = CLIENT.MaskedInputCollection._agree) -> None:
        if dealer == 4:
            raise InvalidKey("low order")
        honest(phase, dealer)

    found: list[int] = []

    def agree(who: int, phase: Any, message: Any) -> None:
        agreeing = twin(phase)
        with monkeypatch.context() as patch:
            patch.setattr(CLIENT.MaskedInputCollection, "_agree", bad)
            agreeing.agree()
            assert who == 4 or 4 not in agreeing._agreed
            try:
                agreeing.receive(message)
            except CoordinatorMisbehaved as error:
                found.extend([who] if "a mask key of u2" in str(error) else [])

    Watched(6, agree, **lost).run()
    assert len(found) == refuses
