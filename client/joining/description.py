"""The description of a study before joining: its terms, what is sent, and what is not; and how terms have changed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from client.enrolment import Look
from client.joining.folder import DataChoice
from client.joining.options import JoinOptions
from learning.datasets import NO_LABEL, Dataset
from learning.make_task import make_task, options_of
from learning.task_names import REGRESSION, STATISTICS, TASKS, VOTES, trained_task
from learning.tasks.votes import VoteOptions
from mechanisms.plan import Plan
from runtime.text import counted, dotted, folded, printable, several
from secagg.sharing import CURIOUS
from wire.guarantee import KEYS, condition, evaluated, noise_adds_up, offers_leave, outweighs, trust_of
from wire.join_code import fingerprint, show_fingerprint
from wire.records.ledger import is_begun
from wire.study import StudyDocument, round_parameters

_LABEL = 14
_LONGEST = 80
_COLUMNS, _LABELS = 12, 6  # that are named


def describe_study(
    seen: Look, options: JoinOptions, *, home: Path, host: str, data: DataChoice, held: Dataset | None, width: int
) -> list[str]:
    """Lines for the terminal. Raises `learning.options.OptionError` for an impossible statistic (`check_task`).

    Args:
        host: the name that this process will request.
        held: examples of the participant's own file: their form is shown beside the required one.
    """
    document, ledger = seen.document, options.ledger
    authority = show_fingerprint(fingerprint(seen.card.authority_public))
    shown_ledger = f"{ledger}: what it says was spent from this data counts on"
    if ledger is not None and not is_begun(ledger):
        shown_ledger = f"{ledger}: A NEW ONE, since there is no such file. Nothing that was spent before counts"
    if ledger is None:
        shown_ledger = (
            "a new one, in that folder. If this data was in a study before, or in this one under another identity, "
            "name its ledger with --ledger and its part with --part: what was spent counts on"
        )
    rows = [
        ("authority", f"{authority} (signs who takes part; compare it with the one that you were given)"),
        ("address", seen.card.address),
        *terms_of(document),
        ("your data", _data(data, part_chosen=options.part is not None)),
        *([] if held is None else [("", form_shown(held))]),
        ("your folder", str(home)),
        ("your ledger", shown_ledger),
    ]
    when = "in each round"
    if document.plan.sampling != "none":
        when = "in each round for which you are drawn (the coordinator knows in advance for which)"
    lines = [f"The study {document.study}", "", *listed(rows, width), "", "What will be sent"]
    for text in (
        f"now: a request with the public key of a new identity, one for TLS, and the name {host} for this process "
        f"(the authority may list you under another name{'' if options.name else '; --name asks for one'})",
        f"{when}: a vector of integers, masked so that only the sum of all opens, with noise added here; and "
        "keys, shares and signatures of the protocol",
        "by being connected: when, and from which address; that your identity takes part is on the roster, which all "
        "participants and the coordinator read",
    ):
        lines += _wrapped(text, width, "  - ")
    figures = "losses, numbers of examples"
    if document.plan.evaluation:  # they are coordinates of what is masked
        figures = "losses, accuracies and numbers of examples in the clear"
    never = f"examples, gradients, updates in the clear, {figures}, private keys, your policy"
    return [*lines, "", "What never leaves this machine", *_wrapped(never, width, "  - ")]


def _noise(document: StudyDocument) -> list[tuple[str, str]]:
    """How much noise a model learns under; a statistic's errors are stated with the task."""
    norm, rounds = document.plan.noise_norm, document.plan.rounds
    if document.task in (*STATISTICS, VOTES):
        return []
    hardly = ". The noise outweighs the updates, and little can be learnt" if outweighs(norm, rounds) else ""
    return [("noise", f"{norm:.3g} clips in the mean: {noise_adds_up(norm, rounds)}{hardly}")]


