"""The text of ``host.toml``, every key with a comment that says what it means."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from learning.data_names import OWN
from learning.option_help import OPTION_HELP
from wire.guarantee import CURIOUS_TRUST

if TYPE_CHECKING:
    from mechanisms.plan import Plan
    from server.study_file import StudyConfiguration



def host_toml(
    study: StudyConfiguration,
    plan: Plan,
    *,
    host: str,
    authority_public_key: str,
    address: str,
    enrolment: str,
    participants: Sequence[tuple[str, int | str]],
) -> str:
    """A host's file, read back by ``client.host_file.load``.

    Args:
        address, enrolment: HOST:PORT of the sessions, and of requests to join or renew.
        participants: for each one its key file, relative to the host's folder, and its part of the data; or the file
            that holds her own.
        study: settled, with every option of the task and the concrete data set.
    """
    privacy = study.privacy
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
        _line("name", study.study.name, ""),
        _line("task", study.study.task, ""),
        "# The key that signs rosters. It must come from the authority, not from the coordinator.",
        _line("authority_public_key", authority_public_key, ""),
        "",
        "[coordinator]",
        _line("address", address, "HOST:PORT"),
        _line("ca", "ca.pem", "what its TLS certificate must chain to"),
        _line("certificate", "tls/client.pem", "whom this process may speak for"),
        _line("key", "tls/client.key", "secret"),
        _line("enrolment", enrolment, "HOST:PORT where the certificate is renewed; empty: it isn't"),
        _line("give_up_s", 60, "keep trying this long while it is away; 0: for ever"),
        "",
        "# [conditions] mains_power, idle = true: when this device takes part; see docs/edge.md.",
        "",
        "[policy]  # a round that breaks it is refused",
        _line("max_epsilon", privacy.epsilon, "most that one participant may spend in this study"),
        _line("max_delta", privacy.delta, ""),
        _line("mechanism", privacy.mechanism, _MECHANISM_COMMENTS[privacy.mechanism]),
        _line("min_honest_survivors", plan.h_min, "fewest honest participants in a sum"),
        _line("min_colluders", plan.colluders, "participants that must be assumed to collude"),
        _line("one_machine", study.coordinator.one_machine, "accept more participants on one host than that: a trial"),
        *_curious(privacy.adversary),
        "",
        "[task]  # as in the study's file",
        *(_line(key, value, OPTION_HELP.get(key, "")) for key, value in study.task.items()),
        "",
        *_data(study),
    ]
    for key, held in participants:
        lines += ["", "[[participants]]", _line("key", key, "secret")]
        if isinstance(held, str):
            lines.append(_line("data", held, "her file: put it there as .csv or .npz"))
        else:
            lines.append(_line("part", held, ""))
    return _aligned(lines)






def _data(study: StudyConfiguration) -> list[str]:
    data = study.data
    if data.dataset == OWN:
        return [
            "[data]  # each participant has a file of her own: .csv, a line of column names and then numbers, or .npz,",
            "# features and labels (docs/data.md). A name below without a suffix stands for either; or name any file.",
            _line("dataset", data.dataset, ""),
        ]
    return [
        "[data]  # the data set, cut into parts; each participant holds one",
        _line("dataset", data.dataset, ""),
        _line("partition", data.partition, ""),
        _line("alpha", data.alpha, ""),
        _line("shards", data.shards, ""),
        _line("seed", data.seed, ""),
        _line("parts", study.places, ""),
    ]


def _curious(adversary: str) -> list[str]:
    if adversary != "curious":
        return []
    return [
        f"# The coordinator is {CURIOUS_TRUST}.",
        _line("curious_coordinator", True, "accept that; nobody signs who is in a sum"),
    ]




_MARK = "\x00"  # stands between a key and its comment until the table is aligned
_MECHANISM_COMMENTS = {
    "ddgauss": "the only one that is accepted; everybody adds a share of the noise",
    "skellam": "the only one that is accepted; everybody adds a share of the noise",
    "local-gaussian": "the only one that is accepted; each report is private by itself",
    "gaussian": "trusted to add it: the coordinator sees sums without noise",
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





