"""The load test's faults: who they hit, how they are written down, and what figures and bounds make of them."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import re
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import numpy as np
import pytest

import server.journal
from client.study_terms import SharedRoster
from mechanisms.encoder import Encoder
from runtime.failure import ExitCode, Failure
from runtime.settings_keys import settings_keys
from secagg.messages import PHASES
from server.events import (
    AttemptAborted,
    Event,
    ParticipantConnected,
    ParticipantExcluded,
    ParticipantLost,
    ParticipantResumed,
    PhaseStarted,
)
from server.study_view import StudyView
from sordino.lab.loadtest import run as run_module
from sordino.lab.loadtest.availability import Availability, Presence, read_trace
from sordino.lab.loadtest.client_process import ParticipantGroup
from sordino.lab.loadtest.display import final_lines
from sordino.lab.loadtest.disturbances import Recovery, due, storms_come, strike
from sordino.lab.loadtest.faults import WAYS, Cheats, Link, Storm, Stragglers, messages_of, upload_of
from sordino.lab.loadtest.options import LoadOptions, read_scenario
from sordino.lab.loadtest.study import check_can_end, load_study
from sordino.lab.loadtest.summary import GROWTH, Outcomes, broken_bounds
from sordino.lab.loadtest.sums import noise_in
from tests.lab.test_loadtest import OPTIONS, all_connected, all_right, attempt_events, dropped, feed, result_of, without
from tests.support.commands import Run, says
from wire import coordinator_pb2 as pb

TWICE = "round=2,at=unmasking"
SCENARIOS = sorted((Path(__file__).parents[2] / "sordino" / "lab" / "loadtest" / "scenarios").glob("*.toml"))


# ---------------------------------------------------------------------------------- who is hit


def test_links_and_cheats_stay_with_participants_and_shares_are_kept_to() -> None:
    bad, good = Link(share=0.2, mbit_s=2), Link(share=0.5, latency_ms=40)
    options = LoadOptions(clients=100, links=(bad, good), cheats=Cheats(share=0.24))
    linked, cheaters = options.linked(), options.cheaters()
    assert sorted([list(linked.values()).count(bad), list(linked.values()).count(good)]) == [20, 50]
    assert linked == LoadOptions.model_validate_json(options.model_dump_json()).linked()
    assert len(cheaters) == 24
    assert {way: list(cheaters.values()).count(way) for way in WAYS} == dict.fromkeys(WAYS, 2)
    assert cheaters != options.changed(seed=2).cheaters()


def test_stragglers_are_drawn_anew_and_are_nobody_who_leaves_or_cheats() -> None:
    stragglers = Stragglers(share=0.2, from_s=2, to_s=10)
    options = LoadOptions(clients=50, drop=0.2, stragglers=stragglers, cheats=Cheats(share=0.1))
    seen, phases = [], set()
    for round_ in range(1, 21):
        delays = options.delays(round_, 1)
        assert len(delays) == 10
        assert not delays.keys() & {*options.drops(round_, 1), *options.cheaters()}
        assert all(2 <= one.seconds <= 10 for one in delays.values())
        seen.append(frozenset(delays))
        phases |= {one.phase for one in delays.values()}
    assert len(set(seen)) == 20
    assert phases == set(PHASES)
    there = LoadOptions.model_validate_json(options.model_dump_json())  # in the client processes
    assert there == options
    assert (there.delays(3, 2), there.drops(3, 2)) == (options.delays(3, 2), options.drops(3, 2))


def test_storms_come_in_the_order_in_which_both_sides_count_them() -> None:
    storms = (Storm(round=2), Storm(round=2, at="unmasking"), Storm(round=1, share=0.5))
    options = LoadOptions(clients=20, storms=storms)
    options.check()
    assert [(one.round, one.at) for one in options.storms] == [(1, "between"), (2, "unmasking"), (2, "between")]
    assert len(options.struck(options.storms[0])) == 10
    begun = PhaseStarted(round=2, attempt=1, phase="Unmasking", expected=20, needed=12, deadline_s=9.0)
    assert due(options.storms[1], begun, 1)
    assert not due(options.storms[1], replace(begun, phase="ShareKeys"), 1)
    assert not due(options.storms[1], begun, 0)
    aborted = AttemptAborted(round=2, attempt=1, phase="ShareKeys", reason="")
    assert due(options.storms[1], aborted, 2)  # its phase was never reached
    assert not due(options.storms[2], begun, 1)


# ---------------------------------------------------------------------------------- availability


def test_the_model_has_the_means_that_were_asked_for() -> None:
    presence = Presence(Availability(online_s=60, offline_s=20, shape=0.7), seed=3)
    online, away = [], []
    for who in range(300):
        stays = list(itertools.islice(presence.stays(who), 40))
        assert all(begin < end for begin, end in stays)
        online += [end - begin for begin, end in stays]
        away += [later[0] - earlier[1] for earlier, later in itertools.pairwise(stays)]
    # 12,000 draws of a law whose deviation is 1.5 times its mean: three standard errors are 4 %.
    assert math.isclose(float(np.mean(online)), 60, rel_tol=0.05)
    assert math.isclose(float(np.mean(away)), 20, rel_tol=0.05)
    there = sum(presence.online(who, 500.0) for who in range(300))
    assert 195 <= there <= 255  # 225 on average, standard deviation 7.5
    again = Presence(Availability(online_s=60, offline_s=20, shape=0.7), seed=3)
    assert [again.online(who, 500.0) for who in range(50)] == [presence.online(who, 500.0) for who in range(50)]


@pytest.mark.parametrize(
    "text",
    [
        "participant,from_s,to_s\n0,0,10\n0,20,30\n2,5,50\n",
        '{"participant": 0, "from_s": 0, "to_s": 10}\n{"participant": 0, "from_s": 20, "to_s": 30}\n'
        '{"participant": 2, "from_s": 5, "to_s": 50}\n',
    ],
    ids=["csv", "json"],
)
def test_a_trace_is_kept_to(tmp_path: Path, text: str) -> None:
    (tmp_path / "trace").write_text(text)
    availability = Availability.model_validate({"trace": str(tmp_path / "trace")})
    presence = Presence(availability, seed=1)
    assert [presence.online(0, at) for at in (0, 9, 10, 19, 20, 30)] == [True, True, False, False, True, False]
    assert [presence.online(2, at) for at in (0, 5, 60)] == [False, True, False]
    assert [presence.online(0, 21, before) for before in (0, 1, 2)] == [True, True, False]
    assert presence.online(1, 1e6)  # whoever isn't named is always there
    assert availability.away_share(4) == 0.5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("participant,from_s,to_s\n0,0,10\nx,0,1\n", "line 3"),
        ("participant,from_s,to_s\n0,10,10\n", "from_s below to_s"),
        ("participant,from_s,to_s\n0,0,10\n0,5,15\n", "two stays of participant 0 overlap"),
        ("participant,from_s,to_s\n", "names no participant"),
        ('{"participant": 0}\n', "line 1"),
    ],
)
def test_a_trace_that_cannot_be_used_is_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "trace").write_text(text)
    with pytest.raises(Failure, match=words):
        read_trace(tmp_path / "trace")


# ---------------------------------------------------------------------------------- cheats


def test_every_way_to_cheat_changes_something_and_only_its_own() -> None:
    share = pb.PeerShare(mask_key=pb.RevealedShare(share=b"s" * 32, salt=b"t" * 16))
    honest = {
        "advertise_keys": pb.Advertisement(mask_key=b"m" * 32, channel_key=b"c" * 32, signature=b"s" * 64),
        "share_keys": pb.SealedShares(
            ciphertexts=[b"x" * 112] * 2, leaves=[b"l" * 32] * 4, seed_commitment=b"d" * 32, signature=b"s" * 64
        ),
        "masked_input": pb.MaskedInputOffer(sha256=b"h" * 32, signature=b"s" * 64),
        "consistency": pb.ConsistencySignature(signature=b"s" * 64),
        "unmasking": pb.UnmaskingReply(shares=[pb.PeerShare(none=pb.NoShare()), share]),
    }
    packed = bytes(range(50))
    for way in WAYS:
        changed = {kind for kind, message in honest.items() if messages_of(way, kind, message) != [message]}
        if upload_of(way, packed) != packed:
            changed.add("upload")
        assert (len(changed) == 1) == (way not in ("silence", "repetition")), way
        assert changed, way
    assert all(message.ByteSize() for message in honest.values())


# ---------------------------------------------------------------------------------- written down


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_scenarios_of_the_project_can_be_run(path: Path) -> None:
    options = LoadOptions.model_validate(read_scenario(path))
    options.check()
    check_can_end(options)


def test_a_scenario_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("participant,from_s,to_s\n0,0,10\n")
    (tmp_path / "s.toml").write_text(
        'description = "all"\nclients = 30\ndrop = 0\ndeadline = 7\nresume = 3\npause = 1\nnoise = true\n'
        "crash = [4, 2]\nmax_rss = 300\nmin_share = 0.5\nmax_unplanned = 2\nnoise_within = 0.1\n"
        '[availability]\ntrace = "trace.csv"\n[cheats]\nshare = 0.1\nways = "silence+inconsistent-shares"\n'
        "[[link]]\nshare = 0.5\nloss = 0.01\n[[link]]\nshare = 0.1\nmbit_s = 2\n[[storm]]\nround = 2\n"
    )
    options = LoadOptions.model_validate(read_scenario(tmp_path / "s.toml"))
    options.check()
    assert (options.clients, options.seconds, options.kept_s, options.paused_s) == (30, 7.0, 3.0, 1.0)
    assert options.crashes == (2, 4)
    assert [link.share for link in options.links] == [0.5, 0.1]
    assert options.links[1].mbit_s == 2
    assert options.availability is not None
    assert options.availability.trace == str(tmp_path / "trace.csv")
    assert options.cheats is not None
    assert options.cheats.chosen_ways == ("silence", "inconsistent-shares")
    study = load_study(options, 8443).study
    assert (study.deadlines.resume_s, study.study.pause_s) == (3.0, 1.0)
    assert study.privacy.max_dropout == options.missing > 0.1


def test_every_option_of_the_command_has_a_name_in_a_scenario(run: Run) -> None:
    _, told, _ = run("loadtest", "--help")
    options = {name.replace("-", "_") for name in re.findall(r"^│ --([a-z0-9-]+)", told, flags=re.MULTILINE)}
    assert options - {"scenario", "out", "json", "help"} == settings_keys(LoadOptions).keys() - {"description"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cliens = 3", "cliens is not a known key. Did you mean clients?"),
        ("[stragglers]\nshar = 0.1", "stragglers.shar is not a known key. Did you mean share?"),
        ("[stragglers]\nfrom_s = 1", "stragglers.share is missing"),
        ("clients = 2.5", "clients = 2.5 should be a whole number"),
        ("[link]\nshare = 1", r"write \[\[link\]\]"),
        ('[[storm]]\nround = 1\nat = "lunch"', "should be 'between', 'advertise-keys'"),
        ('[cheats]\nshare = 0.1\nways = "silense"', "Did you mean silence?"),
        ("[[link]]\nshare = 0.1\nloss = 1.0", r"link\[0\].loss = 1.0 should be less than 1"),
        ("[availability]\nonline_s = 5", "offline_s"),
        ("[[storm]]\nround = 1\nfor_s = inf", r"storm\[0\].for_s = inf should be a finite number"),
        ("[[storm]]\nround = 1.5", r"storm\[0\].round = 1.5 should be a whole number"),
        ("deadline = nan", "deadline = nan should be a finite number"),
        ("resume = inf", "resume = inf should be a finite number"),
        ("crash = 3", r"write \[2, 4\]"),
        ("clients =", "not valid TOML"),
    ],
)
def test_a_scenario_that_cannot_be_used_is_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "s.toml").write_text(text)
    with pytest.raises(Failure, match=words) as failure:
        read_scenario(tmp_path / "s.toml")
    assert failure.value.code is ExitCode.INPUT
    assert str(tmp_path / "s.toml") in failure.value.message


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--drop", "20"), "--drop 20 is out of range. Use at least 0 and below 1, such as 0.1."),
        (("--drop", "-0.1"), "--drop -0.1 is out of range"),
        (("--drop-style", "loud"), "Use one of: disconnect, silent."),
        (("--clients", "80", "--drop", "0.9"), "8 stay, fewer than min_survivors = 41: no round can end in a sum"),
        (("--at", "lunch"), "masked-input"),
        (("--clients", "2", "--processes", "1"), "--clients"),
        (("--clients", "20", "--processes", "21"), "--processes 20"),
        (("--rounds", "3", "--min-completed", "4"), "--rounds 3"),
        (("--dim", "100", "--bits", "1"), "Use --bits 5."),
        (("--stragglers", "0.1"), "must be written name=value"),
        (("--storm", "share=0.5"), "--storm: round is missing. Add it."),
        (("--crash", "5", "--rounds", "5"), "after the last round"),
        (("--storm", "round=9"), "there is no round 9"),
        (("--storm", "round=2", "--storm", "round=2,share=0.5"), "two come at the same moment, round=2,at=between"),
        (
            ("--storm", TWICE, "--storm", "round=1,at=unmasking", "--storm", TWICE),
            f"two come at the same moment, {TWICE}",
        ),
        (("--link", "share=0.1,latency_ms=nan"), "--link: latency_ms = 'nan' should be a finite number"),
        (("--link", "share=0.1,latency_ms=inf"), "--link: latency_ms = 'inf' should be a finite number"),
        (("--storm", "round=2,for_s=inf"), "--storm: for_s = 'inf' should be a finite number"),
        (("--stragglers", "share=0.1,to_s=inf"), "--stragglers: to_s = 'inf' should be a finite number"),
        (("--availability", "online_s=nan,offline_s=1"), "--availability: online_s = 'nan' should be a finite number"),
        (("--max-p95", "inf"), "--max-p95 inf is out of range"),
        (("--noise-within", "0.1"), "add --noise"),
        (("--cheats", "share=0.45", "--drop", "0.3"), "Lower --drop or another share"),
        (("--cheats", "share=0.1,ways=foo"), "Use any, or some of unsigned-keys, wrong-lengths, "),
        (("--link", "shar=1"), "--link: shar is not a known key. Did you mean share?"),
        (("--link", "share=0.6", "--link", "share=0.6"), "more than 1 together"),
        (("--scenario", "nowhere.toml"), "nowhere.toml: there is no such file"),
    ],
)
def test_options_that_cannot_be_are_one_sentence_and_a_code(run: Run, arguments: tuple[str, ...], words: str) -> None:
    code, out, err = run("loadtest", *arguments, "--json")
    assert code == (ExitCode.INFEASIBLE if "--bits" in arguments else ExitCode.INPUT)
    assert words in " ".join(err.split())
    assert json.loads(out)["exit_code"] == code


def test_a_broken_connection_keeps_its_place_only_where_connections_break_by_themselves() -> None:
    assert LoadOptions().kept_s == 0
    assert LoadOptions(links=(Link(share=1, loss=0.1),)).kept_s == 0
    assert LoadOptions(links=(Link(share=1, resets_per_min=1),)).kept_s == 2
    assert LoadOptions(storms=(Storm(round=1),), resume_s=5).kept_s == 5
    assert LoadOptions(storms=(Storm(round=1, at="unmasking"),)).paused_s == 0
    assert LoadOptions(crashes=(1,)).paused_s == 1


# ---------------------------------------------------------------------------------- from events to figures


def test_every_dropout_has_one_cause() -> None:
    options = OPTIONS.changed(
        drop=0.0,
        seed=2,
        cheats=Cheats(share=0.05),
        links=(Link(share=0.1, resets_per_min=1),),
        stragglers=Stragglers(share=0.1, at="share-keys"),
        availability=Availability(online_s=1e9, offline_s=1.0),
    )
    outcomes = Outcomes(options, all_right)
    [cheat], linked, late = options.cheaters(), list(options.linked()), list(options.delays(1, 1))
    others = [who for who in range(20) if who not in {cheat, *linked, *late}]
    first, *rest = attempt_events(1)
    about: dict[str, Any] = {"round": 1, "attempt": 1, "phase": "ShareKeys"}
    started = PhaseStarted(**about, expected=20, needed=12, deadline_s=9.0, at=1011.0)
    feed(outcomes, all_connected(999.0), [first, started])
    outcomes.storms.append(frozenset(others[:1]))
    closed = {cheat, linked[0], late[0], *others[:3]}
    events = [
        *(dropped(who, "ShareKeys", "closed", at=1012.0) for who in closed),
        dropped(others[3], "ShareKeys", "too late", at=1012.0),
        ParticipantResumed(**about, participant=linked[1], at=1012.5),
        ParticipantExcluded(participant=cheat, reason="unsigned", at=1013.0),
    ]
    feed(outcomes, events, without(rest, *range(20)))
    figures = outcomes.figures()
    wanted = {"straggler": 1, "cheat": 1, "storm": 1, "link": 1}
    assert len({cheat, *linked, *late}) == 5  # the seed keeps them apart
    assert figures["drops"]["by_cause"] == wanted
    assert figures["drops"]["unplanned"] == 3
    told = {cause: {"ShareKeys: closed": 1} for cause in wanted}
    told["unplanned"] = {"ShareKeys: closed": 2, "ShareKeys: too late": 1}
    assert figures["drops"]["reasons_by_cause"] == figures["rounds"][0]["drop_reasons_by_cause"] == told
    assert (figures["resumed"], figures["late_answers"]) == (1, 2)
    assert figures["cheats"]["excluded"] == 1
    assert figures["cheats"]["honest_excluded"] == []
    assert figures["online"][-1]["participants"] == 20


def test_why_the_coordinator_dropped_whoever_was_not_to_leave_is_told() -> None:
    result, reasons = result_of(attempt_events(1)), [f"Unmasking: reason {number}" for number in range(1, 6)]
    closed = {"MaskedInputCollection: connection closed": 1}
    result["drops"] |= {"by_cause": {"storm": 1, "link": 1}, "unplanned": 9}
    result["drops"]["reasons_by_cause"] = {
        "storm": closed,
        "link": closed,
        "unplanned": {reasons[0]: 4, reasons[1]: 2} | dict.fromkeys(reasons[2:], 1),
    }
    text = " ".join(" ".join(final_lines(json.loads(json.dumps(result)))).split())
    assert "dropped besides: 1 was struck by a storm (MaskedInputCollection: connection closed); 1 has a bad li" in text
    told = "(4 x Unmasking: reason 1, 2 x Unmasking: reason 2, 1 x Unmasking: reason 3, 2 for other reasons)"
    assert f"9 unplanned {told}" in text
    result["drops"] |= {"by_cause": {"storm": 2, "away": 1, "cheat": 1}, "reasons_by_cause": {}}
    text = " ".join(" ".join(final_lines(result)).split())
    assert "dropped besides: 2 were struck by a storm; 1 was away; 1 cheated" in text


def test_an_honest_participant_that_is_excluded_breaks_a_bound() -> None:
    result = result_of(attempt_events(1), [ParticipantExcluded(participant=3, reason="unsigned", at=1.0)])
    assert result["broken"] == ["1 participant that didn't cheat was excluded: number 3"]


def test_rounds_are_counted_over_a_crash() -> None:
    outcomes = Outcomes(OPTIONS.changed(crashes=(1,)), all_right)
    feed(outcomes, all_connected(1.0), attempt_events(1), attempt_events(2)[:4])  # killed in the middle of round 2
    outcomes.restarted()
    assert outcomes.connected == frozenset()
    feed(outcomes, all_connected(1025.0), attempt_events(2, 2))
    ends = [(one.round, one.attempt, one.completed) for one in outcomes.rounds]
    assert ends == [(1, 1, True), (2, 1, False), (2, 2, True)]
    assert outcomes.figures()["reasons"] == {"ShareKeys: the coordinator was started again": 1}


def test_a_recovery_lasts_until_the_last_one_is_back() -> None:
    recovery, view = Recovery("storm", 1, 100.0, frozenset({1, 2}), 5.0), StudyView()
    done = []
    for event in (
        ParticipantConnected(participant=1, at=99.0),  # before it
        ParticipantLost(participant=1, at=100.1),
        ParticipantConnected(participant=1, at=101.0),
        ParticipantLost(participant=1, at=101.5),
        ParticipantResumed(round=1, attempt=1, phase="ShareKeys", participant=2, at=102.0),
        ParticipantConnected(participant=1, at=104.5),
    ):
        view.apply(event)
        done.append(recovery.look(view))
    assert done == [False] * 5 + [True]
    told = {"what": "storm", "round": 1, "struck": 2, "lost": 2, "back": 2, "seconds": 4.5, "server_cpu_s": None}
    assert recovery.to_json() | {"server_cpu_s": None} == told


def test_noise_is_held_against_its_shares_and_a_mask_is_no_noise() -> None:
    options = OPTIONS.changed(dim=4096, noise=True)
    plan = load_study(options, 8443).study.plan()
    source = np.random.default_rng(0).bytes
    total = sum(Encoder(plan, bytes(32), survivors=16).encode(None, source) for _ in range(16))
    decoded = Encoder(plan, bytes(32)).decode(total & ((1 << plan.bits) - 1), 16).mean * 16
    seen = noise_in(plan, 1, 16, 16, decoded)
    assert seen.fits
    assert abs(seen.ratio - 1) < 4 * seen.ratio_stderr
    assert seen.expected_stddev < plan.local_stddev * 4
    assert seen.h == 16 - plan.colluders
    assert not noise_in(plan, 1, 16, 16, decoded * 1.1).fits  # a share too many, twice over
    masked = np.random.default_rng(1).integers(0, 1 << plan.bits, plan.padded_dim).astype(total.dtype)
    assert noise_in(plan, 1, 16, 16, Encoder(plan, bytes(32)).decode(masked, 16).mean * 16).ratio > 2


GREW = dict.fromkeys(GROWTH, (100, 109))


@pytest.mark.parametrize(
    ("bound", "figures", "words"),
    [
        ({"max_p95_s": 4}, {"round_s": {"p95": 4.5}}, "the p95 round took 4.5 s, --max-p95 allows 4 s"),
        ({"max_p95_s": 4}, {"round_s": {"p95": None}}, "--max-p95 asks for rounds of at most 4 s, and no round was c"),
        ({"min_completed": 3}, {"rounds_completed": 2}, "2 of 3 rounds completed, --min-completed asks for 3"),
        ({"max_rss_mb": 100}, {"server_peak_rss_mb": 123.4}, "--max-rss allows 100 MB"),
        ({"min_share": 0.9}, {"rounds_completed": 2}, "--min-share asks for 90 %"),
        ({"max_unplanned": 0}, {}, "--max-unplanned allows 0"),
        (
            {"kills": 9, "min_resumed": 0.8},
            {"kills": {"attempts_hit": 5, "attempts_resumed": 3}},
            "3 of 5 attempts that were cut off ended in a sum, --min-resumed asks for 80 %",
        ),
        ({"noise_within": 0.01}, {"noise": {"ratio": 1.02, "ratio_stderr": 0.001}}, "1.02 times what was planned"),
        (
            {"max_growth": 0.1},
            {"growth": GREW | {"server_files": (40, 45)}},
            "its open files grew from 40 to 45, --max-growth allows 10 %",
        ),
        ({"noise_within": 0.01}, {"noise": None}, "no round was completed"),
        ({}, {"ledger_error": "row 3 was changed"}, "row 3 was changed"),
    ],
)
def test_each_bound_is_one_sentence(bound: dict[str, Any], figures: dict[str, Any], words: str) -> None:
    options, result = OPTIONS.changed(**bound), result_of(attempt_events(1)) | figures
    result["drops"]["unplanned"] = 1
    [sentence] = broken_bounds(result, options)
    assert words in sentence
    result |= {"rounds_completed": 3, "round_s": {"p95": 4.0}, "server_peak_rss_mb": 90.0, "ledger_error": ""}
    result |= {"noise": {"ratio": 1.001, "ratio_stderr": 0.001}}
    result |= {"kills": {"attempts_hit": 5, "attempts_resumed": 4}, "growth": GREW}
    result["drops"]["unplanned"] = 0
    assert broken_bounds(result, options) == []


def test_the_last_lines_tell_of_every_fault() -> None:
    result = result_of(attempt_events(1))
    recovery = Recovery("crash", 1, 1.0, frozenset({1}), 0.0).to_json() | {"seconds": 2.0, "server_cpu_s": 1.0}
    storm = recovery | {"what": "storm", "seconds": None}
    result["disturbances"] = [recovery, storm | {"lost": 1}, storm | {"round": 2}]
    result["noise"] = {"ratio": 1.0, "ratio_stderr": 0.01, "honest_over_needed": [1.0, 1.1, 1.2]}
    result["late_answers"], result["resumed"] = 7, 5
    result["drops"]["by_cause"] = {"link": 2}
    result["cheats"] |= {"participants": 2, "by_way": {"silence": {"participants": 2, "excluded": 0}}}
    says(
        " ".join(" ".join(final_lines(json.loads(json.dumps(result)))).split()),
        "late answers 7",
        "5 broke and went on",
        "crash round 1: 1 connected, 0 lost, all back after 2.0 s",
        "storm round 1: 1 connected, 1 lost, 0 of them came back",
        "storm round 2: 1 connected, 0 lost: no connection broke over it",
        "2 have a bad link",
        "cheats 2, of them 0 excluded",
        "noise 1.0000 times",
        "ledger 3 rows, verified",
    )


# ---------------------------------------------------------------------------------- storms and rosters of a process


THREE = (Storm(round=1), Storm(round=2, at="unmasking"), Storm(round=2, for_s=0.01))


def test_storms_due_together_come_one_by_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A round may begin and end between two looks at the journal; the coordinator isn't killed before all have come."""
    options = OPTIONS.changed(rounds=2, storms=(Storm(round=1), Storm(round=1, at="unmasking")), crashes=(1,))
    batches: list[list[Event]] = [attempt_events(1), [], [], attempt_events(2)]
    came: list[str] = []

    def read(path: Path, after: int = 0) -> list[Event]:
        came.append("look")
        return batches.pop(0)

    monkeypatch.setattr(server.journal, "read_events", read)
    monkeypatch.setattr(run_module, "strike", lambda *_: came.append("storm"))
    monkeypatch.setattr(run_module.LoadTest, "_crash", lambda test: came.append(f"crash {test._crashes.pop(0)}"))
    study: Any = SimpleNamespace(directory=tmp_path)
    coordinator: Any = SimpleNamespace(running=True, measure=lambda: None, cpu_s=0.0, below_cpu_s=0.0, peak_mb=0.0)
    test = run_module.LoadTest(options, study, lambda line: None, False)
    test.coordinator = coordinator
    test.outcomes = Outcomes(options, all_right)
    test._follow()
    assert came == ["look", "storm", "look", "storm", "crash 1", "look", "look"]
    assert [one.what for one in test.recoveries] == ["storm", "storm"]


