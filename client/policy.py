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

from client.settings import HostSettings, Policy, within
from learning.options import shown_value
from learning.task_names import trained_task
from mechanisms.plan import Plan
from secagg.roster import Roster
from secagg.sharing import CURIOUS
from wire.records.ledger_rows import LedgerEntry, epsilon, price
from wire.records.ledger_totals import Together, Totals, renyi_at
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
        _check_listed("task", policy, "tasks", task, f"the task is {task!r}")
    words = "the task and its options have the digest"
    _check_pinned("task-digest", policy, "task_digests", found["task_sha256"], words)
    _check_mechanism(policy, plan)
    agreement = plan.key_agreement
    _check_listed("key-agreement", policy, "key_agreements", agreement, f"keys are agreed on by {agreement}")
    valid = document.roster_valid_s / 3600
    withheld = f"the coordinator could withhold a revocation {f'for {valid:g} hours' if valid else 'for ever'}"
    _check_most("roster-validity", policy, "max_roster_valid_h", valid or math.inf, withheld)
    _check_prices(policy, plan)
    _check_company(policy, plan)
    check_clips(policy, plan.clipping.clips)  # where they adapt, of the first round
    _check_least("bits", policy, "min_bits", plan.bits, f"a value has {plan.bits} bits")
    _check_most("bits", policy, "max_bits", plan.bits, f"a value has {plan.bits} bits")
    _check_most("dimension", policy, "max_dimension", plan.dim, f"an update has {plan.dim} values")
    held_out = plan.evaluation.held_out
    evaluated = f"participants evaluate the model on a share of {held_out:g} of their examples"
    _check_most("evaluation", policy, "max_held_out", held_out, evaluated)
    if totals is None or policy.max_epsilon_total is None:
        return
    check_guarantee(policy, plan, totals)
    # The whole plan must fit: otherwise the first rounds of a study that can't be finished would be paid for.
    after = epsilon_after_plan(plan, totals, delta=policy.total_delta, study_sha256=study_sha256)
    would = f"the {plan.participations} rounds of the study's plan would bring epsilon over all studies of this ledger"
    _check_total(policy, after, would)


def _check_pinned(reason: str, policy: Policy, key: str, found: str, words: str) -> None:
    """Whether a list of digests in the policy, if there is one, holds ``found`` (hexadecimal digits)."""
    accepted = getattr(policy, key)
    if accepted is not None and found not in accepted:
        raise PolicyRefusal(reason, f"{words} {found}, which {key} doesn't hold")


def _check_listed(reason: str, policy: Policy, key: str, found: str, words: str) -> None:
    """Whether a list of names in the policy, if there is one, holds ``found``."""
    accepted = getattr(policy, key)
    if accepted is not None and found not in accepted:
        raise PolicyRefusal(reason, f"{words}, {key} allows {_listed(accepted)}")


def _check_least(reason: str, policy: Policy, key: str, found: float, words: str) -> None:
    least = getattr(policy, key)
    if least is not None and not found >= least:
        raise PolicyRefusal(reason, f"{words}, {key} asks for {least:.10g}")


def _check_most(reason: str, policy: Policy, key: str, found: float, words: str, *, own_budget: bool = False) -> None:
    most = getattr(policy, key)
    if most is not None and not found <= most:
        raise PolicyRefusal(reason, f"{words}, {key} allows {most:.10g}", own_budget=own_budget)


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
    budget = plan.budget_coordinator
    _check_most("epsilon-in-study", policy, "max_epsilon", budget, f"the study's epsilon is {budget:g}")
    _check_most("delta", policy, "max_delta", plan.delta, f"the study's delta is {plan.delta:g}")
    if policy.max_epsilon_round is not None:
        one = round_epsilon(plan, policy.max_delta)
        words = f"one round may cost epsilon {one:.4g} at delta {policy.max_delta:g}"
        _check_most("epsilon-in-round", policy, "max_epsilon_round", one, words)


def _check_total(policy: Policy, total: float, would: str) -> None:
    words = f"{would} to {total:.3f} at delta {policy.total_delta:g}"
    _check_most("epsilon-in-total", policy, "max_epsilon_total", total, words)


def round_epsilon(plan: Plan, delta: float) -> float:
    """The most that one round can cost: unamplified, at h_min, at the best of the orders that a ledger's row has.

    The best order is allowed because one round is fixed in advance.
    """
    one, draws = price(plan, plan.h_min), plan.clients * plan.padded_dim
    return min(epsilon(order, cost, delta, draws) for order, cost in ((one.order, one.cost), *one.curve))


def _check_company(policy: Policy, plan: Plan) -> None:
    """How many participants an update is hidden among, and what the study assumes of them."""
    begins = f"a round may begin with {plan.quorum} participants"
    _check_least("cohort", policy, "min_cohort", plan.quorum, begins)
    survive = f"a sum may hold only {plan.min_survivors} participants"
    _check_least("survivors", policy, "min_survivors", plan.min_survivors, survive)
    hidden = f"the study hides an update among at least {plan.h_min} honest participants"
    _check_least("honest-survivors", policy, "min_honest_survivors", plan.h_min, hidden)
    collude = f"the study assumes {plan.colluders} of {plan.clients} participants to collude"
    _check_least("colluders", policy, "min_colluders", plan.colluders, collude)
    adversarial = f"the study assumes a share of {plan.adversarial:g} to be adversarial"
    _check_least("adversarial", policy, "min_adversarial", plan.adversarial, adversarial)
    leave = f"the study expects that a share of {plan.max_dropout:g} leaves a round"
    _check_least("dropout", policy, "min_dropout", plan.max_dropout, leave)


