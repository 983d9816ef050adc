"""A study for a curious coordinator: participants join it only if their policy accepts that, and then reveal shares for
the survivors that the coordinator names, without signatures.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from client.host_file import load
from runtime.failure import ExitCode, Failure
from tests.support.host_in_process import Play
from tests.support.study_in_process import PARTICIPANTS, make_folder
from wire.records.ledger_rows import CHARGE, EXACT


@pytest.fixture(scope="module")
def curious_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("studies") / "curious", adversary="curious")


def test_a_default_policy_refuses_it(curious_folder: Path, played: Play) -> None:
    """Only folders that ``init`` makes accept it, since the owner of the study makes them."""
    assert load(curious_folder / "hosts" / "host-01").settings().policy.curious_coordinator
    story = played(folder=curious_folder, policy={"curious_coordinator": False})
    assert isinstance(story.ended, Failure)
    assert story.ended.code == ExitCode.INPUT
    assert "curious-coordinator: no participant would sign whose updates are in a sum" in str(story.ended)
    assert (story.ready, story.sent) == (set(), [])


def test_a_whole_study(curious_folder: Path, tmp_path: Path, played: Play) -> None:
    story = played(folder=curious_folder)
    assert story.ended == 0
    assert story.kinds() == {"advertise_keys", "share_keys", "masked_input", "upload", "unmasking"}
    done = story.of("round_completed")
    assert [(event["u1"], event["u3"]) for event in done] == [(PARTICIPANTS, PARTICIPANTS)] * 2
    phases = {event["phase"] for event in story.of("phase_started")}
    assert phases == {"AdvertiseKeys", "ShareKeys", "MaskedInputCollection", "Unmasking"}
    [accepted] = [entry for entry in story.logs if entry["event"] == "study accepted"]
    assert (accepted["trusts"], accepted["adversary"]) == ("the coordinator, to follow the protocol", "curious")
    kinds = [row.kind for row in story.rows()]
    assert kinds.count(CHARGE) == kinds.count(EXACT) == 2 * PARTICIPANTS
    assert not (tmp_path / "transcripts").exists()
