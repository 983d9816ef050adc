"""Figures of ``sordino budget``: find a ledger, compare it with its writer's other records, and sum the charges."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mechanisms.accounting import Account, RoundCharge
from mechanisms.plan import Plan
from runtime.failure import InputFailure
from runtime.text import counted, peer_text
from secagg.roster import InvalidRoster, Roster, verify_roster
from sordino.planning.shown import Shown, data_frame
from sordino.reporting.budget_limits import composed, limit_lines, limits, wrapped
from sordino.reporting.party import HOST, SETTINGS, STUDY, Party, kind_of, party_of
from wire.guarantee import condition, counts_colluders
from wire.records.ledger import (
    COORDINATOR,
    LEDGER_FILE,
    About,
    ChangedLedger,
    Head,
    Row,
    collect,
    head_file,
    is_begun,
    read_ledger,
)
from wire.records.ledger_rows import EXACT
from wire.records.ledger_totals import StudyTotals, Totals
from wire.records.transcript_files import are_published
from wire.study import StudyDocument

if TYPE_CHECKING:
    from pandas import DataFrame

    from client.settings import Policy
    from server.study_file import StudyConfiguration

_DIGITS: Final = 11  # of an identity that are shown, as wide as the column's head; enough for --participant
_IDENTITY: Final = 8  # of an identity beside its number


@dataclass(frozen=True)
class Place:
    """A ledger, and the journals of a coordinator or of participants that write it, if they are here."""

    ledger: Path
    state: Path | None = None
    journal: Path | None = None
    policy: Policy | None = None  # of the host that the ledger was found by
    roster: Roster | None = None  # of the study that the ledger was found by, where it can be read

    def check(self) -> None:
        """Hold the ledger against its journal. Raises as `read`."""
        if self.state is not None:
            from server.journal import check_ledger

            check_ledger(self.state)
        if self.journal is not None:
            from client.journal import check_ledger as check_participants

            check_participants(self.journal, self.ledger)


@dataclass(frozen=True, repr=False)
class Contents(Shown):
    """A ledger in which nothing was changed."""

    place: Place
    about: About
    head: Head
    totals: Totals
    rows: Sequence[Row]

    @property
    def held_against(self) -> list[str]:
        """Names of the files that end where the ledger ends."""
        journals = [one.name for one in (self.place.state, self.place.journal) if one is not None]
        return [head_file(self.place.ledger).name, *journals]

    def to_frame(self) -> DataFrame:
        """One row a charge, as in ``sordino budget show --json``, without its curve. Raises InputFailure: no pandas."""
        studies = figures(self)["studies"]
        frame = data_frame({"study": study["study"], **row} for study in studies for row in study["charges"])
        return frame.drop(columns="curve", errors="ignore")

    def _lines(self) -> Sequence[str]:
        return lines(self, figures(self))


def find(path: Path) -> Place:
    """The ledger of a study's folder, of a host's folder, or the file itself.

    Raises Failure: there is none; ConfigurationError: the settings there can't be used.
    """
    folder = path.parent if path.name in SETTINGS.values() else path
    if kind_of(folder) in (STUDY, HOST):
        return place_of(party_of(folder))
    ledger = path / LEDGER_FILE if path.is_dir() else path
    if not is_begun(ledger):
        raise InputFailure(f"{ledger}: there is no ledger here. Name a study's folder, a host's folder, or the file.")
    state, journal = ledger.with_name("state.sqlite"), ledger.with_name("journal.sqlite")
    if ledger.name == LEDGER_FILE and state.exists():
        return Place(ledger, state=state)
    return Place(ledger, journal=journal if journal.exists() else None)


def place_of(party: Party) -> Place:
    """The ledger of a coordinator or a host."""
    if party.kind == STUDY:
        return of_study(party.configuration)
    host = party.configuration.host
    return Place(host.ledger, journal=host.journal, policy=party.configuration.policy.to_policy())


def of_study(study: StudyConfiguration) -> Place:
    """The ledger of a study's coordinator."""
    state = study.coordinator.state
    return Place(state.with_name(LEDGER_FILE), state=state, roster=_roster(study))


def _shown(path: Path) -> Path:
    """Without ``a/..``, as settings may name it, where that is the same file."""
    short = Path(os.path.normpath(path))
    return short if short.resolve() == path.resolve() else path


