"""What ``study.toml`` may say: the study, its privacy, its deadlines and the coordinator that runs it.

``load`` reads a file once and hands back a frozen :class:`StudyConfiguration` with absolute paths. Every key
has its unit, range and default here; ``sordino init`` writes them all out with a comment each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from learning.data_names import check_dataset_name, located
from learning.server_optimizers import ServerOptimizer, make_server_optimizer
from learning.task_names import check_task_name
from runtime.settings_file import (
    ConfigurationError,
    Settings,
    Table,
    check_files,
    number_if_it_is_one,
    read_settings,
    split_address,
)
from wire.study import coding

__all__ = [
    "ConfigurationError",
    "CoordinatorTable",
    "DataTable",
    "DeadlineTable",
    "PrivacyTable",
    "ServerOptimizerTable",
    "StudyConfiguration",
    "StudyTable",
    "load",
]

STUDY_FILE = "study.toml"
_PATHS = (
    *("state", "tls_certificate", "tls_key", "client_ca", "roster", "lottery", "authority_public_key", "card"),
    "transcript_key",
)
_HINT = "Name a study's folder or its study.toml; `sordino init DIR` makes one."

Seconds = Annotated[float, Field(gt=0, le=86_400)]
TaskOption = Annotated[bool | int | float | str, BeforeValidator(number_if_it_is_one)]


class StudyTable(Table):
    """[study]: the name, the length and the task."""

    name: str = Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """The study's name; part of every key and signature, so both sides must hold the same."""
    rounds: int = Field(ge=1, le=1_000_000)
    """Rounds to run; the privacy budget is spread over exactly these."""
    participants: int | None = Field(default=None, ge=1, le=65_519)
    """Most participants of one round: the plan is for so many, and they may be enrolled one by one.

    Left out: as many as the roster lists when the study begins."""
    pause_s: float = Field(default=0.0, ge=0, le=604_800)
    """Seconds between the end of a round and the beginning of the next. An attempt that failed is repeated at once."""
    task: Annotated[str, AfterValidator(check_task_name)]
    """What is computed: a name that `learning.make_task.make_task` knows, or ``module:Class`` of one's own."""


class DataTable(Table):
    """[data]: where the examples come from and how they are cut into one part per participant."""

    dataset: Annotated[str, AfterValidator(check_dataset_name)] = "fashion-mnist-subset"
    """A name that `sordino data list` shows, FORMAT:PATH, or ``own``: each participant has a file of her own.

    ``fashion-mnist`` is the full set where this machine has it, else the subset that ships here."""
    partition: Literal["iid", "dirichlet", "shards", "natural"] = "dirichlet"
    """``iid``: the same mixture of classes for all. ``dirichlet``: a mixture drawn for each participant. ``shards``: a
    few runs of the examples sorted by class. ``natural``: one user of the set for each participant."""
    alpha: float = Field(default=1.0, gt=0, le=1e6)
    """Concentration of the Dirichlet mixture; small is uneven. Only ``dirichlet`` looks at it."""
    shards: int = Field(default=2, ge=1, le=1_000_000)
    """Runs of each participant. Only ``shards`` looks at it."""
    seed: int = Field(default=1, ge=0, lt=2**63)
    """Seed of the partition. Public; both sides cut the data set by it."""
    test: str = ""
    """The coordinator's own file to evaluate on, .npz or .csv; empty: the data set's test part, where it has one.
    Without either nothing is evaluated."""


