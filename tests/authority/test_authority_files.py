"""The authority's folder: who may read it, and what it takes for its own."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from authority.folder import AuthorityError, open_folder, write_folder
from authority.requests import look, newest_roster, read_requests
from authority.store import locked
from runtime.key_files import KeyFileError
from runtime.settings_file import ConfigurationError
from tests.authority.authority_in_memory import NOW, Office, make_office, participant


@pytest.fixture
def office(tmp_path: Path) -> Office:
    return make_office(tmp_path / "authority")


def test_secrets_are_for_their_owner_alone(office: Office) -> None:
    code = office.invite()
    folder = office.folder.path
    for name in ("authority.key", "tls-ca.key", "state.sqlite"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    for path in folder.glob("state.sqlite-*"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with locked(office.folder, 0) as store:
        shown = repr([store.invitations(), store.members(), store.newest(), office.folder])
    assert code.secret.hex() not in shown
    assert repr(code.secret)[2:-1] not in shown
    assert "PrivateKey" not in shown


@pytest.mark.parametrize("name", ["authority.key", "tls-ca.key"])
def test_keys_that_others_can_read(office: Office, name: str) -> None:
    (office.folder.path / name).chmod(0o640)
    with pytest.raises(KeyFileError, match="can be read by others"):
        open_folder(office.folder.path)


def test_folders_that_are_none(office: Office, tmp_path: Path) -> None:
    assert open_folder(office.folder.path).keys.public == office.public
    with pytest.raises(ConfigurationError, match="sordino authority init"):
        open_folder(tmp_path / "nowhere")
    with pytest.raises(AuthorityError, match="is a study's folder"):
        open_folder(tmp_path)
    with pytest.raises(AuthorityError, match="never overwritten"):
        write_folder(office.folder.path, office.folder.settings, office.folder.keys)
    (office.folder.path / "authority.pub").write_text("00" * 32)
    with pytest.raises(AuthorityError, match="public half"):
        open_folder(office.folder.path)


def test_a_store_of_another_authority(office: Office, tmp_path: Path) -> None:
    other = make_office(tmp_path / "other")
    (other.folder.path / "state.sqlite").replace(office.folder.path / "state.sqlite")
    with pytest.raises(AuthorityError, match="written with other keys"):
        office.attend()


def test_looking_changes_nothing(office: Office) -> None:
    requests = read_requests([participant(1).join(office.invite()), participant(2).renew()])
    for _ in range(2):
        with locked(office.folder, 0) as store:
            roster = newest_roster(store)
            seen = {one.verdict for one in (look(store, each, roster, NOW) for each in requests)}
            assert seen == {"accept", "refuse"}
            assert store.members() == []
