"""A participant's ledger beside its journal: charges at h_min, replaced by the cost of the sum, kept over studies, and
refused when it is missing or an older copy.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from client.journal import AlreadyJoined, ClientJournal, check_ledger
from mechanisms.accounting import Account
from runtime.durable import StorageError
from tests.support.databases import execute
from tests.support.host_in_process import host, ledger_of, play, rows_of, settings_of
from tests.support.study_in_process import PARTICIPANTS, coordinator, document_of, make_folder
from wire.records.ledger import ChangedLedger, LedgerError, head_file, read_ledger
from wire.records.ledger_rows import CHARGE, EXACT


@pytest.fixture(scope="module")
def finished(study_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The journal of a host after a study of two rounds."""
    work = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        assert play(study_folder, work, patch).ended == 0
    return work / "journal.sqlite"


@pytest.fixture
def journal(finished: Path, tmp_path: Path) -> Path:
    """A copy of it to be damaged."""
    shutil.copytree(finished.parent, tmp_path / "host")
    return tmp_path / "host" / "journal.sqlite"


async def test_each_charge_at_h_min_then_at_the_sums_cost(finished: Path, study_folder: Path, tmp_path: Path) -> None:
    rows, plan = rows_of(ledger_of(finished)), (await document_of(study_folder, tmp_path / "state.sqlite")).plan
    account = Account(plan)
    identities = {row.identity for row in rows}
    assert len(identities) == PARTICIPANTS
    asked = 0
    for identity in identities:
        own = [row for row in rows if row.identity == identity]
        charges = [row for row in own if row.kind == CHARGE]
        assert [(row.round, row.attempt) for row in charges] == [(1, 1), (2, 1)]
        for charge in charges:
            assert (charge.honest, charge.draws) == (plan.h_min, plan.clients * plan.padded_dim)
            assert charge.cost == account.cost_of_round(plan.min_survivors)
            # If the study ended before this answer was needed, no quorum showed this participant a u3.
            for exact in (row for row in own if row.kind == EXACT and row.round == charge.round):
                asked += 1
                assert own.index(exact) == own.index(charge) + 1
                assert exact.honest == PARTICIPANTS - plan.colluders
                assert exact.cost == account.cost_of_round(PARTICIPANTS) <= charge.cost
    assert asked >= 2 * 5
    _, _, totals = read_ledger(ledger_of(finished))
    [study] = totals.studies.values()
    # Never less than what the coordinator's account says of the same two sums.
    assert all(study.renyi(who) >= 2 * account.cost_of_round(PARTICIPANTS) for who in study.spent)


async def test_one_ledger_for_two_studies(finished: Path, tmp_path: Path) -> None:
    """Another study, another coordinator, another journal; the same ledger."""
    shutil.copytree(finished.parent, tmp_path / "first")
    ledger = ledger_of(tmp_path / "first" / "journal.sqlite")
    before = read_ledger(ledger)[1].rows
    folder = make_folder(tmp_path / "eight", name="eight", rounds=1)

    async with coordinator(folder, tmp_path / "second" / "state.sqlite") as where:
        where.start()
        settings = settings_of(folder, tmp_path / "second" / "journal.sqlite", where.address, host={"ledger": ledger})
        async with host(settings) as task:
            assert await task == 0
    _, head, totals = read_ledger(ledger)
    assert head.rows > before
    assert {study.first.study for study in totals.studies.values()} == {"seven", "eight"}
    [kind] = totals.across_studies()
    together = kind.curve
    for study in totals.studies.values():
        for spent in study.spent.values():
            assert all(together[order] >= cost for order, cost in spent.at_every_order().items())
    for name in ("first", "second"):
        assert check_ledger(tmp_path / name / "journal.sqlite", ledger) is not None


# ---------------------------------------------------------------- damage


def missing(journal: Path) -> None:
    ledger_of(journal).unlink()
    head_file(ledger_of(journal)).unlink()


def older_copy(journal: Path) -> None:
    """Ledger and head file of before the study, whole."""
    missing(journal)
    other = journal.parent / "other"
    opened = ClientJournal(other / "journal.sqlite", other / "spent.sqlite")
    opened.close()
    for one in (other / "spent.sqlite", head_file(other / "spent.sqlite")):
        one.rename(journal.parent / one.name)
    shutil.rmtree(other)


def older_journal(journal: Path) -> None:
    """The journal of before the last round, beside the newest ledger: without this check it opens."""
    execute(journal, "DELETE FROM attempts WHERE round = 2", "DELETE FROM ledger")


async def test_other_terms_count_their_rounds_anew(tmp_path: Path) -> None:
    """Their coordinator begins at round 1. Going back to the first terms goes on where those ended."""
    first, second, me = "aa" * 32, "bb" * 32, bytes(32)
    opened = ClientJournal(tmp_path / "journal.sqlite", tmp_path / "ledger.sqlite")
    await opened.join(first, me, 2, 1)
    await opened.join(second, me, 1, 1)
    opened.close()
    opened = ClientJournal(tmp_path / "journal.sqlite", tmp_path / "ledger.sqlite")
    for terms, number in ((first, (2, 1)), (first, (1, 9)), (second, (1, 1))):
        with pytest.raises(AlreadyJoined):
            await opened.join(terms, me, *number)
    await opened.join(second, me, 1, 2)
    opened.close()


def old_journal(journal: Path) -> None:
    execute(journal, "PRAGMA user_version = 0")


DAMAGES: dict[Callable[[Path], None], tuple[type[StorageError], str]] = {
    missing: (ChangedLedger, "spent.sqlite: is missing, although journal.sqlite knows of"),
    older_copy: (ChangedLedger, "row 1 is missing: journal.sqlite knows of row"),
    older_journal: (StorageError, "journal.sqlite is an older copy: it ends with round 1 of"),
    old_journal: (StorageError, "journal.sqlite has format 0, this release reads 4: an older one wrote it"),
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_ledger_that_does_not_fit_the_journal(journal: Path, damage: Callable[[Path], None]) -> None:
    damage(journal)
    kind, told = DAMAGES[damage]
    before = files_beside(journal)
    with pytest.raises(kind) as error:
        ClientJournal(journal, ledger_of(journal))
    assert told in str(error.value)
    assert files_beside(journal) == before


def files_beside(journal: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in journal.parent.glob("*.sqlite*") if one.suffix != ".lock"}


def test_two_processes_on_one_ledger(journal: Path, tmp_path: Path) -> None:
    """Two studies over the same data take part one after the other."""
    opened = ClientJournal(journal, ledger_of(journal))
    with pytest.raises(LedgerError, match=r"spent\.sqlite: is in use by another process"):
        ClientJournal(tmp_path / "second.sqlite", ledger_of(journal))
    opened.close()
    ClientJournal(tmp_path / "second.sqlite", ledger_of(journal)).close()
