"""Joining a study by code: show it, ask the participant, send the request, and keep the authority's answer.

Before the participant agrees, this only opens a connection. Before the request is sent, all that is needed to repeat it
is on disk, so the same command continues after an interruption at any moment.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from client.connection import open_channel
from client.enrolment import (
    CLOCK_NOTED_S,
    EnrolmentRefused,
    EnrolmentUnavailable,
    Look,
    NobodyListens,
    ask,
    check_answer,
    clock_sentence,
    look,
    reach,
)
from client.host_file import CoordinatorTable, HostTable, StudyTable, host_toml
from client.joining import checks, folder
from client.joining.description import describe_study
from client.joining.folder import JoinedHome
from client.joining.local_enrolment import Say, join_code_at
from client.joining.options import JoinOptions
from learning.data_checks import check_form_fits, check_task_takes
from runtime.failure import Failure, InputFailure, NetworkFailure
from runtime.key_files import KeyFileError, read_key_file
from runtime.text import minute, peer_text, printable, terminal_width
from secagg.keys import IdentityKey
from wire import coordinator_pb2 as pb
from wire.certificates import identity_uri, new_key, private_pem
from wire.enrolment import EnrolmentRequest, InvalidRequest, make_csr, make_request, read_request
from wire.join_code import InvalidCode, JoinCode, fingerprint

FIRST_POLL_S, LONGEST_POLL_S, POLL_GROWTH = 0.25, 10.0, 1.15
REMIND_S: Final = 60.0
LISTENS_S, LISTENS_POLL_S = 60.0, 1.0
"""How long to wait for a coordinator that isn't started yet, as `sordino join --home` does."""
_ACCEPTED_BY_CODE: Final = (
    "Terms are accepted anew only in a folder that a join code has made. Undo the change in study.toml, or make a new "
    "study with `sordino init` and take its host's folder"
)
_HEADER: Final = (
    "One participant of a Sordino study, enrolled by code. `sordino join --home` reads this file.",
    "The folder is complete and holds the only copy of the participant's identity: keep it.",
)

Found = TypeVar("Found")


async def get_place(options: JoinOptions, say: Say) -> Path:
    """The participant's folder, complete; the same call continues after an interruption. Raises as `join_by_code`.

    This requests a code at the authority's local enrolment socket only to make a new folder, once the coordinator
    listens. The socket takes it back unless the folder was made, so a process that fails repeatedly uses up no places.
    """
    home: JoinedHome | None = None
    desk, homes = options.desk, options.homes
    if homes is not None:
        wanted = _read_code(options.code).fingerprint if options.code else None
        path, home = folder.take_home(
            homes,
            address=options.address or None,
            authority=lambda key: wanted is None or fingerprint(key) == wanted,
            desk=desk,
            begin=bool(options.code) or desk is not None,
            say=say,
        )
        options = options.model_copy(update={"home": path})
    elif desk is not None:
        home = folder.home_at(options.address) if options.home is None else folder.open_home(options.home)
    if home is not None:
        await go_on(options, home, say)
        return home.path
    if desk is None:
        return await join_by_code(options, say)
    await _patiently(lambda: reach(options.address), say)
    with join_code_at(desk, say) as given:
        return await join_by_code(options.model_copy(update={"code": given.code, "kept": given.keep}), say)


async def join_by_code(options: JoinOptions, say: Say) -> Path:
    """Get a place in a study; returns the participant's folder, complete. The same call continues an interrupted join.

    Raises Failure if the code, the card, the plan or the folder can't be used, the authority refuses, or the
    coordinator can't be reached (`client.enrolment.EnrolmentUnavailable`).
    """
    say = _safely(say)
    code = _read_code(options.code)
    home = folder.find_home(code.code_id) if options.home is None else _matching(folder.open_home(options.home), code)
    if home is not None:
        await go_on(options, home, say)
        return home.path
    now = time.time()
    try:
        code.check_time(now)
    except InvalidCode as error:
        raise InputFailure(
            f"{_sentence(error)} (It was valid until {minute(code.expires)}; this machine's clock says {minute(now)}.)"
        ) from None
    home = await _begin(options, code, say)
    await _wait(home, say)
    return home.path


async def go_on(options: JoinOptions, home: JoinedHome, say: Say) -> None:
    """Complete a folder from an earlier join, with the same options. Raises as `join_by_code`."""
    say = _safely(say)
    await checks.check_again(options, home, say)
    if home.complete:
        say(f"{home.path} has already joined {home.study}.")
    else:
        await _wait(home, say)


def accept(options: JoinOptions, say: Say) -> None:
    """Accept changed terms in the folder of ``options``. Raises as `client.joining.checks.accept_terms`."""
    home = None if options.home is None else folder.open_home(options.home, _ACCEPTED_BY_CODE)
    if home is None:
        raise InputFailure("--accept needs --home DIR: the folder that a join by code has made.")
    say = _safely(say)
    asyncio.run(
        checks.accept_terms(home, options.task, say, lambda: _agree(options, say, "Accept these terms? [y/N] "))
    )


