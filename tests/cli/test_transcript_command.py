"""``sordino transcript``: what it says, how it ends, and how it takes bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from runtime.failure import ExitCode
from secagg.keys import IdentityKey
from tests.support.attempts_in_memory import identities
from tests.support.commands import Run, one_clear_error, output, refusal, says, words
from tests.support.rounds_on_record import AUTHORITY_KEY, drawn, play, signed, study_of, whole
from wire.join_code import fingerprint, show_fingerprint
from wire.records.ledger_rows import EXACT
from wire.records.participation import write_participation
from wire.records.transcript import read_transcript
from wire.records.transcript_checks import verify_transcript


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three rounds on record, and the authority's key."""
    where = tmp_path_factory.mktemp("record")
    for number, data in enumerate(study_of(whole(), [1, 2, 3]), start=1):
        (where / f"round-{number:06d}.transcript").write_bytes(data)
    (where / "drawn").write_bytes(play(drawn(), silent=[], late=[]).write())
    (where / "dropouts").write_bytes(play(whole(), absent=[6], late=[2]).write())
    (where / "authority.pub").write_text(AUTHORITY_KEY.hex() + "\n")
    return where


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.transcript"))


def test_several_files_are_checked_as_a_chain(folder: Path, run: Run) -> None:
    out = output(run, "transcript", "verify", *files(folder), "--authority", folder / "authority.pub")
    assert out.count(" holds") == 3
    assert "each named by the next" in out
    assert "not checked" not in out  # the beginning is there


def test_a_chain_without_its_beginning_says_so(folder: Path, run: Run) -> None:
    out = output(run, "transcript", "verify", *files(folder)[1:], "--authority", folder / "authority.pub")
    said = "Round 2 names an earlier transcript, which wasn't given: rounds before 2 aren't checked."
    assert out.splitlines()[-1] == said


@pytest.mark.parametrize(
    "key",
    [
        AUTHORITY_KEY.hex(),
        AUTHORITY_KEY.hex().upper(),
        show_fingerprint(fingerprint(AUTHORITY_KEY)),
        show_fingerprint(fingerprint(AUTHORITY_KEY)).replace(" ", "-"),
        fingerprint(AUTHORITY_KEY).hex(),
    ],
)
def test_the_authority_is_named_as_people_have_it(folder: Path, key: str, run: Run) -> None:
    assert run("transcript", "verify", files(folder)[0], "--authority", key)[0] == 0


# ---------------------------------------------------------------- a participant's own records


def records(folder: Path, who: int = 0, rounds: int = 3, **changed: object) -> bytes:
    """What participant ``who`` exports after so many rounds; ``changed``: fields of its second attempt."""
    attempts = []
    for path in files(folder)[:rounds]:
        verified = verify_transcript(path.read_bytes(), AUTHORITY_KEY)
        signed_here = who in dict(verified.contents.signatures)
        attempts.append(
            {
                **{"round": verified.contents.round, "attempt": 1, "charge": EXACT, "answered": "aa" * 32},
                "signed": verified.statement.hex() if signed_here else None,
            }
        )
    attempts[1].update(changed)
    study = verified.config.study_digest.hex()
    return write_participation(identities(7)[who], study="x", study_sha256=study, attempts=attempts, ledger={})


def compare(folder: Path, tmp_path: Path, run: Run, data: bytes) -> tuple[int, str, str]:
    own = tmp_path / "own.participation"
    own.write_bytes(data)
    return run("transcript", "verify", *files(folder), "--authority", AUTHORITY_KEY.hex(), "--own", own)


def test_own_records_that_agree(folder: Path, tmp_path: Path, run: Run) -> None:
    code, out, _ = compare(folder, tmp_path, run, records(folder))
    assert code == 0
    assert "agree; it is in 3 of these sums." in out
    code, out, _ = compare(folder, tmp_path, run, records(folder, round=9))
    assert code == 42  # it is in the sum of round 2, and its records lack it


def of_a_stranger(folder: Path) -> bytes:
    """Its number isn't on the roster at all: records of a sum that it opened fit no transcript."""
    verified = verify_transcript(files(folder)[0].read_bytes(), AUTHORITY_KEY)
    opened = {"round": 1, "attempt": 1, "charge": EXACT, "answered": "aa" * 32, "signed": None}
    study = verified.config.study_digest.hex()
    return write_participation(IdentityKey.generate(bytes), study="x", study_sha256=study, attempts=[opened], ledger={})


IN_SUM = "the transcript has the participant in the sum of round 2, attempt 1, its records"
NOT_AGREEING: list[tuple[Callable[[Path], bytes], str]] = [
    (partial(records, signed="bb" * 32), "the participant signed other survivor sets in round 2, attempt 1"),
    (partial(records, signed=None), "the transcript of round 2, attempt 1 has a signature that isn't in the records"),
    (partial(records, charge="excluded"), IN_SUM),
    (partial(records, charge=None), f"{IN_SUM} don't"),
    # Exported after round 2, read beside three transcripts.
    (
        partial(records, rounds=2),
        "in the sum of round 3, attempt 1, its records end with round 2: if it went on since, export",
    ),
    (of_a_stranger, "opened a sum with its input in round 1"),
    (
        lambda folder: records(folder).replace(b'"round":2', b'"round":4'),
        "isn't signed by the participant that it names",
    ),
    (lambda folder: records(folder)[:-40], "isn't a participant's records, or it was cut short"),
    (lambda _: b'{"format": "other"}', "it isn't a participant's records (sordino-participation-1)"),
    (lambda _: b"[]", "isn't a participant's records"),
]


