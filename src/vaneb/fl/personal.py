"""Networks of single clients, as ``vaneb train --keep-networks`` leaves them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vaneb.errors import InvalidOption
from vaneb.fl.algorithm import Params
from vaneb.fl.errors import MissingData
from vaneb.fl.models import build_network
from vaneb.fl.network import load_params
from vaneb.fl.trees import load_tree, save_tree

#: In a folder of networks: what they are, and whose.
ABOUT = "about.json"


def keep_personal(file: Path, params: Params, matched: Params, offset: Tensor) -> None:
    """Keep a client's network: for labels of any proportions, and what is other for labels like its own."""
    other = {name: value for name, value in matched.items() if not torch.equal(value, params[name])}
    save_tree(file, {"params": params, "matched": other, "offset": offset})


def load_personal(
    folder: Path | str,
    client: str | int,
    *,
    method: str | None = None,
    seed: int | None = None,
    like_own: bool = True,
) -> nn.Module:
    """The network that a client ended up with, ready to be called (in evaluation mode).

    Parameters
    ----------
    folder : what ``vaneb train --keep-networks -o FOLDER`` wrote.
    client : its name, or its number among the clients of a data set that was divided.
    method, seed : of the run; may be left out where there is one only.
    like_own : for inputs whose labels have proportions like the client's own; else for balanced ones.

    The classes that its outputs stand for are its attribute ``classes``.
    """
    place, about = _chosen(Path(folder), method, seed)
    if str(client) not in about["clients"]:
        names = ", ".join(about["clients"][:10]) + (", ..." if len(about["clients"]) > 10 else "")
        raise InvalidOption(f"client {client!r} is not in {folder}, which has {names}.")
    if about["predicts_otherwise"]:
        raise InvalidOption(f"method {about['method']}: a client predicts by more than a network.")
    kept = load_tree(place / f"{about['clients'].index(str(client))}.npz")
    network = build_network(**about["model"])
    load_params(network, kept["params"])
    if like_own:
        load_params(network, kept.get("matched", {}))
        if kept["offset"].any():
            if network.head.bias is None:
                raise InvalidOption("like_own: the head has no bias to add proportions to. Give it one.")
            with torch.no_grad():
                network.head.bias.add_(kept["offset"])
    network.module.classes = about["classes"]  # type: ignore[assignment]
    return network.module.eval()


def _chosen(folder: Path, method: str | None, seed: int | None) -> tuple[Path, dict[str, Any]]:
    files = sorted((folder / "networks").glob(f"*/{ABOUT}"))
    if not files:
        raise MissingData(f"{folder}: no networks there. Run `vaneb train ... -o {folder} --keep-networks`.")
    found = [(file.parent, json.loads(file.read_text())) for file in files]
    fitting = [
        (place, about)
        for place, about in found
        if method in (None, about["method"]) and seed in (None, about["seed"])
    ]
    if len(fitting) != 1:
        there = ", ".join(sorted({f"{about['method']} (seed {about['seed']})" for _, about in found}))
        raise InvalidOption(
            f"{folder}: {'several' if fitting else 'none'} of its networks fit. Name method and seed; it has "
            f"{there}."
        )
    return fitting[0]
