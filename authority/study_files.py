"""The text of ``study.toml`` and ``host.toml``, every key with a comment that says what it means."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from learning.data_names import OWN
from wire.guarantee import CURIOUS_TRUST

if TYPE_CHECKING:
    from authority.study_options import StudyOptions

Number = TypeVar("Number", int, float)


def study_toml(options: StudyOptions, *, dataset: str, task: Mapping[str, object]) -> str:
    """The study's file, read back by ``server.study_file.load``.

    Args:
        options: as chosen; ``min_survivors`` and ``quorum`` settled.
        dataset: the concrete data set.
        task: every option of the task with its value.
    """
    return _aligned(
        [
            "# A Sordino study. `sordino serve` reads this file; SORDINO_PRIVACY__EPSILON=4 and the like override",
            "# single keys. What is marked (fixed) is part of what participants sign: to change it, make a new folder",
            "# with `sordino init`.",
            "",
            "[study]",
            _line("name", options.name, "(fixed) letters, digits, . _ -"),
            _line("rounds", options.rounds, "(fixed) rounds that share the privacy budget"),
            _line("participants", options.in_a_round, "(fixed) most in one round; the plan is for so many"),
            _line("pause_s", _short(options.pause_s), "seconds between the end of a round and the next one"),
            _line("task", options.task, "(fixed) what is computed; `sordino init --help` lists them"),
            "",
            "[task]  # (fixed) what each participant computes in a round",
            *(_line(key, value, _TASK_COMMENTS.get(key, "option of the task")) for key, value in task.items()),
            "",
            "[data]  # (fixed)",
            _line("dataset", dataset, "`sordino data list` shows them; own: each participant has a file"),
            *_cut(options, dataset),
            _line("test", options.test, "your own file to evaluate on; empty: the data set's test part"),
            "",
            "[privacy]  # (fixed)",
            _line("mechanism", options.mechanism, "ddgauss, skellam, local-gaussian; gaussian: trusts the coordinator"),
            _line("epsilon", options.epsilon, "budget of the whole study; the noise follows from it"),
            _line("delta", options.delta, "chance that the guarantee fails; far below 1/participants"),
            _line("clip", _settled(options.clip), "largest L2 norm of one update; the first one where clips adapt"),
            _line("clip_by_layer", options.clip_by_layer, "each array of the model by itself"),
            _line("clip_scaling", options.clip_scaling, "noise by layer: uniform, proportional, least-noise"),
            _line("clip_update", options.clip_update, "fixed; geometric or linear: follow a quantile of the norms"),
            _line("clip_quantile", options.clip_quantile, "share of norms that should lie below the clip"),
            _line("clip_rate", options.clip_rate, "step of that"),
            _line("clip_bit_weight", options.clip_bit_weight, "size of the coordinates that carry it, over the clip"),
            _line("sketch_rows", options.sketch_rows, "of a count-mean sketch sent instead of the update; 0: none"),
            _line("sketch_ratio", options.sketch_ratio, "by how much it is shorter"),
            _line("rotation", options.rotation, "auto, hadamard (pads to a power of two), hadamard-blocks"),
            *_sampling(options),
            _line("bits", options.bits, "of one value on the wire, 1 to 62"),
            _line("max_dropout", options.max_dropout, "share of participants that may leave in a round"),
            _line("adversarial", options.adversarial, "share assumed to collude with the coordinator"),
            f"# A curious coordinator is {CURIOUS_TRUST}.",
            _line("adversary", options.adversary, "what the coordinator may do: malicious or curious"),
            _line("graph", options.graph, "complete, harary (the ring), auto: the ring where it halves the work"),
            _line("min_survivors", _settled(options.min_survivors), "fewest in a sum; the noise is sized for it"),
            _line("quorum", _settled(options.quorum), "fewest that may begin a round"),
            _line("beta", options.beta, "rounding is repeated above the norm bound of this level"),
            _line("k_stddevs", options.k_stddevs, "room before the sum could wrap, in standard deviations"),
            "",
            "[deadlines]  # longest wait in seconds; a phase ends early when all have answered",
            _line("connect_s", _short(options.connect_s), "for the roster to connect, then go on with the quorum"),
            _line("advertise_keys_s", _short(options.deadline_s or 15), "fresh keys"),
            _line("share_keys_s", _short(options.deadline_s or 20), "encrypted shares of the secrets"),
            _line("masked_input_s", _short(_training_s(options)), "local training and the masked update"),
            _line("consistency_check_s", _short(options.deadline_s or 15), "signatures over who is in the sum"),
            _line("unmasking_s", _short(options.deadline_s or 15), "the shares that open the sum"),
            _line("resume_s", _short(options.resume_s), "how long a connection that broke keeps its place in a round"),
            "",
            "[server_optimizer]",
            _line("name", options.server_optimizer, "fedavg; adaptive: fedadam, fedyogi, fedadagrad"),
            _line("rate", _settled(options.server_rate), "step along the mean update; adaptive ones: 0.01 to 0.1"),
            _line("momentum", options.server_momentum, "0 is plain averaging"),
            _line("second_momentum", options.server_second_momentum, "fedadam, fedyogi: of the mean's squares"),
            _line("adaptivity", options.server_adaptivity, "adaptive ones: added to the root of those squares"),
            "",
            "[coordinator]  # paths are relative to this file",
            _line("listen", options.listen, "HOST:PORT; 0.0.0.0:PORT for all interfaces"),
            _line("state", "coordinator/state.sqlite", "journal and events; ledger.sqlite beside it: keep both"),
            _line("tls_certificate", "coordinator/tls/server.pem", ""),
            _line("tls_key", "coordinator/tls/server.key", "secret"),
            _line("roster", "roster.json", "signed by the authority"),
            _line("authority_public_key", "coordinator/authority.pub", "the private half must not be here"),
            _line("client_ca", "tls/ca.pem", "who connects needs a certificate of it"),
            _line("enrolment_listen", options.enrolment_listen, "HOST:PORT where places are asked for; empty: nowhere"),
            _line("http_listen", options.http_listen, "HOST:PORT for /metrics, /healthz, /readyz; empty: nowhere"),
            _line("card", "coordinator/card.json", "what whoever joins is shown; signed by the authority"),
            _line("transcript_key", "coordinator/transcript.key", "secret; signs transcripts"),
            _line("max_attempts", options.max_attempts, "at one round; each attempt that unmasks costs budget"),
            _line("upload_credits", 64, "uploads held in memory at once"),
            _line("transcripts", "keep", _TRANSCRIPTS.get(options.adversary, _TRANSCRIPTS["malicious"])),
            _line("publish_transcripts", False, "true tells everybody who took part: sampling amplifies nothing then"),
            _line("one_machine", options.one_machine, "all parts on one machine: honest-but-curious only"),
            "",
        ]
    )


def host_toml(
    options: StudyOptions,
    *,
    host: str,
    authority_public_key: str,
    dataset: str,
    task: Mapping[str, object],
    participants: Sequence[tuple[str, int | str]],
    h_min: int,
    colluders: int,
) -> str:
    """A host's file, read back by ``client.host_file.load``.

    Args:
        participants: for each one its key file, relative to the host's folder, and its part of the data; or the file
            that holds her own.
        h_min, colluders: fewest honest participants in a sum, and A, under the study's plan.
    """
    lines = [
        "# One client process of a Sordino study. `sordino join --home` reads this file. The folder is complete:",
        "# copy it whole to the machine that holds the data, and change [coordinator] address.",
        "",
        "[host]",
        _line("name", host, "as the roster has it"),
        _line("journal", "journal.sqlite", "attempts; keep it, never share it"),
        _line("ledger", "ledger.sqlite", "what was spent; keep it, one for all studies over this data"),
        "",
        "[study]",
        _line("name", options.name, ""),
        _line("task", options.task, ""),
        "# The key that signs rosters. It must come from the authority, not from the coordinator.",
        _line("authority_public_key", authority_public_key, ""),
        "",
        "[coordinator]",
        _line("address", options.client_address, "HOST:PORT"),
        _line("ca", "ca.pem", "what its TLS certificate must chain to"),
        _line("certificate", "tls/client.pem", "whom this process may speak for"),
        _line("key", "tls/client.key", "secret"),
        _line("enrolment", options.client_enrolment, "HOST:PORT where the certificate is renewed; empty: it isn't"),
        _line("give_up_s", 60, "keep trying this long while it is away; 0: for ever"),
        "",
        "# [conditions] mains_power, idle = true: when this device takes part; see docs/edge.md.",
        "",
        "[policy]  # a round that breaks it is refused",
        _line("max_epsilon", options.epsilon, "most that one participant may spend in this study"),
        _line("max_delta", options.delta, ""),
        _line("mechanism", options.mechanism, _MECHANISM_COMMENTS[options.mechanism]),
        _line("min_honest_survivors", h_min, "fewest honest participants in a sum"),
        _line("min_colluders", colluders, "participants that must be assumed to collude"),
        _line("one_machine", options.one_machine, "accept more participants on one host than that: a trial"),
        *_curious(options),
        "",
        "[task]  # as in the study's file",
        *(_line(key, value, _TASK_COMMENTS.get(key, "option of the task")) for key, value in task.items()),
        "",
        *_data(options, dataset),
    ]
    for key, held in participants:
        lines += ["", "[[participants]]", _line("key", key, "secret")]
        if isinstance(held, str):
            lines.append(_line("data", held, "her file: put it there as .csv or .npz"))
        else:
            lines.append(_line("part", held, ""))
    return _aligned(lines)


def _cut(options: StudyOptions, dataset: str) -> list[str]:
    if dataset == OWN:
        return []
    return [
        _line("partition", options.partition, "iid, dirichlet: uneven classes, shards, natural: one user each"),
        _line("alpha", options.alpha, "dirichlet only: small is uneven"),
        _line("shards", options.shards, "shards only: runs of one class for each participant"),
        _line("seed", options.seed, "of the partition; public"),
    ]


def _data(options: StudyOptions, dataset: str) -> list[str]:
    if dataset == OWN:
        return [
            "[data]  # each participant has a file of her own: .csv, a line of column names and then numbers, or .npz,",
            "# features and labels (docs/data.md). A name below without a suffix stands for either; or name any file.",
            _line("dataset", dataset, ""),
        ]
    return [
        "[data]  # the data set, cut into parts; each participant holds one",
        _line("dataset", dataset, ""),
        _line("partition", options.partition, ""),
        _line("alpha", options.alpha, ""),
        _line("shards", options.shards, ""),
        _line("seed", options.seed, ""),
        _line("parts", options.places, ""),
    ]


def _curious(options: StudyOptions) -> list[str]:
    if options.adversary != "curious":
        return []
    return [
        f"# The coordinator is {CURIOUS_TRUST}.",
        _line("curious_coordinator", True, "accept that; nobody signs who is in a sum"),
    ]


def _sampling(options: StudyOptions) -> list[str]:
    if options.smallest_roster is None:
        return [_line("sampling", options.sampling, "everybody takes part in each round; or lottery")]
    return [
        _line("sampling", options.sampling, "study.participants of them take part in a round, drawn by the authority"),
        _line("population", options.smallest_roster, "fewest on the roster"),
        _line("largest_roster", options.places, "most on the roster"),
    ]


_MARK = "\x00"  # stands between a key and its comment until the table is aligned
_MECHANISM_COMMENTS = {
    "ddgauss": "the only one that is accepted; everybody adds a share of the noise",
    "skellam": "the only one that is accepted; everybody adds a share of the noise",
    "local-gaussian": "the only one that is accepted; each report is private by itself",
    "gaussian": "trusted to add it: the coordinator sees sums without noise",
}
_TRANSCRIPTS = {
    "malicious": "a signed file for each finished round; off: none",
    "curious": "none in a curious study, whatever this says",
}
_TASK_COMMENTS = {
    "of": "the task that votes: a classifier",
    "method": "dp-fedavg, dp-fedsgd, fedprox, blur, lus, blur-lus",
    "queries": "public examples that are voted on in a round",
    "pool": "share of the coordinator's examples that may be asked about; the rest judge the model",
    "confidence": "least share of votes that labels an example; 0 takes all",
    "server_epochs": "passes of the global model over what was labelled",
    "server_rate": "its step size; 0: client_rate",
    "server_batch_size": "its examples in one step; 0: batch_size",
    "column": "number of a column from 0, or label; several with commas",
    "low": "public lower bound of a value, in the column's units",
    "high": "public upper bound; values beyond count as the bound",
    "reduce": "what a participant's rows become",
    "count": "whether a participant may have no value; false is less noisy",
    "bins": "of equal width between the bounds, or classes from 0",
    "quantiles": "shares, with commas between; more of them cost nothing",
    "local_steps": "steps in a round, whatever the number of examples",
    "blur_weight": "lambda of BLUR: how hard a change longer than the clip is drawn back",
    "sparsity": "share of each array that LUS zeroes",
    "proximal_weight": "mu of FedProx",
    "client_rate": "step size of local training",
    "batch_size": "examples in one step",
    "local_epochs": "passes over one's own data in a round",
    "pooling": "side of the square of pixels averaged into one feature",
    "pixel_scale": "a feature is pixel_scale x pixel + pixel_offset",
    "pixel_offset": "",
    "features": "numbers in one example; 0: examples are images",
    "classes": "labels are 0 to classes - 1",
    "side": "of the images, in pixels",
    "channels": "of the images: 1 is grey, 3 are colours",
    "hidden": "units of the hidden layer, or of the LSTM",
    "initial_seed": "of the initial weights; public",
    "groups": "of channels that are normalised together",
    "vocabulary": "words, besides the four special ones",
    "length": "words of one example",
    "embedding": "numbers that stand for one word",
}


def _line(key: str, value: object, comment: str) -> str:
    return f"{key} = {_toml(value)}" + (f"{_MARK}{comment}" if comment else "")


def _aligned(lines: Sequence[str]) -> str:
    """Comments of one table one under the other."""
    result: list[str] = []
    table: list[str] = []
    for line in [*lines, ""]:
        table.append(line)
        if line:
            continue
        marked = [part.split(_MARK)[0] for part in table if _MARK in part]
        width = max((len(part) for part in marked), default=0)
        for part in table:
            before, _, comment = part.partition(_MARK)
            result.append(f"{before:<{width}}  # {comment}" if comment else before)
        table = []
    return "\n".join(result)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    return json.dumps(str(value))  # for the strings used here a JSON string is a TOML basic string


def _training_s(options: StudyOptions) -> float:
    return options.training_s or options.deadline_s or 60


def _short(seconds: float) -> float:
    """``60`` and not ``60.0``."""
    return int(seconds) if seconds == int(seconds) else seconds


def _settled(value: Number | None) -> Number:
    assert value is not None  # noqa: S101  # settled before a file is written
    return value
