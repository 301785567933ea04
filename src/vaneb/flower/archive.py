"""The server's folder: reports as they arrived, the prior, who was served.

model.json        what the reports and the prior are of
reports/NODE.npz  one report each, written when it arrives
prior.json
shared.json       what else all clients share: the dispersion, the coding of the columns
step.npz          where a fit over many exchanges stands, until it is done
registered.json   who may come
clients.json      numbers of the clients (networks)
delivered/NODE    the prior with which this client was served
outcome.json      what the last run did
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vaneb.errors import InvalidOption
from vaneb.files import private_folder, write_atomically
from vaneb.flower import wire
from vaneb.flower.settings import Settings
from vaneb.likelihood.base import Array
from vaneb.prior import Prior

STEP, SHARED = "step.npz", "shared.json"
#: Steps made, and the atoms and weights after them.
Step = tuple[int, Array, Array]


@dataclass(frozen=True)
class Archive:
    """What outlives the server's process."""

    folder: Path

    @classmethod
    def open(cls, folder: Path, settings: Settings) -> Archive:
        """The archive in ``folder``; refuses one that belongs to another model."""
        for name in ("reports", "delivered"):
            private_folder(folder / name)
        text = json.dumps(settings.model_key(), sort_keys=True)
        path = folder / "model.json"
        begun = any((folder / "reports").iterdir()) or any(
            (folder / name).exists() for name in ("prior.json", "stages", STEP)
        )
        if begun and path.exists() and path.read_text() != text:
            raise InvalidOption(
                f"{folder}: belongs to another model, method or privacy. Use another folder (--folder), "
                "or empty it."
            )
        write_atomically(path, text.encode())
        return cls(folder)

    def keep_report(self, node: int, content: wire.Tree) -> None:
        wire.save(self.folder / "reports" / f"{node}.npz", content)

    def forget_report(self, node: int) -> None:
        """A node starts anew: with no report, and not served."""
        (self.folder / "reports" / f"{node}.npz").unlink(missing_ok=True)
        (self.folder / "delivered" / str(node)).unlink(missing_ok=True)

    def keep_registered(self, nodes: Mapping[str, int]) -> None:
        """Who may come, by name."""
        write_atomically(self.folder / "registered.json", json.dumps(dict(nodes)).encode())

    def registered(self) -> dict[str, int]:
        path = self.folder / "registered.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def keep_step(self, nodes: Iterable[int], number: int, atoms: Array, weights: Array) -> None:
        """Where a fit to these nodes stands, which takes an exchange for each step."""
        step = {"number": number, "atoms": atoms, "weights": weights}
        wire.save(self.folder / STEP, {"nodes": [str(node) for node in nodes], **step})

    def step(self, nodes: Iterable[int]) -> Step | None:
        """``None`` if no step was made, or of a fit to other nodes."""
        path = self.folder / STEP
        saved = wire.load(path) if path.exists() else None
        if saved is None or sorted(map(int, saved["nodes"])) != sorted(nodes):
            return None
        return int(saved["number"]), saved["atoms"], saved["weights"]

    def reports(self) -> dict[int, wire.Tree]:
        """Saved answers by node."""
        found = sorted((self.folder / "reports").glob("*.npz"), key=lambda path: int(path.stem))
        return {int(path.stem): wire.load(path) for path in found}

    def prior(self) -> Prior | None:
        path = self.folder / "prior.json"
        return Prior.load(path) if path.exists() else None

    def keep_prior(self, prior: Prior, **shared: Any) -> None:
        """Keep the population, and what else all clients share: ``dispersion`` and ``design``."""
        write_atomically(self.folder / SHARED, json.dumps(shared).encode())
        prior.save(self.folder / "prior.json")
        (self.folder / STEP).unlink(missing_ok=True)

    def shared(self) -> dict[str, Any]:
        """What all clients share besides the population."""
        path = self.folder / SHARED
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def delivered(self, prior: Prior) -> set[int]:
        """Nodes that have got their result under this prior."""
        mark = _mark(prior)
        return {int(path.name) for path in (self.folder / "delivered").iterdir() if path.read_text() == mark}

    def mark_delivered(self, node: int, prior: Prior) -> None:
        write_atomically(self.folder / "delivered" / str(node), _mark(prior).encode())

    def numbers(self, names: Iterable[str], count: int) -> dict[str, int]:
        """A number below ``count`` for each client, the same in every run; late ones take what is free."""
        path = self.folder / "clients.json"
        known: dict[str, int] = json.loads(path.read_text()) if path.exists() else {}
        free = sorted(set(range(count)) - set(known.values()))
        known |= dict(zip((name for name in names if name not in known), free, strict=False))
        write_atomically(path, json.dumps(known).encode())
        return known

    def keep_outcome(
        self,
        mode: str,
        served: Iterable[str],
        troubles: Mapping[int, Mapping[str, str]],
        traffic: Mapping[str, Any],
        **about: Any,
    ) -> dict[str, Any]:
        """Write down, and return, who was served, who was not and why, and what it took."""
        outcome = {
            "mode": mode,
            "served": sorted(served),
            "troubles": [{"node": str(node), **trouble} for node, trouble in sorted(troubles.items())],
            **about,
            "cpu_seconds": round(time.process_time(), 3),
            **traffic,
        }
        self._write_outcome(outcome)
        return outcome

    def keep_failure(self, reason: str) -> None:
        """Write down why a run came to nothing."""
        self._write_outcome({"error": reason})

    def _write_outcome(self, outcome: dict[str, Any]) -> None:
        write_atomically(self.folder / "outcome.json", (json.dumps(outcome, indent=1) + "\n").encode())


def _mark(prior: Prior) -> str:
    return hashlib.sha256(json.dumps(prior.to_wire()).encode()).hexdigest()[:16]
