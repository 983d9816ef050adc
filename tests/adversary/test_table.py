"""The table in docs/threat_model.md matches the scripts, and the printed one is legible."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from tests.adversary import table
from tests.adversary.script import COORDINATOR, PARTICIPANT, Naive, Places, Script, Seen, scripts

REWRITE = "run `python -m tests.adversary --write`"


ROWS = table.on_page()


def test_the_page_has_every_script_and_no_other() -> None:
    wanted = {script.name: list(table.static_cells(script)) for script in scripts()}
    assert {name: row[:-1] for name, row in ROWS.items()} == wanted, REWRITE


@pytest.mark.parametrize("script", scripts(), ids=lambda script: script.name)
def test_the_page_says_what_a_naive_side_loses(script: Script) -> None:
    said = ROWS[script.name][-1]
    assert (said == "—") == (not script.check), REWRITE


def test_without_pytest_it_says_how_to_run_it() -> None:
    code = (
        "import runpy, sys; sys.modules['pytest'] = None; sys.argv[1:] = ['--list'];"
        "runpy.run_module('tests.adversary', run_name='__main__')"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert 'run `make adversary ADVERSARY_ARGS="--only flood"`' in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_page_says_what_each_end_means() -> None:
    assert {script.outcome for script in scripts()} == table.ENDS.keys()
    text = table.PAGE.read_text(encoding="utf-8")
    assert f"{table.BEGIN}\n{table.legend()}\n" in text, REWRITE


@pytest.mark.parametrize("cheat", [COORDINATOR, PARTICIPANT])
def test_texts_are_sentences(cheat: str) -> None:
    for script in scripts(cheat):
        assert re.fullmatch(r"[a-z0-9-]+", script.name)
        for text in (script.does, script.must):
            assert len(text) > 10
            assert "  " not in text


async def nothing(_: Places) -> Seen:
    return Seen("refused")


CHECK = Naive("secagg.client_phases", without=("x",), shows="exposed")
SCRIPT = Script(COORDINATOR, "a-name-of-quite-some-length", "Cheats.", "It is refused.", "refused", (CHECK,), nothing)
EXPOSED = Seen("goes on", "", ("the input of participant 0 is exposed",))


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize(
    ("seen", "naive", "said"),
    [
        (Seen("refused"), EXPOSED, "all as stated."),
        (Seen("sum"), EXPOSED, "'sum', not 'refused'"),
        (Seen("refused", "", ("both secrets of participant 1 are known",)), EXPOSED, "both secrets of participant 1"),
        (Seen("refused"), Seen("refused"), "comes out the same"),
        (Seen("refused"), Seen("sum"), "doesn't show 'exposed'"),
    ],
)
def test_what_is_not_as_stated_is_said(width: int, seen: Seen, naive: Seen, said: str) -> None:
    text = io.StringIO()
    played = table.Played(SCRIPT, seen, (naive,))
    table.print_table(Console(file=text, width=width), [played])
    lines = text.getvalue().splitlines()
    assert said in " ".join(" ".join(lines).split())
    assert max(map(len, lines)) <= width
    assert bool(played.wrong) == (said != "all as stated.")


def test_a_row_of_the_page_says_nothing_that_changes_from_run_to_run() -> None:
    for who in (0, 11):
        seen = Seen("goes on", "", (f"the input of participant {who} is exposed",))
        said = table.plain(table.losses(table.Played(SCRIPT, Seen("refused"), (seen,))))
        assert said == "the input of a participant is exposed"
        assert f"| refused | {said} |" in table.markdown([SCRIPT], {SCRIPT.name: said})


def test_a_number_of_bytes_is_no_participant() -> None:
    assert table.plain("a mask key of 31 bytes") == "a mask key of 31 bytes"
    assert table.plain("mask key of 31: it is short") == "mask key of a participant: it is short"
