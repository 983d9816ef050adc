"""What a participant insists on, whatever the coordinator says."""

from __future__ import annotations

from client.settings import HostSettings
from secagg.roster import Roster
from wire.study import StudyDocument


class PolicyRefusal(Exception):
    """The study or a round breaks what the participant accepted; one sentence that says how."""


def check_study(configuration: HostSettings, document: StudyDocument) -> None:
    """Hold a study against the host's policy, once, before any round.

    The document has been checked from first principles already (`StudyDocument.from_bytes`); here it is compared with
    what this participant agreed to.

    Raises:
        PolicyRefusal: the first condition that isn't met.
    """
    policy, plan = configuration.policy, document.plan
    if document.study != configuration.study.name:
        raise PolicyRefusal(f"the study is {document.study!r}, this host joined {configuration.study.name!r}")
    if document.task != configuration.study.task:
        raise PolicyRefusal(f"the task is {document.task!r}, this host accepted {configuration.study.task!r}")
    if dict(document.task_options) != dict(configuration.task):
        raise PolicyRefusal("the options of the task differ from those in host.toml")
    if policy.mechanism is None and plan.mechanism == "gaussian":
        raise PolicyRefusal(
            "the coordinator would add the noise, and see the sum without it; "
            'policy.mechanism = "gaussian" accepts that'
        )
    if policy.mechanism not in (None, plan.mechanism):
        raise PolicyRefusal(f"the mechanism is {plan.mechanism!r}, this host accepted {policy.mechanism!r}")
    if plan.budget_coordinator > policy.max_epsilon:
        raise PolicyRefusal(
            f"the study's epsilon {plan.budget_coordinator:g} is above max_epsilon {policy.max_epsilon:g}"
        )
    if plan.delta > policy.max_delta:
        raise PolicyRefusal(f"the study's delta {plan.delta:g} is above max_delta {policy.max_delta:g}")
    if plan.colluders < policy.min_colluders:
        raise PolicyRefusal(
            f"the study assumes {plan.colluders} of {plan.clients} participants to collude, "
            f"min_colluders asks for {policy.min_colluders}"
        )
    if plan.h_min < policy.min_honest_survivors:
        raise PolicyRefusal(
            f"the study hides an update among {plan.h_min} honest participants at least, "
            f"min_honest_survivors asks for {policy.min_honest_survivors}"
        )


def check_roster(configuration: HostSettings, document: StudyDocument, roster: Roster) -> None:
    """Hold the roster against the plan and the policy.

    Raises:
        PolicyRefusal: one host runs more participants than are assumed to collude, though they fall together.
    """
    largest = roster.largest_host()
    if largest > document.plan.colluders and not configuration.policy.one_machine:
        raise PolicyRefusal(
            f"one host runs {largest} participants, but only {document.plan.colluders} are assumed to collude; "
            "policy.one_machine = true accepts that for a trial on one machine"
        )


def check_budget(configuration: HostSettings, document: StudyDocument, epsilon_after: float) -> None:
    """Whether the participant may be charged once more.

    Raises:
        PolicyRefusal: the charge would exceed what it agreed to spend.
    """
    if epsilon_after > configuration.policy.max_epsilon:
        raise PolicyRefusal(
            f"one more round would bring epsilon to {epsilon_after:.3f}, above max_epsilon "
            f"{configuration.policy.max_epsilon:g}"
        )
    # The coordinator's filter stops there too; one that doesn't keep it gets no more than the plan promised.
    if epsilon_after > document.plan.budget_coordinator:
        raise PolicyRefusal(
            f"one more round would bring epsilon to {epsilon_after:.3f}, above the study's budget "
            f"{document.plan.budget_coordinator:g}"
        )
