"""Whole attempts of the protocol core in one process, timed: no network, and nothing shared between participants.

Each participant has separate keys and sees only the coordinator's messages to it. Figures are CPU time of this process,
all threads together, with every signature and commitment checked on both sides. Messages pass as the core's objects;
their protobuf sizes are measured with the clock stopped.
"""

from __future__ import annotations

import gc
import hashlib
import math
import os
import resource
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Any, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from runtime.settings_file import Table
from runtime.settings_keys import key
from secagg import masking, messages, shamir
from secagg.context import RoundConfig
from secagg.errors import TooFewClients
from secagg.in_memory import InMemoryAttempt, fresh_roster
from secagg.messages import ADVERTISE_KEYS, UNMASKING
from secagg.packing import packed_size
from secagg.parallel import Parallel
from secagg.parameters import (
    COMPLETE,
    HARARY,
    X25519,
    RoundParameters,
    assumed_colluders,
    choose_graph,
    default_min_survivors,
)
from secagg.sharing import MALICIOUS, Sharing
from sordino.lab.loadtest.faults import PHASE_NAMES, PhaseName
from wire import codec, coordinator_pb2 as pb

LARGEST_DIM: Final = 1 << 28
AUTO: Final = "auto"
_SIZES_TAKEN: Final = 50
_SELDOM: Final = 300  # as the coordinator has it
_option: Final = partial(key, panel="Attempt")


