"""``sordino doctor``: whether this machine and a party's folder are as they must be; one line a check."""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from runtime import VERSION
from runtime.address import split_address, split_addresses
from runtime.failure import ExitCode, InputFailure
from runtime.processes import has_aes, too_old
from runtime.text import counted, minute
from sordino.cli import explain
from sordino.cli.verbs import Json, answer, argument, epilog
from sordino.reporting.party import Party, kind_of, party_of

if TYPE_CHECKING:
    from client.credentials import ClientCertificate

HELP = (
    "Check this machine, and the folder of a coordinator, a host or an authority.\n\nEach check is one line: ok, or "
    "what to do. Versions, processor, memory, disk; settings, private keys and who can read them, certificates and "
    "this machine's clock, roster, databases, the ledger; and whether the coordinator can be reached from here. It "
    "writes nothing, sends nothing of yours, and may run beside the party's process. Without DIR, and outside such a "
    "folder, only the machine is checked."
)
EPILOG = epilog("doctor my-study")
LEAST_MEMORY_MB: Final = 256  # the service's limit for a client with one participant
DAY_S: Final = 86_400.0
_BEHIND_S: Final = 60.0  # clocks are set by less than that while a process runs

Check = tuple[str, Callable[[], str]]
"""A check's name, and the check: returns what it found, or raises what is to be done."""


class Warned(str):
    """What a check found, and what is to be done before long."""


def run(
    directory: Annotated[
        Path | None, argument("[DIR]", "A study's, a host's or an authority's folder.", shown="none")
    ] = None,
    as_json: Json = False,
) -> int:
    from runtime.durable import free_mb
    from runtime.logs import log_warnings_only

    log_warnings_only()
    found: list[dict[str, object]] = []

    def do(name: str, check: Callable[[], str]) -> bool:
        try:
            said, ok = check(), True
        except Exception as error:
            failure = explain(error)
            said, ok = " ".join(filter(None, (failure.message, failure.suggestion))), False
        found.append({"check": name, "ok": ok, "warning": isinstance(said, Warned), "says": said})
        return ok

    folder = Path() if directory is None and kind_of(Path()) else directory
    do("versions", _versions)
    do("processor", _processor)
    do("memory", _memory)
    do("disk", lambda: f"{free_mb(folder or Path()):,.0f} MB free")
    if folder is not None:
        parties: list[Party] = []

        def settings() -> str:
            parties.append(party_of(folder))
            return f"{parties[0].settings}: no mistake found"

        if do("settings", settings):
            party = parties[0]
            checks_of = {"study": _of_a_study, "host": _of_a_host, "authority": _of_an_authority}[party.kind]
            do("secrets", partial(_secrets, party))
            for check in checks_of(party):
                do(*check)
            do("databases", partial(_databases, party))
    ok = all(one["ok"] for one in found)
    width = max(len(str(one["check"])) for one in found)
    good, warned, bad = (typer.style(*one) for one in (("ok  ", "green"), ("WARN", "yellow"), ("FAIL", "red")))
    lines = [
        f"{(warned if one['warning'] else good) if one['ok'] else bad}  {one['check']:<{width}}  {one['says']}"
        for one in found
    ]
    answer(as_json, {"ok": ok, "checks": found}, lines)
    return int(ExitCode.OK if ok else ExitCode.INPUT)


# ---------------------------------------------------------------- the machine


def _versions() -> str:
    from importlib.metadata import version

    packages = ", ".join(f"{name} {version(name)}" for name in ("grpcio", "cryptography", "numpy"))
    return f"sordino {VERSION}, Python {platform.python_version()}, {packages}"


def _processor() -> str:
    if (why := too_old()) is not None:
        raise InputFailure(f"{why}.")
    aes = {True: "AES instructions", False: "no AES instructions: masks take longer", None: "AES instructions unknown"}
    return f"{counted(os.cpu_count() or 1, 'core')}, {platform.machine()}, {aes[has_aes()]}"


def _memory() -> str:
    from client.conditions import Machine

    free = Machine().free_memory_mb()
    if free is not None and free < LEAST_MEMORY_MB:
        raise InputFailure(f"{free:,.0f} MB are free, a client needs up to {LEAST_MEMORY_MB}: end other programs.")
    return "unknown" if free is None else f"{free:,.0f} MB free"


# ---------------------------------------------------------------- a party


def _secrets(party: Party) -> str:
    """Whatever the settings say: keys and databases in the folder are for their owner alone."""
    from runtime.archive import files_in

    mine = files_in(party.folder, kind_of)
    secret = [path for path in mine if path.suffix in (".key", ".sqlite") or path.name == "renewed.pem"]
    open_ = [path for path in secret if path.stat().st_mode & 0o077]
    if open_:
        raise InputFailure(f"others can read {', '.join(map(str, open_))}: run chmod 600 on them.")
    return f"{counted(len(secret), 'key or database', 'keys and databases')}, readable by their owner alone"


