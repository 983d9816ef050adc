"""What a transcript says, as stable JSON names and in plain words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from runtime.text import folded, peer_text, several
from secagg.parameters import COMPLETE
from wire.guarantee import adjacency_word, condition, counts_colluders
from wire.join_code import fingerprint, show_fingerprint
from wire.records.ledger_rows import epsilon
from wire.records.transcript_checks import VerifiedTranscript

_SHOWN: Final = 6  # participants that are named one by one
_DIGITS: Final = 12  # of an identity or digest


def figures(verified: VerifiedTranscript) -> dict[str, Any]:
    """A transcript that holds, under stable JSON names."""
    found, entry, plan = verified.contents, verified.entry, verified.document.plan
    return {
        "study": verified.card.study,
        "round": found.round,
        "attempt": found.attempt,
        "authority": show_fingerprint(fingerprint(verified.card.authority_public)),
        "roster_version": verified.roster.version,
        "roster_size": len(verified.roster),
        "invited": len(verified.config.invited),
        "u1": len(found.u1),
        "u2": len(found.u2),
        "u3": len(found.u3),
        "signatures": len(found.signatures),
        **{name: found.parameters[name] for name in ("signatures_needed", "graph", "degree", "threshold")},
        **{name: getattr(plan, name) for name in ("sampling", "min_survivors", "mechanism", "adjacency")},
        "A": plan.colluders,
        "honest": entry.honest,
        "epsilon": epsilon(entry.order, entry.cost, entry.delta, entry.draws),
        "delta": entry.delta,
        "excluded": [{"identity": one.identity.hex(), "reason": one.reason} for one in found.excluded],
        "caught": [{"identity": one.identity.hex(), "reason": one.reason} for one in found.caught],
        "ledger_row": found.charge.number,
        "ledger_hash": found.charge.hash.hex(),
        "model_sha256": found.model_sha256.hex(),
        "next_model_sha256": found.next_model_sha256.hex(),
        "sum_sha256": None if found.sum_sha256 is None else found.sum_sha256.hex(),
        "previous": None if found.previous is None else found.previous.hex(),
        "sha256": verified.sha256.hex(),
    }


def lines(verified: VerifiedTranscript, authority_known: bool) -> list[str]:
    """The same for people; ``authority_known``: it was checked against an authority that the reader named."""
    body = figures(verified)
    said = [f"Round {body['round']} of the study {body['study']}, attempt {body['attempt']}"]
    for title, paragraphs in (
        ("Checked", _checked(body, authority_known)),
        ("Who took part", _who(verified, body)),
        ("What was promised", _promised(verified, body)),
        ("What is on record", _record(body)),
        ("What this file doesn't prove", _LIMITS),
    ):
        said += ["", title]
        said += [line for one in paragraphs for line in folded(one, None, "  ", "    ")]
    return said


def _checked(body: dict[str, Any], authority_known: bool) -> list[str]:
    if authority_known:
        return ["Every signature and number in it holds, under the authority that you named."]
    return [
        f"Every signature and number in it holds, under the authority {body['authority']}, which the file itself "
        "names. Compare this fingerprint with the one that you know: anyone can make a study with an authority of "
        "its own."
    ]


def _who(verified: VerifiedTranscript, body: dict[str, Any]) -> list[str]:
    found = verified.contents
    invited = verified.config.invited
    drawn = body["sampling"] != "none"
    how = "drawn by the authority's seeds from" if drawn else "all of"
    roster = f"the {body['roster_size']} on version {body['roster_version']} of the roster"
    said = [f"Invited: {len(invited)}, {how} {roster}."]
    for before, after, name, did, didnt in (
        (invited, found.u1, "u1", "advertised keys", "never answered"),
        (found.u1, found.u2, "u2", "shared keys", "left before sharing keys"),
        (found.u2, found.u3, "u3", "are in the sum", "left before their vector was in"),
    ):
        gone = sorted(set(before) - set(after))
        said.append(
            f"{name}: {len(after)} {did}" + (f"; {len(gone)} {didnt}: {_names(verified, gone)}." if gone else ".")
        )
    said.append(
        f"Signed: {body['signatures']} members of u3 say that these are the sets; {body['signatures_needed']} had to, "
        "so that no second group can have been shown others."
    )
    for one in body["caught"]:
        said.append(f"Caught in this attempt: {one['identity'][:_DIGITS]}…, says the coordinator: {one['reason']}")
    for one in body["excluded"]:
        said.append(f"Not invited any more: {one['identity'][:_DIGITS]}…, says the coordinator: {one['reason']}")
    return said


def _names(verified: VerifiedTranscript, members: Iterable[int]) -> str:
    entries = [verified.roster.entries[who] for who in members]
    return several([f"{entry.identity.hex()[:_DIGITS]}… ({peer_text(entry.host)})" for entry in entries], _SHOWN)


def _promised(verified: VerifiedTranscript, body: dict[str, Any]) -> list[str]:
    plan = verified.document.plan
    holds = condition(plan.mechanism, plan.colluders, f"of the {plan.clients}", adversary=plan.adversary)
    said = [
        f"By itself, at the study's order, this sum costs each of the {body['u3']} in it epsilon "
        f"{body['epsilon']:.4g}, at delta {body['delta']:g}, {adjacency_word(plan.adjacency)}, {holds}. Such figures "
        "can't be added; "
        + ("the one round costs" if plan.rounds == 1 else f"all {plan.rounds} rounds together cost")
        + f" at most {plan.epsilon:g}.",
        f"With fewer than {plan.min_survivors} in it the sum stays closed; any {body['threshold']} of "
        + ("u1" if body["graph"] == COMPLETE else f"its {body['degree']} neighbours on the ring")
        + " can rebuild what one of u2 masked with.",
    ]
    if counts_colluders(plan.mechanism):
        said.append(
            f"At least {body['honest']} of them are honest on that assumption; the plan opens no sum with fewer than "
            f"{plan.h_min} honest ones."
        )
    return said


def _record(body: dict[str, Any]) -> list[str]:
    old, new = body["model_sha256"][:_DIGITS], body["next_model_sha256"][:_DIGITS]
    if body["sum_sha256"] is None:
        opened = "by a sum that is not named: it holds no noise yet."
    else:
        opened = f"by the sum {body['sum_sha256'][:_DIGITS]}…"
    return [
        f"The model {old}… was trained, and became {new}… {opened}",
        f"Charged as row {body['ledger_row']} of the coordinator's ledger, {body['ledger_hash'][:_DIGITS]}…",
        "The first transcript of its chain."
        if body["previous"] is None
        else f"The transcript before it is {body['previous'][:_DIGITS]}…: verify both together.",
    ]


_LIMITS: Final = [
    "That training was honest: a participant's vector is masked, and can't be inspected. An update that makes no "
    "sense, or does harm, is in the sum like any other.",
    "That sum and next model are what the participants' vectors give: their digests are the coordinator's word.",
    "That the coordinator kept nothing else, or that no other round was run: it shows what it shows. Each "
    "participant's own ledger names every round that it uploaded to.",
    "That no more than the assumed number of participants collude, or that those who are excluded deserved it.",
]
