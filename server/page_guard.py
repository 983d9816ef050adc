"""Who may see the page of the HTTP port: on loopback all who ask for it by a name of loopback, else a password holder.

A web site that a browser shows can send that browser to 127.0.0.1 under the site's own name: the name is compared, so
that the site can't read the answer. The password is asked for by HTTP's own means, which a browser repeats for streams.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runtime.key_files import KeyFileError, read_key_file, write_key_file
from wire.certificates import LOCAL_NAMES

PASSWORD_FILE: Final = "http.password"
"""Beside the journal, where the port isn't on loopback."""
HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; base-uri 'none'; "
        "frame-ancestors 'none'; form-action 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
}
ASKED: Final = (
    f"This page needs a password: the one line of {PASSWORD_FILE} in the coordinator's folder. Any user name will do.\n"
)


def password_in(path: Path) -> str:
    """The page's password, made where there is none; 128 bits.

    Raises KeyFileError: it can't be written, other users can read it, or it is empty.
    """
    if not path.exists():
        write_key_file(path, f"{secrets.token_urlsafe(16)}\n".encode())
    password = read_key_file(path).decode("ascii", "replace").strip()
    if not password:  # a crash while it was made; without one anybody would be let in
        raise KeyFileError(f"{path} is empty: remove it, and a new password is made")
    return password


class PageGuard:
    """An ASGI application around another: refuses strangers, and adds the headers that keep scripts out."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Iterable[str] = (),  # by which it may be asked for beside loopback's, where there is no password
        password: str | None = None,  # None: on loopback only
        asked: str = ASKED,  # says where the password is
        forms: bool = False,  # the page may send forms to itself
    ) -> None:
        self._app, self._hosts, self._password, self._asked = app, {*LOCAL_NAMES, *hosts}, password, asked
        policy = HEADERS["content-security-policy"]
        self._headers = HEADERS | {
            "content-security-policy": policy.replace("form-action 'none'", "form-action 'self'") if forms else policy
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self._headers)
            await send(message)

        answer = self._refusal(Headers(scope=scope)) or self._app
        await answer(scope, receive, with_headers)

    def _refusal(self, headers: Headers) -> Response | None:
        if self._password is None:
            known = _name_of(headers.get("host", "")) in self._hosts
            return None if known else PlainTextResponse("Ask for this page by the address it listens on.\n", 403)
        if hmac.compare_digest(_given(headers.get("authorization", "")).encode(), self._password.encode()):
            return None
        return PlainTextResponse(self._asked, 401, {"www-authenticate": 'Basic realm="sordino", charset="UTF-8"'})


def _name_of(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _given(authorization: str) -> str:
    """The password of a request; empty where it has none."""
    scheme, _, rest = authorization.partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(rest, validate=True).decode().partition(":")[2]
    except (binascii.Error, ValueError):
        return ""
