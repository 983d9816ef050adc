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
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sordino.exit_codes import ExitCode, Failure
from sordino.joined_home import (
    CARD_FILE,
    DataChoice,
    JoinedHome,
    default_home,
    find_home,
    host_text,
    make_home,
    only_process,
    open_home,
)

if TYPE_CHECKING:
    from client.enrolment import Look
    from client.policy_file import PolicyTable
    from wire.enrolment import JoinCode

FIRST_POLL_S, LONGEST_POLL_S, POLL_GROWTH = 0.25, 10.0, 1.15
REMIND_S: Final = 60.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class JoinOptions:
    """What she chose at the command.

    Attributes:
        home: her folder; None for one named after the study.
        name: of her process on the roster; None for one made of her identity.
        part, parts: her part of the data, from 1; None for one made of her identity, of as many as the plan has.
        policy_file: None: the plan that she is shown, once accepted, becomes her policy.
        agreed: don't ask.
        ledger: None for one in the folder.
    """

    address: str
    code: str = field(repr=False)
    home: Path | None
    policy_file: Path | None = None
    agreed: bool = False
    name: str | None = None
    dataset: str = "fashion-mnist-subset"
    partition: str = "dirichlet"
    alpha: float = 1.0
    seed: int = 1
    part: int | None = None
    parts: int | None = None
    ledger: Path | None = None


def join_by_code(options: JoinOptions, say: Say) -> Path:
    """Get a place in a study; returns her folder, complete. The same call again goes on where it was interrupted.

    Raises:
        Failure: the code, the other side, the plan or the folder can't be used, or the authority refuses.
        client.enrolment.EnrolmentUnavailable: nobody answers.
    """
    from wire.enrolment import InvalidCode, JoinCode

    try:
        code = JoinCode.from_text(options.code)
    except InvalidCode as error:
        raise Failure(ExitCode.INPUT, _sentence(error)) from None
    home = find_home(code.code_id) if options.home is None else _matching(open_home(options.home), code)
    if home is not None and home.complete:
        say(f"{home.path} has joined {home.study} already.")
        return home.path
    if home is None:
        _check_time(code)
        home = asyncio.run(_begin(options, code, say))
    asyncio.run(_wait(home, say))
    return home.path


def finish_joining(home: Path, say: Say) -> None:
    """Go on with a join that was interrupted, if ``home`` is one; else nothing.

    Raises:
        Failure, client.enrolment.EnrolmentUnavailable: as `join_by_code`.
    """
    if not (home / CARD_FILE).is_file():
        return
    found = open_home(home)
    if found is not None and not found.complete:
        asyncio.run(_wait(found, say))


def _matching(home: JoinedHome | None, code: JoinCode) -> JoinedHome | None:
    if home is not None and home.code_id != code.code_id:
        raise Failure(
            ExitCode.INPUT,
            f"{home.path} belongs to another join code, for the study {home.study}. Name a new folder with --home.",
        )
    return home


def _check_time(code: JoinCode) -> None:
    from client.certificate import shown
    from wire.enrolment import InvalidCode

    now = time.time()
    try:
        code.check_time(now)
    except InvalidCode as error:
        raise Failure(
            ExitCode.INPUT,
            f"{_sentence(error)} (It was good until {shown(code.expires)}; this machine's clock says {shown(now)}.)",
        ) from None


async def _begin(options: JoinOptions, code: JoinCode, say: Say) -> JoinedHome:
    """Look at the study, let her agree, and write her folder."""
    from client.enrolment import CLOCK_NOTED_S, clock_sentence, look
    from sordino.plan_text import terminal_width

    seen = await look(options.address, code.fingerprint)
    study = seen.card.study
    place = options.home if options.home is not None else default_home(study)
    found = _matching(open_home(place), code)
    if found is not None:
        return found
    if seen.clock_difference_s is not None and abs(seen.clock_difference_s) > CLOCK_NOTED_S:
        say(f"Note: {clock_sentence(seen.clock_difference_s)}.\n")
    private, identity = _new_identity()
    host = options.name if options.name is not None else f"participant-{identity.public.hex()[:8]}"
    data = _data(options, seen, identity.public)
    policy, policy_file = _policy(options)
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
        policy=None if policy_file is not None else _accepted(seen),
        ledger=None if options.ledger is None else options.ledger.absolute(),
    )
    _check_policy(text, policy, seen)
    from sordino.join_text import describe_study
    from wire.enrolment import show_fingerprint

    for line in describe_study(
        seen,
        fingerprint=show_fingerprint(code.fingerprint),
        home=place,
        host=host,
        data=data,
        ledger=options.ledger,
        width=terminal_width() - 2,
    ):
        say(line)
    say("")
    _agree(options, say)
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
    return made


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
    from sordino.certificates import new_key, private_pem
    from wire.enrolment import EnrolmentRequest, InvalidRequest, make_csr, make_request

    key = new_key()
    try:
        request = EnrolmentRequest("join", study, identity.public, host, make_csr(key), time.time(), code.code_id)
    except InvalidRequest as error:
        raise Failure(ExitCode.INPUT, f"{error}: change --name.") from None
    return private_pem(key), make_request(request, identity, code)


