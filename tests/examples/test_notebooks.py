"""The notebooks run from the first cell to the last, and an interrupted kernel loses nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

import sordino
from runtime.child_process import child_environment

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.xdist_group("commands")]  # one kernel at a time

NOTEBOOKS = Path(__file__).resolve().parents[2] / "examples" / "notebooks"
PATIENCE_S = 120


def client(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, smaller: Mapping[str, str] = MappingProxyType({})
) -> Any:
    """The notebook in a kernel of its own, which works in a folder and finds the checkout.

    Args:
        smaller: pieces of its cells, each of which stands in one place, and what takes less time.
    """
    for variable, value in child_environment().items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    book = nbformat.read(NOTEBOOKS / name, as_version=4)
    for long, short in smaller.items():
        [cell] = [cell for cell in book.cells if long in cell.source]
        cell.source = cell.source.replace(long, short)
    return nbclient.NotebookClient(book, timeout=PATIENCE_S, resources={"metadata": {"path": str(folder)}})


def said(book: Any) -> str:
    """All text that its cells put out."""
    outputs = [one for cell in book.cells for one in cell.get("outputs", [])]
    return "\n".join(one.get("text") or one.get("data", {}).get("text/html", "") for one in outputs)


@pytest.mark.parametrize(
    ("name", "smaller", "shows"),
    [
        (
            "plan_and_utility.ipynb",
            {"participants=200, rounds=10, bits=18": "participants=50, rounds=2, bits=18", "[0.5, 2, 8]": "[2, 8]"},
            ["no noise that fits 10 bits", "Sweep: 8 simulations"],
        ),
        (
            "simulate_own_model.ipynb",
            {"participants=200, rounds=8": "participants=50, rounds=2"},
            ["rounds done: 2 of 2", "round 2: 0."],
        ),
        ("serve_and_read_the_ledger.ipynb", {}, ["round 5: sum of 8", "Finished: 5 of 5", "row 2"]),
    ],
)
def test_a_notebook_runs(
    name: str, smaller: dict[str, str], shows: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "own_model" in name:
        pytest.importorskip("torch")
    book = client(name, tmp_path, monkeypatch, smaller).execute()
    text = said(book)
    assert [one for one in shows if one not in text] == [], text
    pictures = [one for cell in book.cells for one in cell.get("outputs", []) if "image/png" in one.get("data", {})]
    assert len(pictures) == sum(".plot(" in cell.source for cell in book.cells)
    stored = json.loads((NOTEBOOKS / name).read_text(encoding="utf-8"))
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in stored["cells"]), "clear its outputs"


async def test_an_interrupted_kernel_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real SIGINT in the midst of the rounds; then the same cell of the same kernel continues."""
    notebook = client("serve_and_read_the_ledger.ipynb", tmp_path, monkeypatch)
    [making] = [cell.source for cell in notebook.nb.cells if "make_local_study(" in cell.source]
    [serving] = [cell.source for cell in notebook.nb.cells if "async with sordino.Coordinator(" in cell.source]
    told: list[Any] = []

    async def run(code: str) -> dict[str, Any]:
        reply = await notebook.kc.execute_interactive(code, timeout=PATIENCE_S, output_hook=told.append)
        content: dict[str, Any] = reply["content"]
        return content

    def printed(stream: str) -> str:
        return "".join(one["content"]["text"] for one in told if one["content"].get("name") == stream)

    async with notebook.async_setup_kernel():
        assert (await run(making.replace("rounds=5", "rounds=12")))["status"] == "ok"
        running = asyncio.create_task(run(serving))
        while "round 2:" not in printed("stdout"):
            assert not running.done(), told
            await asyncio.sleep(0.01)
        await notebook.km.interrupt_kernel()
        interrupted = await running
        assert interrupted["traceback"] == ["Interrupted. Nothing is lost: run this again, and it continues."]
        [warning] = printed("stderr").splitlines()
        assert warning.endswith("stopped: serve the study again, and it continues where it was")
        stopped = sordino.ServedStudy.read(tmp_path / "run-study")
        assert (stopped.outcome, stopped.ledger().head.rows >= stopped.view.completed >= 2) == ("stopped", True)
        told.clear()
        reply = await run(serving)
        assert reply["status"] == "ok", (reply.get("evalue"), printed("stderr")[-3000:])  # its traceback may be older
        assert printed("stdout").startswith(f"round {stopped.view.completed + 1}: sum of 8")
    study = sordino.ServedStudy.read(tmp_path / "run-study")
    # Participants may have been charged for the attempt that was cut off: then one round less fits in their budgets.
    assert study.outcome in ("rounds done", "budget reached")
    assert [done.round for done in study.view.rounds] == list(range(1, study.view.completed + 1))
    assert study.view.completed >= 11
    assert study.ledger().head.rows >= study.view.completed
    assert sordino.ledger_of(tmp_path / "run-study" / "hosts" / "host-01").held_against
