"""The say of a host's owner: ``sordino join`` with --status, --pause, --resume, --leave or --export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runtime.failure import InputFailure
from sordino.cli.verbs import answer


def owners_say(wish: str, home: Path, folder: Path | None, as_json: bool) -> int:
    """Do what one of the options says. Raises Failure: the host's folder can't be used, or hasn't joined yet."""
    from client.host_file import load
    from client.joining.folder import unfinished
    from client.owners_word import LEFT, PAUSED, RESUMED, write_word
    from sordino.reporting.participation import export, figures, lines

    if home.is_dir() and (joining := unfinished(home)) is not None:
        raise InputFailure(
            f"{home}, identity {joining.shown_identity}, hasn't joined its study yet, and {wish} is for a host that "
            f"has: first finish joining by `sordino join --home {home}`."
        )
    settings = load(home).settings()
    journal = settings.host.journal
    if wish == "--status":
        body = figures(settings)
        return answer(as_json, body, lines(settings, body))
    if wish == "--export":
        files = export(settings, folder or Path())
        key = settings.study.authority_public_key
        said = [
            *map(str, files),
            "Signed by the participant, without its data or updates. Compare it with the coordinator's transcripts:",
            f"sordino transcript verify TRANSCRIPT... --authority {key} --own {files[0]}",
        ]
        return answer(as_json, {"files": [str(file) for file in files]}, said)
    state = {"--pause": PAUSED, "--resume": RESUMED, "--leave": LEFT}[wish]
    write_word(journal.parent, state)
    done: dict[str, Any] = {"host": settings.host.name, "study": settings.study.name, "state": state}
    return answer(as_json, done, _SAID[wish](settings, home))


def _paused(settings: Any, home: Path) -> list[str]:
    return [
        f"Paused: the host {settings.host.name} takes no part in {settings.study.name}. A running process notices "
        "within seconds, finishes an attempt under way, and disconnects; a later start waits too. The coordinator "
        "sees that it stopped on purpose, not why.",
        f"To take part again: sordino join --home {home} --resume",
    ]


def _resumed(settings: Any, home: Path) -> list[str]:
    return [f"The host {settings.host.name} takes part in {settings.study.name} again, while sordino join runs."]


def _left(settings: Any, home: Path) -> list[str]:
    from client.credentials import load_identity

    named = " ".join(load_identity(one.key).public.hex() for one in settings.participants)
    return [
        f"Left: the host {settings.host.name} takes no part in {settings.study.name} any more. A running process "
        "finishes an attempt under way, and ends; later starts end at once.",
        "It is still on the roster, as an absent participant. To be taken off, ask the study's authority to revoke:",
        f"  {named}",
        f"Keys, journal and ledger stay. Keep the ledger ({settings.host.ledger}, with its .head): it says what was "
        "spent from this data, and a later study over it needs it (--ledger). What is in earlier sums can't be taken "
        "out of them.",
    ]


_SAID = {"--pause": _paused, "--resume": _resumed, "--leave": _left}