def _roster(study: StudyConfiguration) -> Roster | None:
    """For the hosts' names alone: without one that the authority signed they are left out."""
    from runtime.settings_file import ConfigurationError

    try:
        return verify_roster(study.coordinator.roster.read_bytes(), study.read_authority_public_key())
    except (OSError, InvalidRoster, ConfigurationError):
        return None


def read(place: Place) -> Contents:
    """Check everything there is about a ledger, and read it. Writes nothing.

    Raises ChangedLedger: it isn't what was written; StorageError: it, or its journal, can't be used; Failure: nothing
    is recorded yet.
    """
    files = (place.ledger, head_file(place.ledger), place.state, place.journal)
    if not any(one is not None and one.exists() for one in files):
        raise InputFailure(f"{place.ledger}: nothing is recorded yet. `sordino serve` and `join` make it.")
    place.check()
    rows: list[Row] = []
    about, head, totals = read_ledger(place.ledger, collect(rows))
    return Contents(place, about, head, totals, rows[: head.rows])


def ledger_of(path: str | os.PathLike[str]) -> Contents:
    """The ledger of a study's or a host's folder, or of a file, checked. Raises as `find` and `read`."""
    return read(find(Path(path)))


def row_of_head(contents: Contents, text: str) -> int:
    """The row at which the chain had the published head; 0: at its beginning.

    Raises Failure: not a head; ChangedLedger: it never had that one.
    """
    try:
        wanted = bytes.fromhex(text)
    except ValueError:
        wanted = b""
    if len(wanted) != 32:
        raise InputFailure(f"--head {text}: a head is 64 hexadecimal digits, as `budget show` prints them.")
    if wanted == contents.about.beginning().hash:
        return 0
    for row in contents.rows:
        if row.hash == wanted:
            return row.number
    raise ChangedLedger(contents.place.ledger, f"never had the head {text[:16]}...: rows were removed or written anew")


def choose(contents: Contents, participant: str | None) -> int | str | None:
    """Whom ``--participant`` means: a number of the coordinator's journal, or the identity that begins so.

    Raises Failure: no participant of this ledger.
    """
    if participant is None:
        return None
    known = {who for study in contents.totals.studies.values() for who in study.spent}
    if contents.about.side == COORDINATOR:
        members, plan = _members(contents), _plan(contents)
        # Without the journal: by the plan, or else of those who were in a sum.
        last = max((int(who) for who in known), default=0) if plan is None else plan.population - 1
        last = max(members, default=last)
        if participant.isascii() and participant.isdigit() and len(participant) < _IDENTITY:
            numbers = [int(participant)] if int(participant) <= last else []  # also one who was in no sum yet
        else:
            numbers = [one for one, identity in members.items() if identity.startswith(participant.lower())]
        if len(numbers) == 1:
            return numbers[0]
        many = f"{len(numbers)} identities begin so: " if numbers else ""
        raise InputFailure(
            f"--participant {participant}: {many}name its number in this ledger, from 0 to {last} (kept when the "
            "roster changes), or how its identity begins."
        )
    found = [who for who in known if str(who).startswith(participant.lower())]
    if len(found) != 1:
        some = "no identity" if not found else f"{len(found)} identities"
        raise InputFailure(f"--participant {participant}: {some} in this ledger begins so.")
    return found[0]


def _members(contents: Contents) -> dict[int, str]:
    """Number -> identity, by the coordinator's journal beside a ledger; empty where it isn't at hand."""
    from server.journal import read_members

    state = contents.place.state
    return {} if state is None else {number: identity.hex() for number, identity in read_members(state).items()}


def _plan(contents: Contents) -> Plan | None:
    """From the study document beside a coordinator's ledger; None where it isn't at hand."""
    from server.journal import read_study

    document = read_study(contents.place.state) if contents.place.state is not None else None
    return None if document is None else StudyDocument.from_bytes(document).plan


