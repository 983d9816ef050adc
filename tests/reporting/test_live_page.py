"""The live page: its stream, its weight, and what a browser shows of a study over the real protocol."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from server.events import Event, RoundCompleted
from server.http_port import HttpPort, HttpThread, guarded
from server.journal import read_events
from server.study_view import StudyView
from sordino.reporting.feed import StudyFeed
from sordino.reporting.live_page import LivePage, shown_beside
from tests.server.scraping import answered, quietly, stream
from tests.support.event_stream import WITHOUT_NOISE, fed, make_events
from tests.support.study_in_process import coordinator, with_tables
from wire.records.transcript_files import FOLDER, file_name

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
HOSTILE = "<img src=x onerror=document.title='hit'><script>document.title='hit'</script>"


@contextlib.asynccontextmanager
async def shown(page: LivePage) -> AsyncIterator[str]:
    thread = HttpThread("127.0.0.1", 0)
    await thread.open([guarded(page)], page)
    try:
        yield thread.address
    finally:
        await thread.close()


async def get(address: str, path: str) -> tuple[int, bytes]:
    return (await asyncio.to_thread(answered, address, path))[::2]


async def follow(address: str) -> AsyncIterator[dict[str, Any]]:
    """What each message of the stream holds."""
    reader, writer, _ = await stream(address, 1 << 20)
    try:
        while True:
            line = await reader.readline()
            if line.startswith(b"data: "):
                yield json.loads(line.removeprefix(b"data: "))
    finally:
        writer.close()


async def test_the_stream_says_what_changed_within_a_second_and_once_for_all() -> None:
    events = make_events()
    feed = fed(events[:300])
    page, snapshots = LivePage(feed), list[float]()
    snapshot = feed.snapshot

    def counted(now: float) -> dict[str, Any]:
        snapshots.append(time.monotonic())
        return snapshot(now)

    feed.snapshot = counted  # type: ignore[method-assign]
    async with shown(page) as address:
        readers = [follow(address) for _ in range(8)]
        first = await asyncio.gather(*(anext(one) for one in readers))
        assert all(one == first[0] for one in first)
        assert set(first[0]) == set(snapshot(0.0))
        done = next(event for event in events[300:] if isinstance(event, RoundCompleted))
        for event in events[300 : events.index(done) + 1]:
            page.note(replace(event, at=time.time()))
        began = time.monotonic()
        second = await asyncio.gather(*(anext(one) for one in readers))
        assert time.monotonic() - began < 1.0
        assert all(one == second[0] for one in second)
        assert second[0]["curves"]["accuracy"][-1] == done.accuracy
        assert "study" not in second[0] or second[0]["study"] != first[0]["study"]  # what is the same isn't sent
        status, body = await get(address, "/feed")
        assert status == 200
        assert {**first[0], **second[0]}.keys() == json.loads(body).keys()
        await asyncio.gather(*(one.aclose() for one in readers))
        began = time.monotonic()
        assert len([at for at in snapshots if at > began - 10]) <= 8  # of one renderer, not of each reader
    assert max(map(len, map(json.dumps, first))) < 64_000


async def test_its_weight_and_what_it_answers(tmp_path: Path) -> None:
    state = tmp_path / "state.sqlite"
    (tmp_path / FOLDER).mkdir()
    for number in (1, 2, 99):
        (tmp_path / FOLDER / file_name(number)).write_bytes(b"transcript %d" % number)
    (tmp_path / FOLDER / "secret").write_bytes(b"no")
    for names in (False, True):
        async with shown(LivePage(fed(make_events(), state, names=names))) as address:
            assets = [await get(address, path) for path in ("/", "/page.css", "/page.js", "/uPlot.js", "/feed")]
            assert [status for status, _ in assets] == [200] * 5
            assert sum(len(body) for _, body in assets) < 120_000
            assert not re.search(rb"https?://(?!github.com/leeoniya)", b"".join(body for _, body in assets[:3]))
            listed = json.loads(assets[4][1])["transcripts"]
            assert listed == {"kept": True, "files": [file_name(2), file_name(1)] if names else []}
            for name in (file_name(99), "secret", "..%2fstate.sqlite", "round-1.transcript", "round-0x1.transcript"):
                assert (await get(address, f"/transcripts/{name}"))[0] == 404
            found = await get(address, f"/transcripts/{file_name(2)}")
            assert found == ((200, b"transcript 2") if names else (404, b"Not Found"))


def test_a_page_beside_a_program_without_a_loop() -> None:
    with shown_beside(LivePage(StudyFeed())) as address:
        assert answered(address, "/")[0] == 200
    with pytest.raises(ConnectionRefusedError):
        answered(address, "/")


@contextlib.asynccontextmanager
async def browser(**options: Any) -> AsyncIterator[Any]:
    """A tab of a real browser; checks that nothing on the page failed."""
    playwright = pytest.importorskip("playwright.async_api", reason="playwright isn't installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed (Debian: apt install chromium)")
    said: list[str] = []
    async with playwright.async_playwright() as play:
        running = await play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = await running.new_page(**options)
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        yield tab
        await running.close()
    assert [one for one in said if "net::" not in one] == []


async def table(tab: Any, selector: str) -> list[list[str]]:
    script = "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    return list(await tab.eval_on_selector_all(f"{selector} tr", script))


async def tiles(tab: Any) -> list[str]:
    return [" ".join(one.split()) for one in await tab.locator("#tiles div").all_inner_texts()]


@pytest.mark.slow
async def test_a_browser_shows_what_the_journal_holds(study_folder: Path, tmp_path: Path) -> None:
    state = tmp_path / "state.sqlite"
    page = LivePage(StudyFeed(state))
    port = HttpPort(with_tables(quietly(study_folder), {"coordinator": {"state": state}}), page)
    await port.open()
    try:
        async with coordinator(study_folder, state) as where, browser() as tab:
            where.tell_first(port.note)
            await tab.goto(f"http://{port.address}/")
            await tab.wait_for_selector("text=Waiting for the coordinator to start")
            await where.play()
            await tab.wait_for_selector("text=Finished: 2 of 2 rounds")
            await tab.click("summary")
            rounds, waited = await table(tab, "#rounds"), await tab.inner_text("#waiting")
            dropouts, found = await table(tab, "#dropouts"), await tiles(tab)
            name, people = await tab.inner_text("h1"), dict(await table(tab, "#participants"))
        view = StudyView().apply_all(read_events(state))
        assert (name, waited) == (view.started.study, "Finished: 2 of 2 rounds")
        head, *lines = rounds
        for cells, done in zip(lines, reversed(view.rounds), strict=True):
            values = dict(zip(head, cells, strict=True))
            assert values["Round"] == str(done.round)
            assert values["In the sum"] == str(done.u3)
            assert values["Accuracy"] == f"{done.accuracy:.3f}"
            assert values["Loss"] == f"{done.loss:.3f}"
            assert values["Epsilon coordinator"] == f"{done.epsilon_coordinator:.2f}"
            assert values["Epsilon released"] == f"{done.epsilon_released:.2f}"
            assert values["Upload, bytes"] == str(done.upload_bytes)
            assert values["Download, bytes"] == str(done.download_bytes)
        assert f"Accuracy {view.accuracy:.3f} on held-out data" in found
        assert f"Epsilon, coordinator {view.epsilon_coordinator:.2f} of 1000, at delta 1e-1" in found
        assert people["on the roster"] == "7"
        assert dropouts == [] == view.dropouts
    finally:
        await port.close()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_hostile_names_are_text_on_a_phone(scheme: str) -> None:
    feed = fed(map(hostile, make_events(until=5)), names=True)
    feed.compare(WITHOUT_NOISE)
    async with (
        shown(LivePage(feed)) as address,
        browser(viewport={"width": 390, "height": 844}, color_scheme=scheme) as tab,
    ):
        await tab.goto(f"http://{address}/")
        await tab.wait_for_selector("#terms dt")
        assert await tab.inner_text("h1") == HOSTILE
        assert (await tab.title()).startswith(HOSTILE)
        assert await tab.locator("main img, main script").count() == 0
        assert HOSTILE in (await table(tab, "#hosts"))[1][0]
        assert await tab.evaluate("document.documentElement.scrollWidth") == 390  # nothing is cut off
        await tab.keyboard.press("Tab")
        assert await tab.evaluate("document.activeElement.textContent") == "Skip to the present state"
        unnamed = "[...document.querySelectorAll('[role=img], progress, section:not(:has(h2)), [tabindex]')]"
        assert await tab.evaluate(f"{unnamed}.filter(one => !one.getAttribute('aria-label')).length") == 0
        # What is drawn can be read: the current phase, and each curve's last value.
        assert "Masked Input Collection" in await tab.inner_text("[aria-current=step]")
        label = await tab.get_attribute("#figure-found .chart", "aria-label")
        assert "with noise 0.618, without noise 0.633" in label


def hostile(event: Event) -> Event:
    for field, value in {"study": HOSTILE, "host": HOSTILE, "task": HOSTILE}.items():
        if hasattr(event, field):
            event = replace(event, **{field: value})
    return event


@pytest.mark.slow
async def test_the_page_says_when_the_coordinator_is_gone() -> None:
    async with browser() as tab:
        async with shown(LivePage(fed(make_events(until=5)))) as address:
            await tab.goto(f"http://{address}/")
            await tab.wait_for_selector("#link:has-text('live')")
        await tab.wait_for_selector("#link:has-text('no connection, trying again')")
        assert "Round 5" in await tab.inner_text("#waiting")
