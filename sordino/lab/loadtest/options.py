"""What is asked of a load test, and the study that is made for it."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from authority.new_study import NewStudy, new_study
from runtime.failure import ExitCode, Failure
from server.study_tables import DeadlineTable
from sordino.lab.loadtest.availability import Availability, Presence
from sordino.lab.loadtest.faults import (
    BETWEEN_ROUNDS,
    Cheats,
    Delay,
    Link,
    Storm,
    Stragglers,
    cheats_of,
    links_of,
    stragglers_of,
    struck_by,
)
from sordino.lab.loadtest.schedule import ANY, PHASE_NAMES, STYLES, Drop, dropped_count, drops_of

TASK: Final = "synthetic"
CONNECTIONS_FILE: Final = "connections.json"
"""In a host's folder: what its process was told when it couldn't connect."""
DEADLINES_S: Final = {"disconnect": 60.0, "silent": 10.0}
"""Of a phase, by drop style. Only silent participants are waited for; others end a phase by leaving."""
PAUSE_S: Final = 1.0
_EPSILON: Final = 20.0  # nothing is protected here: any budget under which the noise fits does
_COLLUDING: Final = (0.05, 0.02, 0.01, 0.0)
_ROOM: Final = (4.0, 1.0, 100.0)  # k_stddevs that are tried: few bits need a small one, many a large one
_MOST_ATTEMPTS: Final = 100  # what study.toml takes


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """A load test.

    Attributes:
        clients, processes: participants, spread evenly over the client processes.
        dim: values of a vector before it is padded.
        bits: B of one value on the wire.
        rounds: rounds that are begun; one that aborts counts.
        drop: share of the participants that leave in each round, in [0, 1).
        at: the phase at which they leave, or ``any``.
        drop_style: ``disconnect`` or ``silent``.
        deadline_s: of each phase; None takes that of the style.
        resume_s: how long a broken connection keeps its place in a round. None: not at all, unless connections break
            here by themselves (links with resets, storms); then the study's default. Planned dropouts are real either
            way: who leaves forgets the round.
        pause_s: between rounds; None: a second where something is to happen between them, else none.
        stragglers, links, storms, cheats, availability: see `sordino.lab.loadtest.faults` and `availability`.
        crashes: after which rounds the coordinator is killed and started again, counting those that abort.
        noise: participants send real noise, as of a study whose updates are zero. No sum is known beforehand then; each
            is held against the deviation that it should have instead (`sordino.lab.loadtest.noise`).
        verify_once: participants of one process verify each signature once, as those of one `sordino join` do, and not
            as if each had a process of its own.
        began_at: when the seconds of the availability begin, seconds since the epoch; set when processes are started.
        out: folder for result, figures, study and logs; None keeps nothing.
        max_p95_s, min_completed, min_share, max_rss_mb, max_unplanned, noise_within: bounds
            (`sordino.lab.loadtest.bounds`); None has none.
    """

    clients: int = 50
    processes: int = 4
    dim: int = 10_000
    bits: int = 20
    rounds: int = 5
    drop: float = 0.1
    at: str = ANY
    drop_style: str = "disconnect"
    seed: int = 1
    deadline_s: float | None = None
    resume_s: float | None = None
    pause_s: float | None = None
    stragglers: Stragglers | None = None
    links: tuple[Link, ...] = ()
    storms: tuple[Storm, ...] = ()
    crashes: tuple[int, ...] = ()
    cheats: Cheats | None = None
    availability: Availability | None = None
    noise: bool = False
    verify_once: bool = False
    began_at: float = 0.0
    out: Path | None = None
    max_p95_s: float | None = None
    min_completed: int | None = None
    min_share: float | None = None
    max_rss_mb: float | None = None
    max_unplanned: int | None = None
    noise_within: float | None = None

    def check(self) -> None:
        """Raises Failure: an option that can't be used, with one that can."""
        if self.processes > self.clients:
            raise Failure(
                ExitCode.INPUT,
                f"--processes {self.processes} can't share --clients {self.clients}: each process needs at least one. "
                f"Use --processes {self.clients} or fewer.",
            )
        if not 0 <= self.drop < 1:
            raise Failure(ExitCode.INPUT, "--drop is a share from 0 to below 1; for 10 % write 0.1.")
        if self.at != ANY and self.at not in PHASE_NAMES:
            raise Failure(ExitCode.INPUT, f"--at {self.at}: choose one of {', '.join(PHASE_NAMES)}, or {ANY}.")
        if self.drop_style not in STYLES:
            raise Failure(ExitCode.INPUT, f"--drop-style {self.drop_style}: choose {' or '.join(STYLES)}.")
        if self.min_completed is not None and self.min_completed > self.rounds:
            raise Failure(
                ExitCode.INPUT,
                f"--min-completed {self.min_completed} can't be met by --rounds {self.rounds}. Lower the bound.",
            )
        if self.noise_within is not None and not self.noise:
            raise Failure(ExitCode.INPUT, "--noise-within is a bound on real noise: add --noise.")
        if sum(link.share for link in self.links) > 1 + 1e-9:
            raise Failure(ExitCode.INPUT, "the links' shares are more than 1 together. Lower one of them.")
        named = [("--crash", one) for one in self.crashes] + [("--storm", one.round) for one in self.storms]
        for name, round_ in named:
            if not 1 <= round_ <= self.rounds:
                raise Failure(
                    ExitCode.INPUT,
                    f"{name}: there is no round {round_}, only 1 to {self.rounds}. Use --rounds {round_} or more, or "
                    "change it where it stands, on the command line or in the scenario's file.",
                )
        moments = [(one.round, one.at) for one in self.storms]
        for round_, at in moments:
            if moments.count((round_, at)) > 1:
                raise Failure(
                    ExitCode.INPUT,
                    f"--storm: two come at the same moment, round={round_},at={at}. Leave one out, or change its round "
                    "or at.",
                )
        if self.rounds in self.crashes:
            raise Failure(
                ExitCode.INPUT,
                f"--crash {self.rounds} is after the last round. Raise --rounds, or name an earlier one.",
            )

    @property
    def seconds(self) -> float:
        """Longest wait of a phase."""
        return DEADLINES_S[self.drop_style] if self.deadline_s is None else self.deadline_s

    @property
    def dropped(self) -> int:
        """Participants that leave in each round."""
        return dropped_count(self.clients, self.drop)

    @property
    def kept_s(self) -> float:
        """For which a broken connection keeps its place."""
        if self.resume_s is not None:
            return self.resume_s
        breaks = bool(self.storms) or any(link.resets_per_min for link in self.links)
        return DeadlineTable().resume_s if breaks else 0.0

    @property
    def paused_s(self) -> float:
        """Between rounds."""
        if self.pause_s is not None:
            return self.pause_s
        between = bool(self.crashes) or any(storm.at == BETWEEN_ROUNDS for storm in self.storms)
        return PAUSE_S if between else 0.0

    @property
    def missing(self) -> float:
        """Share of the participants that the plan must do without in a round."""
        share = self.drop + (self.cheats.share if self.cheats is not None else 0.0)
        if self.stragglers is not None and self.stragglers.to_s >= self.seconds:
            share += self.stragglers.share
        if self.availability is not None:
            share += self.availability.away_share(self.clients)
        return min(share, 0.99)

    def drops(self, round_: int, attempt: int) -> dict[int, Drop]:
        """Who leaves an attempt, and how."""
        return drops_of(self.seed, round_, attempt, clients=self.clients, share=self.drop, at=self.at)

    def delays(self, round_: int, attempt: int) -> dict[int, Delay]:
        """Who answers late in an attempt."""
        if self.stragglers is None:
            return {}
        others = {*self.drops(round_, attempt), *self.cheaters()}
        return stragglers_of(self.stragglers, self.seed, round_, attempt, clients=self.clients, others=others)

    def cheaters(self) -> dict[int, str]:
        """Who cheats, and in which way."""
        return cheats_of(self.cheats, self.seed, self.clients)

    def linked(self) -> dict[int, Link]:
        """Whose link is worse than this machine's own."""
        return links_of(self.links, self.seed, self.clients)

    def struck(self, storm: Storm) -> frozenset[int]:
        """Whose connections a storm takes."""
        return struck_by(storm, self.seed, self.clients)

    def in_order(self) -> LoadOptions:
        """With the storms in the order in which they come: parent and client processes count them."""
        places = {name: place for place, name in enumerate(PHASE_NAMES)}
        return dataclasses.replace(
            self, storms=tuple(sorted(self.storms, key=lambda one: (one.round, places.get(one.at, len(places)))))
        )

    def presence(self) -> Presence:
        """Who is there when."""
        return Presence(self.availability, self.seed)

    def to_json(self) -> dict[str, Any]:
        """For result.json: every option as it is used."""
        values: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self), default=str))  # lists for tuples
        for name in ("out", "began_at"):
            values.pop(name)
        return values | {"deadline_s": self.seconds, "resume_s": self.kept_s, "pause_s": self.paused_s}

    def behaviour(self) -> str:
        """What a client process must know, as JSON for its command line."""
        wanted = ("clients", "drop", "at", "drop_style", "seed", "noise", "verify_once", "began_at")
        values = {name: getattr(self, name) for name in wanted}
        for name in ("stragglers", "cheats", "availability"):
            values[name] = None if getattr(self, name) is None else dataclasses.asdict(getattr(self, name))
        for name in ("links", "storms"):
            values[name] = [dataclasses.asdict(one) for one in getattr(self, name)]
        return json.dumps(values)

    @classmethod
    def from_behaviour(cls, text: str) -> LoadOptions:
        """Inverse of `behaviour`; the other options are the defaults and mean nothing."""
        values = json.loads(text)
        for name, kind in (("stragglers", Stragglers), ("cheats", Cheats), ("availability", Availability)):
            values[name] = None if values[name] is None else kind(**values[name])
        values["links"] = tuple(Link(**one) for one in values["links"])
        values["storms"] = tuple(Storm(**one) for one in values["storms"])
        return cls(**values)

    def study(self, port: int) -> NewStudy:
        """A study in which the planned dropouts leave enough, where that is possible.

        ``min_survivors`` and the quorum are the signatures that the whole roster needs, the least that the protocol
        allows (more where that lets a large cohort share on a ring), and the share that is assumed to collude is the
        largest tried that leaves room for the dropouts. Where even none does, rounds abort, as they should.

        Raises:
            Failure: no plan holds so many participants, values and bits; names the nearest that does.
        """
        reasons: list[str] = []
        found = self._feasible(port, reasons)
        if found is not None:
            return found
        raise Failure(ExitCode.INFEASIBLE, f"no plan holds this: {reasons[0]}", self._nearest())

    def check_can_end(self) -> None:
        """Raises Failure: so many leave each attempt that none can end in a sum; with the largest share that can."""
        fewest, left = self._fewest, self._left
        if left >= fewest:
            return
        if self.missing > self.drop:
            raise Failure(
                ExitCode.INPUT,
                f"{self.clients - left} of {self.clients} leave, are late, cheat or are away, and {left} stay, fewer "
                f"than min_survivors = {fewest}: no round can end in a sum. Lower --drop or another share.",
            )
        shares = (part / 100 for part in range(int(100 * self.drop), -1, -1))
        lower = next(
            one
            for one in (dataclasses.replace(self, drop=share) for share in shares)
            if one.clients - one.dropped >= one._fewest
        )
        raise Failure(
            ExitCode.INPUT,
            f"{self.dropped} of {self.clients} leave and {left} stay, fewer than min_survivors = {fewest}: no round "
            f"can end in a sum. Use --drop {lower.drop:g} or less.",
        )

    @property
    def _left(self) -> int:
        return self.clients - dropped_count(self.clients, self.missing)

    @property
    def _colluding(self) -> tuple[float, ...]:
        """Shares that are tried; more cheats than are assumed to collude could not all be told from honest ones."""
        cheats = 0.0 if self.cheats is None else self.cheats.share
        return tuple(dict.fromkeys(max(share, cheats) for share in _COLLUDING))

    @property
    def _fewest(self) -> int:
        return self._study(1, _ROOM[0]).study.privacy.min_survivors or 0

    def _feasible(self, port: int, reasons: list[str]) -> NewStudy | None:
        """The first study that a plan holds for; why the others don't goes into ``reasons``."""
        from mechanisms.plan import InfeasiblePlan

        for room in _ROOM:
            options = self._study(port, room)
            try:
                options.study.plan()
            except InfeasiblePlan as error:
                reasons.append(error.reason)
                continue
            return options
        return None

    def _study(self, port: int, room: float) -> NewStudy:
        from secagg.errors import InvalidParameters
        from secagg.parameters import assumed_colluders, complete_graph_threshold

        def threshold(adversarial: float) -> int:
            try:
                colluders = assumed_colluders(self.clients, adversarial, self.missing)
            except InvalidParameters:
                return self.clients
            return complete_graph_threshold(self.clients, colluders)

        left = self._left
        adversarial = next((share for share in self._colluding if threshold(share) <= left), self._colluding[-1])
        survivors = self._survivors(adversarial, threshold(adversarial), left)
        return new_study(
            name="loadtest",
            rounds=self.rounds,
            participants=self.clients,
            hosts=self.processes,
            task=TASK,
            task_options={"dim": self.dim},
            dataset="fashion-mnist-subset",  # named, as it must be, and never looked at
            partition="iid",
            epsilon=_EPSILON,
            bits=self.bits,
            max_dropout=self.missing,
            adversarial=adversarial,
            min_survivors=survivors,
            quorum=survivors,
            k_stddevs=room,
            listen=f"127.0.0.1:{port}",
            deadline_s=self.seconds,
            connect_s=max(60.0, 0.1 * self.clients),
            max_attempts=min(_MOST_ATTEMPTS, self.rounds),
            server_momentum=0.0,  # so that what a sum has changed in the model is the sum
            pause_s=self.paused_s,
            resume_s=self.kept_s,
        )

    def _survivors(self, adversarial: float, threshold: int, left: int) -> int:
        """As few as can be; but if that lets participants share on a ring, as many as independent drops leave."""
        from secagg.parameters import HARARY, assumed_colluders, choose_graph, default_min_survivors
        from secagg.sharing import MALICIOUS

        colluders = assumed_colluders(self.clients, adversarial, self.missing)
        more = min(left, default_min_survivors(self.clients, colluders, self.missing))
        sparse = more > threshold and choose_graph(self.clients, colluders, more, MALICIOUS) == HARARY
        return more if sparse else threshold

    def _nearest(self) -> str:
        """The option that, changed by the least, makes a plan."""

        def works(**changed: Any) -> bool:
            return dataclasses.replace(self, **changed)._feasible(1, []) is not None

        for distance in range(1, 62):
            for bits in (self.bits - distance, self.bits + distance):
                if 1 <= bits <= 62 and works(bits=bits):
                    return f"--bits {bits} is the nearest that works"
        for clients in range(self.clients + 1, self.clients + 9):
            if works(clients=clients):
                return f"--clients {clients} is the nearest that works"
        return f"use fewer values than --dim {self.dim}, or fewer participants"