class PrivacyTable(Table):
    """[privacy]: the budget, the clip, and what is assumed about participants."""

    mechanism: Literal["ddgauss", "skellam", "gaussian", "local-gaussian"] = "ddgauss"
    """Who adds which noise. ``gaussian``: the coordinator adds it, and sees the sum without it."""
    epsilon: float = Field(gt=0, le=1000)
    """Budget for epsilon_coordinator over all rounds."""
    delta: float = Field(gt=0, lt=1)
    """Chance that the guarantee fails; well below one over the number of participants."""
    clip: float | None = Field(default=None, gt=0, le=1e9)
    """Largest L2 norm of one update, in the model's own units. Left out: the task's own bound, or 1 if it has none."""
    bits: int = Field(default=16, ge=1, le=62)
    """B: bits of one value on the wire."""
    sampling: Literal["none", "lottery"] = "none"
    """``none``: everybody on the roster takes part in each round. ``lottery``: ``study.participants`` of them, drawn by
    the authority's seeds."""
    population: int | None = Field(default=None, ge=1, le=1_000_000)
    """Lottery only: the smallest roster that cohorts are drawn from."""
    largest_roster: int | None = Field(default=None, ge=1, le=1_000_000)
    """Lottery only: the largest one, for which A must hold. Left out: ``population``."""
    adversary: Literal["malicious", "curious"] = "malicious"
    """What the coordinator may do. ``curious``: participants trust it to tell all of them the same."""
    graph: Literal["auto", "complete", "harary"] = "auto"
    """On which secrets are shared; ``auto`` takes the k-regular ring where that halves the work."""
    max_dropout: float = Field(default=0.3, ge=0, lt=1)
    """Share of the cohort that may leave during a round."""
    adversarial: float = Field(default=0.05, ge=0, lt=1)
    """Share of the roster assumed to collude with the coordinator."""
    min_survivors: int | None = Field(default=None, ge=1)
    """Fewest participants in a sum; the noise is sized for it. Left out: derived from max_dropout."""
    quorum: int | None = Field(default=None, ge=1)
    """Fewest participants that may begin a round. Left out: min_survivors."""
    beta: float = Field(default=math.exp(-0.5), ge=0, lt=1)
    """Conditional rounding draws a vector again when its norm is above the bound of this probability."""
    k_stddevs: float = Field(default=4.0, gt=0, le=100)
    """How many standard deviations of the sum fit before it could wrap around."""
    rotation: Literal["auto", "hadamard", "hadamard-blocks"] = "auto"
    """What spreads an update before it is rounded; ``auto`` avoids padding of more than 5 %."""
    clip_by_layer: bool = False
    """Clip each array of the model by itself; of L arrays each begins with clip / sqrt(L)."""
    clip_scaling: Literal["uniform", "proportional", "least-noise"] = "uniform"
    """Noise by layer: the same everywhere, in proportion to each clip, or least in all."""
    clip_update: Literal["fixed", "geometric", "linear"] = "fixed"
    """Whether clips follow a quantile of the norms, estimated inside the same noisy sum."""
    clip_quantile: float = Field(default=0.5, gt=0, lt=1)
    clip_rate: float = Field(default=0.3, gt=0, le=10)
    clip_bit_weight: float = Field(default=0.3, ge=1e-3, le=1)
    """Size of the coordinates that carry the quantile, in units of the clip."""
    sketch_rows: int = Field(default=0, ge=0, le=1024)
    """Rows of a count-mean sketch that is sent in place of the update; 0: none."""
    sketch_ratio: float = Field(default=10.0, ge=1, le=1e6)
    """By how much the sketch is shorter than the update."""

    def coding(self, layers: Sequence[int], clip: float) -> dict[str, Any]:
        """Arguments of `wire.study.plan_study` for a model whose arrays hold so many values.

        Args:
            clip: as `learning.make_task.clip_of` settles it.
        """
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
        if (self.sampling == "lottery") != (self.population is not None):
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
    """[deadlines]: the longest a phase waits, in seconds. It ends at once when all have answered or left."""

    connect_s: Seconds = 60.0
    """Wait for the roster to connect before a round; then begin with the quorum."""
    advertise_keys_s: Seconds = 15.0
    share_keys_s: Seconds = 20.0
    masked_input_s: Seconds = 60.0
    """Includes the local training."""
    consistency_check_s: Seconds = 15.0
    unmasking_s: Seconds = 15.0
    resume_s: float = Field(default=2.0, ge=0, le=3600)
    """How long a participant whose connection broke within a round keeps its place there; 0: a dropout at once."""


