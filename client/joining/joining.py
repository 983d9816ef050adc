"""Joining a study by code: look, agree, ask, wait for the authority, and keep what it answers.

Until she agrees nothing is sent but the opening of a connection. Before her request leaves everything that it takes to
ask again is on disk, so an interruption at any moment costs nothing: the same command goes on.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from client.joining.checks import (
    JoinOptions,
    accepted_plan,
    check_form,
    check_host,
    choose_data,
    read_example,
    read_own_file,
    read_policy,
    spent_in,
    take_again,
    try_own,
    unread,
)
from client.joining.folder import (
    BY_PLACE,
    CARD_FILE,
    JoinedHome,
    default_home,
    find_home,
    home_at,
    host_text,
    make_home,
    only_process,
    open_home,
    take_home,
)
from client.joining.local_enrolment import code_from_desk
from learning.task_names import STATISTICS, TASKS, trained_task
from runtime.failure import ExitCode, Failure
from runtime.text import peer_text, printable

if TYPE_CHECKING:
    from client.enrolment import Look
    from wire.join_code import JoinCode

FIRST_POLL_S, LONGEST_POLL_S, POLL_GROWTH = 0.25, 10.0, 1.15
REMIND_S: Final = 60.0
LISTENS_S, LISTENS_POLL_S = 60.0, 1.0
"""How long a coordinator that isn't started yet is waited for, as by `sordino join --home`."""

Say = Callable[[str], None]
Found = TypeVar("Found")


def join_by_code(options: JoinOptions, say: Say) -> Path:
    """Get a place in a study; returns her folder, complete. The same call again goes on where it was interrupted.

    Raises:
        Failure: the code, the other side, the plan or the folder can't be used, or the authority refuses.
        client.enrolment.EnrolmentUnavailable: nobody answers.
    """
    from wire.join_code import InvalidCode, JoinCode

    say = _safely(say)
    try:
        code = JoinCode.from_text(options.code)
    except InvalidCode as error:
        raise Failure(ExitCode.INPUT, _sentence(error)) from None
    home = find_home(code.code_id) if options.home is None else _matching(open_home(options.home), code)
    if home is not None:
        go_on(options, home, say)
        return home.path
    _check_time(code)
    home = asyncio.run(_begin(options, code, say))
    asyncio.run(_wait(home, say))
    return home.path


def go_on(options: JoinOptions, home: JoinedHome, say: Say) -> None:
    """With a folder that was made before, by the same options; complete when this returns.

    Raises:
        Failure, client.enrolment.EnrolmentUnavailable: as `join_by_code`.
    """
    say = _safely(say)
    asyncio.run(take_again(options, home, say))
    if home.complete:
        say(f"{home.path} has joined {home.study} already.")
    else:
        asyncio.run(_wait(home, say))


def finish_joining(home: Path, say: Say) -> None:
    """Go on with a join that was interrupted, if ``home`` is one; else nothing.

    Raises:
        Failure, client.enrolment.EnrolmentUnavailable: as `join_by_code`.
    """
    if not (home / CARD_FILE).is_file():
        return
    found = open_home(home)
    if found is not None and not found.complete:
        asyncio.run(_wait(found, _safely(say)))


def _matching(home: JoinedHome | None, code: JoinCode) -> JoinedHome | None:
    if home is not None and home.code_id != code.code_id:
        raise Failure(
            ExitCode.INPUT,
            f"{home.path} belongs to another join code, for the study {home.study}. Name a new folder with --home.",
        )
    return home


def _check_time(code: JoinCode) -> None:
    from client.credentials import shown
    from wire.join_code import InvalidCode

    now = time.time()
    try:
        code.check_time(now)
    except InvalidCode as error:
        raise Failure(
            ExitCode.INPUT,
            f"{_sentence(error)} (It was good until {shown(code.expires)}; this machine's clock says {shown(now)}.)",
        ) from None


