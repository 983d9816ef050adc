"""Options of ``sordino graph``: apart from its figures, since its help needs no numpy."""

from __future__ import annotations

from functools import partial
from typing import Literal

from runtime.settings_file import Table
from runtime.settings_keys import key

LARGEST = 10**6
_option = partial(key, panel="Options")
_safety = partial(key, panel="Probabilities", ge=0, le=256)


class GraphOptions(Table):
    clients: int = _option(1000, "participants of a round", within=(2, LARGEST), metavar="N")
    adversarial: float = _option(0.05, "share assumed to collude", ge=0, lt=1)
    dropout: float = _option(0.1, "share that may leave in a round", ge=0, lt=1, spellings=("--max-dropout",))
    adversary: Literal["curious", "semi-malicious", "malicious"] = _option(
        "malicious", "what the coordinator may do: malicious, semi-malicious or curious"
    )
    min_survivors: int | None = _option(
        None, "fewest participants in a sum", shown="as many as dropout leaves", ge=1, metavar="N"
    )
    sigma: int = _safety(40, "a round is insecure with 2^-sigma")
    eta: int = _safety(20, "random drops spoil a round with 2^-eta")
    grinding: int = _safety(80, "a malicious coordinator tries 2^grinding rings")
    rings: int = key(
        0,
        "random rings on which the best known attack is tried; fails if it succeeds too often. Lower sigma and "
        "grinding to see it succeed",
        within=(0, 10**8),
        panel="Attack",
    )