def terms_of(document: StudyDocument) -> list[tuple[str, str]]:
    """The terms of a study in words, each under its label; an empty label goes on with the one before.

    Raises `learning.options.OptionError` for an impossible statistic.
    """
    plan = document.plan
    cohort = f"all participants, at most {plan.clients}"
    if plan.sampling != "none":
        cohort = f"{plan.clients} of {plan.population} or more, drawn by the authority's seeds"
    if plan.participations < plan.rounds:
        cohort += f", and each participant in {plan.participations} rounds at most"
    holds = condition(plan.mechanism, plan.colluders, f"of {plan.clients}", adversary=plan.adversary)
    noticed = "never noticed if the coordinator withholds it"
    if document.roster_valid_s:
        noticed = f"noticed within {document.roster_valid_s / 3600:g} hours, even if the coordinator withholds it"
    return [
        *zip(("task", "", "", ""), [*_task(document, plan), *_form_asked(document)], strict=False),
        ("rounds", f"{plan.rounds}, each with {cohort}; none with fewer than {plan.quorum}"),
        ("sums", f"a sum holds {plan.min_survivors} participants or more, {plan.h_min} of them honest"),
        ("shares", _shares(plan)),
        ("keys", KEYS[plan.key_agreement]),
        ("offers", offers_leave(plan.offer_offset_s)),
        *([("evaluation", evaluated(plan.evaluation, document.task))] if plan.evaluation else []),
        ("coordinator", _may_do(plan)),
        ("revocation", noticed),
        *_noise(document),
        ("mechanism", f"{plan.mechanism}; trusts {trust_of(plan.mechanism, plan.adversary).words}"),
        (
            "privacy",
            f"epsilon {plan.budget_coordinator:g} at delta {plan.delta:g} over all rounds "
            f"({plan.adjacency.partition(':')[0]}), {holds}: a share of {plan.adversarial:g} is assumed adversarial",
        ),
    ]


def changed_terms(before: StudyDocument, after: StudyDocument) -> list[tuple[str, str]]:
    """What differs: in words where the terms have words for it, and each field; empty if nothing does. Raises as
    `terms_of`.
    """
    old, new = (_paragraphs(terms_of(one)) for one in (before, after))
    rows = [(label, f"{text}; before: {old.get(label)}") for label, text in new.items() if old.get(label) != text]
    fields, others = _fields(before), _fields(after)
    changed = [name for name in sorted(fields.keys() | others.keys()) if fields.get(name) != others.get(name)]
    values = [f"{_printable(name)}: {_value(fields, name)} -> {_value(others, name)}" for name in changed]
    return [*rows, *zip(("all fields", *len(values) * [""]), values, strict=False)]


def _paragraphs(rows: Sequence[tuple[str, str]]) -> dict[str, str]:
    """By label, with the rows that go on with it."""
    texts: dict[str, str] = {}
    for label, text in rows:
        last = label or next(reversed(texts))
        texts[last] = f"{texts[last]}; {text}" if last in texts else text
    return texts


def _fields(document: StudyDocument) -> dict[str, Any]:
    """Every leaf of a study document, under its path without the table of the plan."""
    return {name.removeprefix("plan."): value for name, value in dotted(json.loads(document.to_bytes())).items()}


def _value(fields: dict[str, Any], name: str) -> str:
    return _printable(json.dumps(fields[name])) if name in fields else "not set"


def listed(rows: Sequence[tuple[str, str]], width: int) -> list[str]:
    return [line for label, text in rows for line in _wrapped(text, width, f"  {label:<{_LABEL}}")]


def _wrapped(text: str, width: int, label: str) -> list[str]:
    return folded(text, max(width, 40), label, " " * len(label))


def _shares(plan: Plan) -> str:
    """The number of participants that get shares of the keys, and of the shares that open one."""
    sharing, others = round_parameters(plan).sharing(plan.clients), plan.clients - 1
    to = "all others"
    if sharing.degree != others:
        to = f"{sharing.degree} of {others} others, your neighbours on a ring that nobody chooses"
    return f"of your keys go to {to}; {sharing.threshold} of them open one, if all {plan.clients} take part"


