"""What a participant insists on, whatever the coordinator says: checked before a study and before each round.

A refusal has a name that stays the same from release to release, and a sentence that says what was found and what is
allowed. Both stay on this device: the coordinator sees no participant, or one code that stands for all of them.
Nothing here looks at data, so a refusal can't depend on it. docs/policy.md lists the names with their remedies.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from client.policy_total import epsilon_after_plan, epsilon_in_total, kind_of_guarantee
from client.settings import HostSettings, Policy, within
from learning.task_names import trained_task
from mechanisms.plan import Plan
from secagg.roster import Roster
from secagg.sharing import CURIOUS
from wire.records.ledger_rows import epsilon, price
from wire.records.ledger_totals import Totals
from wire.study import StudyDocument

REASONS: Final = (
    # A study is refused: nothing but the opening of a session was sent.
    *("another-study", "study-name", "study-digest", "task", "task-options", "task-digest"),
    *("trusted-coordinator", "curious-coordinator", "mechanism"),
    *("epsilon-in-study", "delta", "epsilon-in-round", "epsilon-in-total", "another-guarantee"),
    *("cohort", "survivors", "honest-survivors", "colluders", "adversarial", "dropout", "one-machine"),
    *("clip", "bits", "dimension"),
    # A round is refused; the same may happen for epsilon-in-study, epsilon-in-total, another-guarantee, clip and
    # one-machine.
    *("epsilon-in-plan", "model-digest", "hours", "rounds-per-day"),
)
"""Every name that a `PolicyRefusal` may have."""


class PolicyRefusal(Exception):
    """The study or a round breaks what the participant accepted.

    Attributes:
        reason: one of `REASONS`.
        sentence: what was found, and what is allowed.
    """

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(f"{reason}: {sentence}")
        self.reason, self.sentence = reason, sentence


def task_digest(task: str, options: Mapping[str, Any]) -> bytes:
    """SHA-256 of a task's name and options, as canonical JSON: sorted names, no blanks, floats in their shortest form.

    What ``policy.task_digests`` lists in hexadecimal digits.
    """
    canonical = json.dumps([task, dict(options)], sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(b"sordino/v1/task\x00" + canonical.encode()).digest()


def digests(document: StudyDocument, study_sha256: bytes) -> dict[str, str]:
    """What a policy may pin of a study, by the names under which it is shown: 64 hexadecimal digits each."""
    return {
        "study_sha256": study_sha256.hex(),
        "task_sha256": task_digest(document.task, document.task_options).hex(),
    }


def check_agreed(configuration: HostSettings, study_sha256: bytes) -> None:
    """Hold the digest of a study document against the one that was shown and agreed to, where host.toml names it.

    Raises:
        PolicyRefusal: it is another study.
    """
    agreed = configuration.study.sha256
    if agreed is not None and agreed != study_sha256.hex():
        raise PolicyRefusal(
            "another-study",
            f"the coordinator runs the study document {study_sha256.hex()}, and this host agreed to {agreed} "
            "([study] sha256 in host.toml)",
        )


def check_study(
    configuration: HostSettings, document: StudyDocument, study_sha256: bytes, totals: Totals | None = None
) -> None:
    """Hold a study against the host's settings and policy, once, before any round.

    The document has been checked from first principles already (`StudyDocument.from_bytes`); here it is compared with
    what this participant agreed to.

    Args:
        totals: of the participants' ledger, where there is one already.

    Raises:
        PolicyRefusal: the first condition that isn't met.
    """
    check_agreed(configuration, study_sha256)
    if document.study != configuration.study.name:
        raise PolicyRefusal(
            "study-name", f"the study is {document.study!r}, this host joined {configuration.study.name!r}"
        )
    if document.task != configuration.study.task:
        raise PolicyRefusal("task", f"the task is {document.task!r}, this host accepted {configuration.study.task!r}")
    if dict(document.task_options) != dict(configuration.task):
        raise PolicyRefusal("task-options", "the options of the task differ from those in host.toml")
    check_terms(configuration.policy, document, study_sha256, totals)


def check_terms(policy: Policy, document: StudyDocument, study_sha256: bytes, totals: Totals | None = None) -> None:
    """Hold a study against a policy alone, such as before one has joined it. Arguments and errors as `check_study`."""
    for refusal in _refusals(policy, document, study_sha256):
        raise refusal
    if totals is not None:
        check_guarantee(policy, document.plan, totals)
        _check_total(policy, document.plan, totals, study_sha256)


def _refusals(policy: Policy, document: StudyDocument, study_sha256: bytes) -> Iterator[PolicyRefusal]:
    plan, found = document.plan, digests(document, study_sha256)
    if policy.study_digests is not None and found["study_sha256"] not in policy.study_digests:
        yield PolicyRefusal(
            "study-digest", f"the study document is {found['study_sha256']}, which study_digests doesn't hold"
        )
    for task in dict.fromkeys((document.task, trained_task(document.task, document.task_options))):
        if policy.tasks is not None and task not in policy.tasks:
            yield PolicyRefusal("task", f"the task is {task!r}, tasks allows {_listed(policy.tasks)}")
    if policy.task_digests is not None and found["task_sha256"] not in policy.task_digests:
        yield PolicyRefusal(
            "task-digest",
            f"the task and its options have the digest {found['task_sha256']}, which task_digests doesn't hold",
        )
    yield from _mechanism(policy, plan)
    yield from _prices(policy, plan)
    yield from _company(policy, plan)
    yield from _coding(policy, plan)


def _mechanism(policy: Policy, plan: Plan) -> Iterator[PolicyRefusal]:
    if plan.adversary == CURIOUS and not policy.curious_coordinator:
        yield PolicyRefusal(
            "curious-coordinator",
            "no participant would sign whose updates are in a sum: the coordinator is trusted to send the same sets to "
            "all; policy.curious_coordinator = true accepts that",
        )
    accepted = policy.accepted_mechanisms
    if not accepted and plan.mechanism == "gaussian":
        yield PolicyRefusal(
            "trusted-coordinator",
            "the coordinator would add the noise, and see the sum without it; "
            'policy.mechanisms = ["gaussian"] accepts that',
        )
    if accepted and plan.mechanism not in accepted:
        yield PolicyRefusal("mechanism", f"the mechanism is {plan.mechanism!r}, this host accepted {_listed(accepted)}")


def _prices(policy: Policy, plan: Plan) -> Iterator[PolicyRefusal]:
    if plan.budget_coordinator > policy.max_epsilon:
        yield PolicyRefusal(
            "epsilon-in-study",
            f"the study's epsilon {plan.budget_coordinator:g} is above max_epsilon {policy.max_epsilon:g}",
        )
    if plan.delta > policy.max_delta:
        yield PolicyRefusal("delta", f"the study's delta {plan.delta:g} is above max_delta {policy.max_delta:g}")
    if policy.max_epsilon_round is not None:
        one = round_epsilon(plan, policy.max_delta)
        if not one <= policy.max_epsilon_round:
            yield PolicyRefusal(
                "epsilon-in-round",
                f"one round may cost epsilon {one:.4g} at delta {policy.max_delta:g}, above max_epsilon_round "
                f"{policy.max_epsilon_round:g}",
            )


def round_epsilon(plan: Plan, delta: float) -> float:
    """The most that one round can cost: unamplified, at h_min, at the best of the orders that a ledger's row has.

    The best order is allowed because one round is fixed in advance.
    """
    one, draws = price(plan, plan.h_min), plan.clients * plan.padded_dim
    return min(epsilon(order, cost, delta, draws) for order, cost in ((one.order, one.cost), *one.curve))


def _company(policy: Policy, plan: Plan) -> Iterator[PolicyRefusal]:
    """Among how many an update is hidden, and what is assumed of them."""
    if policy.min_cohort is not None and plan.quorum < policy.min_cohort:
        yield PolicyRefusal(
            "cohort", f"a round may begin with {plan.quorum} participants, min_cohort asks for {policy.min_cohort}"
        )
    if policy.min_survivors is not None and plan.min_survivors < policy.min_survivors:
        yield PolicyRefusal(
            "survivors",
            f"a sum may hold {plan.min_survivors} participants only, min_survivors asks for {policy.min_survivors}",
        )
    if plan.h_min < policy.min_honest_survivors:
        yield PolicyRefusal(
            "honest-survivors",
            f"the study hides an update among {plan.h_min} honest participants at least, "
            f"min_honest_survivors asks for {policy.min_honest_survivors}",
        )
    if plan.colluders < policy.min_colluders:
        yield PolicyRefusal(
            "colluders",
            f"the study assumes {plan.colluders} of {plan.clients} participants to collude, "
            f"min_colluders asks for {policy.min_colluders}",
        )
    if policy.min_adversarial is not None and plan.adversarial < policy.min_adversarial:
        yield PolicyRefusal(
            "adversarial",
            f"the study assumes a share of {plan.adversarial:g} to be adversarial, min_adversarial asks for "
            f"{policy.min_adversarial:g}",
        )
    if policy.min_dropout is not None and plan.max_dropout < policy.min_dropout:
        yield PolicyRefusal(
            "dropout",
            f"the study reckons with a share of {plan.max_dropout:g} leaving a round, min_dropout asks for "
            f"{policy.min_dropout:g}",
        )


def _coding(policy: Policy, plan: Plan) -> Iterator[PolicyRefusal]:
    check_clips(policy, plan.clipping.clips)  # where they adapt, of the first round
    least, most = policy.min_bits or 1, policy.max_bits or 62
    if not least <= plan.bits <= most:
        yield PolicyRefusal("bits", f"a value has {plan.bits} bits, min_bits and max_bits allow {least} to {most}")
    if policy.max_dimension is not None and plan.dim > policy.max_dimension:
        yield PolicyRefusal(
            "dimension", f"an update has {plan.dim} values, max_dimension allows {policy.max_dimension}"
        )


def check_clips(policy: Policy, clips: Sequence[float]) -> None:
    """Hold a round's clips (one for each layer, L2 norms in data units) against the policy.

    Raises:
        PolicyRefusal: together they leave an update longer than is allowed.
    """
    norm = math.hypot(*clips)
    if policy.max_clip is not None and norm > policy.max_clip:
        raise PolicyRefusal("clip", f"updates are clipped to {norm:g}, max_clip allows {policy.max_clip:g}")


def check_guarantee(policy: Policy, plan: Plan, totals: Totals) -> None:
    """A total over all studies holds for one kind of guarantee; a study of another would be free beside it.

    Raises:
        PolicyRefusal: there is such a total, and the ledger holds charges of another kind.
    """
    if policy.max_epsilon_total is None:
        return
    coming = kind_of_guarantee(plan.adjacency, plan.mechanism)
    for study in totals.studies.values():
        first = study.first
        if kind_of_guarantee(first.adjacency, first.mechanism) != coming:
            raise PolicyRefusal(
                "another-guarantee",
                f"the mechanism {plan.mechanism!r} and the study {first.study!r} with {first.mechanism!r}, which this "
                "ledger holds, promise different things that can't be added up to a max_epsilon_total",
            )


def _check_total(policy: Policy, plan: Plan, totals: Totals, study_sha256: bytes) -> None:
    """A study that would have to be left before its plan is over isn't begun: its first rounds would be paid for it."""
    if policy.max_epsilon_total is None:
        return
    after = epsilon_after_plan(plan, totals, delta=policy.total_delta, study_sha256=study_sha256)
    if not after <= policy.max_epsilon_total:
        raise PolicyRefusal(
            "epsilon-in-total",
            f"the {plan.rounds} rounds of the study's plan would bring epsilon over all studies of this ledger to "
            f"{after:.3f} at delta {policy.total_delta:g}, above max_epsilon_total {policy.max_epsilon_total:g}",
        )


