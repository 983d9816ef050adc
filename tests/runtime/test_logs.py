"""Logs of the processes: without a terminal every line is JSON, those of libraries too."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
import structlog

from runtime.logs import _OthersLines, configure_logs
from runtime.text import json_line


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    root = logging.getLogger()
    for one in [one for one in root.handlers if isinstance(one, _OthersLines)]:
        root.removeHandler(one)


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
