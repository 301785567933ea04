"""Transformations do what they are called, and nothing at strength zero."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="networks need torch: pip install 'vaneb[nn]'")

from vaneb.fl import shift

GREY, COLOUR = list(shift.GREY), list(shift.COLOUR)


def spot(side: int = 28) -> np.ndarray:
    images = np.zeros((1, 1, side, side), dtype=np.uint8)
    images[0, 0, 8:12, 8:12] = 240
    return images


def centre(image: np.ndarray) -> np.ndarray:
    weight = image.astype(float) / image.sum()
    return np.array([(weight.sum(1) * np.arange(28)).sum(), (weight.sum(0) * np.arange(28)).sum()])


@pytest.mark.parametrize("channels", [1, 3])
def test_strength_zero_changes_nothing(channels):
    images = np.random.default_rng(0).integers(0, 256, (5, channels, 28, 28), dtype=np.uint8)
    for cluster in range(len(shift.clusters(channels))):
        assert shift.transform(images, cluster, 0.0, np.random.default_rng(0)) is images


@pytest.mark.parametrize("channels", [1, 3])
def test_hold_out_images_are_deterministic_and_training_images_vary(channels):
    one = np.random.default_rng(0).integers(0, 256, (1, channels, 28, 28), dtype=np.uint8)
    images = np.repeat(one, 4, axis=0)
    for cluster in range(len(shift.clusters(channels))):
        held_out = shift.transform(images, cluster, 1.0)
        assert held_out.dtype == np.uint8
        assert held_out.shape == images.shape
        assert (held_out == held_out[:1]).all()
        assert not np.array_equal(held_out, images)
        train = shift.transform(images, cluster, 1.0, np.random.default_rng(0))
        assert not np.array_equal(train[0], train[1])
        np.testing.assert_array_equal(train, shift.transform(images, cluster, 1.0, np.random.default_rng(0)))


def test_translation_moves_by_three_pixels():
    for strength in (1.0, 2.0):
        moved = shift.transform(spot(), GREY.index("translation"), strength)
        np.testing.assert_allclose(centre(moved[0, 0]) - centre(spot()[0, 0]), 3 * strength, atol=0.02)


def test_rotation_turns_about_the_middle():
    turned = shift.transform(spot(), GREY.index("rotation"), 1.0)
    before, after = centre(spot()[0, 0]) - 13.5, centre(turned[0, 0]) - 13.5
    angle = np.rad2deg(np.arctan2(*(-after[:1]), after[1]) - np.arctan2(*(-before[:1]), before[1]))
    assert abs(abs((angle + 180) % 360 - 180) - shift.ROTATION) < 1
    np.testing.assert_allclose(np.linalg.norm(after), np.linalg.norm(before), rtol=0.02)


def test_blur_spreads_and_keeps_the_brightness():
    blurred = shift.transform(spot(), GREY.index("blur"), 2.0)
    assert blurred.max() < 0.8 * spot().max()
    np.testing.assert_allclose(blurred.sum(), spot().sum(), rtol=0.03)
    np.testing.assert_allclose(centre(blurred[0, 0]), centre(spot()[0, 0]), atol=0.05)


def test_contrast_shrinks_towards_the_mean():
    faded = shift.transform(spot(), GREY.index("contrast"), 1.0).astype(float)
    np.testing.assert_allclose(faded.mean(), spot().mean(), atol=0.6)
    np.testing.assert_allclose(np.ptp(faded), (1 - shift.CONTRAST) * np.ptp(spot()), atol=1)


def test_colour_jitter_takes_colour_away():
    image = np.zeros((1, 3, 32, 32), dtype=np.uint8)
    image[0, 0] = 200
    changed = shift.transform(image, COLOUR.index("colour jitter"), 1.0)[0].mean((1, 2))
    assert np.ptp(changed) < np.ptp(image[0].mean((1, 2)))
