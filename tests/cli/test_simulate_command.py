"""``sordino simulate``."""

from __future__ import annotations

import inspect
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from authority.new_study import make_local_study, new_study
from learning.task_names import SERVER_OPTIMIZERS
from runtime.failure import ExitCode
from sordino.cli import init, simulate
from sordino.lab.simulation.progress import SimulationProgress
from tests.support.commands import Run, one_clear_error, output, refusal, says

SMALL = ("--participants", "60", "--rounds", "2", "--bits", "18")


def body_of(run: Run, *arguments: str) -> dict[str, Any]:
    """The JSON object of a simulation that succeeds."""
    return json.loads(output(run, "simulate", *arguments, "--json"))  # type: ignore[no-any-return]


def test_options_of_init_are_shared() -> None:
    """Each option of init is an option of simulate, but for those of a network and of what is made."""
    made, taken = (set(inspect.signature(verb.run).parameters) for verb in (init, simulate))
    not_shared = {"name", "listen", "training_s", "one_machine", "pause_s", "http_listen"}
    not_shared |= {"coordinator_engine", "gateways", "opening_workers", "ray_address"}
    assert made - taken == not_shared | {"enrol", "hosts", "host", "authority"}
    assert len(made & taken) > 30


def test_a_simulation_in_plain_lines(run: Run) -> None:
    out = output(run, "simulate", *SMALL, "--drop", "0.1")
    lines = out.splitlines()
    assert lines[0] == "Simulation: softmax-regression, 60 participants, 2 rounds"
    assert lines[1] == "Privacy: ddgauss, epsilon 8 at delta 1e-05, zero-out, if at most 3 of 60 collude."
    assert lines[2] == "Secure aggregation: replaced by its ideal sum."
    assert lines[3] == "Dropouts: 10 % of a round, each by chance."
    assert any(line.startswith("round 2 of 2: accuracy 0.") for line in lines)
    assert "rounds done: 2 of 2" in lines
    assert "NOT PRIVATE" not in out


@pytest.mark.parametrize(
    ("mechanism", "holds"),
    [
        ("ddgauss", "zero-out, if at most 3 of 60 collude"),
        ("gaussian", "zero-out, if the coordinator is trusted"),
        ("local-gaussian", "replace-one, even if all others collude"),
    ],
)
def test_an_epsilon_has_its_adjacency_and_condition(run: Run, tmp_path: Path, mechanism: str, holds: str) -> None:
    """A trusted coordinator's noise doesn't protect against the coordinator, so no text may say so."""
    file = tmp_path / "run.jsonl"
    asked = ("--participants", "60", "--rounds", "1", "--bits", "20", "--mechanism", mechanism, "--output", file)
    out = output(run, "simulate", *asked)
    assert f"Privacy: {mechanism}, epsilon 8 at delta 1e-05, {holds}." in out.splitlines()
    assert re.search(rf"^epsilon .* at delta 1e-05,\n +{holds}$", out, re.M)
    first, *_, last = [json.loads(line) for line in file.read_text().splitlines()]
    assert (first["guarantee"], last["guarantee"]) == (holds, holds)
    assert first["privacy"] == f"epsilon 8 at delta 1e-05, {holds}"
    assert "for the coordinator" not in out + file.read_text()


def test_a_target_is_named_beside_what_holds(run: Run) -> None:
    asked = ("--cohort", "20", "--adversarial", "0", "--target", "conditional")
    told = output(run, "simulate", *SMALL, *asked, "--sampling", "fixed").splitlines()[1]
    assert told.startswith("Privacy: ddgauss, epsilon 8 at delta 1e-05, zero-out, if at most ")
    asked_of = "asked of epsilon_conditional: if all were drawn independently."
    assert told.endswith(f" of the 20 in a round collude; {asked_of}")
    coins = output(run, "simulate", *SMALL, *asked, "--sampling", "poisson", "--mechanism", "gaussian")
    assert re.search(r"^ +[78]\.\d+ for readers of what is released$", coins, re.M)
    # With the usual dropouts most attempts at 30 would miss the fewest survivors; coins have none.
    few = ("--participants", "300", "--cohort", "30", "--rounds", "1", "--sampling", "poisson")
    says(output(run, "simulate", *few, "--mechanism", "gaussian"), "rounds done: 1 of 1")


