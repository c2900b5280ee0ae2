"""The code blocks of a page, in the order in which one reads them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from markdown_it import MarkdownIt
from mdit_py_plugins.colon_fence import colon_fence_plugin

from support.house import HERE

#: A comment on the line before a block says what to do with it: `<!-- file: shop.py -->`.
MARKS = {"file", "background", "needs", "not run", "run by", "any exit"}
#: A block inside a comment: it is run, and no page shows it.
HIDDEN = re.compile(r"<!-- hidden (\w+)\n(.*\n)-->\s*", re.DOTALL)
#: Directives that hold code: MyST's own fences say the same, and can be read on GitHub too.
CODE = {"{code", "{code-block", "{literalinclude"}
MARKDOWN = MarkdownIt("commonmark").use(colon_fence_plugin)


@dataclass(frozen=True)
class Block:
    """One code block: `line` is that of its first line of code in the page."""

    page: Path
    line: int
    language: str
    text: str
    marks: dict[str, str] = field(default_factory=dict)
    #: The tab-set that it is in, by the line of that, and its tab.
    tab: tuple[int, str] | None = None
    hidden: bool = False

    @property
    def place(self) -> str:
        at = self.page.relative_to(HERE) if self.page.is_relative_to(HERE) else self.page.name
        return f"{at}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """All code blocks of a page; those inside of notes, tabs and other directives as well."""
    return list(_blocks(page, page.read_text(), 0, None))


def _blocks(page: Path, text: str, above: int, tab: tuple[int, str] | None) -> Iterator[Block]:
    marks: dict[str, str] = {}
    tabs_of = above
    for token in MARKDOWN.parse(text):
        first = above + (token.map[0] if token.map else 0) + 2  # the line below the fence, from 1
        name, _, title = token.info.strip().partition("}")
        if token.type == "html_block":
            if hidden := HIDDEN.fullmatch(token.content):
                yield Block(page, first, hidden[1], hidden[2], marks, tab, hidden=True)
                marks = {}
            else:
                marks |= _mark(token.content)
        elif (token.type == "colon_fence" or name.startswith("{")) and name not in CODE:
            if name not in ("{toctree", "{include"):
                inner = (tabs_of, title.strip()) if name == "{tab-item" else tab
                yield from _blocks(page, token.content, first - 1, inner)
            marks = {}
        elif token.type in ("fence", "code_block"):
            yield Block(page, first, token.info.strip(), token.content, marks, tab)
            marks = {}
        elif token.type != "inline":
            marks = {}


def _mark(comment: str) -> dict[str, str]:
    found = re.fullmatch(r"<!--\s*([\w ]+?)\s*(?::\s*(.*?))?\s*-->\s*", comment, re.DOTALL)
    return {found[1]: found[2] or ""} if found and found[1] in MARKS else {}


def readers(page: Path) -> dict[str, list[Block]]:
    """What each reader comes past: who picks one tab, and with it the tab of that name in each set
    that has it (the first one elsewhere). A page without tabs has one reader, without a name."""
    found = blocks(page)
    sets: dict[int, list[str]] = {}
    for block in found:
        if block.tab:
            at, title = block.tab
            sets.setdefault(at, []).append(title)
    titles = dict.fromkeys(title for tabs in sets.values() for title in tabs)

    def reads(block: Block, chosen: str) -> bool:
        if block.tab is None:
            return True
        tabs = sets[block.tab[0]]
        return block.tab[1] == (chosen if chosen in tabs else tabs[0])

    return {title: [b for b in found if reads(b, title)] for title in titles or [""]}


def fate(block: Block) -> str:
    """Return what becomes of a block: `run`, `file`, `parsed`, `text`, `elsewhere`, `excused`, or
    why it may not be."""
    if "run by" in block.marks:
        test = HERE / block.marks["run by"]
        if test.is_file() and block.page.name in test.read_text():
            return "elsewhere"
        return f"undecided: {block.marks['run by']} does not name {block.page.name}"
    if "not run" in block.marks:
        return "excused" if block.marks["not run"] else "undecided: `not run` without a reason"
    if "file" in block.marks:
        return "file" if block.marks["file"] else "undecided: `file` without a name"
    if block.language in ("text", "diff"):
        return "text"
    if block.language in ("json", "yaml", "toml", "ini"):
        return "parsed"
    if block.language in ("sh", "python"):
        return "run"
    return f"undecided: nobody has said what to do with {block.language or 'no language'!r}"
