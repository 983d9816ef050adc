"""The data of participants: only their own rows, of a set, a published file or their own file; and its name."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import structlog
from PIL import Image

import client.held_data
import server.study_file
from authority.new_study import make_local_study, new_study
from client.held_data import check_forms, data_name, held_data, user_data_name
from client.host_file import load
from client.participant_host import join
from client.settings import Data, HostedParticipant, HostSettings
from learning.blocks import Block, Blocks, DatasetError
from learning.datasets import dataset_identity
from learning.make_task import make_task
from learning.own_data import read_held
from learning.prepared_data import write_prepared
from runtime.failure import Failure
from secagg.keys import IdentityKey
from tests.client import policies
from tests.support.host_in_process import Play
from tests.support.study_in_process import PARTICIPANTS, make_folder

USERS = 9
SUBSET = "fashion-mnist-subset"


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A prepared set `tables`: nine users with three features, two classes."""
    rng = np.random.default_rng(3)

    def blocks(first: int, users: int) -> Iterator[Block]:
        for user in range(first, first + users):
            features = rng.normal(size=(40, 3)).astype(np.float32)
            features[:, 2] = user / 64
            yield Block.of(features, (features[:, 0] > 0).astype(np.int64), f"user {user}")

    monkeypatch.setenv("SORDINO_DATA_FOLDER", str(tmp_path / "sets"))
    held = {"train": list(blocks(0, USERS)), "test": list(blocks(50, 2))}
    parts: Any = {part: lambda found=found: iter(found) for part, found in held.items()}
    return write_prepared(tmp_path / "sets" / "tables", Blocks(parts, ""), {"title": "Tables"}).folder


def hosting(data: Data, *participants: HostedParticipant) -> HostSettings:
    return replace(policies.settings(), data=data, participants=participants)


def parts(*numbers: int) -> tuple[HostedParticipant, ...]:
    return tuple(HostedParticipant(Path(f"{number}.key"), number) for number in numbers)


def test_natural_parts_are_whole_users(tables: Path) -> None:
    held = held_data(hosting(Data("tables", "natural", 1.0, 1, USERS), *parts(4, 0)))
    assert [set(examples.features[:, 2]) for examples, _ in held] == [{4 / 64}, {0.0}]
    assert {len(examples) for examples, _ in held} == {40}
    identity = dataset_identity("tables")
    assert [name for _, name in held] == [user_data_name(identity, 4), user_data_name(identity, 0)]


def test_a_user_keeps_the_name_in_every_cut(tables: Path) -> None:
    """Five of nine users under another seed: each keeps its name."""
    by_user = {
        examples.features[0, 2]: name
        for examples, name in held_data(hosting(Data("tables", "natural", 1.0, 1, USERS), *parts(*range(USERS))))
    }
    for seed in (2, 3):
        for examples, name in held_data(hosting(Data("tables", "natural", 1.0, seed, 5), *parts(*range(5)))):
            assert by_user[examples.features[0, 2]] == name
    assert len(set(by_user.values())) == USERS


def test_names_of_cut_sets_stay_as_they_are() -> None:
    """Ledgers hold them: a change here would make known data look new."""
    known = {
        Data(SUBSET, "iid", 1.0, 1, 10): "5143b47b3160c3707a2effd7ece58447e3226fbc8911fb57d420f62ead96ea11",
        Data(SUBSET, "dirichlet", 0.5, 7, 100): "76c11ccd2cbc635c17c63820b6b538f94fe2a6266e1c3f5c44e491729a13645a",
        Data(SUBSET, "shards", 1.0, 1, 10, 2): "eec81be13c5c15b5f0871558cbb7040f7b8b0ad2a6930dbb26176c72f6707797",
    }
    assert {data: data_name(data, 3) for data in known} == known
    assert data_name(Data(SUBSET, "iid", 9.0, 1, 10, 5), 3) == known[Data(SUBSET, "iid", 1.0, 1, 10)]
    names = {data_name(Data(SUBSET, "shards", 1.0, 1, 10, shards), 3) for shards in (1, 2, 3)}
    assert len(names) == 3