async def finish_joining(home: Path, say: Say) -> None:
    """Continue an interrupted join in ``home``, if there is one. Raises as `join_by_code`."""
    if (found := folder.unfinished(home)) is not None:
        await _wait(found, _safely(say))


# ------------------------------------------------------------ before the request


def _read_code(text: str) -> JoinCode:
    try:
        return JoinCode.from_text(text)
    except InvalidCode as error:
        raise InputFailure(_sentence(error)) from None


def _matching(home: JoinedHome | None, code: JoinCode) -> JoinedHome | None:
    if home is not None and home.code_id != code.code_id:
        raise InputFailure(
            f"{home.path} belongs to another join code, for the study {home.study}. Name a new folder with --home."
        )
    return home


async def _begin(options: JoinOptions, code: JoinCode, say: Say) -> JoinedHome:
    """Show the study, ask the participant, and write the folder."""
    seen = await _patiently(lambda: look(options.address, code.fingerprint, code.terms), say)
    document, study = seen.document, seen.card.study
    place = options.home if options.home is not None else folder.default_home(study)
    found = _matching(folder.open_home(place), code)
    if found is not None:
        await checks.check_again(options, found, say)
        return found
    if seen.clock_difference_s is not None and abs(seen.clock_difference_s) > CLOCK_NOTED_S:
        say(f"Note: {clock_sentence(seen.clock_difference_s)}.\n")
    checks.check_task(options, document.task, document.task_options)
    # Without an option derived from the code, so that the shown values are the final ones.
    host = options.name if options.name is not None else f"participant-{_derived(code, b'name')[:4].hex()}"
    data = checks.choose_data(options, seen, int.from_bytes(_derived(code, b"part")[:8], "little"))
    if document.own_data and data.file is None and data.identity is None:
        raise InputFailure("the participants of this study bring their own data: add --data FILE, your file or folder.")
    own = None if options.data is None else checks.read_own_file(options, options.data, seen)
    held = own if own is not None else checks.read_example(data, seen)
    of = data.dataset if options.data is None else str(options.data)
    if held is not None:  # before the question: the form alone may make joining impossible
        check_form_fits(document.task, document.task_options, held, of, planned=document.plan.dim)
    policy, policy_file = (None, None) if options.policy_file is None else checks.read_policy(options.policy_file)
    data_table, held_here = data.tables()
    ledger = {} if options.ledger is None else {"ledger": options.ledger.absolute()}
    with checks.refused_values():
        text = host_toml(
            _HEADER,
            host=HostTable(name=host, **ledger),
            study=StudyTable(
                name=study,
                task=document.task,
                authority_public_key=seen.card.authority_public.hex(),
                sha256=seen.study_sha256.hex(),  # the document that is shown; no other is taken part in
            ),
            # Without a limit: its owner stops it, or the study's end does.
            coordinator=CoordinatorTable(address=seen.card.address, enrolment=options.address, give_up_s=0.0),
            policy=checks.accepted_plan(seen) if policy_file is None else {"file": folder.POLICY_FILE},
            task=document.task_options,
            data=data_table,
            participants=[{"key": str(folder.IDENTITY_FILE), **held_here}],
        )
    checks.check_host(text, options.policy_file, policy, seen, checks.spent_in(options.ledger))
    lines = describe_study(seen, options, home=place, host=host, data=data, held=own, width=terminal_width() - 2)
    for line in (*lines, ""):
        say(line)
    if options.data is not None and own is not None:
        for sentence in checks.unread(options.data, own, seen):
            say(f"Warning: {sentence}.\n")
    _agree(options, say)
    if held is not None:  # after the question: this runs the task with options from a stranger
        check_task_takes(document.task, document.task_options, held, of, planned=document.plan.dim)
    private, tls_key = Ed25519PrivateKey.generate(), new_key()
    identity = IdentityKey(private)
    try:
        request = EnrolmentRequest("join", study, identity.public, host, make_csr(tls_key), time.time(), code.code_id)
    except InvalidRequest as error:
        raise InputFailure(f"{error}: change --name.") from None
    made = folder.make_home(
        place,
        host_toml=text,
        policy_file=policy_file,
        ca=seen.card.tls_ca,
        card=_card_note(seen),
        terms=document.to_bytes(),
        request=make_request(request, identity, code),
        identity_key=private_pem(private),
        tls_key=private_pem(tls_key),
    )
    options.kept()
    return made


async def _patiently(reaching: Callable[[], Awaitable[Found]], say: Say) -> Found:
    """Repeat while the coordinator doesn't listen yet, for `LISTENS_S`."""
    ends, reported = time.monotonic() + LISTENS_S, False
    while True:
        try:
            return await reaching()
        except NobodyListens as error:
            if time.monotonic() >= ends:
                raise
            if not reported:
                say(f"{error}. Trying again for {LISTENS_S:g} s. Ctrl-C is safe: nothing was sent.")
                reported = True
        await asyncio.sleep(LISTENS_POLL_S)


