"""How much there is to read, and how hard it is: the pages of a git ref beside those of the tree.

    python tests/support/words.py [REF]

Words, those of tables too, without blocks of code; the longest sentence and the mean, with `code`
as one word; with `pip install textstat` its Flesch reading ease (more is easier). Without a
dictionary it counts too few syllables: compare the figures of two versions, not with a scale.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.colon_fence import colon_fence_plugin

HERE = Path(__file__).resolve().parents[2]
#: Rooms that are read to run it: their sum is a figure of its own. Before they were rooms, these
#: pages were in their place.
MANUAL = re.compile(
    r"docs/((guide|reference|operate|migrate)/|(cluster|configuration|integrations|migration|"
    r"operations|recipes|shutdown|data_model|redis_data|glossary)\.md)"
)
MARKDOWN = MarkdownIt("commonmark").enable("table").use(colon_fence_plugin)
#: Directives without words of their own.
SILENT = re.compile(r"\{(toctree|include|eval-rst|auto\w*|contents|code.*|literalinclude)\}")
#: A full stop ends a sentence where a new one begins behind it.
ENDS = re.compile(r"(?<=[.!?])[\"')*_]*\s+(?=[\"'(*_]*[A-Z0-9\x00])")
#: Stands for a piece of code in a sentence.
CODE = "\x00code"


@dataclass
class Page:
    """What is to be read on one page."""

    words: int
    sentences: list[str]

    @property
    def longest(self) -> str:
        return max(self.sentences, key=length, default="")

    @property
    def ease(self) -> str:
        try:
            import textstat
        except ImportError:
            return "-"
        text = " ".join(s if s[-1] in ".!?" else f"{s}." for s in self.sentences)
        # Syllables by its rules of hyphenation: for its dictionary nltk would download a corpus.
        with mock.patch("textstat.backend.counts._count_syllables.get_cmudict", return_value=None):
            return f"{textstat.flesch_reading_ease(text):.0f}" if text else "-"


def length(sentence: str) -> int:
    return len(re.findall(r"[^\W_][\w'./-]*", sentence.replace(CODE, "code")))


def read(text: str) -> Page:
    words, sentences = 0, []
    for kind, inline in _texts(text):
        shown = "".join(_shown(inline, code=False)).strip()
        words += len(re.findall(r"\w[\w'./-]*", shown))
        if kind == "paragraph_open":
            said = "".join(_shown(inline, code=True)).strip()
            sentences += [s.replace("\x00", "") for s in ENDS.split(said) if length(s)]
    return Page(words, sentences)


def _texts(text: str) -> Iterator[tuple[str, Token]]:
    """Each paragraph, heading and cell, with the kind of token that opens it."""
    before = ""
    for token in MARKDOWN.parse(text):
        if token.type == "inline":
            yield before, token
        elif token.type == "colon_fence" or token.info.startswith("{"):
            content = "" if SILENT.match(token.info) else token.content
            yield from _texts(re.sub(r"\A(:[\w-]+:.*\n)+", "", content))
        before = token.type


def _shown(inline: Token, code: bool) -> Iterator[str]:
    for token in inline.children or []:
        if token.type == "code_inline":
            yield CODE if code else token.content
        elif token.type in ("image", "html_inline"):
            yield ""
        else:
            yield " " if token.type.endswith("break") else token.content


def pages_of(ref: str | None) -> dict[str, Page]:
    """All pages of a ref, or of the tree."""
    listed = ["ls-tree", "-r", "--name-only", ref] if ref else ["ls-files", "-co"]
    names = [n for n in git(*listed).splitlines() if re.fullmatch(r"(docs/.*|README)\.md", n)]
    return {
        name: read(git("show", f"{ref}:{name}") if ref else (HERE / name).read_text())
        for name in sorted(names)
        if ref or (HERE / name).exists()
    }


def git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=HERE, check=True, capture_output=True, text=True
    ).stdout


def together(pages: Mapping[str, Page]) -> Page:
    return Page(
        sum(page.words for page in pages.values()),
        [sentence for page in pages.values() for sentence in page.sentences],
    )


def table(title: str, pages: Mapping[str, Page]) -> None:
    manual = {name: page for name, page in pages.items() if MANUAL.match(name)}
    sums = {
        "guide, reference, operate, migrate": together(manual),
        "README": pages["README.md"],
        "all": together(pages),
    }
    print(f"{title:36} {'words':>6} {'longest':>7} {'mean':>5} {'ease':>5}")
    for name, page in {**pages, **sums}.items():
        mean = sum(map(length, page.sentences)) / max(1, len(page.sentences))
        print(
            f"{name:36} {page.words:6} {length(page.longest):7} {mean:5.1f} {page.ease:5}", end=""
        )
        print(f"  {page.longest[:60]!r}" if name in pages else "")


def main(ref: str | None = None) -> None:
    for version in [ref, None] if ref else [None]:
        table(version or "the tree", pages_of(version))
        print()


if __name__ == "__main__":
    main(*sys.argv[1:])
