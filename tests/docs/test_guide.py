"""Every code block of the guide and of the README runs, and prints what is printed there."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from docs_blocks import ROOT, Reader, blocks_of, pages

WHERE = {page.name: page for page in pages()}


@pytest.mark.parametrize("name", [n for n, page in WHERE.items() if any(True for _ in blocks_of(page))])
def test_blocks(name, tmp_path):
    blocks = list(blocks_of(WHERE[name]))
    for module in ("torch", "statsmodels"):
        if any(block.kind == "python" and f"import {module}" in block.text for block in blocks):
            pytest.importorskip(module)
    reader = Reader(tmp_path)
    for block in blocks:
        reader.read(block)


@pytest.mark.parametrize(
    ("said", "right"),
    [("1.25 a", True), ("1.24 a", True), ("1.2 a", True), ("1.27 a", False), ("...a", True)]
    + [("", False), ("1.25 b", False), ("2 a", False)],
)
def test_the_reader_notices_what_is_not_true(tmp_path, said, right):
    page = tmp_path / "page.md"
    page.write_text(f"```python\nprint(1.25, 'a')\n```\n\n```output\n{said}\n```\n")
    code, output = blocks_of(page)
    reader = Reader(tmp_path)
    reader.read(code)
    if right:
        reader.read(output)
    else:
        with pytest.raises(AssertionError, match="but this was printed"):
            reader.read(output)


@pytest.mark.parametrize("name", list(WHERE))
def test_links_lead_somewhere(name):
    page = WHERE[name]
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), f"{name}: {target}"


def test_pictures_are_small():
    pictures = list((ROOT / "docs" / "pictures").glob("*.png"))
    assert len(pictures) >= 6
    for picture in pictures:
        assert picture.stat().st_size < 200_000, picture.name


def test_every_page_is_in_the_contents():
    contents = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in WHERE.values():
        if page.parent.name == "docs":
            assert re.search(rf"^ +(- .*: )?{re.escape(page.name)}$", contents, re.MULTILINE), page.name


def test_the_site_builds(tmp_path):
    """Strictly: a link or a reference that leads nowhere fails."""
    pytest.importorskip("mkdocstrings", reason="the guide is built by mkdocs: pip install 'vaneb[docs]'")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mkdocs",
            "build",
            "--strict",
            "--quiet",
            "--site-dir",
            str(tmp_path / "site"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "personalize" in (tmp_path / "site" / "reference.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_examples_run(example: Path, tmp_path):
    shutil.copy(example, tmp_path)
    done = subprocess.run([sys.executable, example.name], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