def check_roster(configuration: HostSettings, document: StudyDocument, roster: Roster) -> None:
    """Hold the roster against the plan and the policy.

    Raises:
        PolicyRefusal: one host runs more participants than are assumed to collude, though they fall together.
    """
    largest = roster.largest_host()
    if largest > document.plan.colluders and not configuration.policy.one_machine:
        raise PolicyRefusal(
            "one-machine",
            f"one host runs {largest} participants, but only {document.plan.colluders} are assumed to collude; "
            "policy.one_machine = true accepts that for a trial on one machine",
        )


def _listed(names: tuple[str, ...]) -> str:
    return " or ".join(repr(name) for name in names)


def check_round(
    policy: Policy,
    plan: Plan,
    totals: Totals,
    *,
    study_sha256: bytes,
    data_name: str,
    number: tuple[int, int],
    model_sha256: bytes,
) -> None:
    """Whether a participant may be charged for one more attempt, now.

    Args:
        totals: of the participants' ledger, over all studies.
        data_name: of what the participant trains on: what all identities over it spent is held against the limits.
        number: round and attempt.
        model_sha256: of the model that the round begins from.

    Raises:
        PolicyRefusal: the first condition that isn't met.
    """
    _check_model(policy, model_sha256)
    now = time.time()
    _check_hours(policy, now)
    _check_pace(policy, totals, (study_sha256.hex(), *number), now)
    check_budget(policy, plan, totals, study_sha256=study_sha256, data_name=data_name)