class Setting(Table):
    """The attempt that is run: the options of `sordino bench secagg`.

    Raises ValueError: a number is out of range, or too many leave for the attempt to end in a sum.
    """

    clients: int = _option(50, "participants", within=(3, shamir.PRIME - 1))
    dim: int = _option(100_000, "values in one vector", within=(1, LARGEST_DIM))
    bits: int = _option(20, "bits of one value, 1 to 62", within=(1, 62))
    graph: Literal["auto", "complete", "harary"] = _option(
        AUTO,
        "complete: each participant shares with all others. harary or ring: on the ring (k-regular), with as many "
        "neighbours as the rules require. auto: the ring where it halves the work. min_survivors and the degree "
        "depend on it: see --dropout",
    )
    degree: int | None = _option(None, "degree of the ring, with --threshold: another system's setting", shown="rules")
    threshold: int | None = _option(None, "shares that rebuild a secret, with --degree", shown="rules")
    adversary: Literal["curious", "semi-malicious", "malicious"] = _option(
        MALICIOUS,
        "what the coordinator may do: malicious, semi-malicious, or curious, trusted to follow the protocol: it "
        "sends all participants the same, and reads what it can. Only malicious has the ConsistencyCheck",
    )
    key_agreement: Literal["x25519", "x25519-mlkem768"] = _option(
        X25519, "of channels and masks: x25519, or x25519-mlkem768"
    )
    drop: float = _option(0.0, "share of the participants that leaves", ge=0, lt=1)
    at: PhaseName = _option(
        "masked-input", f"the phase before which they leave: {', '.join(PHASE_NAMES)}", metavar="PHASE"
    )
    adversarial: float = _option(0.05, "share assumed to collude", ge=0, lt=1)
    dropout: float = _option(
        0.3,
        "share that is planned to leave. With auto and complete min_survivors is a study's, which independent "
        "dropouts rarely miss; with harary, or a coordinator that isn't malicious, it is what this share leaves, as "
        "in [bold]sordino graph[/bold]",
        ge=0,
        lt=1,
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.adversary != MALICIOUS and self.at == "consistency-check":
            raise ValueError(f"against a {self.adversary} coordinator there is no consistency-check to leave before.")
        self._check_degree()
        left = self.clients - self.dropped
        if left < self.parameters.min_survivors:
            raise ValueError(
                f"{self.dropped} of {self.clients} leave and {left} stay, fewer than min_survivors = "
                f"{self.parameters.min_survivors}: lower --drop, or raise --dropout, the share that is planned for."
            )
        return self

    def _check_degree(self) -> None:
        if self.degree is None and self.threshold is None:
            return
        if self.graph == COMPLETE:
            raise ValueError(
                "--graph complete has no degree: leave out --degree and --threshold, or use --graph harary."
            )
        if self.threshold is None:
            raise ValueError("--degree without --threshold: give --threshold as well.")
        if self.degree is None:
            raise ValueError("--threshold without --degree: give --degree as well.")
        largest = (self.clients - 2) // 2 * 2
        if largest < 2:
            raise ValueError(f"{self.clients} clients are no ring: leave out --degree and --threshold.")
        if self.degree % 2 or not 2 <= self.degree <= largest:
            raise ValueError(f"--degree {self.degree} is no ring's: take an even number from 2 to {largest}.")
        if not 2 <= self.threshold <= self.degree:
            raise ValueError(f"--threshold {self.threshold} is out of range. Use 2 to the degree, {self.degree}.")

    @property
    def dropped(self) -> int:
        return round(self.drop * self.clients)

    @property
    def parameters(self) -> RoundParameters:
        """The plan's numbers that the protocol rests on. Raises InvalidParameters: they can't be met."""
        colluders = assumed_colluders(self.clients, self.adversarial, self.dropout)
        if self.adversary == MALICIOUS and self.graph != HARARY:
            survivors = default_min_survivors(self.clients, colluders, self.dropout)
        else:  # as published, and as `sordino graph` has it: only the planned share leaves
            survivors = self.clients - math.floor(Fraction(repr(self.dropout)) * self.clients)
        graph: str = self.graph
        if self.degree is not None:
            graph = HARARY
        elif graph == AUTO:
            graph = choose_graph(self.clients, colluders, survivors, self.adversary)
        return _Parameters(
            cohort=self.clients,
            colluders=colluders,
            min_survivors=survivors,
            quorum=survivors,
            bits=self.bits,
            dim=self.dim,
            graph=graph,
            adversary=self.adversary,
            key_agreement=self.key_agreement,
            degree_and_threshold=None if self.degree is None else (self.degree, self.threshold or 0),
        )


@dataclass(frozen=True, kw_only=True)
class _Parameters(RoundParameters):
    """With a sharing that is given: other systems' settings, which no participant of a study would accept."""

    degree_and_threshold: tuple[int, int] | None = None

    def sharing(self, u1: int) -> Sharing:
        """As given, or by the rules."""
        return super().sharing(u1) if self.degree_and_threshold is None else Sharing(*self.degree_and_threshold)


@dataclass
class Clock:
    """CPU seconds by side and phase."""

    seconds: defaultdict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    of_client: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    _stopped: float = 0.0

    @contextmanager
    def client(self, phase: str, who: int) -> Iterator[None]:
        # A participant in a separate process would find no table left by another.
        shamir.forget_tables()
        before = self._now()
        yield
        spent = self._now() - before
        self.seconds["client", phase] += spent
        self.of_client[who] += spent

    @contextmanager
    def server(self, phase: str) -> Iterator[None]:
        before = self._now()
        yield
        self.seconds["server", phase] += self._now() - before

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Exclude the enclosed code from the CPU time."""
        before = self._now()
        yield
        self._stopped += self._now() - before

    def _now(self) -> float:
        return time.process_time() - self._stopped

    def total(self, side: str) -> float:
        return math.fsum(spent for (who, _), spent in self.seconds.items() if who == side)


def run_attempt(setting: Setting, threads: int = 1) -> dict[str, Any]:
    """Run one attempt and check its sum.

    ``threads``: of the coordinator's unmasking. Returns figures under the names of `sordino bench secagg --json`.
    """
    masking.choose_keystream(time.perf_counter)
    with ThreadPoolExecutor(threads) as pool:
        attempt = _Attempt(setting, Parallel(pool.map, threads))
        # Collections of the oldest generation walk the objects of all participants, which a process of one participant
        # doesn't hold, and the coordinator's process postpones them to the attempt's end (wire/process_limits.py).
        gc.collect()
        gc.freeze()
        thresholds = gc.get_threshold()
        gc.set_threshold(*thresholds[:2], _SELDOM)
        try:
            began = time.perf_counter()
            completed = attempt.run()
        except TooFewClients as error:
            raise ValueError(
                f"the attempt ended without a sum: a participant needs {error.needed} neighbours, and "
                f"{error.received} are left. This can happen by chance: run it again, or lower --threshold or --drop"
            ) from error
        finally:
            gc.set_threshold(*thresholds)
            gc.unfreeze()
    wall_s = time.perf_counter() - began - attempt.outside_s
    clock, survivors = attempt.clock, sorted(completed.u3)
    graph = attempt.graph
    client_cpu_s = math.fsum(clock.of_client[who] for who in survivors) / len(survivors)
    return {
        **setting.model_dump(include={"clients", "dim", "bits", "adversary", "key_agreement", "drop", "at"}),
        "graph": COMPLETE if graph.complete else HARARY,
        "sum_ok": bool(np.array_equal(completed.total, attempt.expected)),
        "degree": graph.degree,
        "threshold": graph.threshold,
        "min_survivors": setting.parameters.min_survivors,
        "survivors": len(survivors),
        "client_cpu_s": client_cpu_s,
        "server_cpu_s": clock.total("server"),
        "cpu_s": clock.total("server") + clock.total("client"),
        "wall_s": wall_s,
        "upload_bytes": round(sum(attempt.sent[who] for who in survivors) / len(survivors)),
        "download_bytes": round(sum(attempt.got[who] for who in survivors) / len(survivors)),
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
        "phases": {
            name: {side: clock.seconds[side, phase] for side in ("client", "server")}
            for name, phase in PHASE_NAMES.items()
        },
    }


class _Attempt(InMemoryAttempt):
    """Measures each side and phase, and the sizes of messages; dropouts leave before one phase."""

    def __init__(self, setting: Setting, parallel: Parallel) -> None:
        self.clock, parameters = Clock(), setting.parameters
        # One copy in memory: a thousand of them would hide what the coordinator holds. What a participant derives from
        # its roster it derives once for each version, in whatever round, and `bench primitives` has the time.
        roster, identities = fresh_roster("bench", setting.clients, os.urandom)
        for derived in (roster.positions, roster.everybody, roster.digest()):
            assert derived  # noqa: S101
        config = RoundConfig(
            roster=roster,
            round=1,
            attempt=1,
            study_digest=hashlib.sha256(b"study").digest(),
            model_digest=hashlib.sha256(b"model").digest(),
            parameters=parameters,
        )
        # Spread over the positions, since those at one end only add, or only subtract, their masks.
        step = setting.clients / max(setting.dropped, 1)
        leaving = {PHASE_NAMES[setting.at]: {int(index * step) for index in range(setting.dropped)}}
        super().__init__(
            config, dict(enumerate(identities)), lambda _: os.urandom, self._input, leaving=leaving, parallel=parallel
        )
        self.graph: Any = None
        self.sent: Counter[int] = Counter()
        self.got: Counter[int] = Counter()
        self.outside_s = 0.0  # wall time of what the measurement itself does
        self._sum = np.zeros(parameters.dim, dtype=np.uint64)

    @property
    def expected(self) -> NDArray[Any]:
        """The plain sum of those that have uploaded."""
        parameters = self.config.parameters
        return (self._sum & np.uint64((1 << parameters.bits) - 1)).astype(masking.word_dtype(parameters.bits))

    def _input(self, who: int) -> NDArray[Any]:
        """Uniform modulo 2^bits, so that sums wrap around."""
        parameters = self.config.parameters
        with self._outside():
            words = masking.word_dtype(parameters.bits)
            vector = np.frombuffer(os.urandom(parameters.dim * words.itemsize), dtype=words).copy()
            masking.reduce_words(vector, parameters.bits)
            np.add(self._sum, vector, out=self._sum)
        self.sent[who] += packed_size(parameters.dim, parameters.bits)
        return vector

    def leave_signing_out(self) -> None:
        with self.clock.server(UNMASKING):
            super().leave_signing_out()

    def exchange(self, who: int) -> None:
        """All are asked and answer; the coordinator takes as many replies as it needs."""
        phase, name = self.coordinator, self.coordinator.name
        with self.clock.server(name):  # made when it is sent
            asked = self.messages[who]
        with self.clock.client(name, who):
            answered = self.answer(who, asked)
        with self._outside():
            field_name, write = _WRITERS[type(answered)]
            message = pb.PhaseMessage(round=1, attempt=1, **{field_name: write(answered)})
            self.sent[who] += pb.ParticipantMessage(phase=message).ByteSize()
        if not getattr(phase, "enough", False):
            with self.clock.server(name):
                phase.receive(who, answered)

    def close(self) -> None:
        name = self.coordinator.name
        with self.clock.server(name):
            super().close()
        if name == ADVERTISE_KEYS:
            self.graph = self.coordinator.cohort.graph
        if self.completed is None:
            with self._outside():
                self._count_received()

    def _count_received(self) -> None:
        """Estimate the bytes that the coordinator sends from a sample of messages: within a phase, sizes differ by
        varints only.
        """
        some = list(self.messages)[:: max(1, len(self.messages) // _SIZES_TAKEN)]
        sizes = []
        for who in some:
            field_name, write = _WRITERS[type(message := self.messages[who])]
            sizes.append(pb.CoordinatorMessage(**{field_name: write(message)}).ByteSize())
        for who in self.messages:
            self.got[who] += round(sum(sizes) / len(sizes))

    @contextmanager
    def _outside(self) -> Iterator[None]:
        began = time.perf_counter()
        with self.clock.stopped():
            yield
        self.outside_s += time.perf_counter() - began


# Each message's field of its envelope, and how it is written there.
_WRITERS: Final[Mapping[type, tuple[str, Callable[[Any], Any]]]] = {
    messages.Advertisement: ("advertise_keys", codec.write_advertisement),
    messages.SealedShares: ("share_keys", codec.write_sealed_shares),
    messages.MaskedInput: (
        "masked_input",
        lambda message: pb.MaskedInputOffer(sha256=message.sha256, signature=message.signature),
    ),
    messages.ConsistencySignature: ("consistency", codec.write_consistency),
    messages.UnmaskingReply: ("unmasking", codec.write_unmasking_reply),
    messages.CohortKeys: ("cohort_keys", lambda message: codec.write_cohort_keys(1, 1, message)),
    messages.NeighbourShares: ("neighbour_shares", lambda message: codec.write_neighbour_shares(1, 1, message)),
    messages.SurvivorSets: ("survivor_sets", lambda message: codec.write_survivor_sets(1, 1, message)),
    messages.UnmaskingRequest: ("unmasking_request", lambda message: codec.write_unmasking_request(1, 1, message)),
}
