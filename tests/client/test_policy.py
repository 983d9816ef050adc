"""Every reason for which a participant refuses: raised by code, listed in the docs, and tested on both sides."""

from __future__ import annotations

import ast
import hashlib
import inspect
import re
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import client.policy
from client.policy import (
    REASONS,
    PolicyRefusal,
    check_budget,
    check_clips,
    check_roster,
    check_round,
    check_study,
    check_terms,
    epsilon_after_plan,
    epsilon_in_total,
    round_epsilon,
    task_digest,
)
from mechanisms.evaluation import Evaluation
from secagg.roster import Roster, RosterEntry
from tests.client.policies import ME, NOON, OPTIONS, OTHER, charge, document, plan, policy, settings, sha256, totals
from wire.records.ledger_rows import InvalidRow, epsilon, price
from wire.records.ledger_totals import DAY_S, Totals
from wire.study import StudyDocument, plan_study

ROOT = Path(__file__).resolve().parents[2]
MODEL = b"\x33" * 32


def spent_by(*names: str, rounds: int = 2) -> Totals:
    return totals(*(charge(document(name), n) for name in names for n in range(1, rounds + 1)))


def study(change: dict[str, Any], of: StudyDocument | None = None, host: dict[str, Any] | None = None) -> None:
    of = of or document()
    check_study(settings(policy(**change), **host or {}), of, sha256(of), Totals())


def round_(
    change: dict[str, Any],
    spent: Totals | None = None,
    of: StudyDocument | None = None,
    number: tuple[int, int] = (9, 1),
    who: bytes = ME,
) -> None:
    of = of or document()
    check_round(policy(**change), of.plan, spent or Totals(), charge(of, *number, who=who), MODEL)


def roster(change: dict[str, Any], together: int = 3) -> None:
    entries = [RosterEntry(bytes([n]) * 32, "host" if n <= together else f"host-{n}") for n in range(1, 21)]
    check_roster(settings(policy(**change)), document(), Roster("clinic", 1, tuple(entries)))


def set_clock(
    monkeypatch: pytest.MonkeyPatch, now: float = NOON, local: Callable[[float], Any] = time.localtime
) -> None:
    clock = SimpleNamespace(time=lambda: now, localtime=local, strftime=time.strftime)
    monkeypatch.setattr(client.policy, "time", clock)


def at_minute(monkeypatch: pytest.MonkeyPatch, hour: int, minute: int = 0) -> None:
    set_clock(monkeypatch, local=lambda at: time.struct_time((2027, 1, 15, hour, minute, 0, 4, 15, 0)))


