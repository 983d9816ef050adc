"""What a participant is shown before she joins a study: what it is, what is sent, and what is not."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from client.joining.folder import DataChoice
from runtime.text import counted

if TYPE_CHECKING:
    from pathlib import Path

    from client.enrolment import Look
    from learning.datasets import Dataset
    from mechanisms.plan import Plan
    from wire.study import StudyDocument

_LABEL = 14
_LONGEST = 80
_COLUMNS, _LABELS = 12, 6  # that are named


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


def _task(document: StudyDocument, plan: Plan) -> list[str]:
    """What is computed from her data: for a statistic also what is asked, since that is what will be known."""
    from learning.make_task import make_task
    from learning.task_names import STATISTICS, VOTES, trained_task

    if document.task in STATISTICS:
        # As the task reads it: what the coordinator wrote may look like something else, and may leave defaults out.
        options = make_task(document.task, dict(document.task_options)).options.asked()
        asked = "; ".join(f"{name} {value}" for name, value in options.items())
        return [
            f"{document.task}, no training: {counted(plan.dim, 'value')} from you, of norm {plan.clip:g} at most",
            f"asked for: {asked}",
        ]
    if document.task == VOTES:
        from learning.tasks.votes import VoteOptions

        queries = _printable(document.task_options.get("queries", VoteOptions.queries))
        trained = _printable(trained_task(document.task, document.task_options))
        return [
            f"votes of {trained}: your model stays here; its votes on {queries} public examples "
            f"a round are sent, {counted(plan.dim, 'value')} of norm {plan.clip:g} at most"
        ]
    return [f"{document.task}, {counted(plan.dim, 'value')} in an update, clipped to norm {plan.clip:g}"]


def _own(document: StudyDocument) -> str:
    return "on data that each participant brings herself" if document.own_data else ""


def _asked_for(document: StudyDocument) -> str:
    """What examples of a study that trains look like: to be held beside her own."""
    from learning.make_task import options_of
    from learning.task_names import STATISTICS, TASKS, trained_task

    if trained_task(document.task, document.task_options) not in TASKS or document.task in STATISTICS:
        return ""
    options = options_of(document.task, dict(document.task_options))
    shape, classes = options.example_shape, getattr(options, "classes", None)
    if shape is None:
        return ""
    told = counted(shape[0], "number") if len(shape) == 1 else f"numbers in the shape {' x '.join(map(str, shape))}"
    labels = f", and a label from 0 to {classes - 1}" if isinstance(classes, int) and classes > 0 else ""
    return f"it takes examples of {told}{labels}"


def form_told(held: Dataset) -> str:
    """``40 rows: age, weight, puls; label 0/1``: her file as she would tell a mistake by; shown to her alone."""
    import numpy as np

    from learning.datasets import NO_LABEL

    shape = held.features.shape[1:]
    told = f"{counted(len(held), 'row')}: "
    if held.columns:
        shown = ", ".join(held.columns[:_COLUMNS])
        told += shown + (f" and {len(held.columns) - _COLUMNS} more" if len(held.columns) > _COLUMNS else "")
    else:
        told += f"{shape[0]} numbers each" if len(shape) == 1 else f"shape {shape}"
    if not held.labelled:
        return f"{told}; no column is called label"
    known = np.unique(held.labels[held.labels != NO_LABEL])
    few = "/".join(str(one) for one in known) if len(known) <= _LABELS else f"{known[0]} to {known[-1]}"
    return f"{told}; label {few or 'without a value'}"


def _printable(value: object) -> str:
    """A coordinator's word on a terminal: no control characters, not for ever, and what is missing is said."""
    from runtime.text import printable

    text = printable(str(value)).replace("\n", "?")
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text) - _LONGEST} more characters)"


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
    held: Dataset | None = None,
    width: int,
) -> list[str]:
    """Lines for the terminal.

    Args:
        fingerprint: of the authority, as it is shown.
        host: the name that this process will ask for.
        host_chosen, part_chosen: by her, and not for her.
        ledger: of earlier studies over this data, where she named one.
        held: her own file's examples: what they look like stands beside what the study asks for, for her alone.

    Raises:
        learning.options.OptionError: the study's statistic can't be; `client.joining.joining` has refused it by then.
    """
    from wire.guarantee import condition, trust_of

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
    for text in _task(document, plan):
        line("task" if text.startswith(document.task) else "", text)
    for text in (_asked_for(document), _own(document)):
        if text:
            line("", text)
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
    part = f"of {data.parts} of {data.dataset} ({data.partition}), on this machine{drawn}"
    part = f"one {part}, by your place on the roster" if data.part is None else f"part {data.part + 1} {part}"
    if data.file is not None:
        part = f"all of {data.file}, on this machine"
    line("your data", part)
    if held is not None:
        line("", form_told(held))
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
