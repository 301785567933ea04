from __future__ import annotations

import pytest

from browser import chromium


@pytest.fixture(scope="session")
def driver():
    with chromium() as made:
        yield made
