"""A site's ledger and studies: what was asked, what was answered, what was refused, and what left.

ledger.jsonl            one line for everything that happened; each line carries the digest of the one before
studies/STUDY/
    study.json          what the study asks, and how much of it was answered
    release.json        what leaves, readable, written before it leaves
    release.npz         the same, exactly; what is asked again is answered with it
    expanded.npz        likewise the second answer, of studies that have one
    rows-DIGEST.npz     marks of the rows behind it, and behind what left before it, with their coded columns
    approved            that a person has released it, and what exactly
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vaneb.errors import InvalidOption
from vaneb.files import private_folder, replacing, write_atomically
from vaneb.flower import wire
from vaneb.flower.disclosure import Released, fewest_apart
from vaneb.flower.policy import Policy, PolicyRefused, squeezed
from vaneb.flower.privacy import epsilon_of, noise_for
from vaneb.flower.settings import Settings

LEDGER, STUDIES = "ledger.jsonl", "studies"
STUDY, RELEASE, EXACT, APPROVED = "study.json", "release.json", "release.npz", "approved"
#: The second answer of a study, exactly.
EXPANDED = "expanded.npz"
ROWS = "rows-*.npz"
#: Under what a release says how private it is; not sent.
PRIVATE = "private"
#: Arrays with more entries are written down by their digest.
MOST_SHOWN = 10_000
#: Bytes of a ledger from which on refusals are not listed one by one: a server may ask without end.
LARGEST = 10 << 20
_unlisted: Counter[Path] = Counter()
#: What the first line of a ledger follows on.
BEGINNING = "0" * 64


class Held(InvalidOption):
    """An answer that waits for a person."""


class Damaged(InvalidOption):
    """A ledger that is not as it was written."""


# ---------------------------------------------------------------- the ledger


def enter(folder: Path, event: str, **about: Any) -> str:
    """Append a line to the ledger; returns its digest."""
    private_folder(folder)
    descriptor = os.open(folder / LEDGER, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        last = _last_line(file)
        try:
            before = json.loads(last)["digest"] if last else BEGINNING
        except (ValueError, KeyError, TypeError):  # cut off by a crash, or changed
            raise Damaged(
                f"{folder / LEDGER}: its last line is not whole, so nothing is answered. Look at it, and "
                "move it elsewhere; a new ledger begins with the next question."
            ) from None
        entry = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "event": event, **about}
        entry["before"] = before
        entry["digest"] = _digest(entry)
        file.write(json.dumps(entry, sort_keys=True).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    return str(entry["digest"])


def enter_refusal(folder: Path, event: str, **about: Any) -> None:
    """Append that something was refused; in a large ledger the 1st, 2nd, 4th, 8th, ... with their number."""
    path = folder / LEDGER
    if path.exists() and path.stat().st_size > LARGEST:
        _unlisted[path] += 1
        about["unlisted"] = count = _unlisted[path]
        if count & (count - 1):
            return
    enter(folder, event, **about)


def read_ledger(folder: Path) -> Iterator[dict[str, Any]]:
    """Its entries; ``InvalidOption`` names the first line that was changed, or follows on another."""
    path = folder / LEDGER
    if not path.exists():
        raise InvalidOption(f"{path}: there is no ledger. Name the client's folder.")
    before = BEGINNING
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            entry = json.loads(line)
            good = entry["before"] == before and entry["digest"] == _digest(entry)
        except (ValueError, KeyError, TypeError):
            good = False
        if not good:
            raise Damaged(f"{path}: line {number} is not what was written; the ledger was changed.")
        before = entry["digest"]
        yield entry


def _digest(entry: Mapping[str, Any]) -> str:
    content = {key: value for key, value in entry.items() if key != "digest"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _last_line(file: Any) -> bytes:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - (1 << 16)))
    lines: list[bytes] = file.read().splitlines()
    return lines[-1] if lines else b""


# ---------------------------------------------------------------- studies


def study_key(settings: Settings) -> dict[str, Any]:
    """What an answer depends on: two runs that agree in it ask the same."""
    names = ["mode", "formula", "family", "offset", "dispersion"]
    if settings.mode == "network":
        names = ["mode", "experiment", "method"]
    elif settings.epsilon:
        names += ["epsilon", "delta", "radius", "centre", "se_low", "se_high"]
    else:
        names += ["form"]
    if settings.mode in ("evaluate", "secure"):
        names += ["likelihood", "lower", "upper", "precision_bound"]
    key = {name: getattr(settings, name) for name in names}
    return key | ({"formula": squeezed(settings.formula)} if "formula" in key else {})


def study_name(settings: Settings) -> str:
    text = json.dumps(study_key(settings), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Study:
    """One study at one site."""

    folder: Path
    settings: Settings
    policy: Policy

    @property
    def name(self) -> str:
        return study_name(self.settings)

    @property
    def own(self) -> Path:
        return self.folder / STUDIES / self.name

    def begin(self) -> None:
        """Refuse what the policy refuses, before any row is read."""
        self.policy.check_settings(self.settings)
        if not self.settings.epsilon and (private := spent(self.folder)):
            raise PolicyRefused(
                f"epsilon 0: {len(private)} private releases have left this site, and an exact answer would "
                "undo them."
            )
        others = {path for path in (self.folder / STUDIES).glob("*") if path.name != self.name}
        answered = {path for path in others if (path / STUDY).exists()}
        if len(answered) >= self.policy.studies:
            raise PolicyRefused(f"studies: this site answers {self.policy.studies}, and has.")
        if len(others - answered) >= self.policy.refusals:
            raise PolicyRefused(
                f"refusals: this site has refused {self.policy.refusals} studies, and looks at no other."
            )
        private_folder(self.own)

    def count(self, atoms: int = 0) -> None:
        """One more exchange, of so many atoms; refused beyond the policy's limits."""
        path = self.own / STUDY
        about = json.loads(path.read_text()) if path.exists() else {"exchanges": 0, "atoms": 0}
        about |= {"asks": study_key(self.settings)}
        about["exchanges"] += 1
        about["atoms"] += atoms
        for name in ("exchanges", "atoms"):
            if about[name] > getattr(self.policy, name):
                raise PolicyRefused(
                    f"{name}: this site answers {getattr(self.policy, name)} in one study ({self.name})."
                )
        write_atomically(path, (json.dumps(about, indent=1) + "\n").encode())

    def check_rows(self, rows: Released, name: str = EXACT) -> bool:
        """Whether an answer may rest on these rows; False if what left before must be said again.

        Refused if another study has an answer from nearly the same rows: the difference tells of the few.
        And if a row stands alone in all that has left together: two columns that part at one row do that.
        """
        repeat, before = False, list[Released]()
        for path in sorted((self.folder / STUDIES).glob(f"*/{ROWS}")):
            with np.load(path, allow_pickle=False) as file:
                before.append(Released(**file))
            apart = fewest_apart(before[-1], rows)
            if 0 < apart < self.policy.changed_rows:
                if path.parent == self.own and (self.own / EXACT).exists():
                    repeat = True
                else:
                    raise PolicyRefused(
                        f"data: {apart} rows differ from those of study {path.parent.name}; two answers "
                        f"would tell of them. This site wants {self.policy.changed_rows}."
                    )
        if not repeat and before and not self._rows(rows, name).exists():
            self.policy.check_together([rows, *before], again=name != EXACT)
        return not repeat

    def keep_rows(self, rows: Released, name: str = EXACT) -> None:
        if not self._rows(rows, name).exists():
            with replacing(self._rows(rows, name)) as temporary, open(temporary, "wb") as file:
                np.savez(file, **rows._asdict())

    def _rows(self, rows: Released, name: str) -> Path:
        """Each answer has columns of its own, since it is about a place of its own."""
        digest = hashlib.sha256(np.sort(rows.marks).tobytes()).hexdigest()[:12]
        return self.own / ROWS.replace("*", digest if name == EXACT else f"{digest}-{Path(name).stem}")

    def kept(self, name: str = EXACT) -> dict[str, Any] | None:
        """What has left, or waits to leave."""
        path = self.own / name
        if not path.exists():
            return None
        answer = wire.load(path)
        answer.pop(PRIVATE, None)
        return answer

    def keep(self, answer: Mapping[str, Any], name: str = EXACT) -> None:
        private = {"epsilon": self.settings.epsilon, "delta": self.settings.delta}
        wire.save(self.own / name, {**answer, **({PRIVATE: private} if self.settings.epsilon else {})})

    def check_budget(self) -> None:
        """Refuse a private release that would spend more than the site has."""
        limit = self.policy.total_epsilon
        noises = [*spent(self.folder).values(), noise_for(self.settings.epsilon, self.settings.delta)]
        total = epsilon_of(noises, self.policy.delta)
        if limit and total > limit:
            raise PolicyRefused(
                f"epsilon: with this release the site would have spent {total:.3g} (delta "
                f"{self.policy.delta:g}), but its total is {limit:g}."
            )

    def release(self, kind: str, answer: Mapping[str, Any]) -> None:
        """Write down what leaves, before it leaves; ``Held`` if a person has not said yes."""
        content = {"study": self.name, "question": kind, "asks": study_key(self.settings), "leaves": answer}
        text = (json.dumps(plain(content), indent=1) + "\n").encode()
        digest = hashlib.sha256(text).hexdigest()
        # What waits stays as it is: a person says yes to what was read, not to what has come since.
        if not (self.policy.review and self._waits()):
            write_atomically(self.own / RELEASE, text)
        if self.policy.review and not self._approved(digest):
            raise Held(f"study {self.name}: waits for 'vaneb federate release {self.name}'.")
        about: dict[str, Any] = {"study": self.name, "question": kind, "sha256": digest, "bytes": len(text)}
        if self.settings.epsilon:
            about |= {"epsilon": self.settings.epsilon, "delta": self.settings.delta}
        enter(self.folder, "answered", **about)

    def _waits(self) -> bool:
        """Whether there is an answer on which nobody has decided."""
        path = self.own / RELEASE
        if not path.exists():
            return False
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        return not self._approved(digest) and digest not in answered(self.folder)

    def _approved(self, digest: str) -> bool:
        """A report is released as it was read; a study of many exchanges is released as a whole."""
        path = self.own / APPROVED
        if not path.exists():
            return False
        return self.settings.mode != "reports" or path.read_text().strip() == digest


