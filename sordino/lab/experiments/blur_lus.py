"""BLUR and LUS against DP-FedAvg, the distributed discrete Gaussian and AE-DPFL: Tables 1 to 3 and figures of [CWZC22].

The published protocol uses one local rate, batch size and number of local steps for all methods; the clip S from a grid
for DP-FedAvg, at each epsilon; lambda and c from grids, with that S. The paper doesn't say how it chose the local rate;
here it is the best one of federated averaging without noise and clip, which favours none of the private methods. Added
to the paper: accuracy against the local rate, and every method at its best rate.

AE-DPFL is compared apart, in the part ``votes``. It needs one round, in which everybody votes: nothing is sampled, so
nothing is amplified, and the epsilon that is proved against the coordinator is the one to compare at.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from learning.datasets import load_labels
from learning.tasks.votes import VoteOptions
from sordino.lab.experiments.blur_lus_bound import Case, bound_table
from sordino.lab.experiments.outcome import NOT_CHARGED, PAPER, SMALL, Choice, Outcome, Request, Stages
from sordino.lab.experiments.pooled_mlp import NAME as POOLED_MLP
from sordino.lab.experiments.runs import NORMS, ExperimentError, Row, RunPool, labels_of
from sordino.lab.experiments.setting import ENGINE, PUBLISHED, Sizes
from sordino.lab.experiments.tables import CONDITIONAL, HELD, PAIRED, SPENT, TEST, Cell, Mean, Results, Table, compared
from sordino.lab.simulation.settings import SimulationSettings
from sordino.planning.drawing import LOG, NAMES, Axes, Band, Picture, Series

FEDAVG, VOTES, DDGAUSS, OURS = "DP-FedAvg", "AE-DPFL", "DDGauss", "BLUR + LUS"
METHODS: Final = (FEDAVG, DDGAUSS, OURS)
BLUR, LUS = "BLUR", "LUS"
_NO_CLIP: Final = 1e6  # no update is as long
COORDINATOR: Final = "epsilon (coordinator)"
_PUBLISHED: Final = (("[CWZC22], EMNIST", 0.03, 0.03), ("[CWZC22], CIFAR-10", 0.1, 0.3))
"""Local rate and S of the paper, which has 30 local steps; lambda is 0.4, and 0.8 at most."""


@dataclass(frozen=True, kw_only=True)
class BlurLusSizes(Sizes):
    """Numbers of a scale.

    Attributes:
        middle: epsilon of the choices of lambda and c, and of all but Table 1.
        weights, sparsities: grids of lambda and c.
        table_sparsities: of Table 3; 0 is BLUR alone.
        voted: epsilons of AE-DPFL, and of DP-FedAvg with everybody in each round: its runs are the longest.
        queries: grid of AE-DPFL's queries, limited by the coordinator's public examples.
        voter_steps, voter_rates: grids of its voters' training.
        labelled_epochs, labelled_rates: passes in which its model is trained on the labels, and a grid of their rate.
        round_counts, full_rates, full_clips: grids of DP-FedAvg beside it, with everybody in each round.
    """

    batch_size: int
    steps: int = 30
    epsilons: tuple[float, ...] = (2.0, 4.0, 6.0, 8.0)
    middle: float = 6.0
    alpha: float = 0.1
    alphas: tuple[float, ...] = (0.1, 1.0, 10.0, 100.0)
    weights: tuple[float, ...]
    sparsities: tuple[float, ...]
    table_sparsities: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7, 0.9)
    step_counts: tuple[int, ...]
    cohorts: tuple[int, ...]
    voted: tuple[float, ...] = (2.0, 4.0, 6.0, 8.0)
    queries: tuple[int, ...]
    voter_steps: tuple[int, ...] = (100, 200, 400)
    voter_rates: tuple[float, ...] = (0.03, 0.1, 0.3)
    labelled_epochs: int = 60
    labelled_rates: tuple[float, ...] = (0.003, 0.01, 0.03)
    round_counts: tuple[int, ...]
    full_rates: tuple[float, ...]
    full_clips: tuple[float, ...]


SIZES: Final = {
    SMALL: BlurLusSizes(
        data="fashion",
        task=POOLED_MLP,
        participants=1000,
        cohort=40,
        rounds=60,
        batch_size=16,
        rates=(0.03, 0.1, 0.3, 0.5, 1.0),
        clips=(0.1, 0.3, 1.0, 3.0),
        weights=(0.1, 0.4, 0.8),
        sparsities=(0.1, 0.3, 0.7),
        step_counts=(5, 10, 30, 60),
        cohorts=(20, 40, 80),
        voted=(2.0, 6.0),
        queries=(500, 1000, 2000),
        round_counts=(10, 30, 60),
        full_rates=(0.1, 0.3),
        full_clips=(0.3, 1.0),
        evaluate_every=3,
        last=3,
    ),
    PAPER: BlurLusSizes(
        data="",
        task="femnist-cnn",
        participants=3400,
        cohort=136,
        rounds=1000,
        batch_size=64,
        rates=(0.01, 0.03, 0.1, 0.3),
        clips=(0.01, 0.03, 0.1, 0.3, 1.0),
        weights=(0.05, 0.1, 0.2, 0.4, 0.8),
        sparsities=(0.1, 0.3, 0.5, 0.7, 0.9),
        step_counts=(10, 20, 30, 40, 50),
        cohorts=(68, 136, 204, 272),
        queries=(1000, 3000, 10000),
        round_counts=(30, 100, 300),
        full_rates=(0.03, 0.1),
        full_clips=(0.03, 0.1, 0.3),
        evaluate_every=10,
        last=5,
        options={"classes": 62},
    ),
}
COLOUR: Final[Mapping[str, Any]] = {
    "participants": 1000,  # the paper gives no number
    "cohort": 60,
    "rounds": 300,
    "batch_size": 50,
    "cohorts": (20, 40, 60, 80, 100),
    "options": {"classes": 10, "channels": 3, "side": 32},
}
"""Changes for CIFAR-10 at the papers' size, on which Table 2, local steps and active participants are run."""


