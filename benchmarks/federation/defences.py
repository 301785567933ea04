"""Take each defence of the federation away, one at a time, and see which test notices.

    python benchmarks/federation/defences.py               # prints the table of defences.md
    python benchmarks/federation/defences.py kinds revoked   # those with one of these words in their names

Sources and tests are copied to a temporary folder; a defence is a piece of text there that is replaced by one
without it.  The tests named must pass with it (looked at first) and fail without it.  Exit code 1 if one is
missed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
FLOWER = "src/vaneb/flower"


class Defence(NamedTuple):
    """What is taken away, where, and the tests that ought to notice."""

    name: str
    file: str
    here: str
    gone: str
    tests: str


DEFENCES = (
    Defence(
        "ids as factors, too many coefficients, leverage",
        "policy.py",
        "        design, response = model.rows.design, model.rows.response\n",
        "        return\n        design, response = model.rows.design, model.rows.response\n",
        "test_policy.py",
    ),
    Defence("columns agreed on", "policy.py", "if not self.columns:", "if True:", "test_policy.py"),
    Defence(
        "formulas agreed on",
        "policy.py",
        "if self.formulas and squeezed(settings.formula) not in map(squeezed, self.formulas):",
        "if False:",
        "test_policy.py",
    ),
    Defence(
        "modes agreed on", "policy.py", "if settings.mode not in self.modes:", "if False:", "test_policy.py"
    ),
    Defence(
        "an epsilon that the site insists on",
        "policy.py",
        "if self.epsilon and not 0 < settings.epsilon <= self.epsilon:",
        "if False:",
        "test_policy.py",
    ),
    Defence(
        "no exact answer after a private one",
        "ledger.py",
        "if not self.settings.epsilon and (private := spent(self.folder)):",
        "if False and (private := {}):",
        "test_policy.py",
    ),
    Defence(
        "noise is drawn once",
        "client_app.py",
        "if mechanism is not None and kept is not None:",
        "if False:",
        "test_policy.py",
    ),
    Defence("the privacy budget", "ledger.py", "if limit and total > limit:", "if False:", "test_policy.py"),
    Defence(
        "two releases that differ by a patient",
        "ledger.py",
        "if 0 < apart < self.policy.changed_rows:",
        "if False:",
        "test_policy.py",
    ),
    Defence(
        "many questions looked at together",
        "ledger.py",
        "            self.policy.check_together([rows, *before], again=name != EXACT)\n",
        "            pass\n",
        "test_many_questions.py",
    ),
    Defence(
        "columns whose products stand out",
        "disclosure.py",
        "        if not 0 < spread < np.inf or _only_levels(design, name):",
        "        if True:",
        "test_policy.py",
    ),
    Defence(
        "the response in a family's sums",
        "disclosure.py",
        '    if family.name == "gaussian" or not family.by_row or rows.response.ndim > 1:',
        "    if True:",
        "test_policy.py",
    ),
    Defence(
        "columns that part in their last digits",
        "policy.py",
        "        if part_in_last_digits(np.hstack([design, model.response])):",
        "        if False:",
        "test_policy.py",
    ),
    Defence(
        "few rows together",
        "policy.py",
        "            (leverage_together(columns[0], few), self.largest_told),\n",
        "",
        "test_policy.py",
    ),
    Defence(
        "rows at risk together",
        "policy.py",
        "            if events < few or rows < self.fewest_rows:",
        "            if False:",
        "test_policy.py",
    ),
    Defence(
        "times that a server makes",
        "client_data.py",
        "    if formula.kind == SURVIVAL and not all(isinstance(node, Name) for node in formula.responses):",
        "    if False:",
        "test_policy.py",
    ),
    Defence(
        "spaces in names",
        "policy.py",
        '    return formula.strip() if set(formula) & set("`\'\\"") else "".join(formula.split())',
        '    return "".join(formula.split())',
        "test_policy.py",
    ),
    Defence(
        "a ledger full of refusals",
        "ledger.py",
        "        if count & (count - 1):",
        "        if False:",
        "test_policy.py",
    ),
    Defence(
        "the box is part of a question",
        "agreement.py",
        "json.dumps([study_key(settings), [part.shape for part in parts]], sort_keys=True)",
        "json.dumps([[part.shape for part in parts]], sort_keys=True)",
        "test_secure.py",
    ),
    Defence(
        "a folder of Flower's own",
        "processes.py",
        '    return private_folder(home / "inside")',
        "    return private_folder(home)",
        "test_sandbox.py",
    ),
    Defence(
        "rows told apart in each ward",
        "disclosure.py",
        "        for client in np.intersect1d(first.clients, second.clients)",
        "        for client in ()",
        "test_policy.py",
    ),
    Defence(
        "what waits is not replaced",
        "ledger.py",
        "        if not (self.policy.review and self._waits()):",
        "        if True:",
        "test_policy.py",
    ),
    Defence(
        "most exchanges and atoms of a study",
        "ledger.py",
        "if about[name] > getattr(self.policy, name):",
        "if False:",
        "test_policy.py",
    ),
    Defence(
        "most studies", "ledger.py", "if len(answered) >= self.policy.studies:", "if False:", "test_policy.py"
    ),
    Defence(
        "review by a person",
        "ledger.py",
        "if self.policy.review and not self._approved(digest):",
        "if False:",
        "test_policy.py",
    ),
    Defence(
        "the chain of the ledger",
        "ledger.py",
        'good = entry["before"] == before and entry["digest"] == _digest(entry)',
        'good = bool(entry["digest"])',
        "test_policy.py",
    ),
    Defence(
        "kinds of numbers on a list",
        "wire.py",
        "dtype = KINDS[kind]",
        "dtype = np.dtype(kind)",
        "test_wire.py",
    ),
    Defence(
        "requests that are too large",
        "forwarding.py",
        "                if len(body) > LARGEST_PART:\n                    raise Refused(413",
        "                if False:\n                    raise Refused(413",
        "test_forwarding.py",
    ),
    Defence(
        "messages in too many parts",
        "forwarding.py",
        "if self.seen[who] > LARGEST_MESSAGE:",
        "if False:",
        "test_forwarding.py",
    ),
    Defence(
        "one client's connections",
        "forwarding.py",
        "if self.open[self.peer] > MOST_OF_ONE:",
        "if False:",
        "test_forwarding.py",
    ),
    Defence(
        "a stranger's connections",
        "forwarding.py",
        "self.open[address[0]] > MOST_OF_ADDRESS",
        "False",
        "test_forwarding.py",
    ),
    Defence(
        "answers to a client's own questions",
        "door.py",
        "if about.src_node_id != asked.node.node_id or about.reply_to_message_id not in own:",
        "if False:",
        "test_forwarding.py",
    ),
    Defence(
        "parts of a client's own messages",
        "door.py",
        'elif (asked.message_object_id if call.startswith("confirm") else asked.object_id) not in own:',
        "elif False:",
        "test_forwarding.py",
    ),
    Defence(
        "private releases whose folder is gone",
        "ledger.py",
        'if "epsilon" in entry:',
        "if False:",
        "test_policy.py",
    ),
    Defence(
        "the list of calls", "forwarding.py", " or path not in CALLS | {HELLO}", "", "test_forwarding.py"
    ),
    Defence(
        "revoked means out",
        "door.py",
        "if name is None or not self._registered(name, peer):",
        "if name is None:",
        "test_forwarding.py",
    ),
    Defence(
        "a node speaks with the key of its certificate",
        "door.py",
        'if request.headers.get("flwr-public-key") != spoken:',
        "if False:",
        "test_forwarding.py",
    ),
    Defence(
        "no handshake without a registered certificate",
        "door.py",
        "context.verify_mode = ssl.CERT_REQUIRED",
        "context.verify_mode = ssl.CERT_OPTIONAL",
        "test_forwarding.py",
    ),
    Defence("another app", "gate.py", "refused = self._why_not(run)", 'refused = ""', "test_forwarding.py"),
    Defence(
        "the installed app in place of the server's",
        "gate.py",
        'if request.path != FLEET + "get-fab":',
        "if True:",
        "test_forwarding.py",
    ),
    Defence(
        "a question of another mode",
        "client_app.py",
        "if site.settings.mode not in modes:",
        "if False:",
        "test_secure.py",
    ),
    Defence(
        "different questions under one sum",
        "agreement.py",
        "if content[:SIZE] != own:",
        "if False:",
        "test_secure.py",
    ),
    Defence(
        "a question that is not the one named",
        "agreement.py",
        "    if bytes.fromhex(digest_of(*question_of(message.content), settings)) != own:",
        "    if False:",
        "test_secure.py",
    ),
    Defence(
        "a sum of three, and of more than half",
        "secure.py",
        "if not (needed >= SMALLEST_SUM and 2 * needed > shares):",
        "if False:",
        "test_secure.py",
    ),
    Defence(
        "both masks of a client",
        "secure.py",
        "if set(active) & set(gone) or len(set(active)) < SMALLEST_SUM:",
        "if False:",
        "test_secure.py",
    ),
    Defence(
        "the sandbox",
        "sandbox.py",
        "    _checked(_call(_ENTER, rules, 0))\n",
        "    pass\n",
        "test_sandbox.py",
    ),
)


def run(folder: Path, test: str) -> tuple[int, str]:
    """Exit code of a file of tests, and the first that fails."""
    env = {**os.environ, "PYTHONPATH": f"{folder / 'src'}:{folder / 'tests'}"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"tests/flower/{test}"]
    found = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    failed = re.findall(r"^(?:FAILED|ERROR) \S*?::(\w+)", found.stdout, re.MULTILINE)
    return found.returncode, failed[0] if failed else ""


def main(words: Sequence[str]) -> int:
    wanted = [one for one in DEFENCES if not words or any(word in one.name for word in words)]
    missed = 0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name in ("src", "tests"):
            shutil.copytree(ROOT / name, folder / name)
        shutil.copy(ROOT / "pyproject.toml", folder)
        for test in sorted({one.tests for one in wanted}):
            if run(folder, test)[0]:
                raise SystemExit(f"{test}: fails with all defences in place.")
        print("| taken away | in | noticed by |\n|---|---|---|", flush=True)
        for one in wanted:
            path = folder / FLOWER / one.file
            text = path.read_text()
            if text.count(one.here) != 1:
                raise SystemExit(
                    f"{one.name}: its text is in {one.file} {text.count(one.here)} times, not once."
                )
            path.write_text(text.replace(one.here, one.gone))
            code, test = run(folder, one.tests)
            path.write_text(text)
            missed += code != 1
            said = f"`{one.tests}`: `{test}`" if code == 1 else "**nobody**"
            print(f"| {one.name} | `{one.file}` | {said} |", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
