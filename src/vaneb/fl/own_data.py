"""Data of one's own: clients as folders, as LEAF's JSON, or as a column of a table.

    FOLDER/NAME/*.npz|csv|parquet   a folder for each client; a file called ``test`` holds its test rows
    FOLDER/train/*.json             LEAF (Caldas et al. 2018), with or without FOLDER/test/*.json
    TABLE.csv|xlsx|parquet          one row after another; a column says whose it is

An ``.npz`` file has arrays ``x`` and ``y``.  In a table one column is the label, all others are inputs.
Where a client has no test rows, some of its rows are held out, drawn by the seed.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from vaneb.errors import InvalidOption
from vaneb.files import absent
from vaneb.fl.errors import MissingData
from vaneb.fl.federated_data import FederatedData, edges_of
from vaneb.sources import read_rows

Array = NDArray[Any]
Rows = tuple[Array, Array]
"""Inputs (n, ...) and labels (n,) as they were found."""

TABLES = (".csv", ".parquet", ".xlsx")


@dataclass(frozen=True, eq=False)
class OwnData:
    """Clients by name, each with the rows it trains on and, if it brought any, those it is tested on."""

    train: Mapping[str, Rows]
    test: Mapping[str, Rows]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.train)

    @property
    def classes(self) -> Array:
        """The labels that occur, in order."""
        return np.unique(np.concatenate([y for _, y in (*self.train.values(), *self.test.values())]))


def read_own(path: Path, client: str, label: str) -> OwnData:
    """The clients at ``path``; columns ``client`` and ``label`` are those of tables."""
    if path.is_file():
        return _from_table(path, client, label)
    if not path.is_dir():
        raise MissingData(absent(path))
    leaf = sorted((path / "train").glob("*.json")) or sorted(path.glob("*.json"))
    if leaf:
        return OwnData(_from_leaf(leaf), _from_leaf(sorted((path / "test").glob("*.json"))))
    folders = sorted(entry for entry in path.iterdir() if entry.is_dir())
    files = {folder.name: _files(folder) for folder in folders}
    if not any(files.values()):
        raise MissingData(
            f"{path}: no folders of clients and no LEAF files there. Give each client a folder NAME with "
            "files .npz, .csv or .parquet."
        )
    # Columns have the order of the first table: they are known by their names, not by their places.
    tables = [file for own in files.values() for file in own if file.suffix.lower() in TABLES]
    names = _inputs(read_rows(tables[0])[0], label) if tables else []
    train: dict[str, Rows] = {}
    test: dict[str, Rows] = {}
    for name, own in files.items():
        parts = {file: _from_file(file, label, names) for file in own}
        train[name] = _joined([part for file, part in parts.items() if file.stem != "test"])
        if for_test := [part for file, part in parts.items() if file.stem == "test"]:
            test[name] = _joined(for_test)
    return OwnData(train, test)


def federate_own(data: OwnData, test_share: float, seed: int) -> FederatedData:
    """Every client's rows.  "matched" is its test rows, "balanced" these repeated until classes are even."""
    for name, (_, y) in data.train.items():
        if not len(y):
            raise MissingData(f"client {name} has no rows to train on. Leave it out.")
    classes = data.classes
    if len(classes) < 2:
        raise MissingData(f"all rows have the label {classes[0]}. There is nothing to tell apart.")
    rng = np.random.default_rng([seed, 1])

    def codes_of(labels: Array) -> Array:
        return np.searchsorted(classes, labels.astype(classes.dtype)).astype(np.int64)

    train: list[Rows] = []
    test: list[Rows] = []
    for name, (x, y) in data.train.items():
        codes = codes_of(y)
        if name in data.test:
            train.append((x, codes))
            test.append((data.test[name][0], codes_of(data.test[name][1])))
            continue
        if len(y) == 1:
            raise MissingData(
                f"client {name} has one row: it needs one to train on and one to test on. Leave it out, or "
                "give it test rows of its own."
            )
        order = rng.permutation(len(y))
        count = min(len(y) - 1, max(1, round(test_share * len(y))))
        train.append((x[order[count:]], codes[order[count:]]))
        test.append((x[order[:count]], codes[order[:count]]))
    inputs = _alike([x for x, _ in (*train, *test)], [*data.names, *data.names])
    edges = edges_of([y for _, y in test])
    balanced = [_evened(y) + start for (_, y), start in zip(test, edges, strict=False)]
    mine = np.concatenate(inputs[: len(train)])
    is_image = mine.dtype == np.uint8
    return FederatedData(
        train_images=mine,
        train_labels=np.concatenate([y for _, y in train]),
        train_edges=edges_of([y for _, y in train]),
        test_images=np.concatenate(inputs[len(train) :]),
        test_labels=np.concatenate([y for _, y in test]),
        balanced_rows=np.concatenate(balanced),
        balanced_edges=edges_of(balanced),
        matched_rows=np.arange(edges[-1]),
        matched_edges=edges,
        cluster=np.zeros(len(train), dtype=np.int64),
        n_classes=len(classes),
        mean=float(mine.mean() / 255) if is_image else 0.0,
        deviation=float(mine.std() / 255) or 1.0 if is_image else 1.0,
    )


