"""``sordino status``: of a folder, whether a coordinator runs or not, and of an address."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.journal import Journal
from sordino.reporting.live_page import LivePage, shown_beside
from tests.support.commands import Run, one_clear_error, output, says
from tests.support.event_stream import fed, make_events


@pytest.fixture
def recorded(small_study: Path) -> Path:
    """A study whose coordinator stopped without a word in the middle of round 5."""
    journal = Journal(small_study / "coordinator" / "state.sqlite")
    for event in make_events(until=5):
        journal.emit(event)
    journal.close()
    return small_study


@contextlib.contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """The address of a server that answers one request."""
    with socket.create_server(("127.0.0.1", 0)) as other:

        def say() -> None:
            one, _ = other.accept()
            one.recv(4096)
            one.sendall(answer)
            one.close()

        thread = threading.Thread(target=say, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{other.getsockname()[1]}"
        thread.join()


def test_a_folder_whose_coordinator_does_not_run(run: Run, recorded: Path) -> None:
    text = output(run, "status", recorded)
    says(text, "The coordinator ended at", ", in round 5, MaskedInput", "accuracy            0.618", " 0 connected")
    assert output(run, "status", recorded, "--watch") == text
    body = json.loads(output(run, "status", recorded, "--json"))
    assert (body["running"], body["now"]["round"], body["privacy"]["budget_coordinator"]) == (False, 5, 8.0)
    assert json.loads(output(run, "status", recorded, "--watch", "--json")) == body


def test_a_folder_whose_coordinator_runs(run: Run, recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(recorded / "coordinator" / "state.sqlite")
    try:
        body = json.loads(output(run, "status", recorded, "--json"))
        assert (body["running"], body["now"]["over"]) == (True, None)
        assert 0 < body["now"]["left_s"] <= 60
        says(output(run, "status", recorded), "now                 Round 5, MaskedInput")
        later = iter(make_events()[len(make_events(until=5)) :])
        with monkeypatch.context() as waits:
            waits.setattr("time.sleep", lambda seconds: [journal.emit(event) for event in later])
            says(output(run, "status", recorded, "--watch"), "round 15: sum of 100", "finished: 15 of 15 rounds")
    finally:
        journal.close()
    says(output(run, "status", recorded, "--watch"), "Finished: 15 of 15 rounds")


def test_a_study_that_was_never_served(run: Run, small_study: Path) -> None:
    never = f"The study small was never served: sordino serve {small_study}"
    assert output(run, "status", small_study) == never + "\n"
    assert json.loads(output(run, "status", small_study, "--json"))["said"] == never
    (small_study / "coordinator" / "ledger.sqlite").write_bytes(b"")
    one_clear_error(run, "is missing, beside a ledger: restore the newest backup", "status", small_study, code=41)


def test_what_is_no_address(run: Run) -> None:
    one_clear_error(run, "the address of a page begins with http://", "status", "192.0.2.2:9464")


def test_a_page_that_answers(run: Run) -> None:
    with shown_beside(LivePage(fed(make_events()))) as address:
        text = output(run, "status", f"http://{address}/")
        says(text, "Finished: 15 of 15 rounds", "epsilon_coordinator 6.79 of 8")
        assert output(run, "status", f"http://{address}", "--watch").split() == text.split()
        body = json.loads(output(run, "status", f"http://{address}", "--json"))
        assert (body["running"], body["now"]["over"]) == (True, "rounds done")
        one_clear_error(run, "no page of a study answers", "status", f"http://{address}/elsewhere", code=4)


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-x\r\n", b"HTTP/1.1 200 OK\r\n\r\n{}", b"HTTP/1.1 200 OK\r\n\r\n["])
def test_what_is_no_page_is_one_clear_error(run: Run, answer: bytes) -> None:
    with answering(answer) as address:
        one_clear_error(run, f"no page of a study answers at {address}", "status", address, code=4)
    one_clear_error(run, f"no page of a study answers at {address}", "status", address, code=4)


def test_a_page_with_a_password(run: Run) -> None:
    with answering(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n") as address:
        one_clear_error(run, "asks for a password: --password FILE", "status", address)
