"""Whose folder it is: the coordinator's, a host's or the authority's; for the verbs that take any of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from runtime.failure import InputFailure

STUDY, HOST, AUTHORITY = "study", "host", "authority"
SETTINGS: Final = {STUDY: "study.toml", HOST: "host.toml", AUTHORITY: "authority.toml"}


@dataclass(frozen=True)
class Party:
    """A folder, whose it is, the study's name, the files that its settings name, and the settings themselves: a
    `StudyConfiguration`, `HostConfiguration` or `AuthorityTable`.
    """

    kind: str
    folder: Path
    study: str
    files: dict[str, Path]  # by what names them
    configuration: Any

    @property
    def settings(self) -> Path:
        return self.folder / SETTINGS[self.kind]


def kind_of(folder: Path) -> str | None:
    """The first of the settings files that is there; None: of no party."""
    return next((kind for kind, name in SETTINGS.items() if (folder / name).is_file()), None)


def party_of(folder: Path) -> Party:
    """Read a party's settings. Raises Failure: they can't be used, or it is no party's folder."""
    folder = folder.parent if folder.name in SETTINGS.values() else folder
    kind = kind_of(folder)
    if kind is None:
        names = ", ".join(SETTINGS.values())
        raise InputFailure(f"{folder} is the folder of no study, host or authority: it holds none of {names}.")
    if kind == STUDY:
        from server.study_file import load

        study = load(folder)
        named = {key: value for key, value in study.coordinator if isinstance(value, Path)}
        return Party(kind, folder, study.study.name, named, study)
    if kind == HOST:
        from client.host_file import load as load_host

        host = load_host(folder / SETTINGS[HOST])
        files = {key: value for table in (host.host, host.coordinator) for key, value in table}
        files |= {f"participants[{number}].key": one.key for number, one in enumerate(host.participants)}
        named = {key: one for key, one in files.items() if isinstance(one, Path)}
        return Party(kind, folder, host.study.name, named, host)
    from authority.folder import KEY_FILE, STATE_FILE, TLS_KEY_FILE, AuthoritySettings
    from runtime.settings_file import read_settings

    settings = read_settings(AuthoritySettings, folder / SETTINGS[AUTHORITY], hint="").authority
    named = {name: folder / name for name in (KEY_FILE, TLS_KEY_FILE, STATE_FILE)}
    return Party(kind, folder, settings.study, named, settings)
