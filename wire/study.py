"""The study document, what both sides must agree on, in exactly the bytes that are hashed; and the lottery file.

The coordinator writes the document once. Participants fetch it by its digest, check it from first principles and
compare it with their own policy. Its SHA-256 is part of every round_context, so two participants with different
documents share no key. Only here do thresholds (`secagg.parameters`) and noise (`mechanisms.plan`) meet.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Required, TypedDict, Unpack

from mechanisms.clip_rule import FIXED, UNIFORM, ClipRule
from mechanisms.evaluation import Evaluation
from mechanisms.plan import InfeasiblePlan, Plan, make_plan
from mechanisms.sketch import sketch_shape
from mechanisms.statement import CONDITIONAL, DRAWN, EPOCHS, LOTTERY, NO_SAMPLING
from secagg.errors import InvalidParameters
from secagg.keys import HYBRID_KEY_BYTES, KEM_CIPHERTEXT_BYTES, KEY_BYTES, WRAPPED_BYTES
from secagg.lottery import MAX_VERSIONS, Draws
from secagg.messages import CIPHERTEXT_BYTES, NOISE_SEED_BYTES, SALT_BYTES, SHARE_BYTES
from secagg.packing import packed_size
from secagg.parameters import (
    COMMITMENT_BYTES,
    X25519,
    RoundParameters,
    assumed_colluders,
    choose_graph,
    colluders_in_cohort,
    default_min_survivors,
)
from secagg.roster import InvalidRoster, Roster
from secagg.shamir import PRIME
from secagg.sharing import CURIOUS, MALICIOUS, SEMI_MALICIOUS
from wire import coordinator_pb2 as pb
from wire.json_fields import HEX_32, TEXT, listed, read_fields, values_of, whole, write_fields

FORMAT: Final = "sordino-study-2"
_FIELDS: Final = {"format", "study", "task", "task_options", "plan", "roster_valid_s"}
LARGEST_DOCUMENT: Final = 1 << 20
LONGEST_ROSTER_VALID_S: Final = 366 * 86_400
AUTO: Final = "auto"
LOTTERY_FORMAT: Final = "sordino-lottery-1"
TERMS_FILE: Final = "terms.json"  # the study document that an authority is asked to sign
LOTTERY_FILE: Final = "lottery.json"
"""The file with which the authority gives the coordinator the seeds of a roster version's lottery.

They are not secret, but only the coordinator needs all of them. Everybody else gets the seed of a round, with its path
to the root that the roster's signature covers (`secagg.lottery`).
"""


class InvalidStudy(ValueError):
    """The study document is malformed, or its numbers don't keep its promises."""


class PlanDetails(TypedDict, total=False):
    """Further arguments of `plan_study`; `mechanisms.plan.make_plan` documents them and has their defaults."""

    mechanism: str
    clip: float | None
    clipping: ClipRule | None
    epsilon: Required[float]
    delta: Required[float]
    target: str
    rotation: str | None
    sketch: tuple[int, int]
    beta: float
    k_stddevs: float
    noise_parts: int | None
    evaluation: Evaluation
    budget_coordinator: float | None
    budget_released: float | None


