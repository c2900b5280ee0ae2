"""A code block says above it which file it is, or that it goes on running: what the comments by
which CI runs the pages (``<!-- file: shop.py -->``) tell nobody else."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

SAID = {"file": "{}", "background": "In a terminal of its own: it goes on running"}


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


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("doctree-read", add)
    return {"parallel_read_safe": True}
