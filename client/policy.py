"""The participant's own conditions: checked before a study and before each round, whatever the coordinator says.

A refusal has a name that stays the same in all releases, and a sentence with what was found and what is allowed. Both
stay on this device: the coordinator sees no participant, or one code for all refusals but that of the study's budget,
which it knows. Nothing here looks at data, so a refusal can't depend on it. docs/policy.md lists the names with their
remedies.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from client.policy_total import epsilon_after_plan, epsilon_in_total, kind_of_guarantee
from client.settings import HostSettings, Policy, within
from learning.options import shown_value
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
    *("trusted-coordinator", "curious-coordinator", "mechanism", "key-agreement", "roster-validity"),
    *("epsilon-in-study", "delta", "epsilon-in-round", "epsilon-in-total", "another-guarantee"),
    *("cohort", "survivors", "honest-survivors", "colluders", "adversarial", "dropout", "one-machine"),
    *("clip", "bits", "dimension", "evaluation"),
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
        own_budget: this identity alone has spent the study's budget, by charges that the coordinator caused: it may
            hear that, and no other reason.
    """

    def __init__(self, reason: str, sentence: str, *, own_budget: bool = False) -> None:
        super().__init__(f"{reason}: {sentence}")
        self.reason, self.sentence, self.own_budget = reason, sentence, own_budget


