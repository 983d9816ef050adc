"""Logs of the processes: without a terminal every line is JSON, those of libraries too."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
import structlog

from runtime.logs import _OthersLines, configure_logs
from runtime.text import json_line
from server.events import AttemptStarted, WaitingForParticipants


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    root = logging.getLogger()
    for one in [one for one in root.handlers if isinstance(one, _OthersLines)]:
        root.removeHandler(one)
    structlog.reset_defaults()


def lines(text: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in text.splitlines()]
    for one in found:
        assert datetime.fromisoformat(one["timestamp"]).utcoffset() is not None
        assert one["level"] in ("info", "warning", "error", "critical")
        assert isinstance(one["event"], str)
    return found


def test_every_line_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs()
    configure_logs()  # again, as `serve` does: no line comes twice
    structlog.get_logger().info("listening", address="127.0.0.1:1")
    logging.getLogger("uvicorn.error").error("went %s", "wrong")
    try:
        raise ValueError("a\nsecond line")
    except ValueError:
        logging.getLogger("grpc._cython.cygrpc").exception("a call failed")
        structlog.get_logger().exception("it failed")
    logging.getLogger("uvicorn.access").info("GET /metrics")  # no news
    listening, went, call, it = lines(capsys.readouterr().err)
    assert (listening["event"], listening["address"]) == ("listening", "127.0.0.1:1")
    assert (went["event"], went["level"], went["logger"]) == ("went wrong", "error", "uvicorn.error")
    assert (call["event"], call["level"], call["error"]) == ("a call failed", "error", "ValueError: a\nsecond line")
    assert "Traceback" in call["exception"]
    assert "Traceback" in it["exception"]


def test_on_a_terminal_they_are_for_people(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    configure_logs(lowest=logging.INFO)
    logging.getLogger("uvicorn.error").error("went \x1b[2J wrong")
    structlog.get_logger().info("left out of the round", reason="\x1b[2K\x9bJoined\u202e")
    said = capsys.readouterr().err
    assert "went ?[2J wrong" in said
    assert "uvicorn.error" in said
    assert "?[2K?Joined?" in said
    assert not [one for one in ("\x1b[2J", "\x1b[2K", "\x9b", "\u202e") if one in said]
    with pytest.raises(json.JSONDecodeError):
        json.loads(said)


def test_lines_of_verbs_have_the_same_keys() -> None:
    [one] = lines(json_line("round_completed", {"kind": "round_completed", "at": 0.5, "event": "x"}, at=0.5))
    assert one == {
        "timestamp": "1970-01-01T00:00:00.500000Z",
        "level": "info",
        "event": "round_completed",
        "kind": "round_completed",
        "at": 0.5,
    }


def test_a_wait_is_reported_on_changes_and_periodically() -> None:
    from sordino.cli.serve import Waits

    waits = Waits(every_s=10)
    wait = WaitingForParticipants(round=1, attempt=1, received=3, needed=7, expected=10, left_s=60.0)
    told = [
        waits.says_more(replace(wait, at=at, received=received, left_s=60.0 - at))
        for at, received in ((0, 3), (0.5, 3), (1.0, 4), (1.5, 4), (11.5, 4))
    ]
    assert told == [True, False, True, False, True]
    assert waits.says_more(AttemptStarted(round=1, attempt=1, cohort=7, at=12))
    assert waits.says_more(replace(wait, at=12.5, received=4))  # another wait