def _evened(codes: Array) -> Array:
    """Row numbers, so repeated that each class that occurs has as many."""
    found, counts = np.unique(codes, return_counts=True)
    return np.concatenate([np.resize(np.flatnonzero(codes == c), counts.max()) for c in found])


def _alike(inputs: list[Array], names: list[str]) -> list[Array]:
    """Inputs as the networks take them: bytes (images), whole numbers (tokens) or float32, of one shape."""
    kinds = {"u1" if x.dtype == np.uint8 else "i" if x.dtype.kind in "iub" else x.dtype.kind for x in inputs}
    if not kinds <= {"u1", "i", "f"}:
        raise InvalidOption(
            "inputs: text cannot go into a network. Write it as whole numbers, one for each token."
        )
    kind = np.uint8 if kinds == {"u1"} else np.int64 if kinds == {"i"} else np.float32
    shape = inputs[0].shape[1:]
    for x, name in zip(inputs, names, strict=True):
        if x.shape[1:] != shape:
            raise InvalidOption(
                f"client {name}: inputs of shape {x.shape[1:]}, and those of client {names[0]} are {shape}. "
                "All must be alike."
            )
    return [x.astype(kind) for x in inputs]


# ---------------------------------------------------------------- files


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if path.suffix.lower() in (".npz", *TABLES)]


def _from_file(path: Path, label: str, names: list[str]) -> Rows:
    if path.suffix.lower() == ".npz":
        return _from_npz(path)
    return _from_rows(read_rows(path)[0], path, label, names)


def _joined(parts: list[Rows]) -> Rows:
    if not parts:
        return np.empty((0, 0)), np.empty(0)
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


def _from_npz(path: Path) -> Rows:
    if not zipfile.is_zipfile(path):
        raise MissingData(f"{path}: not an .npz file. Write it with numpy.savez(path, x=..., y=...).")
    try:
        with np.load(path, allow_pickle=False) as arrays:
            x, y = arrays["x"], arrays["y"]
    except KeyError as error:
        raise MissingData(f"{path}: {error.args[0]}. It must hold arrays x and y.") from None
    except (ValueError, OSError, zipfile.BadZipFile):
        raise MissingData(f"{path}: cannot be read. Its arrays must be of plain numbers or text.") from None
    return _checked(x, y, str(path))


def _checked(x: Array, y: Array, where: str) -> Rows:
    """Inputs and labels that belong together, none of them missing."""
    if x.ndim < 2 or y.shape != x.shape[:1]:
        raise MissingData(f"{where}: x {x.shape} and y {y.shape} do not fit; a row of x for each label.")
    for name, values, remedy in (("inputs", x, "Fill them in."), ("labels", y, "Leave these rows out.")):
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            wrong = ~np.isfinite(values.reshape(len(values), -1).sum(axis=1))
            raise InvalidOption(
                f"{where}: {name} are missing or infinite in {wrong.sum()} of {len(wrong)} rows, first in "
                f"row {wrong.argmax() + 1}. {remedy}"
            )
    return x, y


def _inputs(table: pa.Table, label: str) -> list[str]:
    return [name for name in table.column_names if name != label]


def _from_rows(table: pa.Table, path: Path, label: str, names: list[str]) -> Rows:
    """Inputs in the order of ``names``, and labels."""
    _need_column(table, path, label, "label")
    if other := set(names) ^ set(_inputs(table, label)):
        raise InvalidOption(
            f"{path}: column {min(other)} is not in all tables. Clients must have the same columns."
        )
    columns = [table[name].to_numpy(zero_copy_only=False) for name in names]
    for name, column in zip(names, columns, strict=True):
        if column.dtype.kind not in "iufb":
            raise InvalidOption(f"{path}: column {name} has no numbers. Encode it or leave it out.")
    if table[label].null_count:
        raise InvalidOption(f"{path}: {table[label].null_count} rows have no {label}. Leave them out.")
    if not columns:
        raise InvalidOption(f"{path}: no column but {label}, so nothing to predict it from.")
    inputs = np.stack([column.astype(np.float64) for column in columns], axis=1)
    return _checked(inputs, np.array(table[label].to_pylist()), str(path))


def _need_column(table: pa.Table, path: Path, name: str, what: str) -> None:
    if name not in table.column_names:
        raise InvalidOption(
            f'{path}: [data] {what} = "{name}" is none of its columns, {", ".join(table.column_names)}.'
        )


def _from_table(path: Path, client: str, label: str) -> OwnData:
    table = read_rows(path, ids=[client] if client else ())[0]
    _need_column(table, path, client, "client")
    whose = np.array([str(value) for value in table[client].to_pylist()])
    rest = table.drop_columns([client])
    x, y = _from_rows(rest, path, label, _inputs(rest, label))
    return OwnData({name: (x[whose == name], y[whose == name]) for name in sorted(set(whose.tolist()))}, {})


def _from_leaf(files: Iterable[Path]) -> dict[str, Rows]:
    """LEAF: {"users": [...], "user_data": {user: {"x": [...], "y": [...]}}}."""
    found: dict[str, Rows] = {}
    for path in files:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            for user in content["users"]:
                rows = content["user_data"][user]
                found[str(user)] = np.asarray(rows["x"]), np.asarray(rows["y"])
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise MissingData(f"{path}: not a LEAF file ({error}).") from None
    for user, (x, y) in found.items():
        _checked(x, y, f"user {user}")
    return found