def test_without_noise_it_says_that_nothing_is_private(run: Run) -> None:
    out = output(run, "simulate", *SMALL, "--mechanism", "none")
    says(out, "NOT PRIVATE: no noise is added, epsilon is infinite.", "epsilon     infinite: NOT PRIVATE")


def test_the_same_command_goes_on(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "run.jsonl"
    shown = SimulationProgress.row

    def interrupted(progress: SimulationProgress, row: dict[str, Any]) -> None:
        shown(progress, row)
        raise KeyboardInterrupt

    monkeypatch.setattr(SimulationProgress, "row", interrupted)
    kept = (*SMALL, "--output", file)
    err = refusal(run, "simulate", *kept, code=130)
    assert f"stopped after round 1 of 2. The same command continues from {file}." in err
    err = refusal(run, "simulate", *SMALL, code=130)
    assert err == f"sordino simulate: stopped after round 1 of 2. {simulate.NOTHING_KEPT}\n"
    monkeypatch.setattr(SimulationProgress, "row", shown)
    out = output(run, "simulate", *kept)
    says(out, "Goes on after round 1.", f"Written:    {file} and run.jsonl.safetensors")
    assert "Finished before; nothing is run again." in output(run, "simulate", *kept)
    assert "study.epsilon was 8.0 and is 7.0" in refusal(run, "simulate", *kept, "--epsilon", "7")


def test_a_studys_folder(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    made = make_local_study(folder, new_study(name="mine", participants=50, hosts=2, rounds=2, bits=18))
    body = body_of(run, str(folder))
    assert body["configuration"]["plan_identity"] == made.plan.identity
    assert body["configuration"]["settings"]["study"]["name"] == "mine"
    body = body_of(run, str(folder), "--participants", "300", "--cohort", "40")
    assert body["configuration"]["plan"]["sampling"] == "lottery"
    assert [row["participants"] for row in body["rows"]] == [40, 40]
    assert "--epsilon can't be combined with" in refusal(run, "simulate", str(folder), "--epsilon", "3")


def test_a_folders_sampling_holds_until_it_is_changed(run: Run, tmp_path: Path) -> None:
    drawn = {"cohort": 40, "sampling": "epochs"}
    make_local_study(tmp_path / "study", new_study(name="mine", participants=80, hosts=2, rounds=1, bits=18, **drawn))
    for given, wanted in [((), "epochs"), (("--cohort", "30"), "epochs"), (("--sampling", "none"), "none")]:
        assert body_of(run, str(tmp_path / "study"), *given)["configuration"]["settings"]["study"]["sampling"] == wanted


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("--drop", "1"), 2, "--drop 1 is out of range. Use at least 0 and below 1."),
        (("--drop-law", "often"), 2, "--drop-law often is unknown"),
        (("--participants", "-5"), 2, "--participants -5 is out of range. Use at least 0."),
        (("--participants", "70000"), 2, "--participants 70000 is more than a round can have. Use at most 65,519."),
        (("--task", "mean", "--task-option", "high=1", "--patience", "1"), 2, "no figure to wait for: leave it out"),
        (("--secagg", "fake"), 2, "--secagg fake is unknown. Use one of: ideal, real."),
        (("--engine", "dask"), 2, "Use one of: local, ray"),
        (("--device", "tpu"), 2, "Use one of: cpu, cuda, auto"),
        (("--mechanism", "laplace"), 2, "local-gaussian, none"),
        (("--sampling", "some"), 2, "none, lottery, epochs, poisson, fixed"),
        (("--secagg", "real", "--mechanism", "none"), 2, "nothing to mask"),
        (("--start-from", "/nowhere.safetensors"), 2, "start_from: there is no file /nowhere.safetensors"),
        (
            ("--task-option", "weight_mean=3"),
            2,
            "--task-option weight_mean is 3.0; it must be from 0 to weight_cap = 0",
        ),
        (
            ("--task-option", "client_schedule=step"),
            2,
            "--task-option client_schedule is 'step'; it must be one of constant",
        ),
        (("--participants", "3000"), 2, "6000 examples are too few for 3000 participants"),
        (("--task", "alchemy"), 2, "alchemy"),
        (("--output", "/nowhere/run.jsonl"), 2, "--output /nowhere/run.jsonl can't be written"),
        (("/nowhere",), 2, "there is no such file"),
        (("--epsilon", "0.001", "--bits", "4"), 3, "bits"),
        (("--drop", "0.9", "--drop-law", "exact"), 5, ""),
    ],
)
def test_failures_have_a_code_and_a_sentence(run: Run, arguments: tuple[str, ...], code: int, told: str) -> None:
    given = SMALL + arguments if not arguments[0].startswith("/") else arguments
    ended, out, err = run("simulate", *given)
    assert ended == code
    assert told in err
    if code == ExitCode.STUDY:
        says(out, "round 1, attempt 3: aborted, 6 are left", "round aborted: 0 of 2")
        assert "--drop 0.9 is above --max-dropout 0.3: plan for as many as leave" in out


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        (("--max-dropout", "0.9"), "Use --max-dropout 0.46"),
        (("--participants", "3"), "min_survivors 3 of 3"),
        (("--participants", "2"), "Use --participants 5"),
        (("--min-survivors", "10"), "Use --min-survivors 53"),
        (("--bits", "5"), "Use --bits 8"),
        (("--server-momentum", "1.5"), "--server-momentum 1.5 is out of range"),
        (("--server-rate", "-1"), "--server-rate -1 is out of range"),
        (("--server-rate", "nan"), "--server-rate nan is out of range"),
        (("--server-second-momentum", "1"), "--server-second-momentum 1 is out of range"),
        (("--server-adaptivity", "0"), "--server-adaptivity 0 is out of range"),
        (("--method", "fedprx"), "--method is 'fedprx'; it must be one of"),
        (("--mechanism", "binomial"), "binomial"),
    ],
)
def test_refusals_are_those_of_init(run: Run, tmp_path: Path, chosen: tuple[str, str], said: str) -> None:
    code, _, told = run("simulate", "--rounds", "2", *chosen)
    assert code in (2, 3)
    assert said in told
    folder = tmp_path / "study"
    assert run("init", folder, "--rounds", "2", *chosen) == (code, "", told.replace("sordino simulate", "sordino init"))
    assert not folder.exists()


