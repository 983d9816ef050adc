"""Every kept input through its target, a short search from there, and a target for every decoder and phase.

The long search is `make fuzz`.
"""

from __future__ import annotations

import inspect

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.fuzz import network_targets
from tests.fuzz.corpus import CORPUS, ROOM, begin, inputs, name_of
from tests.fuzz.target import Dice, targets
from tests.support.naive_variants import CLIENT, SERVER, Side
from wire import codec

NAMES = sorted(targets())
# Attempts with real keys take a hundred times as long as a parser.
SLOW = [name for name in NAMES if name.startswith(("coordinator_", "participant_")) and not name.endswith("_message")]
# Nothing at all, and what parsers give up on: nesting, numbers without end, texts that are none.
HOSTILE = (
    *(b"", b"\x00", b"\xff" * 9, b"[" * 100_000, b'{"":' * 50_000, b"9" * 5000, b"-", b"1e999", b'"\\ud800"', b"nul"),
    *(b"a = " + b"[" * 20_000, b"a=9" + b"9" * 5000, b"\x0a\xff\xff\xff\xff\x0f", bytes(100_000), b"\n" * 5000),
)


@pytest.mark.parametrize("name", NAMES)
def test_the_corpus_holds(name: str) -> None:
    target = targets()[name]
    kept = begin(target)
    assert kept, "there is nothing to begin from"
    for data in [*HOSTILE, *kept]:
        target.run(data)


@pytest.mark.parametrize("name", NAMES)
def test_a_short_search(name: str) -> None:
    """Bytes out of nothing, and inputs of the corpus with some changes."""
    target = targets()[name]
    kept = begin(target)
    places = st.tuples(st.integers(0, len(kept) - 1), st.integers(0, 2**32), st.integers(1, 3))

    @settings(
        max_examples=15 if name in SLOW else 60,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.binary(max_size=64) | places | places)
    def search(example: bytes | tuple[int, int, int]) -> None:
        if isinstance(example, bytes):
            target.run(example)
            return
        at, seed, changes = example
        target.run(target.changed(kept[at], Dice(seed), changes)[: target.largest])

    search()


def test_the_document_counts_the_targets() -> None:
    page = (CORPUS.parents[2] / "docs" / "fuzzing.md").read_text(encoding="utf-8")
    assert f"holds a *target* for each, {len(NAMES)} of them:" in page


def test_inputs_are_named_by_their_content_and_are_few() -> None:
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    assert {path.parent.name for path in files} <= set(NAMES)
    assert len(files) > 100
    for path in files:
        assert path.name == name_of(path.read_bytes())
    for name in NAMES:
        assert sum(map(len, inputs(targets()[name]))) <= ROOM + targets()[name].largest
    assert sum(path.stat().st_size for path in files) < 500_000


def test_every_reader_of_the_codec_is_fuzzed() -> None:
    readers = {one for name, one in vars(codec).items() if name.startswith("read_") and inspect.isfunction(one)}
    assert readers <= {one.read for one in (*network_targets.CODECS.values(), network_targets.TICKET)}


def test_every_phase_is_fuzzed() -> None:
    def receiving(side: Side) -> set[str]:
        return {
            name
            for module in side.modules
            for name, one in vars(module).items()
            if inspect.isclass(one) and one.__module__ == module.__name__ and hasattr(one, "receive")
        }

    phases = {f"participant_{name}" for name in receiving(CLIENT)}
    phases |= {f"coordinator_{name}" for name in receiving(SERVER)}
    assert phases <= set(NAMES)
