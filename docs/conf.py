"""Sphinx configuration: Markdown pages and notebooks, autodoc of what `weft` exports, and what is generated (_ext)."""

import sys
from pathlib import Path

from weft._version import __version__

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "Weft"
author = "the Weft authors"
release = __version__
# weft_docstrings before napoleon: each handles a docstring as the one before left it.
extensions = ["myst_nb", "sphinx.ext.autodoc", "weft_docstrings", "sphinx.ext.napoleon", "weft_pages"]
exclude_patterns = ["README.md", "_ext"]

myst_heading_anchors = 3

# Notebooks are kept without output and run at each build, in a folder of their own.
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 240
nb_merge_streams = True

napoleon_numpy_docstring = False
napoleon_use_ivar = True  # else fields of a dataclass would be described twice

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
add_module_names = False
python_maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"Weft {__version__}"
html_static_path = ["_static"]
html_css_files = ["weft.css"]
html_copy_source = False
html_show_sourcelink = False
