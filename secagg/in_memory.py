"""One attempt with both sides in one process, for simulations, measurements and tests.

Both sides run the deployed phases, with every key, share, mask and signature. Messages pass as objects, and each
participant sees only what the coordinator sends to it. Like the phases, this module does no input or output, reads no
clock and draws no randomness itself: equal random sources give equal bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from secagg import client_phases, server_phases
from secagg.context import RoundConfig
from secagg.encoding import RandomBytes
from secagg.keys import IdentityKey
from secagg.messages import CONSISTENCY_CHECK, UNMASKING
from secagg.parallel import Parallel
from secagg.roster import Roster, RosterEntry, sign_roster, verify_roster
from secagg.server_unmasking import Completed


class InMemoryAttempt:
    """An attempt of an honest coordinator, phase by phase.

    A subclass observes or changes the attempt by overriding `turns` (the participants' order), `exchange` (one
    participant's turn), `answer` (the participant's half of it), `mask` and `close`.

    Attributes:
        coordinator: the coordinator's phase.
        phases: of the participants that have not left, by position in the roster; None before they advertise.
        messages: receiver -> the coordinator's message in this phase; None in the first phase.
        completed: the result, after the last phase.
        leaving: name of a phase -> participants that leave before they answer in it.
    """

    first_of_participant: Any = client_phases.AdvertiseKeys
    first_of_coordinator: Any = server_phases.AdvertiseKeys

    def __init__(
        self,
        config: RoundConfig,
        identities: Mapping[int, IdentityKey],
        random_bytes: Callable[[int], RandomBytes],
        vector: Callable[[int], NDArray[Any]],
        *,
        leaving: Mapping[str, Collection[int]] | None = None,
        parallel: Parallel | None = None,
    ) -> None:
        """Begin with AdvertiseKeys.

        Args:
            identities: of the participants, ascending by position in the roster; all are invited.
            vector: participant -> (dim,) words below 2^B; called when it masks.
            parallel: threads for the coordinator's unmasking.
        """
        self.config, self.identities, self.random_bytes, self.vector = config, identities, random_bytes, vector
        self.leaving, self.parallel = leaving or {}, parallel
        self.coordinator: Any = self.first_of_coordinator(config, frozenset(identities))
        self.phases: dict[int, Any] = dict.fromkeys(identities)
        self.messages: Mapping[int, Any] = dict.fromkeys(identities)
        self.completed: Completed | None = None

    def run(self) -> Completed:
        """Play all remaining phases; a `ProtocolError` ends the attempt without a sum."""
        while self.completed is None:
            self.step()
        return self.completed

    def step(self) -> None:
        """Play one phase: each participant's turn, then the coordinator closes the phase."""
        for who in self.leaving.get(self.coordinator.name, ()):
            self.phases.pop(who, None)
        for who in self.turns():
            if who in self.phases:
                self.exchange(who)
        self.close()
        if self.coordinator.name == CONSISTENCY_CHECK and not self.config.parameters.signed:
            self.leave_signing_out()

    def turns(self) -> Iterable[int]:
        """The participants of this phase, in the order of their turns."""
        return self.messages

    def leave_signing_out(self) -> None:
        """Go from ConsistencyCheck to Unmasking if the plan has no signatures."""
        self.coordinator = self.coordinator.without_signatures()

    def exchange(self, who: int) -> None:
        """Deliver the coordinator's message to a participant, and its answer to the coordinator."""
        self.coordinator.receive(who, self.answer(who, self.messages[who]))

    def answer(self, who: int, message: Any) -> Any:
        """A participant's answer; the participant enters its next phase."""
        phase = self.phases[who]
        if phase is None:
            first = self.first_of_participant(self.config, self.identities[who], self.random_bytes(who))
            result = first.advertise()
        else:
            result = phase.receive(message)
            if not isinstance(result, tuple):
                result = self.mask(who, result)
        self.phases[who], answered = result
        return answered

    def mask(self, who: int, masking: Any) -> tuple[Any, Any]:
        """A participant's next phase and its upload, after it has received its neighbours' shares."""
        following: tuple[Any, Any] = masking.mask(self.vector(who))
        return following

    def close(self) -> None:
        closed = (
            self.coordinator.close(self.parallel) if self.coordinator.name == UNMASKING else self.coordinator.close()
        )
        if isinstance(closed, tuple):
            self.coordinator, self.messages = closed
        else:
            self.completed = closed


def fresh_roster(study: str, members: int, random_bytes: RandomBytes) -> tuple[Roster, list[IdentityKey]]:
    """New identities, ascending, and a roster of them that a new authority has signed; each has its own host."""
    identities = sorted((IdentityKey.generate(random_bytes) for _ in range(members)), key=lambda key: key.public)
    authority = Ed25519PrivateKey.from_private_bytes(random_bytes(32))
    entries = tuple(RosterEntry(key.public, f"host-{at}") for at, key in enumerate(identities))
    signed = sign_roster(Roster(study, 1, entries), authority)
    return verify_roster(signed, authority.public_key().public_bytes_raw()), identities
