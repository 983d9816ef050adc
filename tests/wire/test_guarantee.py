"""Whom a plan trusts, by its mechanism and by what its coordinator may do."""

from __future__ import annotations

import pytest

from mechanisms.mechanism import DESCRIPTIONS
from secagg.sharing import ADVERSARIES, CURIOUS, MALICIOUS, SEMI_MALICIOUS
from wire.guarantee import trust_of

SHORT = {CURIOUS: "the coordinator, to follow the protocol", SEMI_MALICIOUS: "the coordinator, to follow the protocol "}


def test_of_a_malicious_coordinator_the_mechanism_alone_decides() -> None:
    for name in DESCRIPTIONS:
        assert trust_of(name, MALICIOUS).words == DESCRIPTIONS[name].trusts
        assert trust_of(name, MALICIOUS).proviso == ""


@pytest.mark.parametrize("adversary", [CURIOUS, SEMI_MALICIOUS])
@pytest.mark.parametrize("mechanism", ["ddgauss", "skellam", "binomial"])
def test_a_coordinator_that_may_not_lie_is_trusted(mechanism: str, adversary: str) -> None:
    """The naive words are those of the mechanism, whatever the coordinator is trusted with."""
    trust = trust_of(mechanism, adversary)
    assert trust.words.partition(":")[0].startswith(SHORT[adversary])
    assert "nobody alone" not in trust.words
    assert DESCRIPTIONS[mechanism].trusts.rpartition(": ")[2] in trust.words
    assert trust.proviso.startswith(" and the coordinator doesn't lie")
    assert trust.proviso.endswith("exchanged") == (adversary == SEMI_MALICIOUS)


@pytest.mark.parametrize("mechanism", ["gaussian", "local-gaussian"])
def test_what_the_mechanism_trusts_stands_first_where_lies_do_not_touch_epsilon(mechanism: str) -> None:
    for adversary in (CURIOUS, SEMI_MALICIOUS):
        trust = trust_of(mechanism, adversary)
        assert trust.words.startswith(DESCRIPTIONS[mechanism].trusts)
        assert "to follow the protocol" in trust.words
        assert trust.proviso == ""


def test_every_mechanism_has_words_for_every_coordinator() -> None:
    for mechanism in DESCRIPTIONS:
        assert len({trust_of(mechanism, adversary).words for adversary in ADVERSARIES}) == len(ADVERSARIES)
    with pytest.raises(KeyError):
        trust_of("of a newer version", CURIOUS)