def _check_task(options: JoinOptions, task: str, task_options: Mapping[str, object]) -> None:
    """Code beyond Sordino's runs on her machine only if she has named it herself: importing it runs it.

    Raises:
        Failure: the study's task is a module's and she hasn't named it, or she named another one; or it is a statistic
            with options that can't be, which she is not asked to agree to.
    """
    trained = trained_task(task, task_options)
    if options.task not in (None, task, trained):
        raise Failure(ExitCode.INPUT, f"--task {options.task}: the study's task is {task}.")
    if trained not in TASKS and options.task != trained:
        raise Failure(
            ExitCode.INPUT,
            f"the study's task {trained!r} is no part of Sordino: joining would run that module from this machine. "
            f"Read it, and if you trust it add --task {peer_text(trained)}.",
        )
    if task in STATISTICS:
        from learning.make_task import make_task
        from learning.options import OptionError

        try:
            make_task(task, dict(task_options))
        except OptionError as error:
            raise Failure(
                ExitCode.INPUT, f"the study's task {task!r} can't be, tell its coordinator: {peer_text(str(error))}."
            ) from None


async def _begin(options: JoinOptions, code: JoinCode, say: Say) -> JoinedHome:
    """Look at the study, let her agree, and write her folder."""
    from client.enrolment import CLOCK_NOTED_S, clock_sentence
    from runtime.text import terminal_width

    seen = await _look(options.address, code.fingerprint, say)
    study = seen.card.study
    place = options.home if options.home is not None else default_home(study)
    found = _matching(open_home(place), code)
    if found is not None:
        await take_again(options, found, say)
        return found
    if seen.clock_difference_s is not None and abs(seen.clock_difference_s) > CLOCK_NOTED_S:
        say(f"Note: {clock_sentence(seen.clock_difference_s)}.\n")
    _check_task(options, seen.document.task, seen.document.task_options)
    if seen.document.own_data and options.data is None:
        raise Failure(
            ExitCode.INPUT,
            "the participants of this study bring data of their own: add --data FILE, a .csv or .npz file of yours.",
        )
    private, identity = _new_identity()
    # Made of the code where she doesn't choose: what is shown before she agrees is what she gets when she does.
    host = options.name if options.name is not None else f"participant-{_made_of(code, b'name')[:4].hex()}"
    data = choose_data(options, seen, int.from_bytes(_made_of(code, b"part")[:8], "little"))
    held = read_example(data, seen) if options.data is None else read_own_file(options, options.data, seen)
    of = data.dataset if options.data is None else str(options.data)
    if held is not None:
        check_form(held, of, seen)
    policy, policy_file = (None, None) if options.policy_file is None else read_policy(options.policy_file)
    text = host_text(
        host=host,
        study=study,
        task=seen.document.task,
        task_options=seen.document.task_options,
        study_sha256=seen.study_sha256,
        authority_public=seen.card.authority_public,
        address=seen.card.address,
        enrolment=options.address,
        data=data,
        policy=None if policy_file is not None else accepted_plan(seen),
        ledger=None if options.ledger is None else options.ledger.absolute(),
    )
    # A place that isn't known yet can't stand in the way: each one has its part.
    checked = text.replace(f"\npart = \"{BY_PLACE}\"\n", "\npart = 0\n")
    check_host(checked, options.policy_file, policy, seen, spent_in(options.ledger))
    from client.joining.description import describe_study
    from wire.join_code import show_fingerprint

    for line in describe_study(
        seen,
        fingerprint=show_fingerprint(code.fingerprint),
        home=place,
        host=host,
        host_chosen=options.name is not None,
        data=data,
        part_chosen=options.part is not None,
        ledger=options.ledger,
        held=held if options.data is not None else None,
        width=terminal_width() - 2,
    ):
        say(line)
    say("")
    if options.data is not None and held is not None:
        for told in unread(options.data, held, seen):
            say(f"Warning: {told}.\n")
    _agree(options, say)
    if held is not None:
        try_own(of, held, seen)
    tls_key, request = _request(study, host, identity, code)
    make_home(
        place,
        host_toml=text,
        policy_file=policy_file,
        ca=seen.card.tls_ca,
        card=_card_note(seen),
        request=request,
        identity_key=private,
        tls_key=tls_key,
    )
    made = open_home(place)
    assert made is not None  # noqa: S101  # written by the lines above
    options.kept()
    return made


async def _look(address: str, fingerprint: bytes, say: Say) -> Look:
    """As `client.enrolment.look`, with patience for a coordinator that doesn't listen yet."""
    from client.enrolment import look

    return await _patiently(lambda: look(address, fingerprint), say)


