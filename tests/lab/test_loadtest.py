"""The load test's pure parts: who leaves, what everybody sends, what the figures say, which bounds are broken."""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from runtime.cpu_split import KINDS
from runtime.failure import ExitCode, Failure
from secagg.masking import word_dtype
from secagg.messages import PHASES
from secagg.parameters import choose_graph, complete_graph_threshold
from server.events import (
    CONNECTING,
    AttemptAborted,
    AttemptStarted,
    Event,
    ParticipantConnected,
    ParticipantDropped,
    ParticipantLost,
    PhaseEnded,
    PhaseStarted,
    RoundCompleted,
    WaitingForParticipants,
)
from sordino.lab.loadtest import tables
from sordino.lab.loadtest.display import cpu_table, final_lines, round_line, round_table
from sordino.lab.loadtest.disturbances import Kills
from sordino.lab.loadtest.faults import PHASE_NAMES, dropped_count, drops_of
from sordino.lab.loadtest.figure import write_figures
from sordino.lab.loadtest.options import LoadOptions
from sordino.lab.loadtest.run import allow_open_files, ending, last_complaint
from sordino.lab.loadtest.study import check_can_end, load_study
from sordino.lab.loadtest.summary import BETWEEN, Outcomes, broken_bounds, spread
from sordino.lab.loadtest.sums import plain_sum, sum_digest, vector
from sordino.planning.text import figures_of
from tests.support.commands import Run, refusal, says

IDENTITIES = [bytes([number]) * 32 for number in range(20)]
OPTIONS = LoadOptions(clients=20, processes=2, dim=100, bits=20, rounds=3, drop=0.2, at="share-keys")
PLAN = {"padded_dim": 128, "A": 2, "min_survivors": 12, "quorum": 12}
PLAN |= {"graph": "complete", "degree": 19, "threshold": 12}


# ---------------------------------------------------------------------------------- who leaves


@pytest.mark.parametrize(("clients", "share", "count"), [(50, 0.1, 5), (25, 0.1, 3), (7, 0.0, 0), (10, 0.99, 10)])
def test_exactly_the_share_leaves(clients: int, share: float, count: int) -> None:
    assert dropped_count(clients, share) == count
    for round_ in range(1, 6):
        drops = drops_of(1, round_, 1, clients=clients, share=share)
        assert len(drops) == count
        assert set(drops) <= set(range(clients))


def test_the_schedule_follows_from_seed_round_and_attempt_alone() -> None:
    first = drops_of(1, 2, 1, clients=40, share=0.3)
    assert first == drops_of(1, 2, 1, clients=40, share=0.3)
    others = [drops_of(*key, clients=40, share=0.3) for key in ((2, 2, 1), (1, 3, 1), (1, 2, 2))]
    assert all(set(first) != set(other) for other in others)


@pytest.mark.parametrize(("name", "phase"), PHASE_NAMES.items())
def test_a_single_phase_is_kept_to(name: str, phase: str) -> None:
    drops = drops_of(5, 1, 1, clients=200, share=0.5, at=name)
    assert {drop.phase for drop in drops.values()} == {phase}
    within = sum(drop.within_upload for drop in drops.values())
    assert (20 < within < 80) if name == "masked-input" else within == 0


def test_any_reaches_every_phase_and_everybody_leaves_some_time() -> None:
    phases: Counter[str] = Counter()
    left: set[int] = set()
    for round_ in range(1, 101):
        drops = drops_of(3, round_, 1, clients=30, share=0.2)
        phases.update(drop.phase for drop in drops.values())
        left |= set(drops)
    assert set(phases) == set(PHASES)
    assert min(phases.values()) > 70  # 120 on average
    assert left == set(range(30))


# ---------------------------------------------------------------------------------- what is sent


@pytest.mark.parametrize("bits", [1, 7, 8, 9, 16, 20, 32, 33, 62])
def test_vectors_are_uniform_words_of_the_protocol(bits: int) -> None:
    one = vector(1, 1, 1, IDENTITIES[0], dim=4096, bits=bits)
    assert one.dtype == word_dtype(bits)
    assert one.shape == (4096,)
    assert int(one.max()) < 1 << bits
    # The highest bit is set in half of them: 2048, standard deviation 32.
    assert 1800 < int(np.count_nonzero(one >> np.uint64(bits - 1))) < 2300


