"""Kinds of studies over real gRPC: clips that adapt travel with the model, sketches, and a curious coordinator."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest

from client.host_file import load
from mechanisms.clip_rule import GEOMETRIC, ClipRule
from server.study_file import load as load_study
from tests.client.conftest import refused
from tests.support.host_in_process import Play
from tests.support.study_in_process import PARTICIPANTS, make_folder
from wire.records.ledger_rows import CHARGE, EXACT
from wire.round_model import model_bytes, model_sha256, read_model, write_model

# With bits as heavy as they may be an estimate's standard error is 0.03 at most: tolerances of 0.25 are eight of them.
ADAPTIVE = {
    "clip_update": "geometric",
    "clip_by_layer": True,
    "clip_scaling": "proportional",
    "clip": 50.0,
    "clip_bit_weight": 1.0,
}


@pytest.mark.parametrize("mechanism", ["ddgauss", "skellam", "gaussian"])
@pytest.mark.long
def test_clips_move_inside_the_sum(mechanism: str, played: Play) -> None:
    """Both layers' norms lie far below 50 / sqrt(2), and every estimate says so: epsilon 1000 adds hardly any noise."""
    story = played(made={"mechanism": mechanism} | ADAPTIVE)
    assert story.ended == 0
    assert story.refusals == []
    first, second = story.of("round_completed")
    assert first["clips"] == [50 / math.sqrt(2)] * 2
    assert first["below_clip"] == pytest.approx([1.0, 1.0], abs=0.25)
    assert first["next_clips"] == second["clips"]
    shares = zip(first["clips"], first["below_clip"], strict=True)
    assert second["clips"] == pytest.approx([clip * math.exp(-0.3 * (share - 0.5)) for clip, share in shares])
    assert all(0 <= event["wrapped_share"] < 1e-3 for event in (first, second))
    # The host logs once what it takes part in: the price, the adjacency, and whom it has to trust.
    [accepted] = [entry for entry in story.logs if entry["event"] == "study accepted"]
    assert (accepted["mechanism"], accepted["epsilon"], accepted["adjacency"]) == (mechanism, 1000.0, "zero-out")
    assert accepted["trusts"] == ("the coordinator" if mechanism == "gaussian" else "nobody alone")
    assert {"delta", "rounds", "A", "h_min"} <= set(accepted)


@pytest.mark.long
def test_a_sketch_is_sent_in_place_of_the_update(tmp_path: Path, played: Play) -> None:
    story = played(made={"sketch_rows": 3, "sketch_ratio": 4.0, "clip": 5.0})
    assert story.ended == 0
    assert story.refusals == []
    assert len(story.of("round_completed")) == 2
    full = played(work=tmp_path / "full")
    assert story.of("round_completed")[0]["vector_bytes"] < full.of("round_completed")[0]["vector_bytes"] / 3.5


def test_the_document_of_a_round_holds_clips_only_where_they_adapt() -> None:
    vector = np.arange(6, dtype=np.float32)
    fixed = ClipRule.flat(6, 2.0)
    assert write_model(vector, (2.0,), fixed) == vector.astype("<f4").tobytes()
    assert read_model(vector.tobytes(), 6, fixed).clips == (2.0,)
    moving = ClipRule(layers=(4, 2), clips=(1.0, 2.0), update=GEOMETRIC, quantile=0.5, rate=0.2, bit_weight=0.2)
    data = write_model(vector, (0.1, 0.3), moving)
    assert model_sha256(vector, (0.1, 0.3), moving) == hashlib.sha256(data).digest()
    assert len(data) == model_bytes(6, moving) == 40
    again = read_model(data, 6, moving)
    assert again.clips == (0.1, 0.3)
    assert np.array_equal(again.vector, vector)
    with pytest.raises(ValueError, match="clip"):
        write_model(vector, (0.1, -0.3), moving)
    for bad in (data[:-1], data + b"\0", data[:-8], data[:-16], data + bytes(8)):
        with pytest.raises(ValueError, match="bytes"):
            read_model(bad, 6, moving)
    # Nothing is trained under invalid clips: with a NaN every comparison is false, and every bit the same.
    for clips in ((0.1, math.nan), (math.inf, 0.1), (0.0, 0.1), (-1.0, 0.1)):
        with pytest.raises(ValueError, match="clip"):
            read_model(vector.astype("<f4").tobytes() + np.array(clips, "<f8").tobytes(), 6, moving)


def test_nothing_about_a_sum_without_noise_is_published(tmp_path: Path, played: Play) -> None:
    """Under "gaussian" the coordinator sees it; events and reports must not pass on a digest or an estimate from it."""
    told = {}
    for mechanism in ("gaussian", "skellam"):
        # Noise that is large against the updates: an estimate from the bare sum would say next to nothing wraps.
        made = {"mechanism": mechanism, "epsilon": 1.0, "bits": 16, "k_stddevs": 2.0}
        told[mechanism] = played(work=tmp_path / mechanism, made=made).of("round_completed")[0]
        # An estimate from 512 values has a standard error of 1 / sqrt(2 * 512), 3 % of the deviation; five of them on
        # either side. The deviation is that of the noise at least, and what the plan leaves room for at most.
        plan = load_study(tmp_path / mechanism / "study").plan(7)
        half, error = 2.0 ** (plan.bits - 1), 5 / math.sqrt(2 * plan.padded_dim)
        seen = half / NormalDist().inv_cdf(1 - told[mechanism]["wrapped_share"] / 2)
        assert (1 - error) * plan.full_stddev / plan.granularity < seen < (1 + error) * half / plan.k_stddevs
    assert told["gaussian"]["sum_sha256"] is None
    assert len(told["skellam"]["sum_sha256"]) == 64


# ---------------------------------------------------------------- a study for a curious coordinator

# Participants join it only if their policy accepts that, and then reveal shares for the survivors that the coordinator
# names, without signatures.


@pytest.fixture(scope="module")
def curious_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("studies") / "curious", adversary="curious")


def test_a_default_policy_refuses_it(curious_folder: Path, played: Play) -> None:
    """Only folders that ``init`` makes accept it, since the owner of the study makes them."""
    assert load(curious_folder / "hosts" / "host-01").settings().policy.curious_coordinator
    story = played(folder=curious_folder, policy={"curious_coordinator": False})
    refused(story, "curious-coordinator: no participant would sign whose updates are in a sum")


def test_a_whole_study(curious_folder: Path, tmp_path: Path, played: Play) -> None:
    story = played(folder=curious_folder)
    assert story.ended == 0
    assert story.kinds() == {"advertise_keys", "share_keys", "masked_input", "upload", "unmasking"}
    done = story.of("round_completed")
    assert [(event["u1"], event["u3"]) for event in done] == [(PARTICIPANTS, PARTICIPANTS)] * 2
    phases = {event["phase"] for event in story.of("phase_started")}
    assert phases == {"AdvertiseKeys", "ShareKeys", "MaskedInputCollection", "Unmasking"}
    [accepted] = [entry for entry in story.logs if entry["event"] == "study accepted"]
    assert (accepted["trusts"], accepted["adversary"]) == ("the coordinator, to follow the protocol", "curious")
    kinds = [row.kind for row in story.rows()]
    assert kinds.count(CHARGE) == kinds.count(EXACT) == 2 * PARTICIPANTS
    assert not (tmp_path / "transcripts").exists()
