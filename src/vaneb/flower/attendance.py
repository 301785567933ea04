"""Who takes part in a run: the nodes that are there, their names, and who was lost or refused, and why."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vaneb.errors import InvalidReport

if TYPE_CHECKING:
    from flwr.serverapp import Grid


@dataclass
class Attendance:
    """Nodes by id.

    Parameters
    ----------
    names : the name that a node is registered under; "" without authentication.
    troubles : what went wrong, by node: the client's name, and "lost" or "refused" with the reason.
    absent : names of those that are registered and did not come.
    """

    names: dict[int, str]
    troubles: dict[int, dict[str, str]] = field(default_factory=dict)
    absent: tuple[str, ...] = ()

    def name(self, node: int) -> str:
        """What to call a node."""
        return self.names.get(node) or str(node)

    def lose(self, node: int, reason: str, *, client: str = "") -> None:
        """No answer came from this node."""
        self.troubles[node] = {"client": client or self.name(node), "lost": reason}

    def refuse(self, node: int, reason: str) -> None:
        """An answer came, and cannot be used."""
        self.troubles[node] = {"client": self.name(node), "refused": reason}

    def in_words(self) -> str:
        """All troubles in one channel."""
        return "; ".join(
            f"{trouble['client']}: {trouble.get('lost') or trouble.get('refused')}"
            for trouble in self.troubles.values()
        )


def nodes_there(grid: Grid) -> dict[int, str]:
    """Nodes that the SuperLink holds to be there now, and their names."""
    return {int(node.node_id): str(node.name) for node in grid.get_nodes()}


def wait_for_nodes(
    grid: Grid, wanted: int, seconds: float, registered: Mapping[str, int] | None = None
) -> Attendance:
    """The nodes, once ``wanted`` of them are there.

    Returns with fewer when the time is up; the caller decides whether they are enough.  Whoever is
    ``registered`` (nodes by name) and not there is named, and if fewer came than were wanted, as lost.
    """
    deadline = time.monotonic() + seconds
    while True:
        names = nodes_there(grid)
        if not names and time.monotonic() >= deadline:
            raise InvalidReport(
                f"clients: none of {wanted} has come within {seconds:g} seconds"
                f"{' (' + ', '.join(sorted(registered)) + ')' if registered else ''}. Are they started, with "
                "this server's address, its ca.crt and keys that it knows? --wait gives them more time."
            )
        if len(names) >= wanted or time.monotonic() >= deadline:
            missing = {name: node for name, node in (registered or {}).items() if node not in names}
            attendance = Attendance(dict(sorted(names.items())), absent=tuple(sorted(missing)))
            for name, node in missing.items() if len(names) < wanted else ():
                attendance.lose(node, f"registered, but did not come within {seconds:g} seconds", client=name)
            return attendance
        time.sleep(0.5)