def test_a_prepared_set_is_known_by_its_content(tables: Path) -> None:
    data = Data("tables", "iid", 1.0, 1, 5)
    first = data_name(data, 0)
    rows = Block.of(np.ones((60, 3), np.float32), np.zeros(60, np.int64))
    write_prepared(tables, Blocks({"train": lambda: iter([rows])}, ""), {"title": "Other tables"})
    assert data_name(data, 0) != first


def own(tmp_path: Path, *contents: str) -> tuple[HostedParticipant, ...]:
    found = []
    for number, content in enumerate(contents):
        file = tmp_path / f"{number}.csv"
        file.write_text(content)
        found.append(HostedParticipant(Path(f"{number}.key"), None, file))
    return tuple(found)


OWN = Data("own", "dirichlet", 1.0, 1, 0)


def test_own_files_are_held_whole_and_known_by_their_content(tmp_path: Path) -> None:
    participants = own(tmp_path, "a,label\n1,0\n2,1\n", "a,label\n3,0\n")
    (one, first), (other, second) = held_data(hosting(OWN, *participants))
    assert (len(one), len(other)) == (2, 1)
    assert first != second
    elsewhere = tmp_path / "moved.csv"
    elsewhere.write_text("a,label\n1,0\n2,1\n")
    assert held_data(hosting(OWN, HostedParticipant(Path("new.key"), None, elsewhere)))[0][1] == first
    with pytest.raises(DatasetError, match="each participant names a file"):
        held_data(hosting(OWN, *parts(0)))


def test_equal_files_keep_no_participant_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the host takes part would be an answer about two people's values, without noise or a charge."""
    monkeypatch.setattr(client.held_data, "load_identity", lambda key: Mock(public=str(key).encode()))
    participants = own(tmp_path, "hiv\n1\n", "hiv\n0\n", "hiv\n1\n")
    with structlog.testing.capture_logs() as logs:
        (_, first), (_, second), (_, third) = held_data(hosting(OWN, *participants))
    assert len({first, second, third}) == 3
    [warning] = [line for line in logs if line["log_level"] == "warning"]
    assert warning["file"].endswith("2.csv")
    assert held_data(hosting(OWN, *own(tmp_path, "hiv\n1\n")))[0][1] == first


WRONG_FORMS = [
    ("mean", {"column": 3}, "there is no column 3: the examples have 3. Its columns are 0 age, 1 pulse, 2 lable; and"),
    ("mean", {"column": "pulze"}, "there is no column called pulze. Its columns are 0 age, 1 pulse, 2 lable"),
    ("histogram", {}, "there is no column label. Its columns are 0 age, 1 pulse, 2 lable; and none is called label"),
    ("softmax-regression", {"features": 2, "classes": 2}, "there is no label, which it learns. Its"),
    ("votes", {"of": "mlp", "features": 3}, "there is no label, which it learns. Its columns are"),
]


@pytest.mark.parametrize(("name", "options", "told"), WRONG_FORMS)
def test_a_file_of_another_form_stops_before_sending(
    name: str, options: dict[str, Any], told: str, tmp_path: Path
) -> None:
    """Otherwise it would take part with zeros, charged, which only its own log would say."""
    task = make_task(name, options)
    held = []
    for content in ("age,pulse,lable\n41,70,1\n", "age,pulse,lable\n"):  # what stands in it makes no difference
        configuration = hosting(OWN, *own(tmp_path, content))
        data = read_held(configuration.participants[0].data, "mean")  # type: ignore[arg-type]
        with pytest.raises(DatasetError) as refused:
            check_forms(configuration, [(data, "name")], task)
        assert f"0.csv doesn't fit the study's task {name}: {told}" in str(refused.value)
        held.append(str(refused.value))
    assert held[0] == held[1]


