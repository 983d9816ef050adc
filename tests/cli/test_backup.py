"""``sordino backup`` and ``restore``: whose folder it is, what stays out, and what is refused."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from client.saved_phases import STATES_FILE, SavedPhases
from server.journal import Journal
from tests.support.archives import manifest_of, tar_of
from tests.support.commands import Run, one_clear_error, output
from tests.support.databases import execute


def names(archive: Path) -> set[str]:
    with tarfile.open(archive) as tar:
        return set(tar.getnames())


def test_each_party_has_its_own_copy(run: Run, small_study: Path, tmp_path: Path) -> None:
    places = {"study": small_study, "host": small_study / "hosts" / "host-01", "authority": small_study / "authority"}
    for kind, place in places.items():
        archive, again = tmp_path / f"{kind}.tar", tmp_path / "again" / kind
        told = json.loads(output(run, "backup", place, "--out", archive, "--json"))
        assert (told["kind"], told["study"], told["files"]) == (kind, "small", len(names(archive)) - 1)
        assert archive.stat().st_mode & 0o777 == 0o600
        said = output(run, "restore", archive, again)
        of_others = {"hosts", "authority"} if kind == "study" else set()
        kept = {path.relative_to(place) for path in place.rglob("*") if path.is_file() and path.suffix != ".lock"}
        kept = {path for path in kept if path.parts[0] not in of_others}
        assert {path.relative_to(again) for path in again.rglob("*") if path.is_file()} == kept
        plain = [path for path in kept if path.suffix != ".sqlite"]  # a database's copy counts its own changes
        assert all((again / path).read_bytes() == (place / path).read_bytes() for path in plain)
    section = said.partition("docs/enrolment.md, ")[2].strip(".\n")
    text = (Path(__file__).parents[2] / "docs/enrolment.md").read_text().partition(f"\n## {section}\n")[2]
    assert "**After a restored backup**" in text.partition("\n## ")[0]  # where restore points to
    assert not any(name.startswith(("hosts", "authority/")) for name in names(tmp_path / "study.tar"))


def test_states_that_answer_once_are_in_no_copy(run: Run, small_study: Path, tmp_path: Path) -> None:
    """Restored, one could sign a second set of survivors in the attempt that it signed one in."""
    home, archive = small_study / "hosts" / "host-01", tmp_path / "host.tar"
    with SavedPhases(home / STATES_FILE):
        pass
    output(run, "backup", home, "--out", archive)
    assert STATES_FILE not in names(archive)
    assert "host.toml" in names(archive)


def test_by_default_the_copy_is_here_and_named_after_the_folder(
    run: Run, small_study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = output(run, "backup", "study")
    [archive] = tmp_path.glob("study-*.tar")
    assert said.startswith(f"{archive.name}: ")
    assert "whoever has it can pass for the coordinator" in said


def test_what_no_copy_is_made_of(run: Run, small_study: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "copy.tar")
    one_clear_error(run, "is the folder of no study, host or authority", "backup", tmp_path, *out)
    one_clear_error(run, "would lie in the folder", "backup", small_study, "--out", small_study / "copy.tar")
    nowhere = tmp_path / "nothing" / "copy.tar"
    one_clear_error(run, f"{nowhere} can't be written", "backup", small_study, "--out", nowhere)
    card = small_study / "coordinator" / "card.json"
    card.rename(tmp_path / "card.json")
    card.symlink_to(tmp_path / "card.json")
    one_clear_error(run, f"card is {card}, which lies outside {small_study}", "backup", small_study, *out)
    assert not (tmp_path / "copy.tar").exists()


def test_where_nothing_is_restored(run: Run, small_study: Path, tmp_path: Path) -> None:
    archive = tmp_path / "copy.tar"
    output(run, "backup", small_study, "--out", archive)
    one_clear_error(run, "is not empty: name a folder that doesn't exist", "restore", archive, small_study)
    one_clear_error(run, "there is no such file", "restore", tmp_path / "none.tar", tmp_path / "again")
    shutil.copy(small_study / "study.toml", archive)
    one_clear_error(run, "copy.tar is damaged, or no copy", "restore", archive, tmp_path / "again")
    about = {"kind": "host", "study": "small", "from": str(small_study), "under_way": ""}
    for lacking in ("kind", "from", "under_way"):
        tar_of(archive, manifest_of(**{name: value for name, value in about.items() if name != lacking}))
        one_clear_error(run, "copy.tar is damaged, or no copy", "restore", archive, tmp_path / "again")
    assert not (tmp_path / "again").exists()
    output(run, "restore", tar_of(archive, manifest_of(**about)), tmp_path / "again")


def test_a_coordinator_is_copied_when_no_attempt_waits_for_its_charge(
    run: Run, small_study: Path, tmp_path: Path
) -> None:
    state = small_study / "coordinator" / "state.sqlite"
    begin = "INSERT INTO attempts (round, attempt, started) VALUES (1, {}, 0)"
    journal = Journal(state)  # as a coordinator that runs
    try:
        asyncio.run(journal.open_study("small", b"its terms"))
        execute(state, begin.format(1))
        command = [sys.executable, "-m", "sordino", "backup", str(small_study), "--out", str(tmp_path / "one.tar")]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(2.0)
            execute(state, "UPDATE attempts SET outcome = 'aborted'")
            assert process.wait(60) == 0
        execute(state, begin.format(2))
    finally:
        journal.close()
    output(run, "backup", small_study, "--out", tmp_path / "two.tar")  # nobody can charge it now
    shutil.rmtree(state.parent)
    assert "was stopped in" not in output(run, "restore", tmp_path / "one.tar", tmp_path / "one")
    assert "was stopped in round 1, attempt 2" in output(run, "restore", tmp_path / "two.tar", tmp_path / "two")
