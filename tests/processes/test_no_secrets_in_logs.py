"""Whole studies at the lowest log level, with everything that can go wrong: nothing secret is told, in any spelling.

The studies run in a process of their own (`study_with_secrets`), which notes its secrets; here everything that it told
is searched for them (`secret_search`).
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.child_process import child_environment
from tests.processes.secret_search import SENTINEL_EXPONENTS, Search, Secrets, leaks, planted

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.xdist_group("commands")]

SCRIPT = Path(__file__).with_name("study_with_secrets.py")
BYTES = {
    *("identity key", "signing key", "TLS key", "mask key", "agreement key", "agreement", "share channel"),
    *("ML-KEM key", "encapsulated secret", "pair seed"),
    *("self-mask seed", "self mask", "pairwise mask", "shared secret", "share", "salt", "randomness", "noise seed"),
    *("masked update", "session token", "join code", "join code's MAC key"),
}
VECTORS = {
    *("trained update", "update", "clipped update", "rotated update", "rounded update", "noise", "encoded update"),
    "masked words",
}


class Ran:
    """One run of the studies."""

    def __init__(self, folder: Path, careless: str | None = None) -> None:
        done = subprocess.run(
            [sys.executable, SCRIPT, folder, *([careless] if careless else [])],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=170,
            env=child_environment() | {"PYTHONDONTWRITEBYTECODE": "1"},
            check=False,
        )
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr
        self.secrets = Secrets.load(folder / "secrets")
        self.search = Search(self.secrets)
        self.failures: Mapping[str, int] = json.loads((folder / "failures").read_text())
        self.told = {path.name: path.read_bytes() for path in sorted((folder / "told").iterdir())}

    def leaks(self) -> dict[str, set[str]]:
        return leaks(self.search, [("stdout", self.out), ("stderr", self.err), *self.told.items()])

    def named(self, part: str) -> str:
        return "\n".join(text.decode(errors="replace") for name, text in self.told.items() if part in name)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return Ran(tmp_path_factory.mktemp("secrets") / "run")


def test_everything_went_wrong_that_was_to(ran: Ran) -> None:
    """Else the next test says little."""
    said = ran.err.decode(errors="replace")
    assert {what: left for what, left in ran.failures.items() if left > 0} == {}
    assert [event.count("'kind': 'round_completed'") for event in [ran.named("study-events")]] == [3]
    for wanted in (
        *("study accepted", "coordinator away", "training failed, zeros are sent", "encoding failed, zeros are sent"),
        *("ConsistencyCheck", "nothing can be written down", "a request", "mistyped", "not complete"),
    ):
        assert wanted in said, wanted
    assert ran.code == 1
    assert said.count("RuntimeError: not foreseen") == 1
    assert "max_epsilon" in ran.named("-policy")
    assert "disk is full" in ran.named("-full")
    assert "digest" in ran.named("-document")
    assert ran.named("code").count("Code") > 4
    assert ran.named("event-table")
    assert ran.named(".transcript")
    for part in ("-policy", "-full", "-document"):
        assert "self = <" in ran.named(part), "reports are with all locals"
    assert '"level": "debug"' in said or '"level":"debug"' in said
    assert "DEBUG asyncio" in said
    assert "connectivity_state" in said, "gRPC's own words are among them"


def test_every_kind_of_secret_was_collected(ran: Ran) -> None:
    assert ran.secrets.kinds() == BYTES | VECTORS
    assert len(ran.secrets.data["share"]) > 7 * 7
    assert len(ran.secrets.data["identity key"]) == 8
    assert sum(vector.size for vector in ran.secrets.integers["noise"]) > 10_000
    assert all(np.abs(vector).max() > 10_000 for vector in ran.secrets.integers["noise"]), "else a search says little"


def test_nothing_secret_is_told(ran: Ran) -> None:
    assert ran.leaks() == {}


def test_a_careless_line_is_found(tmp_path: Path) -> None:
    """The same study with two lines too many, one in the log of structlog and one in Python's."""
    found = Ran(tmp_path / "run", "share noise").leaks()
    assert set(found) == {"stderr"}
    # A share is a slice of nothing else; noise alone is not what is sent, but where the update is zero.
    assert {"share", "noise"} <= found["stderr"]


# ---------------------------------------------------------------- the search itself


