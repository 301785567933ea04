"""Data and networks of one's own: folders, LEAF, tables; adapters, tokens; a client's network afterwards."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch", reason="networks need torch: pip install 'vaneb[nn]'")

import torch
from torch import nn

from vaneb.errors import InvalidOption
from vaneb.fl import load_personal
from vaneb.fl.config import config_from
from vaneb.fl.errors import MissingData
from vaneb.fl.experiment import run_experiment
from vaneb.fl.own_data import federate_own, read_own

LABELS = np.array(["low", "middle", "high"])


def rows(seed: int, n: int = 30) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 4)).astype(np.float32)
    return x, LABELS[np.argmax(x[:, :3] + 0.2 * rng.standard_normal((n, 3)), axis=1)]


def as_csv(x: np.ndarray, y: np.ndarray, client: str | None = None) -> list[str]:
    head = ",".join([*(f"x{i}" for i in range(x.shape[1])), "label", *([] if client is None else ["site"])])
    tail = "" if client is None else f",{client}"
    return [
        head,
        *(",".join(f"{v:.6f}" for v in row) + f",{label}{tail}" for row, label in zip(x, y, strict=True)),
    ]


@pytest.fixture
def folders(tmp_path):
    """North has files of both kinds and test rows, south one table."""
    place = tmp_path / "clients"
    for name in ("north", "south"):
        (place / name).mkdir(parents=True)
    np.savez(place / "north" / "a.npz", x=rows(0)[0], y=rows(0)[1])
    (place / "north" / "b.csv").write_text("\n".join(as_csv(*rows(1))))
    np.savez(place / "north" / "test.npz", x=rows(2, 12)[0], y=rows(2, 12)[1])
    (place / "south" / "all.csv").write_text("\n".join(as_csv(*rows(3, 40))))
    return place


def test_folders_of_clients(folders):
    data = read_own(folders, "", "label")
    assert data.names == ("north", "south")
    assert data.classes.tolist() == ["high", "low", "middle"]
    federated = federate_own(data, 0.25, seed=0)
    assert [len(federated.client(k)) for k in range(2)] == [60, 30]
    np.testing.assert_allclose(federated.client(0).images[30:], rows(1)[0], atol=1e-6)
    names = data.classes[federated.test(0, "matched").labels.numpy()]
    assert names.tolist() == rows(2, 12)[1].tolist()
    # What south is tested on it does not train on.
    south = [federated.client(1), federated.test(1, "matched")]
    together = torch.cat([part.images for part in south])
    assert len(together.unique(dim=0)) == 40
    labels = federated.test(1, "balanced").labels
    assert len(set(labels.bincount()[labels.unique()].tolist())) == 1


def test_a_table_with_a_column_of_clients(tmp_path):
    table = tmp_path / "all.csv"
    lines = as_csv(*rows(0), client="007") + as_csv(*rows(1, 20), client="12")[1:]
    table.write_text("\n".join(lines))
    data = read_own(table, "site", "label")
    assert data.names == ("007", "12")
    np.testing.assert_allclose(data.train["12"][0], rows(1, 20)[0], atol=1e-6)
    with pytest.raises(InvalidOption, match='client = "ward" is none of its columns'):
        read_own(table, "ward", "label")


def test_leaf(tmp_path):
    """Tokens stay whole numbers, and clients without test rows have some held out."""
    rng = np.random.default_rng(0)
    for part, n, users in (("train", 20, ["ann", "bob"]), ("test", 6, ["ann"])):
        (tmp_path / part).mkdir()
        content = {
            user: {"x": rng.integers(0, 9, (n, 5)).tolist(), "y": rng.integers(0, 2, n).tolist()}
            for user in users
        }
        (tmp_path / part / "all.json").write_text(json.dumps({"users": users, "user_data": content}))
    federated = federate_own(read_own(tmp_path, "", ""), 0.2, seed=0)
    assert [len(federated.client(k)) for k in range(2)] == [20, 16]
    assert [len(federated.test(k, "matched")) for k in range(2)] == [6, 4]
    assert federated.client(0).images.dtype == torch.int64


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: (x[:, :3], y), "inputs of shape"),
        (
            lambda x, y: (np.where(x > 2, np.nan, x), y),
            r"all.npz: inputs are missing or infinite in \d+ of 200",
        ),
        (lambda x, y: (x, np.full(200, np.nan)), r"all.npz: labels are missing .* first in row 1\."),
        (lambda x, y: (x.astype(str), y), "text cannot go into a network"),
        (lambda x, y: (x[:1], y[:1]), "client south has one row.* Leave it out"),
        (lambda x, y: (x[:0], y[:0]), "client south has no rows"),
        (lambda x, y: (x, y[:5]), "do not fit"),
    ],
)
def test_what_does_not_fit_is_said(folders, change, message):
    x, y = change(*rows(5, 200))
    np.savez(folders / "south" / "all.npz", x=x, y=y)
    (folders / "south" / "all.csv").unlink()
    with pytest.raises((InvalidOption, MissingData), match=message):
        federate_own(read_own(folders, "", "label"), 0.2, seed=0)


def test_columns_are_known_by_their_names(tmp_path):
    """Another order is the same table; other names are refused."""
    x, y = rows(0, 40)
    for name, order in (("north", [0, 1, 2, 3]), ("south", [2, 0, 3, 1])):
        (tmp_path / name).mkdir()
        lines = [",".join([*(f"x{i}" for i in order), "label"])]
        lines += [
            ",".join(f"{v:.6f}" for v in row[order]) + f",{label}" for row, label in zip(x, y, strict=True)
        ]
        (tmp_path / name / "all.csv").write_text("\n".join(lines))
    data = read_own(tmp_path, "", "label")
    np.testing.assert_array_equal(data.train["north"][0], data.train["south"][0])
    text = (tmp_path / "south" / "all.csv").read_text()
    (tmp_path / "south" / "all.csv").write_text(text.replace("x2", "age", 1))
    with pytest.raises(InvalidOption, match=r"all.csv: column age is not in all tables"):
        read_own(tmp_path, "", "label")


def test_one_label_leaves_nothing_to_learn(tmp_path):
    (tmp_path / "north").mkdir()
    np.savez(tmp_path / "north" / "all.npz", x=rows(0)[0], y=np.full(30, "low"))
    with pytest.raises(MissingData, match="all rows have the label low"):
        federate_own(read_own(tmp_path, "", ""), 0.2, seed=0)


@pytest.mark.parametrize(("content", "message"), [(b"x", "not an .npz file"), (None, "x is not a file")])
def test_files_that_are_not_what_they_are_called(tmp_path, content, message):
    (tmp_path / "north").mkdir()
    np.savez(tmp_path / "north" / "all.npz", images=rows(0)[0])
    if content is not None:
        (tmp_path / "north" / "all.npz").write_bytes(content)
    with pytest.raises(MissingData, match=message):
        read_own(tmp_path, "", "")


def test_settings_that_would_change_nothing_are_refused(tmp_path):
    with pytest.raises(InvalidOption, match="alpha does not go with path"):
        config_from({"data": {"path": "clients", "alpha": 0.1}})
    with pytest.raises(InvalidOption, match="Vary the seed"):
        config_from({"data": {"path": "clients"}, "grid": {"alpha": [0.1]}})
    with pytest.raises(MissingData):
        read_own(tmp_path / "nowhere", "", "")


class Adapted(nn.Module):
    """A frozen layer with an adapter of rank one, group normalisation, dropout and a head called out."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.frozen = nn.Linear(4, 8).requires_grad_(False)
        self.down, self.up = nn.Linear(4, 1, bias=False), nn.Linear(1, 8, bias=False)
        self.rest = nn.Sequential(nn.GroupNorm(2, 8), nn.Tanh(), nn.Dropout(0.1))
        self.out = nn.Linear(8, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.rest(self.frozen(x) + self.up(self.down(x))))