class ServerOptimizerTable(Table):
    """[server_optimizer]: how the coordinator applies the mean update."""

    name: Literal["fedavg", "fedadagrad", "fedadam", "fedyogi"] = "fedavg"
    """Federated averaging with momentum, or one of the adaptive ones."""
    rate: float | None = Field(default=None, gt=0, le=1e6)
    """Left out: 1 for fedavg, and what `learning.server_optimizers.DEFAULT_RATES` says for the adaptive ones."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    second_momentum: float = Field(default=0.99, ge=0, lt=1)
    """Of the squares that fedadam and fedyogi keep."""
    adaptivity: float = Field(default=1e-3, gt=0, le=1e6)
    """tau of the adaptive ones: what is added to the root of those squares."""

    def make(self) -> ServerOptimizer:
        """The optimizer, at rest."""
        return make_server_optimizer(self.name, self.rate, self.momentum, self.second_momentum, self.adaptivity)


class CoordinatorTable(Table):
    """[coordinator]: the process itself. Paths are relative to study.toml."""

    listen: str = "127.0.0.1:8443"
    """HOST:PORT; port 0 takes a free one."""
    state: Path = Path("coordinator/state.sqlite")
    """Journal and events; the ledger and checkpoints are written beside it."""
    tls_certificate: Path = Path("coordinator/tls/server.pem")
    tls_key: Path = Path("coordinator/tls/server.key")
    roster: Path = Path("roster.json")
    authority_public_key: Path = Path("authority/authority.pub")
    """File with the authority's Ed25519 public key, 64 hexadecimal digits."""
    client_ca: Path = Path("tls/ca.pem")
    """Certificate authority of client certificates; whoever has none of it opens no connection."""
    enrolment_listen: str = ""
    """HOST:PORT on which places are asked for; empty: nobody can join or renew over the network."""
    http_listen: str = ""
    """HOST:PORT for /metrics, /healthz and /readyz, without TLS: for whoever operates it, not for participants. Empty:
    nowhere."""
    card: Path = Path("coordinator/card.json")
    """What whoever wants to join is shown, signed by the authority; read where enrolment_listen is set."""
    transcript_key: Path = Path("coordinator/transcript.key")
    """The coordinator's own Ed25519 key, which signs transcripts; secret."""
    transcripts: Literal["keep", "off"] = "keep"
    """``keep``: a signed file for each finished round, in ``transcripts/`` beside the state."""
    publish_transcripts: bool = False
    """Copies in ``published/`` that anybody may read. They name who took part: sampling amplifies no epsilon then."""
    lottery: Path = Path("lottery.json")
    """Seeds of the cohorts, of the roster's version; only where cohorts are drawn."""
    max_attempts: int = Field(default=3, ge=1, le=100)
    """How often a round that aborts is tried before the study stops. Each attempt that unmasks is charged."""
    upload_credits: int = Field(default=64, ge=1, le=4096)
    """Uploads held in memory at the same time; the others wait."""
    one_machine: bool = False
    """All parts on one machine: A may be below the largest host; the guarantee is honest-but-curious."""

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


class StudyConfiguration(Settings):
    """One study as its owner configured it; frozen, validated once.

    ``SORDINO_PRIVACY__EPSILON=4`` and the like override single keys of the file.
    """

    study: StudyTable
    task: dict[str, TaskOption] = Field(default_factory=dict)
    """Options of the task; the task itself checks them."""
    data: DataTable = DataTable()
    privacy: PrivacyTable
    deadlines: DeadlineTable = DeadlineTable()
    server_optimizer: ServerOptimizerTable = ServerOptimizerTable()
    coordinator: CoordinatorTable = CoordinatorTable()

    @model_validator(mode="after")
    def _cohort(self) -> Self:
        if self.privacy.sampling == "lottery" and self.study.participants is None:
            raise ValueError('study.participants is missing: with sampling = "lottery" it says how many are drawn')
        return self

    def read_authority_public_key(self) -> bytes:
        """The 32 bytes of the key that signs rosters.

        Raises:
            ConfigurationError: the file isn't 64 hexadecimal digits.
        """
        path = self.coordinator.authority_public_key
        try:
            key = bytes.fromhex(path.read_text(encoding="ascii").strip())
        except (OSError, ValueError):
            key = b""
        if len(key) != 32:
            raise ConfigurationError(
                f"{path}: not an Ed25519 public key (64 hexadecimal digits). "
                "Copy authority.pub from where the authority's key was made."
            )
        return key


def load(path: Path) -> StudyConfiguration:
    """Read a study's file, or the ``study.toml`` in a study's folder; all paths come back absolute.

    Raises:
        ConfigurationError: the file, a key in it, or a file that it names can't be used.
    """
    file = path / STUDY_FILE if path.is_dir() else path
    configuration = read_settings(StudyConfiguration, file, hint=_HINT)
    base = file.resolve().parent
    table = configuration.coordinator
    made_later = {"state", "lottery", "transcript_key"} | (set() if table.enrolment_listen else {"card"})
    paths: dict[str, Any] = {name: base / getattr(table, name) for name in _PATHS}
    readable = {f"coordinator.{name}": value for name, value in paths.items() if name not in made_later}
    if configuration.data.test:
        readable["data.test"] = base / configuration.data.test
    check_files(file, readable, hint="Correct the path, or make the study again with `sordino init`.")
    data = configuration.data
    examples = {"dataset": located(data.dataset, base), "test": str(base / data.test) if data.test else ""}
    return configuration.model_copy(
        update={"coordinator": table.model_copy(update=paths), "data": data.model_copy(update=examples)}
    )
