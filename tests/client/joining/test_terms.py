"""A joiner takes no terms but those that the authority signed, its code names, and it has accepted."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import client.enrolment
from client.host_file import load
from client.joining.description import changed_terms
from client.joining.joining import accept
from runtime.failure import Failure
from tests.client.joining.conftest import Joining
from tests.support.ends_and_full_disks import interrupted
from tests.support.enrolment_port import document
from tests.support.signed_rosters import published
from wire.study import StudyDocument

LIES: dict[str, Callable[[], StudyDocument]] = {
    **{
        name: lambda options=options: document(**options)  # type: ignore[misc]
        for name, options in {
            "a trusted coordinator": {"mechanism": "gaussian"},
            "another mechanism": {"mechanism": "skellam"},
            "noise of each alone": {"mechanism": "local-gaussian"},
            "a coordinator that must not lie": {"adversary": "curious"},
            "no colluders": {"adversarial": 0.0, "max_dropout": 0.0},
            "a larger share of colluders": {"adversarial": 0.4, "min_survivors": 6},
            "a larger epsilon": {"epsilon": 60.0},
            "a larger delta": {"delta": 1e-2},
            "more rounds": {"rounds": 20},
            "more bits": {"bits": 20},
            "a larger cohort": {"clients": 8, "min_survivors": 6},
            "smaller sums": {"clients": 6, "min_survivors": 5},
            "a larger quorum": {"quorum": 7},
            "more dropouts": {"max_dropout": 0.4},
            "drawn cohorts": {"sampling": "lottery", "population": 9, "largest_roster": 9},
            "another rotation": {"rotation": "hadamard-blocks"},
        }.items()
    },
    "another task": lambda: replace(document(), task="softmax-regression"),
    "other options of the task": lambda: replace(document(), task_options={"dim": 16, "seed": 3}),
    "the participant's own data": lambda: replace(document(), own_data=True),
    "revocations that are never noticed": lambda: replace(document(), roster_valid_s=600),
    "another study": lambda: replace(document(), study="another"),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_unattended_join_takes_no_terms_that_the_authority_has_not_signed(
    unsigned: Joining, monkeypatch: pytest.MonkeyPatch, lie: str
) -> None:
    """The naive client checks the card, which names no terms, and writes its policy from what the coordinator shows."""
    terms = LIES[lie]()
    assert terms.digest() != document().digest()
    unsigned.where.enrolment._document = terms.to_bytes()
    told = unsigned.refused(agreed=True)
    assert ("the document that of 'another'" if lie == "another study" else "unsigned-terms") in told
    if lie == "a larger epsilon":
        monkeypatch.setattr(client.enrolment, "_check_terms", lambda *_: None)
        naive = unsigned.options(code=replace(unsigned.authority.code(), terms=terms.digest()[:10]).to_text())
        with pytest.raises(KeyboardInterrupt):
            _begin_only(unsigned, monkeypatch, naive.code)
        assert "max_epsilon = 60" in (unsigned.home / "host.toml").read_text()


def _begin_only(joining: Joining, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Join as far as the request."""
    monkeypatch.setattr("client.joining.joining._wait", interrupted)
    joining.join(code=code)


def test_terms_that_were_signed_after_the_code_was_given(unsigned: Joining) -> None:
    """Whoever has the authority's key can't move an invited participant to other terms without its consent."""
    code = unsigned.authority.code().to_text()
    unsigned.serve(document(epsilon=60.0))
    assert "other-terms" in unsigned.refused(code=code)


def test_terms_that_may_not_be_the_newest(unsigned: Joining) -> None:
    unsigned.serve(replace(document(), roster_valid_s=600))
    roster, key = unsigned.where.files.newest, unsigned.authority.signing
    roster = replace(roster, terms=unsigned.authority.terms)
    unsigned.where.files.statement_file = published(roster, key, signed=1e9, valid_s=600).newest_file
    assert "old-terms" in unsigned.refused()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (document(), document(epsilon=20.0, rounds=4)),
        (document(), replace(document(), roster_valid_s=7200, own_data=True)),
        *(
            (replace(document(), task="mean", task_options=old), replace(document(), task="mean", task_options=new))
            for old, new in (
                ({"column": "age", "high": 100}, {"column": "income", "high": 100}),
                ({"column": "age", "high": 100}, {"column": "age", "low": 18, "high": 70}),
            )
        ),
    ],
    ids=["plan", "authority", "column", "bounds"],
)
def test_every_field_that_changes_is_shown_with_both_values(before: StudyDocument, after: StudyDocument) -> None:
    """Words leave fields out, and another question would be asked under the same words."""
    text = "\n".join(words for _, words in changed_terms(before, after))
    old, new = (json.loads(one.to_bytes()) for one in (before, after))
    old, new = (one.pop("plan") | one.pop("task_options") | one for one in (old, new))
    changed = [name for name in old.keys() | new.keys() if old.get(name) != new.get(name)]
    assert changed
    for name in changed:
        for value in (one[name] for one in (old, new) if name in one and not isinstance(one[name], dict | list)):
            assert re.search(rf"\b{name}: .*{re.escape(json.dumps(value)[:60])}", text), (name, value, text)
    assert changed_terms(before, before) == []


def test_changed_terms_are_shown_and_accepted_anew(joining: Joining) -> None:
    home = joining.join()
    first, later = document().digest().hex(), document(epsilon=20.0, rounds=4)
    assert load(home).study.sha256 == first
    said: list[str] = []
    accept(joining.options(home=home), said.append)
    assert "has accepted these terms already" in said[-1]
    joining.serve(later)
    said.clear()
    with pytest.raises(Failure, match="add --yes"):
        accept(joining.options(home=home, agreed=False), said.append)
    text = " ".join(" ".join(said).split())
    assert "rounds 4, each with all participants" in text
    assert "before: 2, each with all participants" in text
    assert "epsilon 20" in text
    assert load(home).study.sha256 == first
    owners = "max_epsilon_total = 70.0\nmax_rounds_per_day = 1\nmax_clip = "
    written = (home / "host.toml").read_text()
    (home / "host.toml").write_text(re.sub(r"(\[policy\].*\n)", rf"\g<1>{owners}0.001\n", written))
    with pytest.raises(Failure, match="your policy refuses this study"):  # its owner's limit, not that of the terms
        accept(joining.options(home=home), said.append)
    (home / "host.toml").write_text(re.sub(r"(\[policy\].*\n)", rf"\g<1>{owners}9\n", written))
    said.clear()
    accept(joining.options(home=home), said.append)
    assert any(re.fullmatch(r"policy.max_epsilon: .* becomes 20.0", line) for line in said), said
    read = load(home)
    assert (read.study.sha256, read.policy.max_epsilon) == (later.digest().hex(), 20.0)
    kept = read.policy.max_epsilon_total, read.policy.max_rounds_per_day, read.policy.max_clip
    assert kept == (70.0, 1, 9.0)
    (home / "policy.toml").write_text("[policy]\nmax_epsilon = 1\nmin_honest_survivors = 2\n")
    before, _, rest = (home / "host.toml").read_text().partition("[policy]")
    after = rest[rest.index("[data") :]
    (home / "host.toml").write_text(f'{before}[policy]\nfile = "policy.toml"\n\n{after}')
    joining.serve(document(epsilon=30.0))
    with pytest.raises(Failure, match="your policy refuses this study"):
        accept(joining.options(home=home), said.append)
    assert load(home).study.sha256 == later.digest().hex()
    with pytest.raises(Failure, match="needs --home"):
        accept(joining.options(home=Path("nowhere")), said.append)