def check_clips(policy: Policy, clips: Sequence[float]) -> None:
    """Raise PolicyRefusal if a round's clips (one per layer, L2 norms in data units) allow too long an update."""
    norm = math.hypot(*clips)
    _check_most("clip", policy, "max_clip", norm, f"updates are clipped to {norm:g}")


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


def check_round(policy: Policy, plan: Plan, totals: Totals, charge: LedgerEntry, model_sha256: bytes) -> None:
    """Whether a participant may be charged for an attempt now.

    Args:
        totals: of the participants' ledger, over all studies.
        charge: the row to come, at h_min; what all identities spent from its data counts against the limits.
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
    attempt, most = (charge.study_sha256, charge.round, charge.attempt), policy.max_rounds_per_day
    if most is not None:
        charged = totals.pace.within_a_day(now, besides=attempt)
        if charged >= most:
            again = time.strftime("%Y-%m-%d %H:%M", time.localtime(totals.pace.free_again(now, most, besides=attempt)))
            raise PolicyRefusal(
                "rounds-per-day",
                f"{charged} attempts were charged within 24 hours, max_rounds_per_day allows {most}; the next from "
                f"{again}",
            )
    check_budget(policy, plan, totals, charge)


def check_budget(policy: Policy, plan: Plan, totals: Totals, charge: LedgerEntry) -> None:
    """Whether a participant may be charged once more: in the study, by the study's plan, and over all studies.

    Raises PolicyRefusal if the coming charge, at h_min, would exceed a limit.
    """
    study_sha256, identity = bytes.fromhex(charge.study_sha256), bytes.fromhex(charge.identity or "")
    spent, own = totals.spent(study_sha256, charge.data), totals.spent_by(study_sha256, identity)
    after, own_after = (
        epsilon(charge.order, one.renyi + charge.cost, plan.delta, one.all_draws + charge.draws) for one in (spent, own)
    )
    own_budget = not own_after <= plan.budget_coordinator
    would = f"one more round would bring epsilon to {after:.3f}"
    _check_most("epsilon-in-study", policy, "max_epsilon", after, would, own_budget=own_budget)
    # The coordinator's filter stops there too; this check holds against a coordinator that ignores its filter.
    if not after <= plan.budget_coordinator:
        raise PolicyRefusal(
            "epsilon-in-plan", f"{would}, above the study's budget {plan.budget_coordinator:g}", own_budget=own_budget
        )
    if policy.max_epsilon_total is None:
        return
    check_guarantee(policy, plan, totals)
    total = epsilon_in_total(plan, totals, charge, delta=policy.total_delta)
    _check_total(policy, total, "one more round would bring epsilon over all studies of this ledger")


# ------------------------------------------------------------ epsilon over all studies


# Of each study, the data with the highest cost over all its identities counts, as in `Totals.across_studies`: an upper
# bound for every data set of the ledger. One order is used, that of the filter of the ledger's first study, so this is
# a Renyi filter; for a single study the figure is the study's own.


def kind_of_guarantee(adjacency: str, mechanism: str) -> tuple[str, bool]:
    """(adjacency, whether the coordinator must be trusted): only costs of equal kinds may be added."""
    return adjacency, mechanism == "gaussian"


def epsilon_in_total(plan: Plan, totals: Totals, charge: LedgerEntry, *, delta: float) -> float:
    """epsilon of all charges of the plan's kind of guarantee in this ledger, after one more, at h_min.

    Infinite if a row has no bound at the order or above.
    """
    together, order = _together(plan, totals)
    mine, draws = _coming(plan, order, 1)
    spent = totals.spent(bytes.fromhex(charge.study_sha256), charge.data)
    if spent.charges:
        mine += totals.studies[charge.study_sha256].cost_at(spent, order)
        draws += spent.all_draws
    return _composed(together, order, charge.study_sha256, mine, draws, delta)


def epsilon_after_plan(plan: Plan, totals: Totals, *, delta: float, study_sha256: bytes) -> float:
    """`epsilon_in_total` after all rounds of the coming study's plan that may hold one participant, each at h_min.

    Charges of that study that the ledger holds are part of its plan: only what exceeds the plan counts in addition.
    """
    together, order = _together(plan, totals)
    return _composed(together, order, study_sha256.hex(), *_coming(plan, order, plan.participations), delta)


def _together(plan: Plan, totals: Totals) -> tuple[Together | None, float]:
    """The ledger's charges of the plan's kind of guarantee, and the order at which they are added."""
    kind = kind_of_guarantee(plan.adjacency, plan.mechanism)
    found = next((one for one in totals.across_studies() if (one.adjacency, one.coordinator_trusted) == kind), None)
    return found, float(plan.order) if found is None else found.order


def _coming(plan: Plan, order: float, sums: int) -> tuple[float, int]:
    """Renyi cost at an order, and noise coordinates, of ``sums`` sums at h_min."""
    one = price(plan, plan.h_min)
    cost = one.cost if order == one.order else renyi_at(dict(one.curve), order)
    return sums * cost, sums * plan.clients * plan.padded_dim


def _composed(
    together: Together | None, order: float, study_sha256: str, mine: float, draws: int, delta: float
) -> float:
    """With ``mine`` for the coming study, or the cost of another participant's data in it if that is higher."""
    others, other_draws = 0.0, 0
    for study in () if together is None else together.studies:
        most = max((one.all_draws for one in study.by_data()), default=0)
        if study.first.study_sha256 == study_sha256:
            mine, draws = max(mine, study.renyi_at(order)), max(draws, most)
        else:
            others, other_draws = others + study.renyi_at(order), other_draws + most
    return epsilon(order, others + mine, delta, other_draws + draws)
