"""Trees survive messages and files, and nothing else passes for one."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("flwr")
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from vaneb import ClientReport, InvalidReport
from vaneb.covariance import ConstantDiagonal, ConstantFull, by_name
from vaneb.flower import wire

TREE = {
    "name": "north",
    "flag": True,
    "nothing": None,
    "deep": {"matrix": np.arange(6.0).reshape(2, 3), "short": [1, 2], "long": [0.1, 0.2, 0.3, 0.4]},
    "words": ["a", "b"],
    "empty": [],
}


def same(left, right) -> bool:
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        return np.array_equal(np.asarray(left), np.asarray(right))
    return left == right


def test_small_messages_are_one_record_and_large_ones_are_cut_by_flower():
    small, large = ({"values": np.arange(n, dtype=np.float64)} for n in (10, 200_000))
    assert list(wire.to_record(small)) == ["tree"]
    record = wire.to_record(large)
    assert list(record) == ["tree", "large"]
    assert same(wire.from_record(record), large)
    assert wire.size_of(record) < 8 * 200_000 + 2000


def test_messages_and_files_keep_every_bit(tmp_path):
    assert same(wire.from_record(wire.to_record(TREE)), TREE)
    wire.save(tmp_path / "tree.npz", TREE)
    assert same(wire.load(tmp_path / "tree.npz"), TREE)


@pytest.mark.parametrize(
    "covariance",
    [
        ConstantDiagonal(np.array([[1.0, 0.0, 1 / 3]])),
        ConstantFull(np.eye(3)[None] / 7),
        by_name("poisson", 3, 1),
    ],
    ids=lambda c: type(c).__name__,
)
def test_a_report_arrives_as_it_was_sent(covariance):
    report = ClientReport("north", np.array([0.1, 0.2, 0.3]), 12.0, covariance)
    arrived = ClientReport.from_wire(wire.from_record(wire.to_record(report.to_wire())))
    assert (arrived.id, arrived.n, arrived.status) == (report.id, report.n, report.status)
    np.testing.assert_array_equal(arrived.estimate, report.estimate)
    points = np.full((1, 1, 3), 0.7)
    np.testing.assert_array_equal(arrived.covariance.precision(points), covariance.precision(points))


def forged(text, data=b"") -> RecordDict:
    return RecordDict({"tree": ConfigRecord({"json": text, "data": data})})


@pytest.mark.parametrize(
    "record",
    [
        RecordDict(),
        forged(3),
        forged("{", b""),
        forged("[1]"),
        forged("{}", "text"),
        forged("{}", b"left over"),
        forged('{"a": {"$array": ["<f8", [2]]}}', bytes(15)),
        forged('{"a": {"$array": ["<f8", [-1]]}}', bytes(8)),
        forged('{"a": {"$array": ["|O", [1]]}}', bytes(8)),
        forged('{"a": {"$array": ["<f8", [4611686018427387904, 4]]}}', bytes(8)),
        forged('{"a": {"$array": {}}}'),
        forged('{"a": {"$array": 1}}'),
        forged("[" * 100_000),
        RecordDict({"tree": MetricRecord({"json": 1.0})}),
        RecordDict({"tree": ConfigRecord({"json": "{}"}), "large": ArrayRecord()}),
        # What numpy reads as a kind of number, and we do not: records, other byte orders, subarrays, words.
        *(
            forged(f'{{"a": {{"$array": ["{kind}", [1]]}}}}', bytes(8))
            for kind in (",f8", ">f8", "f8,f8", "(2,)<f4", "float64", "<c8", "<U2", "V8", "<M8[s]", "O", "")
        ),
        forged('{"a": {"$array": [["<f8"], [1]]}}', bytes(8)),
        forged('{"a": {"$array": ["<f8", [true]]}}', bytes(8)),
        forged('{"a": {"$array": ["<f8", ["1"]]}}', bytes(8)),
        forged('{"a": {"$array": ["<f8", [1.0]]}}', bytes(8)),
        forged('{"a": {"$array": ["<f8", [1], 1]}}', bytes(8)),
        forged('{"a": {"$array": ["<f8", [1, 1, 1, 1, 1, 1, 1, 1, 1]]}}', bytes(8)),
        forged('{"a": {"$array": ["<f8", [0, 999999999999999999999]]}}'),
        forged('{"a": ' + "9" * 5000 + "}"),
    ],
    ids=range(34),
)
def test_anything_else_is_refused(record):
    with pytest.raises(InvalidReport, match="message"):
        wire.from_record(record)


@pytest.mark.parametrize("size", [("LARGEST", 1000), ("LARGEST_TEXT", 1000)])
def test_what_is_too_large_is_not_read(monkeypatch, size):
    monkeypatch.setattr(wire, *size)
    for record in (
        wire.to_record({"a": np.zeros(200), "b": "x" * 1001}),
        forged("{}" + " " * 1001, bytes(1001)),
    ):
        with pytest.raises(InvalidReport, match="more than"):
            wire.from_record(record)


def test_other_byte_orders_are_sent_as_ours():
    tree = {"a": np.arange(5, dtype=">f8"), "b": np.arange(6, dtype=">i4").reshape(2, 3), "c": np.array(2.0)}
    assert same(wire.from_record(wire.to_record(tree)), tree)


def test_a_damaged_file_is_refused(tmp_path):
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 not a zip")
    with pytest.raises(InvalidReport, match=r"bad\.npz"):
        wire.load(tmp_path / "bad.npz")
