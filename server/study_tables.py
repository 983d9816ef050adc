"""The tables of study.toml: every key with its unit, range, default and meaning (`runtime.settings_keys`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from learning.data_names import BROUGHT, check_dataset_name
from learning.task_names import ADAPTIVE, BOUNDED, DEFAULT_RATES, FEDADAM, FEDYOGI, STATISTICS, TASKS, check_task_name
from runtime.address import split_address
from runtime.settings_file import Table
from runtime.settings_keys import key
from wire.guarantee import CURIOUS_TRUST

if TYPE_CHECKING:
    from learning.server_optimizers import ServerOptimizer
    from mechanisms.evaluation import Evaluation

STUDY, DATA, PRIVACY, CODING, NETWORK = "Study", "Data", "Privacy", "Clips and coding", "Network"
_EVALUATION: Final = "Evaluation"
_study, _data, _privacy, _coding, _evaluation, _network = (
    partial(key, panel=panel) for panel in (STUDY, DATA, PRIVACY, CODING, _EVALUATION, NETWORK)
)

Count = Annotated[int, Field(ge=1, le=1_000_000)]
Share = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0, le=1e6)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]
PerhapsCount = Annotated[int | None, Field(ge=1, le=1_000_000)]
Part = Annotated[float, Field(gt=0, lt=1)]
Weight = Annotated[float, Field(ge=1e-3, le=1)]
_OWN: Final = "the task's own"
PARTICIPANTS: Final = "participants"


def _cut_by(partition: str) -> tuple[str, Any]:
    """What a key of one partition needs."""
    return (
        f"a data set that is cut by --partition {partition}",
        lambda study: study.data.partition == partition and study.data.dataset not in BROUGHT,
    )


_CUT = ("a data set that is cut, and not the participants' own", lambda study: study.data.dataset not in BROUGHT)
_TEST = (
    "a model that the coordinator evaluates, which no statistic has",
    lambda study: study.study.task not in STATISTICS,
)
_UPDATES = (
    "a task whose participants send a model's update, which statistics and votes aren't",
    lambda study: study.study.task not in BOUNDED,
)
_LAYERS = ("clips of layers: add --clip-by-layer", lambda study: study.privacy.clip_by_layer)
_ADAPTS = (
    "clips that adapt: add --clip-update geometric or linear",
    lambda study: study.privacy.clip_update != "fixed",
)
_SKETCH = ("--sketch-rows, such as 15", lambda study: study.privacy.sketch_rows > 0)
_JUDGED = ("--evaluate participants", lambda study: study.evaluation.by == PARTICIPANTS)
_DRAWN = ("drawn cohorts: add --sampling lottery or epochs", lambda study: study.privacy.sampling != "none")
_ROOTS = ("--server-optimizer fedadam, fedyogi or fedadagrad", lambda study: study.server_optimizer.name in ADAPTIVE)
_SQUARES = ("--server-optimizer fedadam or fedyogi", lambda study: study.server_optimizer.name in (FEDADAM, FEDYOGI))
RAY: Final = "ray"
_RAY = ("--engine ray", lambda study: study.engine.name == RAY)

_adapts, _ray = partial(_coding, needs=_ADAPTS), partial(_network, needs=_RAY)
_stepping = partial(_study, needs=_UPDATES)
_judged = partial(_evaluation, needs=_JUDGED, fixed=True)


class StudyTable(Table):
    """[study]: the name, the length and the task."""

    name: str = _study(
        help="name of the study: letters, digits, . _ -",
        initial="demo",
        shown="the folder's name",
        min_length=1,
        max_length=64,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        fixed=True,
    )
    rounds: Count = _study(help="rounds that share the privacy budget", initial=15, fixed=True)
    participants: int | None = key(
        None,
        "most participants of one round, which the plan is for",
        shown="all on the roster",
        within=(1, 65_519),
        option="in_a_round",
        fixed=True,
    )
    pause_s: float = _study(
        0.0,
        "pause between the end of a round and the start of the next; an aborted attempt is repeated at once",
        unit="s",
        within=(0, 604_800),
        flag="--pause",
    )
    roster_valid_h: float = _study(
        168.0,
        "hours for which the authority's statement of the newest roster is valid. When it expires, rounds wait "
        "for a new one, so the coordinator can't withhold a revocation for longer. 0: no statement",
        within=(0, 8784),
        fixed=True,
    )
    task: Annotated[str, AfterValidator(check_task_name)] = _study(
        help=f"what is computed: {', '.join(TASKS)}; module:Class of your own, in a file here or installed; or "
        "flower:module:app, a Flower app",
        initial="softmax-regression",
        metavar="NAME",
        fixed=True,
    )


class TaskTable(Table):
    """[task]: those options that most tasks have, and that have an option of their own; each task checks its own."""

    method: str | None = _study(
        None,
        "how participants train: dp-fedavg, dp-fedsgd, fedprox, blur, lus or blur-lus",
        shown="dp-fedavg",
        metavar="NAME",
    )
    client_rate: float | None = _study(None, "step size of local training", shown=_OWN)
    batch_size: int | None = _study(None, "examples in one step", shown=_OWN)
    local_epochs: int | None = _study(None, "passes over the participant's own data in a round", shown=_OWN)
    task_option: tuple[str, ...] = _study((), "any other option of the task; repeatable", metavar="KEY=VALUE")


class DataTable(Table):
    """[data]: where the examples come from and how they are cut into one part per participant."""

    dataset: Annotated[str, AfterValidator(check_dataset_name)] = _data(
        "fashion-mnist-subset",
        "a name of `sordino data list`, FORMAT:PATH, own: each participant has a file, named in host.toml, or "
        "app: a Flower app loads the data",
        metavar="NAME",
    )
    partition: Literal["iid", "dirichlet", "shards", "natural"] = _data(
        "dirichlet",
        "how the examples are divided: iid, dirichlet (uneven classes), shards (few classes each), natural (one "
        "user of the set each)",
        needs=_CUT,
    )
    alpha: Positive = _data(1.0, "concentration of the Dirichlet mixture; small is uneven", needs=_cut_by("dirichlet"))
    shards: Count = _data(2, "shards: runs of one class for each participant", needs=_cut_by("shards"))
    seed: int = _data(1, "seed of the partition; public", ge=0, lt=2**63)
    test: str = _data(
        "",
        "the coordinator's own file or folder to evaluate on",
        shown="the data set's test part, where it has one",
        metavar="FILE",
        needs=_TEST,
    )
    start: str = _data(
        "",
        "a .safetensors file with the model that the first round begins from, such as a checkpoint of another study",
        shown="the task's initial weights",
        metavar="FILE",
        option="start_from",
    )


class PrivacyTable(Table):
    """[privacy]: the budget, the clip, and what is assumed about participants."""

    mechanism: Literal["ddgauss", "skellam", "gaussian", "local-gaussian"] = _privacy(
        "ddgauss",
        "ddgauss, skellam: all participants share the noise; local-gaussian: each report is private; gaussian: "
        "trusts the coordinator",
    )
    epsilon: float = _privacy(help="budget of the whole study; the noise follows from it", initial=8.0, gt=0, le=1000)
    delta: Part = _privacy(
        help="probability that the guarantee fails; far below 1/participants, such as 1e-5", initial=1e-5
    )
    clip: float | None = _privacy(
        None,
        "largest L2 norm of one update, in the model's units; the first one where clips adapt",
        shown="the task's own bound, else 1",
        gt=0,
        le=1e9,
    )
    clip_by_layer: bool = _coding(False, "clip each array of the model by itself", spellings=("--clip-flat",))
    clip_scaling: Literal["uniform", "proportional", "least-noise"] = _coding(
        "uniform",
        "how noise is spread over layers: uniform, proportional (to their clips) or least-noise",
        needs=_LAYERS,
    )
    clip_update: Literal["fixed", "geometric", "linear"] = _coding(
        "fixed", "fixed; geometric or linear: clips follow a quantile of the norms"
    )
    clip_quantile: Part = _adapts(0.5, "adaptive clips: share of the norms to keep below the clip")
    clip_rate: float = _adapts(0.3, "learning rate of adaptive clipping", gt=0, le=10)
    clip_bit_weight: Weight = _adapts(
        0.3, "adaptive clips: size of the coordinates that carry the quantile, over the clip"
    )
    sketch_rows: int = _coding(
        0,
        "rows of the count-mean sketch sent instead of the update (0: none); the clip then bounds the sketch",
        within=(0, 1024),
    )
    sketch_ratio: float = _coding(
        10.0, "values of the update for each value of its sketch", within=(1, 1e6), needs=_SKETCH
    )
    rotation: Literal["auto", "hadamard", "hadamard-blocks"] = _coding(
        "auto", "auto, hadamard (pads to a power of two) or hadamard-blocks; auto pads by at most 5 %"
    )
    sampling: Literal["none", "lottery", "epochs"] = _privacy(
        "none",
        "none: all participants in each round; lottery: a cohort, drawn by seeds of the authority; epochs: as "
        "lottery, but a participant is drawn again only after all others were drawn",
    )
    population: PerhapsCount = _privacy(
        None,
        "drawn cohorts: the smallest roster that they are drawn from",
        shown="participants; needed with --participants 0",
        needs=_DRAWN,
    )
    largest_roster: PerhapsCount = key(
        None, "drawn cohorts: the largest roster, for which A must hold", shown="population", option="largest_roster"
    )
    bits: int = _privacy(16, "bits of one value on the wire", within=(1, 62))
    max_dropout: Share = _privacy(
        0.3, "share of the participants that may leave in a round", example="0.2 for 20 %", spellings=("--dropout",)
    )
    adversarial: Share = _privacy(
        0.05, "share of the roster that is assumed to collude with the coordinator", example="0.05 for 5 %"
    )
    adversary: Literal["malicious", "curious"] = _privacy(
        "malicious", f"what the coordinator may do: malicious; curious: {CURIOUS_TRUST}"
    )
    graph: Literal["auto", "complete", "harary"] = _privacy(
        "auto",
        "graph on which secrets are shared: complete, harary (the ring), auto: the ring where it halves the work",
    )
    key_agreement: Literal["x25519", "x25519-mlkem768"] = _privacy(
        "x25519-mlkem768",
        "key agreement for channels and masks: x25519 or x25519-mlkem768. With the second, recorded traffic stays "
        "secret even if X25519 is broken later",
    )
    offer_offset_s: float = _privacy(
        0.0,
        "seconds after a round's start at which every participant offers its upload. Training that takes longer "
        "than 4/5 of this sends zeros. 0: each offers when it is ready",
        within=(0, 86400),
    )
    min_survivors: int | None = _privacy(
        None,
        "fewest participants in a sum; the noise is sized for it",
        shown="what independent dropouts rarely miss",
        ge=1,
    )
    quorum: int | None = _privacy(None, "fewest participants that begin a round", shown="min_survivors", ge=1)
    beta: float = _privacy(
        math.exp(-0.5),
        "rounding is repeated if its norm exceeds a bound; beta sets that bound",
        shown="e^-0.5",
        within=(0, 0.9),
    )
    k_stddevs: float = _privacy(
        4.0, "standard deviations of the sum that fit before it could wrap around", within=(1, 100)
    )
    noise_parts: int | None = _privacy(
        None,
        "parts of its noise that a survivor takes back if more than min_survivors remain; 0: all noise stays",
        shown="as many as leave at most 4 % too much",
        within=(0, 8),
    )

    def of_plan(self) -> dict[str, Any]:
        """The keys that are arguments of `wire.study.plan_study` by the same names: all but those of `coding`."""
        return {name: value for name, value in self if not name.startswith(("clip", "sketch", "rotation"))}

    def coding(self, layers: Sequence[int], clip: float) -> dict[str, Any]:
        """Arguments of `wire.study.plan_study` for a model.

        Args:
            layers: number of values of each array.
            clip: as `learning.make_task.clip_of` settles it.
        """
        from wire.study import coding

        clips: dict[str, Any] = {name.removeprefix("clip_"): value for name, value in self if name.startswith("clip_")}
        made = coding(layers, clip=clip, **clips, sketch_rows=self.sketch_rows, sketch_ratio=self.sketch_ratio)
        return made | {"rotation": None if self.rotation == "auto" else self.rotation}

    @model_validator(mode="after")
    def _keys_agree(self) -> Self:
        if (self.sampling != "none") != (self.population is not None):
            raise ValueError(
                'population says how many cohorts are drawn from: set it with sampling = "lottery" or "epochs" only'
            )
        if self.largest_roster is not None and self.largest_roster < (self.population or self.largest_roster + 1):
            raise ValueError("largest_roster must be population or more, and set for drawn cohorts only")
        if self.min_survivors is not None and self.quorum is not None and self.min_survivors > self.quorum:
            raise ValueError(
                f"min_survivors = {self.min_survivors} is above quorum = {self.quorum}: a round that begins "
                f"with the quorum could never end. Set quorum to {self.min_survivors} or more"
            )
        return self


class EvaluationTable(Table):
    """[evaluation]: who judges the model, and when that ends the study."""

    by: Literal["coordinator", "participants"] = _evaluation(
        "coordinator",
        "coordinator: on test examples of its own; participants: also each on examples of its own that it never "
        "trains on, within the noisy sum",
        option="evaluate",
        fixed=True,
    )
    held_out: float = _judged(
        0.2, "share of each participant's examples that it evaluates on and never trains on", gt=0, le=0.5
    )
    weight: Weight = _judged(
        0.5,
        "size of the coordinates that carry the evaluation, over the clip: larger is more exact, and adds noise "
        "to the update",
        option="evaluation_weight",
    )
    most_examples: int = _judged(
        1,
        "held-out examples of one participant that count; 1: all participants weigh the same",
        within=(1, 1_000_000_000),
        option="evaluation_examples",
    )
    largest_loss: float = _judged(
        4.0, "a participant's mean loss counts as this one where it is larger", gt=0, le=1e9, option="evaluation_loss"
    )
    patience: int = _evaluation(
        0,
        "rounds without a better model after which the study ends; 0: it runs for all its rounds",
        within=(0, 1_000_000),
    )

    def of_plan(self) -> Evaluation:
        """What the plan says of it."""
        from mechanisms.evaluation import NOT_EVALUATED, Evaluation

        if self.by != PARTICIPANTS:
            return NOT_EVALUATED
        return Evaluation(
            **{name: getattr(self, name) for name in ("held_out", "weight", "most_examples", "largest_loss")}
        )


class DeadlineTable(Table):
    """[deadlines]: the longest a phase waits. It ends at once when all have answered or left."""

    connect_s: Seconds = key(60.0, "for the roster to connect, then go on with the quorum", unit="s")
    advertise_keys_s: Seconds = key(15.0, "fresh keys", unit="s")
    share_keys_s: Seconds = key(20.0, "encrypted shares of the secrets", unit="s")
    masked_input_s: Seconds = _network(
        60.0,
        "local training and the masked update: as long as the slowest participant takes",
        unit="s",
        option="training_s",
    )
    consistency_check_s: Seconds = key(15.0, "signatures over the sets of the sum", unit="s")
    unmasking_s: Seconds = key(15.0, "the shares that open the sum", unit="s")
    adaptive: bool = key(
        False,
        "a phase waits three times as long as the slowest of the last ten rounds, at most as the keys above; a "
        "round that fails so is repeated with those",
    )
    resume_s: float = key(
        2.0,
        "how long a broken connection keeps its reconnection slot in an attempt; 0: a dropout at once",
        unit="s",
        within=(0, 3600),
    )


class ServerOptimizerTable(Table):
    """[server_optimizer]: how the coordinator applies the mean update."""

    name: Literal["fedavg", "fedadagrad", "fedadam", "fedyogi"] = _stepping(
        "fedavg", "fedavg: averaging with momentum; adaptive: fedadam, fedyogi or fedadagrad", option="server_optimizer"
    )
    rate: float | None = _stepping(
        None,
        "step along the mean update",
        shown=f"1; fedadam and fedyogi {DEFAULT_RATES['fedadam']:g}, fedadagrad {DEFAULT_RATES['fedadagrad']:g}",
        gt=0,
        le=1e6,
        option="server_rate",
    )
    schedule: Literal["constant", "linear", "cosine"] = _stepping(
        "constant",
        "how the step goes on over the rounds: constant, or down to 0: linear or cosine",
        option="server_schedule",
    )
    momentum: Share = _stepping(0.7, "momentum of the coordinator; 0 is plain averaging", option="server_momentum")
    second_momentum: Share = _study(
        0.99, "fedadam, fedyogi: momentum of the squares of the mean", option="server_second_momentum", needs=_SQUARES
    )
    adaptivity: Positive = _study(
        1e-3, "adaptive optimisers: tau, added to the root of those squares", option="server_adaptivity", needs=_ROOTS
    )

    def make(self, rounds: int) -> ServerOptimizer:
        """The optimizer, at rest, for this many rounds."""
        from learning.server_optimizers import ServerOptimizer

        return ServerOptimizer(**dict(self), rounds=rounds)


class EngineTable(Table):
    """[engine]: the processes that the coordinator consists of."""

    name: Literal["process", "ray"] = _network(
        "process",
        "process: the coordinator is one process; ray: gateways and workers in processes of Ray (the extra ray)",
        option="coordinator_engine",
        flag="--engine",
    )
    gateways: int = _ray(
        0,
        "processes that hold participants' sessions, on coordinator.listen and the ports after it; 0: the "
        "coordinator itself does",
        within=(0, 64),
    )
    workers: int = _ray(
        0,
        "tasks of Ray that open a sum at once; 0: threads of the coordinator",
        within=(0, 1024),
        option="opening_workers",
        flag="--workers",
    )
    address: str = _ray(
        "",
        "HOST:PORT of a Ray cluster that runs",
        shown="RAY_ADDRESS, else this machine alone",
        metavar="HOST:PORT",
        option="ray_address",
    )

    def changed(self, given: Mapping[str, Any]) -> Self:
        """With keys by their flat names; whoever asks for gateways or workers asks for Ray."""
        names = {"coordinator_engine": "name", "opening_workers": "workers", "ray_address": "address"}
        values = {names.get(name, name): value for name, value in given.items()}
        return type(self)(**self.model_dump() | ({"name": RAY} if values else {}) | values)


class CoordinatorTable(Table):
    """[coordinator]: the process itself. Paths are relative to study.toml."""

    listen: str = _network(
        "127.0.0.1:8443",
        "where the coordinator listens; 0.0.0.0:PORT for all interfaces, port 0 for a free one",
        metavar="HOST:PORT",
    )
    state: Path = key(Path("coordinator/state.sqlite"), "journal and events; ledger.sqlite beside it: keep both")
    tls_certificate: Path = key(Path("coordinator/tls/server.pem"), "its TLS certificate")
    tls_key: Path = key(Path("coordinator/tls/server.key"), "secret")
    roster: Path = key(Path("roster.json"), "signed by the authority")
    authority_public_key: Path = key(
        Path("coordinator/authority.pub"),
        "Ed25519 key of the authority, 64 hexadecimal digits; its private half must not be here",
    )
    client_ca: Path = key(Path("tls/ca.pem"), "a connection needs a certificate of this authority")
    enrolment_listen: str = key("", "HOST:PORT for requests to join or renew; empty: none are taken")
    http_listen: str = _network(
        "",
        "HOST:PORT for the live page, /metrics, /healthz and /readyz without TLS, for its operator; empty: none",
        shown="none; 127.0.0.1:0, a free port, in studies of sordino init",
        metavar="HOST:PORT",
        flag="--http",
    )
    card: Path = key(Path("coordinator/card.json"), "shown to those who want to join; signed by the authority")
    transcript_key: Path = key(Path("coordinator/transcript.key"), "secret; signs transcripts")
    max_attempts: int = key(
        3, "attempts at one round before the study stops; each attempt that unmasks is charged", within=(1, 100)
    )
    upload_credits: int = key(64, "uploads held in memory at once; the others wait", within=(1, 4096))
    transcripts: Literal["keep", "off"] = key(
        "keep", "keep: a signed file for each finished round, none in a curious study; off: none"
    )
    publish_transcripts: bool = key(
        False, "copies for everybody, which name the participants: sampling then amplifies nothing"
    )
    lottery: Path = key(Path("lottery.json"), "seeds of the cohorts, where cohorts are drawn")
    one_machine: bool = _network(
        False,
        "all parts on one machine: hosts may hold more participants than are assumed to collude; the guarantee is "
        "honest-but-curious",
        shown="one-machine; separate-machines with --authority",
        spellings=("--separate-machines",),
    )

    @field_validator("listen", "enrolment_listen", "http_listen")
    @classmethod
    def _address(cls, value: str, info: ValidationInfo) -> str:
        if value or info.field_name == "listen":
            split_address(value)
        return value

    @model_validator(mode="after")
    def _published_are_kept(self) -> Self:
        if self.publish_transcripts and self.transcripts == "off":
            raise ValueError('publish_transcripts = true needs transcripts = "keep"')
        return self
