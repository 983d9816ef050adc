"""``sordino transcript``: check what a coordinator states about a finished round, and explain it in plain words."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from runtime.failure import ExitCode, Failure, InputFailure
from runtime.text import several
from sordino.cli.verbs import Json, answer, argument, option, verb_group, verb_in

app = verb_group(
    "transcript",
    "Check the transcript of a finished round, offline.\n\nA transcript is one signed file: which participants were "
    "invited, advertised keys, dealt, uploaded and signed, under which plan, and what was charged. The "
    "study's authority is all that is needed to check it: no network, coordinator or secrets. docs/transcripts.md says "
    "what it proves and what it doesn't.",
)
KEY_HELP = "The study's authority: its authority.pub, the 64 hexadecimal digits in it, or its fingerprint."


@verb_in(
    app,
    "verify",
    "transcript verify my-study/coordinator/transcripts/*.transcript --authority my-study/authority/authority.pub",
    "Check one transcript, or several of one study in the order of their rounds.\n\nEverything is computed again: "
    "the authority's and the coordinator's signatures, roster, plan, lottery, every member's signed keys, "
    "thresholds, sets, the quorum's signatures over them, and the charge. For several files also that each names "
    "the one before it, so that none was left out or replaced, and that rounds and roster versions only grow. "
    "The first check that fails is named.",
    ExitCode.TRANSCRIPT,
)
def verify(
    files: Annotated[list[Path], argument("FILE...", "Transcripts, oldest first.")],
    authority: Annotated[str, option("KEY", KEY_HELP)],
    own: Annotated[
        list[Path] | None,
        option(
            "FILE",
            "Records that a participant exported (sordino join --export): the transcripts must agree with them.",
            shown="none",
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    known = read_authority(authority)
    from sordino.reporting.transcript_text import figures
    from wire.records.transcript_checks import Chain, verify_transcript

    chain, held, found = Chain(), list[dict[str, Any]](), list[Any]()
    for path in files:
        with _explained(path, transcripts=held):
            verified = verify_transcript(read_file(path), known)
            chain.add(verified)
        held.append({"file": str(path), **figures(verified)})
        found.append(verified)
    said = [
        f"{one['file']}: round {one['round']} of {one['study']} holds: u1 {one['u1']}, u2 {one['u2']}, "
        f"u3 {one['u3']}, {one['signatures']} signatures."
        for one in held
    ]
    if len(held) > 1:
        said.append(f"{len(held)} transcripts, each named by the next; rounds and roster versions only grow.")
    if held[0]["previous"] is not None:
        begins = held[0]["round"]
        said.append(
            f"Round {begins} names an earlier transcript, which wasn't given: rounds before {begins} aren't checked."
        )
    compared = [_compared(path, found) for path in own or ()]
    for one in compared:
        said.append(
            f"{one['file']}: the records of participant {one['participant'][:8]} agree; it is in {one['in_sums']} of "
            f"these sums." + (f" It helped to open others: {_numbers(one['others'])}." if one["others"] else "")
        )
    return answer(as_json, {"ok": True, "transcripts": held, "participants": compared}, said)


def _compared(path: Path, transcripts: list[Any]) -> dict[str, Any]:
    """A participant's own records beside transcripts that hold; ``others``: attempts that it opened and none covers."""
    from wire.records.participation import read_participation

    with _explained(path):
        own = read_participation(path.read_bytes())
        in_sums = sum(own.agrees(one) for one in transcripts)
    others = own.opened() - {(one.contents.round, one.contents.attempt) for one in transcripts}
    return {
        "file": str(path),
        "participant": own.identity.hex(),
        "in_sums": in_sums,
        "others": [{"round": round_, "attempt": attempt} for round_, attempt in sorted(others)],
    }


def _numbers(attempts: list[dict[str, int]]) -> str:
    """``round 3 attempt 1, round 4 attempt 1``; the first ten."""
    return several([f"round {one['round']} attempt {one['attempt']}" for one in attempts], 10)


@verb_in(
    app,
    "show",
    "transcript show my-study/coordinator/transcripts/round-000001.transcript",
    "Explain a transcript in plain words: study and round, which participants took part and which left where, the "
    "plan's promises, how many signed, and what the file doesn't prove.\n\nIt is checked first. Without "
    "--authority it is checked against the authority that it names: compare the fingerprint with the one you know.",
    ExitCode.TRANSCRIPT,
)
def show(
    file: Annotated[Path, argument("FILE", "A transcript.")],
    authority: Annotated[str | None, option("KEY", KEY_HELP, shown="the one that the file names")] = None,
    as_json: Json = False,
) -> int:
    known = None if authority is None else read_authority(authority)
    data = read_file(file)
    from sordino.reporting.transcript_text import figures, lines
    from wire.records.transcript_checks import verify_transcript

    with _explained(file, transcripts=[]):
        verified = verify_transcript(data, known)
    body = {"file": str(file), "authority_known": known is not None, **figures(verified)}
    return answer(as_json, body, lines(verified, known is not None))


@contextlib.contextmanager
def _explained(path: Path, **about: Any) -> Iterator[None]:
    """A record that doesn't hold is a failure of the command; ``about``: what else its JSON has."""
    from wire.records.participation import InvalidParticipation
    from wire.records.transcript import InvalidTranscript

    try:
        yield
    except (InvalidParticipation, InvalidTranscript) as error:
        failure = Failure(ExitCode.TRANSCRIPT, f"{path}: {error}")
        failure.about = {"ok": False, "file": str(path), "error": str(error), **about}
        if isinstance(error, InvalidTranscript):
            failure.about |= {"check": error.check, "error": error.sentence}
        raise failure from None


def read_file(path: Path) -> bytes:
    if path.is_dir():
        place = path / "transcripts" if (path / "transcripts").is_dir() else path  # the coordinator's folder
        if (path / "coordinator").is_dir():  # a study's
            place = path / "coordinator" / "transcripts"
        raise InputFailure(f"{path} is a folder: name the files in it, such as {place}/*.transcript")
    data = path.read_bytes()
    if not data.startswith(b'{"'):
        raise InputFailure(f"{path} isn't a transcript. Name a file such as round-000001.transcript.")
    return data


def read_authority(text: str) -> bytes:
    """A public key (32 bytes) or a fingerprint (16). Raises Failure: neither, nor a file that holds a key."""
    found = _hex(text)
    if found is not None:
        return found
    path = Path(text)
    try:
        key = _hex(path.read_text(encoding="ascii")) if path.stat().st_size <= 1024 else None
    except (OSError, UnicodeDecodeError, ValueError):
        key = None
    if key is None or len(key) != 32:
        raise InputFailure(
            f"--authority {text}: name the file authority.pub, or give the 64 hexadecimal digits in it, or the "
            "fingerprint of 8 groups of 4 digits."
        )
    return key


def _hex(text: str) -> bytes | None:
    try:
        value = bytes.fromhex(text.replace("-", " ").replace(":", " "))
    except ValueError:
        return None
    return value if len(value) in (16, 32) else None
