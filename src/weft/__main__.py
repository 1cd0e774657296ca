"""`python -m weft`: the command `weft`, for an interpreter whose scripts are not in PATH."""

from .tools.cli import main

main()