async def wait_until_it_listens(address: str, say: Say) -> None:
    """Until somebody listens there; nothing is sent.

    Raises:
        client.enrolment.EnrolmentUnavailable, client.enrolment.EnrolmentRefused: nobody does, or no coordinator.
    """
    from client.enrolment import reach

    await _patiently(lambda: reach(address), say)


async def _patiently(reaching: Callable[[], Awaitable[Found]], say: Say) -> Found:
    from client.enrolment import NobodyListens

    ends, told = time.monotonic() + LISTENS_S, False
    while True:
        try:
            return await reaching()
        except NobodyListens as error:
            if time.monotonic() >= ends:
                raise
            if not told:
                say(f"{error}. Trying again for {LISTENS_S:g} s; Ctrl-C is safe: nothing was sent.")
                told = True
        await asyncio.sleep(LISTENS_POLL_S)


def _agree(options: JoinOptions, say: Say) -> None:
    if options.agreed:
        return
    if not sys.stdin.isatty():
        raise Failure(ExitCode.INPUT, "nobody can be asked here whether to join: add --yes if you agree to the above.")
    say("Join this study? [y/N] ")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Failure(ExitCode.INPUT, "not joined: nothing was sent, and no folder was made.")


def _new_identity() -> tuple[bytes, Any]:
    """A fresh Ed25519 key: its PEM, and as the protocol holds it."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from secagg.keys import IdentityKey

    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return pem, IdentityKey(key)


def _request(study: str, host: str, identity: Any, code: JoinCode) -> tuple[bytes, bytes]:
    """A fresh TLS key, PEM, and the request's bytes."""
    from wire.certificates import new_key, private_pem
    from wire.enrolment import EnrolmentRequest, InvalidRequest, make_csr, make_request

    key = new_key()
    try:
        request = EnrolmentRequest("join", study, identity.public, host, make_csr(key), time.time(), code.code_id)
    except InvalidRequest as error:
        raise Failure(ExitCode.INPUT, f"{error}: change --name.") from None
    return private_pem(key), make_request(request, identity, code)


def _made_of(code: JoinCode, what: bytes) -> bytes:
    """32 bytes that look random, the same for the same code; of its id, which her request names too."""
    return hashlib.sha256(b"sordino/v1/join\x00" + what + b"\x00" + code.code_id).digest()


def _card_note(seen: Look) -> bytes:
    """What she accepted, for whoever asks later."""
    import json

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


async def _wait(home: JoinedHome, say: Say) -> None:
    """Hand the request in until it is answered, and keep the answer."""
    with only_process(home):
        await _wait_for_answer(home, say)


async def _wait_for_answer(home: JoinedHome, say: Say) -> None:
    from client.credentials import shown
    from client.enrolment import EnrolmentRefused, EnrolmentUnavailable, ask, check_answer, enrolment_channel, names_of
    from runtime.key_files import KeyFileError, read_key_file
    from wire import coordinator_pb2 as pb
    from wire.enrolment import read_request

    address, authority = _whom_to_ask(home)
    try:
        ca, key = (home.path / "ca.pem").read_bytes(), read_key_file(home.tls_key)
    except (OSError, KeyFileError) as error:
        raise Failure(ExitCode.INPUT, f"{error}. Restore the folder from a copy, or join into a new one.") from None
    wished, request_id = read_request(home.request).request.host, hashlib.sha256(home.request).digest()
    told, told_at, poll_s, taken = "", 0.0, FIRST_POLL_S, False
    async with enrolment_channel(address, ca) as channel:
        while True:
            try:
                answer = await ask(channel, address, home.request)
                taken, trouble = True, ""
            except EnrolmentUnavailable as error:
                if not taken and not told:
                    # It may be a typing error: better said at once than waited for.
                    raise Failure(
                        ExitCode.NETWORK,
                        f"{error}. Your request and identity are kept in {home.path}: run the same command again.",
                    ) from error
                trouble, answer = str(error), pb.EnrolAnswer(status=pb.ENROL_STATUS_PENDING)
            if answer.status == pb.ENROL_STATUS_ACCEPTED:
                break
            if answer.status == pb.ENROL_STATUS_REFUSED:
                break
            if trouble:
                now_told = f"{trouble}; trying again. Ctrl-C is safe: the same command goes on"
            else:
                now_told = (
                    "waiting for the study's authority to sign the next roster. Ctrl-C is safe: the same command goes "
                    "on"
                )
            if now_told != told or time.monotonic() - told_at >= REMIND_S:
                say(f"{shown(time.time())}: {now_told}")
                told, told_at = now_told, time.monotonic()
            await asyncio.sleep(poll_s * (0.75 + 0.5 * random.random()))  # so that many don't ask at once
            poll_s = min(poll_s * POLL_GROWTH, LONGEST_POLL_S)
    if answer.status == pb.ENROL_STATUS_REFUSED and not answer.answer:
        raise Failure(ExitCode.INPUT, _only_said(home, answer.reason))
    try:
        accepted = check_answer(
            answer.answer,
            authority_public=authority,
            request_id=request_id,
            ca=ca,
            key=key,
            names=names_of(home.identity),
        )
    except EnrolmentRefused as error:
        if answer.status == pb.ENROL_STATUS_REFUSED:
            raise Failure(ExitCode.INPUT, _only_said(home, answer.reason)) from error
        raise Failure(ExitCode.INPUT, f"{address}: {error}; it isn't kept.") from error
    if not accepted.accepted:
        home.keep_refusal(peer_text(accepted.reason))
        raise Failure(
            ExitCode.INPUT,
            f"not joined: {peer_text(accepted.reason).rstrip('.')}. So the study's authority has signed; the folder "
            f"{home.path} is of no use any more and can be deleted.",
        )
    if answer.status == pb.ENROL_STATUS_REFUSED:  # with the authority's word that it accepts
        raise Failure(ExitCode.INPUT, _only_said(home, answer.reason))
    home.finish(accepted.certificate, accepted.host, wished, accepted.place)
    say(f"Joined {home.study} as {accepted.host}; from now on `sordino join --home {home.path}` is enough.")


