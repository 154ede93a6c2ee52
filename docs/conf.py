"""Settings of `make docs`. Pages on learners and commands are written by docs/_ext."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

import cfsl

project = "cfsl"
author = "the cfsl authors"
release = version = cfsl.__version__
copyright = "MIT licence"

extensions = ["myst_parser", "sphinx.ext.autodoc", "cfsl_pages"]
exclude_patterns = ["_build", "_ext"]
source_suffix = {".md": "markdown"}

html_theme = "furo"
html_title = "cfsl"
html_show_copyright = False
html_show_sphinx = False

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 100
default_role = "code"
smartquotes = False
add_module_names = False
