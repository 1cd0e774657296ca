"""Weft under other libraries: one subpackage or module for each, which imports that library."""
