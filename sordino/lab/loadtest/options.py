"""The one model of a load test: options of ``sordino loadtest``, keys of scenario files and the table in the docs.

A scenario file is TOML with the options' names, ``_`` in place of ``-``. An option that may be given more than once is
a list there (``crash = [2, 4]``) or an array of tables (``[[link]]``); the other faults are tables (``[stragglers]``).
``description`` states the scenario's purpose. docs/load_tests.md has an example.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationError

from runtime.failure import InputFailure
from runtime.settings_file import ConfigurationError, Table, explain, read_toml
from runtime.settings_keys import key
from server.study_tables import DeadlineTable
from sordino.lab.loadtest import faults
from sordino.lab.loadtest.availability import Availability, Presence

CONNECTIONS_FILE: Final = "connections.json"
"""In a host's folder: the troubles of its process with connections."""
LOAD: Final = "Load"
FAULTS: Final = "Faults"
BOUNDS: Final = "Bounds (broken: exit code 1)"
_DEADLINES_S: Final = {"disconnect": 60.0, "silent": 10.0}  # with `disconnect` phases end without waiting
_ELSEWHERE_S: Final = 10.0  # for a participant to go on at another gateway, on a busy machine
_PAUSE_S: Final = 1.0
_load, _planned = partial(key, panel=LOAD), partial(key, panel=FAULTS)
_seconds: Final = partial(_load, None, unit="s")


def _fault(default: Any, about: str, kind: type[faults.Fault], **more: Any) -> Any:
    """A key whose value is a table of a fault; its help names the fault's keys."""
    names = ", ".join(kind.model_fields)
    return _planned(default, f"{about}: {names}", metavar="NAME=VALUE,...", **more)


def _bound(about: str, **more: Any) -> Any:
    """A key that bounds a result, 0 or more; not checked by default."""
    return key(None, about, ge=0, panel=BOUNDS, **more)


def _several(what: str) -> BeforeValidator:
    """Name how a list is written in a scenario file, where it holds one value instead."""

    def check(given: Any) -> Any:
        if not isinstance(given, list | tuple):
            raise ValueError(f"must be a list: write {what}")
        return given

    return BeforeValidator(check)


