"""``sordino join``: take part in a study with the participants of one host. Loads nothing of the server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sordino.exit_codes import ExitCode, Failure, listing

NAME = "join"
HELP = (
    "Take part in a study with the participants of one host.\n\nConnects to the coordinator, trains on the data "
    "here, and sends masked, noised integers; never an example, a gradient or a loss. The host's folder holds "
    "host.toml, the participants' keys, the coordinator's certificate authority and the policy that was "
    "accepted: a round that breaks the policy is refused. While the coordinator can't be reached, this keeps "
    "trying for as long as host.toml says. The journal remembers what was spent: keep it, and never run two "
    "processes from one folder."
)
EPILOG = "Example: [bold]sordino join localhost:8443 --home my-study/hosts/host-01[/bold]\n\n" + listing(
    ExitCode.OK, ExitCode.INPUT, ExitCode.NETWORK, ExitCode.STUDY, ExitCode.INTERRUPTED
)


def run(
    address: Annotated[
        str | None,
        typer.Argument(
            metavar="[HOST:PORT]",
            help="The coordinator's address.",
            show_default="from host.toml",
        ),
    ] = None,
    home: Annotated[
        Path,
        typer.Option(metavar="DIR", help="The host's folder, or its host.toml."),
    ] = Path("."),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object with the exit code at the end.")
    ] = False,
    end_with: Annotated[
        int, typer.Option("--end-with", hidden=True, help="End when this process, the parent, has ended.")
    ] = 0,
) -> None:
    from client.configuration import load
    from sordino.processes import end_with_parent
    from wire.settings_file import split_address

    if end_with:
        end_with_parent(end_with)
    if home.is_dir() and not (home / "host.toml").exists() and (home / "study.toml").exists():
        raise Failure(
            ExitCode.INPUT,
            f"{home} is a study's folder; its hosts are under {home / 'hosts'}: "
            f"sordino join --home {home / 'hosts' / 'host-01'}",
        )
    configuration = load(home)
    if address is not None:
        try:
            _, port = split_address(address)
        except ValueError as error:
            raise Failure(ExitCode.INPUT, f"{address} {error}.") from None
        if port == 0:
            raise Failure(ExitCode.INPUT, f"{address} names no port to connect to; use the coordinator's.")
        table = configuration.coordinator.model_copy(update={"address": address})
        configuration = configuration.model_copy(update={"coordinator": table})
    from sordino.client_process import become

    become(configuration.settings(), as_json=as_json)
