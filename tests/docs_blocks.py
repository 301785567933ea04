"""Fenced blocks of the guide, run as a reader would: page by page, from top to bottom, in one folder.

    ```python    executed; names are kept for the next block of the page
    ```console   lines that begin with "$ " are commands of the shell
    ```r         executed where R and the packages it loads are installed
    ```output    what the block before it prints; "..." stands for anything, and a number with decimals may
                 differ by one in its last digit: solvers stop at a tolerance
    ```toml, ```text, ```csv   a file where a line `<!-- file: NAME -->` stands above, else only read

``<!-- python ... -->`` above a block is run too, and not shown: what a reader has already.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(
    r"^<!-- python\n(?P<hidden>.*?)^-->$"
    r"|^(?:<!-- file: (?P<file>\S+) -->\n)?```(?P<kind>\w*)[^\n]*\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
#: Languages that no test here can run, and why.
NOT_RUN = {"sas": "SAS is not free", "yaml": "not code", "": "a synopsis"}


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    kind: str
    text: str
    file: str | None = None

    def __str__(self) -> str:
        return f"{self.page.name}, line {self.line}"


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks_of(page: Path) -> Iterator[Block]:
    content = page.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(content):
        line = content[: found.start()].count("\n") + 1
        if found["hidden"] is not None:
            yield Block(page, line, "python", found["hidden"])
        else:
            yield Block(page, line, found["kind"], found["text"], found["file"])


class Reader:
    """Runs the blocks of one page."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: dict = {"__name__": "__main__"}
        self.printed = ""

    def read(self, block: Block) -> None:
        if block.file is not None:
            (self.folder / block.file).write_text(block.text, encoding="utf-8")
        elif block.kind == "python":
            self._python(block)
        elif block.kind == "console":
            self._console(block)
        elif block.kind == "r":
            self._r(block)
        elif block.kind == "output":
            self._compare(block)
        else:
            assert block.kind in (*NOT_RUN, "text", "csv", "toml"), (
                f"{block}: {block.kind!r} is not a known kind"
            )

    def _python(self, block: Block) -> None:
        # Padded, so that a traceback names the line of the page.
        # What this file imports from ``__future__`` is not the page's: annotations there are values.
        code = compile("\n" * block.line + block.text, str(block.page), "exec", dont_inherit=True)
        with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.chdir(self.folder):
            exec(code, self.names)
        self.printed = printed.getvalue()

    def _console(self, block: Block) -> None:
        commands = re.findall(r"^\$ (.*(?:\n> .*)*)", block.text, re.MULTILINE)
        assert commands, f"{block}: no line begins with '$ '"
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.printed = ""
        for command in commands:
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", command.replace("\n> ", "\n")],
                cwd=self.folder,
                env={**os.environ, "PATH": path, "COLUMNS": "100"},
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, f"{block}: {command}\n{done.stdout}{done.stderr}"
            self.printed += done.stdout

    def _r(self, block: Block) -> None:
        wanted = re.findall(r"^library\((\w+)\)", block.text, re.MULTILINE)
        if shutil.which("Rscript") is None:
            return
        check = (
            f"q(status = !all(sapply(c({','.join(map(repr, wanted))}), requireNamespace, quietly = TRUE)))"
        )
        if wanted and subprocess.run(["Rscript", "-e", check], capture_output=True).returncode:
            return
        done = subprocess.run(["Rscript", "-e", block.text], cwd=self.folder, capture_output=True, text=True)
        assert done.returncode == 0, f"{block}: {done.stderr}"
        self.printed = done.stdout

    def _compare(self, block: Block) -> None:
        same = doctest.OutputChecker().check_output(
            block.text, self.printed, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        )
        same = same or _alike(block.text.split(), self.printed.split())
        assert same, f"{block} says\n{block.text}\nbut this was printed:\n{self.printed}"


def _alike(said: list[str], printed: list[str]) -> bool:
    return len(said) == len(printed) and all(map(_alike_word, said, printed))


def _alike_word(said: str, printed: str) -> bool:
    if said == printed:
        return True
    decimals = re.fullmatch(r"\[?-?\d+\.(\d+)[\],;]*", said)
    if decimals is None or re.fullmatch(r"\[?-?\d+\.\d+[\],;]*", printed) is None:
        return False
    numbers = [float(word.strip("[],;")) for word in (said, printed)]
    return abs(numbers[0] - numbers[1]) <= 1.01 * 10.0 ** -len(decimals[1])
