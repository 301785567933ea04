"""How a server or a client stands, from its folder: who is there, what waits, versions, days to expiry.

Nothing is asked over a network, so that it can be said at any time, by whoever may read the folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import vaneb
from vaneb.errors import InvalidOption
from vaneb.files import write_atomically
from vaneb.flower import ledger
from vaneb.flower.door import PRESENT
from vaneb.flower.keys import RENEWED, days_left, expires_soon
from vaneb.flower.policy import Policy

#: In the folder of a server or a client: what it was started with.
ABOUT = "about.json"


def keep_about(folder: Path, **about: Any) -> None:
    """Write down what a server or a client was started with."""
    content = {"version": vaneb.__version__, "pid": os.getpid(), **about}
    write_atomically(folder / ABOUT, (json.dumps(content, indent=1, default=str) + "\n").encode())


def status_of(folder: Path) -> dict[str, Any]:
    """All of it, as plain values; ``attention`` lists what somebody should do something about."""
    path = folder / ABOUT
    if not path.is_file():
        raise InvalidOption(
            f"{folder}: not the folder of a server or a client that was ever started. Name that (--folder of "
            "'vaneb federate server' or 'client')."
        )
    about = json.loads(path.read_text())
    found = {"role": about["role"], "version": about["version"], "running": _running(folder)}
    if about["role"] == "server":
        found |= _server(folder, about)
    else:
        found |= _client(folder, about)
    found["certificates"] = _certificates(about)
    found["attention"] = _attention(found)
    return found


def _running(folder: Path) -> bool:
    """Whether somebody works in the folder now."""
    try:
        descriptor = os.open(folder / ".lock", os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _server(folder: Path, about: dict[str, Any]) -> dict[str, Any]:
    registered, present, outcome = (
        json.loads(path.read_text()) if path.exists() else {}
        for path in (folder / "registered.json", folder / PRESENT, folder / "outcome.json")
    )
    reports = folder / "reports"
    return {
        "address": about["address"],
        "study": about["study"],
        "registered": sorted(registered),
        "present": present if _running(folder) else {},
        "reports": len(list(reports.glob("*.npz"))) if reports.is_dir() else 0,
        "outcome": {key: outcome[key] for key in ("served", "troubles", "absent", "error") if key in outcome},
    }


def _client(folder: Path, about: dict[str, Any]) -> dict[str, Any]:
    events: dict[str, int] = {}
    answered = set()
    if (folder / ledger.LEDGER).exists():
        for entry in ledger.read_ledger(folder):
            events[entry["event"]] = events.get(entry["event"], 0) + 1
            answered.add(entry.get("sha256", ""))
    policy = Policy.read(Path(about["policy"]))
    releases = sorted((folder / ledger.STUDIES).glob(f"*/{ledger.RELEASE}"))
    digests = {path.parent.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in releases}
    return {
        "client": about["client"],
        "server": about["server"],
        "unprotected": about.get("unprotected", ""),
        "connected": about.get("connected", []) if _running(folder) else [],
        "studies": sorted(digests),
        "waiting": [study for study, digest in digests.items() if policy.review and digest not in answered],
        "ledger": events,
        "result": (folder / "result.json").exists(),
    }


def _certificates(about: dict[str, Any]) -> dict[str, int | None]:
    """Days left, by file; ``None`` for one that cannot be read."""
    found: dict[str, int | None] = {}
    paths = [Path(path) for path in about.get("certificates", [])]
    paths += sorted(path for folder in about.get("registers", []) for path in Path(folder).glob("*.crt"))
    for path in paths:
        try:
            found[str(path)] = days_left(path)
        except (OSError, ValueError):
            found[str(path)] = None
    return found


def _attention(found: dict[str, Any]) -> list[str]:
    said = []
    for path, days in found["certificates"].items():
        if days is None:
            said.append(f"{path}: cannot be read.")
        elif warning := expires_soon(Path(path), days):
            said.append(warning)
        if Path(f"{path}{RENEWED}").exists():
            said.append(f"{path}{RENEWED}: waits until the server has it in keys/nodes as {Path(path).name}.")
    if found["version"] != vaneb.__version__:
        said.append(
            f"it was started with version {found['version']}, but {vaneb.__version__} is installed. "
            "Restart it."
        )
    for name, client in found.get("present", {}).items():
        if client.get("version") != found["version"]:
            said.append(f"{name}: has version {client.get('version')}, the server {found['version']}.")
    if found.get("unprotected"):
        said.append(found["unprotected"])
    for study in found.get("waiting", []):
        said.append(f"study {study}: waits for 'vaneb federate release {study}'.")
    outcome = found.get("outcome", {})
    if "error" in outcome:
        said.append(f"the last run failed: {outcome['error']}")
    for trouble in outcome.get("troubles", []):
        said.append(f"{trouble['client']}: {trouble.get('lost') or trouble.get('refused')}")
    return said


def as_lines(found: dict[str, Any]) -> list[str]:
    """The same in lines."""
    state = "running" if found["running"] else "not running"
    lines = [f"{found['role']:<12} {state}, version {found['version']}"]
    if found["role"] == "server":
        lines += [f"listens      {found['address']}", f"study        {found['study']}"]
        there = [
            f"{name} ({about['version']}, seen {about['seen']})" for name, about in found["present"].items()
        ]
        lines.append(
            f"there        {len(there)} of {len(found['registered'])}: {', '.join(there) or 'nobody'}"
        )
        missing = [name for name in found["registered"] if name not in found["present"]]
        lines += [f"not there    {', '.join(missing)}"] if missing else []
        lines.append(f"reports      {found['reports']}")
        lines.append(f"served       {', '.join(found['outcome'].get('served', [])) or 'nobody'}")
    else:
        for server in found["server"]:
            way = "connected" if server in found["connected"] else "not connected"
            lines.append(f"server       {server}, {way}")
        counts = ", ".join(f"{count} {event}" for event, count in sorted(found["ledger"].items()))
        lines.append(f"ledger       {counts or 'empty'}")
        lines.append(f"waiting      {', '.join(found['waiting']) or 'nothing'}")
        lines.append(f"result       {'there' if found['result'] else 'none yet'}")
    for path, days in found["certificates"].items():
        lines.append(f"certificate  {path}: {'?' if days is None else days} days left")
    lines += [f"attention    {text}" for text in found["attention"]]
    # What a file holds must not drive a terminal.
    return ["".join(letter if letter.isprintable() else "\ufffd" for letter in line) for line in lines]
