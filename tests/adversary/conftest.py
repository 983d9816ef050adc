"""Study folders, keys and certificates of the adversary suite, made once."""

from __future__ import annotations

import pytest

from tests.adversary.script import Places


@pytest.fixture(scope="session")
def places(tmp_path_factory: pytest.TempPathFactory) -> Places:
    return Places(tmp_path_factory.mktemp("adversary"))