def _agree(options: JoinOptions, say: Say, question: str = "Join this study? [y/N] ") -> None:
    if options.agreed:
        return
    if not sys.stdin.isatty():
        raise InputFailure(
            "there is no terminal for the question whether to join: add --yes if you agree, in Python yes=True."
        )
    say(question)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise InputFailure("not joined: nothing was sent, and nothing was changed.")


def _derived(code: JoinCode, what: bytes) -> bytes:
    """32 pseudorandom bytes from the code's id, which the request also holds."""
    return hashlib.sha256(b"sordino/v1/join\x00" + what + b"\x00" + code.code_id).digest()


def _card_note(seen: Look) -> bytes:
    """What the participant accepted, for later reference."""
    card = seen.card
    note = {
        "study": card.study,
        "authority": card.authority_public.hex(),
        "coordinator": card.coordinator_public.hex(),
        "address": card.address,
        "study_sha256": seen.study_sha256.hex(),
        "accepted_at": int(time.time()),
    }
    return (json.dumps(note, indent=1) + "\n").encode()


# ------------------------------------------------------------ until the request is answered


async def _wait(home: JoinedHome, say: Say) -> None:
    """Send the request until it is answered, and keep the answer."""
    with folder.only_process(home):
        settings = home.settings()
        address = settings["coordinator"]["enrolment"]
        authority = bytes.fromhex(settings["study"]["authority_public_key"])
        try:
            ca, key = (home.path / "ca.pem").read_bytes(), read_key_file(home.path / folder.TLS_KEY_FILE)
        except (OSError, KeyFileError) as error:
            raise InputFailure(f"{error}. Restore the folder from a copy, or join into a new one.") from None
        answer = await _answer(home, address, ca, say)
        refused = answer.status == pb.ENROL_STATUS_REFUSED
        if refused and not answer.answer:
            raise _unsigned(home, answer.reason)
        try:
            names = (identity_uri(home.identity),)
            signed = check_answer(
                answer.answer, authority_public=authority, request=home.request, ca=ca, key=key, names=names
            )
        except EnrolmentRefused as error:
            raise (
                _unsigned(home, answer.reason) if refused else InputFailure(f"{address}: {error}; it isn't kept.")
            ) from error
        if not signed.accepted:
            home.keep_refusal(peer_text(signed.reason))
            raise InputFailure(
                f"not joined: {peer_text(signed.reason).rstrip('.')}. The study's authority has signed this refusal; "
                f"the folder {home.path} has no further use and can be deleted."
            )
        if refused:  # although the authority signed that it accepts
            raise _unsigned(home, answer.reason)
        home.finish(signed.certificate, signed.host, read_request(home.request).request.host, signed.place)
    say(f"Joined {home.study} as {signed.host}; from now on use `sordino join --home {home.path}`.")


async def _answer(home: JoinedHome, address: str, ca: bytes, say: Say) -> pb.EnrolAnswer:
    """The coordinator's final answer; after its first answer this also waits for an unreachable coordinator."""
    reported, told_at, remind_s, poll_s, taken = "", 0.0, REMIND_S, FIRST_POLL_S, False
    waits = f"waiting for the study's authority to sign the next roster with identity {home.shown_identity}"
    async with open_channel(address, ca) as channel:
        while True:
            try:
                answer = await ask(channel, address, home.request)
                if answer.status in (pb.ENROL_STATUS_ACCEPTED, pb.ENROL_STATUS_REFUSED):
                    return answer
                taken, state = True, waits
            except EnrolmentUnavailable as error:
                if not taken and not reported:  # at once: the address may be mistyped
                    raise NetworkFailure(
                        f"{error}. Your request and identity are kept in {home.path}: run the same command again."
                    ) from error
                state = f"{error}; trying again"
            if state != reported or time.monotonic() - told_at >= remind_s:
                say(f"{minute(time.time())}: {state}. Ctrl-C is safe: the same command continues.")
                remind_s = REMIND_S if state != reported else 2 * remind_s  # it may take days
                reported, told_at = state, time.monotonic()
            await asyncio.sleep(poll_s * (0.75 + 0.5 * random.random()))  # so that clients don't ask together
            poll_s = min(poll_s * POLL_GROWTH, LONGEST_POLL_S)


def _unsigned(home: JoinedHome, reason: str) -> Failure:
    return InputFailure(
        "not joined: the coordinator says, without the authority's signature: "
        f"{peer_text(reason).rstrip('.') or 'it refuses'}. Your request and identity are kept in {home.path}: ask the "
        "study's owner, and run the same command again."
    )


def _safely(say: Say) -> Say:
    """Print safely: some of the text comes from another machine."""
    return lambda line: say(printable(line))


def _sentence(error: Exception) -> str:
    return str(error).rstrip(".") + "."