@pytest.mark.parametrize(("own", "told"), NOT_AGREEING)
def test_own_records_that_do_not_agree(
    folder: Path, tmp_path: Path, run: Run, own: Callable[[Path], bytes], told: str
) -> None:
    code, _, err = compare(folder, tmp_path, run, own(folder))
    assert code == 42
    assert told in " ".join(err.split())


def test_json_names_what_was_found(folder: Path, run: Run) -> None:
    asked = (*files(folder), "--authority", AUTHORITY_KEY.hex(), "--json")
    body = json.loads(output(run, "transcript", "verify", *asked))
    assert body["ok"]
    assert [one["round"] for one in body["transcripts"]] == [1, 2, 3]
    first, second, _ = body["transcripts"]
    assert second["previous"] == first["sha256"]
    assert second["model_sha256"] == first["next_model_sha256"]
    assert (first["u1"], first["u3"], first["A"], first["honest"]) == (7, 7, 2, 5)
    assert 0 < first["epsilon"] < 100


def test_the_first_thing_that_is_wrong_is_named(folder: Path, tmp_path: Path, run: Run) -> None:
    found = read_transcript(files(folder)[1].read_bytes())
    changed = tmp_path / "changed"
    changed.write_bytes(signed(replace(found, signatures=found.signatures[1:])))
    asked = (files(folder)[0], changed, "--authority", AUTHORITY_KEY.hex(), "--json")
    code, out, err = run("transcript", "verify", *asked)
    body = json.loads(out)
    assert code == int(ExitCode.TRANSCRIPT) == body["exit_code"] == 42
    assert (body["ok"], body["file"], body["check"]) == (False, str(changed), "signatures")
    assert [one["round"] for one in body["transcripts"]] == [1]
    said = f"{changed}: signatures: 4 participants signed the survivor sets, 5 needed.\n"
    assert err == f"sordino transcript verify: {said}"
    assert run("transcript", "show", changed) == (42, "", f"sordino transcript show: {said}")


def test_a_gap_is_found(folder: Path, run: Run) -> None:
    asked = (*files(folder)[::2], "--authority", AUTHORITY_KEY.hex())
    told = refusal(run, "transcript", "verify", *asked, code=42)
    assert "round-000003.transcript: chain: round 3 after round 1" in told


def test_another_authority_is_named_by_its_fingerprint(folder: Path, run: Run) -> None:
    told = refusal(run, "transcript", "verify", files(folder)[0], "--authority", "00" * 32, code=42)
    assert show_fingerprint(fingerprint(AUTHORITY_KEY)) in told


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["verify", "FILE", "--authority", "no-such-file"], "authority.pub"),
        (["verify", "FILE", "--authority", "00" * 20], "authority.pub"),
        (["verify", "FILE", "--authority", "FILE"], "authority.pub"),
        (["verify", "FILE"], "--authority"),
        (["verify", "missing", "--authority", "00" * 32], "missing"),
        (["verify", __file__, "--authority", "00" * 32], "isn't a transcript"),
        (["verify", "FOLDER", "--authority", "00" * 32], "*.transcript"),
        (["show", "missing"], "missing"),
        (["show"], "FILE"),
    ],
)
def test_bad_input(folder: Path, arguments: list[str], said: str, run: Run) -> None:
    places = {"FILE": str(files(folder)[0]), "FOLDER": str(folder)}
    one_clear_error(run, said, "transcript", *(places.get(one, one) for one in arguments))


def test_show_lists_dropouts_and_what_is_not_proved(folder: Path, run: Run) -> None:
    said = words(run, "transcript", "show", folder / "dropouts")
    says(
        said,
        "Round 1 of the study on-record, attempt 1",
        "Compare this fingerprint",
        "Invited: 7, all of the 7 on version 1 of the roster.",
        "u1: 6 advertised keys; 1 never answered:",
        "(host-",
        "u2: 6 shared keys.",
        "u3: 5 are in the sum; 1 left before their vector was in:",
        "Signed: 5 members of u3",
        "By itself, at the study's order, this sum costs each of ",
        "the 5 in it epsilon ",
        "if at most 2 of the 7 collude. Such figures can't be added; all 5 rounds together cost at most 100.",
        "At least 3 of them are honest on that assumption; the plan opens no sum with fewer than 3 honest ones.",
        "With fewer than 5 in it the sum stays closed; ",
        "That training was honest",
    )
    assert said.count("the sum stays closed") == 1
    known = run("transcript", "show", folder / "dropouts", "--authority", folder / "authority.pub")[1]
    assert "under the authority that you named" in known


def test_show_of_a_drawn_cohort(folder: Path, run: Run) -> None:
    assert "drawn by the authority's seeds from the 20" in words(run, "transcript", "show", folder / "drawn")
    body = json.loads(run("transcript", "show", folder / "drawn", "--json")[1])
    named = ("sampling", "invited", "roster_size", "authority_known")
    assert [body[name] for name in named] == ["lottery", 7, 20, False]


def test_for_a_studys_folder_the_transcripts_are_named(tmp_path: Path, run: Run) -> None:
    (tmp_path / "coordinator" / "transcripts").mkdir(parents=True)
    assert f"such as {tmp_path}/coordinator/transcripts/*.transcript" in refusal(run, "transcript", "show", tmp_path)
