"""The study of a load test: as few survivors and as much privacy as its planned faults allow."""

from __future__ import annotations

from typing import Final

from authority.new_study import NewStudy, new_study
from learning.task_names import SYNTHETIC
from mechanisms.plan import InfeasiblePlan
from runtime.failure import ExitCode, Failure, InputFailure
from secagg.errors import InvalidParameters
from secagg.parameters import HARARY, assumed_colluders, choose_graph, complete_graph_threshold, default_min_survivors
from sordino.lab.loadtest.faults import dropped_count
from sordino.lab.loadtest.options import LoadOptions

_EPSILON: Final = 20.0  # nothing is protected: any budget for which the noise fits
_COLLUDING: Final = (0.05, 0.02, 0.01, 0.0)
_STDDEVS: Final = (4.0, 1.0, 100.0)  # k_stddevs to try: few bits need a small one, many a large one
_MOST_ATTEMPTS: Final = 100  # the limit of study.toml


def load_study(options: LoadOptions, port: int) -> NewStudy:
    """A study in which the planned dropouts leave enough survivors, if that is possible.

    ``min_survivors`` and the quorum are the fewest that the protocol allows (more where that lets a large cohort share
    on a ring). The share assumed to collude is the largest tried that leaves room for the dropouts. If none does,
    rounds abort, as they should. Raises Failure: no plan holds this number of participants, values and bits; names the
    nearest that does.
    """
    found = _feasible(options, port)
    if isinstance(found, str):
        raise Failure(ExitCode.INFEASIBLE, f"no plan holds this: {found}", _nearest(options))
    return found


def check_can_end(options: LoadOptions) -> None:
    """Raises Failure: too many leave for any attempt to end in a sum; names the largest share that works."""
    fewest, left = _fewest(options), _left(options)
    if left >= fewest:
        return
    end = f"{left} stay, fewer than min_survivors = {fewest}: no round can end in a sum."
    if options.missing > options.drop:
        raise InputFailure(
            f"{options.clients - left} of {options.clients} leave, are late, cheat or are offline, and {end} Lower "
            "--drop or another share."
        )
    shares = (part / 100 for part in range(int(100 * options.drop), -1, -1))
    lower = next(
        one
        for one in (options.model_copy(update={"drop": share}) for share in shares)
        if one.clients - one.dropped >= _fewest(one)
    )
    raise InputFailure(f"{options.dropped} of {options.clients} leave and {end} Use --drop {lower.drop:g} or less.")


def _left(options: LoadOptions) -> int:
    return options.clients - dropped_count(options.clients, options.missing)


def _fewest(options: LoadOptions) -> int:
    return _study(options, 1, _STDDEVS[0]).study.privacy.min_survivors or 0


def _feasible(options: LoadOptions, port: int) -> NewStudy | str:
    """The first study with a plan; if there is none the reason against the first."""
    why = ""
    for stddevs in _STDDEVS:
        study = _study(options, port, stddevs)
        try:
            study.study.plan()
        except InfeasiblePlan as error:
            why = why or error.reason
        else:
            return study
    return why


def _nearest(options: LoadOptions) -> str:
    """The option that makes a plan with the smallest change."""

    def works(**changed: int) -> bool:
        return not isinstance(_feasible(options.model_copy(update=changed), 1), str)

    for distance in range(1, 62):
        for bits in (options.bits - distance, options.bits + distance):
            if 1 <= bits <= 62 and works(bits=bits):
                return f"use --bits {bits}"
    for clients in range(options.clients + 1, options.clients + 9):
        if works(clients=clients):
            return f"use --clients {clients}"
    return f"use fewer values than --dim {options.dim}, or fewer participants"


def _study(options: LoadOptions, port: int, stddevs: float) -> NewStudy:
    clients, missing, left = options.clients, options.missing, _left(options)

    def threshold(adversarial: float) -> int:
        try:
            colluders = assumed_colluders(clients, adversarial, missing)
        except InvalidParameters:
            return clients
        return complete_graph_threshold(clients, colluders)

    # If more cheat than are assumed to collude, some cheats can't be distinguished from honest participants.
    cheats = 0.0 if options.cheats is None else options.cheats.share
    tried = tuple(dict.fromkeys(max(share, cheats) for share in _COLLUDING))
    adversarial = next((share for share in tried if threshold(share) <= left), tried[-1])
    survivors = _survivors(options, adversarial, threshold(adversarial))
    return new_study(
        name="loadtest",
        rounds=options.rounds,
        participants=clients,
        hosts=options.processes,
        task=SYNTHETIC,
        task_options={"dim": options.dim},
        dataset="fashion-mnist-subset",  # a name is required; the data is never read
        partition="iid",
        epsilon=_EPSILON,
        bits=options.bits,
        key_agreement=options.key_agreement,
        adversary=options.adversary,
        max_dropout=missing,
        adversarial=adversarial,
        min_survivors=survivors,
        quorum=survivors,
        k_stddevs=stddevs,
        noise_parts=None if options.noise else 0,  # vectors that anyone can compute hold no noise to take back
        listen=f"127.0.0.1:{port}",
        coordinator_engine="ray" if options.gateways or options.workers else "process",
        gateways=options.gateways,
        opening_workers=options.workers,
        deadline_s=options.seconds,
        connect_s=max(60.0, 0.1 * clients),
        max_attempts=min(_MOST_ATTEMPTS, options.rounds),
        server_momentum=0.0,  # the change of the model is then the sum
        pause_s=options.paused_s,
        resume_s=options.kept_s,
    )


def _survivors(options: LoadOptions, adversarial: float, threshold: int) -> int:
    """The fewest possible; or, if that allows sharing on a ring, as many as independent drops leave."""
    colluders = assumed_colluders(options.clients, adversarial, options.missing)
    more = min(_left(options), default_min_survivors(options.clients, colluders, options.missing))
    sparse = more > threshold and choose_graph(options.clients, colluders, more, options.adversary) == HARARY
    return more if sparse else threshold
