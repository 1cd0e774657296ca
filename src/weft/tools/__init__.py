"""The command line `weft`. Nothing here is imported by the rest of Weft."""