def plan_study(
    *,
    clients: int,
    dim: int,
    bits: int,
    rounds: int,
    max_dropout: float,
    adversarial: float,
    min_survivors: int | None = None,
    quorum: int | None = None,
    sampling: str = NO_SAMPLING,
    population: int | None = None,
    largest_roster: int | None = None,
    graph: str = AUTO,
    adversary: str = MALICIOUS,
    key_agreement: str = X25519,
    offer_offset_s: float = 0.0,
    **details: Unpack[PlanDetails],
) -> Plan:
    """The public plan of a study, from the requirements of its owner; ``details`` as of `mechanisms.plan.make_plan`.

    Args:
        clients: participants invited to each round: the whole roster without sampling.
        max_dropout, adversarial: shares in [0, 1) of the cohort that may leave and of the roster that may collude.
        min_survivors: fewest inputs in a sum; default: the number that independent dropouts at ``max_dropout`` miss
            in one of a thousand rounds.
        quorum: fewest participants of u1 and u2; default: ``min_survivors``.
        sampling, population: how the participants of a round are chosen, and from at least how many.
        largest_roster: with a lottery the largest roster that A must hold for; default: ``population``.
        graph: ``complete``, ``harary``, or ``auto``: the k-regular one where it halves the work.
        adversary: what the coordinator may do, ``malicious`` or ``curious``.
        key_agreement: of channels and masks, ``x25519`` or ``x25519-mlkem768``.
        offer_offset_s: seconds from a round's start until all offers leave; 0: when they are ready.

    Raises InfeasiblePlan: no such plan holds; has the reason and the nearest feasible setting.
    """
    names = ("clients", "dim", "bits", "rounds", "min_survivors", "quorum", "population", "largest_roster")
    counts = (clients, dim, bits, rounds, min_survivors, quorum, population, largest_roster)
    for name, count in zip(names, counts, strict=True):
        if count is not None and type(count) is not int:
            raise InfeasiblePlan(f"{name} = {count!r} is no int", "state a whole number")
    for name, share in (("max_dropout", max_dropout), ("adversarial", adversarial)):
        if not isinstance(share, int | float) or not 0 <= share < 1:
            raise InfeasiblePlan(f"{name} = {share!r} must be a share", "state at least 0 and below 1")
    if not 2 <= clients < PRIME:  # what follows takes as many steps
        raise InfeasiblePlan(f"the cohort must have 2 to {PRIME - 1} participants, not {clients}", "")
    try:
        colluders = assumed_colluders(clients, adversarial, max_dropout)
        if sampling != NO_SAMPLING and population is not None:
            colluders = max(
                colluders_in_cohort(size, clients, adversarial, max_dropout, cohorts_drawn(sampling, rounds))
                for size in {population, largest_roster or population}
            )
        if min_survivors is None:
            min_survivors = default_min_survivors(clients, colluders, max_dropout)
        if graph == AUTO:
            graph = choose_graph(clients, colluders, min_survivors, adversary)
        shared: dict[str, Any] = {
            "colluders": colluders,
            "min_survivors": min_survivors,
            "quorum": min_survivors if quorum is None else quorum,
            "bits": bits,
            "graph": graph,
            "adversary": adversary,
            "key_agreement": key_agreement,
        }
        RoundParameters(cohort=clients, dim=max(dim, 1), **shared)
    except InvalidParameters as error:
        raise InfeasiblePlan(str(error), "") from error
    return make_plan(
        clients=clients,
        dim=dim,
        rounds=rounds,
        max_dropout=max_dropout,
        adversarial=adversarial,
        sampling=sampling,
        population=population,
        offer_offset_s=offer_offset_s,
        **shared,
        **details,
    )


def coding(
    layers: Sequence[int],
    *,
    clip: float,
    by_layer: bool = False,
    scaling: str = UNIFORM,
    update: str = FIXED,
    quantile: float = 0.5,
    rate: float = 0.3,
    bit_weight: float = 0.3,
    sketch_rows: int = 0,
    sketch_ratio: float = 10.0,
) -> dict[str, Any]:
    """How updates are clipped and coded, as arguments of `plan_study`.

    Args:
        layers: number of values of each array of the model, in the order of the update.
        clip: of the whole update. By layer each of the L layers begins with clip / sqrt(L).
        scaling, update, quantile, rate, bit_weight: of `ClipRule`; the last three count only where clips adapt.
        sketch_rows, sketch_ratio: rows of a count-mean sketch (0: none), and by which factor it is shorter.

    Raises InfeasiblePlan: the arguments contradict each other.
    """
    adapting = {"quantile": quantile, "rate": rate, "bit_weight": bit_weight} if update != FIXED else {}
    sketch = (sketch_rows, sketch_shape(sum(layers), sketch_rows, sketch_ratio)) if sketch_rows else (0, 0)
    if sketch_rows and by_layer:
        raise InfeasiblePlan("a sketch mixes the layers", "clip a sketch as one layer")
    sizes = tuple(layers) if by_layer else (sketch[0] * sketch[1] or sum(layers),)
    clips = (float(clip) / math.sqrt(len(sizes)),) * len(sizes)
    rule = ClipRule(layers=sizes, clips=clips, scaling=scaling, update=update, **adapting)
    return {"clipping": rule, "sketch": sketch}


