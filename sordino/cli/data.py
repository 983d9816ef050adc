"""``sordino data``: the data sets that can be made on this machine, and making one."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from runtime.failure import ExitCode, InputFailure
from runtime.option_values import built, unknown
from sordino.cli.options import chosen, options, with_options
from sordino.cli.verbs import Json, answer, argument, flag, option, verb_group, verb_in
from sordino.lab.preparation.options import Options

app = verb_group(
    "data",
    "List and prepare data sets for studies.\n\nA study names a set in its table "
    "\\[data]. One ships with sordino; others are made here once from a package that a public registry carries, or "
    "read from files of a published format. Participants may also bring their own files: see docs/data.md.",
)


@verb_in(
    app,
    "list",
    "data list",
    "List every data set that a study can name: those made on this machine, those that can be made, and the "
    "published formats that are read where they lie.\n\nNothing is fetched. Sets whose users aren't the people "
    "behind the data are called stand-ins.",
)
def list_sets(as_json: Json = False) -> int:
    from learning.data_names import FORMATS, data_folder
    from learning.prepared_data import prepared_sets
    from runtime.text import folded
    from sordino.lab.preparation.catalogue import CATALOGUE, about, figures, megabytes, sizes

    where = data_folder().absolute()
    made = {one.folder.name: one for one in prepared_sets(where)}
    body = {
        "folder": str(where),
        "shipped": ["fashion-mnist-subset"],
        "prepared": {name: figures(one) for name, one in made.items()},
        "can_be_made": {entry.name: about(entry) for entry in CATALOGUE.values()},
        "formats": list(FORMATS),
    }
    lines = ["Ready"]

    def row(name: str, *texts: str) -> None:
        for number, text in enumerate(texts):
            lines.extend(folded(text, None, f"  {'' if number else name:<20} ", " " * 23))

    row("fashion-mnist-subset", "6,000 + 2,000 images of Fashion-MNIST; ships with sordino")
    for name, one in made.items():
        row(name, str(one.manifest.get("title", "")), sizes(one))
    lines += ["", "Can be made: sordino data prepare NAME"]
    for entry in CATALOGUE.values():
        if entry.name not in made:
            described = [one for one in entry.described() if one]
            row(entry.name, entry.title, *described, f"{entry.licence}; {megabytes(entry)} to fetch")
    lines += ["", "Read where they lie: FORMAT:PATH"]
    row("formats", ", ".join(FORMATS))
    return answer(as_json, body, [*lines, "", f"Prepared sets lie in {where}"])


def _prepare(
    name: Annotated[str, argument("NAME", "The set to make.")],
    source: Annotated[
        list[Path] | None,
        option(
            "PATH",
            "Its archive, or a folder with its files; repeat it for a set of two packages, in their order.",
            "--from",
            shown="fetched",
        ),
    ] = None,
    called: Annotated[str | None, option("NAME", "Call the set this.", "--as", shown="NAME")] = None,
    yes: Annotated[bool, flag("--yes", "Don't ask.")] = False,
    as_json: Json = False,
    **given: Any,
) -> int:
    from learning.data_names import BUILT_IN, FORMATS, data_folder, is_prepared_name
    from sordino.lab.preparation.catalogue import (
        CATALOGUE,
        figures,
        make_from_format,
        make_set,
        shown,
        sizes,
        what_it_needs,
    )
    from sordino.lab.preparation.fetching import fetch, installed

    where = data_folder().absolute()
    wanted = called or name
    if name in BUILT_IN:
        raise InputFailure(f"{name} comes with sordino and needs no preparation: sordino init DIR --dataset {name}.")
    own = chosen(given, Options)
    entry = CATALOGUE.get(name)
    if entry is None and name not in FORMATS:
        raise unknown("data set", name, [*CATALOGUE, *FORMATS])
    if not is_prepared_name(wanted):
        raise InputFailure(f"--as {wanted}: use lower-case letters, digits, hyphens, no name that is taken.")
    other = [key for key in own if entry is None or key not in entry.options]
    if other:
        raise InputFailure(f"--{other[0]} says nothing about {name}: leave it out.")
    paths = list(source or ())
    if entry is None:
        if len(paths) != 1:
            raise InputFailure(f"{name} is not in any registry: name its files with one --from PATH.")
        typer.echo(f"{name}: the files in {paths[0]}, written as a prepared set to {where / wanted}", err=as_json)
        _agree(yes)
        made = make_from_format(name, paths[0].absolute(), where / wanted)
    else:
        if paths and len(paths) != len(entry.packages):
            packages = " and ".join(str(package) for package in entry.packages)
            raise InputFailure(f"{name} is made from {packages}: name each with a --from, in this order.")
        settings = built(Options, own)
        typer.echo("\n".join(shown(entry, settings, paths, where / wanted)), err=as_json)
        _agree(yes)
        with tempfile.TemporaryDirectory(prefix="sordino-data-") as work:
            sources = [path.absolute() for path in paths] or [
                installed(package) or fetch(package, Path(work) / str(number))
                for number, package in enumerate(entry.packages)
            ]
            made = make_set(entry, sources, where / wanted, settings)
    natural = " --partition natural" if "users" in made.manifest["train"] else ""
    lines = [
        f"\nMade {made.folder}: {sizes(made)}.\nSHA-256 {made.sha256}",
        f"Use it:  sordino init my-study --dataset {wanted}{natural}{what_it_needs(made)}",
    ]
    return answer(as_json, figures(made) | {"manifest": made.manifest}, lines)


verb_in(
    app,
    "prepare",
    "data prepare mnist\ndata prepare shakespeare --vocabulary 4000 --as shakespeare-4000 --yes\n"
    "data prepare cifar10 --from cifar-10-batches-bin",
    (
        "Make a data set on this machine.\n\nSource, licence, size, users and SHA-256 are printed before anything is "
        "done, and you are asked. Then the package is fetched by its name and version with the package manager that is "
        "installed (npm, pip, apt-get), its SHA-256 is checked, its files are read, and the set is written: one folder "
        "with arrays and manifest.json. Nothing of a package is run, except what this command prints. --from takes an "
        "archive or a folder of its files that is already there; then nothing is fetched.\n\nNAME is one of `sordino "
        "data list`, or a published format (cifar10, femnist, leaf, stackoverflow), which needs --from. "
        "Sets lie in $SORDINO_DATA_FOLDER, else ~/.local/share/sordino/data."
    ),
    ExitCode.NETWORK,
    ExitCode.INTERRUPTED,
)(with_options(_prepare, options(Options, ranges=True)))


def _agree(yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise InputFailure("nothing was done, since there is no terminal to ask on: add --yes to agree.")
    typer.confirm("\nMake it?", abort=True, err=True)