def task_digest(task: str, options: Mapping[str, Any]) -> bytes:
    """SHA-256 of a task's name and options as canonical JSON: sorted names, no blanks, shortest form of floats.

    ``policy.task_digests`` lists it in hexadecimal digits.
    """
    canonical = json.dumps([task, dict(options)], sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(b"sordino/v1/task\x00" + canonical.encode()).digest()


def digests(document: StudyDocument, study_sha256: bytes) -> dict[str, str]:
    """The digests of a study that a policy may pin, by the names that are shown: 64 hexadecimal digits each."""
    return {"study_sha256": study_sha256.hex(), "task_sha256": task_digest(document.task, document.task_options).hex()}


def check_agreed(configuration: HostSettings, study_sha256: bytes) -> None:
    """Raise PolicyRefusal unless the study document is the agreed one, where host.toml names its digest."""
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
    """Check a study against the host's settings and policy, once, before any round.

    The document was checked from first principles (`StudyDocument.from_bytes`). ``totals`` are those of the
    participants' ledger, if there is one already. Raises PolicyRefusal for the first condition that isn't met.
    """
    check_agreed(configuration, study_sha256)
    joined = configuration.study
    if document.study != joined.name:
        raise PolicyRefusal("study-name", f"the study is {document.study!r}, this host joined {joined.name!r}")
    if document.task != joined.task:
        raise PolicyRefusal("task", f"the task is {document.task!r}, this host accepted {joined.task!r}")
    if dict(document.task_options) != dict(configuration.task):
        raise PolicyRefusal("task-options", _differing(document.task_options, configuration.task))
    check_terms(configuration.policy, document, study_sha256, totals)


def _differing(stated: Mapping[str, Any], accepted: Mapping[str, Any]) -> str:
    """The first task option in which two mappings differ."""
    name = next(one for one in sorted({*stated, *accepted}) if stated.get(one) != accepted.get(one))
    found, expected = (shown_value(one[name]) if name in one else "not stated" for one in (stated, accepted))
    return f"the task's option {shown_value(name)} is {found} in the study, {expected} in host.toml"


def check_terms(policy: Policy, document: StudyDocument, study_sha256: bytes, totals: Totals | None = None) -> None:
    """Check a study against a policy alone, for example before joining. Arguments and errors as `check_study`."""
    plan, found = document.plan, digests(document, study_sha256)
    _check_pinned("study-digest", policy, "study_digests", found["study_sha256"], "the study document is")
    for task in dict.fromkeys((document.task, trained_task(document.task, document.task_options))):
        if policy.tasks is not None and task not in policy.tasks:
            raise PolicyRefusal("task", f"the task is {task!r}, tasks allows {_listed(policy.tasks)}")
    words = "the task and its options have the digest"
    _check_pinned("task-digest", policy, "task_digests", found["task_sha256"], words)
    _check_mechanism(policy, plan)
    if policy.key_agreements is not None and plan.key_agreement not in policy.key_agreements:
        raise PolicyRefusal(
            "key-agreement",
            f"keys are agreed on by {plan.key_agreement}, key_agreements allows {_listed(policy.key_agreements)}",
        )
    valid, most_valid = document.roster_valid_s / 3600, policy.max_roster_valid_h
    if most_valid is not None and not 0 < valid <= most_valid:
        found_valid = f"for {valid:g} hours" if valid else "for ever"
        raise PolicyRefusal(
            "roster-validity",
            f"the coordinator could withhold a revocation {found_valid}, max_roster_valid_h allows {most_valid:g}",
        )
    _check_prices(policy, plan)
    _check_company(policy, plan)
    check_clips(policy, plan.clipping.clips)  # where they adapt, of the first round
    least, most = policy.min_bits or 1, policy.max_bits or 62
    if not least <= plan.bits <= most:
        raise PolicyRefusal("bits", f"a value has {plan.bits} bits, min_bits and max_bits allow {least} to {most}")
    if policy.max_dimension is not None and plan.dim > policy.max_dimension:
        raise PolicyRefusal(
            "dimension", f"an update has {plan.dim} values, max_dimension allows {policy.max_dimension}"
        )
    held_out, most_held_out = plan.evaluation.held_out, policy.max_held_out
    if most_held_out is not None and held_out > most_held_out:
        raise PolicyRefusal(
            "evaluation",
            f"participants evaluate the model on a share of {held_out:g} of their examples, max_held_out allows "
            f"{most_held_out:g}",
        )
    if totals is None or policy.max_epsilon_total is None:
        return
    check_guarantee(policy, plan, totals)
    # The whole plan must fit: otherwise the first rounds of a study that can't be finished would be paid for.
    after = epsilon_after_plan(plan, totals, delta=policy.total_delta, study_sha256=study_sha256)
    if not after <= policy.max_epsilon_total:
        raise PolicyRefusal(
            "epsilon-in-total",
            f"the {plan.participations} rounds of the study's plan would bring epsilon over all studies of this ledger "
            f"to {after:.3f} at delta {policy.total_delta:g}, above max_epsilon_total {policy.max_epsilon_total:g}",
        )


def _check_pinned(reason: str, policy: Policy, key: str, found: str, words: str) -> None:
    """Whether a list of digests in the policy, if there is one, holds ``found`` (hexadecimal digits)."""
    accepted = getattr(policy, key)
    if accepted is not None and found not in accepted:
        raise PolicyRefusal(reason, f"{words} {found}, which {key} doesn't hold")


def _check_mechanism(policy: Policy, plan: Plan) -> None:
    if plan.adversary == CURIOUS and not policy.curious_coordinator:
        raise PolicyRefusal(
            "curious-coordinator",
            "no participant would sign whose updates are in a sum: the coordinator is trusted to send the same sets to "
            "all; policy.curious_coordinator = true accepts that",
        )
    accepted = policy.accepted_mechanisms
    if not accepted and plan.mechanism == "gaussian":
        raise PolicyRefusal(
            "trusted-coordinator",
            "the coordinator would add the noise, and see the sum without it; "
            'policy.mechanisms = ["gaussian"] accepts that',
        )
    if accepted and plan.mechanism not in accepted:
        raise PolicyRefusal("mechanism", f"the mechanism is {plan.mechanism!r}, this host accepted {_listed(accepted)}")


def _check_prices(policy: Policy, plan: Plan) -> None:
    if plan.budget_coordinator > policy.max_epsilon:
        raise PolicyRefusal(
            "epsilon-in-study",
            f"the study's epsilon {plan.budget_coordinator:g} is above max_epsilon {policy.max_epsilon:g}",
        )
    if plan.delta > policy.max_delta:
        raise PolicyRefusal("delta", f"the study's delta {plan.delta:g} is above max_delta {policy.max_delta:g}")
    if policy.max_epsilon_round is None:
        return
    one = round_epsilon(plan, policy.max_delta)
    if not one <= policy.max_epsilon_round:
        raise PolicyRefusal(
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


def _check_company(policy: Policy, plan: Plan) -> None:
    """How many participants an update is hidden among, and what the study assumes of them."""

    def at_least(reason: str, key: str, found: float, words: str) -> None:
        least = getattr(policy, key)
        if least is not None and found < least:
            raise PolicyRefusal(reason, f"{words}, {key} asks for {least}")

    colluders = f"the study assumes {plan.colluders} of {plan.clients} participants to collude"
    adversarial = f"the study assumes a share of {plan.adversarial:g} to be adversarial"
    dropout = f"the study expects that a share of {plan.max_dropout:g} leaves a round"
    at_least("cohort", "min_cohort", plan.quorum, f"a round may begin with {plan.quorum} participants")
    at_least("survivors", "min_survivors", plan.min_survivors, f"a sum may hold only {plan.min_survivors} participants")
    at_least(
        "honest-survivors",
        "min_honest_survivors",
        plan.h_min,
        f"the study hides an update among at least {plan.h_min} honest participants",
    )
    at_least("colluders", "min_colluders", plan.colluders, colluders)
    at_least("adversarial", "min_adversarial", plan.adversarial, adversarial)
    at_least("dropout", "min_dropout", plan.max_dropout, dropout)


def check_clips(policy: Policy, clips: Sequence[float]) -> None:
    """Raise PolicyRefusal if a round's clips (one per layer, L2 norms in data units) allow too long an update."""
    norm = math.hypot(*clips)
    if policy.max_clip is not None and norm > policy.max_clip:
        raise PolicyRefusal("clip", f"updates are clipped to {norm:g}, max_clip allows {policy.max_clip:g}")


def check_guarantee(policy: Policy, plan: Plan, totals: Totals) -> None:
    """A total over all studies holds for one kind of guarantee only: a study of another kind would not count in it.

    Raises PolicyRefusal if the policy has such a total and the ledger holds charges of another kind.
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


def check_roster(configuration: HostSettings, document: StudyDocument, roster: Roster) -> None:
    """Raise PolicyRefusal if one host may control more participants than are assumed to collude."""
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
    identity: bytes,
    data_name: str,
    number: tuple[int, int],
    model_sha256: bytes,
) -> None:
    """Whether a participant may be charged for attempt ``number`` (round, attempt) now.

    Args:
        totals: of the participants' ledger, over all studies.
        data_name: of the participant's data; what all identities spent from it counts against the limits.
        model_sha256: of the model that the round begins with.

    Raises PolicyRefusal: the first condition that isn't met.
    """
    _check_pinned("model-digest", policy, "model_digests", model_sha256.hex(), "the round begins from the model")
    now = time.time()
    if policy.hours is not None:
        here = time.localtime(now)
        if not within(policy.hours, here.tm_hour * 60 + here.tm_min):
            raise PolicyRefusal(
                "hours", f"it is {here.tm_hour:02}:{here.tm_min:02} here, hours allows {', '.join(policy.hours)}"
            )
    attempt, most = (study_sha256.hex(), *number), policy.max_rounds_per_day
    if most is not None:
        charged = totals.pace.within_a_day(now, besides=attempt)
        if charged >= most:
            again = time.strftime("%Y-%m-%d %H:%M", time.localtime(totals.pace.free_again(now, most, besides=attempt)))
            raise PolicyRefusal(
                "rounds-per-day",
                f"{charged} attempts were charged within 24 hours, max_rounds_per_day allows {most}; the next from "
                f"{again}",
            )
    check_budget(policy, plan, totals, study_sha256=study_sha256, identity=identity, data_name=data_name)


def check_budget(
    policy: Policy, plan: Plan, totals: Totals, *, study_sha256: bytes, identity: bytes, data_name: str
) -> None:
    """Whether a participant may be charged once more: in the study, by the study's plan, and over all studies.

    Raises PolicyRefusal if the coming charge, at h_min, would exceed a limit.
    """
    spent, coming = totals.spent(study_sha256, data_name), price(plan, plan.h_min)
    draws = plan.clients * plan.padded_dim
    own = totals.spent_by(study_sha256, identity)
    after, own_after = (
        epsilon(coming.order, one.renyi + coming.cost, plan.delta, one.all_draws + draws) for one in (spent, own)
    )
    own_budget = not own_after <= plan.budget_coordinator
    if not after <= policy.max_epsilon:
        raise PolicyRefusal(
            "epsilon-in-study",
            f"one more round would bring epsilon to {after:.3f}, above max_epsilon {policy.max_epsilon:g}",
            own_budget=own_budget,
        )
    # The coordinator's filter stops there too; this check holds against a coordinator that ignores its filter.
    if not after <= plan.budget_coordinator:
        raise PolicyRefusal(
            "epsilon-in-plan",
            f"one more round would bring epsilon to {after:.3f}, above the study's budget {plan.budget_coordinator:g}",
            own_budget=own_budget,
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
