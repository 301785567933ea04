import numpy as np
import pytest

from vaneb.errors import InvalidOption
from vaneb.study.prior_curves import CURVES, FiveCurves

U = np.linspace(0, 2 * np.pi, 401)


def test_helix_has_radius_one_height_two_and_two_turns():
    points = CURVES["helix"](U)
    np.testing.assert_allclose(np.hypot(points[:, 0], points[:, 1]), 1)
    assert np.ptp(points[:, 2]) == pytest.approx(2)
    turns = np.unwrap(np.arctan2(points[:, 1], points[:, 0]))
    assert np.ptp(turns) == pytest.approx(4 * np.pi)


def test_ellipse_has_its_semi_axes_and_tilt():
    points = CURVES["ellipse"](U)
    radius = np.linalg.norm(points, axis=1)
    assert radius.max() == pytest.approx(1)
    assert radius.min() == pytest.approx(0.5)
    np.testing.assert_allclose(points[:, 1], points[:, 2])


def test_viviani_lies_on_the_sphere_and_the_cylinder():
    x, y, z = CURVES["viviani"](U).T
    np.testing.assert_allclose(x**2 + y**2 + z**2, 1)
    np.testing.assert_allclose((x - 0.5) ** 2 + y**2, 0.25)


def test_gerono_satisfies_its_quartic():
    x, y, z = CURVES["gerono"](U).T
    np.testing.assert_allclose(x**4 - x**2 + y**2, 0, atol=1e-12)
    assert not z.any()


def test_trefoil_stays_between_two_radii_and_closes():
    points = CURVES["trefoil"](U)
    radius = np.hypot(points[:, 0], points[:, 1])
    assert radius.min() == pytest.approx(1 / 3, abs=1e-3)
    assert radius.max() == pytest.approx(1, abs=1e-3)
    np.testing.assert_allclose(points[0], points[-1], atol=1e-12)


def test_sample_follows_weights_and_agrees_with_the_fine_atoms():
    prior = FiveCurves()
    theta = prior.sample(60_000, np.random.default_rng(0))
    atoms, weights = prior.atoms(500)
    assert weights.sum() == pytest.approx(1)
    mean = weights @ atoms
    second = atoms.T @ (weights[:, None] * atoms)
    np.testing.assert_allclose(theta.mean(0), mean, atol=0.04)
    np.testing.assert_allclose(theta.T @ theta / len(theta), second, atol=0.08)


def test_sizes_and_centres_are_parameters():
    moved = FiveCurves(sizes=(2.0, 1.0, 1.0, 1.0, 1.0), centres=((0.0, 0.0, 0.0),) * 5)
    t = np.array([0.3, -0.2])
    trefoil = FiveCurves().curve(0, t) - np.array(FiveCurves().centres[0])
    np.testing.assert_allclose(moved.curve(0, t), 2 * trefoil)


def test_impossible_priors_are_refused():
    with pytest.raises(InvalidOption, match="sum to 1"):
        FiveCurves(weights=(0.5, 0.5, 0.5, 0.1, 0.1))
    with pytest.raises(InvalidOption, match="sizes"):
        FiveCurves(sizes=(1.0, 1.0))
    with pytest.raises(InvalidOption, match="per_curve"):
        FiveCurves().atoms(0)
