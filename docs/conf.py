"""Sphinx: ``sphinx-build -W -b html docs <output>``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent / "_ext"))

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

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "generated",  # docs/_ext: options and commands
    "captions",  # and which file a code block is
]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "_ext", "contribute"]  # docs/contribute is read in the repository

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

# Words of our docstrings: single backticks name something of the package, or of Python.
default_role = "any"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_preserve_defaults = True
# No stubs come with Celery, kombu and redis-py: their classes are named, and lead nowhere.
python_use_unqualified_type_names = True
napoleon_use_ivar = True

html_theme = "furo"
html_title = f"celery_superfetch {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = [("tables.js", {"defer": "defer"})]

# Prompts are for reading; only what follows them is to be copied.
copybutton_prompt_text = r"\$ |>>> "
copybutton_prompt_is_regexp = True