def _check_model(policy: Policy, model_sha256: bytes) -> None:
    if policy.model_digests is not None and model_sha256.hex() not in policy.model_digests:
        raise PolicyRefusal(
            "model-digest", f"the round begins from the model {model_sha256.hex()}, which model_digests doesn't hold"
        )


def _check_hours(policy: Policy, now: float) -> None:
    if policy.hours is None:
        return
    here = time.localtime(now)
    if not within(policy.hours, here.tm_hour * 60 + here.tm_min):
        raise PolicyRefusal(
            "hours", f"it is {here.tm_hour:02}:{here.tm_min:02} here, hours allows {', '.join(policy.hours)}"
        )


def _check_pace(policy: Policy, totals: Totals, attempt: tuple[str, int, int], now: float) -> None:
    most = policy.max_rounds_per_day
    if most is None:
        return
    charged = totals.pace.within_a_day(now, besides=attempt)
    if charged >= most:
        again = time.strftime("%Y-%m-%d %H:%M", time.localtime(totals.pace.free_again(now, most, besides=attempt)))
        raise PolicyRefusal(
            "rounds-per-day",
            f"{charged} attempts were charged within 24 hours, max_rounds_per_day allows {most}; the next from {again}",
        )


def check_budget(policy: Policy, plan: Plan, totals: Totals, *, study_sha256: bytes, data_name: str) -> None:
    """Whether a participant may be charged once more: in the study, by the study's plan, and over all studies.

    Raises:
        PolicyRefusal: with the coming charge, at h_min, a limit would be exceeded.
    """
    spent, coming = totals.spent(study_sha256, data_name), price(plan, plan.h_min)
    draws = plan.clients * plan.padded_dim
    after = epsilon(coming.order, spent.renyi + coming.cost, plan.delta, spent.all_draws + draws)
    if not after <= policy.max_epsilon:
        raise PolicyRefusal(
            "epsilon-in-study",
            f"one more round would bring epsilon to {after:.3f}, above max_epsilon {policy.max_epsilon:g}",
        )
    # The coordinator's filter stops there too; one that doesn't keep it gets no more than the plan promised.
    if not after <= plan.budget_coordinator:
        raise PolicyRefusal(
            "epsilon-in-plan",
            f"one more round would bring epsilon to {after:.3f}, above the study's budget {plan.budget_coordinator:g}",
        )
    if policy.max_epsilon_total is None:
        return
    check_guarantee(policy, plan, totals)
    total = epsilon_in_total(plan, totals, delta=policy.total_delta, study_sha256=study_sha256, data_name=data_name)
    if not total <= policy.max_epsilon_total:
        raise PolicyRefusal(
            "epsilon-in-total",
            f"one more round would bring epsilon over all studies of this ledger to {total:.3f} at delta "
            f"{policy.total_delta:g}, above max_epsilon_total {policy.max_epsilon_total:g}",
        )
