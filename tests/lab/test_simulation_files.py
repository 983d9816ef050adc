"""What a simulation leaves behind: its file, and how it goes on from it."""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import save_file

from learning.tasks.softmax_regression import SoftmaxRegression
from sordino import SimulationSettings, simulate_study, simulated_study
from sordino.lab.simulation.record import Record
from sordino.lab.simulation.rounds import Rounds
from sordino.lab.simulation.run import configuration_of
from sordino.lab.simulation.settings import SimulationError
from tests.lab.small_simulation import NOISY, QUIET, changed, same
from wire.ending import BUDGET_REACHED, ROUNDS_DONE

OWN = """from learning.tasks.mlp import Mlp


class Own(Mlp):
    \"\"\"An own class.\"\"\"
"""


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "run.jsonl"


def interrupted(round_: int, settings: SimulationSettings, file: Path, **more: Any) -> None:
    """A run that Ctrl-C ends after this round."""

    def on_row(row: dict[str, Any]) -> None:
        if row["round"] == round_:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate_study(settings, output=file, on_row=on_row, **more)


def test_the_file_says_everything(tmp_path: Path, file: Path) -> None:
    found = simulate_study(NOISY, output=file)
    first, *rows, last = lines_of(file)
    assert (first["kind"], last["kind"]) == ("configuration", "summary")
    assert (first["settings"]["study"]["participants"], first["settings"]["seed"]) == (40, 1)
    assert first["plan"] == json.loads(json.dumps(found.configuration["plan"]))
    assert {"python", "sordino", "numpy"} <= set(first["versions"])
    assert first["secure_aggregation"] == "replaced by its ideal sum"
    unknown = ["update_norms", "exactly_below_clip", "diverged", "beyond_bounds", "of_each"]
    assert first["never_known_to_a_real_study"] == unknown
    assert [row["round"] for row in rows] == [1, 2, 3, 4]
    for row in rows:
        assert set(row) == {
            *("kind", "round", "attempt", "participants", "survivors", "accuracy", "loss", "figures", "reported"),
            *("released", "clips", "next_clips", "below_clip", "epsilon_coordinator", "epsilon_released"),
            "wrapped_share",
            *("update_norms", "exactly_below_clip", "diverged", "seconds", "wall_s"),
        }
        assert set(row["seconds"]) == {"training", "encoding", "aggregation", "evaluation", "accounting"}
        assert list(row["update_norms"]) == ["0", "0.1", "0.25", "0.5", "0.75", "0.9", "1"]
    assert (last["outcome"], last["rounds_completed"]) == ("rounds done", 4)
    assert last["epsilon_coordinator"] == rows[-1]["epsilon_coordinator"]
    quiet = tmp_path / "quiet.jsonl"
    simulate_study(QUIET, output=quiet)
    first, *_, last = lines_of(quiet)
    assert (first["private"], last["epsilon_coordinator"]) == (False, None)
    assert (first["guarantee"], last["guarantee"]) == (None, None)


@pytest.mark.parametrize(("task", "counts"), [("softmax-regression", False), ("mlp", False), ("cnn", True)])
def test_torchs_version_is_told_where_it_computes(task: str, counts: bool) -> None:
    if counts:
        pytest.importorskip("torch")
    configuration = configuration_of(Rounds(changed(QUIET, task=task)))
    assert ("torch" in configuration["versions"]) == counts


@pytest.mark.parametrize("torn", [False, True])
def test_it_goes_on_as_if_it_had_not_stopped(file: Path, torn: bool) -> None:
    """Without noise to the last bit, and with clips, momentum and dropouts; whatever the last line looks like."""
    settings = changed(QUIET, rounds=6, clip_update="geometric", server_optimizer="fedadam", server_rate=0.1)
    whole = simulate_study(settings)
    for last in (2, 3):
        interrupted(last, settings, file)
        if torn:  # a row whose round no checkpoint holds, and one that was cut off
            with file.open("a") as end:
                end.write(json.dumps({"kind": "round", "round": last + 1, "attempt": 1}) + '\n{"kind": "rou')
    found = simulate_study(settings, output=file)
    assert same(found.parameters, whole.parameters)
    for name in ("round", "survivors", "clips", "accuracy", "update_norms"):
        assert [row[name] for row in found.rows] == [row[name] for row in whole.rows], name
    kinds = [row["kind"] for row in lines_of(file)]
    assert kinds == ["configuration", "round", "round", "resumed", "round", "resumed", *["round"] * 3, "summary"]
    assert found.summary["times_resumed"] == 2
    before = file.read_bytes()
    assert simulate_study(settings, output=file).summary == found.summary
    assert file.read_bytes() == before


