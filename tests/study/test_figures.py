"""Figures are written, whole, and show what they should."""

from __future__ import annotations

import numpy as np
import pytest

from vaneb.errors import InvalidOption
from vaneb.study import figures
from vaneb.study.estimators import ESTIMATORS
from vaneb.study.theory_study import draw_theory

pytest.importorskip("matplotlib")


def rows() -> list[dict[str, str]]:
    rng = np.random.default_rng(0)
    size = {"fedavg": 40.0, "local": 2.0, "oracle": 1.0}
    return [
        {
            "scenario": "poisson",
            "clients": str(k),
            "n_min": str(n),
            "replicate": str(r),
            "estimator": name,
            "rmse": str(size.get(name, 1.5) + 0.1 * rng.random()),
            "coverage": "0.9",
            "cpu_seconds": "1.0",
        }
        for k, n in ((50, 40), (200, 40), (200, 10))
        for r in range(3)
        for name in ESTIMATORS
    ]


@pytest.mark.parametrize(("suffix", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_sweeps_are_drawn_in_every_format(tmp_path, suffix, start):
    path = tmp_path / f"poisson.{suffix}"
    figures.draw_sweeps(rows(), "poisson", path)
    assert path.read_bytes().startswith(start)
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_off_the_scale_is_named_and_not_drawn(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(figures, "save", lambda figure, path, right=1.0: seen.append(figure))
    figures.draw_sweeps(rows(), "poisson", tmp_path / "poisson.png")
    for axis in seen[0].axes:
        assert "off the scale: fedavg (40)" in axis.get_xlabel()
        assert set(axis.get_legend_handles_labels()[1]) == set(ESTIMATORS) - {"fedavg"}
        assert axis.get_ylim()[1] < 10
    oracle = seen[0].axes[0].containers[list(ESTIMATORS).index("oracle")]
    assert oracle.lines[0].get_xdata().tolist() == [50, 200]
    assert oracle.lines[0].get_ydata() == pytest.approx([1.05, 1.05], abs=0.05)


def test_a_sweep_with_one_place_is_left_out(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(figures, "save", lambda figure, path, right=1.0: seen.append(figure))
    only = [row for row in rows() if row["n_min"] == "40"]
    figures.draw_sweeps(only, "poisson", tmp_path / "poisson.png")
    assert len(seen[0].axes) == 1
    assert seen[0].axes[0].get_xlabel().startswith("clients K")


def test_nothing_to_draw_is_said(tmp_path):
    with pytest.raises(InvalidOption, match="no results of scenario 'logistic'"):
        figures.draw_sweeps(rows(), "logistic", tmp_path / "logistic.png")


def test_prior_and_theory_are_drawn(tmp_path):
    figures.draw_prior(tmp_path / "prior.png")
    places = [("K", 10, 5), ("K", 20, 5), ("n", 10, 5), ("n", 10, 9)]
    theory = [
        {
            "prior": prior,
            "sweep": sweep,
            "clients": str(k),
            "n": str(n),
            "replicate": str(replicate),
            "estimator": name,
            "excess": str(1 / k),
            "hellinger": "0.1" if name == "vaneb" else "",
        }
        for prior in ("points", "curves")
        for sweep, k, n in places
        for replicate in range(2)
        for name in ("vaneb", "local")
    ]
    draw_theory(theory, tmp_path / "theory.png")
    for name in ("prior.png", "theory.png"):
        assert (tmp_path / name).stat().st_size > 20_000
