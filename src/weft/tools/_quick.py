"""Parses the options of `weft info` without typer, which takes longer to load than the command takes to run. Options
that are not clearly valid, and --help, are left to typer, which reports the error.
"""

from __future__ import annotations

OPTIONS = {
    "provider": ("--provider", "-p"),
    "fabric": ("--fabric", "-f"),
    "domain": ("--domain", "-d"),
    "caps": ("--caps", "-c"),
    "mode": ("--mode", "-m"),
    "mr_mode": ("--mr-mode", "--mr_mode"),
    "ep_type": ("--ep-type", "--ep_type", "-t"),
    "addr_format": ("--addr-format", "--addr_format", "-a"),
    "threading": ("--threading",),
    "progress": ("--progress",),
    "msg_order": ("--msg-order", "--msg_order"),
    "inject_size": ("--inject-size", "--inject_size"),
    "max_msg_size": ("--max-msg-size", "--max_msg_size"),
    "node": ("--node", "-n"),
    "service": ("--service", "--port", "-P"),
    "client": ("--for",),
}
"""Parameter -> its option names. Each option takes a text."""

SWITCHES = {
    "why": ("--why",),
    "brief": ("--list", "-l"),
    "verbose": ("--verbose", "-v"),
    "env": ("--env", "-e"),
    "json": ("--json",),
}
"""Parameter -> its option names."""

_OPTION = {name: parameter for parameter, names in OPTIONS.items() for name in names}
_SWITCH = {name: parameter for parameter, names in SWITCHES.items() for name in names}


def parse(arguments: list[str]) -> dict[str, str | bool] | None:
    """Parameter -> its value; None if typer must parse the arguments."""
    given: dict[str, str | bool] = {}
    left = iter(arguments)
    for word in left:
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if name in _SWITCH and not equals:
            given[_SWITCH[name]] = True
        elif name in _OPTION:
            text = value if equals else next(left, None)
            if text is None or (not equals and text.startswith("-")):
                return None
            given[_OPTION[name]] = text
        else:
            return None
    return given
