"""What a participant is shown before she joins a study: what it is, what is sent, and what is not."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from sordino.joined_home import DataChoice

if TYPE_CHECKING:
    from pathlib import Path

    from client.enrolment import Look
    from mechanisms.plan import Plan

_LABEL = 14


def _shares(plan: Plan) -> str:
    """With whom she shares her keys, and how many of them open one."""
    from wire.study import round_parameters

    sharing, others = round_parameters(plan).sharing(plan.clients), plan.clients - 1
    if sharing.degree == others:
        return f"of your keys go to all others; {sharing.threshold} of them open one, if all {plan.clients} take part"
    return (
        f"of your keys go to {sharing.degree} of {others} others, your neighbours on a ring that nobody chooses; "
        f"{sharing.threshold} of them open one, if all {plan.clients} take part"
    )


def _may_do(plan: Plan) -> str:
    from secagg.sharing import CURIOUS

    if plan.adversary == CURIOUS:
        return (
            "TRUSTED to tell everybody the same (curious): nobody signs whose updates are in a sum, so one that lies "
            "could open sums of fewer. If your update misses a sum you stay charged for it; there are no transcripts"
        )
    return "may lie (malicious): participants sign whose updates are in a sum, and hold that against it before it opens"


def describe_study(
    look: Look,
    *,
    fingerprint: str,
    home: Path,
    host: str,
    host_chosen: bool,
    data: DataChoice,
    part_chosen: bool,
    ledger: Path | None,
    width: int,
) -> list[str]:
    """Lines for the terminal.

    Args:
        fingerprint: of the authority, as it is shown.
        host: the name that this process will ask for.
        host_chosen, part_chosen: by her, and not for her.
        ledger: of earlier studies over this data, where she named one.
    """
    from sordino.guarantee import condition
    from wire.trust import trust_of

    plan, document = look.document.plan, look.document
    cohort = f"all participants, at most {plan.clients}"
    if plan.sampling != "none":
        cohort = f"{plan.clients} of {plan.population} or more, drawn by the authority's lottery"
    holds = condition(plan.mechanism, plan.colluders, f"of {plan.clients}", adversary=plan.adversary)
    lines = [f"The study {document.study}", ""]

    def line(label: str, text: str) -> None:
        indent = " " * (_LABEL + 2)
        lines.extend(
            textwrap.wrap(text, max(width, 40), initial_indent=f"  {label:<{_LABEL}}", subsequent_indent=indent)
        )

    line("authority", f"{fingerprint} (signs who takes part; compare it with what you were told)")
    line("address", look.card.address)
    line("task", f"{document.task}, {plan.dim} values in an update, clipped to norm {plan.clip:g}")
    line("rounds", f"{plan.rounds}, each with {cohort}; none with fewer than {plan.quorum}")
    line("sums", f"a sum holds {plan.min_survivors} participants or more, {plan.h_min} of them honest")
    line("shares", _shares(plan))
    line("coordinator", _may_do(plan))
    line("mechanism", f"{plan.mechanism}; trusts {trust_of(plan.mechanism, plan.adversary).words}")
    line(
        "privacy",
        f"epsilon {plan.budget_coordinator:g} at delta {plan.delta:g} over all rounds "
        f"({plan.adjacency.partition(':')[0]}), {holds}: a share of {plan.adversarial:g} is assumed adversarial",
    )
    if ledger is None:
        ledger_line = (
            "a new one, in that folder. If this data was in a study before, or in this one under another identity, "
            "name its ledger with --ledger and its part with --part: what was spent counts on"
        )
    else:
        ledger_line = f"{ledger}: what it says was spent from this data counts on"
    drawn = "" if part_chosen else "; the part was drawn at random, and is set with --part"
    part = f"part {data.part + 1} of {data.parts} of {data.dataset} ({data.partition}), on this machine{drawn}"
    line("your data", part)
    line("your folder", str(home))
    line("your ledger", ledger_line)
    when = "in each round"
    if plan.sampling != "none":
        when = "in each round for which you are drawn (the coordinator knows in advance for which)"
    lines.append("")
    lines.append("What will be sent")
    for text in (
        f"now: a request with the public key of a new identity, one for TLS, and the name {host} for this process "
        f"(the authority may list you under another name{'' if host_chosen else '; --name asks for one'})",
        f"{when}: a vector of integers, masked so that only the sum of all opens, with noise added here; and "
        "keys, shares and signatures of the protocol",
        "by being connected: when, and from which address; that your identity takes part is on the roster, which all "
        "participants and the coordinator read",
    ):
        lines.extend(textwrap.wrap(text, max(width, 40), initial_indent="  - ", subsequent_indent="    "))
    lines.append("")
    lines.append("What never leaves this machine")
    lines.extend(
        textwrap.wrap(
            "examples, gradients, updates in the clear, losses, numbers of examples, private keys, your policy",
            max(width, 40),
            initial_indent="  - ",
            subsequent_indent="    ",
        )
    )
    return lines
