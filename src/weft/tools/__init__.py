"""The command line `weft`. The rest of Weft imports nothing from this package."""
