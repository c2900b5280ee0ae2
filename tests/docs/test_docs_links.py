"""Whatever the pages point at is there: other pages, their headings, and files."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from support.house import HERE, PACKAGE

PAGES = [*HERE.glob("*.md"), *HERE.glob("docs/**/*.md"), *HERE.glob("evidence/**/*.md")]
#: Folders of the repository, as pages name them.
FOLDERS = "benchmarks|celery_superfetch|docs|examples|tests"
#: The page that names modules by their places in the package, and scripts by their names.
GUIDE = HERE / "docs" / "contribute" / "architecture.md"
#: Pages for contributors: read in the repository, and not on the site.
CONTRIBUTE = sorted(HERE.glob("docs/contribute/*.md"))
#: Drawn, or written, when the docs are built.
DRAWN = "_build/"
#: Where our pages and files are for whoever reads README on a package index.
SITE = "https://celery-superfetch.readthedocs.io/en/latest/"
REPOSITORY = "https://github.com/celery-superfetch/celery-superfetch/"
RAW = "https://raw.githubusercontent.com/celery-superfetch/celery-superfetch/main/"


def name(page: Path) -> str:
    return str(page.relative_to(HERE))


def without_code(text: str) -> str:
    return re.sub(r"(?ms)^( *)(`{3,}).*?^\1\2`*$|`[^`\n]*`", "", text)


def anchors(page: Path) -> set[str]:
    """What `#...` may name: labels, headings as MyST and GitHub call them, terms of a glossary."""
    text = page.read_text()
    headings = re.findall(r"^#+ (.*)$", re.sub(r"(?ms)^```.*?^```", "", text), re.M)
    slugs = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}
    return slugs | set(re.findall(r"^\(([\w-]+)\)=$", text, re.M))


def targets(page: Path) -> list[str]:
    """Where a page leads, by links and pictures of Markdown and of HTML."""
    text = without_code(page.read_text())
    links = re.findall(r"\]\(<?([^)\s>]+)>?[^)]*\)", text)
    links += re.findall(r"^:::+\{(?:figure|image)\} (\S+)|^\[[^\]]+\]: (\S+)", text, re.M)
    links += re.findall(r"""(?:src|srcset|href)=["']([^"']+)["']""", text)
    return ["".join(link) for link in links]


def ours(page: Path, link: str) -> Path | None:
    """The file that a link leads to, if it is one of this repository."""
    path = link.partition("#")[0]
    if link.startswith(SITE):
        inside = path.removeprefix(SITE)
        if inside in ("", "index.html"):
            return HERE / "docs" / "index.md"
        return HERE / "docs" / inside.replace(".html", ".md").replace("_images/", "pictures/")
    for at in (f"{REPOSITORY}blob/main/", f"{REPOSITORY}tree/main/", f"{REPOSITORY}raw/main/", RAW):
        if path.startswith(at):
            return HERE / path.removeprefix(at)
    if "://" in link or link.startswith("mailto:"):
        return None
    return page.parent / path if path else page


def dead_ends(page: Path) -> list[str]:
    """The links of a page that lead nowhere."""
    everywhere = set().union(*(anchors(other) for other in PAGES))
    found = []
    for link in targets(page):
        to, anchor = ours(page, link), link.partition("#")[2]
        if to is None or DRAWN in link:
            continue
        # MyST finds a label of its own, `#...`, on any page.
        there = everywhere if link.startswith("#") else set()
        if to.suffix == ".md" and to.exists():
            there = there | anchors(to)
        if not to.exists() or (anchor and to.suffix == ".md" and anchor not in there):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    assert not dead_ends(page)


def test_control_a_link_that_leads_nowhere_is_found(tmp_path):
    page = tmp_path / "page.md"
    there = (
        f"[a]({SITE}inside/comparison.html) [b]({REPOSITORY}blob/main/LICENSE) [c](#here) `[d](d)`"
        "[e](https://example.com/x) [f](page.md)\n\n(here)=\n\n```text\n[g](g)\n```\n"
    )
    page.write_text(there)
    assert not dead_ends(page)
    wrong = [
        f"{SITE}nowhere.html",
        f"{SITE}why.html#nothing",
        f"{REPOSITORY}blob/main/no",
        "no.png",
    ]
    wrong += ["page.md#no", "#nobody-has-this"]
    page.write_text(there + "".join(f"\n![x]({link})\n" for link in wrong))
    assert dead_ends(page) == wrong


def test_readme_leads_out_by_whole_addresses():
    """A package index shows it far from the files beside it."""
    found = targets(HERE / "README.md")
    assert not [link for link in found if "://" not in link and not link.startswith("#")]


def test_each_page_is_in_the_table_of_contents_once():
    listed: Counter[str] = Counter()
    for page in HERE.glob("docs/**/*.md"):
        for tree in re.findall(
            r"(?ms)^(?:`{3,}|:{3,})\{toctree\}(.*?)^(?:```|:::)", page.read_text()
        ):
            for entry in re.findall(r"^(?:.*<)?([\w/.-]+)>?$", tree, re.M):
                to = (HERE / "docs" if entry[0] == "/" else page.parent) / entry.lstrip("/")
                listed[name(to.with_suffix(".md").resolve())] += 1
    pages = {name(page) for page in HERE.glob("docs/**/*.md")} - {"docs/index.md"}
    assert listed == Counter(pages - {*map(name, CONTRIBUTE)})


def test_each_page_for_contributors_is_linked_from_another_of_them():
    pages = [HERE / "CONTRIBUTING.md", *CONTRIBUTE]
    linked = {
        to.resolve()
        for page in pages
        for link in targets(page)
        if (to := ours(page, link)) and to.resolve() != page
    }
    assert {*CONTRIBUTE} <= linked


@pytest.mark.parametrize("page", CONTRIBUTE, ids=name)
def test_links_that_the_site_does_not_render_have_a_text(page):
    assert not re.findall(r"(?<!!)\[\]\([^)]*\)", without_code(page.read_text()))


@pytest.mark.parametrize("picture", sorted(HERE.glob("docs/pictures/*.[sp][vn]g")), ids=name)
def test_each_picture_is_shown_somewhere(picture):
    shown = {to.resolve() for page in PAGES for link in targets(page) if (to := ours(page, link))}
    assert picture in shown


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_files_that_a_page_names_exist(page):
    named = set(re.findall(rf"(?<![\w./:])((?:{FOLDERS})/[\w./-]*\w)", page.read_text()))
    missing = {name for name in named if not (HERE / name).exists() and "_build" not in name}
    assert page.name == "CHANGELOG.md" or not missing  # which tells of what is gone, too


def test_files_that_the_architecture_names_exist():
    named = set(re.findall(r"`([\w./]+(?:\.(?:py|lua)|/))`", GUIDE.read_text()))
    package = HERE / PACKAGE
    places = [HERE, package, package / "store" / "lua"]
    assert named
    assert not {name for name in named if not any((place / name).exists() for place in places)}


def test_the_checks_of_each_commit_have_the_matrix_of_tox():
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
