"""Whatever the pages point at is there: other pages, their headings, and files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.house import HERE, PACKAGE

PAGES = [*HERE.glob("*.md"), *HERE.glob("docs/**/*.md")]
#: Folders of the repository, as pages name them.
FOLDERS = "benchmarks|celery_superfetch|docs|examples|tests"
#: The page that names modules by their places in the package, and scripts by their names.
GUIDE = HERE / "docs" / "inside" / "architecture.md"
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(HERE)))
def test_links_lead_somewhere(page: Path) -> None:
    everywhere = set().union(*(anchors(other) for other in PAGES))
    for link in targets(page):
        path, _, anchor = link.partition("#")
        to = page.parent / path if path else page
        assert to.exists() or DRAWN in path, link
        # MyST finds a label of its own, `#...`, on any page.
        assert not anchor or anchor in (anchors(to) if path else everywhere), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(HERE)))
def test_files_that_a_page_names_exist(page: Path) -> None:
    named = set(re.findall(rf"(?<![\w./:])((?:{FOLDERS})/[\w./-]*\w)", page.read_text()))
    missing = {name for name in named if not (HERE / name).exists() and "_build" not in name}
    assert page.name == "CHANGELOG.md" or not missing  # which tells of what is gone, too


def test_files_that_the_architecture_names_exist() -> None:
    named = set(re.findall(r"`([\w./]+(?:\.(?:py|lua)|/))`", GUIDE.read_text()))
    package = HERE / PACKAGE
    places = [HERE, package, package / "store" / "lua"]
    assert named
    assert not {name for name in named if not any((place / name).exists() for place in places)}


def test_the_checks_of_each_commit_have_the_matrix_of_tox() -> None:
    [listed] = re.findall(r"^envlist =\n((?: +.*\n)+)", (HERE / "tox.ini").read_text(), re.M)
    environments = {name for line in listed.split() for name in spelled_out(line)}
    workflow = (HERE / ".github" / "workflows" / "ci.yml").read_text()
    assert set(re.findall(r"env: ([\w-]+)", workflow)) == environments


def spelled_out(name: str) -> list[str]:
    """`py{310,311}` as two names."""
    before, brace, rest = name.partition("{")
    if not brace:
        return [name]
    inside, _, after = rest.partition("}")
    return [full for part in inside.split(",") for full in spelled_out(before + part + after)]
