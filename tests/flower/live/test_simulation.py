"""``vaneb federate simulate``: Flower's simulation on Ray gives what one process gives."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("flwr")
pytest.importorskip("ray")
from typer.testing import CliRunner

from flower.loopback import write_rows
from vaneb.cli import app
from vaneb.grouped import fit_groups


def test_every_virtual_client_gets_its_own_posterior(tmp_path):
    frames = [pd.read_csv(write_rows(tmp_path / f"c{k}.csv", k)).assign(site=f"c{k}") for k in range(6)]
    pd.concat(frames).sample(frac=1, random_state=0).to_csv(tmp_path / "all.csv", index=False)
    folder = tmp_path / "federation"
    arguments = ["--data", tmp_path / "all.csv", "--client", "site", "--formula", "y ~ x", "--folder", folder]
    done = CliRunner().invoke(
        app, ["federate", "simulate", *map(str, arguments), "--set", "population=discrete"]
    )
    assert done.exit_code == 0, done.output
    assert "served       6: c0, c1, c2, c3, c4, c5" in done.output
    results = [json.loads(path.read_text()) for path in (folder / "clients").glob("*/result.json")]
    found = {result["client"]: result["mean"] for result in results}

    pooled = fit_groups(pd.concat(frames), client="site", formula="y ~ x", population="discrete")
    np.testing.assert_allclose([found[f"c{k}"] for k in range(6)], pooled.posterior.mean, rtol=1e-6)
