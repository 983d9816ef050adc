"""Thresholds: the numbers of participants that must advertise, hold shares, sign and survive.

Both sides compute these numbers from the size of u1 and the public plan, never from a message.

Sources: [BIK+17] Theorem 6.5 (threshold against a coordinator that colludes with participants); the general rule is
2 x threshold > holders + corrupt holders: otherwise two disjoint sets of honest holders could be made to open both
secrets of one participant. `secagg.sharing` has the rules for sparse graphs ([BBG+20]).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Final

from secagg.errors import InvalidParameters
from secagg.masking import MAX_BITS, MAX_BLOCKS, word_dtype
from secagg.packing import packed_size
from secagg.shamir import PRIME
from secagg.sharing import ADVERSARIES, MALICIOUS, Sharing, k_regular

# Below this size the rules for sparse graphs prove nothing, and "0 of 10 collude" is not a safe assumption.
SMALL_COHORT: Final = 64
FEWEST_COLLUDERS: Final = 2
LARGEST_STREAM_BYTES: Final = MAX_BLOCKS * 16  # see secagg/masking.py
COMMITMENT_BYTES: Final = 32

COMPLETE: Final = "complete"
HARARY: Final = "harary"
GRAPHS: Final = (COMPLETE, HARARY)

X25519: Final = "x25519"
HYBRID: Final = "x25519-mlkem768"
KEY_AGREEMENTS: Final = (X25519, HYBRID)


def assumed_colluders(roster: int, adversarial: float, dropout: float) -> int:
    """A: the number of participants assumed to collude with the coordinator.

    floor(adversarial x roster), at least 2 where the share isn't 0, and for small rosters. A is 0 only where that is
    stated: for ``adversarial`` 0 in large rosters, or with ``dropout`` 0 as well, the published calibration without
    adversaries (`sharing_colluders` keeps the minimum of 2 for the threshold).
    """
    if roster < 1 or not 0 <= adversarial < 1 or not 0 <= dropout < 1:
        raise InvalidParameters("adversarial and dropout are shares in [0, 1) of a roster of at least 1")
    # Use the decimal value: in binary floating point 0.29 x 100 is slightly below 29.
    colluders = math.floor(Fraction(repr(float(adversarial))) * roster)
    if adversarial > 0 or (roster < SMALL_COHORT and dropout > 0):
        colluders = max(colluders, FEWEST_COLLUDERS)
    return colluders


LOTTERY_FAILURE: Final = 2.0**-40
"""Probability, over all draws of a study, that more colluders win than assumed."""


def colluders_in_cohort(population: int, cohort: int, adversarial: float, dropout: float, draws: int) -> int:
    """A if each round's cohort is drawn from a population: a draw contains more colluders with negligible probability.

    The hypergeometric upper quantile at 2^-40 / draws, for floor(adversarial x population) colluders fixed before the
    draws; the minimum of 2 of `assumed_colluders` applies. With cohort = population it equals `assumed_colluders`.

    Args:
        population: the roster.
        cohort: participants drawn for one round.
        draws: total number of drawn cohorts.
    """
    if not 1 <= cohort <= population or draws < 1:
        raise InvalidParameters("a cohort is drawn from a population at least as large, at least once")
    everywhere = assumed_colluders(population, adversarial, dropout)
    if cohort == population:
        return everywhere
    floor = assumed_colluders(cohort, adversarial, dropout)
    if everywhere <= floor:
        return everywhere
    # Pr[k + 1] / Pr[k] = (K - k)(C - k) / ((k + 1)(P - K - C + k + 1)), from the fewest there can be, at any scale.
    honest = population - everywhere
    first = max(0, cohort - honest)
    logs = [0.0]
    for k in range(first, min(cohort, everywhere)):
        logs.append(
            logs[-1]
            + math.log(everywhere - k)
            + math.log(cohort - k)
            - math.log(k + 1)
            - math.log(honest - cohort + k + 1)
        )
    top = max(logs)
    weights = [math.exp(log - top) for log in logs]
    allowed = LOTTERY_FAILURE / draws * math.fsum(weights) * (1 - 1e-9)
    above, beyond = len(weights) - 1, weights[-1]
    while beyond <= allowed:
        above -= 1
        beyond += weights[above]
    return max(floor, first + above)


def sharing_colluders(u1: int, colluders: int) -> int:
    """A in the threshold rule: at least 2 if u1 is small, for any size of the cohort."""
    return max(colluders, FEWEST_COLLUDERS) if u1 < SMALL_COHORT else colluders


def complete_graph_threshold(u1: int, colluders: int) -> int:
    """Shares needed to rebuild a secret on the complete graph: floor((|u1| + A) / 2) + 1."""
    return (u1 + sharing_colluders(u1, colluders)) // 2 + 1


def sparse_sharing(u1: int, colluders: int, min_survivors: int, adversary: str) -> Sharing | None:
    """Degree and threshold on the k-regular graph; None below 64 members, or if no degree is safe."""
    if u1 < SMALL_COHORT:
        return None
    return k_regular(u1, max(colluders, FEWEST_COLLUDERS), max(0, u1 - min_survivors), adversary)


def choose_graph(cohort: int, colluders: int, min_survivors: int, adversary: str) -> str:
    """The k-regular graph if it has at most half as many edges as the complete one.

    With more edges it saves less than its signed uploads cost, which requests must show.
    """
    sharing = sparse_sharing(cohort, colluders, min_survivors, adversary)
    return HARARY if sharing is not None and 2 * sharing.degree <= cohort - 1 else COMPLETE


def signatures_needed(u1: int, colluders: int) -> int:
    """Signatures over u2 and u3 that a participant requires: more than (|u1| + A) / 2.

    Two sets of that many signers have more than A members in common, hence an honest one, and it signs only once.
    """
    return (u1 + sharing_colluders(u1, colluders)) // 2 + 1


@lru_cache(maxsize=64, typed=True)  # a search for a plan asks again and again
def default_min_survivors(cohort: int, colluders: int, dropout: float) -> int:
    """The largest min_survivors that independent dropouts miss with probability at most 0.0015.

    Never below the threshold of the full cohort (a lower value is infeasible). The probability is displayed as 0.1 %:
    for 100 participants of whom 30 % leave it gives 56 (0.11 %).
    """

    def often(survivors: int) -> bool:
        return probability_below(cohort, dropout, survivors) > 1.5e-3

    threshold = complete_graph_threshold(cohort, colluders)  # the probability grows with min_survivors
    return min(cohort, threshold + bisect_left(range(threshold + 1, cohort + 1), True, key=often))


def probability_below(cohort: int, dropout: float, survivors: int) -> float:
    """Pr[Binomial(cohort, 1 - dropout) < survivors]: independent dropouts abort an attempt with this probability."""
    if dropout == 0:
        return 0.0 if survivors <= cohort else 1.0
    log_p, log_q = math.log1p(-dropout), math.log(dropout)
    terms = (
        math.lgamma(cohort + 1) - math.lgamma(k + 1) - math.lgamma(cohort - k + 1) + k * log_p + (cohort - k) * log_q
        for k in range(min(survivors, cohort + 1))
    )
    return min(1.0, math.fsum(math.exp(term) for term in terms))


@dataclass(frozen=True, kw_only=True)
class RoundParameters:
    """The numbers of the public plan that the protocol uses.

    Raises InvalidParameters: the combination would break a promise; the message states what to change.
    """

    cohort: int  # participants invited: the largest |u1|
    colluders: int  # A
    min_survivors: int  # lower bound of |u3|
    quorum: int  # lower bound of |u1| and |u2|
    bits: int  # B: sums are taken modulo 2^B
    dim: int  # entries of a vector, after padding
    graph: str = COMPLETE  # or HARARY: k-regular if the rules find a degree
    adversary: str = MALICIOUS
    key_agreement: str = X25519  # or HYBRID: with ML-KEM-768 (decision 0016)
    epoch_rounds: int = 1  # rounds whose cohorts one draw deals, without a participant in two of them
    # By |u3|, from min_survivors to the cohort: which of the noise seeds that it committed to each survivor reveals, as
    # bits. Empty: there are none.
    released: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.graph not in GRAPHS:
            raise InvalidParameters(f"the graph is {' or '.join(GRAPHS)}, not {self.graph!r}")
        if self.adversary not in ADVERSARIES:
            raise InvalidParameters(f"the adversary is one of {', '.join(ADVERSARIES)}, not {self.adversary!r}")
        if self.key_agreement not in KEY_AGREEMENTS:
            raise InvalidParameters(f"key_agreement is {' or '.join(KEY_AGREEMENTS)}, not {self.key_agreement!r}")
        for name in ("cohort", "colluders", "min_survivors", "quorum", "bits", "dim", "epoch_rounds"):
            if type(getattr(self, name)) is not int:
                raise InvalidParameters(f"{name} must be a whole number")
        if not 2 <= self.cohort < PRIME:
            raise InvalidParameters(f"the cohort must have 2 to {PRIME - 1} participants, not {self.cohort}")
        if self.epoch_rounds < 1:
            raise InvalidParameters(f"an epoch has at least one round, not {self.epoch_rounds}")
        most, length = max(self.released, default=0), len(self.released)
        if length not in (0, self.cohort - self.min_survivors + 1) or min((0, *self.released)) < 0 or most >= 1 << 16:
            raise InvalidParameters("released must have up to 16 bits for each number of survivors")
        if self.colluders < 0:
            raise InvalidParameters(f"colluders must not be negative, like {self.colluders}")
        if self.colluders >= self.cohort:
            raise InvalidParameters(
                f"a cohort of {self.cohort} is too small for {self.colluders} colluders: invite at least "
                f"{self.colluders + 1} participants"
            )
        if not 1 <= self.bits <= MAX_BITS:
            raise InvalidParameters(f"bits must lie in 1..{MAX_BITS}, not {self.bits}")
        if self.dim < 1 or self.dim * word_dtype(self.bits).itemsize > LARGEST_STREAM_BYTES:
            raise InvalidParameters(f"dim must be at least 1 and one mask at most {LARGEST_STREAM_BYTES} bytes")
        # The threshold on the complete graph, and the number of signatures on both graphs.
        threshold = complete_graph_threshold(self.cohort, self.colluders)
        if threshold > self.cohort:
            raise InvalidParameters(
                f"threshold {threshold} for {self.cohort} participants of whom {self.sharing_colluders} may collude "
                f"cannot be met: invite at least {self.sharing_colluders + 1} participants"
            )
        if self.min_survivors > self.cohort:
            raise InvalidParameters(f"min_survivors {self.min_survivors} exceeds the cohort of {self.cohort}")
        if self.min_survivors < threshold:
            raise InvalidParameters(
                f"min_survivors {self.min_survivors} is below the threshold {threshold} "
                f"(cohort {self.cohort}, {self.sharing_colluders} colluders): raise min_survivors to {threshold}"
            )
        if self.quorum < self.min_survivors:
            raise InvalidParameters(f"quorum {self.quorum} is below min_survivors {self.min_survivors}")
        if self.quorum > self.cohort:
            raise InvalidParameters(
                f"quorum {self.quorum} exceeds the cohort of {self.cohort}: set it to {self.cohort} or less"
            )
        if self.min_survivors - self.colluders < 1:
            raise InvalidParameters("min_survivors must exceed the number of colluders")

    @property
    def sharing_colluders(self) -> int:
        """A in the threshold rule at the largest u1."""
        return sharing_colluders(self.cohort, self.colluders)

    @property
    def noise_seeds(self) -> int:
        """Seeds of noise that each participant commits to with its upload."""
        return max(self.released, default=0).bit_length()

    @cached_property
    def upload_size(self) -> int:
        """Bytes of an upload: the packed vector and the commitments to the noise seeds."""
        return packed_size(self.dim, self.bits) + COMMITMENT_BYTES * self.noise_seeds

    def released_seeds(self, survivors: int) -> tuple[int, ...]:
        """Which of them each survivor reveals if u3 has so many members, ascending."""
        bits = self.released[survivors - self.min_survivors] if self.released else 0
        return tuple(number for number in range(bits.bit_length()) if bits >> number & 1)

    @property
    def signed(self) -> bool:
        """Whether the survivor sets are signed before shares are revealed (ConsistencyCheck)."""
        return self.adversary == MALICIOUS

    @property
    def hybrid(self) -> bool:
        """Whether keys are agreed on by X25519 and ML-KEM-768 together."""
        return self.key_agreement == HYBRID

    def sharing(self, u1: int) -> Sharing:
        """Degree and threshold for ``u1`` members.

        At most ``u1`` - min_survivors may leave; each participant checks u3 against min_survivors. Small cohorts, and
        those without a safe sparse graph, share on the complete graph.
        """
        found = None
        if self.graph == HARARY:
            found = sparse_sharing(u1, self.colluders, self.min_survivors, self.adversary)
        return found or Sharing(u1 - 1, complete_graph_threshold(u1, self.colluders))

    def threshold(self, u1: int) -> int:
        return self.sharing(u1).threshold

    def signatures_needed(self, u1: int) -> int:
        """Signatures over the survivor sets that a participant requires before it reveals a share."""
        return signatures_needed(u1, self.colluders) if self.signed else 0

    def to_bytes(self) -> bytes:
        """Fixed order, 8 bytes each, little-endian, then graph and adversary: part of round_context.

        Where they aren't X25519 alone, 1 and none, the key agreement, the rounds of an epoch and the released seeds
        follow; with any of them, all before it.
        """
        values = (self.cohort, self.colluders, self.min_survivors, self.quorum, self.bits, self.dim)
        names = [GRAPHS.index(self.graph), ADVERSARIES.index(self.adversary)]
        if self.hybrid or self.epoch_rounds > 1 or self.released:
            names.append(KEY_AGREEMENTS.index(self.key_agreement))
        if self.epoch_rounds > 1 or self.released:
            names.append(self.epoch_rounds)
        names += self.released
        return b"".join(value.to_bytes(8, "little") for value in (*values, *names))
