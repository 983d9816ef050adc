"""Join codes: a study's authority gives each to one participant, outside of every channel of the study.

A code holds the authority's fingerprint, so that its user trusts no other authority's roster; a fingerprint of the
terms that its user is invited to, so that it joins under no others; 16 secret bytes, under which the request is
authenticated; its expiry; and a checksum, so that a typing error is found before anything is sent.
It is typed or pasted: case, dashes and blanks don't matter, nor do O for 0 and I or L for 1.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from typing import Final

from secagg.encoding import RandomBytes, digest

FINGERPRINT_BYTES: Final = 16
SECRET_BYTES: Final = 16
TERMS_BYTES: Final = 10
CODE_ID_BYTES: Final = 16
MAC_BYTES: Final = 32
LONGEST_VALID_S: Final = 366 * 86_400  # no code is valid for longer; if one seems to be, this machine's clock is behind

_PREFIX: Final = "SORD2"
_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's base 32
_VALUES: Final = {letter: value for value, letter in enumerate(_ALPHABET)} | {"O": 0, "I": 1, "L": 1}
_LETTERS: Final = 80  # 16 groups of 5
_PAYLOAD_BYTES: Final = FINGERPRINT_BYTES + TERMS_BYTES + SECRET_BYTES + 4
_CHECKSUM_BITS: Final = 5 * _LETTERS - 8 * _PAYLOAD_BYTES  # 32


class InvalidCode(ValueError):
    """The join code can't be used; one sentence that never contains it."""


class TruncatedCode(InvalidCode):
    """Letters are missing, or there are too many."""


class MistypedCode(InvalidCode):
    """The length is right, but the checksum doesn't fit or a letter isn't in the alphabet."""


class ExpiredCode(InvalidCode):
    """A valid code that has expired."""


def fingerprint(authority_public: bytes) -> bytes:
    """16 bytes that identify an authority's Ed25519 key (32 bytes)."""
    return digest("sordino/v1/authority-fingerprint", authority_public)[:FINGERPRINT_BYTES]


def show_fingerprint(value: bytes) -> str:
    """``1f2e 3d4c ...``: groups of four hexadecimal digits, to be read aloud and compared."""
    text = value.hex()
    return " ".join(text[start : start + 4] for start in range(0, len(text), 4))


def code_mac(secret: bytes, message: bytes) -> bytes:
    """HMAC-SHA256 under a separately derived key, so that a code's public id reveals nothing about its MACs."""
    return hmac.digest(digest("sordino/v1/join-code-mac", secret), message, "sha256")


@dataclass(frozen=True)
class JoinCode:
    """One invitation as the participant holds it, for one identity. Raises ValueError: an impossible length or time."""

    fingerprint: bytes  # of the authority, 16 bytes
    terms: bytes  # the first 10 bytes of the SHA-256 of the study document
    secret: bytes = field(repr=False)  # 16 bytes; never in repr
    expires: int  # seconds since 1970, a whole number of minutes

    def __post_init__(self) -> None:
        lengths = (len(self.fingerprint), len(self.terms), len(self.secret))
        if lengths != (FINGERPRINT_BYTES, TERMS_BYTES, SECRET_BYTES):
            raise ValueError("a join code has a fingerprint and a secret of 16 bytes each, and 10 bytes of the terms")
        if self.expires % 60 or not 0 <= self.expires // 60 < 2**32:
            raise ValueError("a join code expires on a whole minute that fits 4 bytes")

    @classmethod
    def new(cls, authority_public: bytes, terms: bytes, expires: float, random_bytes: RandomBytes) -> JoinCode:
        """A new code for the study document with the SHA-256 ``terms``; its expiry is rounded up to a whole minute."""
        secret = random_bytes(SECRET_BYTES)
        return cls(fingerprint(authority_public), terms[:TERMS_BYTES], secret, -int(-expires // 60) * 60)

    @property
    def code_id(self) -> bytes:
        """16 public bytes with which the authority finds the invitation; they don't reveal the secret."""
        return digest("sordino/v1/join-code-id", self.fingerprint, self.terms, self.secret)[:CODE_ID_BYTES]

    def mac(self, message: bytes) -> bytes:
        """32 bytes that only a holder of this code can compute for a message."""
        return code_mac(self.secret, message)

    def check_time(self, now: float) -> None:
        """Refuse an expired code, by the caller's clock (seconds since 1970).

        Raises ExpiredCode: it has expired, or the clock is too far behind to know.
        """
        if now >= self.expires:
            raise ExpiredCode(
                "the join code has expired, or this machine's clock is ahead: ask the study's authority for a new one"
            )
        if self.expires - now > LONGEST_VALID_S + 86_400:
            raise ExpiredCode("the join code was made long after what this machine's clock shows: set the clock")

    def to_text(self) -> str:
        """The text to type: ``SORD2-`` and 16 groups of 5, with dashes between them."""
        payload = self.fingerprint + self.terms + self.secret + (self.expires // 60).to_bytes(4, "big")
        value = int.from_bytes(payload, "big") << _CHECKSUM_BITS | _checksum(payload)
        letters = "".join(_ALPHABET[value >> 5 * place & 31] for place in reversed(range(_LETTERS)))
        return "-".join([_PREFIX, *(letters[start : start + 5] for start in range(0, _LETTERS, 5))])

    @classmethod
    def from_text(cls, text: str) -> JoinCode:
        """Read what was typed or pasted; `check_time` checks the expiry.

        Raises TruncatedCode: of another length; MistypedCode: a letter that isn't in the alphabet, or letters wrong or
        swapped; InvalidCode: not a join code, or one of another version.
        """
        letters = "".join(text.split()).replace("-", "").upper()
        begins = letters[: len(_PREFIX)].replace("0", "O").replace("I", "1").replace("L", "1")
        if not begins.startswith(_PREFIX[:-1]):
            raise InvalidCode(f"not a join code: one begins with {_PREFIX}-")
        if begins != _PREFIX and len(begins) == len(_PREFIX):
            raise InvalidCode(f"a join code of another version than {_PREFIX}: this release can't read it")
        letters = letters[len(_PREFIX) :]
        strange = next((place for place, letter in enumerate(letters) if letter not in _VALUES), None)
        if strange is not None:
            raise MistypedCode(
                f"the join code is mistyped: no code holds the {strange % 5 + 1}. letter of its "
                f"{strange // 5 + 1}. group after {_PREFIX}"
            )
        if len(letters) != _LETTERS:
            length = "not complete" if len(letters) < _LETTERS else "too long"
            raise TruncatedCode(
                f"the join code is {length}: it has {len(letters)} letters after {_PREFIX}, not {_LETTERS}"
            )
        value = 0
        for letter in letters:
            value = value << 5 | _VALUES[letter]
        payload = (value >> _CHECKSUM_BITS).to_bytes(_PAYLOAD_BYTES, "big")
        if value & ((1 << _CHECKSUM_BITS) - 1) != _checksum(payload):
            raise MistypedCode("the join code is mistyped: letters are wrong or swapped; compare it group by group")
        identified, terms, secret, minutes = payload[:16], payload[16:26], payload[26:42], payload[42:]
        return cls(identified, terms, secret, int.from_bytes(minutes, "big") * 60)


def _checksum(payload: bytes) -> int:
    return int.from_bytes(digest("sordino/v1/join-code-checksum", payload), "big") >> (256 - _CHECKSUM_BITS)
