"""User namespaces: whether two processes are one user to each other, and why not.

Processes find each other by the number of their user, and then check it with the kernel. In a user namespace (rootless
containers, unshare --user) the same user can have another number, or none: the kernel then shows the overflow user.
"""

from __future__ import annotations

import os

_REMEDY = (
    "map the user to the same number on both sides: unshare --user --map-current-user, podman run --userns=keep-id, "
    "or one user namespace for both"
)
_RULE = "arrays are shared between processes of one user, which find each other by the user's number"


def unmapped() -> str:
    """Two lines that say that this process's user has no number in its user namespace; "" if the user has one."""
    if _inside(os.geteuid(), os.geteuid(), "self", own=True) is not None:
        return ""
    return (
        f"  found: the user of this process is not mapped in its user namespace; {os.geteuid()} is the kernel's number "
        f"for such users\n  try: {_REMEDY}"
    )


def stranger(pid: int) -> str:
    """Why the kernel shows a living process of this host as another user's, in three lines; "" if it shows our user, or
    if the kernel does not tell.
    """
    if lines := unmapped():
        return f"  rule: {_RULE}\n{lines}"
    me = os.geteuid()
    try:
        outside = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return ""
    same = _namespace(str(pid)) == _namespace("self")
    there = outside if same else _inside(outside, me, str(pid), own=False)
    if there == me:
        return ""
    number = "has no number (it is not mapped)" if there is None else f"is user {there}"
    where = "there" if same else "in its user namespace"
    return f"  rule: {_RULE}\n  found: the owner {number} {where}, and this process is user {me} here\n  try: {_REMEDY}"


def _namespace(pid: str) -> int:
    """The user namespace of a process; 0 if it is hidden, as an outer one is."""
    try:
        return os.stat(f"/proc/{pid}/ns/user").st_ino
    except OSError:
        return 0


def _inside(outside: int, known: int, pid: str, *, own: bool) -> int | None:
    """A user's number in the namespace of a process; None: the user has no number there. own: `outside` is that number
    already, if the map has it. `known` is returned if the map cannot be read."""
    try:
        with open(f"/proc/{pid}/uid_map", encoding="ascii") as file:
            lines = [[int(word) for word in line.split()] for line in file]
    except (OSError, ValueError):
        return known
    for first_inside, first_outside, count in lines:
        first = first_inside if own else first_outside
        if first <= outside < first + count:
            return outside if own else first_inside + outside - first_outside
    return None
