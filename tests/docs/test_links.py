"""Links between the pages lead to existing files and headings; `make docs` also checks the built site."""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from pathlib import Path

import pytest

from tests.docs.blocks import PAGES, ROOT


@cache
def anchors(page: Path) -> frozenset[str]:
    """Names of a page's headings in links."""
    text = re.sub(r"(?ms)^```.*?^```", "", page.read_text())
    slugs = []
    for heading in re.findall(r"(?m)^#+ (.+)$", text):
        words = unicodedata.normalize("NFKD", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading))
        slugs.append(re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", words).strip().lower()))
    return frozenset(slugs)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links(page: Path) -> None:
    text = re.sub(r"(?ms)^```.*?^```|`[^`\n]*`", "", page.read_text())
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            wrong.append(target)
    assert wrong == []


def test_every_page_is_in_the_navigation() -> None:
    listed = (ROOT / "mkdocs.yml").read_text()
    pages = {str(page.relative_to(ROOT)) for page in PAGES if page.is_relative_to(ROOT / "docs")}
    assert {page for page in pages if not re.search(rf": {re.escape(page)}$", listed, re.MULTILINE)} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_files_exist(page: Path) -> None:
    """Paths from the root in backticks; capitals stand for the reader's own names."""
    top = "|".join(folder.name for folder in ROOT.iterdir() if (folder / "__init__.py").exists())
    named = re.findall(rf"`((?:{top}|tests|docs)/[a-z0-9_/.-]+)`", page.read_text())
    assert [path for path in named if not (ROOT / path).exists()] == []
