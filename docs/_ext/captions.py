"""Show what the comments say with which CI runs the pages: the file that a code block is, or that
it keeps running (``<!-- file: shop.py -->``). Omit hidden blocks (``<!-- hidden sh ... -->``). Mark
text in columns, which does not wrap (``site.css``)."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

#: Two spaces between words.
COLUMNS = re.compile(r"\S  +\S")
SAID = {"file": "{}", "background": "In a separate terminal: it keeps running"}


def add(_: Sphinx, tree: nodes.document) -> None:
    for comment in [*tree.findall(nodes.raw)]:
        found = re.fullmatch(r"<!-- (file|background)(?:: (.*?))? -->", comment.astext().strip())
        block = comment.next_node(siblings=True, descend=False)
        if found and isinstance(block, nodes.literal_block):
            caption = nodes.caption("", SAID[found[1]].format(found[2]))
            box = nodes.container("", literal_block=True, classes=["literal-block-wrapper"])
            tree.set_id(box)
            block.replace_self(box)
            box += [caption, block]
    for comment in [*tree.findall(nodes.raw)]:
        if comment.astext().startswith("<!-- hidden "):
            comment.parent.remove(comment)
    for block in tree.findall(nodes.literal_block):
        if block.get("language") == "text" and COLUMNS.search(block.astext()):
            block["classes"].append("columns")


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("doctree-read", add)
    return {"parallel_read_safe": True}