STUDY_SHA256, ONE_ROUND = sha256(document()).hex(), round_epsilon(plan(), 1e-5)
GAUSSIAN, CURIOUS = document(of=plan("gaussian")), document(of=replace(plan(), adversary="curious"))
WHAT = Evaluation(held_out=0.2, weight=0.5, most_examples=1, largest_loss=4.0)
EVALUATED = document(of=plan(evaluation=WHAT))
# reason -> changes of a policy that the study breaks, and changes that it just keeps
STUDIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "study-digest": ({"study_digests": ("ab" * 32,)}, {"study_digests": ("ab" * 32, STUDY_SHA256)}),
    "task": ({"tasks": ("mlp", "cnn")}, {"tasks": ("mlp", "softmax-regression")}),
    "task-digest": (
        {"task_digests": ("ab" * 32,)},
        {"task_digests": (task_digest("softmax-regression", OPTIONS).hex(),)},
    ),
    "mechanism": ({"mechanisms": ("skellam", "local-gaussian")}, {"mechanisms": ("skellam", "ddgauss")}),
    "key-agreement": ({"key_agreements": ("x25519-mlkem768",)}, {"key_agreements": ("x25519",)}),
    "roster-validity": ({"max_roster_valid_h": 167.9}, {"max_roster_valid_h": 168.0}),
    "epsilon-in-study": ({"max_epsilon": 7.99}, {"max_epsilon": 8.0}),
    "delta": ({"max_delta": 9e-6}, {"max_delta": 1e-5}),
    "epsilon-in-round": ({"max_epsilon_round": ONE_ROUND * 0.999}, {"max_epsilon_round": ONE_ROUND * 1.001}),
    "cohort": ({"min_cohort": 13}, {"min_cohort": 12}),
    "survivors": ({"min_survivors": 13}, {"min_survivors": 12}),
    "honest-survivors": ({"min_honest_survivors": 11}, {"min_honest_survivors": 10}),
    "colluders": ({"min_colluders": 3}, {"min_colluders": 2}),
    "adversarial": ({"min_adversarial": 0.11}, {"min_adversarial": 0.1}),
    "dropout": ({"min_dropout": 0.25}, {"min_dropout": 0.2}),
    "clip": ({"max_clip": 0.99}, {"max_clip": 1.0}),
    "bits": ({"min_bits": 17}, {"min_bits": 16, "max_bits": 16}),
    "dimension": ({"max_dimension": 63}, {"max_dimension": 64}),
}
# reason -> arguments of `round_`, likewise
ROUNDS: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    "another-guarantee": (
        ({"max_epsilon_total": 100.0}, totals(charge(document("old", plan("gaussian")), 1))),
        ({"max_epsilon_total": 100.0}, totals(charge(document("old", plan("skellam")), 1))),
    ),
    "epsilon-in-plan": (
        ({"max_epsilon": 100.0}, spent_by("clinic", rounds=4)),
        ({"max_epsilon": 100.0}, spent_by("clinic", rounds=3)),
    ),
    "epsilon-in-total": (
        ({"max_epsilon_total": 8.0}, spent_by("old", rounds=4)),
        ({"max_epsilon_total": 8.1}, spent_by("old", rounds=3)),
    ),
    "model-digest": (({"model_digests": ("ab" * 32,)},), ({"model_digests": (MODEL.hex(),)},)),
    "hours": (({"hours": ("22:00-06:00", "12:00-13:00")},), ({"hours": ("22:00-06:00", "10:00-12:00")},)),
    "rounds-per-day": (
        ({"max_rounds_per_day": 2}, spent_by("clinic")),
        ({"max_rounds_per_day": 3}, spent_by("clinic")),
    ),
}
CASES: dict[str, tuple[Callable[[], None], list[Callable[[], None]]]] = {
    **{reason: (partial(study, broken), [partial(study, kept)]) for reason, (broken, kept) in STUDIES.items()},
    **{reason: (partial(round_, *broken), [partial(round_, *kept)]) for reason, (broken, kept) in ROUNDS.items()},
    "another-study": (  # whatever the policy allows
        partial(study, {}, host={"sha256": "ab" * 32}),
        [partial(study, {}, host={"sha256": STUDY_SHA256})],
    ),
    "study-name": (partial(study, {}, host={"name": "clinic-2"}), [partial(study, {})]),
    "task-options": (
        partial(study, {}, replace(document(), task_options=OPTIONS | {"batch_size": 21})),
        [partial(study, {})],
    ),
    "trusted-coordinator": (partial(study, {}, GAUSSIAN), [partial(study, {"mechanisms": ("gaussian",)}, GAUSSIAN)]),
    "curious-coordinator": (
        partial(study, {}, CURIOUS),
        [partial(study, {}), partial(study, {"curious_coordinator": True}, CURIOUS)],
    ),
    "evaluation": (
        partial(study, {"max_held_out": 0.19}, EVALUATED),
        [
            partial(study, {"max_held_out": 0.2}, EVALUATED),
            partial(study, {"max_held_out": 0.0}),
            partial(study, {}, EVALUATED),
        ],
    ),
    "one-machine": (
        partial(roster, {}, together=3),
        [partial(roster, {}, together=2), partial(roster, {"one_machine": True}, together=20)],
    ),
}
SENTENCES = {  # reason -> part of its sentence
    "another-study": f"the coordinator runs the study document {STUDY_SHA256}, and this host agreed to {'ab' * 32}",
    "study-name": "the study is 'clinic', this host joined 'clinic-2'",
    "study-digest": f"the study document is {STUDY_SHA256}, which study_digests doesn't hold",
    "task": "the task is 'softmax-regression', tasks allows 'mlp' or 'cnn'",
    "task-options": "option 'batch_size' is 21 in the study, 20 in host.toml",
    "task-digest": "which task_digests doesn't hold",
    "trusted-coordinator": "see the sum without it",
    "curious-coordinator": "no participant would sign whose updates are in a sum",
    "mechanism": "the mechanism is 'ddgauss', this host accepted 'skellam' or 'local-gaussian'",
    "key-agreement": "keys are agreed on by x25519, key_agreements allows 'x25519-mlkem768'",
    "roster-validity": "could withhold a revocation for 168 hours, max_roster_valid_h allows 167.9",
    "epsilon-in-study": "the study's epsilon is 8, max_epsilon allows 7.99",
    "delta": "the study's delta is 1e-05, max_delta allows 9e-06",
    "epsilon-in-round": "one round may cost epsilon 3.547 at delta 1e-05",
    "another-guarantee": "the study 'old' with 'gaussian', which this ledger holds, promise different things",
    "cohort": "a round may begin with 12 participants, min_cohort asks for 13",
    "survivors": "a sum may hold only 12 participants, min_survivors asks for 13",
    "honest-survivors": "among at least 10 honest participants, min_honest_survivors asks for 11",
    "colluders": "assumes 2 of 20 participants to collude, min_colluders asks for 3",
    "adversarial": "a share of 0.1 to be adversarial, min_adversarial asks for 0.11",
    "dropout": "a share of 0.2 leaves a round, min_dropout asks for 0.25",
    "one-machine": "one host runs 3 participants, but only 2 are assumed to collude",
    "clip": "updates are clipped to 1, max_clip allows 0.99",
    "bits": "a value has 16 bits, min_bits asks for 17",
    "dimension": "an update has 64 values, max_dimension allows 63",
    "evaluation": "evaluate the model on a share of 0.2 of their examples, max_held_out allows 0.19",
    "epsilon-in-plan": "above the study's budget 8",
    "epsilon-in-total": "over all studies of this ledger to",
    "model-digest": f"begins from the model {MODEL.hex()}, which model_digests doesn't hold",
    "hours": "it is 11:30 here, hours allows 22:00-06:00, 12:00-13:00",
    "rounds-per-day": "2 attempts were charged within 24 hours, max_rounds_per_day allows 2; the next from",
}


