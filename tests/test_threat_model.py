"""docs/threat_model.md names mechanisms and tests that exist, and nothing claims what it says must not be claimed."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "threat_model.md"
HEADINGS = (
    "who may do what",
    "what is promised",
    "the authority is trusted",
    "stays visible",
    "must not be claimed",
    "assumptions",
    "scripts that attack",
)


def tables(header: str) -> list[list[str]]:
    """Rows of all tables of the page with this header, cell by cell."""
    rows: list[list[str]] = []
    inside = False
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line == header:
            inside = True
        elif not line.startswith("|"):
            inside = False
        elif inside and not re.fullmatch(r"[|-]+", line):
            rows.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return rows


PROMISES = tables("| promise | mechanism | shown by |")
CLAIMS = tables("| not | but |")


@cache
def defined(file: str) -> dict[str, ast.stmt]:
    """Functions and classes of a file, by name."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name: node for node in tree.body if isinstance(node, kinds)}


@cache
def words_of(file: str) -> frozenset[str]:
    """What the case of a test may be called: texts of its file and of helpers that it uses, and functions."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    modules = {node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom)}
    used = {one.replace(".", "/") + ".py" for one in modules if one.startswith("tests.")}
    helpers = [words_of(path) for path in sorted(used) if (ROOT / path).is_file()]
    return frozenset(texts | defined(file).keys()).union(*helpers)


def named(cell: str) -> Iterator[tuple[str, str]]:
    """(file, name) of what a cell names; the name is empty where only a file is."""
    file, alone = "", True
    for word in re.findall(r"`([^`]+)`", cell):
        if word.endswith(".py"):
            if file and alone:
                yield file, ""
            file, alone = word, True
        elif file:
            alone = False
            yield file, word
    if file and alone:
        yield file, ""


def wrong_tests(cell: str) -> list[str]:
    """Names in the last column that are no tests, and a cell without any, or without one that can fail."""
    wrong: list[str] = []
    found = list(named(cell))
    if not any(name for _, name in found):
        wrong.append("no test")
    if not re.search(r"\*\*`test_\w+", cell):
        wrong.append("no test that fails on the naive version")
    for file, name in found:
        function, _, case = name.removesuffix("]").partition("[")
        if not file.startswith("tests/") or not (ROOT / file).is_file():
            wrong.append(file)
        elif not function.startswith("test_") or function not in defined(file):
            wrong.append(f"{file} {name}")
        elif case:
            decorators = getattr(defined(file)[function], "decorator_list", [])
            if not any("parametrize" in ast.unparse(one) for one in decorators) or case not in words_of(file):
                wrong.append(f"{file} {name}")
    return wrong


def wrong_modules(cell: str) -> list[str]:
    """Names in the middle column that the code doesn't have, and a cell without a module."""
    found = list(named(cell))
    return ([] if found else ["no module"]) + [
        f"{file} {name}"
        for file, name in found
        if not (ROOT / file).is_file() or file.startswith("tests/") or (name and name not in defined(file))
    ]


