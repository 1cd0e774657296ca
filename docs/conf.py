"""Sphinx configuration: Markdown pages, autodoc of what `weft` exports."""

from weft._version import __version__

project = "Weft"
author = "the Weft authors"
release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
exclude_patterns = ["README.md"]
myst_heading_anchors = 3
suppress_warnings = ["myst.xref_missing"]
