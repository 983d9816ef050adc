"""Shakespeare's plays by speaking role: next-word prediction in the form of StackOverflow's.

A user is a role of a play. LEAF ([CDW+18]) and [MMR+17] cut the same plays so; the texts here are Project Gutenberg's
as the package ``shakespeare`` carries them, so the number of roles is another than theirs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from learning.blocks import Block
from learning.vocabulary import WORDS, Vocabulary
from sordino.lab.preparation.made import Made, hold_out_users, in_memory
from sordino.lab.preparation.options import Options
from sordino.lab.preparation.sources import Opened

FEWEST_SEQUENCES: Final = 5
_FOLDER: Final = "shksprdata/texts/"  # Milton's poems lie in another one
_TEXTS: Final = "_gut.txt"  # those of the First Folio end in _gut_f.txt
_FEWEST_SPEECHES: Final = 30  # a poem has none
_SPEAKER: Final = re.compile(r"^\s{0,2}([A-Z][A-Za-z'\- ]{0,28})\.")
_SPEAKER_ALONE: Final = re.compile(r"^([A-Z][A-Z'\- ]{1,28})$")
_STAGE: Final = re.compile(r"\[[^\]]*\]")
_DIRECTION: Final = re.compile(
    r"^\s*(ACT|SCENE|(Act|Scene) [IVX\d]+|Enter|Exit|Exeunt|Re-enter|THE END|DRAMATIS)\b.*$", re.M
)
_WORD: Final = re.compile(r"[a-z]+(?:'[a-z]+)*")
# In this play alone a speaker stands in capitals on a separate line, without a full stop.
_ALONE: Final = ("midsummer_nights_dream",)


def shakespeare(opened: Sequence[Opened], options: Options) -> Made:
    """Roles with at least five sequences of 20 words; the words of a role's speeches, one after the other.

    A sequence's input is the beginning mark and 19 words, its labels are the 20 words.
    """
    names = opened[0].names(_TEXTS)
    texts = opened[0].read_all([name for name in names if _FOLDER in f"/{name}"] or names)
    roles: dict[str, list[str]] = {}
    plays, speeches = 0, 0
    for name, content in sorted(texts.items()):
        play = name.rpartition("/")[2].removesuffix(_TEXTS)
        found = list(spoken(content.decode("latin-1"), alone=play in _ALONE))
        if len(found) < _FEWEST_SPEECHES:
            continue
        plays += 1
        speeches += len(found)
        for role, words in found:
            roles.setdefault(f"{play}: {role}", []).extend(words)
    counts = Counter(word for words in roles.values() for word in words)
    # By frequency, of equals by the alphabet: the same in every process.
    ranked = sorted(counts, key=lambda word: (-counts[word], word))[: options.vocabulary]
    vocabulary = Vocabulary(ranked)
    spoken_by = []
    for role in sorted(roles):
        words = roles[role]
        sentences = [words[start : start + WORDS] for start in range(0, len(words) - WORDS + 1, WORDS)]
        if len(sentences) >= FEWEST_SEQUENCES:
            spoken_by.append(Block.of(*vocabulary.sequences(sentences), role))
    blocks, split = hold_out_users(in_memory({"train": spoken_by}, "shakespeare"), "shakespeare")
    other, beginning, end = vocabulary.marks
    covered = sum(counts[word] for word in ranked) / counts.total()
    how = (
        f"{plays} plays, {len(roles)} roles, {speeches} speeches, {counts.total()} words of {len(counts)} kinds; "
        f"{len(spoken_by)} roles have at least {FEWEST_SEQUENCES} sequences of {WORDS} words",
        "words are runs of letters and inner apostrophes, in lower case; stage directions are left out; the words of a "
        "role's speeches follow each other, and what is left after the last whole sequence is dropped",
        f"numbers as TensorFlow Federated's StackOverflow: 0 padding, 1 to {len(ranked)} words by frequency, "
        f"{other} others, {beginning} beginning, {end} end. The words were counted "
        f"over the published texts, and cover {covered:.1%} of them; over private texts that would be a release",
        split,
    )
    return Made(blocks, how, {"vocabulary": ranked})


def spoken(text: str, *, alone: bool = False) -> Iterator[tuple[str, list[str]]]:
    """Speeches of a play: (role in capitals, words).

    A speech is a block between blank lines whose first line begins with the speaker and a full stop.

    ``alone``: the speaker stands on a separate line instead, without a full stop.
    """
    text = text.replace("\r\n", "\n")
    if alone:
        text = text.partition("\nACT I")[2]  # a list of the persons stands before it
    text = _DIRECTION.sub("", _STAGE.sub(" ", text))
    if alone:
        yield from _spoken_alone(text)
        return
    for block in re.split(r"\n\s*\n", text):
        found = _SPEAKER.match(block.strip("\n"))
        if found:
            words = _words(block.strip("\n")[found.end() :])
            if words:
                yield found[1].strip().upper(), words


def _spoken_alone(text: str) -> Iterator[tuple[str, list[str]]]:
    role = ""
    lines: list[str] = []
    for line in [*text.split("\n"), "END"]:
        found = _SPEAKER_ALONE.match(line.strip())
        if found:
            words = _words("\n".join(lines))
            if role and words:
                yield role, words
            role, lines = found[1].strip(), []
        else:
            lines.append(line)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())