def _only_said(home: JoinedHome, reason: str) -> str:
    said = peer_text(reason).rstrip(".") or "it refuses"
    return (
        f"not joined: the coordinator says, without the authority's signature: {said}. Your request and "
        f"identity are kept in {home.path}: ask the study's owner, and run the same command again."
    )


def _whom_to_ask(home: JoinedHome) -> tuple[str, bytes]:
    """The port for enrolment and the authority's key, from host.toml."""
    content = home.settings()
    return content["coordinator"]["enrolment"], bytes.fromhex(content["study"]["authority_public_key"])


def _safely(say: Say) -> Say:
    """Some of what is said was written elsewhere."""
    return lambda line: say(printable(line))


def _sentence(error: Exception) -> str:
    return str(error).rstrip(".") + "."


def get_place(options: JoinOptions, say: Say, *, desk: Path | None, homes: Path | None) -> Path:
    """Her folder, complete; the same call again goes on where it was interrupted.

    A code is asked for at the desk only when a new folder is to be made and the coordinator listens, and the desk takes
    it back unless the folder was made: whatever is started again and again uses up no places.

    Args:
        options: with an empty code, and perhaps an empty address, where there is none.
        desk: socket of the authority's desk.
        homes: folder of homes, of which the process takes one that no other has.

    Raises:
        Failure, client.enrolment.EnrolmentUnavailable: as `client.joining.joining.join_by_code`.
    """
    home: JoinedHome | None = None
    if homes is not None:
        path, home = take_home(
            homes,
            address=options.address or None,
            authority=_authority_of(options.code),
            desk=desk,
            begin=bool(options.code) or desk is not None,
            say=say,
        )
        options = replace(options, home=path)
    elif desk is not None:
        home = home_at(options.address) if options.home is None else open_home(options.home)
    if home is not None:
        go_on(options, home, say)
        return home.path
    if desk is None:
        return join_by_code(options, say)
    asyncio.run(wait_until_it_listens(options.address, say))
    with code_from_desk(desk, say) as given:
        return join_by_code(replace(options, code=given.code, kept=given.keep), say)


def _authority_of(code: str) -> Callable[[bytes], bool]:
    """Whether a public key is that of the authority that a code names; any is where there is no code."""
    from wire.join_code import InvalidCode, JoinCode, fingerprint

    if not code:
        return lambda key: True
    try:
        wanted = JoinCode.from_text(code).fingerprint
    except InvalidCode as error:
        raise Failure(ExitCode.INPUT, f"{str(error).rstrip('.')}.") from None
    return lambda key: fingerprint(key) == wanted