def test_vectors_differ_by_all_that_they_follow_from() -> None:
    keys = [(1, 1, 1, 0), (2, 1, 1, 0), (1, 2, 1, 0), (1, 1, 2, 0), (1, 1, 1, 1)]
    made = [{vector(*key[:3], IDENTITIES[key[3]], dim=8, bits=32).tobytes() for key in keys} for _ in range(2)]
    assert made[0] == made[1]
    assert len(made[0]) == len(keys)


@pytest.mark.parametrize("bits", [5, 20, 62])
def test_the_plain_sum_is_that_of_python_integers(bits: int) -> None:
    total = plain_sum(4, 2, 1, IDENTITIES, dim=50, bits=bits)
    rows = [vector(4, 2, 1, identity, dim=50, bits=bits).tolist() for identity in IDENTITIES]
    assert total.tolist() == [sum(column) % 2**bits for column in zip(*rows, strict=True)]
    assert total.dtype == word_dtype(bits)


# ---------------------------------------------------------------------------------- options and plan


@pytest.mark.parametrize("clients", [3, 10, 50, 64, 200])
@pytest.mark.parametrize("drop", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("bits", [10, 20, 32])
def test_the_plan_leaves_room_for_the_dropouts(clients: int, drop: float, bits: int) -> None:
    options = OPTIONS.changed(clients=clients, drop=drop, bits=bits)
    plan = load_study(options, 8443).study.plan()
    if clients >= 10:
        assert plan.min_survivors <= plan.quorum <= clients - options.dropped
    assert plan.bits == bits
    assert plan.padded_dim == 100


@pytest.mark.parametrize(
    ("clients", "drop", "graph", "degree"),
    [(50, 0.1, "complete", 49), (100, 0.3, "complete", 99), (200, 0.1, "harary", 62), (1000, 0.1, "harary", 180)],
)
def test_large_cohorts_share_on_a_ring(clients: int, drop: float, graph: str, degree: int) -> None:
    """With as few survivors as the protocol allows so many could leave that no ring would hold together."""
    options = OPTIONS.changed(clients=clients, drop=drop)
    plan = load_study(options, 8443).study.plan()
    figures = figures_of(plan)
    assert (figures.graph, figures.degree) == (graph, degree)
    assert plan.min_survivors <= clients - options.dropped
    least = complete_graph_threshold(clients, plan.colluders)
    assert (plan.min_survivors > least) == (graph == "harary")
    assert choose_graph(clients, plan.colluders, least, plan.adversary) == "complete"


@pytest.mark.parametrize(("changes", "suggestion"), [({"bits": 1}, "use --bits 4"), ({"bits": 62}, "use --bits 3")])
def test_an_infeasible_plan_is_refused_with_the_nearest_one(changes: dict[str, Any], suggestion: str) -> None:
    with pytest.raises(Failure, match="no plan holds this: ") as failure:
        load_study(OPTIONS.changed(**changes), 8443)
    assert failure.value.code is ExitCode.INFEASIBLE
    assert str(failure.value.suggestion).startswith(suggestion)


@pytest.mark.parametrize(
    ("clients", "limits", "then"),
    [
        (50, (64, 4096), [(306, 4096)]),
        (50, (1024, 4096), []),
        (50, (64, -1), [(306, -1)]),
        (768, (64, 1024), [(1024, 1024)]),
        (1000, (64, 1024), "Use --clients 768 or fewer, or raise the limit with ulimit -n 1256"),
        (50, (64, 257), r"allows 257\. Raise the limit with ulimit -n 306"),
    ],
)
def test_connections(monkeypatch: pytest.MonkeyPatch, clients: int, limits: tuple[int, int], then: Any) -> None:
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda which, values: set_to.append(values))
    refused = isinstance(then, str)
    with pytest.raises(Failure, match=then) if refused else contextlib.nullcontext():
        allow_open_files(OPTIONS.changed(clients=clients))
    assert set_to == ([] if refused else then)


# ---------------------------------------------------------------------------------- from events to figures


def all_right(event: RoundCompleted) -> bool:
    identities = [IDENTITIES[who] for who in event.survivors]
    total = plain_sum(OPTIONS.seed, event.round, event.attempt, identities, dim=128, bits=20)
    return sum_digest(total) == event.sum_sha256