class Tokens(nn.Module):
    """Embedded tokens, averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(9, 6), nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.words(x).mean(1))


class Several(Adapted):
    """Returns more than scores."""

    def forward(self, x: torch.Tensor):
        return super().forward(x), x


class Soft(Adapted):
    """Something comes after the head."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).softmax(1)


class Borrowed(Adapted):
    """The head's weights are used, the head is not."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(self.frozen(x), self.out.weight, self.out.bias)


class Frozen(Adapted):
    """A head that cannot move."""

    def __init__(self) -> None:
        super().__init__()
        self.out.requires_grad_(False)


class Normalised(nn.Module):
    """Batch normalisation of rows, which one row alone cannot have."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh())
        self.out = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.body(x))


def own_config(path, model, **changes):
    return config_from(
        {
            "methods": ["fedavg", "fedavg_ft_adjusted", "vaneb_glm"],
            "data": {"path": str(path)},
            "model": {"name": model, "head": "out"},
            "training": {"rounds": 3, "participation": 1.0},
            "options": {"vaneb_glm": {"rounds": 6, "starts": 2}},
            **changes,
        }
    )


@pytest.fixture
def models(monkeypatch):
    import sys
    from types import ModuleType

    module = ModuleType("own_models")
    for kind in (Adapted, Tokens, Several, Soft, Borrowed, Frozen, Normalised):
        setattr(module, kind.__name__, kind)
    monkeypatch.setitem(sys.modules, "own_models", module)


