"""The public names of a module, and the name that was meant by one that `weft.fi` or `weft.ucp` does not have: C's
spelling, or a misspelt name.
"""

from __future__ import annotations

import re
import types
from collections.abc import Mapping
from typing import Any

_MOST = 3  # names in one answer


def public(found: Mapping[str, object]) -> list[str]:
    """The names of a module's dictionary that users call its own, sorted: those without an underscore before them, but
    for modules and for what every module has of `__future__` and `typing`."""
    return sorted(
        name
        for name, value in found.items()
        if name[0] != "_" and not isinstance(value, types.ModuleType) and name not in ("TYPE_CHECKING", "annotations")
    )


def unknown(module: Any, name: str, names: list[str], prefixes: tuple[str, ...]) -> AttributeError:
    """The error for `module.name`. It has the name and no object, so that Python suggests nothing more.

    Args:
        names: The public names of the module.
        prefixes: Prefixes of the C names, in lower case; names here are the C names without them.
    """
    return AttributeError(
        f"module {module.__name__!r} has no attribute {name!r}{_hint(module, name, names, prefixes)}", name=name
    )


def _hint(module: Any, name: str, names: list[str], prefixes: tuple[str, ...]) -> str:
    # Python asks every module for such names, and an import asks the package for the names of its modules.
    if name.startswith("_") or not name.isidentifier() or _is_module(f"{module.__name__}.{name}"):
        return ""
    short = module.__name__.rpartition(".")[2]
    lower = name.lower()
    prefix = next((one for one in prefixes if lower.startswith(one)), "")
    bare = lower.removeprefix(prefix)
    found = [f"{short}.{one}" for one in names if one.lower() == bare]
    if name != name.upper() and f"{short}.{bare}" not in found:  # a constant is no method
        found = _documented(module, names, {lower} if prefix else {one + lower for one in prefixes}) or found
    if found:
        rule = (
            f"; names here are those of C without {prefix if name[:1].islower() else prefix.upper()}" if prefix else ""
        )
        return f"{rule}\n  try: {', or '.join(found[:_MOST])}"
    import difflib

    close = difflib.get_close_matches(bare.upper() if name.isupper() else name, names, 1)
    return f"; did you mean {short}.{close[0]}?" if close else ""


def _is_module(path: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(path) is not None


def _documented(module: Any, names: list[str], calls: set[str]) -> list[str]:
    """The methods and classes whose docstrings begin with C's name for them, `(fi_mr_reg)` or `(struct fi_ioc)`;
    otherwise the methods and classes whose docstrings mention that name."""
    import enum

    word = "|".join(map(re.escape, sorted(calls)))
    first, anywhere = re.compile(rf"\((?:struct )?(?:{word})(?:_[th])?[,)]"), re.compile(rf"\b(?:{word})\b")
    short = module.__name__.rpartition(".")[2]
    kinds: list[str] = []
    methods: dict[str, list[str]] = {}  # name of a method -> the objects that have it
    mentioned: list[str] = []
    for name in names:
        kind = getattr(module, name)
        if not isinstance(kind, type) or issubclass(kind, (enum.Enum, BaseException)):
            continue
        if first.search((kind.__doc__ or "").partition("\n\n")[0]):
            kinds.append(f"{short}.{name}")
        elif anywhere.search(kind.__doc__ or ""):
            mentioned.append(f"{short}.{name}")
        for method in dir(kind):
            says = getattr(getattr(kind, method, None), "__doc__", None) if method[0] != "_" else None
            if not isinstance(says, str):
                continue
            if first.search(says.partition("\n\n")[0]):
                methods.setdefault(method, []).append(f"{short}.{name}.{method}")
            elif anywhere.search(says):
                mentioned.append(f"{short}.{name}.{method}")
    found = [
        one
        for method, places in methods.items()
        for one in (places if len(places) <= _MOST else [f"the method {method}() of the object"])
    ]
    return found + kinds or mentioned