def attempt_events(
    round_: int, attempt: int = 1, *, abort: str = "", seconds: float = 2.0, tamper: bool = False
) -> list[Event]:
    """Of one attempt in which everybody leaves as planned, in the coordinator's order."""
    about: dict[str, Any] = {"round": round_, "attempt": attempt}
    at = 1000.0 + 10 * round_ + 3 * attempt
    leaving = sorted(OPTIONS.drops(round_, attempt))
    lag_ms = {"p50": 1.0, "p99": 9.0, "max": 99.0}
    events: list[Event] = [AttemptStarted(at=at, cohort=20, **about)]
    for index, phase in enumerate(PHASES):
        events.append(PhaseStarted(phase=phase, at=at, expected=20, needed=12, deadline_s=9.0, **about))
        if phase == "ShareKeys":
            events += [dropped(who, phase, round_=round_, attempt=attempt) for who in leaving]
        events.append(PhaseEnded(phase=phase, seconds=0.1 * (index + 1), at=at, received=20, **about))
        if abort and phase == "ShareKeys":
            return [*events, AttemptAborted(phase=phase, reason=abort, at=at + 1.25, loop_lag_ms=lag_ms, **about)]
    survivors = [who for who in range(20) if who not in leaving]
    total = plain_sum(OPTIONS.seed, round_, attempt, [IDENTITIES[who] for who in survivors], dim=128, bits=20)
    digest = sum_digest(total if not tamper else total ^ total.dtype.type(1))
    completed = RoundCompleted(
        at=at + seconds,
        seconds=seconds,
        phase_seconds={phase: 0.1 * (index + 1) for index, phase in enumerate(PHASES)},
        phase_cpu_s={phase: dict.fromkeys(KINDS, 0.25 * round_) for phase in PHASES},
        survivors=tuple(survivors),
        sum_sha256=digest,
        upload_bytes=1000,
        download_bytes=3000,
        vector_bytes=320,
        loop_lag_ms={"p50": 0.5, "p99": 12.0, "max": 20.0},
        **about,
    )
    return [*events, completed]


def dropped(
    who: int, phase: str, reason: str = "connection closed", *, at: float = 0.0, round_: int = 1, attempt: int = 1
) -> ParticipantDropped:
    return ParticipantDropped(round=round_, attempt=attempt, phase=phase, participant=who, reason=reason, at=at)


def with_sum(events: list[Event], survivors: Iterable[int], **more: Any) -> list[Event]:
    """The same attempt, whose coordinator says that these are in its sum."""
    assert isinstance(events[-1], RoundCompleted)
    return [*events[:-1], replace(events[-1], survivors=tuple(survivors), **more)]


def all_connected(at: float = 0.0) -> list[Event]:
    return [ParticipantConnected(participant=who, at=at) for who in range(20)]


def feed(outcomes: Outcomes, *streams: Iterable[Event]) -> Outcomes:
    for event in chain(*streams):
        outcomes.apply(event)
    return outcomes


def outcomes_of(*streams: Sequence[Event], options: LoadOptions = OPTIONS) -> Outcomes:
    return feed(Outcomes(options, all_right), all_connected(), *streams)


def result_of(*streams: Sequence[Event]) -> dict[str, Any]:
    """As `LoadTest` would write it."""
    result = outcomes_of(*streams).figures() | {
        "server_cpu_s": 3.21,
        "server_cpu_s_before_rounds": 1.0,
        "round_mean": {
            "wall_s": 2.0,
            "server_cpu_s": 1.1,
            "engine_cpu_s": 0.0,
            "client_cpu_s": 0.4,
            "participant_cpu_ms": 20.0,
        },
        "server_peak_rss_mb": 123.4,
        "client_cpu_s": 9.9,
        "client_peak_rss_mb": 80.0,
        "wall_s": 20.0,
        "study_ended": "rounds done",
        "disturbances": [],
        "kills": Kills(0).to_json([]),
        "engine_kills": {},
        "connections": {"troubles": {}, "resets": 0},
        "noise": None,
        "ledger_rows": 3,
        "ledger_error": "",
        "incomplete": None,
        "options": OPTIONS.to_json(),
        "plan": PLAN,
    }
    broken = broken_bounds(result, OPTIONS)
    return result | {"broken": broken, "exit_code": int(bool(broken))}


