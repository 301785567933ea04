"""Reading the standard files, refusing what is not one, and dividing a data set among clients."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="networks need torch: pip install 'vaneb[nn]'")

from vaneb.errors import InvalidOption
from vaneb.fl.data import CIFAR_FILES, CIFAR_FOLDER, MNIST_FILES, load_images
from vaneb.fl.errors import MissingData
from vaneb.fl.federated_data import FederatedData, federate


def write_idx(path: Path, array: np.ndarray) -> None:
    header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    content = header + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_mnist(folder: Path, suffix: str = ".gz") -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {}
    for name, size in zip(MNIST_FILES, (30, 30, 20, 20), strict=True):
        shape = (size, 28, 28) if "images" in name else (size,)
        arrays[name] = rng.integers(0, 10, shape)
        write_idx(folder / f"{name}{suffix}", arrays[name])
    return arrays


@pytest.mark.parametrize("place", ["", "mnist", "MNIST/raw"])
@pytest.mark.parametrize("suffix", [".gz", ""])
def test_mnist_is_read_from_where_it_usually_lies(tmp_path, place, suffix):
    arrays = write_mnist(tmp_path / place, suffix)
    data = load_images("mnist", tmp_path)
    np.testing.assert_array_equal(data.images[:, 0], arrays["train-images-idx3-ubyte"])
    np.testing.assert_array_equal(data.holdout_labels, arrays["t10k-labels-idx1-ubyte"])
    assert data.images.shape == (30, 1, 28, 28)


def test_the_environment_names_the_folder(tmp_path, monkeypatch):
    write_mnist(tmp_path)
    monkeypatch.setenv("VANEB_DATA", str(tmp_path))
    assert len(load_images("mnist").labels) == 30


def test_missing_files_are_named_with_where_to_get_them(tmp_path, monkeypatch):
    monkeypatch.delenv("VANEB_DATA", raising=False)
    with pytest.raises(MissingData, match="--data-dir or in the environment variable VANEB_DATA"):
        load_images("mnist")
    with pytest.raises(MissingData, match="does not exist"):
        load_images("cifar10", tmp_path / "nowhere")
    with pytest.raises(MissingData, match=r"train-images-idx3-ubyte.gz is not in .*lecun"):
        load_images("mnist", tmp_path)
    with pytest.raises(MissingData, match=r"data_batch_1 is not in .*cs.toronto.edu"):
        load_images("cifar10", tmp_path)
    with pytest.raises(InvalidOption, match="digits, mnist, cifar10"):
        load_images("imagenet", tmp_path)


def test_damaged_mnist_files_are_refused(tmp_path):
    write_mnist(tmp_path)
    path = tmp_path / f"{MNIST_FILES[0]}.gz"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(MissingData, match="damaged"):
        load_images("mnist", tmp_path)
    write_mnist(tmp_path)
    write_idx(tmp_path / f"{MNIST_FILES[1]}.gz", np.zeros(29))
    with pytest.raises(MissingData, match="do not fit"):
        load_images("mnist", tmp_path)


def write_cifar(folder: Path, content=None) -> None:
    (folder / CIFAR_FOLDER).mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in CIFAR_FILES:
        batch = {
            b"data": rng.integers(0, 256, (6, 3072), dtype=np.uint8),
            b"labels": list(range(6)),
            b"batch_label": b"a batch",
            b"filenames": [b"x.png"] * 6,
        }
        (folder / CIFAR_FOLDER / name).write_bytes(pickle.dumps(content or batch, protocol=3))


def test_cifar_is_read(tmp_path):
    write_cifar(tmp_path)
    data = load_images("cifar10", tmp_path)
    assert data.images.shape == (30, 3, 32, 32)
    assert data.holdout_images.shape == (6, 3, 32, 32)
    np.testing.assert_array_equal(data.labels, np.tile(np.arange(6), 5))


class Intruder:
    def __reduce__(self):
        return os.system, ("touch intruded",)


def test_a_cifar_file_cannot_run_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_cifar(tmp_path, {b"data": Intruder(), b"labels": []})
    with pytest.raises(MissingData, match=r"it wants to use \w+.system"):
        load_images("cifar10", tmp_path)
    assert not (tmp_path / "intruded").exists()


def test_damaged_cifar_files_are_refused(tmp_path):
    write_cifar(tmp_path, {b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]})
    with pytest.raises(MissingData, match="2 images and 1 labels"):
        load_images("cifar10", tmp_path)
    (tmp_path / CIFAR_FOLDER / "data_batch_1").write_bytes(b"no pickle")
    with pytest.raises(MissingData, match="no batch file"):
        load_images("cifar10", tmp_path)


def test_digits_need_no_files():
    data = load_images("digits")
    assert len(data.labels) + len(data.holdout_labels) == 1797
    assert data.images.shape[1:] == (1, 8, 8)
    assert data.images.max() == 255


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_real_files(name):
    """Only where VANEB_DATA names a folder that has them."""
    if "VANEB_DATA" not in os.environ:
        pytest.skip("VANEB_DATA names no folder with MNIST and CIFAR-10")
    try:
        data = load_images(name)
    except MissingData as error:
        pytest.skip(str(error))
    counts = {"mnist": (60_000, 5421), "cifar10": (50_000, 5000)}[name]
    assert (len(data.labels), np.bincount(data.labels).min()) == counts
    assert len(data.holdout_labels) == 10_000


# ---------------------------------------------------------------- divided among clients

SETTING = {
    "n_clients": 12, "alpha": 0.1, "total": 600, "shift_strength": 1.0, "test_per_client": 30, "seed": 3,
}  # fmt: skip


@pytest.fixture(scope="module")
def digits():
    return load_images("digits")


@pytest.fixture(scope="module")
def federation(digits):
    return federate(digits, **SETTING)


def test_a_client_has_its_share(federation):
    assert federation.n_clients == 12
    data = federation.client(5)
    assert data.images.shape == (50, 1, 8, 8)
    assert data.client == 5
    assert abs(float(np.mean([federation.client(k).images.mean() for k in range(12)]))) < 0.3


def test_test_sets_follow_their_protocols(federation):
    for k in range(12):
        balanced = np.bincount(federation.test(k, "balanced").labels, minlength=10)
        np.testing.assert_array_equal(balanced, np.full(10, 3))
        train = np.bincount(federation.client(k).labels, minlength=10) / 50
        matched = federation.test(k, "matched").labels
        np.testing.assert_allclose(np.bincount(matched, minlength=10) / len(matched), train, atol=1.01 / 30)


def test_training_and_test_images_are_disjoint(digits):
    """Without shift the images can be recognised."""
    data = federate(digits, **{**SETTING, "shift_strength": 0.0})
    train = {image.tobytes() for image in data.train_images}
    held_out = {image.tobytes() for image in digits.holdout_images}
    assert train <= {image.tobytes() for image in digits.images}
    assert {image.tobytes() for image in data.test_images} <= held_out
    assert len(data.train_images) == 600


def test_clusters_are_even_and_seen_in_the_images(federation):
    np.testing.assert_array_equal(np.bincount(federation.cluster), [3, 3, 3, 3])
    assert len(federation.test_images) == 4 * 599


def test_groups_call_the_same_image_by_other_labels(digits):
    """Without shift an image is recognised: its label is its digit, renamed by one rule per group."""
    data = federate(digits, **{**SETTING, "shift_strength": 0.0, "label_groups": 2, "size_ratio": 10.0})
    digit = {
        image.tobytes(): int(label)
        for image, label in [
            *zip(digits.images, digits.labels, strict=True),
            *zip(digits.holdout_images, digits.holdout_labels, strict=True),
        ]
    }
    meaning: dict[int, dict[int, int]] = {0: {}, 1: {}}
    for k, group in enumerate(data.cluster):
        train = slice(data.train_edges[k], data.train_edges[k + 1])
        tests = data.balanced_rows[data.balanced_edges[k] : data.balanced_edges[k + 1]]
        for images, labels in (
            (data.train_images[train], data.train_labels[train]),
            (data.test_images[tests], data.test_labels[tests]),
        ):
            for image, label in zip(images, labels, strict=True):
                known = meaning[int(group)].setdefault(digit[image.tobytes()], int(label))
                assert known == label
    assert meaning[0] == {c: c for c in range(10)}
    assert meaning[1] != meaning[0]
    assert sorted(meaning[1].values()) == list(range(10))
    np.testing.assert_array_equal(np.bincount(data.cluster), [6, 6])
    assert np.diff(data.train_edges).max() > 8 * np.diff(data.train_edges).min()


def test_the_seed_decides(digits, federation):
    assert federate(digits, **SETTING).digest() == federation.digest()
    assert federate(digits, **{**SETTING, "seed": 4}).digest() != federation.digest()


def test_saved_and_mapped_it_is_the_same(federation, tmp_path):
    federation.save(tmp_path)
    mapped = FederatedData.load(tmp_path)
    assert mapped.digest() == federation.digest()
    assert isinstance(mapped.train_images, np.memmap)


def test_a_client_without_images_is_named(federation):
    edges = federation.train_edges.copy()
    edges[4] = edges[5]
    fields = {name: getattr(federation, name) for name in federation.__dataclass_fields__}
    with pytest.raises(InvalidOption, match="client 4 has no training images"):
        FederatedData(**{**fields, "train_edges": edges})
