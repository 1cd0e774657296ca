"""Commands of `weft` that take texts and switches without conversion.

typer 0.27 and later convert every option with pydantic, which takes longer to load than `weft info` takes to run, and a
text needs no conversion. Older versions do not use pydantic and need no change.
"""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


def switch(help: str, *names: str) -> Any:
    """An option without a value."""
    return typer.Option(*names, help=help)


def option(metavar: str, help: str, *names: str, **more: Any) -> Any:
    """An option with a value; without names, the parameter's own."""
    return typer.Option(*names, metavar=metavar, help=help, **more)


def _as_typed(params: list[Any]) -> list[Any]:
    for param in params:
        described = getattr(param, "type_descriptor", None)
        if getattr(described, "annotation", None) in (str, list[str], bool):
            param.get_runtime_param = _AsTyped
    return params


class _AsTyped:
    """A converter for typer that returns the text itself, or all texts of an option that may be repeated."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        return value


class Command(TyperCommand):
    """A command whose texts and switches need no conversion."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _as_typed(super().get_params(ctx))


class Group(TyperGroup):
    """Commands together."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _as_typed(super().get_params(ctx))