def test_figures_of_completed_and_aborted_rounds() -> None:
    figures = outcomes_of(
        attempt_events(1), attempt_events(2, abort="10 participants, 12 needed"), attempt_events(2, 2, seconds=4.0)
    ).figures()
    assert (figures["rounds_completed"], figures["rounds_aborted"], figures["sums_ok"]) == (2, 1, 2)
    assert figures["round_s"] == {"p50": 2.0, "p95": 4.0, "max": 4.0}
    assert figures["phase_s"]["ShareKeys"] == {"p50": 0.2, "p95": 0.2}
    assert figures["phase_s"][BETWEEN] == {"p50": 0.5, "p95": 2.5}
    assert figures["reasons"] == {"ShareKeys: 10 participants, 12 needed": 1}
    assert figures["loop_lag_ms"] == {"p50": 0.5, "p99": 12.0, "max": 99.0}
    assert figures["drops"]["expected"] == figures["drops"]["observed"] == 12
    assert figures["drops"]["expected_by_phase"] == {"ShareKeys": 12}
    assert figures["drops"]["unplanned"] == figures["drops"]["absent"] == 0
    assert figures["drop_reasons"] == {"ShareKeys: connection closed": 12}
    assert figures["rounds"][1]["seconds"] == 1.25
    assert (figures["upload_bytes"], figures["download_bytes"], figures["vector_bytes"]) == (1000, 3000, 320)


def test_a_sum_of_others_than_survived_is_wrong() -> None:
    """Fewer, none, one more, or all with one who left before it; and an old coordinator names no digest."""
    events = attempt_events(1)
    present = set(range(20)) - set(OPTIONS.drops(1, 1))
    for changed in (sorted(present)[1:], [], sorted(present | {min(OPTIONS.drops(1, 1))})):
        assert outcomes_of(with_sum(events, changed)).rounds[0].sum_ok is False
    total = plain_sum(OPTIONS.seed, 1, 1, IDENTITIES, dim=128, bits=20)
    assert outcomes_of(with_sum(events, range(20), sum_sha256=sum_digest(total))).rounds[0].sum_ok is False
    figures = outcomes_of(with_sum(events, (), sum_sha256=None)).figures()
    assert (figures["rounds_completed"], figures["sums_ok"], figures["sums_wrong"]) == (1, 0, [1])


def test_dropouts_that_are_late_absent_or_unplanned_are_told_apart() -> None:
    before = sorted(OPTIONS.drops(1, 1))
    stranger = next(who for who in range(20) if who not in OPTIONS.drops(1, 1) and who not in OPTIONS.drops(2, 1))
    back = next(who for who in before if who not in OPTIONS.drops(2, 1))
    second, away = attempt_events(2), min(OPTIONS.drops(2, 1))
    second[2:2] = [dropped(who, "AdvertiseKeys", round_=2) for who in (back, stranger)]
    lost = [ParticipantLost(participant=away)]
    drops = outcomes_of(attempt_events(1), lost, without(second, away)).figures()["drops"]
    assert (drops["late"], drops["unplanned"], drops["absent"]) == (1, 1, 1)
    assert drops["expected"] == 7  # the absent one could not leave
    # It comes back while keys are collected, takes part, and leaves as planned.
    drops = outcomes_of(attempt_events(1), lost, second).figures()["drops"]
    assert (drops["unplanned"], drops["absent"], drops["expected"]) == (1, 1, 8)


def without(events: Sequence[Event], *participants: int) -> list[Event]:
    """The same attempt, where the coordinator doesn't note that these have left."""
    return [one for one in events if not isinstance(one, ParticipantDropped) or one.participant not in participants]


def test_every_planned_dropout_is_seen_or_explained() -> None:
    first, second, third = (sorted(OPTIONS.drops(round_, 1)) for round_ in (1, 2, 3))
    next_only = next(who for who in first if who not in second)
    in_abort = next(who for who in second if who not in third)
    again = attempt_events(2, abort="too few")
    again.insert(2, dropped(next_only, "AdvertiseKeys", round_=2))
    last = without(attempt_events(3), third[0], third[1])
    last.insert(2, dropped(third[1], "AdvertiseKeys", round_=3))
    result = result_of(without(attempt_events(1), next_only), without(again, in_abort), last)
    drops = result["drops"]
    assert drops["unseen"] == {"aborted": 1, "next_round": 1, "other_phase": 1, "unnoted": 1}
    assert drops["observed"] + sum(drops["unseen"].values()) == drops["expected"] == 12
    assert "4 unseen: 1 left in a round that was aborted" in "\n".join(final_lines(result))
    assert max(map(len, final_lines(result))) <= 80