def test_diverged_training_is_reported(run: Run) -> None:
    """Only a simulation knows it; a study's coordinator sees zeros with noise."""
    wild = ("--participants", "60", "--rounds", "1", "--client-rate", "3e38")
    out = output(run, "simulate", *wild)
    assert "diverged    every one of 60 local trainings gave NaN or infinity and went in as zeros" in out
    summary = body_of(run, *wild)["summary"]
    assert (summary["diverged"], summary["contributions"]) == (60, 60)
    assert "diverged" not in run("simulate", *SMALL)[1]


def test_what_a_budget_leaves_unspent_is_explained(run: Run) -> None:
    assert "less was spent" not in run("simulate", *SMALL)[1]  # surplus noise is taken back
    out = run("simulate", *SMALL, "--noise-parts", "0")[1]
    assert "of 8: less was spent than planned: noise was sized for 32 survivors, and more survived" in out
    out = run("simulate", "--participants", "60", "--rounds", "1", "--bits", "24", "--epsilon", "1000")[1]
    assert out.startswith("Note: of the epsilon 1000 that may be spent, ")
    assert "the plan itself spends" in out
    drawn = ("--sampling", "lottery", "--cohort", "20", "--mechanism", "gaussian")
    out = run("simulate", "--rounds", "6", *drawn)[1]
    assert "less was spent than planned: no participant was drawn for every round" in out


