"""The tables of study.toml: every key with its unit, range, default and meaning (`runtime.settings_keys`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, field_validator, model_validator

from learning.data_names import OWN, check_dataset_name
from learning.task_names import DEFAULT_RATES, TASKS, check_task_name
from runtime.settings_file import Table, number_if_it_is_one, split_address
from runtime.settings_keys import key
from wire.guarantee import CURIOUS_TRUST

if TYPE_CHECKING:
    from learning.server_optimizers import ServerOptimizer

STUDY, DATA, PRIVACY, CODING, NETWORK = "Study", "Data", "Privacy", "Clips and coding", "Network"
_OWN: Final = "the task's own"
ADAPTIVE_OPTIMIZERS: Final = ("fedadam", "fedyogi", "fedadagrad")

TaskOption = Annotated[bool | int | float | str, BeforeValidator(number_if_it_is_one)]


def _cut_by(partition: str) -> tuple[str, Any]:
    """What a key of one partition needs."""
    return (
        f"a data set that is cut by --partition {partition}",
        lambda study: study.data.partition == partition and study.data.dataset != OWN,
    )


_LAYERS = ("clips of layers: add --clip-by-layer", lambda study: study.privacy.clip_by_layer)
_ADAPTS = (
    "clips that adapt: add --clip-update geometric or linear",
    lambda study: study.privacy.clip_update != "fixed",
)
_SKETCH = ("--sketch-rows, such as 15", lambda study: study.privacy.sketch_rows > 0)
_LOTTERY = ("a lottery: add --sampling lottery", lambda study: study.privacy.sampling != "none")
_ROOTS = (
    "--server-optimizer fedadam, fedyogi or fedadagrad",
    lambda study: study.server_optimizer.name in ADAPTIVE_OPTIMIZERS,
)
_SQUARES = (
    "--server-optimizer fedadam or fedyogi",
    lambda study: study.server_optimizer.name in ADAPTIVE_OPTIMIZERS[:2],
)


class StudyTable(Table):
    """[study]: the name, the length and the task."""

    name: str = key(
        initial="demo",
        help="name of the study: letters, digits, . _ -",
        shown="the folder's name",
        min_length=1,
        max_length=64,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        panel=STUDY,
        fixed=True,
    )
    rounds: int = key(
        initial=15, help="rounds that share the privacy budget", ge=1, le=1_000_000, panel=STUDY, fixed=True
    )
    participants: int | None = key(
        None,
        help="most participants of one round, which the plan is for",
        shown="all on the roster",
        ge=1,
        le=65_519,
        option="in_a_round",
        fixed=True,
    )
    pause_s: float = key(
        0.0,
        help="pause between the end of a round and the start of the next; an aborted attempt is repeated at once",
        unit="s",
        ge=0,
        le=604_800,
        flag="--pause",
        panel=STUDY,
    )
    task: Annotated[str, AfterValidator(check_task_name)] = key(
        initial="softmax-regression",
        help=f"what is computed: {', '.join(TASKS)}; or module:Class of your own, in a file here or installed",
        metavar="NAME",
        panel=STUDY,
        fixed=True,
    )


class TaskTable(Table):
    """[task]: those options that most tasks have, and that have an option of their own; each task checks its own."""

    method: str | None = key(
        None,
        help="how participants train: dp-fedavg, dp-fedsgd, fedprox, blur, lus or blur-lus",
        shown="dp-fedavg",
        metavar="NAME",
        panel=STUDY,
    )
    client_rate: float | None = key(None, help="step size of local training", shown=_OWN, panel=STUDY)
    batch_size: int | None = key(None, help="examples in one step", shown=_OWN, panel=STUDY)
    local_epochs: int | None = key(
        None, help="passes over the participant's own data in a round", shown=_OWN, panel=STUDY
    )
    task_option: tuple[str, ...] = key(
        (), help="any other option of the task; repeatable", metavar="KEY=VALUE", panel=STUDY
    )


class DataTable(Table):
    """[data]: where the examples come from and how they are cut into one part per participant."""

    dataset: Annotated[str, AfterValidator(check_dataset_name)] = key(
        "fashion-mnist-subset",
        help="a name of `sordino data list`, FORMAT:PATH, or own: each participant has a file, named in host.toml",
        metavar="NAME",
        panel=DATA,
    )
    partition: Literal["iid", "dirichlet", "shards", "natural"] = key(
        "dirichlet",
        help="how the examples are divided: iid, dirichlet (uneven classes), shards (few classes each), natural (one "
        "user of the set each)",
        panel=DATA,
    )
    alpha: float = key(
        1.0,
        help="concentration of the Dirichlet mixture; small is uneven",
        gt=0,
        le=1e6,
        panel=DATA,
        needs=_cut_by("dirichlet"),
    )
    shards: int = key(
        2,
        help="shards: runs of one class for each participant",
        ge=1,
        le=1_000_000,
        panel=DATA,
        needs=_cut_by("shards"),
    )
    seed: int = key(1, help="seed of the partition; public", ge=0, lt=2**63, panel=DATA)
    test: str = key(
        "",
        help="the coordinator's own file to evaluate on, .npz or .csv",
        shown="the data set's test part, where it has one",
        metavar="FILE",
        panel=DATA,
    )


class PrivacyTable(Table):
    """[privacy]: the budget, the clip, and what is assumed about participants."""

    mechanism: Literal["ddgauss", "skellam", "gaussian", "local-gaussian"] = key(
        "ddgauss",
        help="ddgauss, skellam: all participants share the noise; local-gaussian: each report is private; gaussian: "
        "trusts the coordinator",
        panel=PRIVACY,
    )
    epsilon: float = key(
        initial=8.0, help="budget of the whole study; the noise follows from it", gt=0, le=1000, panel=PRIVACY
    )
    delta: float = key(
        initial=1e-5,
        help="probability that the guarantee fails; far below 1/participants, such as 1e-5",
        gt=0,
        lt=1,
        panel=PRIVACY,
    )
    clip: float | None = key(
        None,
        help="largest L2 norm of one update, in the model's units; the first one where clips adapt",
        shown="the task's own bound, else 1",
        gt=0,
        le=1e9,
        panel=PRIVACY,
    )
    clip_by_layer: bool = key(
        False, help="clip each array of the model by itself", spellings=("--clip-flat",), panel=CODING
    )
    clip_scaling: Literal["uniform", "proportional", "least-noise"] = key(
        "uniform",
        help="how noise is spread over layers: uniform, proportional (to their clips) or least-noise",
        panel=CODING,
        needs=_LAYERS,
    )
    clip_update: Literal["fixed", "geometric", "linear"] = key(
        "fixed", help="fixed; geometric or linear: clips follow a quantile of the norms", panel=CODING
    )
    clip_quantile: float = key(
        0.5, help="adaptive clips: share of the norms to keep below the clip", gt=0, lt=1, panel=CODING, needs=_ADAPTS
    )
    clip_rate: float = key(0.3, help="learning rate of adaptive clipping", gt=0, le=10, panel=CODING, needs=_ADAPTS)
    clip_bit_weight: float = key(
        0.3,
        help="adaptive clips: size of the coordinates that carry the quantile, over the clip",
        ge=1e-3,
        le=1,
        panel=CODING,
        needs=_ADAPTS,
    )
    sketch_rows: int = key(
        0,
        help="rows of the count-mean sketch sent instead of the update (0: none); the clip then bounds the sketch",
        ge=0,
        le=1024,
        panel=CODING,
    )
    sketch_ratio: float = key(
        10.0,
        help="values of the update for each value of its sketch",
        ge=1,
        le=1e6,
        panel=CODING,
        needs=_SKETCH,
    )
    rotation: Literal["auto", "hadamard", "hadamard-blocks"] = key(
        "auto",
        help="auto, hadamard (pads to a power of two) or hadamard-blocks; auto pads by at most 5 %",
        panel=CODING,
    )
    sampling: Literal["none", "lottery"] = key(
        "none",
        help="none: all participants in each round; lottery: a cohort, drawn by seeds of the authority",
        panel=PRIVACY,
    )
    population: int | None = key(
        None,
        help="lottery: the smallest roster that cohorts are drawn from",
        shown="participants; needed with --participants 0",
        ge=1,
        le=1_000_000,
        panel=PRIVACY,
        needs=_LOTTERY,
    )
    largest_roster: int | None = key(
        None,
        help="lottery: the largest roster, for which A must hold",
        shown="population",
        ge=1,
        le=1_000_000,
        option="largest_roster",
    )
    bits: int = key(16, help="bits of one value on the wire", ge=1, le=62, panel=PRIVACY)
    max_dropout: float = key(
        0.3,
        help="share of the participants that may leave in a round",
        example="0.2 for 20 %",
        ge=0,
        lt=1,
        spellings=("--dropout",),
        panel=PRIVACY,
    )
    adversarial: float = key(
        0.05,
        help="share of the roster that is assumed to collude with the coordinator",
        example="0.05 for 5 %",
        ge=0,
        lt=1,
        panel=PRIVACY,
    )
    adversary: Literal["malicious", "curious"] = key(
        "malicious",
        help=f"what the coordinator may do: malicious; curious: {CURIOUS_TRUST}",
        panel=PRIVACY,
    )
    graph: Literal["auto", "complete", "harary"] = key(
        "auto",
        help="graph on which secrets are shared: complete, harary (the ring), auto: the ring where it halves the work",
        panel=PRIVACY,
    )
    min_survivors: int | None = key(
        None,
        help="fewest participants in a sum; the noise is sized for it",
        shown="what independent dropouts rarely miss",
        ge=1,
        panel=PRIVACY,
    )
    quorum: int | None = key(
        None, help="fewest participants that begin a round", shown="min_survivors", ge=1, panel=PRIVACY
    )
    beta: float = key(
        math.exp(-0.5),
        help="conditional rounding repeats above the norm bound of this probability",
        shown="e^-0.5",
        ge=0,
        le=0.9,
        panel=PRIVACY,
    )
    k_stddevs: float = key(
        4.0,
        help="standard deviations of the sum that fit before it could wrap around",
        ge=1,
        le=100,
        panel=PRIVACY,
    )

    def coding(self, layers: Sequence[int], clip: float) -> dict[str, Any]:
        """Arguments of `wire.study.plan_study` for a model whose arrays hold so many values.

        Args:
            clip: as `learning.make_task.clip_of` settles it.
        """
        from wire.study import coding

        return coding(
            layers,
            clip=clip,
            by_layer=self.clip_by_layer,
            scaling=self.clip_scaling,
            update=self.clip_update,
            quantile=self.clip_quantile,
            rate=self.clip_rate,
            bit_weight=self.clip_bit_weight,
            sketch_rows=self.sketch_rows,
            sketch_ratio=self.sketch_ratio,
        ) | {"rotation": None if self.rotation == "auto" else self.rotation}

    @model_validator(mode="after")
    def _drawn(self) -> Self:
        if (self.sampling != "none") != (self.population is not None):
            raise ValueError('population says how many a lottery draws from: set it with sampling = "lottery" only')
        if self.largest_roster is not None and self.largest_roster < (self.population or self.largest_roster + 1):
            raise ValueError("largest_roster must be population or more, and set for a lottery only")
        return self

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_survivors is not None and self.quorum is not None and self.min_survivors > self.quorum:
            raise ValueError(
                f"min_survivors = {self.min_survivors} is above quorum = {self.quorum}: a round that begins "
                f"with the quorum could never end. Set quorum to {self.min_survivors} or more"
            )
        return self


class DeadlineTable(Table):
    """[deadlines]: the longest a phase waits. It ends at once when all have answered or left."""

    connect_s: float = key(
        60.0, help="for the roster to connect, then go on with the quorum", unit="s", gt=0, le=86_400
    )
    advertise_keys_s: float = key(15.0, help="fresh keys", unit="s", gt=0, le=86_400)
    share_keys_s: float = key(20.0, help="encrypted shares of the secrets", unit="s", gt=0, le=86_400)
    masked_input_s: float = key(
        60.0,
        help="local training and the masked update: as long as the slowest participant takes",
        unit="s",
        gt=0,
        le=86_400,
        option="training_s",
        panel=NETWORK,
    )
    consistency_check_s: float = key(15.0, help="signatures over the sets of the sum", unit="s", gt=0, le=86_400)
    unmasking_s: float = key(15.0, help="the shares that open the sum", unit="s", gt=0, le=86_400)
    resume_s: float = key(
        2.0,
        help="how long a broken connection keeps its place in a round; 0: a dropout at once",
        unit="s",
        ge=0,
        le=3600,
    )


class ServerOptimizerTable(Table):
    """[server_optimizer]: how the coordinator applies the mean update."""

    name: Literal["fedavg", "fedadagrad", "fedadam", "fedyogi"] = key(
        "fedavg",
        help="fedavg: averaging with momentum; adaptive: fedadam, fedyogi or fedadagrad",
        option="server_optimizer",
        panel=STUDY,
    )
    rate: float | None = key(
        None,
        help="step along the mean update",
        shown=f"1; fedadam and fedyogi {DEFAULT_RATES['fedadam']:g}, fedadagrad {DEFAULT_RATES['fedadagrad']:g}",
        gt=0,
        le=1e6,
        option="server_rate",
        panel=STUDY,
    )
    momentum: float = key(
        0.7, help="momentum of the coordinator; 0 is plain averaging", ge=0, lt=1, option="server_momentum", panel=STUDY
    )
    second_momentum: float = key(
        0.99,
        help="fedadam, fedyogi: momentum of the squares of the mean",
        ge=0,
        lt=1,
        option="server_second_momentum",
        panel=STUDY,
        needs=_SQUARES,
    )
    adaptivity: float = key(
        1e-3,
        help="adaptive optimisers: tau, added to the root of those squares",
        gt=0,
        le=1e6,
        option="server_adaptivity",
        panel=STUDY,
        needs=_ROOTS,
    )

    def make(self) -> ServerOptimizer:
        """The optimizer, at rest."""
        from learning.server_optimizers import make_server_optimizer

        return make_server_optimizer(self.name, self.rate, self.momentum, self.second_momentum, self.adaptivity)


class CoordinatorTable(Table):
    """[coordinator]: the process itself. Paths are relative to study.toml."""

    listen: str = key(
        "127.0.0.1:8443",
        help="where the coordinator listens; 0.0.0.0:PORT for all interfaces, port 0 for a free one",
        metavar="HOST:PORT",
        panel=NETWORK,
    )
    state: Path = key(Path("coordinator/state.sqlite"), help="journal and events; ledger.sqlite beside it: keep both")
    tls_certificate: Path = key(Path("coordinator/tls/server.pem"), help="its TLS certificate")
    tls_key: Path = key(Path("coordinator/tls/server.key"), help="secret")
    roster: Path = key(Path("roster.json"), help="signed by the authority")
    authority_public_key: Path = key(
        Path("authority/authority.pub"),
        help="Ed25519 key of the authority, 64 hexadecimal digits; its private half must not be here",
    )
    client_ca: Path = key(Path("tls/ca.pem"), help="a connection needs a certificate of this authority")
    enrolment_listen: str = key("", help="HOST:PORT for requests to join or renew; empty: none are taken")
    http_listen: str = key(
        "",
        help="HOST:PORT for /metrics, /healthz and /readyz without TLS, for its operator; empty: none",
        shown="none",
        metavar="HOST:PORT",
        flag="--http",
        panel=NETWORK,
    )
    card: Path = key(Path("coordinator/card.json"), help="shown to those who want to join; signed by the authority")
    transcript_key: Path = key(Path("coordinator/transcript.key"), help="secret; signs transcripts")
    max_attempts: int = key(
        3, help="at one round, before the study stops; each attempt that unmasks is charged", ge=1, le=100
    )
    upload_credits: int = key(64, help="uploads held in memory at once; the others wait", ge=1, le=4096)
    transcripts: Literal["keep", "off"] = key(
        "keep", help="keep: a signed file for each finished round, none in a curious study; off: none"
    )
    publish_transcripts: bool = key(
        False, help="copies for everybody, which name the participants: sampling then amplifies nothing"
    )
    lottery: Path = key(Path("lottery.json"), help="seeds of the cohorts, where cohorts are drawn")
    one_machine: bool = key(
        False,
        help="all parts on one machine: hosts may hold more participants than are assumed to collude; the guarantee is "
        "honest-but-curious",
        shown="one-machine; separate-machines with --authority",
        spellings=("--separate-machines",),
        panel=NETWORK,
    )

    @field_validator("listen")
    @classmethod
    def _address(cls, value: str) -> str:
        split_address(value)
        return value

    @field_validator("enrolment_listen", "http_listen")
    @classmethod
    def _address_or_none(cls, value: str) -> str:
        if value:
            split_address(value)
        return value

    @model_validator(mode="after")
    def _published_are_kept(self) -> Self:
        if self.publish_transcripts and self.transcripts == "off":
            raise ValueError('publish_transcripts = true needs transcripts = "keep"')
        return self

    @property
    def listen_host(self) -> str:
        return split_address(self.listen)[0]

    @property
    def listen_port(self) -> int:
        return split_address(self.listen)[1]
