"""No class shows a secret in its repr: a field whose name sounds like one is hidden, or listed here with the reason.

A repr gets into a log by way of the object that holds the object that holds the secret, so all classes are looked at,
not only those that are logged today. Classes that generate no repr show nothing: Python's own tells the type.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel

ROOMS = ("runtime", "secagg", "mechanisms", "wire", "client", "server", "authority", "sordino")
SOUNDS_SECRET = re.compile(
    r"key|secret|seed|mask|share|salt|token|noise|update|private|symbols|agreement|packed|pem$|^code$|passw|outbox|staged"
)
# What has such a type holds no secret: where a file lies, whether something is so, a time or a size in float.
HARMLESS_NAMES = {"key_agreement", "key_agreements"}  # the plan's choice
HARMLESS_TYPES = {"Path", "Path | None", "bool", "float", "float | None"}

PUBLIC_KEY = "a public key"
NESTED = "of a class that hides what is secret itself"
PUBLIC_SEED = "of a partition or a simulation: public, and in the study's file"
COMMITMENT = "hides the seed it commits to"
SETTING = "a setting, a name or a figure, no data"
SHOWN: dict[str, str] = {
    "secagg.messages.Advertisement.mask_key": PUBLIC_KEY,
    "secagg.messages.Advertisement.channel_key": PUBLIC_KEY,
    "secagg.opening.Survivor.mask_key": PUBLIC_KEY,
    "secagg.messages.SealedShares.seed_commitment": COMMITMENT,
    "secagg.messages.DealtShare.seed_commitment": COMMITMENT,
    "secagg.server_cohort.Dealing.seed_commitment": COMMITMENT,
    "secagg.server_cohort.Upload.noise_commitments": COMMITMENT,
    "secagg.messages.NeighbourShares.shares": NESTED,
    "secagg.messages.UnmaskingReply.shares": NESTED,
    "secagg.lottery.Ticket.seed": "the coordinator shows it to all who are invited to the round",
    "secagg.packing._Layout.mask": "of bits",
    "client.host_file.StudyTable.authority_public_key": PUBLIC_KEY,
    "client.settings.Study.authority_public_key": PUBLIC_KEY,
    "client.host_file.DataTable.seed": PUBLIC_SEED,
    "client.settings.Data.seed": PUBLIC_SEED,
    "server.study_tables.DataTable.seed": PUBLIC_SEED,
    "client.joining.folder.DataChoice.seed": PUBLIC_SEED,
    "client.joining.options.JoinOptions.seed": PUBLIC_SEED,
    "sordino.lab.experiments.options.DmeOptions.seed": PUBLIC_SEED,
    "sordino.lab.experiments.options.AuditOptions.seed": PUBLIC_SEED,
    "sordino.lab.experiments.options.AuditOptions.noise_divided_by": SETTING,
    "sordino.lab.experiments.grid.GridOptions.seeds": PUBLIC_SEED,
    "sordino.lab.loadtest.options.LoadOptions.seed": PUBLIC_SEED,
    "sordino.lab.experiments.dme.Setting.seed": PUBLIC_SEED,
    "sordino.lab.experiments.audit.Setting.seed": PUBLIC_SEED,
    "sordino.lab.experiments.outcome.Request.seeds": PUBLIC_SEED,
    "sordino.lab.experiments.outcome.Stages.seeds": PUBLIC_SEED,
    "sordino.lab.experiments.pooled_mlp.PooledMlpOptions.initial_seed": PUBLIC_SEED,
    "sordino.lab.experiments.word_pairs.WordPairsOptions.initial_seed": PUBLIC_SEED,
    "sordino.lab.simulation.settings.SimulationSettings.seed": PUBLIC_SEED,
    "sordino.lab.simulation.participants.Assignment.rotation_seed": "of a rotation, which is public",
    "server.study_tables.PrivacyTable.clip_update": SETTING,
    "sordino.lab.simulation.settings.SimulatedPrivacy.clip_update": SETTING,
    "sordino.planning.options.PlannedPrivacy.clip_update": SETTING,
    "mechanisms.clip_rule.ClipRule.update": SETTING,
    "mechanisms.statement.Statement.noise_parts": SETTING,
    "mechanisms.plan.Plan.noise_parts": SETTING,
    "server.study_tables.PrivacyTable.noise_parts": SETTING,
    "sordino.planning.options.PlannedPrivacy.noise_parts": SETTING,
    "sordino.planning.plan_figures.PlanFigures.noise_parts": SETTING,
    "sordino.lab.simulation.settings.SimulatedPrivacy.noise_parts": SETTING,
    "mechanisms.baselines.binomial_plan.BinomialPlan.trials_per_share": SETTING,
    "sordino.planning.plan_figures.PlanFigures.layer_noise_stddev": "a deviation that the plan states",
    "mechanisms.calibration.Calibration.noise": "the variance that the plan states",
    "sordino.reporting.feed.RoundPoint.without_noise": SETTING,
    "sordino.reporting.report.Extras.without_noise": "accuracies of the demo's second training, over public data",
    "sordino.lab.bench.paths.Path.key": "the JSON name of a figure",
    "authority.folder.AuthorityFolder.keys": NESTED,
}
OWN_REPR: dict[str, str] = {
    "secagg.keys.IdentityKey": "the beginning of its public key",
    "secagg.keys.AgreementKey": "the beginning of its public key",
    "mechanisms.randomness.Keystream": "nothing of its key",
    "client.unreachable.WebProxy": "host and port, and not the user and password of its URL",
    "sordino.planning.shown.Shown": "the lines of a report, a plan or a ledger, as commands print them",
}


class Shown(NamedTuple):
    """A field that a repr shows."""

    name: str
    type: str


def classes(modules: list[ModuleType]) -> Iterator[type]:
    for module in modules:
        for one in vars(module).values():
            if inspect.isclass(one) and one.__module__ == module.__name__:
                yield one


def shown_fields(one: Any) -> Iterator[Shown]:
    """Fields that the class's repr shows, however it was generated."""
    if dataclasses.is_dataclass(one):
        if one.__dataclass_params__.repr and one.__repr__.__qualname__.startswith(one.__qualname__ + "."):
            yield from (Shown(each.name, str(each.type)) for each in dataclasses.fields(one) if each.repr)
    elif issubclass(one, tuple) and hasattr(one, "_fields"):
        types = getattr(one, "__annotations__", {})
        yield from (Shown(name, str(types.get(name, "Any"))) for name in one._fields)
    elif issubclass(one, BaseModel):
        for name, each in one.model_fields.items():
            if each.repr:
                kind = each.annotation
                yield Shown(name, kind.__name__ if inspect.isclass(kind) else str(kind).replace("pathlib.", ""))


