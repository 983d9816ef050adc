"""Seeds of a participant's own noise that aren't those it committed to: nobody else's noise, nor guarantee, changes."""

from __future__ import annotations

from typing import Any

from secagg.messages import NOISE_SEED_BYTES
from tests.adversary.cheating_participant import UNMASK, Cheat, Cheater
from tests.adversary.participant_scripts_messages import UNMASKING, altered, answers, sends
from tests.adversary.participant_verdict import SUM_OF_ALL, Blame, study_script
from tests.adversary.study_with_cheats import Off
from tests.support.attempts_in_memory import flipped

STAYS_IN = "the round ends in the sum of all; the cheat is named, and only its own noise is not taken back"
FITS = Off.lacking(UNMASKING, "a noise seed doesn't match", shows="opens a wrong sum")
COUNT = Off.lacking(UNMASKING, "noise seeds of {NOISE_SEED_BYTES}", shows="crash")
SEVEN: dict[str, Any] = {"must": STAYS_IN, "participants": 7}  # if all survive, each reveals three seeds


answers(
    "false-noise-seed",
    "reveals a seed of its noise that is not the one it committed to",
    lambda _, honest: altered(honest, noise_seeds=[flipped(honest.noise_seeds[0]), *honest.noise_seeds[1:]]),
    FITS,
    **SEVEN,
)
answers(
    "noise-seed-of-another-part",
    "reveals two seeds of its noise in each other's place",
    lambda _, honest: altered(honest, noise_seeds=[honest.noise_seeds[at] for at in (1, 0, 2)]),
    FITS,
    **SEVEN,
)
answers(
    "no-noise-seed",
    "reveals no seed of its noise",
    lambda _, honest: altered(honest, noise_seeds=[]),
    COUNT,
    reason="noise seeds of 32 bytes",
    **SEVEN,
)
answers(
    "a-noise-seed-too-many",
    "reveals a seed more than is surplus",
    lambda _, honest: altered(honest, noise_seeds=[*honest.noise_seeds, bytes(NOISE_SEED_BYTES)]),
    COUNT,
    reason="noise seeds of 32 bytes",
    **SEVEN,
)
answers(
    "false-noise-seed-without-signatures",
    "reveals a false seed under a plan without signed survivors",
    lambda _, honest: altered(honest, noise_seeds=[flipped(honest.noise_seeds[0])]),
    FITS,
    must=STAYS_IN,
    study={"adversary": "curious"},
)


def earlier(cheater: Cheater, honest: Any) -> Any:
    return altered(honest, noise_seeds=list(cheater.first[UNMASK].noise_seeds))


study_script(
    "noise-seeds-of-an-earlier-round",
    "reveals the seeds of its noise in the round before",
    STAYS_IN,
    SUM_OF_ALL,
    {0: Cheat(sends(UNMASK, earlier), rounds=frozenset({2}))},
    FITS,
    blames=[Blame(0, UNMASK, "a noise seed doesn't match", round=2, excluded=True)],
)