def test_a_second_interrupt_does_not_cost_the_checkpoint(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pressed once more while the first one is dealt with; and while the checkpoint is written, when nobody listens."""
    pressed = []
    write = Record.save
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background jobs

    def pressed_again(kept: Record, saved: Any) -> None:
        pressed.append(signal.getsignal(signal.SIGINT))
        if len(pressed) == 1:
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)
        write(kept, saved)

    monkeypatch.setattr(Record, "save", pressed_again)
    interrupted(2, QUIET, file)
    assert pressed == [signal.SIG_IGN] * 2
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler
    monkeypatch.setattr(Record, "save", write)
    assert same(simulate_study(QUIET, output=file).parameters, simulate_study(QUIET).parameters)
    assert [row["round"] for row in lines_of(file) if row["kind"] == "resumed"] == [2]


def test_what_was_spent_before_a_stop_stays_spent(file: Path) -> None:
    interrupted(3, NOISY, file)
    found, whole = simulate_study(NOISY, output=file), simulate_study(NOISY)
    assert [row["epsilon_coordinator"] for row in found.rows] == [row["epsilon_coordinator"] for row in whole.rows]


def test_a_killed_simulation_pays_for_what_its_file_showed(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds after the last checkpoint are played again; their sums were opened, and epsilon counts both."""
    room = {"rounds": 8, "max_dropout": 0.45, "noise_parts": 0}  # spends less than planned
    settings = changed(NOISY, **room).changed(drop=0.0)
    with monkeypatch.context() as patched:
        patched.setattr("sordino.lab.simulation.run._keep", lambda kept, saved: None)  # as by SIGKILL
        for last in (1, 1, 3):  # 1 and 1 without a checkpoint; then 1, 2, the checkpoint of 2, and 3
            interrupted(last, settings, file, checkpoint_every=2)
    found = simulate_study(settings, output=file, checkpoint_every=2)
    assert found.summary["outcome"] == ROUNDS_DONE
    dropped = [row["charges"] for row in lines_of(file) if row["kind"] == "resumed"]
    assert dropped == [[[1, 1]], [[1, 1]], [[3, 1]]]
    assert found.summary["sums_dropped"] == 3

    rounds = Rounds(settings)
    for row, times in zip(found.rows, (3, 1, 2, 1, 1, 1, 1, 1), strict=True):
        rounds.charge_again([(row["round"], 1)] * times)
        assert row["epsilon_coordinator"] == pytest.approx(rounds.epsilons()["epsilon_coordinator"], rel=1e-9)
    assert found.summary["epsilon_coordinator"] == found.rows[-1]["epsilon_coordinator"]
    assert found.summary["epsilon_coordinator"] > 1.1 * simulate_study(settings).summary["epsilon_coordinator"]


@pytest.mark.parametrize(("sampling", "mechanism"), [("poisson", "gaussian"), ("lottery", "ddgauss")])
def test_a_round_that_is_repeated_is_no_longer_amplified(
    sampling: str, mechanism: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the cohort that it had. As one more round by fresh coins it would cost a fraction of what it does."""
    drawn = {"participants": 400, "cohort": 40, "sampling": sampling, "mechanism": mechanism, "rounds": 5}
    settings = changed(NOISY.changed(drop=0.0), max_dropout=0.1, **drawn)
    with monkeypatch.context() as patched:
        patched.setattr("sordino.lab.simulation.run._keep", lambda kept, saved: None)
        interrupted(3, settings, file, checkpoint_every=2)
    rows = simulate_study(settings, output=file, checkpoint_every=2).rows
    assert ["epsilon_conditional" in row for row in rows[:4]] == [True, True, False, False]
    assert [row["epsilon_released"] for row in rows[2:]] == [row["epsilon_coordinator"] for row in rows[2:]]


def test_a_budget_spent_by_a_kill_ends_a_simulation(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = NOISY.changed(drop=0.0)
    with monkeypatch.context() as patched:
        patched.setattr("sordino.lab.simulation.run._keep", lambda kept, saved: None)
        interrupted(3, settings, file)
    found = simulate_study(settings, output=file)
    assert found.summary["outcome"] == BUDGET_REACHED
    assert found.summary["epsilon_coordinator"] <= settings.study.privacy.epsilon
    assert found.summary["rounds_completed"] < simulate_study(settings).summary["rounds_completed"]


def test_a_line_whose_cost_cannot_be_read_is_no_free_round(file: Path) -> None:
    interrupted(1, NOISY, file)
    with file.open("a") as end:
        end.write(json.dumps({"kind": "round", "round": 2}) + "\n")
    with pytest.raises(SimulationError, match="damaged: what a line of kind 'round' spent"):
        simulate_study(NOISY, output=file)


def test_a_changed_setting_is_refused_by_its_name(file: Path) -> None:
    simulate_study(QUIET, output=file)
    for other, key in (
        (QUIET.changed(seed=2), "seed was 1 and is 2"),
        (QUIET.changed(drop=0.1), "drop was 0.2 and is 0.1"),
        (changed(QUIET, rounds=5), "study.rounds was 4 and is 5"),
        (changed(QUIET, task_options={"client_rate": 0.25}), "study.task_options.client_rate was 0.5 and is 0.25"),
    ):
        with pytest.raises(SimulationError, match=key):
            simulate_study(other, output=file)
    assert simulate_study(QUIET.changed(workers=7, device="auto"), output=file).summary["rounds_completed"] == 4


def test_it_goes_on_from_the_same_start_wherever_that_lies(file: Path, tmp_path: Path) -> None:
    starts = [tmp_path / f"{name}.safetensors" for name in ("first", "moved", "other")]
    model = simulate_study(changed(QUIET, rounds=1)).parameters
    for start in starts:
        save_file({name: array + (start.stem == "other") for name, array in model.items()}, start)
    first, moved, other = (changed(QUIET, start_from=str(start)) for start in starts)
    interrupted(2, first, file)
    with pytest.raises(SimulationError, match=r"study.start_from was 'sha256:\w+' and is 'sha256:\w+'"):
        simulate_study(other, output=file)
    assert simulate_study(moved, output=file).summary["rounds_completed"] == 4


def test_other_data_and_another_module_are_other_settings(
    file: Path, tmp_path: Path, own_module: Callable[[str, str], Path]
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(10):
        rows = "\n".join(f"{number},{row},{row % 2}" for row in range(12))
        (folder / f"{number}.csv").write_text(f"a,b,label\n{rows}\n")
    module = own_module("kept_module", OWN)
    options = {"task": f"{module.stem}:Own", "task_options": {"features": 2}, "participants": 10, "rounds": 1}
    study = simulated_study(mechanism="none", dataset="own", test=folder / "0.csv", **options)
    settings = SimulationSettings(study=study, data=folder)
    first = simulate_study(settings, output=file)
    assert simulate_study(settings, output=file).summary == first.summary
    for path, name in ((folder / "1.csv", "data"), (folder / "0.csv", "data|study.test"), (module, "study.module")):
        text = path.read_text()
        path.write_text(text.replace(",1\n", ",0\n").replace("own class", "another class"))
        with pytest.raises(SimulationError, match=rf"({name}) was 'sha256:\w+' and is 'sha256:\w+'"):
            simulate_study(settings, output=file)
        path.write_text(text)
    assert simulate_study(settings, output=file).summary == first.summary


def test_no_file_of_another_kind_is_overwritten(file: Path) -> None:
    beside = file.with_name(f"{file.name}.safetensors")
    beside.write_text("a model that was given to begin from")
    with pytest.raises(SimulationError, match=r"run\.jsonl\.safetensors would be overwritten; name another file"):
        simulate_study(QUIET, output=file)
    assert (beside.read_text()[:7], file.exists()) == ("a model", False)


def test_a_file_has_one_writer(file: Path) -> None:
    def second(row: dict[str, Any]) -> None:
        with pytest.raises(SimulationError, match="is being written by another process"):
            simulate_study(QUIET, output=file)

    simulate_study(QUIET, output=file, on_row=second)
    assert simulate_study(QUIET, output=file).summary["rounds_completed"] == 4


@pytest.mark.parametrize(
    "damage",
    [
        lambda lines: [{"kind": "configuration", "format": lines[0]["format"]}],
        lambda lines: [lines[0] | {"settings": 5}],
        lambda lines: [lines[0], {"kind": "round"}],
        lambda lines: [lines[0], lines[1] | {"round": "x"}],
        lambda lines: [lines[0], {"kind": "summary"}],
    ],
)
def test_a_damaged_file_is_called_so(file: Path, damage: Callable[[Any], list[dict[str, Any]]]) -> None:
    simulate_study(QUIET, output=file)
    file.write_text("".join(json.dumps(line) + "\n" for line in damage(lines_of(file))))
    with pytest.raises(SimulationError, match=r"run\.jsonl is damaged; remove it and run\.jsonl\.safetensors to begin"):
        simulate_study(QUIET, output=file)


def test_a_finished_file_still_has_the_model(file: Path) -> None:
    first = simulate_study(QUIET, output=file)
    again = simulate_study(QUIET, output=file)
    assert {name: array.tolist() for name, array in again.model.parameters.items()} == {
        name: array.tolist() for name, array in first.model.parameters.items()
    }
    file.with_name(f"{file.name}.safetensors").unlink()
    with pytest.raises(SimulationError, match="its model, is gone"):
        _ = simulate_study(QUIET, output=file).model


def test_files_that_are_not_its_own_are_refused(file: Path) -> None:
    file.write_text("notes\n")
    with pytest.raises(SimulationError, match="no file of `sordino simulate`"):
        simulate_study(QUIET, output=file)
    assert file.read_text() == "notes\n"
    file.unlink()
    interrupted(2, QUIET, file)
    saved = file.with_name("run.jsonl.safetensors")
    content = saved.read_bytes()
    saved.write_bytes(content[:-30])
    with pytest.raises(SimulationError, match=r"run\.jsonl\.safetensors"):
        simulate_study(QUIET, output=file)
    saved.write_bytes(content)
    kept = file.read_text().splitlines(keepends=True)
    file.write_text(kept[0] + kept[2])
    with pytest.raises(SimulationError, match="lacks rounds"):
        simulate_study(QUIET, output=file)
    saved.unlink()  # without a checkpoint it begins anew
    file.write_text("".join(kept))
    assert simulate_study(QUIET, output=file).summary["rounds_completed"] == 4
    assert [row["round"] for row in lines_of(file) if row["kind"] == "round"] == [1, 2, 3, 4]


def test_a_stop_in_the_last_evaluations_costs_no_round(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = changed(NOISY, rounds=3).changed(evaluate_each=True)

    def stopped(_: Rounds) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Rounds, "of_each", stopped)
        with pytest.raises(KeyboardInterrupt):
            simulate_study(settings, output=file, checkpoint_every=10)
    found = simulate_study(settings, output=file)
    assert (found.summary["outcome"], found.summary["rounds_completed"]) == (ROUNDS_DONE, 3)
    assert found.summary["of_each"]
    again = simulate_study(settings, output=file)
    assert again.summary["of_each"] == found.summary["of_each"]


def test_a_diverged_model_is_told_of_each_too(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a finished file is read again: JSON has no NaN."""
    monkeypatch.setattr(SoftmaxRegression, "evaluate", lambda *_: {"accuracy": 0.1, "loss": math.nan})
    settings = changed(QUIET, rounds=1).changed(evaluate_each=True)
    for _ in range(2):
        found = simulate_study(settings, output=file)
        assert [*found.summary["of_each"]] == ["accuracy"]
        assert "of each     accuracy at most 0.1" in str(found)
