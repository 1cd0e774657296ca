"""Our docstrings as reStructuredText, for autodoc.

Docstrings are written for readers of the source: sections are in Google style; lines indented beyond the text are code;
Python is between single backticks. In docstrings of the extension, arguments are rows of a name, two blanks or more,
and words. This module turns code into literal blocks, rows into definition lists, backticks into links where they name
something that is documented, and escapes the rest. Sections keep their form, for sphinx.ext.napoleon.
"""

from __future__ import annotations

import re
from typing import Any

from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx

import weft
from weft import errors, fi, share, ucp

_ROW = re.compile(r"(\S.*?) {2,}(\S.*)")
_SECTION = re.compile(r"(Args|Attributes|Raises|Returns):")
_NAME = re.compile(r"([A-Za-z_][\w.]*)(\(.*\))?")
_ERROR = re.compile(r"\b(" + "|".join(name for name in errors.__all__ if name[0].isupper()) + r")\b")
_UCS_ERROR = re.compile(r"\bUcsError\b")

_ADDR_UNSPEC = int(fi.ADDR_UNSPEC)

# Members of the extension's classes for the dialects, not for users.
INTERNAL = {
    "arm_core",
    "bind_av",
    "bind_cntr",
    "bind_cq",
    "bind_ep",
    "cancel_flush",
    "close_core",
    "enable_at",
    "insert_address",
    "lookup_address",
    "place",
    "post",
    "post_error",
    "regions",
    "remove_address",
    "set_mr_plain",
    "shut",
    "take_key",
    "wait_core",
}

_CLASSES: dict[str, tuple[str, type]] = {
    **{name: (f"weft.fi.{name}", value) for name in fi.__all__ if isinstance(value := getattr(fi, name), type)},
    **{name: (f"weft.errors.{name}", getattr(errors, name)) for name in errors.__all__ if name[0].isupper()},
    "NodeStatistics": ("weft.share.NodeStatistics", share.NodeStatistics),
    **{name: (f"weft.{name}", getattr(weft, name)) for name in ("Node", "RemoteArray", "Shared", "Ticket")},
}
_FUNCTIONS: dict[str, str] = {
    **{name: f"weft.fi.{name}" for name in ("allocinfo", "datatype_of", "dtype_of", "dupinfo", "getinfo", "tostr")},
    **{name: f"weft.{name}" for name in ("allocator", "attach", "empty", "open", "zeros")},
    "RMA_DESC": "weft.fi.RMA_DESC",
}
# Both dialects have an Endpoint: in the docstrings of weft.ucp it is its own.
_UCP: dict[str, tuple[str, type]] = {
    name: (f"weft.ucp.{name}", value) for name in ucp.__all__ if isinstance(value := getattr(ucp, name), type)
}
_UCP_FUNCTIONS = {name: f"weft.ucp.{name}" for name in ("DONE", *(name for name in ucp.__all__ if name[0].islower()))}


def _has(cls: type, name: str) -> bool:
    """True if the class has the name itself, or from a base class of the extension that has no page."""
    return any(name in vars(base) for base in cls.__mro__ if base is cls or base.__name__ == "Elements")


def target(name: str, context: str) -> str | None:
    """Full name of the object that `name` means in the docstring of `context`; None if it has no entry in the pages."""
    name = name.removeprefix("weft.")
    of_ucp = name.startswith("ucp.") or (context.startswith("weft.ucp.") and not name.startswith(("fi.", "errors.")))
    name = name.removeprefix("ucp.").removeprefix("fi.").removeprefix("errors.")
    classes, functions = (_UCP, _UCP_FUNCTIONS) if of_ucp else (_CLASSES, _FUNCTIONS)
    head, _, attribute = name.partition(".")
    if head in classes and not attribute:
        return classes[head][0]
    if head in classes and hasattr(classes[head][1], attribute):
        return f"{classes[head][0]}.{attribute}"
    if name in functions:
        return functions[name]
    for full, cls in classes.values():
        if (context == full or context.startswith(full + ".")) and not attribute and _has(cls, name):
            return f"{full}.{name}"
    return None


def inline(text: str, context: str) -> str:
    """A piece of running text."""
    out = []
    parts = text.split("`")
    for i, part in enumerate(parts):
        if i % 2 and i + 1 < len(parts):
            found = _NAME.fullmatch(part)
            full = target(found[1], context) if found else None
            marked = f":py:obj:`{part} <{full}>`" if full and "<" not in part else f"``{part}``"
            out.append(marked + ("\\ " if re.match(r"\w", parts[i + 1]) else ""))
        else:
            part = re.sub(r"([*|\\])", r"\\\1", part)
            part = re.sub(r"(?<=\w)_(?=\W|$)", r"\\_", part)
            part = re.sub(r"(?<!\w)_(?=\w)", r"\\_", part)
            out.append(part)
    return "".join(out)