VALUES = [
    (
        "mean",
        {"column": "pulse"},
        "age,pulse\n{}\n",
        ("1,2", "1e30,", ",-7", "1,>1000000", "inf,3", "1e39,x", "M,1,2", ""),
    ),
    ("mean", {"column": "age"}, "age,label\n1,0\n{}\n", ("1,2", "1,", "1,0.5", "1,old", "1,1e99")),
    ("histogram", {"bins": 2}, "age,label\n{}\n2,77\n", ("1,-5", "1,0.5", "1,", "1,x")),
    (
        "softmax-regression",
        {"features": 1, "classes": 2},
        "age,label\n{}\n",
        ("1,-5", "1,77", "1,0.5", "1,", "x,1", "inf,1", "1e39,1", "1,2,3", ""),
    ),
]


@pytest.mark.parametrize(("name", "options", "file", "rows"), VALUES)
def test_values_never_decide_who_joins(
    name: str,
    options: dict[str, Any],
    file: str,
    rows: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At every start of a host; `tests/client/joining/test_joining.py` has the same for a code."""
    monkeypatch.setattr("client.held_data.load_identity", lambda _: IdentityKey.generate(os.urandom))
    for row in rows:
        configuration = hosting(OWN, *own(tmp_path, file.format(row)))
        configuration = replace(configuration, study=replace(configuration.study, task=name))
        check_forms(configuration, held_data(configuration), make_task(name, options))


def test_unusable_values_are_reported_only_locally(tmp_path: Path) -> None:
    """By file, column and count, in the log: no cell is written anywhere."""
    configuration = hosting(OWN, *own(tmp_path, "age,pulse\n41,>1000000\n42,70\n43,inf\n"))
    configuration = replace(configuration, study=replace(configuration.study, task="mean"))
    with structlog.testing.capture_logs() as logged:
        check_forms(configuration, held_data(configuration), make_task("mean", {"column": "pulse"}))
    [one] = logged
    assert one["log_level"] == "warning"
    assert re.search(r"0\.csv: no number can be read in column pulse \(2 cells\)", one["event"])
    assert "1000000" not in str(logged)


def test_a_host_does_not_start_with_a_file_of_another_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"column": "pulse", "low": 0.0, "high": 200.0}
    folder = make_folder(tmp_path / "study", dataset="own", task="mean", clip=None, task_options=options)
    home = folder / "hosts" / "host-01"
    for number in range(PARTICIPANTS):
        name = "puls" if number == 2 else "pulse"
        (home / "data" / f"participant-{number + 1:03}.csv").write_text(f"age,{name}\n{40 + number},70\n")

    def connected(*_: object) -> None:
        raise AssertionError("the coordinator was asked")

    monkeypatch.setattr("client.participant_host.Channels", connected)
    with pytest.raises(Failure, match=r"participant-003.* no column called pulse\. .* are 0 age, 1 puls;") as no:
        join(load(home).settings())
    assert no.value.code == 2


# ------------------------------------------------------------------------------------- over real gRPC


def test_a_study_over_natural_users(tables: Path, tmp_path: Path, played: Play) -> None:
    options = {"features": 3, "classes": 2}
    folder = make_folder(tmp_path / "study", dataset="tables", partition="natural", task_options=options)
    story = played(folder=folder)
    assert story.ended == 0
    assert (
        story.of("round_completed")[-1]["accuracy"] > 0.8
    )  # of the two held-out users; noise hardly shows at epsilon 1000
    names = {row.data for row in story.rows() if hasattr(row, "data")}
    assert len(names) == PARTICIPANTS
    assert names <= {user_data_name(dataset_identity("tables"), user) for user in range(USERS)}


@pytest.mark.parametrize("evaluated", [True, False])
def test_a_study_over_files_of_their_own(evaluated: bool, tmp_path: Path, played: Play) -> None:
    rng = np.random.default_rng(5)
    test = ""
    if evaluated:
        features = rng.normal(size=(100, 3))
        np.savez(tmp_path / "test.npz", features=features, labels=(features[:, 0] > 0).astype(int))
        test = str(tmp_path / "test.npz")
    options = {"features": 3, "classes": 2}
    folder = make_folder(tmp_path / "study", dataset="own", test=test, task_options=options)
    home = folder / "hosts" / "host-01"
    for number in range(PARTICIPANTS):
        features = rng.normal(size=(40, 3))
        labels = (features[:, 0] > 0).astype(int)
        np.savez(home / "data" / f"participant-{number + 1:03}.npz", features=features, labels=labels)
    story = played(folder=folder)
    assert story.ended == 0
    accuracy = story.of("round_completed")[-1]["accuracy"]
    assert accuracy is None if not evaluated else accuracy > 0.8
    [started] = story.of("study_started")
    assert (started["dataset"], started["partition"]) == ("own", {})


def test_files_without_rows_have_different_names(tmp_path: Path, played: Play) -> None:
    """Under one name their charges would add up, and only they would refuse before the last round: all could see it."""
    options = {"low": 0.0, "high": 12.0}
    folder = make_folder(tmp_path / "study", dataset="own", task="mean", clip=None, task_options=options, rounds=3)
    home = folder / "hosts" / "host-01"
    for number in range(PARTICIPANTS):
        rows = np.full((number // 3, 1), 5.0 + number, np.float32)  # three have none
        np.savez(home / "data" / f"participant-{number + 1:03}.npz", features=rows)
    names = [name for _, name in held_data(load(home).settings())]
    assert len(set(names)) == PARTICIPANTS
    assert names == [name for _, name in held_data(load(home).settings())]
    story = played(folder=folder)
    assert story.ended == 0
    assert story.refusals == []
    assert [len(event["survivors"]) for event in story.of("round_completed")] == [PARTICIPANTS] * 3


def test_a_study_over_a_folder_with_a_subfolder_of_images_for_each(tmp_path: Path, played: Play) -> None:
    rng = np.random.default_rng(5)
    for place in (*(f"files/ward-{number}" for number in range(PARTICIPANTS)), "test"):
        for number in range(20):
            file = tmp_path / place / str(number % 2) / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(100 * (number % 2), 156 + 100 * (number % 2), (4, 4), dtype=np.uint8)).save(
                file
            )
    options = {"side": 4, "classes": 2, "pooling": 2, "local_epochs": 10}
    made = {"dataset": "own", "data": tmp_path / "files", "test": str(tmp_path / "test"), "task_options": options}
    folder = make_folder(tmp_path / "study", **made)
    home = folder / "hosts" / "host-01"
    assert [one.data for one in load(home).participants] == sorted((tmp_path / "files").iterdir())
    assert not (home / "data").exists()
    story = played(folder=folder)
    assert story.ended == 0
    assert story.of("round_completed")[-1]["accuracy"] > 0.8
    with pytest.raises(DatasetError, match="files holds 7 files for 6 participants: one file, one participant"):
        make_local_study(tmp_path / "other", new_study(**made, participants=6, hosts=1, name="other"))


def test_host_toml_names_the_files_to_be_put_there(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "study", dataset="own", task_options={"features": 3})
    host = load(folder / "hosts" / "host-01")
    assert [one.data for one in host.participants] == [
        folder / "hosts" / "host-01" / "data" / f"participant-{number:03}" for number in range(1, 8)
    ]
    assert (folder / "hosts" / "host-01" / "data").is_dir()
    told = tomllib.loads((folder / "study.toml").read_text())["data"]
    assert told == {"dataset": "own", "test": "", "start": ""}
    assert server.study_file.load(folder).data.test == ""
    with pytest.raises(
        DatasetError,
        match=r"no data file .*participant-001\.csv, nor participant-001\.npz, participant-001\.parquet: put one",
    ):
        held_data(host.settings())