def test_who_leaves_instead_of_signing_may_be_noted_later_or_not_at_all() -> None:
    """Shares are asked for once enough have signed."""
    options = OPTIONS.changed(at="consistency-check")
    leaving = sorted(options.drops(1, 1))
    events = without(attempt_events(1), *range(20))
    noted = dict(zip(leaving, ("ConsistencyCheck", "Unmasking", "MaskedInputCollection"), strict=False))
    for who, phase in noted.items():
        events.insert(-1, dropped(who, phase))
    drops = outcomes_of(events, options=options).figures()["drops"]
    assert (len(leaving), drops["expected"], drops["observed"]) == (4, 4, 2)
    assert drops["observed_by_phase"] == {"ConsistencyCheck": 2}
    assert drops["unseen"] == {"signing": 1, "other_phase": 1}
    assert drops["unplanned"] == 1  # whoever left before everybody signed was not to


def test_a_round_that_could_not_begin_is_an_aborted_one() -> None:
    reason = "3 participants are connected, 12 needed"
    event = AttemptAborted(round=1, attempt=1, phase=CONNECTING, reason=reason, at=5.0)
    waiting = WaitingForParticipants(round=1, attempt=1, received=3, needed=12, expected=20, at=2.0)
    figures = outcomes_of([waiting, replace(waiting, at=3.0), event]).figures()
    assert figures["reasons"] == {f"Connecting: {reason}": 1}
    assert figures["rounds"][0]["seconds"] == 3.0
    assert figures["round_s"] == {"p50": None, "p95": None, "max": None}


def test_percentiles_are_values_that_occurred() -> None:
    assert spread([3.0, 1.0, 2.0]) == {"p50": 2.0, "p95": 3.0}
    assert spread([float(n) for n in range(1, 101)]) == {"p50": 50.0, "p95": 95.0}
    assert spread([]) == {"p50": None, "p95": None}


# ---------------------------------------------------------------------------------- what is shown


def test_the_last_table_and_lines_are_complete() -> None:
    aborted = attempt_events(2, abort="10 participants, 12 needed")
    result = result_of(attempt_events(1), aborted, attempt_events(2, 2, tamper=True))
    console = Console(width=80, file=None, record=True, quiet=False)
    with console.capture() as capture:
        console.print(round_table(result))
        console.print(cpu_table(result))
    table = capture.get()
    says(table, "sum right", "SUM WRONG", "aborted", "2.2", "p95")
    assert max(map(len, table.splitlines())) <= 80
    *_, cpu = (line.split() for line in table.splitlines() if line.strip())
    assert cpu == ["all", *["1.88"] * len(PHASES), "9.38"]  # the mean of the rounds with a sum, 1 and 2
    lines = final_lines(result)
    assert max(map(len, lines)) <= 80
    told = ("1 of 2 sums right", "1 x ShareKeys", "12 of 12 planned", "p99 12.0")
    says("\n".join(lines), "graph complete, threshold 12", "100 values of 20 bits; 128 travel", *told)
    on_ring = result | {"plan": PLAN | {"graph": "harary", "degree": 56, "threshold": 31}}
    assert "graph ring of 56, threshold 31" in "\n".join(final_lines(on_ring))


def test_thin_participants_are_named_and_so_is_why_their_sum_can_be_wrong() -> None:
    """A dropout that wasn't planned leaves its masks in the sum."""
    stranger = next(who for who in range(20) if who not in OPTIONS.drops(1, 1))
    result = result_of([*attempt_events(1)[:-1], dropped(stranger, "MaskedInputCollection"), attempt_events(1)[-1]])
    wrong = result | {"sums_wrong": [1], "options": result["options"] | {"thin": True}}
    says(broken_bounds(wrong, OPTIONS)[0], "not that of the survivors: round 1 (", "masks of 1 unplanned dropout)")
    says(
        " ".join(" ".join(final_lines(wrong)).split()),
        "a TLS channel each; thin",
        "the coordinator 1.10 s CPU",
        "20.0 ms a",
    )