def suspicious(modules: list[ModuleType]) -> set[str]:
    return {
        f"{one.__module__}.{one.__qualname__}.{each.name}"
        for one in classes(modules)
        for each in shown_fields(one)
        if SOUNDS_SECRET.search(each.name.lower()) and not (each.name in HARMLESS_NAMES or each.type in HARMLESS_TYPES)
    }


def own_reprs(modules: list[ModuleType]) -> set[str]:
    """Classes that write a repr or a text of their own; what an exception says is its message, looked at elsewhere."""
    return {
        f"{one.__module__}.{one.__qualname__}"
        for one in classes(modules)
        for name in ("__repr__", "__str__", "__format__")
        if inspect.isfunction(method := vars(one).get(name))
        and method.__module__ == one.__module__
        and not (name == "__repr__" and (dataclasses.is_dataclass(one) or hasattr(one, "_fields")))
        and method.__qualname__.startswith(one.__qualname__)
        and not issubclass(one, BaseException)
    }


@pytest.fixture(scope="module")
def modules() -> list[ModuleType]:
    found = [
        importlib.import_module(each.name)
        for room in ROOMS
        for each in pkgutil.walk_packages(importlib.import_module(room).__path__, f"{room}.")
        if not each.name.endswith("__main__")
        and "coordinator_pb2" not in each.name
        and "bench.peers" not in each.name
        and "lab.preparation" not in each.name  # of public data
        and (not each.name.startswith("sordino.flower") or importlib.util.find_spec("flwr"))
    ]
    assert len(found) > 100
    return found


def test_what_sounds_secret_is_hidden_or_listed(modules: list[ModuleType]) -> None:
    assert suspicious(modules) == SHOWN.keys(), "hide it with field(repr=False), or say why not; list nothing else"


def test_classes_that_write_their_own(modules: list[ModuleType]) -> None:
    assert own_reprs(modules) == OWN_REPR.keys()


def test_a_class_that_shows_its_key_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    planted = ModuleType("planted")
    monkeypatch.setitem(sys.modules, "planted", planted)
    exec(
        "from __future__ import annotations\n"
        "import dataclasses, pydantic, typing\n"
        "@dataclasses.dataclass\n"
        "class Careless:\n    channel_key: bytes\n    salt: bytes = dataclasses.field(repr=False)\n"
        "@dataclasses.dataclass(repr=False)\n"
        "class Careful:\n    channel_key: bytes\n"
        "class Pair(typing.NamedTuple):\n    seed: bytes\n    other: int\n"
        "class Table(pydantic.BaseModel):\n    token: str\n    tls_key: float\n"
        "class Own:\n    def __repr__(self): return self.secret\n",
        planted.__dict__,
    )
    assert suspicious([planted]) == {"planted.Careless.channel_key", "planted.Pair.seed", "planted.Table.token"}
    assert own_reprs([planted]) == {"planted.Own"}
