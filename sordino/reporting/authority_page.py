"""The authority's page: requests that wait, invitations, members; approve by fingerprint, invite. Forms, no script.

A browser adds the page's password to any request, whichever site caused it: each form has a token that no site knows.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router

from authority import text
from authority.folder import AuthorityError, AuthorityFolder
from authority.invitations import invite
from authority.link import open_link
from authority.store import locked
from authority.visit import attend, preview
from runtime.failure import Failure
from runtime.text import duration, minute, peer_text
from server.page_guard import PageGuard
from sordino.reporting.live_page import asset
from wire.join_code import show_fingerprint

VALID_S: Final = (3600, 86_400, 7 * 86_400)
_HERE: Final = Path(__file__).parent
_ASKED: Final = "This page needs the password that `sordino authority page` has printed. Any user name will do.\n"
Form = Mapping[str, str]


class AuthorityPage:
    """For one authority's folder; other verbs may use it meanwhile.

    Attributes:
        password: that readers need; new with each page.
    """

    def __init__(self, folder: AuthorityFolder) -> None:
        self.password = secrets.token_urlsafe(16)
        self._folder, self._token = folder, secrets.token_urlsafe(16)
        self._once: tuple[str, Sequence[str]] = ("", ())  # what the next page shows, once, to who has the key
        self._at_work = asyncio.Lock()
        pages = Environment(loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined)
        self._template = pages.get_template("authority_page.html.j2")

    def guarded(self) -> BaseRoute:
        """All of it, for those that have the password."""
        routes = [
            Route("/", self._home),
            Route("/page.css", asset("text/css", "report.css")),
            Route("/approve", self._doing(self._approve), methods=["POST"]),
            Route("/invite", self._doing(self._invite), methods=["POST"]),
        ]
        app = Router(routes, redirect_slashes=False)
        return Mount("/", PageGuard(app, password=self.password, asked=_ASKED, forms=True))

    async def _home(self, request: Request) -> Response:
        key, said = self._once
        if not hmac.compare_digest(request.query_params.get("done", "").encode(), key.encode()):
            return await self._answer()
        self._once = ("", ())
        return await self._answer(said)

    def _doing(self, act: Callable[[Form], Sequence[str]]) -> Callable[[Request], object]:
        async def answer(request: Request) -> Response:
            fields = parse_qs((await request.body()).decode("utf-8", "replace"))
            form = {name: values[0].strip() for name, values in fields.items()}
            if not hmac.compare_digest(form.get("token", "").encode(), self._token.encode()):
                return PlainTextResponse("This form is of another page: load the page again.\n", 403)
            try:
                async with self._at_work:  # one decision at a time
                    said = await asyncio.to_thread(act, form)
            except Failure as error:
                return await self._answer(failed=error.message)
            self._once = (secrets.token_urlsafe(16), said)
            return RedirectResponse(f"/?done={self._once[0]}", 303)  # a reload does nothing again

        return answer

    async def _answer(self, said: Sequence[str] = (), failed: str = "") -> Response:
        async with self._at_work:
            return await asyncio.to_thread(self._page, said, failed)

    def _page(self, said: Sequence[str], failed: str) -> Response:
        away = ""
        requests = []
        try:
            with open_link(self._folder) as link:
                requests = [text.row(one) for one in preview(self._folder, link)]
        except Failure as error:
            away = error.message
        with locked(self._folder) as store:
            found = text.overview(store, time.time())
        hosts = {member["identity"]: member["host"] for member in found["members"]}
        body = self._template.render(
            token=self._token,
            said=said,
            failed=failed,
            away=away,
            requests=requests,
            hosts=hosts,
            minute=minute,
            grouped=lambda identity: " ".join(identity[at : at + 4] for at in range(0, 16, 4)),
            peer_text=peer_text,
            choices=[(seconds, duration(seconds + 0.0)) for seconds in VALID_S],
            **(found | {"fingerprint": show_fingerprint(self._folder.keys.fingerprint)}),
        )
        return HTMLResponse(body, 400 if failed else 200, {"cache-control": "no-store"})

    def _approve(self, form: Form) -> Sequence[str]:
        """Judge one request, which its id names with the identity that it is of, as the page has said."""
        with open_link(self._folder) as link:
            shown = [one for one in preview(self._folder, link) if one.request.id.hex() == form.get("request")]
            if shown and shown[0].verdict != form.get("verdict"):  # a button that refuses must not accept
                raise AuthorityError("this request would be judged otherwise now: look at it again")
            visit = attend(self._folder, link, sign=True, chosen=lambda signed: signed.id.hex() == form.get("request"))
        if not visit.judgements:
            raise AuthorityError("this request doesn't wait any more")
        return [*map(text.line, visit.judgements), *text.signed_lines(visit)]

    def _invite(self, form: Form) -> Sequence[str]:
        valid_s = int(form["valid"]) if form.get("valid", "") in map(str, VALID_S) else VALID_S[1]
        with locked(self._folder) as store:
            code = invite(store, name=form.get("name", ""), valid_s=valid_s, now=time.time(), random_bytes=os.urandom)
        return [
            "Hand this code over where the coordinator can't read it. It is shown only now:",
            code.to_text(),
            f"The participant types: sordino join {self._folder.settings.coordinator or 'HOST:PORT'} --code -",
        ]
