"""Image data sets: MNIST and CIFAR-10 from their standard files, digits from scikit-learn.

The files are looked for in the folder the user names (``--data-dir``, or the environment variable
``VANEB_DATA``), in it or in a subfolder as the original sites and torchvision lay them out.
"""

from __future__ import annotations

import gzip
import importlib.util
import io
import os
import pickle
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vaneb.errors import InvalidOption
from vaneb.fl.errors import MissingData

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]

MNIST_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
CIFAR_FOLDER = "cifar-10-batches-py"
CIFAR_FILES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")


@dataclass(frozen=True)
class ImageData:
    """A data set, not yet divided among clients.

    Parameters
    ----------
    images, labels : (N, channels, height, width) of uint8, (N,): those that clients train on.
    holdout_images, holdout_labels : those that clients are tested on; disjoint from the former.
    """

    name: str
    images: Images
    labels: Labels
    holdout_images: Images
    holdout_labels: Labels

    @property
    def n_classes(self) -> int:
        return int(self.labels.max()) + 1


def load_images(name: str, data_dir: Path | None = None) -> ImageData:
    """The data set called ``name``: "digits", "mnist" or "cifar10"."""
    if name not in DATA_SETS:
        raise InvalidOption(f"data set {name!r} is not known. Use one of {', '.join(DATA_SETS)}.")
    return DATA_SETS[name](data_dir)


def data_folder(data_dir: Path | None, name: str) -> Path:
    """The folder to look in: the one given, else that in ``VANEB_DATA``."""
    chosen = data_dir or (Path(os.environ["VANEB_DATA"]) if os.environ.get("VANEB_DATA") else None)
    if chosen is None:
        raise MissingData(
            f"{name}: no data folder given. Name the folder that holds its files with --data-dir or in the "
            "environment variable VANEB_DATA; the digits data set needs none."
        )
    if not chosen.is_dir():
        raise MissingData(f"{name}: the data folder {chosen} does not exist. Check --data-dir or VANEB_DATA.")
    return chosen


# ---------------------------------------------------------------- MNIST


def load_mnist(data_dir: Path | None) -> ImageData:
    """MNIST (LeCun, Cortes and Burges): 60,000 + 10,000 images of 28 x 28, from its four idx files."""
    folder = data_folder(data_dir, "MNIST")
    train_images, train_labels, test_images, test_labels = (
        _read_idx(_find_mnist(folder, name)) for name in MNIST_FILES
    )
    for images, labels in ((train_images, train_labels), (test_images, test_labels)):
        if images.ndim != 3 or labels.shape != images.shape[:1]:
            raise MissingData(
                f"MNIST: {images.shape} images and {labels.shape} labels do not fit. Get them anew."
            )
    return ImageData(
        "mnist",
        train_images[:, None],
        train_labels.astype(np.int64),
        test_images[:, None],
        test_labels.astype(np.int64),
    )


def _find_mnist(folder: Path, name: str) -> Path:
    for place in (folder, folder / "mnist", folder / "MNIST" / "raw", folder / "MNIST"):
        for spelled in (name, name.replace("-idx", ".idx")):
            for path in (place / f"{spelled}.gz", place / spelled):
                if path.is_file():
                    return path
    raise MissingData(
        f"MNIST: {name}.gz is not in {folder} (nor in its subfolders mnist, MNIST/raw). The four files "
        f"{', '.join(f'{file}.gz' for file in MNIST_FILES)} are distributed at "
        "https://yann.lecun.com/exdb/mnist/ and mirrored at https://ossci-datasets.s3.amazonaws.com/mnist/."
    )


