"""Trees of numbers and text as Flower's records and as files.

A tree is a nested dictionary.  Its numeric arrays (and lists of numbers) travel as raw bytes, one after the
other, everything else as one JSON text that says where the arrays belong.  Nothing is ever pickled.

Flower moves a message in parts, with several requests to the server's database for each, so a message has as
few parts as may be: everything in one record, unless that would be large.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
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
#: More bytes than this travel as an array of Flower's, which it cuts into chunks.
LARGE = 1 << 20
#: What Flower calls the form of such an array.
RAW = "vaneb.bytes"
#: Bytes of arrays, and of text, that a message may have.
LARGEST, LARGEST_TEXT = 64 << 20, 1 << 20
#: Beyond it products of three numbers run over; nobody's rows have such sums.
LARGEST_NUMBER = 1e50
MOST_AXES = 8
#: Kinds of numbers that travel, by the names that numpy writes for them; there are no others.
KINDS = {
    np.dtype(kind).str: np.dtype(kind)
    for kind in ("?", "i1", "u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8")
}


def split(tree: Mapping[str, Any]) -> tuple[str, list[NDArray[Any]]]:
    """JSON text and arrays; inverse of ``join``."""
    arrays: list[NDArray[Any]] = []

    def walk(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(key): walk(inner) for key, inner in value.items()}
        array = _as_array(value)
        if array is not None:
            array = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(array.shape)
            arrays.append(array)
            return {ARRAY: [array.dtype.str, list(array.shape)]}
        if isinstance(value, list | tuple):
            return [walk(inner) for inner in value]
        return value.item() if isinstance(value, np.generic) else value

    return json.dumps(walk(tree), separators=(",", ":")), arrays


def join(text: str, data: bytes) -> Tree:
    """The tree that ``split`` took apart, from its text and the bytes of its arrays.

    ``InvalidReport`` for anything else.
    """
    if len(text) > LARGEST_TEXT or len(data) > LARGEST:
        raise InvalidReport(
            f"message: {len(text) + len(data)} bytes, more than the {LARGEST_TEXT} of text and {LARGEST} of "
            "arrays that are read."
        )
    place = 0

    def array(about: Any) -> NDArray[Any]:
        nonlocal place
        kind, shape = about
        dtype = KINDS[kind]  # never one that numpy would make of the word
        if not isinstance(shape, list) or len(shape) > MOST_AXES:
            raise ValueError
        if any(type(size) is not int or not 0 <= size <= LARGEST for size in shape):
            raise ValueError
        # A view of bytes that are there: numpy refuses more, and makes room for nothing.
        values = np.frombuffer(data, dtype, math.prod(shape), place).reshape(shape)
        place += values.nbytes
        return values

    def walk(value: Any) -> Any:
        if isinstance(value, dict):
            if value.keys() == {ARRAY}:
                return array(value[ARRAY])
            return {key: walk(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [walk(inner) for inner in value]
        return value

    try:
        tree = walk(json.loads(text))
    except Exception:  # text from outside: whatever reading it raises, it is the sender's fault alone
        raise InvalidReport("message: its text is not what this version writes.") from None
    if not isinstance(tree, dict):
        raise InvalidReport("message: its text is not an object.")
    if place != len(data):
        raise InvalidReport(f"message: has {len(data)} bytes of arrays, its text speaks of {place}.")
    return tree


def to_record(tree: Mapping[str, Any]) -> RecordDict:
    """The content of a message."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    text, arrays = split(tree)
    data = _packed(arrays)
    if len(data) <= LARGE:
        return RecordDict({"tree": ConfigRecord({"json": text, "data": data})})
    large = Array("uint8", (len(data),), RAW, data)
    return RecordDict({"tree": ConfigRecord({"json": text}), "large": ArrayRecord({"data": large})})


def from_record(record: RecordDict) -> Tree:
    """Inverse of ``to_record``; ``InvalidReport`` for anything that is not one, whatever it is."""
    try:
        content = record.config_records["tree"]
        text = content["json"]
        large = record.array_records.get("large")
        data = content["data"] if large is None else large["data"].data
    except Exception:  # bytes from outside: any of a dozen kinds of error
        raise InvalidReport("message: not one of ours (no text, or no arrays).") from None
    if not isinstance(text, str) or not isinstance(data, bytes):
        raise InvalidReport("message: its text is not text, or its arrays are no bytes.")
    return join(text, data)


def _packed(arrays: Sequence[NDArray[Any]]) -> bytes:
    return b"".join(array.tobytes() for array in arrays)


def size_of(record: RecordDict) -> int:
    """Bytes of a message's content as Flower writes it: what a node pulls or pushes, without headers."""
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    return sum(len(part.deflate()) for part in get_all_nested_objects(record).values())


def save(path: Path, tree: Mapping[str, Any]) -> None:
    """Write a tree as an npz file, whole or not at all."""
    text, arrays = split(tree)
    written, data = (np.frombuffer(part, np.uint8) for part in (text.encode(), _packed(arrays)))
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, json=written, data=data)


def load(path: Path) -> Tree:
    """Inverse of ``save``."""
    try:
        with np.load(path, allow_pickle=False) as file:
            text, data = file["json"].tobytes().decode(), file["data"].tobytes()
    except FileNotFoundError:
        raise
    except Exception:
        raise InvalidReport(f"{path}: cannot be read. Remove it to ask for its content again.") from None
    return join(text, data)


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


def check_array(value: object, shape: tuple[int, ...], what: str) -> np.ndarray:
    """A finite float array of the given shape, from outside."""
    try:
        array = np.asarray(value)
    except ValueError:
        raise InvalidReport(f"{what}: expected numbers of shape {shape}.") from None
    if array.dtype.kind not in "iuf" or array.shape != shape:
        raise InvalidReport(f"{what}: expected numbers of shape {shape}, got {array.dtype} {array.shape}.")
    if not (np.abs(array) <= LARGEST_NUMBER).all():
        raise InvalidReport(f"{what}: holds numbers that are not finite, or beyond {LARGEST_NUMBER:g}.")
    return array.astype(np.float64)