@pytest.mark.parametrize(("tasks", "refused"), [(("votes",), "mlp"), (("mlp",), "votes"), (("votes", "mlp"), "")])
def test_votes_need_both_the_task_and_the_one_that_votes(tasks: tuple[str, ...], refused: str) -> None:
    of = replace(document(), task="votes", task_options={"of": "mlp"})
    if not refused:
        return check_terms(policy(tasks=tasks), of, sha256(of))
    with pytest.raises(PolicyRefusal, match=f"the task is '{refused}', tasks allows"):
        check_terms(policy(tasks=tasks), of, sha256(of))


@pytest.mark.parametrize("reason", REASONS)
def test_refused_and_just_allowed(monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    at_minute(monkeypatch, 11, 30)
    refused, allowed = CASES[reason]
    with pytest.raises(PolicyRefusal) as error:
        refused()
    assert error.value.reason == reason
    assert SENTENCES[reason] in error.value.sentence
    assert str(error.value) == f"{reason}: {error.value.sentence}"
    assert "\n" not in error.value.sentence
    for check in allowed:
        check()


def test_code_docs_and_tests_know_the_same_reasons() -> None:
    """Each name is a literal where a refusal is made, or where one of the helpers that make one is called."""
    helpers = {"_check_pinned", "_check_listed", "_check_least", "_check_most"}
    raised: set[str] = set()
    for file in sorted((ROOT / "client").glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in helpers | {"PolicyRefusal"}:
                name = node.args[0]
                passed_on = isinstance(name, ast.Name) and node.func.id == "PolicyRefusal" and name.id == "reason"
                assert isinstance(name, ast.Constant) or passed_on, f"{file.name}:{node.lineno}: no literal reason"
                raised |= {name.value} if isinstance(name, ast.Constant) else set()
    listed = (ROOT / "docs" / "policy.md").read_text().partition("## Reasons")[2].partition("\n## ")[0]
    documented = re.findall(r"^\| `([a-z-]+)` \| (.+?) \| (.+?) \|$", listed, re.M)
    assert sorted(raised) == sorted(REASONS) == sorted(CASES) == sorted(name for name, _, _ in documented)
    assert all(len(meaning) > 15 and len(remedy) > 15 for _, meaning, remedy in documented)


def test_nothing_here_is_given_data() -> None:
    """A refusal can't depend on what it never sees: there are public terms, the ledger's charges and the clock."""
    for check in (check_study, check_terms, check_roster, check_round, check_budget, check_clips):
        given = set(inspect.signature(check).parameters)
        assert given <= {
            *("configuration", "document", "study_sha256", "totals", "policy", "plan", "roster"),
            *("charge", "model_sha256", "clips"),
        }


# ---------------------------------------------------------------- digests


def test_a_task_digest_is_over_name_and_options_in_any_order() -> None:
    one = task_digest("mlp", {"a": 1, "b": 0.5})
    assert one == task_digest("mlp", {"b": 0.5, "a": 1})
    others = (("cnn", {"a": 1, "b": 0.5}), ("mlp", {"a": 1}), ("mlp", {"a": 1, "b": 5}))
    assert len({one, *(task_digest(*other) for other in others)}) == 4
    # Fixed by its bytes, so that other programs can make it.
    assert one == hashlib.sha256(b'sordino/v1/task\x00["mlp",{"a":1,"b":0.5}]').digest()


# ---------------------------------------------------------------- budgets


def total(spent: Totals, of: StudyDocument, who: bytes = ME) -> float:
    return epsilon_in_total(of.plan, spent, charge(of, 1, who=who), delta=1e-5)


def test_a_renamed_study_gets_no_fresh_budget() -> None:
    """Without a total each new name begins at nothing: that is what `max_epsilon` alone can't see."""
    spent = Totals()
    taken: list[Any] = []
    refused: list[Any] = []
    limits = {"max_epsilon_total": 8.0}
    for name in (f"clinic-{n}" for n in range(6)):
        for n in (1, 2):
            round_({}, spent, document(name), (n, 1))  # the naive client would go on
            if refusal(lambda name=name, n=n: round_(limits, spent, document(name), (n, 1))) == "":
                spent.add(charge(document(name), n))
                taken.append((name, n))
            else:
                refused.append((name, n))
    assert len(taken) == 4  # the plan spends 8 on four rounds, and the total is stated at its order
    assert len(taken) + len(refused) == 12
    assert refusal(lambda: round_(limits, spent, document("clinic-9"), (1, 1))) == "epsilon-in-total"
    [together] = spent.across_studies()
    assert epsilon(together.order, together.renyi, 1e-5, together.draws) <= 8.0


def test_a_round_that_never_ends_spends_as_rounds_do() -> None:
    """A coordinator that numbers everything as one more attempt of round 1: each upload is a charge of its own."""
    spent = Totals()
    for attempt in range(1, 5):
        round_({"max_epsilon": 100.0}, spent, number=(1, attempt))
        spent.add(charge(document(), 1, attempt))
    assert refusal(lambda: round_({"max_epsilon": 100.0}, spent, number=(1, 5))) == "epsilon-in-plan"
    assert refusal(lambda: round_({"max_rounds_per_day": 4}, spent, number=(1, 5))) == "rounds-per-day"
    assert refusal(lambda: round_({"max_epsilon_total": 8.0}, spent, document("renamed"), (1, 1))) == "epsilon-in-total"
    for number in ((1, 1), (1, 4), (0, 9)):  # round numbers that go back, or come again
        with pytest.raises(InvalidRow, match="each may be charged once, in order"):
            spent.add(charge(document(), *number))


def refusal(check: Callable[[], None]) -> str:
    """The name of the reason, or nothing."""
    try:
        check()
    except PolicyRefusal as error:
        return error.reason
    return ""


def test_a_new_identity_gets_no_fresh_budget() -> None:
    """Joined again with another code, over the same data and with the same ledger: summed by identity, the data was
    charged the plan's budget once for each of them, within `max_epsilon` and `max_epsilon_total` of every one.
    """
    of, mine, spent, taken = document(), "dd" * 32, Totals(), 0
    limits = policy(max_epsilon_total=9.0)

    def ask() -> None:
        check_budget(limits, of.plan, spent, charge(of, number, who=who, data=mine))

    for number in range(1, 7):
        for who in (ME, OTHER, b"\x44" * 32):  # of one host in one round, or one after the other
            reason = refusal(ask)
            assert reason in ("", "epsilon-in-study", "epsilon-in-total")
            if not reason:
                spent.add(charge(of, number, who=who, data=mine))
                taken += 1
    one = price(of.plan, of.plan.h_min)
    draws = of.plan.clients * of.plan.padded_dim
    assert 3 <= taken <= 4
    assert epsilon(one.order, taken * one.cost, 1e-5, taken * draws) <= 8.0
    # Another study counts what all of them spent; other data of this host is not held up.
    [together] = spent.across_studies()
    assert (together.order, together.renyi) == (one.order, pytest.approx(taken * one.cost, rel=1e-9))
    assert refusal(lambda: round_({}, spent, of, (99, 1), b"\x55" * 32)) == ""


def test_the_figure_after_a_charge_is_the_one_that_was_asked_about() -> None:
    for of, who in ((document("b"), ME), (document("c"), ME), (document("b"), OTHER)):
        spent = spent_by("a", "b")
        coming = total(spent, of, who)
        spent.add(charge(of, 3, who=who))
        [together] = spent.across_studies()
        assert coming == pytest.approx(epsilon(together.order, together.renyi, 1e-5, together.draws), rel=1e-9)


def test_a_total_of_what_the_only_study_plans_holds_to_its_last_round() -> None:
    """The total of one study is that study's own figure, at its own order: stated at another it was a little more."""
    of, spent = document(), Totals()
    limit = {"max_epsilon_total": of.plan.budget_coordinator}
    for number in range(1, of.plan.rounds + 1):
        for who in (ME, OTHER):  # of one host, in the same sum
            round_(limit, spent, of, (number, 1), who)
        for who in (ME, OTHER):
            spent.add(charge(of, number, who=who))
    [together], [study] = spent.across_studies(), spent.studies.values()
    assert epsilon(together.order, together.renyi, 1e-5, together.draws) == study.epsilon_coordinator()
    assert study.epsilon_coordinator() <= of.plan.budget_coordinator
    # Over studies it is never less than the order's own composition, here of equal costs.
    [together], one = spent_by("a", "b").across_studies(), price(of.plan, of.plan.h_min)
    assert together.renyi == pytest.approx(4 * one.cost, rel=1e-12)
    assert together.draws == 4 * of.plan.clients * of.plan.padded_dim


def test_a_plan_that_the_total_has_no_room_for_is_refused_before_its_first_round() -> None:
    limit, of = policy(max_epsilon_total=8.0), document()
    check_terms(limit, of, b"", Totals())
    check_terms(limit, of, sha256(of), totals(charge(of, 1), charge(of, 2)))  # joined again: within the plan
    with pytest.raises(PolicyRefusal, match=r"epsilon-in-total: the 4 rounds of the study's plan would bring"):
        check_terms(limit, of, sha256(of), totals(charge(document("old"), 1)))
    with pytest.raises(PolicyRefusal, match="epsilon-in-total"):
        check_terms(replace(limit, max_epsilon_total=7.9), of, sha256(of), Totals())
    check_terms(replace(limit, max_epsilon_total=None), of, sha256(of), totals(charge(document("old"), 1)))


def test_a_mechanism_with_bounds_at_fewer_orders_is_added_at_the_next_one() -> None:
    """Skellam's bound holds at whole orders only; the first row may have fixed a fraction."""
    gauss, skellam = document("a"), document("b", plan("skellam"))
    first = charge(gauss, 1, order=2.5)
    together = total(totals(first), skellam)
    assert total(totals(first), document("b")) <= together < float("inf")
    beyond = replace(first, order=90.0, curve=((90.0, 1.0),))
    assert total(totals(beyond), skellam) < float("inf")  # the next order above is 96
    nothing = replace(first, order=2000.0, curve=((2000.0, 1.0),))
    assert total(totals(nothing), skellam) == float("inf")
    with pytest.raises(PolicyRefusal, match=r"epsilon-in-total: .* to inf"):
        round_({"max_epsilon_total": 1e9}, totals(nothing), skellam)


def test_another_participant_of_the_host_who_spent_more_counts() -> None:
    spent = totals(*(charge(document(), n, who=OTHER) for n in (1, 2, 3)))
    assert total(spent, document()) == pytest.approx(total(spent_by("clinic"), document()), rel=1e-6)


def test_kinds_of_guarantee_are_refused_in_either_order() -> None:
    limit: dict[str, Any] = {"max_epsilon_total": 1000.0, "mechanisms": ("gaussian", "ddgauss", "local-gaussian")}
    limit |= {"min_honest_survivors": 1, "min_colluders": 0}
    for first, second in (("gaussian", "ddgauss"), ("ddgauss", "gaussian"), ("ddgauss", "local-gaussian")):
        spent = totals(charge(document("old", plan(first)), 1))
        new = document("new", plan(second))
        with pytest.raises(PolicyRefusal) as error:
            check_terms(policy(**limit), new, b"", spent)
        assert error.value.reason == "another-guarantee"
        check_terms(policy(**limit | {"max_epsilon_total": None}), new, b"", spent)


# ---------------------------------------------------------------- pace and hours


def pace(spent: Totals, most: int, now: float, monkeypatch: pytest.MonkeyPatch, number: tuple[int, int]) -> bool:
    set_clock(monkeypatch, now)
    told = refusal(lambda: round_({"max_rounds_per_day": most}, spent, number=number))
    assert told in ("", "rounds-per-day")
    return told == ""


def test_rounds_are_free_again_after_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = totals(charge(document(), 1), charge(document("other"), 1, at=NOON + 3600))
    assert not pace(spent, 2, NOON + 7200, monkeypatch, (2, 1))
    assert not pace(spent, 2, NOON + DAY_S - 1, monkeypatch, (2, 1))
    assert pace(spent, 2, NOON + DAY_S, monkeypatch, (2, 1))
    assert not pace(spent, 1, NOON + DAY_S, monkeypatch, (2, 1))
    assert pace(spent, 1, NOON + 3600 + DAY_S, monkeypatch, (2, 1))


def test_participants_of_one_host_in_one_attempt_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = totals(charge(document(), 1), charge(document(), 1, who=OTHER))
    assert spent.pace.within_a_day(NOON) == 1
    # The first of them was charged; the second must still be able to follow in the same attempt, not in the next.
    assert pace(totals(charge(document(), 1)), 1, NOON, monkeypatch, (1, 1))
    assert not pace(totals(charge(document(), 1)), 1, NOON, monkeypatch, (1, 2))


@pytest.mark.parametrize(
    ("window", "within", "outside"),
    [
        ("22:00-06:00", [(22, 0), (23, 59), (0, 0), (5, 59)], [(6, 0), (12, 0), (21, 59)]),
        ("08:30-17:00", [(8, 30), (16, 59)], [(8, 29), (17, 0), (0, 0)]),
        ("00:00-24:00", [(0, 0), (12, 0), (23, 59)], []),
        ("20:00-00:00", [(20, 0), (23, 59)], [(0, 0), (19, 59)]),
    ],
)
def test_hours(
    monkeypatch: pytest.MonkeyPatch, window: str, within: list[tuple[int, int]], outside: list[tuple[int, int]]
) -> None:
    for when in within:
        at_minute(monkeypatch, *when)
        round_({"hours": (window,)})
    for when in outside:
        at_minute(monkeypatch, *when)
        with pytest.raises(PolicyRefusal, match="hours"):
            round_({"hours": (window,)})


def test_hours_are_the_devices_local_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        set_clock(monkeypatch, 0.0)  # 09:00 in Tokyo
        round_({"hours": ("09:00-09:01",)})
        with pytest.raises(PolicyRefusal, match="it is 09:00 here"):
            round_({"hours": ("00:00-09:00",)})
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_study_in_which_revocations_can_be_withheld_for_ever() -> None:
    of = replace(document(), roster_valid_s=0)
    check_terms(policy(), of, sha256(of))
    with pytest.raises(PolicyRefusal, match="roster-validity: the coordinator could withhold a revocation for ever"):
        check_terms(policy(max_roster_valid_h=1e6), of, sha256(of))


def test_clips_of_a_round() -> None:
    check_clips(policy(max_clip=5.0), (3.0, 4.0))
    with pytest.raises(PolicyRefusal, match="clip: updates are clipped to 5"):
        check_clips(policy(max_clip=4.99), (3.0, 4.0))


def test_a_policy_says_nothing_of_itself_by_default() -> None:
    """Left out means: not limited, save for the five limits that every policy has."""
    limited = {
        *("max_epsilon", "max_delta", "min_honest_survivors", "min_colluders"),
        *("curious_coordinator", "one_machine"),
    }
    assert {name for name, value in vars(policy()).items() if value is not None} == limited


def test_the_docs_name_every_key() -> None:
    keys = set(vars(policy())) - {"mechanism"}
    table = (ROOT / "docs" / "policy.md").read_text().partition("## Keys")[2].partition("## Reasons")[0]
    rows = [line.partition(" | ")[0] for line in table.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == keys


def test_with_epochs_a_total_of_the_studys_epsilon_is_enough() -> None:
    """Its own rounds count, not those of all cohorts; pricing all would refuse every such study."""
    drawn = {"sampling": "epochs", "population": 1000, "rounds": 100, "adversarial": 0.0, "max_dropout": 0.0}
    made = plan_study(clients=100, dim=500, bits=18, clip=1.0, epsilon=8.0, delta=1e-5, **drawn)
    after = epsilon_after_plan(made, Totals(), delta=1e-5, study_sha256=bytes(32))
    assert 7.99 < after <= 8.0
