"""Options of ``sordino data prepare``: apart from the sets, since its help needs no numpy."""

from __future__ import annotations

from functools import partial

from runtime.settings_file import Table
from runtime.settings_keys import key

_option = partial(key, panel="Options")


class Options(Table):
    """Options of making sets; each set reads its own."""

    vocabulary: int = _option(10_000, "of shakespeare: words that get a number each", within=(10, 100_000))
    alpha: float = _option(0.5, "of femnist-shaped: small is uneven", within=(0.001, 1e6))
    seed: int = _option(1, "of femnist-shaped: of the virtual writers; public", ge=0)
    writers: int = _option(3_400, "of femnist-shaped: how many", within=(1, 24_000))
