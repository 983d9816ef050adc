"""What is asked of a load test, and the study that is made for it."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sordino.exit_codes import ExitCode, Failure
from sordino.loadtest.schedule import ANY, PHASE_NAMES, STYLES, Drop, dropped_count, drops_of
from sordino.local_study import StudyOptions, plan_for

TASK: Final = "synthetic"
DEADLINES_S: Final = {"disconnect": 60.0, "silent": 10.0}
"""Of a phase, by drop style. Only silent participants are waited for; others end a phase by leaving."""
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
        out: folder for result, figures, study and logs; None keeps nothing.
        max_p95_s, min_completed: bounds; None has none.
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
    out: Path | None = None
    max_p95_s: float | None = None
    min_completed: int | None = None

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

    @property
    def seconds(self) -> float:
        """Longest wait of a phase."""
        return DEADLINES_S[self.drop_style] if self.deadline_s is None else self.deadline_s

    @property
    def dropped(self) -> int:
        """Participants that leave in each round."""
        return dropped_count(self.clients, self.drop)

    def drops(self, round_: int, attempt: int) -> dict[int, Drop]:
        """Who leaves an attempt, and how."""
        return drops_of(self.seed, round_, attempt, clients=self.clients, share=self.drop, at=self.at)

    def to_json(self) -> dict[str, Any]:
        """For result.json: every option as it is used."""
        values = dataclasses.asdict(self)
        values.pop("out")
        return values | {"deadline_s": self.seconds}

    def behaviour(self) -> str:
        """What a client process must know, as JSON for its command line."""
        wanted = ("clients", "drop", "at", "drop_style", "seed")
        return json.dumps({name: getattr(self, name) for name in wanted})

    @classmethod
    def from_behaviour(cls, text: str) -> LoadOptions:
        """Inverse of `behaviour`; the other options are the defaults and mean nothing."""
        return cls(**json.loads(text))

    def study(self, port: int) -> StudyOptions:
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
        fewest, left = self._fewest, self.clients - self.dropped
        if left >= fewest:
            return
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
    def _fewest(self) -> int:
        return self._study(1, _ROOM[0]).min_survivors or 0

    def _feasible(self, port: int, reasons: list[str]) -> StudyOptions | None:
        """The first study that a plan holds for; why the others don't goes into ``reasons``."""
        from mechanisms.plan import InfeasiblePlan

        for room in _ROOM:
            options = self._study(port, room)
            try:
                plan_for(options)
            except InfeasiblePlan as error:
                reasons.append(error.reason)
                continue
            return options
        return None

    def _study(self, port: int, room: float) -> StudyOptions:
        from secagg.errors import InvalidParameters
        from secagg.parameters import assumed_colluders, complete_graph_threshold

        def threshold(adversarial: float) -> int:
            try:
                colluders = assumed_colluders(self.clients, adversarial, self.drop)
            except InvalidParameters:
                return self.clients
            return complete_graph_threshold(self.clients, colluders)

        left = self.clients - self.dropped
        adversarial = next((share for share in _COLLUDING if threshold(share) <= left), _COLLUDING[-1])
        survivors = self._survivors(adversarial, threshold(adversarial), left)
        return StudyOptions(
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
            max_dropout=self.drop,
            adversarial=adversarial,
            min_survivors=survivors,
            quorum=survivors,
            k_stddevs=room,
            listen=f"127.0.0.1:{port}",
            deadline_s=self.seconds,
            connect_s=max(60.0, 0.1 * self.clients),
            max_attempts=min(_MOST_ATTEMPTS, self.rounds),
        )

    def _survivors(self, adversarial: float, threshold: int, left: int) -> int:
        """As few as can be; but if that lets participants share on a ring, as many as independent drops leave."""
        from secagg.parameters import HARARY, assumed_colluders, choose_graph, default_min_survivors
        from secagg.sharing import MALICIOUS

        colluders = assumed_colluders(self.clients, adversarial, self.drop)
        more = min(left, default_min_survivors(self.clients, colluders, self.drop))
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
