"""What the participants of one process hold: their parts of a data set, or files of their own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import structlog

from client.data_name import data_name, no_data_name, own_data_name, user_data_name
from client.keystore import load_identity
from client.settings import HostSettings
from learning.cut_data import cut_dataset
from learning.data_names import OWN
from learning.datasets import Dataset, DatasetError, dataset_identity, load_partition, load_users
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