SPELLINGS: dict[str, Callable[[bytes], str]] = {
    "hexadecimal": lambda secret: secret.hex(),
    "capital letters": lambda secret: secret.hex().upper(),
    "first eight bytes": lambda secret: secret[:8].hex(),
    "last eight bytes": lambda secret: f"…{secret[-8:].hex()}",
    "with colons": lambda secret: secret.hex(":"),
    "in groups": lambda secret: secret.hex(" ", 2),
    "base64": lambda secret: base64.b64encode(secret).decode(),
    "base64 for addresses": lambda secret: base64.urlsafe_b64encode(secret).decode().rstrip("="),
    "base64 of more": lambda secret: base64.b64encode(b"PK" + secret + b"rest").decode(),
    "Python": repr,
    "Python in JSON": lambda secret: json.dumps({"key": repr(secret)}),
    "JSON": lambda secret: json.dumps(secret.decode("latin-1")),
    "octal escapes": lambda secret: "".join(f"\\{byte:03o}" for byte in secret),
    "a list": lambda secret: str(list(secret)),
    "an array": lambda secret: repr(np.frombuffer(secret[:64], np.uint8)),
    "an array of symbols": lambda secret: str(np.frombuffer(secret[:16], "<u2")),
    "a number": lambda secret: str(int.from_bytes(secret[:32], "big")),
    "a number from the other end": lambda secret: str(int.from_bytes(secret[:32], "little")),
    "hexadecimal numbers": lambda secret: ", ".join(f"0x{byte:02x}" for byte in secret),
    "as it is": lambda secret: secret.decode("utf-8", "surrogateescape"),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_bytes_of_every_kind_are_found(ran: Ran, spelling: str) -> None:
    for kind in sorted(BYTES):
        secret = next(one for one in sorted(ran.secrets.data[kind]) if len(one) >= 16)
        line = f'{{"at": "2026-11-21T13:00:00Z", "event": "{SPELLINGS[spelling](secret)}", "port": 8443}}'
        found = ran.search.kinds_in(line)
        # What was drawn becomes a key of its own kind.
        same = {one for one in found for other in ran.secrets.data[one] if secret in other or other in secret}
        assert kind in found or same, kind


ARRAYS: dict[str, Callable[[Any], str]] = {
    "repr": repr,
    "str": str,
    "single precision": lambda values: repr(values.astype(np.float32) if values.dtype.kind == "f" else values),
    "a list's beginning": lambda values: str(values.tolist()[:3]),
    "four digits": lambda values: " ".join(f"{one:.3e}" if values.dtype.kind == "f" else str(one) for one in values),
}


def held(ran: Ran, kind: str) -> list[Any]:
    """All vectors of a kind."""
    return [*ran.secrets.integers.get(kind, []), *ran.secrets.floats.get(kind, [])]


@pytest.mark.parametrize("spelling", ARRAYS)
def test_vectors_of_every_kind_are_found(ran: Ran, spelling: str) -> None:
    for kind in sorted(VECTORS):
        # Three equal values are anybody's; rotated stand-ins of ones begin with them now and then.
        vector = max(held(ran, kind), key=lambda one: (np.unique(one[:3]).size > 1, np.abs(one[:3]).min()))
        found = ran.search.kinds_in(f"round 3: {ARRAYS[spelling](vector)} of 512")
        # Noise on nothing is an encoded update as well.
        same = {one for one in found for other in held(ran, one) if np.array_equal(other[:3], vector[:3])}
        assert kind in found or same, kind


@pytest.mark.parametrize("exponent", SENTINEL_EXPONENTS)
@pytest.mark.parametrize("form", ["{}", "{!r}", "{:.4g}", "{:.3e}", "{:f}"])
def test_one_value_of_an_update_is_found(ran: Ran, exponent: int, form: str) -> None:
    value = planted((5,), exponent, 1)[3]
    if form == "{:f}" and exponent < 0:
        pytest.skip("says no more than that it is small")
    assert ran.search.kinds_in(f"norm {form.format(value)} above the clip") == {"update"}


def test_a_join_code_is_found_as_it_is_typed(ran: Ran) -> None:
    from wire.join_code import JoinCode

    code = JoinCode(os.urandom(16), bytes(10), next(iter(ran.secrets.data["join code"])), 1_800_000_000)
    for text in (code.to_text(), code.to_text().lower(), code.to_text().replace("-", "")):
        assert ran.search.kinds_in(f"not a code: {text!r}") == {"join code"}


def test_what_is_no_secret_is_not_found(ran: Ran) -> None:
    rng = np.random.default_rng(5)
    other = rng.bytes(64)
    lines = [spell(other) for spell in SPELLINGS.values()]
    lines += [spell(rng.normal(size=512) * 10.0**e) for spell in ARRAYS.values() for e in (-17, 0, 6)]
    lines += [spell(rng.integers(-(10**6), 10**6, 512)) for spell in ARRAYS.values()]
    assert ran.search.kinds_in("\n".join(lines)) == set()
