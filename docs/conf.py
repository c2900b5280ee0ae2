"""Sphinx: ``sphinx-build -W -b html docs <output>``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from compare import RESULTS
from plots import draw

from celery_superfetch import __version__

PLOTS = Path(__file__).resolve().parent / "_build" / "plots"
for name in ("transport", "worker"):
    draw(RESULTS / f"{name}.json", PLOTS / f"{name}.svg")

project = "celery_superfetch"
author = "The celery_superfetch authors"
copyright = author
version = release = __version__

extensions = ["myst_parser", "sphinx_copybutton"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"celery_superfetch {release}"

# Prompts are for reading; only what follows them is to be copied.
copybutton_prompt_text = r"\$ |>>> "
copybutton_prompt_is_regexp = True
