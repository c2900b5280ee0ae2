"""Whatever the pages point at is there: other pages, their headings, and files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.house import HERE, PACKAGE

PAGES = [*HERE.glob("*.md"), *HERE.glob("docs/*.md")]
#: Pages that tell where things are done; others name modules of the reader's own.
GUIDES = ["docs/architecture.md", "docs/decisions.md"]
#: Drawn when the docs are built.
DRAWN = "_build/plots"


def anchors(page: Path) -> set[str]:
    """What `#...` may name: labels, and headings as MyST and GitHub call them."""
    text = page.read_text()
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.M)
    slugs = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}
    return slugs | set(re.findall(r"^\(([\w-]+)\)=$", text, re.M))


def targets(page: Path) -> list[str]:
    text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(), flags=re.DOTALL)
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    everywhere = set().union(*(anchors(other) for other in PAGES))
    for link in targets(page):
        path, _, anchor = link.partition("#")
        to = page.parent / path if path else page
        assert to.exists() or path.startswith(DRAWN), link
        # MyST finds a label of its own, `#...`, on any page.
        assert not anchor or anchor in (anchors(to) if path else everywhere), link


@pytest.mark.parametrize("guide", GUIDES)
def test_files_that_are_named_exist(guide: str) -> None:
    """By their place in the package, or in the repository; scripts by their names alone."""
    named = re.findall(
        r"`(?:python )?([\w./]+(?:\.(?:py|lua|md|json)|/))`", (HERE / guide).read_text()
    )
    assert named
    package = HERE / PACKAGE
    for name in named:
        places = [HERE / name, package / name, package / "store" / "lua" / name]
        assert any(place.exists() for place in places), name
