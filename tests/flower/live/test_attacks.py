"""Three of the attacks of ``benchmarks/federation/attacks.py`` on a keeper in a process of its own."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pandas as pd
import pytest

pytest.importorskip("flwr")

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "federation" / "attacks.py"


@pytest.fixture(scope="module")
def attacks():
    about = importlib.util.spec_from_file_location("attacks", SCRIPT)
    module = importlib.util.module_from_spec(about)
    sys.modules["attacks"] = module
    about.loader.exec_module(module)
    return module


def test_nothing_of_the_rows_leaves(attacks):
    words = {
        "two runs, a row between them": "1 rows differ",
        "a formula that runs a shell": "cannot be read",
        "a message of a gigabyte": "",
    }
    for one in attacks.outcomes(tuple(words)):
        assert one.said.startswith('{"failed": "')
        assert words[one.name] in one.reason
        assert 0 < len(one.sent) < 1000
        assert one.found == 0


def test_rows_would_be_found(attacks, tmp_path):
    site = attacks.site_in(tmp_path)
    frame = pd.read_csv(site.data)
    assert site.found(b"x" + frame.response.to_numpy()[3].tobytes()) == 1
    assert site.found(repr(float(frame.dose[5])).encode() + b" patient007") == 2