def paragraph(lines: list[str], context: str) -> list[str]:
    """Lines of running text, in which "Raises" names classes."""
    text = inline("\n".join(lines), context)
    if re.search(r"\bRaises\b", text):
        before, raises, after = re.split(r"\b(Raises)\b", text, maxsplit=1)
        if context.startswith("weft.ucp."):
            after = _UCS_ERROR.sub(":py:exc:`UcsError <weft.ucp.UcsError>`", after)
        else:
            after = _ERROR.sub(lambda m: f":py:exc:`{m[1]} <weft.errors.{m[1]}>`", after)
        text = before + raises + after
    return [*text.split("\n"), ""]


def literal(lines: list[str]) -> list[str]:
    """Code."""
    return ["::", "", *("    " + line for line in lines), ""]


def rows(lines: list[str], context: str) -> list[str]:
    """Rows of name and words; a continued row is indented."""
    out: list[str] = []
    for line in lines:
        found = _ROW.fullmatch(line)
        if found is not None and not line.startswith(" "):
            term = found[1].replace("`", "").replace("\\", "\\\\").strip()
            words = re.sub(r"^(\w+)(?=\. )", r"\1\\", inline(found[2], context))  # "1. ..." would be a list
            out += [f"``{term}``", "    " + words]
        else:
            out.append("    " + inline(line.strip(), context))
    return [*out, ""]


def section(lines: list[str], context: str) -> list[str]:
    """A section in Google style; an entry of several lines is joined."""
    head = lines[0]
    if head == "Returns:":  # not by napoleon, which takes the words before a colon for a type
        return [":returns: " + inline(" ".join(line.strip() for line in lines[1:]), context), ""]
    entries: list[str] = []
    for line in lines[1:]:
        if line.startswith(" " * 8):
            entries[-1] += " " + line.strip()
        else:
            entries.append(line.strip())
    out = [head]
    for entry in entries:
        name, _, words = entry.partition(": ")
        if head == "Raises:":
            full = f"weft.{name}" if hasattr(weft, name) else f"weft.errors.{name}"
            name = f":py:exc:`~{full}`" if _ERROR.fullmatch(name) else name
            name = ":py:exc:`~weft.ucp.UcsError`" if name == "UcsError" else name
        out.append(f"    {name}: {inline(words, context)}")
    return [*out, ""]


def convert(lines: list[str], context: str = "") -> list[str]:
    """A docstring, cleaned of its indentation, as reStructuredText."""
    out: list[str] = []
    block: list[str] = []
    code: list[str] = []

    def end_block() -> None:
        if block and _SECTION.fullmatch(block[0]):
            out.extend(section(block, context))
            block.clear()
            return
        # Text and rows may follow each other without a blank line between.
        in_rows = False
        part: list[str] = []
        for line in [*block, None]:
            row = line is not None and _ROW.fullmatch(line) is not None and not line.startswith(" ")
            goes_on = line is not None and (row or (in_rows and line.startswith(" ")))
            if part and (line is None or goes_on != in_rows):
                out.extend(rows(part, context) if in_rows else paragraph(part, context))
                part = []
            in_rows = goes_on
            if line is not None:
                part.append(line)
        block.clear()

    def end_code() -> None:
        while code and not code[-1]:
            code.pop()
        if code:
            out.extend(literal(code))
        code.clear()

    for line in [*lines, ""]:
        line = line.rstrip()
        if not line:
            if block:
                end_block()
            elif code:
                code.append("")
        elif line.startswith(" ") and not block:
            code.append(line)
        else:
            end_code()
            block.append(line)
    end_code()
    return out


def _process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    if lines and re.match(r"\w+\((?:\w+[:=,)]|\))", lines[0]):
        # Made by dataclasses or nanobind: the signature says it already.
        lines[:] = [] if what == "class" else lines[1:]
    lines[:] = convert(lines, name)


def _signature(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str | None, returned: str | None
) -> tuple[str | None, str | None] | None:
    # Users do not call the class of a handle.
    if signature is None:
        return None  # Sphinx 9.0 has no place for an answer then
    if what == "exception" or (what == "class" and "Made by" in (obj.__doc__ or "")):
        return "", None
    # Defaults as people write them.
    if signature and (str(_ADDR_UNSPEC) in signature or "<factory>" in signature):
        return signature.replace(str(_ADDR_UNSPEC), "ADDR_UNSPEC").replace("<factory>", "..."), returned
    return None


def _name_fully(app: Sphinx, doctree: Any) -> None:
    """Resolve the annotation Endpoint, a class of both dialects: on the pages of each it means that dialect's class."""
    of_ucp, of_fi = (app.env.docname.startswith(f"reference/{dialect}/") for dialect in ("ucp", "fi"))
    for node in doctree.findall(pending_xref) if of_ucp or of_fi else ():
        target = node["reftarget"]
        if node.get("refdomain") == "py" and target in _UCP:
            node["reftarget"] = _UCP[target][0] if of_ucp else f"weft.fi.{target}"


def _skip(app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    return True if name in INTERNAL else None


def setup(app: Sphinx) -> dict[str, Any]:
    """Entry point of Sphinx."""
    app.connect("autodoc-process-docstring", _process)
    app.connect("autodoc-process-signature", _signature)
    app.connect("autodoc-skip-member", _skip)
    app.connect("doctree-read", _name_fully)
    return {"parallel_read_safe": True}