def group(study: Path) -> tuple[ParticipantGroup, Mock]:
    """Three participants behind one proxy, which only notes what is done to it."""
    (study / "roster.json").write_text(json.dumps({"participants": []}))
    settings: Any = SimpleNamespace(
        host=SimpleNamespace(journal=study / "hosts" / "host-01" / "journal.sqlite"),
        participants=(),
        coordinator=SimpleNamespace(address="localhost:1"),
    )
    nothing: Any = None
    made = ParticipantGroup(settings, nothing, nothing, LoadOptions(clients=3, storms=THREE))
    made._proxies = {0: (proxy := Mock(close=AsyncMock()))}
    return made, proxy


def done(proxy: Mock) -> list[str]:
    return [name for name, *_ in proxy.method_calls]


async def test_signals_that_came_as_one_bring_all_their_storms(tmp_path: Path) -> None:
    here, proxy = group(tmp_path)
    here._strike()  # of nobody's making
    assert done(proxy) == []
    strike(tmp_path, [])
    here._strike()
    assert done(proxy) == ["reset_all"]
    strike(tmp_path, [])
    strike(tmp_path, [])
    here._strike()
    assert done(proxy) == ["reset_all", "reset_all", "cut"]
    here._strike()
    await asyncio.sleep(0.1)
    assert done(proxy) == ["reset_all", "reset_all", "cut", "restore"]
    assert storms_come(tmp_path) == 3


async def test_a_storm_before_anyone_connects_is_over(tmp_path: Path) -> None:
    here, proxy = group(tmp_path)
    strike(tmp_path, [])  # its signal was let go
    await here.stay()
    strike(tmp_path, [])
    strike(tmp_path, [])
    proxy.reset_mock()
    signal.raise_signal(signal.SIGUSR1)
    async with asyncio.timeout(10):
        while "restore" not in done(proxy):
            await asyncio.sleep(0.01)
    assert done(proxy) == ["reset_all", "cut", "restore"]


def test_a_process_holds_one_roster_if_it_verifies_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each participant that fetches it gets another object, with the same digest."""
    made: list[Any] = []
    monkeypatch.setattr(SharedRoster, "of", lambda roster: made.append(roster) or roster)
    (here, _), fetched = group(tmp_path), [Mock(digest=lambda: bytes(32)) for _ in range(3)]
    kept = [here._keep_roster(one) for one in fetched]
    assert made == fetched[:1]
    assert all(one is fetched[0] for one in kept)