def round_parameters(plan: Plan) -> RoundParameters:
    """The protocol's share of a plan. Raises InvalidParameters: the plan's numbers break a rule of the protocol."""
    parameters = RoundParameters(  # first: what follows takes as many steps as the cohort is large
        cohort=plan.clients,
        colluders=plan.colluders,
        min_survivors=plan.min_survivors,
        quorum=plan.quorum,
        bits=plan.bits,
        dim=plan.padded_dim,
        graph=plan.graph,
        adversary=plan.adversary,
        key_agreement=plan.key_agreement,
        epoch_rounds=plan.epoch_rounds,
        released=released_parts(plan),
    )
    if plan.colluders < _colluders(plan, plan.population):
        raise InvalidParameters("the plan assumes fewer colluders than its share of adversarial participants says")
    return parameters


def released_parts(plan: Plan) -> tuple[int, ...]:
    """For each number of survivors which noise seeds they reveal, as bits; empty where all noise stays."""
    if not plan.noise_parts:
        return ()
    return tuple(map(plan.released_parts, range(plan.min_survivors, plan.clients + 1)))


def cohorts_drawn(sampling: str, rounds: int) -> int:
    """Number of cohorts from which the coordinator could choose: where seeds draw, each roster version draws all anew.

    With epochs each cohort of a partition is by itself as if drawn alone, so the same quantile holds for the worst.
    """
    return rounds * MAX_VERSIONS if sampling in DRAWN else rounds


def _colluders(plan: Plan, roster: int) -> int:
    return colluders_in_cohort(
        roster, plan.clients, plan.adversarial, plan.max_dropout, cohorts_drawn(plan.sampling, plan.rounds)
    )


def check_roster_fits(plan: Plan, roster: Roster) -> None:
    """Check that a plan's promises hold with this roster, even when some of its participants are absent.

    A roster may still be too small to begin a round (`smallest_roster`). Without sampling all are invited: any
    roster up to the planned cohort fits. Where cohorts are drawn A must hold for this roster, with the plan's draws.

    Raises InvalidRoster: it doesn't fit, with what to change.
    """
    size = len(roster)
    if not plan.drawn:
        if size > plan.clients:
            raise InvalidRoster(
                f"the plan is for {plan.clients} participants, the roster has {size}: begin a study with a larger plan"
            )
        return
    if roster.lottery is None or roster.lottery.draws != plan.draws:
        found = "none" if roster.lottery is None else f"{roster.lottery.draws}"
        raise InvalidRoster(
            f"the cohorts of {plan.rounds} rounds need {plan.draws} draws, the roster was signed with {found}: the "
            f"authority must sign it with {plan.draws}"
        )
    if size <= plan.population:  # no round begins below, and A is that of the population
        return
    needed = _colluders(plan, size)
    if plan.colluders < needed:
        raise InvalidRoster(
            f"with {size} participants on the roster A must be {needed}, the plan assumes {plan.colluders}: "
            f"begin a study that is planned for {size} participants"
        )


def smallest_roster(plan: Plan) -> int:
    """Participants on the roster before a round may begin: where cohorts are drawn the plan is that of this size."""
    return plan.population if plan.drawn else plan.quorum


def refuse_unserved(target: object, sampling: object, adversary: object = MALICIOUS) -> None:
    """Refuse plans that can be made and compared, but not served, before anything costly is computed.

    Raises InfeasiblePlan: the target is conditional, participants are drawn otherwise than by the lottery, or the
    coordinator is assumed to be semi-malicious.
    """
    if adversary == SEMI_MALICIOUS:
        raise InfeasiblePlan(
            "against a semi-malicious coordinator nothing stops an arc from being cut out of the ring",
            f"use the adversary {MALICIOUS!r}, or {CURIOUS!r} where the coordinator is trusted to follow the protocol",
        )
    if target == CONDITIONAL:
        raise InfeasiblePlan(
            "a plan whose target is conditional is for comparison only: its epsilon holds if each participant was "
            "drawn independently, which nobody can check",
            "use the target coordinator or released",
        )
    if sampling not in (NO_SAMPLING, *DRAWN):
        raise InfeasiblePlan(
            f"nobody could check that the participants of a round were drawn by {sampling} sampling",
            f"use sampling {LOTTERY!r} or {EPOCHS!r}, whose seeds the authority draws and signs, or {NO_SAMPLING!r}",
        )