class LoadOptions(Table):
    """A load test.

    Attributes:
        began_at: start of the seconds of `availability`, seconds since the epoch; set when processes are started.
    """

    model_config = ConfigDict(populate_by_name=True)

    description: str = key("", "purpose of a scenario", option=None)
    clients: int = _load(50, "participants in all", within=(3, 65_519))
    processes: int = _load(4, "client processes that share the participants evenly", ge=1)
    gateways: int = _load(0, "gateways of the coordinator, in processes of Ray; 0: it is one process", within=(0, 64))
    workers: int = _load(0, "tasks of Ray that open a sum at once; 0: threads of the coordinator", within=(0, 64))
    dim: int = _load(10_000, "values of a vector, before padding", within=(1, 1 << 28))
    bits: int = _load(20, "bits of one value on the wire", within=(1, 62))
    key_agreement: Literal["x25519", "x25519-mlkem768"] = _load(
        "x25519", "of channels and masks: x25519, or x25519-mlkem768"
    )
    adversary: Literal["malicious", "curious"] = _load(
        "malicious", "the coordinator that the plan protects from; curious: survivor sets aren't signed"
    )
    rounds: int = _load(5, "rounds to begin, aborted ones included", ge=1)
    seed: int = _load(1, "seed of vectors, dropouts and other faults", within=(0, 2**63 - 1))
    deadline_s: float | None = _seconds(
        "longest wait of each phase", alias="deadline", shown="60, or 10 if silent", within=(0.1, 86_400)
    )
    pause_s: float | None = _seconds(
        "pause between rounds",
        alias="pause",
        shown="0, or 1 with crashes and storms between rounds",
        within=(0, 604_800),
    )
    resume_s: float | None = _seconds(
        "how long a broken connection keeps its reconnection slot in an attempt",
        alias="resume",
        shown="0, or 2 with resets and storms",
        within=(0, 3600),
    )
    noise: bool = _load(
        False, "add real noise to updates of zero; each sum is compared with the planned deviation, not bit by bit"
    )
    verify_once: bool = _load(False, "participants of one process verify each signature once, as in one sordino join")
    thin: bool = _load(
        False,
        "participants that do none of a participant's own work and send all that the coordinator checks, so that "
        "one machine can load a coordinator with thousands",
    )
    drop: float = _planned(0.1, "share of the participants that leave in each round", ge=0, lt=1, example="0.1")
    at: Literal["any", faults.PhaseName] = _planned(
        faults.ANY, f"phase at which they leave: {', '.join(faults.PHASE_NAMES)}, or any", metavar="PHASE"
    )
    drop_style: Literal["disconnect", "silent"] = _planned(
        "disconnect",
        "disconnect: they close the connection, and reconnect for the next round. silent: they stay connected "
        "and send nothing, so the phase waits for its deadline",
    )
    stragglers: faults.Stragglers | None = _fault(
        None, "participants that answer late in each round", faults.Stragglers
    )
    links: Annotated[tuple[faults.Link, ...], _several("[[link]]")] = _fault(
        (), "bad link for a share of the participants; can be repeated", faults.Link, alias="link"
    )
    storms: Annotated[tuple[faults.Storm, ...], _several("[[storm]]"), AfterValidator(faults.in_order)] = _fault(
        (), "connections that break at once; can be repeated", faults.Storm, alias="storm"
    )
    crashes: Annotated[
        tuple[Annotated[int, Field(ge=1)], ...],
        _several("[2, 4]"),
        AfterValidator(lambda rounds: tuple(sorted(rounds))),
    ] = _planned(
        (),
        "kill the coordinator at the end of this round and restart it; can be repeated",
        metavar="ROUND",
        alias="crash",
    )
    kills: int = _planned(
        0,
        "kill the coordinator this many times, each within two seconds after it serves, and restart it at once",
        within=(0, 100_000),
    )
    engine_kills: int = _planned(
        0,
        "kill a gateway in each of so many rounds, at each phase in turn; with --workers, a worker as well",
        within=(0, 100_000),
    )
    cheats: faults.Cheats | None = _fault(None, "participants that cheat", faults.Cheats)
    availability: Availability | None = _fault(None, "participants that go online and offline", Availability)
    max_p95_s: float | None = _bound("largest 95th percentile of a round's time", unit="s", alias="max_p95")
    min_completed: int | None = _bound("fewest rounds that end in a sum")
    min_share: float | None = _bound("smallest share of the rounds that end in a sum", le=1)
    max_rss_mb: float | None = _bound("largest memory of the coordinator", unit="MB", alias="max_rss")
    max_growth: float | None = _bound(
        "largest growth of the coordinator's memory, open files and tasks, and of what a round adds to its journal, "
        "from the second tenth of the rounds to the last"
    )
    min_resumed: float | None = _bound(
        "smallest share of the attempts that end in a sum, of those that --kills hit after MaskedInputCollection began",
        le=1,
    )
    max_unplanned: int | None = _bound("most dropouts that no planned fault explains")
    noise_within: float | None = _bound("largest relative deviation of the noise from the plan, such as 0.01")
    began_at: float = 0.0

    def changed(self, **values: Any) -> Self:
        """With other values, checked; by field name. Raises pydantic.ValidationError: a value is out of range."""
        return self.model_validate({name: getattr(self, name) for name in type(self).model_fields} | values)

    def check(self) -> None:
        """Check options against each other, and read the trace.

        Raises Failure: two options contradict each other, or the trace can't be used.
        """
        for contradiction in self._contradictions():
            raise InputFailure(contradiction)
        self.presence()

    def _contradictions(self) -> Iterator[str]:
        if self.processes > self.clients:
            yield (
                f"--processes {self.processes} can't share --clients {self.clients}: each process needs at least one. "
                f"Use --processes {self.clients} or fewer."
            )
        if (self.min_completed or 0) > self.rounds:
            yield f"--min-completed {self.min_completed} can't be met by --rounds {self.rounds}. Lower the bound."
        if self.noise_within is not None and not self.noise:
            yield "--noise-within is a bound on real noise: add --noise."
        if self.engine_kills and not self.gateways:
            yield "--engine-kills kills gateways: add --gateways 2."
        if self.min_resumed is not None and not self.kills:
            yield "--min-resumed is a bound on attempts that were cut off: add --kills."
        if sum(link.share for link in self.links) > 1 + 1e-9:
            yield "the links' shares are more than 1 together. Lower one of them."
        for name, round_ in [("crash", one) for one in self.crashes] + [("storm", one.round) for one in self.storms]:
            if round_ > self.rounds:
                yield (
                    f"--{name}: there is no round {round_}, only 1 to {self.rounds}. Use --rounds {round_} or more, or "
                    "an earlier round."
                )
        moments = [(one.round, one.at) for one in self.storms]
        for round_, at in moments:
            if moments.count((round_, at)) > 1:
                yield f"--storm: two come at the same moment, round={round_},at={at}. Change the round or at of one."
        if self.rounds in self.crashes:
            yield f"--crash {self.rounds} is after the last round. Raise --rounds, or use an earlier round."

        if self.thin and (unsupported := self._not_thin()):
            yield (
                "--thin participants never read what others send, don't resume, and leave out the masks of everybody "
                f"that isn't planned to leave: use it without {', '.join(unsupported)}."
            )

    def _not_thin(self) -> list[str]:
        """Options that thin participants don't support, where they are set."""
        given = {
            "--noise": self.noise,
            "--verify-once": self.verify_once,
            "--key-agreement x25519-mlkem768": self.key_agreement != "x25519",
            "--stragglers beyond --deadline": self.stragglers is not None and self.stragglers.to_s >= self.seconds,
            "--link": self.links,
            "--storm": self.storms,
            "--crash": self.crashes,
            "--kills": self.kills,
            "--engine-kills": self.engine_kills,
            "--cheats": self.cheats,
            "--availability": self.availability,
        }
        return [name for name, value in given.items() if value]

    @property
    def seconds(self) -> float:
        """Longest wait of a phase."""
        return _DEADLINES_S[self.drop_style] if self.deadline_s is None else self.deadline_s

    @property
    def dropped(self) -> int:
        return faults.dropped_count(self.clients, self.drop)

    @property
    def kept_s(self) -> float:
        """For which a broken connection keeps its slot; planned dropouts discard the round in any case."""
        if self.resume_s is not None:
            return self.resume_s
        if self.engine_kills:
            return _ELSEWHERE_S
        breaks = bool(self.storms or self.kills) or any(link.resets_per_min for link in self.links)
        return DeadlineTable().resume_s if breaks else 0.0

    @property
    def paused_s(self) -> float:
        if self.pause_s is not None:
            return self.pause_s
        between = bool(self.crashes) or any(storm.at == faults.BETWEEN_ROUNDS for storm in self.storms)
        return _PAUSE_S if between else 0.0

    @property
    def missing(self) -> float:
        """Share of the participants that the plan must tolerate as missing in a round."""
        share = self.drop + (self.cheats.share if self.cheats is not None else 0.0)
        if self.stragglers is not None and self.stragglers.to_s >= self.seconds:
            share += self.stragglers.share
        if self.availability is not None:
            share += self.availability.away_share(self.clients)
        return min(share, 0.99)

    def drops(self, round_: int, attempt: int) -> dict[int, faults.Drop]:
        return faults.drops_of(self.seed, round_, attempt, clients=self.clients, share=self.drop, at=self.at)

    def delays(self, round_: int, attempt: int) -> dict[int, faults.Delay]:
        if self.stragglers is None:
            return {}
        others = {*self.drops(round_, attempt), *self.cheaters()}
        return self.stragglers.delays(self.seed, round_, attempt, clients=self.clients, others=others)

    def cheaters(self) -> dict[int, str]:
        """Participants that cheat, and in which way."""
        return {} if self.cheats is None else self.cheats.participants(self.seed, self.clients)

    def linked(self) -> dict[int, faults.Link]:
        """Participants whose link differs from this machine's."""
        return faults.links_of(self.links, self.seed, self.clients)

    def struck(self, storm: faults.Storm) -> frozenset[int]:
        return storm.struck(self.seed, self.clients)

    def presence(self) -> Presence:
        """When participants are online. Raises Failure: the trace can't be used."""
        return Presence(self.availability, self.seed)

    def to_json(self) -> dict[str, Any]:
        """For result.json: every option as it is used."""
        values = self.model_dump(mode="json", exclude={"description", "began_at"})
        return values | {"deadline_s": self.seconds, "resume_s": self.kept_s, "pause_s": self.paused_s}


def read_scenario(path: Path) -> dict[str, Any]:
    """A file's values under their names there.

    Raises Failure: the file can't be read, or a name or value can't be used.
    """
    values = read_toml(path, hint="docs/load_tests.md describes scenarios.")
    table = values.get("availability")
    if isinstance(table, dict) and table.get("trace"):
        values["availability"] = table | {"trace": str(path.parent / str(table["trace"]))}
    try:
        LoadOptions.model_validate(values)
    except ValidationError as error:
        lines = [f"{path}: {explain(LoadOptions, detail)}" for detail in error.errors(include_url=False)]
        raise ConfigurationError("\n".join(lines)) from None
    return values
