"""What a study owner chooses, and the plan that follows from it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from authority.founding import CarriedAuthority
    from mechanisms.plan import Plan


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """What a study owner chooses. The defaults are the demo's setting, but for min_survivors and quorum.

    Attributes:
        participants, hosts: participants are spread evenly over the client processes.
        enrol: places for further participants, who join with a code; the plan is for all of them together.
        authority: made elsewhere; then nobody is made with the study, and all join with codes of that authority.
        sampling: "none", or "lottery": the authority's seeds draw ``cohort`` participants for each round.
        cohort: of a lottery; else None.
        clip: None takes the task's own bound where it has one, else 1.
        population: of a lottery: the smallest roster that a round may begin with; None takes ``participants``.
        min_survivors: fewest in a sum; None takes what independent dropouts miss in one of a thousand rounds.
        quorum: fewest that begin a round; None takes ``min_survivors``.
        server_rate: None takes that of the server optimiser, `learning.server_optimizers.DEFAULT_RATES`.
        listen: HOST:PORT of the coordinator.
        names: host names and addresses that its certificate holds besides the local ones.
        deadline_s: of each of the five phases; None takes the default of each.
        training_s: of the phase that waits for local training; None takes the default, or ``deadline_s``.
        connect_s: longest wait for the roster before a round.
        max_attempts: at one round.
        pause_s, resume_s, http_listen: see ``server.study_file``.
        one_machine: see ``server.study_file``.
    """

    name: str = "demo"
    rounds: int = 15
    task: str = "softmax-regression"
    task_options: Mapping[str, object] = field(
        default_factory=lambda: {"client_rate": 0.5, "batch_size": 20, "local_epochs": 3}
    )
    dataset: str = "fashion-mnist-subset"
    partition: str = "dirichlet"
    alpha: float = 1.0
    shards: int = 2
    seed: int = 1
    test: str = ""
    participants: int = 100
    hosts: int = 10
    enrol: int = 0
    authority: CarriedAuthority | None = None
    sampling: str = "none"
    cohort: int | None = None
    population: int | None = None
    mechanism: str = "ddgauss"
    epsilon: float = 8.0
    delta: float = 1e-5
    clip: float | None = None
    bits: int = 16
    max_dropout: float = 0.3
    adversarial: float = 0.05
    adversary: str = "malicious"
    graph: str = "auto"
    min_survivors: int | None = None
    quorum: int | None = None
    beta: float = math.exp(-0.5)
    k_stddevs: float = 4.0
    rotation: str = "auto"
    clip_by_layer: bool = False
    clip_scaling: str = "uniform"
    clip_update: str = "fixed"
    clip_quantile: float = 0.5
    clip_rate: float = 0.3
    clip_bit_weight: float = 0.3
    sketch_rows: int = 0
    sketch_ratio: float = 10.0
    server_optimizer: str = "fedavg"
    server_rate: float | None = None
    server_momentum: float = 0.7
    server_second_momentum: float = 0.99
    server_adaptivity: float = 1e-3
    listen: str = "127.0.0.1:8443"
    names: tuple[str, ...] = ()
    deadline_s: float | None = None
    training_s: float | None = None
    connect_s: float = 60.0
    max_attempts: int = 3
    pause_s: float = 0.0
    resume_s: float = 2.0
    http_listen: str = ""
    one_machine: bool = True

    @property
    def client_address(self) -> str:
        """What the hosts connect to: a name that the certificate holds."""
        return self._reached_at(self.listen)

    @property
    def enrolment_listen(self) -> str:
        """HOST:PORT on which the coordinator takes requests: the port after its own; empty where nobody enrols."""
        if not self.enrol:
            return ""
        host, _, port = self.listen.rpartition(":")
        return f"{host}:{int(port) + 1}"

    @property
    def client_enrolment(self) -> str:
        """What whoever enrols connects to; empty where nobody does."""
        return self._reached_at(self.enrolment_listen) if self.enrol else ""

    def _reached_at(self, listen: str) -> str:
        host, _, port = listen.rpartition(":")
        if self.names:
            name = self.names[0]
            return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
        return f"localhost:{port}" if host in ("0.0.0.0", "[::]", "127.0.0.1") else listen

    @property
    def places(self) -> int:
        """The largest roster."""
        return self.participants + self.enrol

    @property
    def in_a_round(self) -> int:
        """Participants invited to one round, at most: what the plan is for."""
        return self.places if self.cohort is None else self.cohort

    @property
    def smallest_roster(self) -> int | None:
        """That cohorts are drawn from; None without a lottery."""
        if self.sampling == "none":
            return None
        return self.participants if self.population is None else self.population

    def settled(self) -> StudyOptions:
        """With ``clip``, ``min_survivors``, ``quorum`` and ``server_rate`` as numbers.

        Raises:
            learning.options.OptionError: the task can't be made, or the clip would distort what it computes.
        """
        from learning.make_task import clip_of, make_task
        from learning.server_optimizers import DEFAULT_RATES
        from secagg.parameters import assumed_colluders, colluders_in_cohort, default_min_survivors
        from wire.study import cohorts_drawn

        survivors, quorum = self.min_survivors, self.quorum
        if survivors is None:
            clients, shares = self.in_a_round, (self.adversarial, self.max_dropout)
            colluders = assumed_colluders(clients, *shares)
            if self.smallest_roster is not None:
                draws = cohorts_drawn(self.sampling, self.rounds)
                sizes = {self.smallest_roster, self.places}
                colluders = max(colluders, *(colluders_in_cohort(size, clients, *shares, draws) for size in sizes))
            survivors = default_min_survivors(clients, colluders, self.max_dropout)
        if quorum is None:
            quorum = survivors
        task = make_task(self.task, dict(self.task_options))
        clip = clip_of(task, self.clip, adaptive=self.clip_update != "fixed", sketch=self.sketch_rows > 0)
        rate = DEFAULT_RATES.get(self.server_optimizer, 1.0) if self.server_rate is None else self.server_rate
        return replace(self, clip=clip, min_survivors=survivors, quorum=quorum, server_rate=rate)


def plan_for(options: StudyOptions, **others: Any) -> Plan:
    """The plan of these options.

    Args:
        others: further arguments of `wire.study.plan_study`, for plans that aren't served.

    Raises:
        mechanisms.plan.InfeasiblePlan: no plan keeps the budget and the protocol's rules.
    """
    from learning.make_task import make_task
    from learning.parameters import layers_of
    from wire.study import plan_study

    chosen = options.settled()
    layers = layers_of(make_task(chosen.task, dict(chosen.task_options)).contribution_shapes)
    return plan_study(
        mechanism=chosen.mechanism,
        clients=chosen.in_a_round,
        sampling=chosen.sampling,
        population=chosen.smallest_roster,
        largest_roster=None if chosen.smallest_roster is None else chosen.places,
        dim=sum(layers),
        bits=chosen.bits,
        epsilon=chosen.epsilon,
        delta=chosen.delta,
        rounds=chosen.rounds,
        max_dropout=chosen.max_dropout,
        adversarial=chosen.adversarial,
        min_survivors=chosen.min_survivors,
        quorum=chosen.quorum,
        graph=chosen.graph,
        adversary=chosen.adversary,
        beta=chosen.beta,
        k_stddevs=chosen.k_stddevs,
        rotation=None if chosen.rotation == "auto" else chosen.rotation,
        **coding_of(chosen, layers),
        **others,
    )


def coding_of(options: StudyOptions, layers: Sequence[int]) -> dict[str, Any]:
    """How updates are clipped and coded, as arguments of `wire.study.plan_study`.

    Args:
        options: settled.
        layers: values of each array of a contribution.
    """
    from wire.study import coding

    assert options.clip is not None  # noqa: S101  # settled
    return coding(
        layers,
        clip=options.clip,
        by_layer=options.clip_by_layer,
        scaling=options.clip_scaling,
        update=options.clip_update,
        quantile=options.clip_quantile,
        rate=options.clip_rate,
        bit_weight=options.clip_bit_weight,
        sketch_rows=options.sketch_rows,
        sketch_ratio=options.sketch_ratio,
    )
