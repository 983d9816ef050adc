"""The runner of random scripts: it plays, tells what it played, and says so when something breaks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import ClassVar

import pytest

from tests.secagg import random_scripts, test_server_phases, test_unmasking
from tests.secagg.random_scripts import KINDS, OF_PARTICIPANTS, OF_THE_COORDINATOR, Played, attacks_on, batches, play
from tests.support.naive_variants import CLIENT, SERVER


@pytest.mark.parametrize("kind", KINDS)
def test_scripts_of_every_kind_are_played_and_explained_claims_held(kind: str) -> None:
    played = play(kind, 3, 6)
    assert not played.broken, played.text
    assert played.scripts >= 6
    assert played.checked.total() > 100
    assert played.seen.total() > 6
    for claim in played.checked:
        assert f"\n    {claim} " in random_scripts.claims()


def test_the_same_seed_plays_the_same_scripts() -> None:
    kind = "lying-ring"
    one, again, other = (play(kind, number, 4) for number in (7, 7, 8))
    assert (one.scripts, one.seen, one.checked) == (again.scripts, again.seen, again.checked)
    assert one.checked != other.checked


def test_a_broken_claim_is_shown_with_its_steps() -> None:
    naive = CLIENT.without("this phase is over for this participant")
    played = play("lying-complete", 1, 50, naive)
    assert played.broken in ("over", "one answer", "one kind", "forged")
    assert "state.begin(" in played.text
    assert "reproduce_failure" in played.text
    assert "--kind lying-complete --seed 1 --scripts 50 --jobs 1" in played.text


def test_batches_take_turns_and_each_kind_gets_as_many() -> None:
    kinds = ["one", "other"]
    assert list(batches(kinds, 119, 10)) == [("one", 10, 50), ("other", 11, 50), ("one", 12, 10), ("other", 13, 10)]
    assert list(batches(kinds, 1, 10)) == [("one", 10, 1), ("other", 11, 1)]
    assert {*OF_PARTICIPANTS, *OF_THE_COORDINATOR} == set(KINDS)


def test_every_check_can_be_taken_out_alone() -> None:
    """Both sides have some; what is left runs, and isn't what there was."""
    checks = random_scripts.checks()
    assert {side for side, _ in checks} == {"participant", "coordinator"}
    assert len(checks) > 50
    for side, check in checks:
        naive = CLIENT.without(check) if side == "participant" else SERVER.without(check)
        assert naive.AdvertiseKeys is not CLIENT.AdvertiseKeys
    named = [check for side, check in checks if attacks_on(side, check)]
    assert len(named) > 50


def test_the_tests_that_are_named_for_a_check_exist() -> None:
    for name in random_scripts.BY_A_TEST.values():
        assert callable(getattr(test_server_phases, name, None) or getattr(test_unmasking, name))


class Workers:
    """In the place of a pool of processes, with results that are given or made in this process."""

    def __init__(self, jobs: int) -> None:
        assert jobs == 1

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def imap_unordered(self, call: object, tasks: object) -> list[Played]:
        return self.played

    def imap(self, call: object, tasks: list[tuple[str, str, int, int]]) -> list[random_scripts.Found]:
        return [random_scripts.Found(side, check, 3, self.broken) for side, check, _, _ in tasks]

    def terminate(self) -> None:
        pass


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> type[Workers]:
    class These(Workers):
        played: ClassVar[list[Played]] = []
        broken: ClassVar[str] = ""

    monkeypatch.setattr(random_scripts.multiprocessing, "get_context", lambda method: SimpleNamespace(Pool=These))
    return These


@pytest.mark.parametrize("broken", [False, True])
def test_a_broken_claim_exits_with_1(broken: bool, workers: type[Workers], capsys: pytest.CaptureFixture[str]) -> None:
    bad = Played("lying-ring", 50, broken="few", text="state.begin(...)") if broken else Played("lying-ring", 50)
    workers.played = [Played("lying-ring", 50), bad]
    assert random_scripts.main(["--jobs", "1", "--kind", "lying-ring", "--scripts", "100"]) == broken
    shown = capsys.readouterr().out
    assert ("no claim is broken" in shown) == (not broken)
    assert ("the claim 'few' is broken\nstate.begin(...)" in shown) == broken


@pytest.mark.parametrize(("broken", "code"), [("sum", 0), ("", 1)])
def test_unneeded_checks_are_named(
    broken: str, code: int, workers: type[Workers], capsys: pytest.CaptureFixture[str]
) -> None:
    workers.broken = broken
    assert random_scripts.main(["--naive", "--jobs", "1", "--only", "if received < needed"]) == code
    shown = capsys.readouterr().out.splitlines()
    assert shown[-1].startswith("  coordinator: raise TooFewClients(") == (not broken)
    assert any("the vector must have shape" in line for line in shown)