@dataclass(frozen=True, kw_only=True)
class StudyDocument:
    """What a study is: its name, its task with all options, and its public plan."""

    study: str
    task: str
    task_options: Mapping[str, Any]
    plan: Plan
    roster_valid_s: int = 0
    """Longest validity of the authority's statement that a roster is the newest (`wire.roster_history`); 0: rounds need
    no such statement, and a withheld revocation isn't noticed."""
    own_data: bool = False
    """Each participant brings its own data. The key is in the bytes only where this is true."""

    def to_bytes(self) -> bytes:
        """JSON with sorted keys. The digest covers these bytes, not what a parser makes of them."""
        document = values_of(self) | {
            "format": FORMAT,
            "task_options": dict(self.task_options),
            "plan": self.plan.to_json(),
        }
        if not self.own_data:
            del document["own_data"]
        return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()

    def digest(self) -> bytes:
        return hashlib.sha256(self.to_bytes()).digest()

    @classmethod
    def from_bytes(cls, data: bytes) -> StudyDocument:
        """Read and check a document: the plan's noise, wrap bound and thresholds are computed again.

        Raises InvalidStudy: malformed, or one of its numbers doesn't hold.
        """
        if len(data) > LARGEST_DOCUMENT:
            raise InvalidStudy(f"the study document is larger than {LARGEST_DOCUMENT} bytes")
        try:
            document = json.loads(data)
            if set(document) - {"own_data"} != _FIELDS:
                raise InvalidStudy("the study document has missing or unknown fields")
            if document["format"] != FORMAT:
                raise InvalidStudy(f"unknown format of the study document; this version reads {FORMAT}")
            if not isinstance(document["study"], str) or not isinstance(document["task"], str):
                raise InvalidStudy("study and task of the study document must be names")
            valid_s = document["roster_valid_s"]
            if type(valid_s) is not int or not 0 <= valid_s <= LONGEST_ROSTER_VALID_S:
                raise InvalidStudy(f"roster_valid_s of the study document must lie in 0..{LONGEST_ROSTER_VALID_S}")
            if document.get("own_data", True) is not True:
                raise InvalidStudy("own_data of the study document must be true, or be left out")
            if not isinstance(document["task_options"], dict):
                raise InvalidStudy("task_options of the study document must be a table")
            # Python reads NaN, and 1e999 as Infinity; neither can be written again, and so the document has no digest.
            json.dumps(document["task_options"], allow_nan=False)
            if isinstance(document["plan"], Mapping):
                stated = document["plan"]
                refuse_unserved(stated.get("target"), stated.get("sampling"), stated.get("adversary"))
            plan = Plan.from_json(document["plan"])
            round_parameters(plan)
        except InvalidStudy:
            raise
        except (TypeError, ValueError, RecursionError) as error:  # InfeasiblePlan, InvalidParameters: ValueErrors
            raise InvalidStudy(f"the study document doesn't hold: {error}") from error
        del document["format"]
        return cls(**document | {"plan": plan})


def planned_upload_bytes(plan: Plan) -> int:
    """Bytes that one participant sends in an attempt without dropouts."""
    parameters = round_parameters(plan)
    degree = parameters.sharing(plan.clients).degree
    noise = (COMMITMENT_BYTES + NOISE_SEED_BYTES + 2) * parameters.noise_seeds
    return noise + upload_bytes(
        plan.clients, plan.padded_dim, plan.bits, degree, signed=parameters.signed, hybrid=parameters.hybrid
    )