def test_the_page_has_its_parts() -> None:
    headings = re.findall(r"^## \d\. (.*)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    for wanted, heading in zip(HEADINGS, headings, strict=True):
        assert wanted in heading.lower()
    assert len(PROMISES) >= 40
    assert len(CLAIMS) >= 10
    assert all(len(row) == 3 for row in PROMISES)
    assert len({row[0] for row in PROMISES}) == len(PROMISES)


@pytest.mark.parametrize("row", PROMISES, ids=lambda row: row[0][:60])
def test_a_promise_has_a_mechanism_and_a_test(row: list[str]) -> None:
    assert wrong_modules(row[1]) == []
    assert wrong_tests(row[2]) == []


def test_a_promise_without_them_is_found() -> None:
    lottery = "`tests/secagg/test_lottery.py`"
    good = f"{lottery} **`test_no_other_draw_is_taken[a short seed]`**"
    assert wrong_tests(good) == []
    for bad in (
        "",
        "none yet",
        lottery,
        f"**{lottery}**",
        good.replace("**", ""),
        good.replace("a short seed", "a long seed"),
        good.replace("no_other", "another"),
        good.replace("test_lottery", "test_raffle"),
        f"{lottery} **`test_seeds_are_not_shown[a short seed]`**",
        good + " `FALSE_TICKETS`",
        "`secagg/lottery.py` **`test_no_other_draw_is_taken`**",
    ):
        assert wrong_tests(bad), bad
    assert wrong_modules("signed: `secagg/lottery.py` `Draws` `Ticket`, `wire/study.py`") == []
    for bad in ("a lottery", "`secagg/raffle.py`", "`secagg/lottery.py` `losers`", "`tests/secagg/test_lottery.py`"):
        assert wrong_modules(bad), bad


# ---------------------------------------------------------------- what must not be claimed

NOT = re.compile(
    r"\b(not|never|no|nor|neither|nobody|nothing|without|doesn.t|don.t|isn.t|can.t|cannot)\b", re.IGNORECASE
)


@dataclass(frozen=True)
class Forbidden:
    """Words that claim too much, as regular expressions."""

    words: str
    unless: str = ""  # harmless in a sentence with these
    deniable: bool = True  # harmless behind a "not"

    def found(self, sentence: str) -> bool:
        match = re.search(self.words, sentence, re.IGNORECASE)
        if match is None or (self.unless and re.search(self.unless, sentence, re.IGNORECASE)):
            return False
        return not (self.deniable and NOT.search(sentence[: match.start()]))


WHOM = r"(she|he|you|they|somebody|one|a participant)?"
FORBIDDEN = [
    Forbidden(r"learns? (absolutely )?nothing\b(?! (of|about|from|but|beyond))"),
    Forbidden(r"(learn|see|know|get)s? [^.]*\bnothing else\b(?! (of|about))", unless=r"\bof (these|the|its|their)\b"),
    Forbidden(rf"\b(hides?|conceals?|secret) (the fact )?(that|whether|who) {WHOM}\s*(took|tak(e|es|ing)|participat)"),
    Forbidden(r"\banonym(ous|ity|ously|ised|ized|ises|izes)\b"),
    Forbidden(r"\b(robust|resistant|immune|secured?|protect(s|ed)?) (against|to|from) [^.]*\b(poison|byzantine)"),
    Forbidden(r"\b(prevents?|stops?|defeats?|detects?) [^.]{0,20}(poison|backdoor)"),
    Forbidden(
        r"\b(sum|model|aggregate|aggregation|training|round)s? (is|was|are|were) "
        r"(proved|proven|verified|guaranteed) (to be )?(correct|right|honest)"
    ),
    Forbidden(
        r"\b(prove|guarantee)s? that (a|the|every|each) (round|training|sum|update|model) "
        r"(was|is) (honest|correct|right)"
    ),
    Forbidden(
        r"\bepsilon\b[^.|]*\bholds (for|against) (every ?(body|one)|all\b|any(body|one| reader))",
        unless=r"\bbut\b|\bif at most\b",
    ),
    Forbidden(r"\b(participant|user|client|patient)-level (differential )?privacy at n ?= ?\d\b"),
    Forbidden(r"\bdemo\b[^.]*\b(secure|safe|protected) against a malicious"),
    Forbidden(r"\bquantum[- ](safe|secure|proof|resistant)\b"),
    Forbidden(r"\b(timing|times?|offers?) (reveals?|shows?|tells?|leaks?) nothing\b"),
    Forbidden(
        r"\b(trustless|zero[- ]trust|no trust (is )?(needed|required)|(nobody|no one) (has|needs) to be trusted)",
        deniable=False,
    ),
    Forbidden(r"\brevo(cation|ked|kes|king)\b[^.]*\b(is|are|takes effect) (at once\b|immediate|instant)"),
    Forbidden(r"\bsecure aggregation (alone )?(protects|suffices|is enough|guarantees)"),
    Forbidden(r"\bcoordinator (only )?sees (the )?noisy sums? only"),
    Forbidden(r"\bbudget (can.t|cannot|can never) be exceeded, in any", deniable=False),
    Forbidden(
        r"\b(unbreakable|unhackable|military[- ]grade|bullet-?proof|(provably|100 ?%) (private|secure|safe)|"
        r"(perfect|absolute|total|complete|full)(ly)? (privacy|private|security|secure|secrecy|anonymi))"
    ),
    Forbidden(r"\b(GDPR|HIPAA)[- ]?(compliant|proof|safe)"),
    Forbidden(r"\b(was|been|is|were) (independently |externally )?audited\b"),
]


def sentences(text: str) -> Iterator[str]:
    """Without code blocks, links and emphasis; a table's cell and a list's item end a sentence as a full stop does."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    text = re.sub(r"\]\([^)]*\)|\*\*|(?<!\w)\*(?=\w)|(?<=\w)\*(?!\w)|\[(bold|/bold)\]", "", text)
    for block in re.split(r"\n\s*\n|\n(?=\s*[-*|#]|\s*\d+\. )|(?<!\\)\|", text):
        yield from re.split(r"(?<=[.!?;])\s+", " ".join(block.split()))


def claims(text: str) -> list[str]:
    """Sentences that say what must not be claimed."""
    return [sentence for sentence in sentences(text) if any(one.found(sentence) for one in FORBIDDEN)]


def text_of(path: Path) -> str:
    """A document, the page without its list of false claims; or all that the command can say, of a module."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        constants = (one.value for one in ast.walk(ast.parse(text)) if isinstance(one, ast.Constant))
        return "\n\n".join(one for one in constants if isinstance(one, str))
    if path.suffix == ".toml":
        return str(tomllib.loads(text)["project"]["description"])
    return "\n".join(line for line in text.splitlines() if path != PAGE or not line.startswith('| "'))


TEXTS = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "pyproject.toml")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *(path for room in ("sordino", "server", "client") for path in sorted((ROOT / room).rglob("*.py"))),
]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_nothing_claims_too_much(path: Path) -> None:
    assert claims(text_of(path)) == []


@pytest.mark.parametrize("row", CLAIMS, ids=lambda row: row[0][:60])
def test_each_false_claim_is_found_and_the_true_sentence_is_not(row: list[str]) -> None:
    quoted = re.findall(r'"([^"]+)"', row[0])
    assert quoted
    for claim in quoted:
        assert claims(claim), claim
    assert claims(row[1]) == []


@pytest.mark.parametrize(
    "true",
    [
        "It hides what she sent, not that she took part.",
        "This doesn't hide who takes part.",
        "Clipping doesn't prevent poisoning.",
        "**Not prevented:** a participant who poisons the model.",
        "Sordino has not been audited.",
        "Whoever answers without the study's certificate learns not even an identity.",
        "A curious reader learns nothing about her data beyond (epsilon, delta).",
        "Of these vectors the coordinator learns the sum and nothing else.",
        "It comes back by itself and nothing else is needed.",
    ],
)
def test_what_is_true_may_be_said(true: str) -> None:
    assert claims(true) == []
