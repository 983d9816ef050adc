"""Mask keys that a participant makes while others deal: the same as those that it would make later."""

from __future__ import annotations

from typing import Any

import pytest

from secagg.errors import CoordinatorMisbehaved, InvalidKey
from tests.support.attempts_in_memory import Attempt, Script, make_config, sum_of, twin
from tests.support.naive_variants import CLIENT


@pytest.mark.parametrize("beforehand", [False, True])
def test_mask_keys_can_be_made_while_others_deal(beforehand: bool) -> None:
    """The masked input is the same, whoever drops out afterwards."""
    made: list[bytes] = []
    agreed: list[int] = []
    for _ in range(2):
        attempt = Attempt(make_config(9), Script(up={("ShareKeys", 4): "lose", ("MaskedInputCollection", 7): "lose"}))
        mask = attempt._mask

        def masked(who: int, phase: Any, message: Any, mask: Any = mask) -> Any:
            if beforehand:
                phase.agree()
                agreed.append(len(phase._pairwise))
            answer = mask(who, phase, message)
            assert not phase._pairwise
            return answer

        attempt._mask = masked  # type: ignore[method-assign]
        completed = attempt.run()
        assert completed.total.tolist() == sum_of(completed.u3, attempt.config.parameters).tolist()
        made.append(attempt.sent["MaskedInputCollection", 2].packed)
    assert set(agreed) == ({8} if beforehand else set())
    assert made[0] == made[1]


def test_mask_keys_made_beforehand_are_those_made_later(monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = Attempt(make_config(6))
    seen: list[Any] = []

    def masked(who: int, phase: Any, message: Any) -> Any:
        agreeing, later = twin(phase), twin(phase)
        agreeing.agree()
        with monkeypatch.context() as patch:
            patch.setattr(type(phase), "_pairwise_key", lambda _, dealer: pytest.fail(f"{dealer} agreed with twice"))
            seen.append(agreeing.receive(message)._masks)
        assert seen[-1] == later.receive(message)._masks
        return Attempt._mask(attempt, who, phase, message)

    attempt._mask = masked  # type: ignore[method-assign]
    attempt.run()
    assert len(seen) == 6


def test_nothing_is_agreed_on_in_a_phase_that_is_over() -> None:
    attempt = Attempt(make_config(6))

    def masked(who: int, phase: Any, message: Any) -> Any:
        answer = Attempt._mask(attempt, who, phase, message)
        phase.agree()
        assert not phase._pairwise
        return answer

    attempt._mask = masked  # type: ignore[method-assign]
    attempt.run()


def test_a_key_that_cannot_be_agreed_with_matters_only_in_u2(monkeypatch: pytest.MonkeyPatch) -> None:
    def bad(phase: Any, dealer: int, honest: Any = CLIENT.MaskedInputCollection._pairwise_key) -> bytes:
        if dealer == 4:
            raise InvalidKey("low order")
        return bytes(honest(phase, dealer))

    for lost, refuses in ((True, 0), (False, 5)):
        attempt = Attempt(make_config(6), Script(up={("ShareKeys", 4): "lose"} if lost else {}))
        found: list[int] = []

        def masked(who: int, phase: Any, message: Any, attempt: Attempt = attempt, found: list[int] = found) -> Any:
            agreeing = twin(phase)
            with monkeypatch.context() as patch:
                patch.setattr(CLIENT.MaskedInputCollection, "_pairwise_key", bad)
                agreeing.agree()
                assert who == 4 or 4 not in agreeing._pairwise
                try:
                    agreeing.receive(message)
                except CoordinatorMisbehaved as error:
                    found += [who] if "a mask key of u2" in str(error) else []
            return Attempt._mask(attempt, who, phase, message)

        attempt._mask = masked  # type: ignore[method-assign]
        attempt.run()
        assert len(found) == refuses
