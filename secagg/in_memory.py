"""One attempt with both sides in one process: what simulations, measurements and tests share.

Both sides are the phases that are deployed, with every key, share, mask and signature. Messages pass as objects, and
each participant sees only what the coordinator sends it. Like the phases, this module does no input or output, reads no
clock and draws no randomness of its own: equal sources give equal bytes.
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

    A subclass watches or changes what happens by overriding `turns` (their order), `exchange` (one participant's turn),
    `answer` (the participant's half of it), `mask` and `close`.

    Attributes:
        coordinator: its phase.
        phases: of the participants that are still there, by position in the roster; None before they advertise.
        messages: what the coordinator tells whom in this phase; None in the first one.
        completed: the end, once there is one.
        leaving: by name of a phase, who leaves before it answers in it.
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
            config: the same for both sides.
            identities: of those that are here, ascending by position in the roster; all of them invited.
            random_bytes: source of each participant.
            vector: of each participant, (dim,) words below 2^B; asked for when it masks.
            parallel: threads for the coordinator's unmasking.
        """
        self.config, self.identities, self.random_bytes, self.vector = config, identities, random_bytes, vector
        self.leaving, self.parallel = leaving or {}, parallel
        self.coordinator: Any = self.first_of_coordinator(config, frozenset(identities))
        self.phases: dict[int, Any] = dict.fromkeys(identities)
        self.messages: Mapping[int, Any] = dict.fromkeys(identities)
        self.completed: Completed | None = None

    def run(self) -> Completed:
        """Go on to the end.

        Raises:
            secagg.errors.ProtocolError: what ends the attempt without a sum.
        """
        while self.completed is None:
            self.step()
        return self.completed

    def step(self) -> None:
        """Play one phase of the coordinator: everybody's turn, then its end."""
        for who in self.leaving.get(self.coordinator.name, ()):
            self.phases.pop(who, None)
        for who in self.turns():
            if who in self.phases:
                self.exchange(who)
        self.close()
        if self.coordinator.name == CONSISTENCY_CHECK and not self.config.parameters.signed:
            self.leave_signing_out()

    def turns(self) -> Iterable[int]:
        """Whose turn it is in this phase, one after the other."""
        return self.messages

    def leave_signing_out(self) -> None:
        """Go from ConsistencyCheck to Unmasking, as the plan has it."""
        self.coordinator = self.coordinator.without_signatures()

    def exchange(self, who: int) -> None:
        """Tell a participant what the coordinator has for it, and take its answer."""
        self.coordinator.receive(who, self.answer(who, self.messages[who]))

    def answer(self, who: int, message: Any) -> Any:
        """What a participant answers; it goes on to its next phase."""
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
        """What a participant does between its neighbours' shares and its upload."""
        following: tuple[Any, Any] = masking.mask(self.vector(who))
        return following

    def close(self) -> None:
        """End the coordinator's phase."""
        closed = (
            self.coordinator.close(self.parallel) if self.coordinator.name == UNMASKING else self.coordinator.close()
        )
        if isinstance(closed, tuple):
            self.coordinator, self.messages = closed
        else:
            self.completed = closed


def fresh_roster(study: str, members: int, random_bytes: RandomBytes) -> tuple[Roster, list[IdentityKey]]:
    """New identities, ascending, on a roster that a new authority has signed, each on a host of its own."""
    identities = sorted((IdentityKey.generate(random_bytes) for _ in range(members)), key=lambda key: key.public)
    authority = Ed25519PrivateKey.from_private_bytes(random_bytes(32))
    entries = tuple(RosterEntry(key.public, f"host-{at}") for at, key in enumerate(identities))
    signed = sign_roster(Roster(study, 1, entries), authority)
    return verify_roster(signed, authority.public_key().public_bytes_raw()), identities