def hybrid_bytes(degree: int) -> tuple[int, int]:
    """Bytes that hybrid keys add to what one participant with so many neighbours sends and receives in an attempt."""
    keys, seeds = 2 * (HYBRID_KEY_BYTES - KEY_BYTES), degree // 2 * WRAPPED_BYTES
    return keys + degree * KEM_CIPHERTEXT_BYTES + seeds, degree * (keys + KEM_CIPHERTEXT_BYTES) + seeds


def upload_bytes(
    u1: int, dim: int, bits: int, degree: int | None = None, *, signed: bool = True, hybrid: bool = False
) -> int:
    """Bytes that one participant sends in a whole attempt, with protobuf framing and without TLS.

    ``degree``: neighbours; default: all others, the complete graph. ``signed``: whether there is a ConsistencyCheck.
    ``hybrid``: whether keys are agreed on with ML-KEM-768 too; on average, since half of the pairs' seeds are sent.
    """
    degree = u1 - 1 if degree is None else degree
    holders = u1 if degree == u1 - 1 else degree
    key, signature, share = bytes(32), bytes(64), pb.RevealedShare(share=bytes(SHARE_BYTES), salt=bytes(SALT_BYTES))
    dealt = pb.SealedShares(
        ciphertexts=[bytes(CIPHERTEXT_BYTES + (KEM_CIPHERTEXT_BYTES if hybrid else 0))] * degree,
        leaves=[key] * (2 * holders),
        seed_commitment=key,
        signature=signature,
        wrapped=[bytes(WRAPPED_BYTES)] * (degree // 2 if hybrid else 0),
    )
    public = bytes(HYBRID_KEY_BYTES) if hybrid else key
    advertised = pb.Advertisement(mask_key=public, channel_key=public, signature=signature)
    reply = pb.UnmaskingReply(shares=[pb.PeerShare(self_mask_seed=share)] * holders)
    offer = pb.MaskedInputOffer(sha256=key, signature=signature)
    said: dict[str, Any] = {
        "advertise_keys": advertised,
        "share_keys": dealt,
        "masked_input": offer,
        "unmasking": reply,
    }
    if signed:
        said["consistency"] = pb.ConsistencySignature(signature=signature)
    phases = (pb.PhaseMessage(round=1, attempt=1, **{kind: content}) for kind, content in said.items())
    return sum(pb.ParticipantMessage(phase=phase).ByteSize() for phase in phases) + packed_size(dim, bits)


_DRAWS: Final = {"study": TEXT, "version": whole(), "seeds": listed(HEX_32)}


def write_draws(draws: Draws) -> bytes:
    """JSON, seeds in hexadecimal in the order of draws."""
    document = {"format": LOTTERY_FORMAT} | write_fields(_DRAWS, values_of(draws))
    return (json.dumps(document, indent=1) + "\n").encode()


def read_draws(roster: Roster, data: bytes | None, plan: Plan) -> Draws | None:
    """The draws of a roster from the lottery's file, where the plan draws cohorts; else None, even if there is a file.

    Raises InvalidRoster: the draws are missing, malformed, or not those that the roster's signature covers.
    """
    if not plan.drawn:
        return None
    if data is None:
        raise InvalidRoster(f"the plan draws cohorts, but there is no {LOTTERY_FILE} beside the roster: copy both")
    try:
        found = read_fields({"format": TEXT} | _DRAWS, json.loads(data))
        if found.pop("format") != LOTTERY_FORMAT:
            raise InvalidRoster(f"unknown format of {LOTTERY_FILE}; this version reads {LOTTERY_FORMAT}")
        draws = Draws(**found)
        lottery = draws.lottery
    except InvalidRoster:
        raise
    except (ValueError, OverflowError, RecursionError) as error:
        raise InvalidRoster(f"{LOTTERY_FILE} is not a file of draws: {error}") from error
    if (draws.study, draws.version, lottery) != (roster.study, roster.version, roster.lottery):
        raise InvalidRoster(
            f"{LOTTERY_FILE} doesn't belong to version {roster.version} of the roster: copy both from the authority"
        )
    return draws
