"""What a host sent, when, and what it cost: ``sordino join --status``, and the records that a participant exports."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from client.credentials import load_identity
from client.journal import ended_studies, noted_attempts
from client.owners_word import LEFT, nothing_left, read_word
from runtime.failure import InputFailure
from runtime.text import counted, minute
from sordino.reporting.budget import Contents, Place, read
from sordino.reporting.budget_limits import limit_lines, limits
from wire.records.ledger_rows import CHARGE, EXACT, EXCLUDED
from wire.records.ledger_totals import Totals
from wire.records.participation import write_participation

if TYPE_CHECKING:
    from client.settings import HostSettings

_SHOWN: Final = 20  # attempts, the latest
_CAME_TO: Final = {
    CHARGE: "uploaded, outcome unknown: charged at most",
    EXCLUDED: "uploaded, not in the sum: charge cancelled",
    "": "nothing uploaded",
}


def figures(settings: HostSettings) -> dict[str, Any]:
    """Under stable JSON names. Raises as `sordino.reporting.budget.read`, and Failure: a key can't be read."""
    journal, ledger = settings.host.journal, settings.host.ledger
    recorded = journal.exists() or ledger.exists()
    contents = read(Place(ledger, journal=journal, policy=settings.policy)) if recorded else None
    own = [load_identity(one.key).public.hex() for one in settings.participants]
    ended = {one.terms: {"reason": one.reason, "at": one.at} for one in ended_studies(journal)}
    word = read_word(journal.parent)
    over = nothing_left(settings)
    return {
        "host": settings.host.name,
        "study": settings.study.name,
        "state": "ended" if over and word.state != LEFT else word.state,
        "since": word.at or None,
        "said": over or word.why_not,
        "participants": own,
        "ended": ended,
        "attempts": _attempts(journal, contents, set(own)),
        "ledger": None if contents is None else {"rows": contents.head.rows, "head": contents.head.hash.hex()},
        "limits": limits(Totals() if contents is None else contents.totals, settings.policy),
    }


def _attempts(journal: Path, contents: Contents | None, own: set[str]) -> list[dict[str, Any]]:
    """All attempts of these identities that were joined here or charged to the ledger, in the order of time."""
    found: dict[tuple[str, str, int, int], dict[str, Any]] = {}
    for one in noted_attempts(journal):
        if one.identity.hex() in own:
            key = one.terms, one.identity.hex(), one.round, one.attempt
            found[key] = {
                **_named(key),
                "joined": one.joined,
                "signed": None if one.signed is None else one.signed.hex(),
                "answered": None if one.answered is None else one.answered.hex(),
            }
    totals = Totals()
    for row in () if contents is None else contents.rows:
        entry = row.entry
        totals.add(entry)
        if entry.identity not in own:
            continue
        key = entry.study_sha256, entry.identity, entry.round, entry.attempt
        # A journal that was lost, or another home's with the same key, leaves the ledger's rows.
        one_ = found.setdefault(key, {**_named(key), "joined": None, "signed": None, "answered": None})
        one_.setdefault("uploaded", entry.at)
        one_ |= {
            "charge": entry.kind,
            "sum_of": entry.honest + entry.colluders if entry.kind == EXACT else None,
            "epsilon": totals.studies[entry.study_sha256].epsilon_of_data(entry.data),
            "row": row.number,
            "hash": row.hash.hex(),
        }
    none = dict.fromkeys(("uploaded", "charge", "sum_of", "epsilon", "row", "hash"))
    return sorted(({**none, **one} for one in found.values()), key=lambda one: one["joined"] or one["uploaded"])


def _named(key: tuple[str, str, int, int]) -> dict[str, Any]:
    return dict(zip(("study_sha256", "participant", "round", "attempt"), key, strict=True))


def lines(settings: HostSettings, body: Mapping[str, Any]) -> list[str]:
    """`figures` for people."""
    state = body["said"] or "it takes part while `sordino join` runs"
    said = [f"Host {body['host']} of the study {body['study']}: {state}.", ""]
    said += [f"Identity {one}" for one in body["participants"]]
    attempts, several = body["attempts"], len(body["participants"]) > 1
    if attempts:
        who = "participant  " if several else ""
        said += ["", f"  {'joined':<21}  round  {who}{'what came of it':<42}  epsilon then"]
    for one in attempts[-_SHOWN:]:
        came = _CAME_TO.get(one["charge"] or "", "") or f"in the sum of {one['sum_of']}"
        number = f"{one['round']}" + (f".{one['attempt']}" if one["attempt"] > 1 else "")
        who = f"{one['participant'][:11]:<13}" if several else ""
        spent = "" if one["epsilon"] is None else f"{one['epsilon']:.4g}"
        said.append(f"  {minute(one['joined'] or one['uploaded']):<21}  {number:>5}  {who}{came:<42}  {spent:>12}")
    if len(attempts) > _SHOWN:
        said.append(f"  and {counted(len(attempts) - _SHOWN, 'earlier attempt')}: --json has all")
    return [*said, "", *limit_lines(body["limits"])]


def export(settings: HostSettings, folder: Path) -> list[Path]:
    """Write each participant's records of the study into a new folder; returns the files.

    Raises InputFailure: there is nothing to export, or the folder can't be written; else as `figures`.
    """
    body = figures(settings)
    files: dict[Path, bytes] = {}
    for entry in settings.participants:
        identity = load_identity(entry.key)
        mine = [one for one in body["attempts"] if one["participant"] == identity.public.hex()]
        for terms in sorted({one["study_sha256"] for one in mine}):
            attempts = [
                {name: value for name, value in one.items() if name not in ("participant", "study_sha256")}
                for one in mine
                if one["study_sha256"] == terms
            ]
            about = {"study": body["study"], "study_sha256": terms, "ledger": body["ledger"] or {}}
            file = folder / f"{identity.public.hex()[:8]}-{terms[:8]}.participation"
            files[file] = write_participation(identity, attempts=attempts, **about)
    if not files:
        raise InputFailure("nothing to export: no attempt was joined here yet")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, data in files.items():
            with file.open("xb") as out:
                out.write(data)
    except OSError as error:
        why = f"{error.filename or folder} can't be written: {error.strerror}. Name a new folder"
        raise InputFailure(why) from None
    return list(files)
