"""What the participants of one process hold: their parts of a data set, or files of their own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import numpy as np
import structlog

from client.credentials import load_identity
from client.settings import Data, HostSettings
from learning.cut_data import cut_dataset
from learning.data_names import BUILT_IN, OWN
from learning.datasets import Dataset, DatasetError, dataset_identity, load_partition, load_users, resolve_dataset
from learning.own_data import check_form, content_sha256, read_held, says_nothing, unread_told
from learning.task import Task
from learning.task_names import STATISTICS

log = structlog.get_logger()


def check_forms(configuration: HostSettings, held: Sequence[tuple[Dataset, str]], task: Task) -> None:
    """Hold the form of each participant's own file against the task, before anything is sent: see `check_form`.

    What of a file can't be used, is told here, in its own log, and changes nothing.

    Raises:
        DatasetError: a file lacks a column that is read, or its examples are of another shape.
    """
    if configuration.data.dataset != OWN:
        return
    for entry, (examples, _) in zip(configuration.participants, held, strict=True):
        if entry.data is not None:
            check_form(task, examples, entry.data)
            for told in unread_told(configuration.study.task, task, examples, entry.data):
                log.warning(told)


def held_data(configuration: HostSettings) -> list[tuple[Dataset, str]]:
    """For each participant her examples, and the name by which her ledger knows them.

    Of a set that is cut only the rows of these participants are held.

    Raises:
        DatasetError, ValueError: the set, its cut or a file can't be used.
        runtime.key_files.KeyFileError: the key of a participant whose file holds no rows can't be read.
    """
    if configuration.data.dataset == OWN:
        return _own(configuration)
    data, entries = configuration.data, configuration.participants
    parts = cut_dataset(data.dataset, data.partition, data.parts, data.alpha, data.seed, data.shards)
    # One pass over the set for all participants of the process, holding only their rows.
    rows = [parts[entry.part] for entry in entries]
    examples = load_partition(data.dataset, np.concatenate(rows))
    ends = np.cumsum([len(part) for part in rows])
    if data.partition == "natural":
        users, identity = load_users(data.dataset), dataset_identity(data.dataset)
        names = [user_data_name(identity, int(users[part[0]])) for part in rows]  # type: ignore[index]
    else:
        names = [data_name(data, entry.part) for entry in entries]
    return [
        (examples.take(np.arange(end - len(part), end)), name)
        for part, end, name in zip(rows, ends, names, strict=True)
    ]


def _own(configuration: HostSettings) -> list[tuple[Dataset, str]]:
    held: list[tuple[Dataset, str]] = []
    names: set[str] = set()
    for entry in configuration.participants:
        if entry.data is None:
            raise DatasetError('host.toml: with dataset = "own" each participant names a file, data = "FILE"')
        examples = read_held(entry.data, statistics=configuration.study.task in STATISTICS)
        if says_nothing(examples):
            held.append((examples, no_data_name(load_identity(entry.key).public)))
            continue
        name = own_data_name(content_sha256(examples))
        if name in names:
            # Two people may have the same few values. A host that stayed away then would answer about them, without
            # noise and without a charge (decision 0004): whose file it is only she who runs the host can know.
            log.warning(
                "this file holds what another participant's here holds: if both are one person's, take one of them "
                "out, for what two identities tell of her adds up, and the ledger doesn't know it",
                file=str(entry.data),
            )
            name = own_data_name(content_sha256(examples), load_identity(entry.key).public)
        names.add(name)
        held.append((examples, name))
    return held


def data_name(data: Data, part: int) -> str:
    """SHA-256 of the data set, how it is cut, and which part is hers; 64 hexadecimal digits.

    Equal for equal examples, as far as settings tell: parts of one cut are disjoint, and what another cut shares with
    them has another name. ``iid`` ignores alpha, so the name does.

    Raises:
        learning.datasets.DatasetError: an unknown data set.
    """
    concrete = resolve_dataset(data.dataset)
    alpha = float(data.alpha) if data.partition == "dirichlet" else None
    # A set that was prepared, or lies in files, is known by its content: a name stands for another set elsewhere.
    known_by = concrete if concrete in BUILT_IN else dataset_identity(concrete)
    cut = [known_by, data.partition, alpha, data.seed, data.parts, part]
    return _digest([*cut, data.shards] if data.partition == "shards" else cut)


def user_data_name(identity: str, user: int) -> str:
    """Of all examples of one user, however many others take part and whichever of them were chosen.

    Args:
        identity: of the set (``learning.datasets.dataset_identity``).
        user: its number in the set.
    """
    return _digest([identity, "user", user])


def own_data_name(content_sha256: str, identity: bytes = b"") -> str:
    """Of a file of her own, by its examples, wherever it lies. A file that was changed has another name.

    Args:
        identity: her public key where another participant of the same host has a file of the same content.
    """
    return _digest(["own", content_sha256, *([identity.hex()] if identity else [])])


def no_data_name(identity: bytes) -> str:
    """Of a file without rows: hers alone. No example is in two such files, so what they tell doesn't add up; under one
    name it would, and only whoever has nothing would refuse, once all their charges together reach the budget.

    Args:
        identity: her public key, 32 bytes.
    """
    return _digest(["own", "no rows", identity.hex()])


def _digest(told: list[object]) -> str:
    return hashlib.sha256(b"sordino/v1/data\x00" + json.dumps(told, separators=(",", ":")).encode()).hexdigest()
