"""``sordino authority``: decides who may take part. It runs where the coordinator's owner can't read its keys."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from authority.folder import AuthorityFolder, AuthorityTable, open_folder
from authority.invitations import find_members, invite as make_invitation, revoke, withdraw, without_place
from authority.store import locked
from learning.task_names import FLOWER
from runtime.failure import ExitCode, InputFailure
from runtime.option_values import built
from runtime.text import counted, minute, terminal_width
from sordino.cli import authority_run
from sordino.cli.authority_run import seconds_of
from sordino.cli.options import chosen, options, with_options
from sordino.cli.verbs import Json, answer, argument, flag, number, option, verb_group, verb_in
from wire.join_code import show_fingerprint

app = verb_group(
    "authority",
    "Decide who may take part in a study.\n\nThe authority holds the two keys that sign rosters and TLS "
    "certificates. It isn't the coordinator: keep its folder on another machine, under another person's control. It is "
    "needed when a participant joins, renews a certificate or is revoked, and once in each roster_valid_h (a week), to "
    "state that the roster is the newest: [bold]run[/bold], or [bold]sign --out[/bold]. "
    "docs/enrolment.md says what each party has and what a coordinator that lies can't do.",
)

Where = Annotated[Path, argument("DIR", "The authority's folder.")]
Out = Annotated[Path | None, option("FOLDER", "Write the roster and what belongs to it there too.")]
Offline = Annotated[bool, flag("--offline", "Don't call the coordinator.")]
Sign = Annotated[bool, flag("--sign", "Sign and publish the next version at once.")]


def _verb(name: str, example: str, said: str) -> Callable[[Any], Any]:
    return verb_in(app, name, f"authority {example}", said, ExitCode.NETWORK)


def _init(
    directory: Annotated[Path, argument("DIR", "Folder to make.")],
    study: Annotated[str, option("NAME", "The study's name, as in study.toml.")],
    address: Annotated[
        str | None,
        option(
            "HOST:PORT",
            "Where participants open sessions (listen in study.toml).",
            shown="the port before that of enrolment",
        ),
    ] = None,
    host: Annotated[
        list[str] | None, option("NAME", "Further host name or address of the coordinator; repeatable.")
    ] = None,
    as_json: Json = False,
    **given: Any,
) -> int:
    from authority.founding import COORDINATOR_FOLDER, found, session_address

    settings = built(AuthorityTable, chosen(given, AuthorityTable) | {"study": study})
    coordinator = settings.coordinator
    sessions = address if address is not None else session_address(coordinator, host or ())
    keys = found(directory, settings, address=sessions, names=host or ()).keys
    body = {
        "directory": str(directory.resolve()),
        "study": study,
        "fingerprint": keys.fingerprint.hex(),
        "authority_public_key": keys.public.hex(),
        "address": sessions,
        "coordinator": coordinator,
    }
    lines = [
        f"Made the authority of {study} in {directory}.\n\n  fingerprint  {show_fingerprint(keys.fingerprint)}\n",
        f"Carry {directory / COORDINATOR_FOLDER} to the coordinator's machine, then remove it here.",
        f"Make the study there:  sordino init DIR --authority {COORDINATOR_FOLDER} --enrol N",
        "Keep the rest away from that machine, and keep an offline copy of it.",
        f"Invite a participant:  sordino authority invite {directory}",
    ]
    return answer(as_json, body, lines)


_verb(
    "init",
    "init my-authority --study clinics --coordinator coordinator.example:8444",
    "Make an authority: its keys, and a first roster without participants.\n\n`sordino init` makes one together "
    "with a study; this verb is for an authority that another person controls from the start. DIR must be new or "
    "empty. Carry DIR/coordinator to the coordinator's machine (its two keys belong only there), and keep the "
    "rest. A lost authority can't be restored: back DIR up, offline.",
)(with_options(_init, options(AuthorityTable)))


@_verb(
    "invite",
    "invite my-authority --name clinic-7 --valid 24h",
    "Make join codes, each for one participant.\n\nA code has this authority's fingerprint and 16 secret bytes: "
    "hand it over where the coordinator can't read it, in person or by a private message. It is good for one "
    "participant until it expires by this machine's clock; the authority must have seen the request by then, so "
    "run `approve` or `run` in time. The code is shown only now.",
)
def invite(
    directory: Where,
    name: Annotated[
        str, option("HOST", "The participant's host name on the roster.", shown="as the participant wishes")
    ] = "",
    valid: Annotated[str, option("TIME", "Validity: 30m, 24h, 7d.", shown=True)] = "24h",
    count: Annotated[int, number("How many codes.", 1, 1000)] = 1,
    as_json: Json = False,
) -> None:
    seconds = seconds_of("--valid", valid)
    if name and count > 1:
        raise InputFailure("--name is for one participant: use it without --count.")
    folder = open_folder(directory)
    settings, fingerprint = folder.settings, folder.keys.fingerprint
    with locked(folder) as store:
        codes = [
            make_invitation(store, name=name, valid_s=seconds, now=time.time(), random_bytes=os.urandom)
            for _ in range(count)
        ]
        unplaced = without_place(store, time.time())
    if unplaced:
        typer.echo(
            f"Note: {unplaced} of the open codes will be refused if all are used: the study has "
            f"{counted(settings.places, 'place')}. Take codes back, or revoke a member.",
            err=True,
        )
    file = settings.own_data and not settings.task.startswith(FLOWER)
    more = " --data FILE" if file else " --data-identity NAME" if settings.own_data else ""
    more += f" --task {settings.task}" if settings.task else ""
    command = f"sordino join {settings.coordinator or 'HOST:PORT'} --code -{more}"
    made = [
        {"code": code.to_text(), "id": code.code_id.hex(), "name": name, "expires": code.expires, "command": command}
        for code in codes
    ]
    lines = [
        f"study        {settings.study}",
        f"fingerprint  {show_fingerprint(fingerprint)}",
        f"expires      {minute(codes[0].expires)}\n",
        *(f"code         {code.to_text()}" for code in codes),
        "\nEach participant types this, and then its code:",
        f"  {command}",
        *(["\nFILE is the participant's, or a folder: docs/your_own_data.md."] if file else []),
        *([] if settings.coordinator else ["\nauthority.toml names no coordinator: replace HOST:PORT by its address."]),
        f"\nLet in:  sordino authority run {directory}  (or approve --sign)",
    ]
    answer(as_json, {"study": settings.study, "fingerprint": fingerprint.hex(), "invitations": made}, lines)


@_verb(
    "approve",
    "approve my-authority --sign",
    "Fetch the requests that wait at the coordinator and judge them.\n\nA request that proves an open join code is "
    "accepted, and so is a renewal by a participant on the roster; all others get the reason for the refusal. With "
    "ID only those requests are judged whose id, or whose identity, begins so; the others keep waiting. Accepted "
    "participants take part once the next version of the roster is signed: at once with --sign.",
)
def approve(
    directory: Where,
    chosen: Annotated[list[str] | None, argument("[ID...]", "Requests to judge.", shown="all")] = None,
    only_list: Annotated[bool, flag("--list", "Only show the waiting requests, and how they would be judged.")] = False,
    sign: Sign = False,
    as_json: Json = False,
) -> None:
    from authority import text
    from authority.link import open_link
    from authority.visit import Visit, attend, preview

    folder = open_folder(directory)
    with open_link(folder) as link:
        wanted = None
        if only_list or chosen:
            seen = preview(folder, link)
            wanted = text.chosen(seen, chosen or ())
        if only_list:
            visit = Visit([one for one in seen if wanted is None or one.request.id in wanted])
        else:
            visit = attend(folder, link, sign=sign, chosen=lambda signed: wanted is None or signed.id in wanted)
    lines = [
        *([text.line(one, preview=only_list) for one in visit.judgements] or ["No request waits at the coordinator."]),
        *text.signed_lines(visit),
        *([f"{visit.waiting} accepted, not yet listed:  sordino authority sign {directory}"] if visit.waiting else []),
    ]
    answer(as_json, {"requests": [text.row(one) for one in visit.judgements], **text.signed(visit)}, lines)


@_verb(
    "sign",
    "sign my-authority --out usb-stick --offline",
    "Close the next version of the roster, sign and publish it.\n\nIt lists all who were accepted and not "
    "revoked; where cohorts are drawn, their seeds are drawn anew. Without a change nothing is signed, but all "
    "that the coordinator doesn't have yet is published. With --out the roster is also written to files, to be "
    "carried to the coordinator, which uses them from the next round on.",
)
def sign_(
    directory: Where,
    out: Out = None,
    offline: Offline = False,
    after: Annotated[
        Path | None,
        option(
            "FOLDER",
            "After DIR was restored from an old copy: go on from roster.json, history.json and terms.json in it.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    from authority.founding import ROSTER_FILE
    from authority.roster import adopt
    from wire.roster_history import HISTORY_FILE
    from wire.study import TERMS_FILE

    lines: list[str] = []
    folder = open_folder(directory)
    if after is not None:
        document = (after / TERMS_FILE).read_bytes() if (after / TERMS_FILE).exists() else None
        with locked(folder) as store:
            roster, history = (after / ROSTER_FILE).read_bytes(), (after / HISTORY_FILE).read_bytes()
            found = adopt(store, roster, history, time.time(), document)
        lines = [
            f"Goes on from version {found.version}, digest {found.digest().hex()}. Compare it with a participant's "
            "(`sordino roster verify`): who handed it over may have kept a later one. Open codes are withdrawn; revoke "
            "again whom you revoked since then."
        ]
    _sign(folder, out, offline, as_json, lines)


def _sign(folder: AuthorityFolder, out: Path | None, offline: bool, as_json: bool, lines: Iterable[str] = ()) -> None:
    """Sign the next version if there is something new; publish or write what the coordinator needs."""
    from authority import text
    from authority.founding import write_roster
    from authority.link import open_link
    from authority.roster import sign_next, stated_until
    from authority.visit import Visit, attend

    if offline or (out is not None and not folder.settings.coordinator):
        with locked(folder) as store:
            version = sign_next(store, time.time())
        visit = Visit(signed=None if version is None else (version.version, version.participants))
    else:
        by_hand = f"sordino authority sign {folder.path} --offline --out FOLDER"
        copied = "and copy its files over the coordinator's"
        with open_link(folder, f"carry the roster by hand: {by_hand}, {copied}") as link:
            visit = attend(folder, link, sign=True, chosen=lambda _: False)
    with locked(folder) as store:
        files = [] if out is None else write_roster(store, out, time.time())
        until = stated_until(store) if files or visit.published is not None else 0
    lines = [
        *lines,
        *text.signed_lines(visit, always=True),
        *([f"Stated that this version is the newest until {minute(until)}."] if until else []),
        *(f"wrote {path}" for path in files),
    ]
    answer(as_json, {**text.signed(visit), "until": until, "files": [str(path.resolve()) for path in files]}, lines)


@_verb(
    "terms",
    "terms my-authority terms.json --offline --out usb-stick",
    "Sign the terms of the study: its task, its plan and its budget.\n\nParticipants take part under no other "
    "terms than those that the authority has signed with the roster, and join codes name them. Without FILE they "
    "are fetched from the coordinator, which isn't trusted: read them before you agree. `sordino init` makes and "
    "signs them for a study whose authority it makes. Signing others later makes a new version of the roster; "
    "each participant accepts them anew with `sordino join --accept`.",
)
def terms(
    directory: Where,
    file: Annotated[
        Path | None, argument("[FILE]", "The coordinator's terms.json.", shown="from the coordinator")
    ] = None,
    yes: Annotated[bool, flag("--yes", "Sign without being asked.")] = False,
    out: Out = None,
    offline: Offline = False,
    as_json: Json = False,
) -> None:
    from authority.link import LinkError, open_link
    from authority.roster import accept_terms, read_terms
    from client.joining.description import changed_terms, listed, terms_of

    folder = open_folder(directory)
    if file is not None:
        document = file.read_bytes()
    else:
        by_hand = f"sordino authority terms {folder.path} terms.json --offline --out FOLDER"
        with open_link(folder, f"name the coordinator's file: {by_hand}") as link:
            document = link.document()
    with locked(folder) as store:
        signed = store.terms()
    wanted, before = read_terms(folder, document), None if signed is None else read_terms(folder, signed)
    width = terminal_width() - 2
    lines = [f"Terms of {wanted.study}, {hashlib.sha256(document).hexdigest()}", "", *listed(terms_of(wanted), width)]
    if before is not None and signed != document:
        lines += ["", "What changes", *listed(changed_terms(before, wanted), width)]
    if signed != document and not yes:
        if as_json or not sys.stdin.isatty():
            raise InputFailure("there is no terminal for the question whether to sign: add --yes if you agree.")
        typer.echo("\n".join(lines))
        lines = []
        typer.confirm("Sign these terms?", abort=True)
    with locked(folder) as store:
        accept_terms(store, document, time.time())
    try:
        _sign(folder, out, offline or (file is not None and not folder.settings.coordinator), as_json, lines)
    except LinkError as error:
        error.suggestion = f"The terms are recorded. Sign and publish them later: sordino authority sign {directory}"
        raise


@_verb(
    "history", "history my-authority", "Show all signed versions of the roster and the terms in each, but no secret."
)
def history_(directory: Where, as_json: Json = False) -> None:
    from authority.roster import history

    folder = open_folder(directory)
    with locked(folder) as store:
        heads, versions = history(store), store.versions()
    rows, lines = [], []
    for head, (_, signed, participants, _) in zip(heads, versions, strict=True):
        digests = {"roster": head.digest().hex(), "terms": head.terms.hex(), "previous": head.previous.hex()}
        rows.append({"version": head.version, "signed": signed, "participants": participants, **digests})
        lines.append(
            f"{head.version:>7}  {minute(signed)}  {counted(participants, 'participant'):<18}"
            f"roster {digests['roster'][:12]}…  terms {digests['terms'][:12]}…"
        )
    answer(as_json, {"study": folder.settings.study, "versions": rows}, lines)


@_verb(
    "revoke",
    "revoke my-authority clinic-7 --sign",
    "Remove a participant from the roster, or take an invitation back.\n\nWHO is a host's name or the beginning of "
    "an identity; or the name or the beginning of the id of an open invitation. A revoked identity can't be "
    "admitted again, and no other host gets its name. The revocation takes effect with the next version of the "
    "roster: at once with --sign, and in the study from its next attempt at a round.",
)
def revoke_(
    directory: Where,
    who: Annotated[str, argument("WHO", "The participant, or the invitation.")],
    whole_host: Annotated[
        bool, flag("--whole-host", "All participants on the host of that name, if it has several.")
    ] = False,
    sign: Sign = False,
    as_json: Json = False,
) -> None:
    from authority import text
    from authority.link import LinkError, open_link
    from authority.visit import Visit, attend

    folder = open_folder(directory)
    with locked(folder) as store:
        taken = None if find_members(store, who, whole_host=whole_host) else withdraw(store, who, time.time())
        gone = [] if taken else revoke(store, who, time.time(), whole_host=whole_host)
    if not as_json:  # before the network is needed
        for member in gone:
            typer.echo(f"revoked {member.host}, identity {member.identity.hex()[:16]}")
        if taken is not None:
            typer.echo(f"took the invitation {taken.code_id.hex()[:8]} back")
    visit, later = Visit(), f"sordino authority sign {directory}"
    if not folder.settings.coordinator:
        later += " --out FOLDER"
    if sign and gone:
        try:
            with open_link(folder) as link:
                visit = attend(folder, link, sign=True, chosen=lambda _: False)
        except (InputFailure, LinkError) as error:
            error.suggestion = f"The revocation is recorded, and takes effect with the next version: {later}"
            raise
    body = {
        "revoked": [{"identity": member.identity.hex(), "host": member.host} for member in gone],
        "withdrawn": None if taken is None else taken.code_id.hex(),
    }
    lines = text.signed_lines(visit)
    if gone and not sign:
        lines.append(f"It takes effect with the next version:  {later}")
    if as_json or lines:
        answer(as_json, body | text.signed(visit), lines)


@_verb(
    "show",
    "show my-authority",
    "Show members, invitations and signed versions, but no secret: codes can't be shown again.",
)
def show(directory: Where, as_json: Json = False) -> None:
    from authority.text import overview, overview_lines

    folder = open_folder(directory)
    with locked(folder) as store:
        found = overview(store, time.time())
    answer(as_json, found, overview_lines(found))


@_verb(
    "page",
    "page my-authority",
    "Show requests, invitations and members in a browser on this machine, until Ctrl-C.\n\nThere you invite, and "
    "approve requests one by one, each with the beginning of its identity, as `approve ID --sign` does. The page "
    "needs a password, which is printed. From another machine, forward the port by ssh.",
)
def page(
    directory: Where,
    port: Annotated[int, number("Port on loopback; 0: a free one.", 0, 65_535)] = 0,
    as_json: Json = False,
) -> None:
    from server.http_port import beside
    from sordino.reporting.authority_page import AuthorityPage

    shown = AuthorityPage(open_folder(directory))
    with beside([shown.guarded()], port=port) as address:
        body = {"page": f"http://{address}/", "password": shown.password}
        answer(as_json, body, [f"page      {body['page']}", f"password  {shown.password}  (any user name)"])
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


app.command("run", help=authority_run.HELP, epilog=authority_run.EPILOG)(authority_run.run)
