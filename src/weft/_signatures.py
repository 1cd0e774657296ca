"""Signatures of the functions that nanobind made, and the text of the TypeError for arguments that do not fit.

cpp/bind/signatures.cpp calls this module when somebody asks for a `__signature__`, and after such an error.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import inspect
    from collections.abc import Sequence


def signature(function: Any) -> inspect.Signature:
    """The signature of a function or method of the extension; without `self` if it is bound."""
    import inspect

    bound = not hasattr(type(function), "__nb_signature__")
    text, _, defaults = getattr(function, "__func__", function).__nb_signature__[0]
    arguments = _definition(text).args
    kinds = inspect.Parameter
    found: list[inspect.Parameter] = []
    positional = [*arguments.posonlyargs, *arguments.args]
    optional = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)

    def add(argument: ast.arg, kind: Any, default: ast.expr | None) -> None:
        value = kinds.empty if default is None else _value(default, defaults or ())
        annotation = kinds.empty if argument.annotation is None else ast.unparse(argument.annotation)
        found.append(kinds(argument.arg, kind, default=value, annotation=annotation))

    for i, (argument, default) in enumerate(zip(positional, optional, strict=True)):
        only = i < len(arguments.posonlyargs)
        add(argument, kinds.POSITIONAL_ONLY if only else kinds.POSITIONAL_OR_KEYWORD, default)
    if arguments.vararg:
        add(arguments.vararg, kinds.VAR_POSITIONAL, None)
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        add(argument, kinds.KEYWORD_ONLY, default)
    if arguments.kwarg:
        add(arguments.kwarg, kinds.VAR_KEYWORD, None)
    returns = _definition(text).returns
    return inspect.Signature(
        found[1:] if bound else found,
        return_annotation=kinds.empty if returns is None else ast.unparse(returns),
    )


def refusal(function: Any, types: Sequence[type], names: Sequence[str]) -> str:
    """The text of a TypeError.

    Args:
        types: Types of the arguments, `self` included; keyword arguments last.
        names: Names of the keyword arguments.
    """
    name = function.__name__
    if name == "__init__":
        name = function.__qualname__.split(".")[-2]
    first = len(types) - len(names)
    known = signature(function)
    parameters = list(known.parameters.values())
    if parameters and parameters[0].name == "self":
        own = function.__qualname__.rpartition(".")[0].rpartition(".")[2]
        if not types or not any(base.__name__ == own for base in types[0].__mro__):
            return f"{name}: the first argument is a {own}, not {types[0].__qualname__ if types else 'nothing'}"
        types, first, known = types[1:], first - 1, known.replace(parameters=parameters[1:])
    given = [kind.__qualname__ for kind in types[:first]]
    given += [f"{word}: {kind.__qualname__}" for word, kind in zip(names, types[first:], strict=True)]
    return f"{name}: the arguments ({', '.join(given)}) do not fit\n  rule: {name}{_plain(known)}"


def _plain(known: inspect.Signature) -> str:
    """A signature without the quotes that it has around annotations."""
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(known))


def _definition(text: str) -> ast.FunctionDef:
    # nanobind writes \\0, \\1 ... for defaults that are objects, and types of other modules with a question mark.
    text = re.sub(r"\\(\d+)", r"__default_\1", text)
    found = ast.parse(f"{text}: ...").body[0]
    assert isinstance(found, ast.FunctionDef)
    return found


def _value(default: ast.expr, objects: Sequence[Any]) -> Any:
    text = ast.unparse(default)
    placeholder = re.fullmatch(r"__default_(\d+)", text)
    if placeholder is not None:
        return objects[int(placeholder[1])]
    try:
        return ast.literal_eval(default)
    except ValueError:
        return ...
