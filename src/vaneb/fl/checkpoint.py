"""Checkpoints of a stage: after a kill at any moment the last complete round is there, whole.

A round is complete when ``manifest.json`` names its files.  New files never overwrite those that the
manifest names (they carry the round in their names), and the manifest is replaced in one step.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vaneb.files import write_atomically
from vaneb.fl.algorithm import ServerState
from vaneb.fl.trees import Tree, leaves, load_tree, save_tree

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Checkpoint:
    """A stage after its last complete round.

    Parameters
    ----------
    state : the server's.
    client_files : file name (in the stage's folder) of every client state that exists.
    history : one entry per round: participants, diverged clients, seconds, numbers the algorithm told.
    """

    state: ServerState
    client_files: dict[int, str]
    history: tuple[dict[str, Any], ...]

    @property
    def diverged(self) -> int:
        """Client updates left out because they were not finite, over all rounds."""
        return sum(len(entry["diverged"]) for entry in self.history)


class StageFolder:
    """The folder of one stage."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "clients").mkdir(parents=True, exist_ok=True)

    def client_file(self, client: int, round_number: int) -> str:
        """Name of the state that ``client`` has after a round."""
        return f"clients/{client}-{round_number}.npz"

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def read(self) -> Checkpoint | None:
        """The last complete round; None if there is none or if client states were dropped since."""
        try:
            manifest = json.loads((self.folder / MANIFEST).read_text())
        except FileNotFoundError:
            return None
        if manifest.get("dropped"):
            return None
        tree = load_tree(self.folder / manifest["state"])
        state = ServerState(tree["params"], tree["round"], tree.get("memory", {}))
        clients = {int(client): name for client, name in manifest["clients"].items()}
        return Checkpoint(state, clients, tuple(manifest["history"]))

    def commit(self, checkpoint: Checkpoint, info: Tree | None = None) -> None:
        """Make ``checkpoint`` the last complete round; its client files have been written already."""
        state = checkpoint.state
        name = f"state-{state.round}.npz"
        save_tree(
            self.folder / name, {"params": state.params, "round": state.round, "memory": dict(state.memory)}
        )
        arrays = {path: leaf for path, leaf in leaves(info or {}) if isinstance(leaf, torch.Tensor)}
        if arrays:
            save_tree(self.folder / "info.npz", arrays)
        self._write_manifest(
            {
                "state": name,
                "clients": {str(client): file for client, file in checkpoint.client_files.items()},
                "history": list(checkpoint.history),
            }
        )
        self._sweep({name, *checkpoint.client_files.values()})

    def drop_client_states(self) -> None:
        """Free the space of client states that nobody needs; the stage can then only be run again."""
        checkpoint = self.read()
        if checkpoint is None or not checkpoint.client_files:
            return
        state = f"state-{checkpoint.state.round}.npz"
        history = list(checkpoint.history)
        self._write_manifest({"state": state, "clients": {}, "history": history, "dropped": True})
        self._sweep({state})

    def _write_manifest(self, content: dict[str, Any]) -> None:
        write_atomically(self.folder / MANIFEST, json.dumps(content).encode())

    def _sweep(self, wanted: set[str]) -> None:
        """Remove files of other rounds, and what a killed process left half-written."""
        clients = (self.folder / "clients").iterdir()
        for path in (*self.folder.glob("state-*.npz"), *self.folder.glob(".*.part"), *clients):
            if str(path.relative_to(self.folder)) not in wanted:
                path.unlink(missing_ok=True)