def figures(contents: Contents, participant: int | str | None = None) -> dict[str, Any]:
    """The ledger under stable JSON names."""
    about, head = contents.about, contents.head
    named: dict[int | str, dict[str, str | None]] = {}  # whom a coordinator's rows are about
    if about.side == COORDINATOR:
        roster = contents.place.roster
        hosts = {} if roster is None else {entry.identity.hex(): entry.host for entry in roster.entries}
        named = {who: {"identity": one, "host": hosts.get(one)} for who, one in _members(contents).items()}
    studies = [_study(contents, study, participant, named) for study in contents.totals.studies.values()]
    body: dict[str, Any] = {
        "ledger": str(contents.place.ledger.resolve()),
        "side": about.side,
        "rows": head.rows,
        "head": head.hash.hex(),
        "checked_against": contents.held_against,
        "studies": [study for study in studies if participant is None or study["participants"]],
    }
    if about.side == COORDINATOR:
        body["study"] = about.study
        spent = (one.epsilon_coordinator() for one in contents.totals.studies.values())
        body["epsilon_coordinator"] = max(spent, default=0.0)
        body["epsilon_released"] = _released(contents)
    else:
        # Over this data composed, one entry for each kind of guarantee; no epsilon where a row has no bound.
        body["all_studies"] = [
            {**composed(kind), "curve": [list(pair) for pair in sorted(kind.curve.items())]}
            for kind in contents.totals.across_studies()
        ]
        body["limits"] = limits(contents.totals, contents.place.policy, participant)
    return body


def _released(contents: Contents) -> float | None:
    """epsilon of readers of released models; None where the study document isn't at hand, which has the sampling."""
    plan = _plan(contents)
    if plan is None:
        return None
    account = Account(plan)
    for row in contents.rows:
        entry = row.entry
        account.charge(RoundCharge(entry.round, entry.attempt, frozenset(entry.participants or ()), entry.plan))
    # Where transcripts were published there is no reader left who doesn't know the cohorts.
    public = contents.place.state is not None and are_published(contents.place.state)
    return account.epsilon_coordinator() if public else account.epsilon_released()


def _study(
    contents: Contents,
    study: StudyTotals,
    participant: int | str | None,
    named: Mapping[int | str, dict[str, str | None]],
) -> dict[str, Any]:
    first, plan = study.first, _plan(contents)  # no row says what the coordinator may do: the study document does
    chosen = sorted(study.spent, key=str if first.identity else int) if participant is None else [participant]
    if first.identity is not None:
        chosen = [who for who in chosen if who in study.spent]
    same = ("study", "study_sha256", "plan", "delta", "order", "adjacency", "mechanism", "sampling")
    return {name: getattr(first, name) for name in same} | {
        "budget": first.epsilon,
        "A": first.colluders,
        "adversary": plan.adversary if plan is not None and plan.identity == first.plan else None,
        "q": first.rate,
        "epsilon_coordinator": study.epsilon_coordinator(),
        "participants": [
            {
                "participant": who,
                **named.get(who, {}),
                "charges": study.spent[who].charges if who in study.spent else 0,
                "renyi": study.renyi(who),
                "epsilon": study.epsilon_of(who),
                **({"data": study.spent[who].data} if first.identity else {}),
            }
            for who in chosen
        ],
        **({"data": _data(study, chosen)} if first.identity else {}),
        "charges": [
            _charge(row)
            for row in contents.rows
            if row.entry.study_sha256 == first.study_sha256
            and (participant is None or participant in (row.entry.participants or (row.entry.identity,)))
        ],
    }


def _data(study: StudyTotals, chosen: Sequence[int | str]) -> list[dict[str, Any]]:
    """What was spent from the data of the chosen identities, by all identities over it."""
    return [
        {
            "data": name,
            "identities": sorted(str(who) for who, one in study.spent.items() if one.data == name),
            "charges": study.of_data(name).charges,
            "renyi": study.of_data(name).renyi,
            "epsilon": study.epsilon_of_data(name),
        }
        for name in sorted({study.spent[who].data for who in chosen})
    ]


def _charge(row: Row) -> dict[str, Any]:
    entry = row.entry
    return {
        "row": row.number,
        "hash": row.hash.hex(),
        **{name: getattr(entry, name) for name in ("at", "round", "attempt", "kind", "draws")},
        "participants": entry.identity if entry.participants is None else list(entry.participants),
        "h": entry.honest,
        "renyi": entry.cost,
        "curve": [list(pair) for pair in entry.curve],
    }


