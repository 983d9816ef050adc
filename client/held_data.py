"""The data of a process's participants, parts of a set or their own files, and its names in the ledger."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import numpy as np
import structlog

from client.credentials import load_identity
from client.settings import Data, HostSettings
from learning.blocks import DatasetError
from learning.data_names import APP, OWN
from learning.datasets import Dataset, dataset_identity, load_partition, load_users
from learning.own_data import app_partition, check_form, content_sha256, read_held, says_nothing, unread_told
from learning.partitions import cut_dataset
from learning.task import Task
from learning.task_names import trained_task

log = structlog.get_logger()


def check_forms(settings: HostSettings, held: Sequence[tuple[Dataset, str]], task: Task) -> None:
    """Check the form of each participant's own file against the task, before anything is sent: see `check_form`.

    Unusable values are reported only in the log. Raises DatasetError if a file lacks a required column, or its examples
    have another shape.
    """
    if settings.data.dataset != OWN:
        return
    for entry, (examples, _) in zip(settings.participants, held, strict=True):
        if entry.data is not None:
            check_form(task, examples, entry.data)
            for sentence in unread_told(settings.study.task, task, examples, entry.data):
                log.warning(sentence)


def held_data(settings: HostSettings) -> list[tuple[Dataset, str]]:
    """The examples of each participant, with their name in the ledger; of a set, only these rows are loaded.

    Raises DatasetError or ValueError if the set, its cut or a file can't be used, and `runtime.key_files.KeyFileError`
    for the key of a participant whose file has no rows.
    """
    if settings.data.dataset == OWN:
        return _own(settings)
    data = settings.data
    if data.dataset == APP:
        return [
            (app_partition(entry.part or 0, data.parts), declared_data_name(entry.data_identity or ""))
            for entry in settings.participants
        ]
    numbers = [entry.part for entry in settings.participants if entry.part is not None]
    parts = cut_dataset(data.dataset, data.partition, data.parts, data.alpha, data.seed, data.shards)
    # One pass over the set for all participants of the process, which holds only their rows.
    rows = [parts[number] for number in numbers]
    examples = load_partition(data.dataset, np.concatenate(rows))
    ends = np.cumsum([len(part) for part in rows])
    users = load_users(data.dataset) if data.partition == "natural" else None
    if users is None:
        names = [data_name(data, number) for number in numbers]
    else:
        identity = dataset_identity(data.dataset)
        names = [user_data_name(identity, int(users[part[0]])) for part in rows]
    return [
        (examples.take(np.arange(end - len(part), end)), name)
        for part, end, name in zip(rows, ends, names, strict=True)
    ]


def _own(settings: HostSettings) -> list[tuple[Dataset, str]]:
    held: list[tuple[Dataset, str]] = []
    names: set[str] = set()
    for entry in settings.participants:
        if entry.data is None:
            raise DatasetError('host.toml: with dataset = "own" each participant names a file, data = "FILE"')
        examples = read_held(entry.data, trained_task(settings.study.task, settings.task))
        if says_nothing(examples):
            # A name of its own: no example is in two such files, so their costs don't add up. Under a shared name they
            # would, and only participants without data would refuse once the sum of charges reaches the budget.
            name = identity_data_name(load_identity(entry.key).public)
        else:
            name = _digest(["own", content_sha256(examples)])
        if name in names:
            # Two people may have the same few values. A host that refused would reveal that, without noise and without
            # a charge (decision 0004). Only the host's owner can know whose file it is.
            log.warning(
                "this file has the same content as another participant's here: if both belong to one person, remove "
                "one of the participants, because their costs add up for that person and the ledger can't know it",
                file=str(entry.data),
            )
            name = _digest(["own", content_sha256(examples), load_identity(entry.key).public.hex()])
        names.add(name)
        held.append((examples, name))
    return held


def data_name(data: Data, part: int) -> str:
    """SHA-256 of the data set, its cut, and the participant's part; 64 hexadecimal digits. DatasetError: unknown set.

    Equal for equal examples, as far as settings show. The parts of one cut are disjoint; examples that another cut has
    in common with them get another name there. ``iid`` ignores alpha, so the name does.
    """
    alpha = float(data.alpha) if data.partition == "dirichlet" else None
    # A prepared set, and a set in files, is named by its content: its name may stand for another set elsewhere.
    known_by = dataset_identity(data.dataset)
    shards = [data.shards] if data.partition == "shards" else []
    return _digest([known_by, data.partition, alpha, data.seed, data.parts, part, *shards])


def identity_data_name(identity: bytes) -> str:
    """Of data that nobody else has, which nothing but their holder's identity names."""
    return _digest(["own", "no rows", identity.hex()])


def declared_data_name(declared: str) -> str:
    """Of data that an app loads, by what their host declares: whoever declares the same has the same data."""
    return _digest(["declared", declared])


def user_data_name(identity: str, user: int) -> str:
    """Of all examples of one user, by number, of a set (``learning.datasets.dataset_identity``), in every cut."""
    return _digest([identity, "user", user])


def _digest(parts: list[object]) -> str:
    return hashlib.sha256(b"sordino/v1/data\x00" + json.dumps(parts, separators=(",", ":")).encode()).hexdigest()