def _of_a_study(party: Party) -> Iterator[Check]:
    from client.credentials import load_certificate, valid_until
    from server.opening import check_client_ca
    from server.session_port import read_certificate

    study = party.configuration
    table = study.coordinator

    def certificate() -> str:
        read_certificate(table).credentials()  # the key's mode, and that both belong together
        check_client_ca(study)
        pair = load_certificate(table.tls_certificate, table.tls_key)
        remedy = "the study's authority makes a new one (docs/operations.md, Certificates)"
        return valid_until(pair, table.client_ca, remedy)

    def transcript_key() -> str:
        from server.opening import open_transcripts

        plan = study.document(study.places).plan
        kept, public = open_transcripts(study, b"", plan)
        return "none are kept" if kept is None else "kept" + (" and published" if public else "")

    def roster() -> str:
        from secagg.roster import verify_roster
        from wire.roster_history import NEWEST_FILE, verify_newest

        known = study.read_authority_public_key()
        listed = verify_roster(table.roster.read_bytes(), known)
        said = f"version {listed.version}, {counted(len(listed), 'participant')}"
        newest = table.roster.with_name(NEWEST_FILE)
        if not newest.exists() or not study.study.roster_valid_h:
            return said
        stated = verify_newest(newest.read_bytes(), known)
        stated.check_clock(time.time())
        left_s, valid_s = stated.until - time.time(), stated.until - stated.signed
        if left_s >= valid_s / 2:
            return f"{said}, the newest until {minute(stated.until)}"
        ends = "ends" if left_s > 0 else "ended"
        told = (
            f"the authority's statement that version {stated.version} is the newest {ends} "
            f"on {minute(stated.until)} (this machine's clock says {minute(time.time())}): rounds then wait. "
        )
        if table.enrolment_listen:
            told += "`sordino authority run`, where the authority is, signs another one."
        else:
            told += (
                "Where the authority is: sordino authority sign DIR --out FOLDER; and here: cp FOLDER/* "
                f"{table.roster.parent}/"
            )
        if left_s < min(DAY_S, valid_s / 4):
            raise InputFailure(told)
        return Warned(f"{said}; {told}")

    yield "certificate", certificate
    yield "transcripts", transcript_key
    yield "roster", roster
    yield "ledger", partial(_ledger, party)
    yield "port", partial(_listens, table.listen)


def _of_a_host(party: Party) -> Iterator[Check]:
    from client.credentials import load_certificate, load_identity, valid_until
    from client.unreachable import reached

    host = party.configuration.settings()
    table = host.coordinator
    pairs: list[ClientCertificate] = []

    def identities() -> str:
        keys = [load_identity(one.key).public.hex()[:8] for one in host.participants]
        return f"{counted(len(keys), 'participant')}: {', '.join(keys[:4])}{', ...' if len(keys) > 4 else ''}"

    def certificate() -> str:
        pairs.append(load_certificate(table.certificate, table.key))
        renewed = bool(table.enrolment)
        remedy = "join again with a new code and --ledger (docs/operations.md, Certificates)"
        return valid_until(pairs[0], table.ca, remedy, soon=not renewed) + (", renewed by itself" if renewed else "")

    def coordinator() -> str:
        return "; ".join(reached(one, table.ca, *pairs[:1]) for one in split_addresses(table.address))

    yield "identities", identities
    yield "certificate", certificate
    yield "ledger", partial(_ledger, party)
    yield "coordinator", coordinator
    if table.enrolment:
        yield "enrolment", partial(reached, table.enrolment, table.ca)


def _of_an_authority(party: Party) -> Iterator[Check]:
    from authority.folder import TLS_FILE, open_folder
    from client.unreachable import reached

    def keys() -> str:
        until = open_folder(party.folder).keys.tls.certificate.not_valid_after_utc.timestamp()
        if until < time.time():
            raise InputFailure(f"its TLS certificate expired on {minute(until)}: begin a new study, or set the clock.")
        return f"they belong together; TLS certificate valid until {minute(until)}"

    def coordinator() -> str:
        address = open_folder(party.folder).settings.coordinator
        return reached(address, party.folder / TLS_FILE) if address else "none named: files are carried by hand"

    yield "keys", keys
    yield "coordinator", coordinator


def _ledger(party: Party) -> str:
    from sordino.reporting.budget import ending, place_of, read

    place = place_of(party)
    if not any(path is not None and path.exists() for path in (place.ledger, place.state, place.journal)):
        return "nothing is recorded yet"
    contents = read(place)
    last = contents.rows[-1].entry.at if contents.rows else 0.0
    if last > time.time() + _BEHIND_S:
        raise InputFailure(
            f"its last row is of {minute(last)}, and this machine's clock says {minute(time.time())}: set the clock."
        )
    return ending(contents)[0].rstrip(".") + (f"; the last is of {minute(last)}" if last else "")


def _databases(party: Party) -> str:
    """That each can be read, is of a format that this release knows, and is whole by SQLite's own check."""
    import authority.store
    import client.journal
    import server.journal
    import wire.records.ledger
    from runtime.archive import databases
    from runtime.durable import DAMAGED, check_kind, open_to_read

    formats = {
        one.APPLICATION_ID: one.FORMAT for one in (server.journal, client.journal, wire.records.ledger, authority.store)
    }
    paths = databases(party.folder, kind_of)
    for path in paths:
        try:
            with contextlib.closing(open_to_read(path)) as connection:
                kind = connection.execute("PRAGMA application_id").fetchone()[0]
                if kind in formats:
                    check_kind(connection, path, kind, formats[kind])
                whole = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        except DAMAGED as error:
            whole = str(error)
        if whole != "ok":
            raise InputFailure(f"{path} is damaged ({whole}): restore the newest copy.")
    return ", ".join(path.name for path in paths) or "none yet"


def _listens(address: str) -> str:
    """Of the coordinator's own port; no failure: a study may be served later."""
    host, port = split_address(address)
    try:
        with socket.create_connection(("127.0.0.1" if host in ("0.0.0.0", "::", "[::]") else host, port), 2.0):
            return f"something listens at {address}"
    except OSError:
        return f"nothing listens at {address}: the study isn't served now"
