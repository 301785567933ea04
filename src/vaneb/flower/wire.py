"""Trees of numbers and text as Flower's records and as files.

A tree is a nested dictionary.  Its numeric arrays (and lists of numbers) travel as raw float64 or int64
bytes, everything else as one JSON text that says where the arrays belong.  Nothing is ever pickled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vaneb.errors import InvalidReport
from vaneb.files import replacing

if TYPE_CHECKING:
    from flwr.app import RecordDict

Tree = dict[str, Any]
#: Marks the place of an array in the JSON text; no tree may use it as a key.
ARRAY = "$array"
#: Shorter lists stay in the text.
FEWEST = 4


def split(tree: Mapping[str, Any]) -> tuple[str, dict[str, NDArray[Any]]]:
    """JSON text and arrays by name; inverse of ``join``."""
    arrays: dict[str, NDArray[Any]] = {}

    def walk(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(key): walk(inner) for key, inner in value.items()}
        array = _as_array(value)
        if array is not None:
            name = str(len(arrays))
            arrays[name] = np.ascontiguousarray(array)
            return {ARRAY: name}
        if isinstance(value, list | tuple):
            return [walk(inner) for inner in value]
        return value.item() if isinstance(value, np.generic) else value

    return json.dumps(walk(tree)), arrays


def join(text: str, arrays: Mapping[str, NDArray[Any]]) -> Tree:
    """The tree that ``split`` took apart; ``InvalidReport`` for anything else."""

    def walk(value: Any) -> Any:
        if isinstance(value, dict):
            if value.keys() == {ARRAY}:
                return arrays[value[ARRAY]]
            return {key: walk(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [walk(inner) for inner in value]
        return value

    try:
        tree = walk(json.loads(text))
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InvalidReport("message: its text is not what this version writes.") from None
    if not isinstance(tree, dict):
        raise InvalidReport("message: its text is not an object.")
    return tree


def to_record(tree: Mapping[str, Any]) -> RecordDict:
    """The content of a message."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    text, arrays = split(tree)
    record = RecordDict({"text": ConfigRecord({"json": text})})
    if arrays:
        record["arrays"] = ArrayRecord({name: Array(array) for name, array in arrays.items()})
    return record


def from_record(record: RecordDict) -> Tree:
    """Inverse of ``to_record``; ``InvalidReport`` for anything that is not one, whatever it is."""
    try:
        text = record.config_records["text"]["json"]
        found: Mapping[str, Any] = record.array_records.get("arrays", {})
        arrays = {str(name): array.numpy() for name, array in found.items()}
    except Exception:  # bytes from outside: any of a dozen kinds of error
        raise InvalidReport("message: not one of ours (no text, or arrays that cannot be read).") from None
    if not isinstance(text, str):
        raise InvalidReport("message: its text is not text.")
    return join(text, arrays)


def size_of(record: RecordDict) -> int:
    """Bytes of a message's content as Flower writes it: what a node pulls or pushes, without headers."""
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    return sum(len(part.deflate()) for part in get_all_nested_objects(record).values())


def save(path: Path, tree: Mapping[str, Any]) -> None:
    """Write a tree as an npz file, whole or not at all."""
    text, arrays = split(tree)
    with replacing(path) as temporary, open(temporary, "wb") as file:
        entries = {"json": np.frombuffer(text.encode(), dtype=np.uint8)}
        np.savez(file, allow_pickle=False, **entries, **{f"array_{k}": a for k, a in arrays.items()})  # type: ignore[arg-type]


def load(path: Path) -> Tree:
    """Inverse of ``save``."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name.removeprefix("array_"): file[name] for name in file.files if name != "json"}
            text = file["json"].tobytes().decode()
    except FileNotFoundError:
        raise
    except Exception:
        raise InvalidReport(f"{path}: cannot be read. Remove it to ask for its content again.") from None
    return join(text, arrays)


def _as_array(value: Any) -> NDArray[Any] | None:
    """The numeric array that ``value`` is or should travel as."""
    if isinstance(value, list | tuple):
        if not value or isinstance(value[0], str | dict | bool | None):
            return None
        try:
            array = np.asarray(value)
        except ValueError:
            return None
        if array.size < FEWEST:
            return None
    elif isinstance(value, np.ndarray):
        array = value
    else:
        return None
    if array.dtype.kind == "f":
        return array.astype(array.dtype if array.dtype.itemsize <= 8 else np.float64)
    return array if array.dtype.kind in "iub" else None