def answered(folder: Path) -> set[str]:
    """Digests of all that has left."""
    entries = read_ledger(folder) if (folder / LEDGER).exists() else ()
    return {entry["sha256"] for entry in entries if entry["event"] == "answered"}


def approve(folder: Path, study: str) -> Path:
    """A person says that a study may leave, as it stands in ``release.json``; returns that file."""
    own = folder / STUDIES / study
    path = own / RELEASE
    if "/" in study or not path.is_file():
        waiting = sorted(path.parent.name for path in (folder / STUDIES).glob(f"*/{RELEASE}"))
        raise InvalidOption(
            f"study {study}: not one of this client ({folder}). There are {', '.join(waiting) or 'none'}."
        )
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    write_atomically(own / APPROVED, digest.encode())
    enter(folder, "released", study=study, sha256=digest)
    return path


def spent(folder: Path) -> dict[str, float]:
    """Noise, for sensitivity one, of each private release of this site, by what has left or waits to leave.

    Those of the ledger count also when their study's folder is gone.
    """
    private: dict[str, Mapping[str, Any]] = {}
    known = set()
    for entry in read_ledger(folder) if (folder / LEDGER).exists() else ():
        if "epsilon" in entry:
            private[entry["sha256"]] = entry
            known.add(entry["study"])
    for path in sorted((folder / STUDIES).glob(f"*/{EXACT}")):
        about = wire.load(path).get(PRIVATE)
        if isinstance(about, dict) and path.parent.name not in known:
            private[path.parent.name] = about
    return {key: noise_for(float(one["epsilon"]), float(one["delta"])) for key, one in private.items()}


def plain(tree: Any) -> Any:
    """The same without arrays, for JSON."""
    if isinstance(tree, Mapping):
        return {key: plain(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [plain(value) for value in tree]
    if isinstance(tree, np.ndarray) and tree.size > MOST_SHOWN:
        return {"shape": list(tree.shape), "sha256": hashlib.sha256(tree.tobytes()).hexdigest()}
    return tree.tolist() if isinstance(tree, np.ndarray | np.generic) else tree