def lines(contents: Contents, body: dict[str, Any]) -> list[str]:
    """`figures` for people."""
    said = [f"{contents.about.side.capitalize()}'s ledger {_shown(contents.place.ledger)}"]
    for study in body["studies"]:
        said += ["", *_study_lines(study, body["side"] == COORDINATOR)]
    if body.get("epsilon_released") is not None and body["studies"]:
        said += ["", f"Readers of released models only: epsilon {body['epsilon_released']:.4g}."]
    if not body["studies"]:
        said += ["", "Nothing was charged."]
    for together in body.get("all_studies", []):
        if len(together["studies"]) < 2:
            continue
        spent = "larger than can be stated" if together["epsilon"] is None else f"at most {together['epsilon']:.4g}"
        how = "exact" if together["order"] == 1 else f"Renyi order {together['order']:g}"
        said += [
            "",
            f"{len(together['studies'])} studies together: epsilon {spent} at delta {together['delta']:g} "
            f"({how}), adjacency {together['adjacency']}"
            + (", if the coordinator is trusted." if together["coordinator_trusted"] else "."),
        ]
    if body.get("limits", {}).get("policy") is not None:
        said += ["", "Against this host's policy:", "", *limit_lines(body["limits"])]
    return [*said, "", *ending(contents)]


def own_lines(contents: Contents, body: dict[str, Any]) -> list[str]:
    """`figures` of a participant's ledger, in short: spent and allowed, without the rows.

    Raises Failure: it is a coordinator's.
    """
    if contents.about.side == COORDINATOR:
        hosts = contents.place.ledger.parent.parent / "hosts"
        near = min((one for one in hosts.glob("*/host.toml")), default=None)
        where = near.parent if near is not None else "my-study/hosts/host-01"
        raise InputFailure(
            f"{contents.place.ledger} is a coordinator's ledger: --participant without a name asks for a host's own.",
            f"Run it on a host's folder: `sordino budget show {where} --participant`",
        )
    said = [f"What was spent from the data here, by the ledger {_shown(contents.place.ledger)}:", ""]
    return [*said, *limit_lines(body["limits"]), "", *ending(contents)]


def ending(contents: Contents) -> list[str]:
    """How many rows there are, what they were compared with, and the head."""
    compared = " and ".join(contents.held_against)
    rows = counted(contents.head.rows, "row")
    return [f"{rows}, nothing changed; compared with {compared}.", f"Head {contents.head.hash.hex()}"]


def _study_lines(study: dict[str, Any], coordinator: bool) -> list[str]:
    whose = "participants" if coordinator else "data here, all its identities together"
    holds = condition(study["mechanism"], study["A"], adversary=study["adversary"])
    with_names = any("identity" in one for one in study["participants"])
    exact, order = study["order"] == 1, f"{study['order']:.4g}"
    renyi = "mu^2/2" if exact else f"Renyi({order})"  # the order stands where its figures stand
    kind = "exact Gaussian filter" if exact else f"Renyi filter at order {order}"
    said = [
        f"Study {study['study']}: epsilon {study['epsilon_coordinator']:.4g} of {study['budget']:g} spent at delta "
        f"{study['delta']:g}, the largest of all {whose}",
        *wrapped(f"{study['mechanism']}, {holds}; {kind}"),
        *wrapped(f"adjacency {study['adjacency']}"),
        "",
        f"  participant   charges {renyi:>12}    epsilon" + ("  identity  host" if with_names else ""),
    ]
    for one in study["participants"]:
        who = str(one["participant"])[:_DIGITS]
        line = f"  {who:<11} {one['charges']:>9} {one['renyi']:>12.4g} {one['epsilon']:>10.4g}"
        if "identity" in one:
            line += f"  {one['identity'][:_IDENTITY]}  {peer_text(one['host'] or '-')}"
        said.append(line)
    for one in study.get("data", []):  # what identities over the same data cost it together
        if len(one["identities"]) > 1:
            who = ", ".join(identity[:_DIGITS] for identity in one["identities"])
            line = f"  together    {one['charges']:>9} {one['renyi']:>12.4g} {one['epsilon']:>10.4g}"
            said.append(f"{line}  one data: {who}")
    # A participant's ledger holds the rows of all participants of its host.
    head = "" if coordinator else f"{'participant':<{_DIGITS}}  "
    said += ["", f"  row  {head}round  attempt  kind       |u3|     h {renyi:>12}  at"]
    for row in study["charges"]:
        known = coordinator or row["kind"] == EXACT  # else the participant doesn't know u3
        size = str(row["h"] + study["A"]) if known else "-"
        honest = str(row["h"]) if counts_colluders(study["mechanism"]) else "-"
        when = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(row["at"]))
        who = "" if coordinator else f"{str(row['participants'])[:_DIGITS]:<{_DIGITS}}  "
        said.append(
            f"  {row['row']:>3}  {who}{row['round']:>5}  {row['attempt']:>7}  {row['kind']:<9} {size:>5} {honest:>5} "
            f"{row['renyi']:>12.4g}  {when}"
        )
    return said