def _read_idx(path: Path) -> NDArray[np.uint8]:
    """An idx file of unsigned bytes: two zero bytes, 0x08, the number of axes, big-endian lengths, data."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        zero, kind, axes = struct.unpack(">HBB", raw[:4])
        shape = struct.unpack(f">{axes}I", raw[4 : 4 + 4 * axes])
        if zero != 0 or kind != 8:
            raise ValueError("no idx file of unsigned bytes")
        return np.frombuffer(raw, dtype=np.uint8, offset=4 + 4 * axes).reshape(shape)
    except (ValueError, struct.error, EOFError, OSError) as error:
        raise MissingData(f"MNIST: {path} is damaged ({error}). Get the file anew.") from None


# ---------------------------------------------------------------- CIFAR-10


class _ArraysOnly(pickle.Unpickler):
    """Reads the distributed CIFAR-10 files, which are pickles, and refuses whatever is not an array.

    A pickle can call any function it names.  These files need three names, all of numpy, and get no other.
    """

    def find_class(self, module: str, name: str) -> Any:
        allowed: dict[tuple[str, str], Any] = {
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
        }
        if name == "_reconstruct" and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            return np._core.multiarray._reconstruct  # type: ignore[attr-defined]
        if (module, name) in allowed:
            return allowed[module, name]
        raise pickle.UnpicklingError(f"it wants to use {module}.{name}")


def load_cifar10(data_dir: Path | None) -> ImageData:
    """CIFAR-10 (Krizhevsky 2009): 50,000 + 10,000 colour images of 32 x 32, from its python-version files."""
    folder = data_folder(data_dir, "CIFAR-10")
    parts = [_read_cifar(_find_cifar(folder, name)) for name in CIFAR_FILES]
    images = [part[0] for part in parts]
    labels = [part[1] for part in parts]
    return ImageData("cifar10", np.concatenate(images[:5]), np.concatenate(labels[:5]), images[5], labels[5])


def _find_cifar(folder: Path, name: str) -> Path:
    for place in (folder / CIFAR_FOLDER, folder, folder / "cifar10" / CIFAR_FOLDER, folder / "cifar10"):
        if (place / name).is_file():
            return place / name
    raise MissingData(
        f"CIFAR-10: {name} is not in {folder / CIFAR_FOLDER} (nor in {folder} itself). Unpack "
        "cifar-10-python.tar.gz, distributed at https://www.cs.toronto.edu/~kriz/cifar.html, into the folder."
    )


def _read_cifar(path: Path) -> tuple[Images, Labels]:
    try:
        content = _ArraysOnly(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        images = np.asarray(content[b"data"], dtype=np.uint8).reshape(-1, 3, 32, 32)
        labels = np.asarray(content[b"labels"], dtype=np.int64)
    except (pickle.UnpicklingError, EOFError, KeyError, ValueError, TypeError, IndexError) as error:
        raise MissingData(f"CIFAR-10: {path} is no batch file ({error}). Get the file anew.") from None
    if len(images) != len(labels):
        raise MissingData(f"CIFAR-10: {path} has {len(images)} images and {len(labels)} labels.")
    return images, labels


# ---------------------------------------------------------------- digits


def load_digits(data_dir: Path | None = None) -> ImageData:
    """Scikit-learn's 1,797 handwritten digits of 8 x 8; every third one is held out.  Needs no files."""
    raw, labels = _digits_table()
    images = np.round(raw.reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8)
    held_out = np.arange(len(labels)) % 3 == 2
    return ImageData(
        "digits",
        images[~held_out],
        labels[~held_out].astype(np.int64),
        images[held_out],
        labels[held_out].astype(np.int64),
    )


def _digits_table() -> tuple[NDArray[np.float64], Labels]:
    """Pixels (1797, 64) from 0 to 16, and labels."""
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise MissingData("digits: scikit-learn is not installed. pip install 'vaneb[nn]'.")
    file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if file.exists():
        # Read from where the package keeps it: importing scikit-learn takes longer than the demo.
        table = np.loadtxt(io.BytesIO(gzip.decompress(file.read_bytes())), delimiter=",")
        return table[:, :-1], table[:, -1].astype(np.int64)
    from sklearn.datasets import load_digits as sklearn_digits

    return sklearn_digits(return_X_y=True)


DATA_SETS: dict[str, Callable[[Path | None], ImageData]] = {
    "digits": load_digits,
    "mnist": load_mnist,
    "cifar10": load_cifar10,
}
