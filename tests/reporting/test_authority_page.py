"""The authority's page, beside the coordinator's real port for enrolment."""

from __future__ import annotations

import base64
import re
import time
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlencode

from authority.folder import open_folder
from authority.roster import accept_terms, package_of, sign_next
from authority.store import locked
from runtime.text import minute
from server.http_port import beside
from sordino.reporting.authority_page import AuthorityPage
from tests.cli.test_authority_command import Coordinator, codes, coordinator, home  # noqa: F401  # fixtures
from tests.server.scraping import answered
from tests.support.commands import Run, says
from tests.support.enrolment_port import document, identity, request


class Reader:
    def __init__(self, address: str, password: str) -> None:
        self.address = address
        basic = base64.b64encode(f"me:{password}".encode()).decode()
        self.headers = {"Authorization": f"Basic {basic}"}

    def ask(self, path: str, **form: str) -> tuple[int, dict[str, str], str]:
        """Status, headers and body; a form is posted."""
        kind = {"Content-Type": "application/x-www-form-urlencoded"} if form else {}
        method, body = ("POST", urlencode(form)) if form else ("GET", None)
        status, headers, page = answered(self.address, path, method, body, **self.headers, **kind)
        return status, headers, page.decode()

    def done(self, path: str, **form: str) -> tuple[str, str]:
        """A form that is obeyed: the page after it, and that page's address."""
        status, headers, _ = self.ask(path, **form)
        assert status == 303
        status, shown, page = self.ask(headers["location"])
        assert (status, shown["cache-control"]) == (200, "no-store")
        return page, headers["location"]


def test_requests_are_approved_one_by_one_and_codes_made(run: Run, home: Path, coordinator: Coordinator) -> None:  # noqa: F811
    made = codes(run, home, "--count", 2)
    asked = [request(made[at], identity(f"clinic-{at}"), host=f"clinic-{at}") for at in range(2)]
    for one in asked:
        coordinator.enrol(one)
    shown = AuthorityPage(open_folder(home))
    with beside([shown.guarded()]) as address:
        stranger, me = Reader(address, "guess"), Reader(address, shown.password)
        for path in ("/", "/approve", "/invite", "/page.css"):
            assert stranger.ask(path)[0] == 401
        status, headers, page = me.ask("/")
        assert status == 200
        says(headers["content-security-policy"], "form-action 'self'", "default-src 'none'")
        assert "<script" not in page
        token = re.findall(r'name="token" value="([^"]+)"', page)[0]
        ids = re.findall(r'name="request" value="([0-9a-f]+)"', page)
        shown = [identity(f"clinic-{at}").public.hex()[:4] for at in range(2)]
        assert len(ids) == 2
        says(page, *shown)
        # Another site's form has the browser's password, and not the token.
        for wrong in ({}, {"token": "x"}):
            assert me.ask("/approve", request=ids[0], **wrong)[0] == 403
            assert me.ask("/invite", name="theirs", **wrong)[0] == 403
        with locked(open_folder(home)) as store:
            assert store.present() == 0
            assert len(store.invitations()) == 2
        status, _, page = me.ask("/approve", token=token, request=ids[0], verdict="refuse")
        assert status == 400  # it was shown with a button to refuse it, and could be accepted since
        says(page, "Not done", "would be judged otherwise now")
        says(page, "asks for the name clinic-0")
        page, _ = me.done("/approve", token=token, request=ids[0], verdict="accept")
        says(page, "accepted", "Signed version 2 of the roster: 1 participant.", "The coordinator has version 2.")
        assert len(coordinator.roster(open_folder(home)).entries) == 1
        assert page.count('name="request"') == 1  # the other one waits
        assert me.ask("/approve", token=token, request=ids[0], verdict="accept")[0] == 400
        page, address = me.done("/invite", token=token, name="ward-7", valid="3600")
        says(page, "It is shown only now", "sordino join localhost:", "ward-7")
        for again in (address, "/", "/?done="):
            assert "It is shown only now" not in me.ask(again)[2]
        with locked(open_folder(home)) as store:
            assert len(store.invitations()) == 3
        status, _, page = me.ask("/invite", token=token, name="ward-7", valid="3600")
        assert status == 400
        says(page, "Not done", "ward-7")


def test_without_a_coordinator_it_says_so(home: Path) -> None:  # noqa: F811
    folder, now = open_folder(home), time.time()
    with locked(folder) as store:
        accept_terms(store, replace(document(), roster_valid_s=86_400).to_bytes(), now)
        sign_next(store, now)
        package_of(store, now)
    shown = AuthorityPage(folder)
    with beside([shown.guarded()]) as address:
        status, _, page = Reader(address, shown.password).ask("/")
    assert status == 200
    says(page, "is it running", f"the newest until {minute(int(now) + 86_400)}")
