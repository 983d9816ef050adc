"""Rounds of a simulation: the work of a coordinator and its participants, without a network between them.

Task, learner, encoder, plan, account and clips are those of a served study. Each result states the differences: the sum
may be the ideal one instead of secure aggregation's, and public choices come from a seed.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from learning.device import chosen_threads, use_threads
from learning.learner import further_figures
from learning.own_task import TaskMistake
from learning.progress import Progress
from learning.public_random import PublicRandom
from learning.task import ModelTask, reported_of
from learning.tasks.personal import Personal
from mechanisms.accounting import Account, RoundCharge
from mechanisms.clip_rule import update_norm
from mechanisms.encoder import Decoded, Encoder, words_of_sum
from mechanisms.plan import Plan
from mechanisms.round_cost import conditional_epsilon
from mechanisms.statement import CONDITIONAL, epoch_rounds
from mechanisms.wrap_monitor import WrapEstimate
from secagg.errors import TooFewClients
from secagg.messages import UNMASKING
from sordino.lab.simulation.engines import Engine, engine
from sordino.lab.simulation.participants import Assignment, Participants, Shard, shards_of
from sordino.lab.simulation.record import Saved
from sordino.lab.simulation.secure_sum import SecureSum
from sordino.lab.simulation.settings import EXACT, REAL, SimulationError, SimulationSettings
from wire.ending import ABORTED, BUDGET_REACHED, NO_BETTER, ROUNDS_DONE
from wire.study import round_parameters

QUANTILES: Final = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
Row = dict[str, Any]
Cohort = NDArray[np.int64]
"""Participants, ascending."""


def cohort_of(settings: SimulationSettings, round_: int) -> Cohort:
    """Return the participants invited to a round (from 1), in all of its attempts, by a public draw from the seed.

    Without sampling all. With a lottery, or a fixed size, the cohort's number without replacement: those with the
    smallest of independent values, as in `secagg.lottery`; with epochs those with the next ones in turn. With Poisson
    sampling each with probability cohort / participants, independently.
    """
    everybody, size = settings.participants, settings.cohort
    if settings.study.privacy.sampling == "none" or size >= everybody:
        return np.arange(everybody, dtype=np.int64)
    rounds = epoch_rounds(settings.study.privacy.sampling, size, everybody)
    draw, place = PublicRandom(b"simulated cohort", settings.seed, 1 + (round_ - 1) // rounds), (round_ - 1) % rounds
    if settings.by_coins:
        return np.flatnonzero(draw.uniform(everybody) < size / everybody).astype(np.int64)
    return np.sort(draw.permutation(everybody)[place * size : (place + 1) * size])


def survivors_of(settings: SimulationSettings, cohort: Cohort, round_: int, attempt: int) -> Cohort:
    """Return the members that send their vector, by a public draw; each attempt (from 1) of a round loses others."""
    if not settings.drop or not len(cohort):
        return cohort
    draw = PublicRandom(b"simulated dropouts", settings.seed, round_, attempt)
    if settings.drop_law == EXACT:
        leaving = round(settings.drop * len(cohort))
        return np.sort(cohort[draw.permutation(len(cohort))[leaving:]])
    return cohort[draw.uniform(len(cohort)) >= settings.drop]


@dataclass
class _Clock:
    """Wall seconds of one round by kind of work, added over processes."""

    seconds: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("training", "encoding", "aggregation", "evaluation", "accounting"), 0.0)
    )

    def add(self, kind: str, began: float) -> float:
        now = time.perf_counter()
        self.seconds[kind] += now - began
        return now


class Rounds:
    """A running simulation.

    Raises InfeasiblePlan, OptionError, TaskUnavailable, DatasetError, SimulationError: something can't be made.
    """

    def __init__(self, settings: SimulationSettings) -> None:
        self.settings = settings = settings.settled()
        self._here = Participants(settings)
        self.plan: Plan | None = self._here.plan
        study = settings.study
        self.task, self.data = self._here.task, self._here.data
        self.learner = study.make_learner(self.task, self._here.data.test)
        if settings.evaluate_each and not getattr(self.task, "judged", ()):
            raise SimulationError(f"evaluate_each: task {self.task.name!r} has no model to evaluate; leave it out")
        if settings.evaluate_on and not self._judges_itself:
            raise SimulationError(
                f"evaluate_on: task {self.task.name!r} evaluates no model on the coordinator's examples; leave it out"
            )
        if settings.by_coins and not getattr(self.task, "judged", ()):
            raise SimulationError(
                'sampling "poisson" draws a number that nobody knows, and a statistic takes one; use sampling "fixed"'
            )
        test, few = self._here.data.test, settings.evaluate_on
        order = PublicRandom(b"simulated evaluation", settings.seed).permutation(len(test)) if few else ()
        self._drawn = test.take(np.sort(order[:few])) if 0 < few < len(test) else None
        self.rule = self._here.rule
        self.clips = self.rule.clips
        self.account = None if self.plan is None else Account(self.plan)
        self.completed, self.progress = 0, Progress(bool(study.evaluation.of_plan()))
        self.outcome: str | None = None
        self.charges: list[tuple[int, int]] = []
        self._parameters = None if self.plan is None else round_parameters(self.plan)

    def saved(self) -> Saved:
        """Return what `restore` needs to continue after the rounds so far."""
        return Saved(self.completed, self.clips, tuple(self.charges), *self.learner.state())

    def restore(self, saved: Saved) -> None:
        self.completed, self.clips = saved.round, self.rule.checked(saved.clips)
        self.learner.load_state(saved.parameters, saved.state)
        self.charge_again(saved.charges)

    def charge_again(self, charges: Iterable[tuple[int, int]]) -> None:
        """Charge sums that were opened before the simulation stopped, each as often as it was opened.

        ``charges``: (round, attempt) of each; the participants in it follow from the seed.
        """
        for round_, attempt in charges:
            self._charge(round_, attempt, self.survivors(self._cohort(round_), round_, attempt))

    def run(self) -> Generator[Row, None, None]:
        """Yield a row for each attempt that ends, ``round`` or ``aborted``; ``outcome`` then gives the reason."""
        before = chosen_threads()
        use_threads(self.settings.threads_here)
        try:
            with engine(self.settings, self._here) as work:
                yield from self._attempts(work)
        finally:
            use_threads(before)

    def _attempts(self, work: Engine) -> Iterator[Row]:
        study = self.settings.study
        while self.completed < study.study.rounds:
            if self.progress.stalled(study.evaluation.patience):
                self.outcome = NO_BETTER
                return
            round_ = self.completed + 1
            for attempt in range(1, study.coordinator.max_attempts + 1):
                if self.would_exceed():
                    self.outcome = BUDGET_REACHED
                    return
                row = self._attempt(work, round_, attempt)
                yield row
                if row["kind"] == "round":
                    break
            else:
                self.outcome = ABORTED
                return
        self.outcome = ROUNDS_DONE

    def would_exceed(self) -> bool:
        """Return whether one more attempt might exceed the budget; a plan for comparison is limited by rounds only."""
        if self.account is None or self.account.plan.target == CONDITIONAL:
            return False
        return self.account.would_exceed()

    def epsilons(self) -> dict[str, float]:
        """Return the spent epsilons; infinite without noise. With sampling also the published, conditional one."""
        if self.account is None:
            return {"epsilon_coordinator": math.inf, "epsilon_released": math.inf}
        found = {
            "epsilon_coordinator": self.account.epsilon_coordinator(),
            "epsilon_released": self.account.epsilon_released(),
        }
        if not self.account.plan.amplified:
            return found
        # A round that is repeated after a kill has the cohort that it had: for who saw both nothing is amplified.
        if any(again <= before for before, again in pairwise(self.charges)):
            return found | {"epsilon_released": found["epsilon_coordinator"]}
        return found | {"epsilon_conditional": self._conditional(self.account.plan)}

    def of_each(self) -> dict[str, dict[str, float]]:
        """Return quantiles over participants of what the model achieves on the examples of each."""
        metrics = self._here.metrics(range(len(self.data)), self.learner.broadcast())
        found = {name: np.array([getattr(one, name) for one in metrics if one.examples]) for name in self.task.judged}
        sound = {name: values[np.isfinite(values)] for name, values in found.items()}
        return {name: _quantiles(values) for name, values in sound.items() if values.size}

    def judged_by_some(self, round_: int) -> bool:
        """Return whether the model after a round is evaluated on the drawn examples alone."""
        return self._drawn is not None and round_ != self.settings.study.study.rounds

    @property
    def _judges_itself(self) -> bool:
        """Whether a model that was trained is evaluated on the coordinator's examples."""
        return isinstance(self.task, ModelTask) and not isinstance(self.task, Personal)

    def judged_by_all(self) -> dict[str, Any]:
        """Return the figures of the present model on all examples."""
        return {"round": self.completed, **_figures(self._evaluate(self.settings.study.study.rounds))}

    # ------------------------------------------------------------ one attempt

    def _cohort(self, round_: int) -> Cohort:
        """Who is invited: where cohorts are drawn, without those whose budget is spent."""
        cohort = cohort_of(self.settings, round_)
        if self.account is None or not self.account.plan.drawn or self.account.plan.target == CONDITIONAL:
            return cohort  # the conditional figure, which bounds nobody, has no budget
        return cohort[~np.isin(cohort, list(self.account.spent()))]

    def survivors(self, cohort: Cohort, round_: int, attempt: int) -> Cohort:
        """Members of the cohort that send their vector, ascending."""
        return survivors_of(self.settings, cohort, round_, attempt)

    def _attempt(self, work: Engine, round_: int, attempt: int) -> Row:
        began, clock = time.perf_counter(), _Clock()
        settings = self.settings
        cohort = self._cohort(round_)
        survivors = self.survivors(cohort, round_, attempt)
        privacy = settings.study.privacy
        least, quorum = (0, 0) if settings.by_coins else (privacy.min_survivors or 1, privacy.quorum or 1)
        among = settings.cohort if settings.by_coins else len(survivors)
        about = {"round": round_, "attempt": attempt, "participants": len(cohort), "survivors": len(survivors)}
        if len(cohort) < quorum or len(survivors) < least:
            few, needed = (len(cohort), quorum) if len(cohort) < quorum else (len(survivors), least)
            return {"kind": "aborted", **about, "reason": f"{few} are left, {needed} are needed", "charged": False}
        secure = None
        if settings.secagg == REAL:
            assert self._parameters is not None  # noqa: S101  # refused without a plan
            now = time.perf_counter()
            secure = SecureSum(self._parameters, tuple(map(int, cohort)), round_, attempt)
            clock.add("aggregation", now)
        seed = hashlib.sha256(f"sordino simulation rotation {settings.seed} {round_} {attempt}".encode()).digest()
        if secure is not None:
            seed = secure.context
        try:
            total, shards = self._sum(work, round_, survivors, seed, secure, clock)
        except TooFewClients as error:
            # On a ring a participant has lost too many neighbours. u3 is fixed by then, and charged.
            charged = error.phase == UNMASKING
            if charged:
                self._charge(round_, attempt, survivors)
            return {"kind": "aborted", **about, "reason": str(error), "charged": charged}
        now = time.perf_counter()
        self._charge(round_, attempt, survivors)
        now = clock.add("accounting", now)
        decoded = self._decoded(total, shards, among, seed)
        self.learner.learn(decoded.mean, among, decoded.stddev)
        clips, self.clips = self.clips, self.rule.updated(self.clips, decoded.below)
        now = clock.add("aggregation", now)
        self.completed = round_
        evaluation: dict[str, float] = {}
        if round_ % settings.evaluate_every == 0 or round_ == settings.study.study.rounds:
            evaluation = self._evaluate(round_)
        reported = reported_of(self.task, decoded.measured)
        stderr = evaluation.get("accuracy_stderr")
        self.progress.note(round_, evaluation.get("accuracy"), evaluation.get("loss"), reported, stderr)
        released = self.learner.released()
        now = clock.add("evaluation", now)
        epsilons = self.epsilons()
        clock.add("accounting", now)
        return {
            "kind": "round",
            **about,
            **_figures(evaluation),
            "reported": reported,
            "released": released,
            "clips": list(clips),
            "next_clips": list(self.clips),
            "below_clip": list(decoded.below),
            **epsilons,
            "wrapped_share": decoded.wrapping.share,
            **_known_to_nobody_else(shards),
            "seconds": {name: round(spent, 6) for name, spent in clock.seconds.items()},
            "wall_s": round(time.perf_counter() - began, 6),
        }

    def _evaluate(self, round_: int) -> dict[str, float]:
        """What the model achieves; on the drawn examples with the standard error of the accuracy."""
        try:
            return self._figures_after(round_)
        except TaskMistake:
            raise
        except ValueError as error:
            raise self._here.misfit(error) from error

    def _figures_after(self, round_: int) -> dict[str, float]:
        if self._drawn is None or not self.judged_by_some(round_):
            return self.learner.evaluate()
        parameters = {name: array.copy() for name, array in self.learner.broadcast().items()}
        found = cast(ModelTask, self.task).evaluate(parameters, self._drawn)
        accuracy = found.get("accuracy", math.nan)
        if 0 <= accuracy <= 1 and self._drawn.labels.ndim == 1:  # of words in a sentence the errors aren't independent
            found["accuracy_stderr"] = math.sqrt(accuracy * (1 - accuracy) / len(self._drawn))
        return found

    def _sum(
        self, work: Engine, round_: int, survivors: Cohort, seed: bytes, secure: SecureSum | None, clock: _Clock
    ) -> tuple[NDArray[Any], list[Shard]]:
        """Return the sum that the coordinator sees, and the shards that only a simulation sees."""
        reach = update_norm(self.clips, self._here.sketch_shape[0])
        broadcast = self.learner.broadcast()
        assignments = [
            Assignment(
                round=round_,
                participants=part,
                parameters=broadcast,
                clips=self.clips,
                l2_clip=reach,
                rotation_seed=seed,
                survivors=len(survivors),
                keep_words=secure is not None,
            )
            for part in shards_of(survivors.tolist(), self.task.dim, self._here.batched)
        ]
        shards: list[Shard] = []
        total: NDArray[Any] | None = None
        words: dict[int, NDArray[Any]] = {}
        for assignment, shard in zip(assignments, work(assignments), strict=True):
            clock.seconds["training"] += shard.training_s
            clock.seconds["encoding"] += shard.encoding_s
            if total is None:
                total = shard.total.copy()  # Ray hands out what it keeps, read-only
            else:
                total += shard.total
            if shard.words is not None:
                words |= dict(zip(assignment.participants, shard.words, strict=True))
            shards.append(replace(shard, total=total[:0], words=None))  # figures alone: vectors may be long
        if total is None:
            nobody = self._here.nobody()
            total, shards = nobody.total, [nobody]
        now = time.perf_counter()
        if secure is not None:
            completed = secure.finish(words)
            clock.add("aggregation", now)
            return completed.total, shards
        if self.plan is not None:
            total = words_of_sum(total, self.plan.bits)
        clock.add("aggregation", now)
        return total, shards

    def _decoded(self, total: NDArray[Any], shards: list[Shard], among: int, seed: bytes) -> Decoded:
        """``among``: how many the sum is divided by."""
        if self.plan is not None:
            return Encoder(self.plan, seed, self.clips).decode(total, among, os.urandom)
        sketch = self._here.sketch(seed)
        mean = total / among
        evaluation = self._here.evaluation
        metrics = np.sum([shard.metrics for shard in shards], axis=0)
        counts = np.sum([shard.below for shard in shards if shard.below is not None], axis=0)
        half = sum(np.count_nonzero(np.isfinite(shard.norms)) for shard in shards) / 2
        shares = np.clip((counts - half) / among + 0.5, 0.0, 1.0)  # as `Encoder.decode` reads the bits
        return Decoded(
            mean if sketch is None else sketch.decode_mean(mean),
            tuple(map(float, shares)) if self.rule.adaptive else (),
            WrapEstimate(0.0, 0.0),
            0.0,
            evaluation.measured(metrics / among, 0.0) if evaluation else None,
        )

    def _charge(self, round_: int, attempt: int, survivors: Cohort) -> None:
        """As the coordinator of a study does, once the survivors are fixed and before anything is decoded."""
        # A sum that is opened again after a stop counts as a further attempt; the account charges no attempt twice.
        number = attempt + self.charges.count((round_, attempt)) * self.settings.study.coordinator.max_attempts
        self.charges.append((round_, attempt))
        if self.account is not None:
            who = frozenset(survivors.tolist())
            self.account.charge(RoundCharge(round_, number, who, self.account.plan.identity))

    def _conditional(self, plan: Plan) -> float:
        """Return the published figure after the rounds so far, which assumes that all were drawn independently.

        After few rounds the unamplified account may be smaller: it holds under no condition, so under this too. With
        coins it isn't taken: it depends on who was drawn. Nor is a stop that isn't planned, for which the theorem has
        no figure: then that of all planned rounds.
        """
        if not self.charges:
            return 0.0
        assert self.account is not None  # noqa: S101  # there is a plan
        stops = plan.target != CONDITIONAL or bool(self.settings.study.evaluation.patience)
        rounds = plan.rounds if plan.by_coins and stops else len(self.charges)
        published = conditional_epsilon(plan, plan.noise, plan.order_conditional, rounds)
        return published if plan.by_coins else min(self.account.epsilon_coordinator(), published)


def _figures(evaluation: Mapping[str, float]) -> dict[str, Any]:
    found = {name: evaluation.get(name) for name in ("accuracy", "loss")}
    return found | {"figures": further_figures(evaluation)}


def _known_to_nobody_else(shards: list[Shard]) -> dict[str, Any]:
    """Return exact figures of single participants' data, which a real study must never have."""
    norms = np.concatenate([shard.norms for shard in shards])
    finite = norms[np.isfinite(norms)]
    counts = [shard.below for shard in shards if shard.below is not None]
    return {
        "update_norms": _quantiles(finite) if finite.size else None,
        "exactly_below_clip": [float(count) / norms.size for count in np.sum(counts, axis=0)]
        if counts and norms.size
        else None,
        "diverged": int(norms.size - finite.size),
    }


def _quantiles(values: NDArray[np.float64]) -> dict[str, float]:
    return {f"{share:g}": float(one) for share, one in zip(QUANTILES, np.quantile(values, QUANTILES), strict=True)}
