"""A participant's phase as encrypted bytes, for systems that keep no object between two messages.

The bytes hold what the phase holds: keys, masks and shares of this attempt. They leave out what the caller has anyway:
the identity key, the configuration and the source of randomness. Who keeps the keys of this encryption decides that a
phase is opened once (`client.saved_phases`); this module does not.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, Final, get_args

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from secagg import client_cohort, client_phases, client_unmasking, graph, messages
from secagg.context import RoundConfig
from secagg.encoding import RandomBytes, encode
from secagg.keys import ZERO_NONCE, AgreementKey, IdentityKey
from secagg.sharing import Sharing

Phase = (
    client_phases.ShareKeys
    | client_phases.MaskedInputCollection
    | client_phases.Masking
    | client_unmasking.ConsistencyCheck
    | client_unmasking.UnsignedUnmasking
    | client_unmasking.Unmasking
    | client_unmasking.Answered
)
"""What a participant may be in between two messages; AdvertiseKeys holds nothing yet."""

_CONFIG, _IDENTITY, _RANDOM_BYTES = "config", "identity", "random bytes"


class InvalidState(ValueError):
    """These bytes are no phase of this attempt of this participant, or the key is not theirs."""


def seal_phase(phase: Phase, config: RoundConfig, identity: IdentityKey, key: bytes) -> bytes:
    """Encrypt a phase. From then on the object itself answers no message.

    Args:
        config, identity: those that the attempt began with.
        key: 32 fresh random bytes, used for nothing else.

    Raises CoordinatorMisbehaved: the phase is over.
    """
    plain = io.BytesIO()
    _Writer(plain, config, identity).dump(phase)
    if isinstance(phase, client_cohort.ClientPhase):
        phase._leave()
    return AESGCM(key).encrypt(ZERO_NONCE, plain.getvalue(), _bound_to(config, identity))


def open_phase(sealed: bytes, config: RoundConfig, identity: IdentityKey, key: bytes, random_bytes: RandomBytes) -> Any:
    """The inverse of `seal_phase`: one of `Phase`.

    Args:
        random_bytes: source of what the attempt still draws.

    Raises InvalidState: the bytes were changed, or another attempt, plan, roster, identity or key was given.
    """
    try:
        plain = AESGCM(key).decrypt(ZERO_NONCE, sealed, _bound_to(config, identity))
        return _Reader(plain, config, identity, random_bytes).load()
    except (InvalidTag, ValueError, LookupError, pickle.UnpicklingError) as error:
        raise InvalidState("the state is not one of this attempt under this key") from error


def _bound_to(config: RoundConfig, identity: IdentityKey) -> bytes:
    return encode("sordino/v1/saved-phase", config.round_context(), identity.public)


def _array(data: bytes, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    return np.frombuffer(data, dtype).reshape(shape).copy()


class _Writer(pickle.Pickler):
    """Names what the caller has, and takes keys and arrays apart."""

    def __init__(self, file: io.BytesIO, config: RoundConfig, identity: IdentityKey) -> None:
        super().__init__(file, protocol=5)
        self._config, self._identity = config, identity

    def persistent_id(self, value: Any) -> str | None:
        if value is self._config:
            return _CONFIG
        if isinstance(value, IdentityKey):
            return _IDENTITY
        return _RANDOM_BYTES if callable(value) and not isinstance(value, type) and value is not _array else None

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, AgreementKey):
            return AgreementKey, value.secrets()
        if isinstance(value, np.ndarray):
            return _array, (value.tobytes(), value.dtype.str, value.shape)
        return NotImplemented


_KNOWN: Final = {
    (one.__module__, one.__qualname__): one
    for one in (
        *(*get_args(Phase), client_phases._AttemptKeys, client_cohort.Cohort, client_cohort.HeldShare),
        *(graph.CompleteGraph, graph.HararyGraph, Sharing, AgreementKey, _array),
        *(messages.Advertisement, messages.Subset, messages.SurvivorSets, messages.UnmaskingRequest),
        *(messages.UnmaskingReply, messages.MaskKeyShare, messages.SelfMaskSeedShare),
    )
}


class _Reader(pickle.Unpickler):
    """Makes nothing but what a phase consists of, although only this participant could have encrypted the bytes."""

    def __init__(self, plain: bytes, config: RoundConfig, identity: IdentityKey, random_bytes: RandomBytes) -> None:
        super().__init__(io.BytesIO(plain))
        self._given: dict[str, Any] = {_CONFIG: config, _IDENTITY: identity, _RANDOM_BYTES: random_bytes}

    def persistent_load(self, name: Any) -> Any:
        return self._given[name]

    def find_class(self, module: str, name: str) -> Any:
        return _KNOWN[module, name]