def test_the_lines_of_its_rounds() -> None:
    outcomes = Outcomes(OPTIONS, all_right)
    events = [*attempt_events(1), *attempt_events(2, abort="too few"), *attempt_events(3, tamper=True)]
    told = [round_line(ended) for ended in map(outcomes.apply, events) if ended is not None]
    assert told[0] == "round 1: sum of 16 in 2.00 s, the sum is right; 4 of 4 planned dropouts seen"
    assert told[1].startswith("round 2: aborted after 1.25 s, ShareKeys: too few")
    assert "THE SUM IS WRONG" in told[2]


def test_the_figure_is_drawn_in_both_forms(tmp_path: Path) -> None:
    result = result_of(attempt_events(1), attempt_events(2, abort="too few"), attempt_events(2, 2))
    paths = write_figures(json.loads(json.dumps(result)), tmp_path)
    assert [path.suffix for path in paths] == [".svg", ".png"] * 4
    assert "aborted: ShareKeys: too few" in paths[2].read_text()
    told = "20 participants, 100 values of 20 bits, 20 % leave"
    says(paths[0].read_text(), *PHASES, BETWEEN, "aborted", told)
    assert paths[1].read_bytes().startswith(b"\x89PNG")
    assert write_figures(result_of(), tmp_path / "none") == []


def test_tables_end_where_a_run_ends(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    ends = [0] * 20 + [1, 130]
    commands: list[list[str]] = []

    def run_one(command: list[str], **_: Any) -> SimpleNamespace:
        """Of the last three runs one breaks a bound, and one is interrupted in its first round."""
        commands.append(command)
        style, share = command[-5], float(command[-1])
        result = result_of(attempt_events(1, abort="too few" if share == 0.2 else ""))
        result["options"] |= {"drop_style": style, "at": command[-3], "drop": share}
        return SimpleNamespace(returncode=ends[len(commands) - 1], stdout=json.dumps(result))

    monkeypatch.setattr(subprocess, "run", run_one)
    before = signal.getsignal(signal.SIGINT)
    try:
        assert tables.main(["--clients", "20"]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(commands) == 22
    assert all(command[3:7] == ["loadtest", "--json", "--clients", "20"] for command in commands)
    out, err = capsys.readouterr()
    assert "silent, advertise-keys, 10 %\nIncomplete: this run ended with code 130.\n" in err
    lines = out.splitlines()
    assert lines[0].startswith("20 participants in 2 processes, 100 values of 20 bits (128 sent), 3 rounds a row; ")
    assert [at for at, line in enumerate(lines) if "drop style silent" in line] == [25]
    assert len({line.count("|") for line in lines if "|" in line}) == 1
    assert "| share-keys | 10 % | 1 of 3 | 1 | none | 4 / 4 | 2.00 | 2.00 |" in lines
    assert "| unmasking | 20 % | 0 of 3 | 0 | 1 x ShareKeys: too few | 4 / 4 | - | - |" in lines


def test_only_what_explains_an_end_is_quoted_from_a_log() -> None:
    info = '{"listening": "127.0.0.1:1", "event": "ready", "level": "info", "timestamp": "now"}'
    error = '{"path": "a.sqlite", "event": "the disk is full", "level": "error", "timestamp": "now"}'
    assert last_complaint("") == last_complaint(info) == last_complaint(f"{error}\n{info}\n") == ""
    assert last_complaint(f"{info}\n{error}\n\n") == "the disk is full, path a.sqlite"
    assert last_complaint(f"{info}\nsordino serve: the port is taken\n") == "sordino serve: the port is taken"
    assert (ending(-9), ending(3)) == ("was ended by SIGKILL", "ended with code 3")


# ---------------------------------------------------------------------------------- the command line


@pytest.mark.parametrize("clients", [3, 8, 80, 300])
def test_the_share_that_is_named_instead_can_be_run(clients: int) -> None:
    options = OPTIONS.changed(clients=clients, drop=0.9)
    with pytest.raises(Failure, match="no round can end in a sum") as failure:
        check_can_end(options)
    named = float(failure.value.message.split("--drop ")[1].split()[0])
    check_can_end(options.changed(drop=named))


def test_a_folder_with_something_in_it_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    assert "not empty" in refusal(run, "loadtest", "--out", tmp_path)
