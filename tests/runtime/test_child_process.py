"""A request to stop: the first is noted, the second interrupts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from runtime.child_process import STOP_S, Child, StopRequest, stop


def ask() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_the_first_is_noted_and_the_second_interrupts() -> None:
    """An exception between two instructions could leave a lock held."""
    asked, before = StopRequest(), signal.getsignal(signal.SIGTERM)
    with asked.noted():
        ask()
        assert asked.to_end
        with pytest.raises(KeyboardInterrupt):
            ask()
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_second_request_to_stop_does_not_wait(tmp_path: Path) -> None:
    ready, asked = tmp_path / "ready", StopRequest()
    deaf = f"import signal, time\nsignal.signal(15, print)\nopen({str(ready)!r}, 'w').close()\ntime.sleep(60)"
    child = Child("deaf", [], tmp_path / "log")
    child.process = subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.DEVNULL)
    while not ready.exists():
        time.sleep(0.01)
    with asked.noted():
        ask()
        threading.Timer(0.2, ask).start()
        began = time.monotonic()
        stop(child, [])
    assert time.monotonic() - began < STOP_S
    assert child.poll() == -signal.SIGKILL