def test_test_examples_must_have_what_the_model_learns(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "unlabelled.csv"
    file.write_text("age,weight,pulse\n1,2,3\n")
    asked = ("--task-option", "features=3", "--task-option", "classes=2", "--test", str(file))
    assert "there is no label" in refusal(run, "simulate", *SMALL, *asked)


def test_the_figure_on_condition_is_never_above_the_proved_one(run: Run) -> None:
    """At one round the planned order may say more than the account does under no condition."""
    for row in body_of(run, "--participants", "300", "--cohort", "150", "--rounds", "3", "--bits", "18")["rows"]:
        assert row["epsilon_conditional"] <= row["epsilon_coordinator"]


def test_a_study_of_few_can_be_simulated_without_noise(run: Run) -> None:
    """Without a plan nothing is refused."""
    few = ("--participants", "3", "--rounds", "1", "--mechanism", "none")
    assert "survivors   3.0 a round" in output(run, "simulate", *few)


def test_every_optimiser_learns_at_its_own_rate(run: Run) -> None:
    """With a rate of 1, that of FedAvg, the adaptive ones have a loss of 3 or more."""
    for name in SERVER_OPTIMIZERS:
        asked = ("--participants", "60", "--rounds", "6", "--mechanism", "none", "--server-optimizer", name)
        assert body_of(run, *asked)["summary"]["loss"] < 1.5, name
    found = body_of(run, *asked, "--server-rate", "1")
    assert found["configuration"]["settings"]["study"]["server_rate"] == 1
    assert found["summary"]["loss"] > 3


def test_both_spellings_are_taken(run: Run) -> None:
    """Verbs name clients, participants and dropouts differently; an ambiguous spelling gets a question."""
    assert body_of(run, "--clients=50", "--rounds", "1")["rows"][0]["participants"] == 50
    planned = output(run, "plan", "--participants", "50", "--rounds", "1", "--drop", "0.2", "--json")
    assert json.loads(planned)["clients"] == 50
    told = refusal(run, "loadtest", "--participants", "5", "--dropout=2")
    assert told == "sordino loadtest: --drop 2 is out of range. Use at least 0 and below 1, such as 0.1.\n"
    told = refusal(run, "simulate", "--dropout", "0.1")
    assert "Use --drop for the share that leaves, or --max-dropout for the share that the plan allows" in told


def test_a_terminal_gets_a_line_that_moves() -> None:
    configuration = {
        "settings": {
            "study": {"task": "mlp", "sampling": "none", "participants": 9, "rounds": 40, "mechanism": "skellam"},
            "drop": 0.0,
        },
        "privacy": "epsilon 8 at delta 1e-05, zero-out, if at most 1 of 9 collude",
        "private": True,
        "secure_aggregation": "replaced by its ideal sum",
    }
    console = Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)
    with SimulationProgress(console=console) as progress:
        progress.start(configuration, 10)
        for round_ in (11, 12):
            figures = {"accuracy": 0.5, "loss": 1.0, "epsilon_coordinator": 2.25, "released": {}, "reported": {}}
            progress.row({"kind": "round", "round": round_, **figures})
        progress.row({"kind": "aborted", "round": 13, "attempt": 1, "reason": "5 are left, 6 are needed"})
    told = ("round 12 of 40", "accuracy 0.5000, epsilon 2.250", " left")
    aborted = "round 13, attempt 1: aborted, 5 are left, 6 are needed"
    says(console.file.getvalue(), "Goes on after round 10.", *told, aborted)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--clip-scaling", "proportional"), "--clip-scaling proportional needs clips of layers: add --clip-by-layer"),
        (("--partition", "iid", "--alpha", "0.1"), "--alpha 0.1 needs a data set that is cut by --partition dirichlet"),
        (("--shards", "3"), "--shards 3 needs a data set that is cut by --partition shards"),
        (("--server-adaptivity", "0.01"), "--server-adaptivity 0.01 needs --server-optimizer fedadam, fedyogi or"),
        (
            ("--server-optimizer", "fedadagrad", "--server-second-momentum", "0.9"),
            "--server-second-momentum 0.9 needs --server-optimizer fedadam or fedyogi; or leave it out.",
        ),
        (("--task", "mean", "--server-schedule", "linear"), "--server-schedule linear needs a task whose participants"),
        (("--task", "votes", "--server-optimizer", "fedadam"), "--server-optimizer fedadam needs a task whose"),
        (("--task", "votes", "--evaluate-on", "9"), "evaluate_on: task 'votes' evaluates no model on the"),
        (("--checkpoint-every", "3"), "--checkpoint-every 3 needs --output, where checkpoints go; or leave it out."),
        (("--device", "cuda"), "--device cuda needs a task that trains with torch; softmax-regression computes"),
        (("--cohort", "61"), "--cohort 61 exceeds --participants 60"),
        (("--mechanism", "binomial"), "--mechanism binomial is planned only (sordino plan)"),
        (("--output", "test.safetensors"), "Use --output test.jsonl."),
    ],
)
def test_options_without_effect_are_refused(run: Run, arguments: tuple[str, ...], told: str) -> None:
    one_clear_error(run, told, "simulate", *SMALL, *arguments)
