"""What a log, a traceback or a debugger shows of a phase or a message holds no secret."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from secagg.client_cohort import HeldShare
from secagg.keys import ShareChannel
from secagg.messages import MASK_KEY, SELF_MASK_SEED, RevealedShare
from tests.support.attempts_in_memory import Attempt, identities, make_config, vector_of

CONFIG = make_config(6, dim=12, bits=62, released=(0, 5))


class Watched(Attempt):
    """Looks at every object on both sides whenever a phase begins or ends."""

    def __init__(self) -> None:
        super().__init__(CONFIG)
        self.seen: dict[int, Any] = {}
        self.texts: set[str] = set()
        self.secrets: set[bytes] = set()

    def look(self, *roots: Any) -> None:
        for one in reachable(roots):
            self.seen[id(one)] = one
            self.secrets.update(secrets_of(one))
            if type(one).__module__.startswith("secagg"):
                self.texts.update((repr(one), str(one), f"{one}"))

    def mask(self, who: int, masking: Any) -> Any:
        self.look(masking)
        return super().mask(who, masking)

    def step(self) -> None:
        self.look(self.phases, self.messages, self.coordinator)
        super().step()
        self.look(self.phases, self.sent, self.coordinator, self.completed)

    def close(self) -> None:
        self.look(self.phases, self.coordinator)
        super().close()


def reachable(*roots: Any) -> Iterator[Any]:
    """Every object behind these, through attributes and containers."""
    seen: set[int] = set()
    waiting = list(roots)
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, str | int | type):
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, Mapping):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple | set | frozenset):
            waiting += one
        elif hasattr(one, "__dict__"):
            waiting += vars(one).values()


def secrets_of(one: Any) -> Iterator[bytes]:
    """The secrets that an object holds itself."""
    if isinstance(one, Ed25519PrivateKey | X25519PrivateKey):
        yield one.private_bytes_raw()
    if isinstance(one, RevealedShare):
        yield one.salt
        yield one.share
    if isinstance(one, HeldShare):
        for kind in (MASK_KEY, SELF_MASK_SEED):
            yield from one.salt_and_share(kind)
    if isinstance(one, ShareChannel):
        yield one._key
    if not hasattr(one, "__dict__"):
        return
    held = vars(one)
    if "_seed" in held:
        yield held["_seed"]
    for name in ("noise_seeds", "_noise_seeds"):  # of a participant, in a reply, of all at the end
        seeds = held.get(name, ())
        yield from (seed for own in seeds.values() for seed in own) if isinstance(seeds, dict) else seeds
    if "mask_key_symbols" in held:
        yield held["mask_key_symbols"].tobytes()
    if type(one).__module__.startswith("secagg.client_"):
        yield from held.get("_agreements", {}).values()
        yield from (key for key, _ in held.get("_masks", []))


def forms(secret: bytes) -> Iterator[str]:
    """How eight bytes of it would look in a text."""
    yield secret[:8].hex()
    yield repr(secret[:8])[2:-1]
    yield ", ".join(map(str, secret[:8]))
    symbols = np.frombuffer(secret[:8], dtype="<u2").tolist()
    yield ", ".join(map(str, symbols))
    yield str(int.from_bytes(secret[:8], "little"))


@pytest.fixture(scope="module")
def watched() -> Watched:
    attempt = Watched()
    attempt.run()
    return attempt


def test_the_secrets_were_found(watched: Watched) -> None:
    """Each has five keys and seeds, three of noise; agreements, masks, and a pair of shares for each of 36 pairs."""
    assert len(watched.secrets) > 6 * 5 + 6 * 3 + 15 + 15 + 6 + 2 * 36
    assert identities(6)[0]._private.private_bytes_raw() in watched.secrets
    kinds = {type(one).__name__ for one in watched.seen.values()}
    assert {"ShareKeys", "MaskedInputCollection", "Masking", "ConsistencyCheck", "Unmasking", "Answered"} <= kinds
    assert {"Completed", "UnmaskingReply", "HeldShare", "_AttemptKeys", "AgreementKey", "ServerCohort"} <= kinds


def test_no_text_shows_a_secret(watched: Watched) -> None:
    everything = "\n".join(sorted(watched.texts))
    shown = [form for secret in watched.secrets for form in forms(secret) if form in everything]
    assert shown == []


def test_no_text_shows_an_input_or_the_sum(watched: Watched) -> None:
    everything = "\n".join(sorted(watched.texts))
    for who in range(6):
        for word in vector_of(who, CONFIG.parameters).tolist():
            assert str(word) not in everything
    assert "total" not in everything


def test_this_test_would_see_a_secret() -> None:
    """A plain data class of the same content fails it."""
    share = RevealedShare(np.arange(1000, 1016, dtype=np.uint16).tobytes(), b"0123456789abcdef")
    careless = f"Share(share={share.share!r}, salt={share.salt!r})"
    assert any(form in careless for form in forms(share.salt))
    assert any(form in careless for form in forms(share.share))