def _task(document: StudyDocument, plan: Plan) -> list[str]:
    """What is computed from the data; for a statistic also its question, since its answer will be public."""
    name, options, values = document.task, dict(document.task_options), counted(plan.dim, "value")
    if name in STATISTICS:
        # As the task reads it: the coordinator's text may look different, and may omit defaults.
        statistic: Any = make_task(name, options)
        asked = "; ".join(f"{key} {value}" for key, value in statistic.options.asked().items())
        return [f"{name}, no training: {values} from you, of norm {plan.clip:g} at most", f"asked for: {asked}"]
    if name == VOTES:
        queries = _printable(options.get("queries", VoteOptions.queries))
        return [
            f"votes of {_printable(trained_task(name, options))}: your model stays here; its votes on {queries} public "
            f"examples a round are sent, {values} of norm {plan.clip:g} at most"
        ]
    found = [f"{name}, {values} in an update, clipped to norm {plan.clip:g}"]
    if trained_task(name, options) not in TASKS and options:  # what code of somebody's is told to do
        told = "; ".join(f"{_printable(key)} {_printable(value)}" for key, value in sorted(options.items()))
        found.append(f"with the options {told}")
    return found


def _form_asked(document: StudyDocument) -> list[str]:
    """The form of the examples of a study that trains, and whether participants bring their own."""
    own, options = ["each participant brings its own data"] if document.own_data else [], dict(document.task_options)
    if trained_task(document.task, options) not in TASKS or document.task in STATISTICS:
        return own
    checked: Any = options_of(document.task, options)
    shape, classes = checked.example_shape, getattr(checked, "classes", None)
    if shape is None:
        return own
    form = counted(shape[0], "number") if len(shape) == 1 else f"numbers in the shape {' x '.join(map(str, shape))}"
    labels = f", and a label from 0 to {classes - 1}" if isinstance(classes, int) and classes > 0 else ""
    if document.task == REGRESSION:
        labels = f", and a number to predict from {checked.low:g} to {checked.high:g}"
    return [f"it takes examples of {form}{labels}", *own]


def _may_do(plan: Plan) -> str:
    if plan.adversary == CURIOUS:
        return (
            "TRUSTED to send all participants the same (curious): survivor sets are not signed, so one that lies "
            "could open sums of fewer. If your update misses a sum you stay charged for it; there are no transcripts"
        )
    return "may lie (malicious): participants sign whose updates are in a sum, and check the signatures before it opens"


def _data(data: DataChoice, *, part_chosen: bool) -> str:
    if data.file is not None:
        return f"all of {data.file}, on this machine"
    drawn = "" if part_chosen else "; the part was drawn at random, and is set with --part"
    of = f"{data.dataset} ({data.partition})"
    if data.identity is not None:
        of = f"what the app loads, known as {data.identity!r} to the ledger"
    part = f"of {data.parts} of {of}, on this machine{drawn}"
    return f"one {part}, by your place on the roster" if data.part is None else f"part {data.part + 1} {part}"


def form_shown(held: Dataset) -> str:
    """``40 rows: age, weight, puls; label 0/1``: the form of an own file, so that its owner can notice a mistake."""
    shape = held.features.shape[1:]
    form = f"{shape[0]} numbers each" if len(shape) == 1 else f"shape {shape}"
    if held.columns:
        form = several(held.columns, _COLUMNS)
    form = f"{counted(len(held), 'row')}: {form}"
    if not held.labelled:
        return f"{form}; no column is called label"
    known = np.unique(held.labels[held.labels != NO_LABEL])
    few = "/".join(str(one) for one in known) if len(known) <= _LABELS else f"{known[0]} to {known[-1]}"
    return f"{form}; label {few or 'without a value'}"


def _printable(value: object) -> str:
    """A coordinator's text on a terminal: no control characters, and of limited length."""
    text = printable(str(value)).replace("\n", "?")
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text) - _LONGEST} more characters)"