def test_a_client_gets_the_network_that_was_evaluated(folders, models, tmp_path):
    config = own_config(folders, "own_models:Adapted")
    out = tmp_path / "run"
    rows_of_run = run_experiment(config, out, keep_networks=True)
    federated = federate_own(read_own(folders, "", "label"), 0.2, seed=0)
    for method in config.methods:
        label = {"fedavg": "FedAvg", "vaneb_glm": "VANEB-GLM"}.get(method, "FedAvg+FT (logit-adjusted)")
        for protocol in ("matched", "balanced"):
            found = []
            for k, name in enumerate(("north", "south")):
                network = load_personal(out, name, method=method, like_own=protocol == "matched")
                test = federated.test(k, protocol)
                found.append((network(test.images).argmax(1) == test.labels).double().mean().item())
            (row,) = (r for r in rows_of_run if (r.method, r.protocol, r.own) == (label, protocol, True))
            assert 100 * np.mean(found) == pytest.approx(row.mean, abs=1e-3)
            assert row.data == "clients"
    assert network.classes == ["high", "low", "middle"]
    torch.manual_seed(0)  # as the seed of the run says
    torch.testing.assert_close(network.frozen.weight, Adapted().frozen.weight)
    assert not torch.equal(network.up.weight, Adapted().up.weight)
    with pytest.raises(InvalidOption, match="which has north, south"):
        load_personal(out, "west", method="fedavg")
    with pytest.raises(InvalidOption, match="several"):
        load_personal(out, "north")
    # The same files again: nothing is left to do.  Another row: all of it.
    assert run_experiment(config, out, keep_networks=True) == rows_of_run
    np.savez(folders / "south" / "more.npz", x=rows(9, 3)[0], y=rows(9, 3)[1])
    fresh = run_experiment(replace(config, methods=("fedavg",)), out)
    assert {row.config for row in fresh}.isdisjoint(row.config for row in rows_of_run)


def test_tokens_go_through_an_embedding(models, tmp_path):
    rng = np.random.default_rng(0)
    for name in ("ann", "bob", "cleo"):
        (tmp_path / "texts" / name).mkdir(parents=True)
        x = rng.integers(0, 9, (60, 5))
        np.savez(tmp_path / "texts" / name / "all.npz", x=x, y=(x > 4).sum(1) > 2)
    longer = {"methods": ["fedavg"], "training": {"rounds": 25, "participation": 1.0}}
    config = own_config(tmp_path / "texts", "own_models:Tokens", **longer)
    found = run_experiment(config, tmp_path / "run")
    assert next(row.mean for row in found if row.own) > 75


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("Several", "returns a tuple. It must return scores alone"),
        ("Soft", "changes what its head gives.* Leave a softmax out"),
        ("Borrowed", "head: is never called"),
        ("Frozen", "head 'out': is frozen"),
        ("Tokens", r"does not take inputs of shape \(4,\) with numbers from"),
    ],
)
def test_networks_that_do_not_fit_are_refused_in_words(folders, models, tmp_path, model, message):
    with pytest.raises(InvalidOption, match=message):
        run_experiment(own_config(folders, f"own_models:{model}"), tmp_path / "run")


def test_a_token_beyond_the_embedding_is_found_before_training(models, tmp_path):
    (tmp_path / "texts" / "ann").mkdir(parents=True)
    x = np.ones((20, 5), dtype=np.int64)
    x[7, 2] = 9
    np.savez(tmp_path / "texts" / "ann" / "all.npz", x=x, y=np.arange(20) % 2)
    with pytest.raises(InvalidOption, match=r"numbers from 1 to 9 .*IndexError"):
        run_experiment(own_config(tmp_path / "texts", "own_models:Tokens"), tmp_path / "run")


@pytest.mark.parametrize("sizes", [(11, 21), (1, 11)])
def test_batch_normalisation_meets_a_row_that_is_left_over(models, tmp_path, sizes):
    """Eleven rows in batches of ten; and a client with a single row."""
    for name, n in zip(("north", "south"), sizes, strict=True):
        (tmp_path / "clients" / name).mkdir(parents=True)
        for file, count in (("all", n), ("test", 12)):
            x, y = rows(count, count)
            np.savez(tmp_path / "clients" / name / f"{file}.npz", x=x, y=y)
    methods = ["fedavg", "ditto", "per_fedavg", "pfedme", "vaneb_full_direct"]
    config = own_config(tmp_path / "clients", "own_models:Normalised", methods=methods, options={})
    found = run_experiment(config, tmp_path / "run")
    assert {row.method for row in found if row.own} >= {"FedAvg", "Ditto", "VANEB-Full (direct)"}
    assert not any(row.diverged for row in found)


def test_networks_are_asked_for(tmp_path):
    with pytest.raises(MissingData, match="--keep-networks"):
        load_personal(tmp_path, "north")


def test_data_of_ones_own_need_a_network_of_ones_own(folders, tmp_path):
    with pytest.raises(InvalidOption, match="need a network of your own"):
        run_experiment(config_from({"data": {"path": str(folders)}}), tmp_path / "run")