def _data(options: JoinOptions, seen: Look, identity: bytes) -> DataChoice:
    plan = seen.document.plan
    parts = options.parts if options.parts is not None else max(plan.clients, plan.population)
    if options.part is None:
        part = int.from_bytes(hashlib.sha256(b"part" + identity).digest()[:8], "little") % parts
    else:
        part = options.part - 1
    if not 0 <= part < parts:
        raise Failure(ExitCode.INPUT, f"--part {options.part} is none of {parts} parts of the data: use 1 to {parts}.")
    return DataChoice(options.dataset, options.partition, options.alpha, options.seed, parts, part)


def _policy(options: JoinOptions) -> tuple[PolicyTable | None, bytes | None]:
    """Hers, checked, with the bytes of its file."""
    if options.policy_file is None:
        return None, None
    from client.policy_file import POLICY_FILE, load_policy

    file = options.policy_file / POLICY_FILE if options.policy_file.is_dir() else options.policy_file
    return load_policy(file), file.read_bytes()


def _accepted(seen: Look) -> dict[str, Any]:
    """The plan that she accepts as her policy: this very study document, and no worse terms."""
    plan = seen.document.plan
    return {
        "max_epsilon": plan.budget_coordinator,
        "max_delta": plan.delta,
        "mechanisms": [plan.mechanism],
        "min_cohort": plan.quorum,
        "min_survivors": plan.min_survivors,
        "min_honest_survivors": plan.h_min,
        "min_colluders": plan.colluders,
        "study_digests": [seen.study_sha256.hex()],
    }


def _check_policy(text: str, policy: PolicyTable | None, seen: Look) -> None:
    """Hold the study against host.toml as it will be, before anything is sent or written."""
    import tomllib

    from pydantic import ValidationError

    from client.configuration import HostConfiguration
    from client.policy import PolicyRefusal, check_study

    content = tomllib.loads(text)
    if policy is not None:
        content["policy"] = policy.model_dump(exclude_none=True)
    try:
        settings = HostConfiguration(**content).settings()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise Failure(ExitCode.INPUT, f"{where}: {first['msg']}. Change the option that it comes from.") from None
    try:
        check_study(settings, seen.document, seen.study_sha256)
    except PolicyRefusal as error:
        raise Failure(
            ExitCode.INPUT, f"your policy refuses this study ({error}). Nothing was sent, and no folder was made."
        ) from None


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
    from client.certificate import shown
    from client.enrolment import (
        EnrolmentRefused,
        EnrolmentUnavailable,
        ask,
        check_answer,
        enrolment_channel,
        names_of,
    )
    from wire import coordinator_pb2 as pb
    from wire.enrolment import read_request
    from wire.key_files import KeyFileError, read_key_file

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
                raise Failure(
                    ExitCode.INPUT,
                    f"not joined: {answer.reason}. The folder {home.path} is of no use any more and can be deleted.",
                )
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
        raise Failure(ExitCode.INPUT, f"{address}: {error}; it isn't kept.") from error
    if not accepted.accepted:
        raise Failure(ExitCode.INPUT, f"not joined: {accepted.reason}.")
    home.finish(accepted.certificate, accepted.host, wished)
    say(f"Joined {home.study} as {accepted.host}; from now on `sordino join --home {home.path}` is enough.")


def _whom_to_ask(home: JoinedHome) -> tuple[str, bytes]:
    """The port for enrolment and the authority's key, from host.toml."""
    import tomllib

    file = home.path / "host.toml"
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
        return content["coordinator"]["enrolment"], bytes.fromhex(content["study"]["authority_public_key"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Failure(
            ExitCode.INPUT, f"{file} can't be used ({type(error).__name__}): restore it, or join into a new folder."
        ) from None


def _sentence(error: Exception) -> str:
    return str(error).rstrip(".") + "."