@dataclass(frozen=True)
class Setup:
    """The choices."""

    rate: float
    clips: Mapping[float, float]  # by epsilon
    weight: float
    sparsity: float

    def clip(self, epsilon: float) -> float:
        """Return S at an epsilon: the choice at the nearest one."""
        return self.clips[min(self.clips, key=lambda known: abs(known - epsilon))]


class Plays:
    """The runs of one kind of data."""

    def __init__(self, pool: RunPool, request: Request, sizes: BlurLusSizes, data: str) -> None:
        self.stages, self.sizes, self.data = Stages(pool, request.seeds, sizes.last), sizes, data
        self._partition = request.partition(data)

    def settings(
        self,
        *,
        method: str,
        epsilon: float | None,
        rate: float,
        clip: float,
        seed: int,
        weight: float = 0.4,
        sparsity: float = 0.7,
        labelling: Mapping[str, float] | None = None,
        **changed: Any,
    ) -> SimulationSettings:
        """Return one run.

        ``labelling``: options of AE-DPFL's labels, and of the model trained on them; ``changed``: numbers of the scale
        that the run has otherwise.
        """
        sizes = replace(self.sizes, **changed)
        if method == VOTES:
            sizes = replace(sizes, task="votes", options={"of": sizes.task, **sizes.options, **(labelling or {})})
        options = {
            "batch_size": sizes.batch_size,
            "local_steps": sizes.steps,
            **_method_options(method, weight, sparsity),
        }
        return sizes.settings(
            data=self.data,
            rate=rate,
            options=options,
            epsilon=epsilon,
            mechanism="ddgauss" if method == DDGAUSS else "gaussian",
            clip=None if method == VOTES else clip,
            seed=seed,
            partition=self._partition,
        )

    def compare(self, stage: str, methods: Sequence[str], setup: Setup, over: Mapping[str, Sequence[Any]]) -> list[Row]:
        """Compare methods over the values of one name; everything else is as chosen."""
        chosen = {name: getattr(setup, name) for name in ("rate", "weight", "sparsity")}

        def make(**labels: Any) -> SimulationSettings:
            epsilon = labels.get("epsilon", self.sizes.middle)
            return self.settings(**{"epsilon": epsilon, "clip": setup.clip(epsilon)} | chosen | labels)

        return self.stages.results(stage, {"method": methods, **over}, make).rows

    def choose(self) -> tuple[Setup, list[Choice]]:
        """Choose by the published protocol, on the selection's seeds."""
        sizes, tune = self.sizes, self.stages.tuned
        rates = tune(
            "Local rate for all methods: federated averaging without noise and clip",
            {"rate": sizes.rates},
            partial(self.settings, method=FEDAVG, epsilon=None, clip=_NO_CLIP),
        )
        rate = rates.taken()["rate"]
        clips = tune(
            f"S of DP-FedAvg, taken for DDGauss and BLUR + LUS, local rate {rate:g}",
            {"clip": sizes.clips},
            partial(self.settings, method=FEDAVG, rate=rate),
            of={"epsilon": sizes.epsilons},
        )
        found = {epsilon: clips.taken(epsilon)["clip"] for epsilon in sizes.epsilons}
        weights = [one for one in sizes.weights if one < 1 / rate] or sizes.weights[:1]
        both = tune(
            f"lambda and c of BLUR + LUS at {CONDITIONAL} {sizes.middle:g}",
            {"weight": weights, "sparsity": sizes.sparsities},
            partial(self.settings, method=OURS, epsilon=sizes.middle, rate=rate, clip=found[sizes.middle]),
        )
        pair = both.taken()
        return Setup(rate, found, pair["weight"], pair["sparsity"]), [rates, clips, both]

    def own_rates(self, setup: Setup) -> tuple[list[Row], list[Choice]]:
        """Run every method at its best local rate and S, at the middle epsilon."""
        sizes, rows, choices = self.sizes, [], []
        rest: dict[str, Any] = {"sparsity": setup.sparsity, "epsilon": sizes.middle}
        for method in METHODS:

            def one(*, seed: int, rate: float, clip: float, method: str = method) -> SimulationSettings:
                below = {"weight": min(setup.weight, 0.9 / rate)}  # lambda below 1 / rate (Lemma 2)
                return self.settings(method=method, rate=rate, clip=clip, seed=seed, **rest | below)

            choice = self.stages.tuned(
                f"Local rate and S of {method} at {CONDITIONAL} {sizes.middle:g}",
                {"rate": sizes.rates, "clip": sizes.clips},
                one,
            )
            own = {name: (value,) for name, value in choice.taken().items()}
            rows += self.stages.results(f"{method} with a rate of its own", {"method": (method,), **own}, one).rows
            choices.append(choice)
        return rows, choices

    def votes(self) -> tuple[list[Row], list[Choice]]:
        """Run AE-DPFL, and DP-FedAvg with everybody in each round, at the same epsilon against the coordinator.

        AE-DPFL as strong as it can be made: local steps and rate of the voters, then at each epsilon the queries and
        rate at which their labels are learnt. DP-FedAvg: rate and S, then at each epsilon rounds and S; its runs take
        longer, so its grids are smaller.
        """
        sizes, tune = self.sizes, self.stages.tuned
        whole: dict[str, Any] = {"cohort": sizes.participants}
        middle = f"at {COORDINATOR} {sizes.middle:g}"

        def voting(*, queries: int, server_rate: float, **given: Any) -> SimulationSettings:
            labelling = {"queries": queries, "server_rate": server_rate, "server_epochs": sizes.labelled_epochs}
            return self.settings(method=VOTES, clip=1.0, rounds=1, labelling=labelling, **whole, **given)

        def averaging(*, rounds: int, **given: Any) -> SimulationSettings:
            """Judged by the last model, as AE-DPFL's only one is."""
            return self.settings(method=FEDAVG, rounds=rounds, evaluate_every=rounds, **whole, **given)

        asked, rates, counts = _asked(sizes, self.data), sizes.labelled_rates, sizes.round_counts
        voters = tune(
            f"Local steps and rate of AE-DPFL's voters {middle}",
            {"steps": sizes.voter_steps, "rate": sizes.voter_rates},
            partial(voting, epsilon=sizes.middle, queries=asked[len(asked) // 2], server_rate=rates[len(rates) // 2]),
        )
        voting_well = partial(voting, **voters.taken())
        labels = tune(
            "Queries of AE-DPFL, and the rate at which their labels are learnt",
            {"queries": asked, "server_rate": rates},
            voting_well,
            of={"epsilon": sizes.voted},
        )
        pair = tune(
            f"Local rate and S of DP-FedAvg, everybody in each of {counts[len(counts) // 2]} rounds, {middle}",
            {"rate": sizes.full_rates, "clip": sizes.full_clips},
            partial(averaging, epsilon=sizes.middle, rounds=counts[len(counts) // 2]),
        )
        averaging_well = partial(averaging, rate=pair.taken()["rate"])
        rounds = tune(
            "Rounds and S of DP-FedAvg, everybody in each round",
            {"rounds": counts, "clip": sizes.full_clips},
            averaging_well,
            of={"epsilon": sizes.voted},
        )

        def make(*, method: str, epsilon: float, seed: int) -> SimulationSettings:
            found, one = (labels, voting_well) if method == VOTES else (rounds, averaging_well)
            return one(epsilon=epsilon, seed=seed, **found.taken(epsilon))

        over = {"method": (VOTES, FEDAVG), "epsilon": sizes.voted}
        return self.stages.results("votes", over, make).rows, [voters, labels, pair, rounds]

    def bound_cases(self, setup: Setup, seed: int) -> list[Case]:
        """BLUR at the papers' defaults and as it was chosen here."""
        cases = []
        for name, rate, weight, clip in (
            *((name, rate, weight, clip) for name, rate, clip in _PUBLISHED for weight in (0.4, 0.8)),
            ("chosen here", setup.rate, setup.weight, setup.clip(self.sizes.middle)),
        ):
            make = partial(self.settings, epsilon=None, rate=rate, clip=clip, seed=seed, weight=weight)
            cases.append(Case(name, weight, rate, self.sizes.steps, clip, make(method=BLUR), make(method=FEDAVG)))
        return cases


def _asked(sizes: BlurLusSizes, data: str) -> tuple[int, ...]:
    """Return the grid of queries, as far as the coordinator has public examples for them."""
    most = math.floor(VoteOptions().pool * len(load_labels(data, "test")))
    return tuple(one for one in sizes.queries if one <= most) or (max(most, 1),)


def _method_options(method: str, weight: float, sparsity: float) -> dict[str, Any]:
    if method == OURS:
        return {"method": "blur-lus", "blur_weight": weight, "sparsity": sparsity}
    if method == BLUR:
        return {"method": "blur", "blur_weight": weight}
    if method == LUS:
        return {"method": "lus", "sparsity": sparsity}
    return {} if method == VOTES else {"method": "dp-fedavg"}


_COLOURED: Final = ("alpha", "steps", "active")
"""Parts that take CIFAR-10 at the papers' size."""
_PAIR: Final = (FEDAVG, OURS)
_COMPARED: Final = {
    "epsilon": ("epsilon", METHODS, "Table 1: epsilon", CONDITIONAL, CONDITIONAL, NAMES),
    "alpha": ("alpha", METHODS, "Table 2: alpha", "heterogeneity", "heterogeneity", LOG),
    "steps": ("steps", _PAIR, "local steps", "local steps Q", "local steps", LOG),
    "active": ("cohort", _PAIR, "active participants", "participants of a round", "participants", LOG),
    "rates": ("rate", METHODS, "local rates", "the local rate", "the local rate", LOG),
    "clips": ("clip", METHODS, "clips", "the clip S", "the clip S", LOG),
    "weights": ("weight", (FEDAVG, BLUR, OURS), "lambda", "lambda", "lambda", LOG),
}
"""Parts that compare methods: label, methods, stage, what the table and the figure are against, scale of the figure."""


def play(pool: RunPool, request: Request) -> Outcome:
    """Choose by the published protocol, then run the requested parts."""
    sizes = SIZES[request.scale]
    main = Plays(pool, request, sizes, request.images(sizes))
    second = main
    if request.scale == PAPER and set(_COLOURED) & set(request.parts):
        coloured, colour = replace(sizes, **COLOUR), request.data.get("colour")
        if colour is None:
            raise ExperimentError(
                "the papers' size takes CIFAR-10 for alpha, steps and active: get it and name it, --colour "
                "cifar10:PATH, or leave them out with --parts epsilon,votes,sparsity,rates,clips,weights,own-rates,"
                "bound"
            )
        second = Plays(pool, request, coloured, request.checked(colour, coloured))
    setup, choices = main.choose()
    second_setup = setup
    if second is not main:
        second_setup, more = second.choose()
        choices += more
    tables: list[Table] = []
    pictures: list[Picture] = []
    extra: list[Choice] = []
    proved: list[Choice] = []
    for part in request.parts:
        if part == "sparsity":
            without = main.compare("Table 3: without LUS", (FEDAVG, BLUR), setup, {"epsilon": [sizes.middle]})
            rows = main.compare("Table 3: sparsity", (LUS, OURS), setup, {"sparsity": sizes.table_sparsities})
            tables.append(_sparsity_table(without, rows, sizes.table_sparsities))
            continue
        if part == "own-rates":
            own, more = main.own_rates(setup)
            extra += more
            tables.append(_rates_table(own))
            continue
        if part == "votes":
            rows, proved = main.votes()
            tables += [_votes_table(rows), _gain_table("blur-lus-votes-gain", rows, VOTES, (FEDAVG,), by=COORDINATOR)]
            continue
        if part == "bound":
            tables.append(bound_table(main.bound_cases(setup, request.seeds[0]), sizes.cohort))
            continue
        plays, taken = (second, second_setup) if part in _COLOURED else (main, setup)
        values = {
            "epsilon": plays.sizes.epsilons,
            "alpha": plays.sizes.alphas,
            "steps": plays.sizes.step_counts,
            "active": plays.sizes.cohorts,
            "rates": [rate for rate in plays.sizes.rates if taken.weight < 1 / rate],
            "clips": plays.sizes.clips,
            "weights": [weight for weight in plays.sizes.weights if weight < 1 / taken.rate],
        }[part]
        label, methods, stage, by_table, by_figure, scale = _COMPARED[part]
        name = f"blur-lus-{part}"
        rows = plays.compare(stage, methods, taken, {label: values})
        tables.append(_method_table(name, f"Accuracy against {by_table}", rows, label, methods))
        tables.append(_gain_table(f"{name}-gain", rows, OURS, [one for one in methods if one != OURS], label))
        pictures.append(_by_label(name, f"Accuracy against {by_figure}", rows, label, methods, scale))
        if part == "epsilon":
            middle = [row for row in rows if row["labels"]["epsilon"] == sizes.middle]
            pictures += [_norms_picture(name, middle, setup.clip(sizes.middle)), _course(middle)]
        elif part == "clips":
            least = min(values)
            pictures.append(_norms_picture(name, [row for row in rows if row["labels"]["clip"] == least], least))
    every = [*choices, *extra]
    tables += [choice.table(f"blur-lus-choice-{at}") for at, choice in enumerate(every, start=1)]
    tables += [choice.table(f"blur-lus-votes-choice-{at}", COORDINATOR) for at, choice in enumerate(proved, start=1)]
    return Outcome(_notes(main, setup, request), tables, pictures, [*every, *proved])


def _notes(main: Plays, setup: Setup, request: Request) -> list[str]:
    sizes = main.sizes
    clips = ", ".join(f"{clip:g} at {epsilon:g}" for epsilon, clip in setup.clips.items())
    return [
        f"{main.data}, {sizes.task}; {sizes.participants} participants, {sizes.cohort} a round (p = "
        f"{sizes.cohort / sizes.participants:g}), {sizes.rounds} rounds, Q = {sizes.steps} local steps of "
        f"{sizes.batch_size} examples, Dirichlet {sizes.alpha:g}, server rate 1, delta 1 / {sizes.participants}.",
        f"Chosen: local rate {setup.rate:g} for all; S by {CONDITIONAL}: {clips}; lambda = {setup.weight:g}, "
        f"c = {setup.sparsity:g}.",
        "DP-FedAvg, BLUR and LUS: central Gaussian; DDGauss: DP-FedAvg with distributed discrete Gaussian, 20 bits; "
        "AE-DPFL: central Gaussian, votes on the coordinator's own examples, their labels dropped, judged on the rest.",
        f"All but the tables by epsilon: {CONDITIONAL} {sizes.middle:g}.",
        PUBLISHED,
        ENGINE,
        NOT_CHARGED,
    ]


_NOTE: Final = "Accuracy in percent, mean ± standard error over seeds."
_OF_ALL: Final = "Epsilons are the largest of a line's methods."
_COLOURS: Final = {FEDAVG: 0, DDGAUSS: 1, BLUR: 2, OURS: 3}
_WORDS: Final = {
    "epsilon": CONDITIONAL,
    "alpha": "alpha of Dirichlet",
    "steps": "local steps Q",
    "cohort": "participants of a round",
    "rate": "local rate",
    "clip": "S",
    "weight": "lambda",
}


def _method_table(name: str, title: str, rows: Sequence[Row], label: str, methods: Sequence[str]) -> Table:
    """Return a line per value of a label and a column per method; with varying epsilon also what it provably costs."""
    found = Results(rows, "method", label)
    body: list[list[Cell]] = []
    for value in dict.fromkeys(row["labels"][label] for row in rows):
        line = [value, *(found.cell(method, value) for method in methods)]
        if label == "epsilon":
            line += found.spent(epsilon=value)
        body.append(line)
    columns = (_WORDS[label], *methods, *(SPENT if label == "epsilon" else ()))
    return Table(name, title, columns, body, f"{_NOTE} {_OF_ALL} {HELD}" if label == "epsilon" else _NOTE)


def _votes_table(rows: Sequence[Row]) -> Table:
    """Return AE-DPFL and DP-FedAvg at each epsilon against the coordinator, and what it was."""
    found = Results(rows, "method", "epsilon")
    body: list[list[Cell]] = []
    for value in dict.fromkeys(row["labels"]["epsilon"] for row in rows):
        body.append([value, *(found.cell(one, value) for one in (VOTES, FEDAVG)), found.spent(epsilon=value)[-1]])
    note = f"{_NOTE} Everybody takes part: in one round of votes, and in each round of {FEDAVG}."
    columns = (COORDINATOR, VOTES, FEDAVG, SPENT[-1])
    return Table("blur-lus-votes", f"{VOTES} and {FEDAVG} at one proved epsilon", columns, body, note)


def _gain_table(
    name: str, rows: Sequence[Row], ours: str, others: Sequence[str], label: str = "epsilon", by: str = ""
) -> Table:
    """Return the gain of a method at each value, paired by seed: equal partition, cohorts and initial weights.

    ``by``: the label in words, if it isn't that of `_WORDS`.
    """
    values = list(dict.fromkeys(row["labels"][label] for row in rows))
    pairs = [((ours, value), (other, value)) for value in values for other in others]
    gains = iter(compared(Results(rows, "method", label), pairs))
    body: list[list[Cell]] = [[value, *(cell for _ in others for cell in next(gains))] for value in values]
    columns = (by or _WORDS[label], *(column for other in others for column in (f"less {other}", *PAIRED)))
    return Table(name, f"{ours} against {' and '.join(others)}", columns, body, TEST.format(of="of this table"))


def _sparsity_table(without: Sequence[Row], rows: Sequence[Row], values: Sequence[float]) -> Table:
    """Return Table 3: LUS and BLUR + LUS by sparsity, with their gain over DP-FedAvg; ``without``: runs without LUS."""
    plain = [{**row, "labels": {**row["labels"], "sparsity": 0.0}} for row in without]
    found, base = Results([*plain, *rows], "method", "sparsity"), (FEDAVG, 0.0)
    others = [(BLUR, 0.0), *((method, value) for method in (LUS, OURS) for value in values)]
    gains = compared(found, [(key, base) for key in others])
    body: list[list[Cell]] = [[*base, found.cell(*base), None, None, ""]]
    body += [[*key, found.cell(*key), *gain] for key, gain in zip(others, gains, strict=True)]
    columns = ("method", "sparsity c", "accuracy, %", f"less {FEDAVG}", *PAIRED)
    note = f"{_NOTE} {TEST.format(of='of this table')}"
    return Table("blur-lus-sparsity", "Accuracy against the sparsity of LUS", columns, body, note)


def _rates_table(rows: Sequence[Row]) -> Table:
    """Return the accuracy of every method at its best local rate and S."""
    found = Results(rows, "method", "rate", "clip")
    keys = dict.fromkeys(labels_of(row, *found.names) for row in rows)
    body: list[list[Cell]] = [[*key, found.cell(*key)] for key in keys]
    title = "Every method with a local rate and S of its own"
    return Table("blur-lus-own-rates", title, ("method", "local rate", "S", "accuracy, %"), body, _NOTE)


def _by_label(name: str, title: str, rows: Sequence[Row], label: str, methods: Sequence[str], scale: str) -> Picture:
    """Draw a curve for each method."""
    found = Results(rows, "method", label)
    values: list[Any] = sorted({row["labels"][label] for row in rows})

    def curve(method: str) -> dict[Any, Mean]:
        return found.curve(values, lambda value: (method, value))

    series = [Series(method, curve(method), _COLOURS[method], dashed=method == DDGAUSS) for method in methods]
    axes = [Axes(title, _WORDS[label], "accuracy, %", series, scale=scale, ticks=values)]
    return Picture(name, axes, "Mean and standard error over seeds.")


def _course(rows: Sequence[Row]) -> Picture:
    """Draw the accuracy after each round that was evaluated."""
    series = []
    for method in METHODS:
        own = [row for row in rows if labels_of(row, "method") == (method,) and "rounds" in row]
        rounds = own[0]["rounds"] if own else []
        points = {round_: Mean.of([row["accuracies"][at] for row in own]) for at, round_ in enumerate(rounds)}
        series.append(Series(method, points, _COLOURS[method], dashed=method == DDGAUSS, marks=False))
    title = f"{CONDITIONAL} {rows[0]['labels']['epsilon']:g}" if rows else ""
    return Picture("blur-lus-rounds", [Axes(title, "round", "accuracy, %", series)], "Mean over seeds.")


def _norms_picture(name: str, rows: Sequence[Row], clip: float) -> Picture:
    """Draw norms before clipping, per round: median and the range from the 10th to the 90th percentile."""
    axes = []
    for method in _PAIR:
        own = [row for row in rows if labels_of(row, "method") == (method,) and "norms" in row]
        points: dict[float, tuple[float, float, float]] = {}
        for at, round_ in enumerate(own[0]["rounds"] if own else []):
            found = [[row["norms"][share][at] for row in own if row["norms"][share][at] is not None] for share in NORMS]
            if all(found):
                low, middle, high = (sum(one) / len(one) for one in found)
                points[round_] = (low, middle, high)
        band = Band("median, 10th to 90th percentile", points, _COLOURS[method])
        axes.append(
            Axes(method, "round", "norm before clipping", [band], percent=False, level=(clip, f"clip S = {clip:g}"))
        )
    note = "Quantiles of a round's updates, averaged over seeds."
    return Picture(f"{name}-norms", axes, note, columns=len(axes), same_y=True)
