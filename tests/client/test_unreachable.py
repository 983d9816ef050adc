"""Behind a web proxy: which machine fails to answer, and never a password."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import grpc
import pytest

from client.unreachable import (
    EXCEPTION_VARIABLES,
    PROXY_VARIABLES,
    WebProxy,
    trouble_of,
    trouble_of_silence,
    web_proxy_of,
)

NAMED = "http://proxy.example:3128"


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, None),
        ({"https_proxy": NAMED}, "https_proxy"),
        ({"http_proxy": NAMED}, "http_proxy"),
        ({"http_proxy": "http://other.example:1", "https_proxy": NAMED}, "https_proxy"),
        ({"https_proxy": "http://other.example:1", "grpc_proxy": NAMED}, "grpc_proxy"),
        ({"grpc_proxy": "", "https_proxy": NAMED}, None),  # set, and to none
        ({"HTTPS_PROXY": NAMED, "HTTP_PROXY": NAMED, "all_proxy": NAMED}, None),
        ({"https_proxy": "proxy.example:3128"}, None),
        ({"https_proxy": "https://proxy.example:3128"}, None),
        ({"https_proxy": "HTTP://proxy.example:3128/"}, "https_proxy"),
    ],
)
def test_the_variable_that_counts(environment: dict[str, str], found: str | None) -> None:
    proxy = web_proxy_of("study.example:8443", environment)
    assert proxy == (None if found is None else WebProxy(found, "no_proxy", "proxy.example:3128"))


@pytest.mark.parametrize(
    ("address", "exceptions", "direct"),
    [
        ("study.example:8443", "study.example", True),
        ("study.example:8443", "other, EXAMPLE ,", True),
        ("study.example:8443", ".example", True),
        ("study.example:8443", "dy.example", False),
        ("study.example:8443", "*", False),
        ("study.example:8443", "study.example:8443", False),
        ("study.example:8443", "", False),
        ("study.example:8443", ".", False),
        ("192.0.2.7:8443", "192.0.2.0/24", True),
        ("192.0.2.7:8443", "192.0.2.7", True),
        ("192.0.2.7:8443", "198.51.100.0/24, nonsense/24", False),
        ("localhost:8443", "127.0.0.0/8", False),  # a name isn't looked up for this
        ("[2001:db8::1]:8443", "2001:db8::/32", True),
    ],
)
def test_hosts_that_are_connected_to_without_it(address: str, exceptions: str, direct: bool) -> None:
    assert (web_proxy_of(address, {"https_proxy": NAMED, "no_proxy": exceptions}) is None) is direct


def test_the_list_for_grpc_alone_counts_before_the_other() -> None:
    environment = {"https_proxy": NAMED, "no_grpc_proxy": "", "no_proxy": "study.example"}
    proxy = web_proxy_of("study.example:8443", environment)
    assert proxy is not None
    assert proxy.exceptions == "no_grpc_proxy"


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("http://me:s3cret@proxy.example:3128", "proxy.example:3128"),
        ("http://me@home:s3cret@proxy.example:3128", "proxy.example:3128"),
        ("http://s3cret@[2001:db8::1]:3128/", "[2001:db8::1]:3128"),
        ("http://proxy.example", "proxy.example:443"),  # as gRPC takes it
        # Characters that a URL wants escaped: gRPC takes a part of the password for the proxy's name.
        ("http://me:s3cret#@proxy.example:3128", ""),
        ("http://s3cret/x@proxy.example:3128", ""),
        ("http://s3cret:12?x@proxy.example:3128", ""),
        ("http://me:s3cret%40proxy.example:3128", ""),
    ],
)
def test_no_password_is_shown(url: str, place: str) -> None:
    proxy = web_proxy_of("study.example:8443", {"https_proxy": url})
    assert proxy == WebProxy("https_proxy", "no_proxy", place)
    details = "errors resolving me:s3cret: [field:hostname lookup error:Failed to parse port in name: me:s3cret]"
    words = trouble_of(details, ca="ca.pem", certificate="client.pem", proxy=proxy).words
    assert "s3cret" not in words + str(proxy) + trouble_of_silence(proxy).words
    assert place in words


PROXY = WebProxy("https_proxy", "no_proxy", "proxy.example:3128")
BEFORE = "failed to connect to all addresses; last error: UNKNOWN: ipv4:192.0.2.1:3128: "


@pytest.mark.parametrize(
    ("details", "words"),
    [
        ("Failed to connect to remote host: Connection refused", "the variable https_proxy names, can't be reached"),
        ("hostname lookup error:address lookup failed: Domain name not found", "https_proxy names, can't be reached"),
        ("HTTP proxy returned response code 403", "answers with HTTP 403; it doesn't let this host connect"),
        ("HTTP proxy returned response code 407", "asks for a name and a password"),
        ("HTTP proxy returned response code 503", "check the address, and that the coordinator runs"),
        ("SSL routines:OPENSSL_internal:CERTIFICATE_VERIFY_FAILED", "must pass TLS on unread"),
    ],
)
def test_what_a_proxy_in_between_makes_of_grpcs_words(details: str, words: str) -> None:
    trouble = trouble_of(BEFORE + details, ca="ca.pem", certificate="client.pem", proxy=PROXY)
    assert words in trouble.words
    assert "the web proxy proxy.example:3128" in trouble.words
    assert "nothing listens there" not in trouble.words
    assert trouble.tells > 1  # so no advice about the coordinator's address follows


def test_silence_over_a_proxy_is_the_proxys() -> None:
    assert "the web proxy proxy.example:3128" in trouble_of_silence(PROXY).words
    assert trouble_of_silence().words == "it doesn't answer"


@contextmanager
def refusing_proxy() -> Iterator[tuple[str, list[bytes]]]:
    """HOST:PORT of a proxy that refuses every connection, and the requests that it got."""
    asked: list[bytes] = []
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:

        def answer() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    asked.append(connection.recv(4096).split(b"\r\n")[0])
                    connection.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        yield f"127.0.0.1:{listening.getsockname()[1]}", asked
        listening.shutdown(socket.SHUT_RDWR)


async def grpcs_words(address: str) -> str:
    async with grpc.aio.secure_channel(address, grpc.ssl_channel_credentials()) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await channel.unary_unary("/a/b")(b"", timeout=10)
        return error.value.details() or ""


@pytest.mark.parametrize(
    "environment",
    [
        {"https_proxy": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9", "grpc_proxy": "http://{}"},
        {"https_proxy": "HTTP://me:s3cret@{}/", "http_proxy": "http://127.0.0.1:9"},
        {"http_proxy": "http://{}", "no_proxy": "ocalhost, *, 127.0.0.0/8, localhost:9", "NO_PROXY": "localhost"},
        {"https_proxy": "http://{}", "no_grpc_proxy": "", "no_proxy": "localhost"},
        {"https_proxy": "http://{}", "no_proxy": ".localhost"},
        {"grpc_proxy": "", "https_proxy": "http://{}"},
        {"HTTPS_PROXY": "http://{}", "https_proxy": "https://{}"},
    ],
)
def test_grpc_connects_as_we_report(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """So that an update of gRPC that reads the variables otherwise is noticed."""
    for name in (*PROXY_VARIABLES, *EXCEPTION_VARIABLES, "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with refusing_proxy() as (place, asked):
        environment = {name: value.format(place) for name, value in environment.items()}
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        proxy = web_proxy_of("localhost:9", environment)
        details = asyncio.run(grpcs_words("localhost:9"))
        assert (proxy is not None) is bool(asked)
    words = trouble_of(details, ca="ca.pem", certificate="client.pem", proxy=proxy).words
    if proxy is None:
        assert words.startswith("nothing listens there")
    else:
        assert proxy.place == place
        assert asked[0] == b"CONNECT localhost:9 HTTP/1.1"
        assert f"the web proxy {place}, which the variable {proxy.variable} names, answers with HTTP 403" in words
