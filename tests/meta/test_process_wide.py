"""State that a process has once: every variable of the C++ rooms below host that can change, and belongs to no object,
stands in the list below with its reason. All else belongs to a NIC, so that many NICs can live in one process without
knowing each other. The names are read from the symbols of the built extension.
"""

from __future__ import annotations

import re
import subprocess

from weft import _nic

PER_PROCESS: dict[str, str] = {
    # memory that the whole program shares, because the program's threads move between NICs
    "g_slab_of<>": "free objects of one size; objects of all NICs come from here, and keep no NIC's state",
    "g_all": "the slabs, which fork() locks",
    "g_all_lock": "guards g_all",
    # signal handlers: the kernel has one of each signal for a process
    "mem::g_earlier": "the handlers that were there before ours, to which faults of others are passed on",
    "mem::g_installing": "one thread installs the handlers",
    "mem::detail::t_guard": "what this thread is accessing: the handler runs in the thread that faulted",
    # hooks of libc: the program has one munmap
    "mem::g_hooks": "the hooked functions of libc",
    "mem::g_stubs": "the code that calls the functions that were hooked",
    "mem::g_mutex": "guards the hooks",
    "mem::g_installed": "whether the hooks are in place",
    "mem::g_subscriptions": "how many ranges all monitors watch: the last one removes the hooks",
    "mem::g_logs": "the logs of all monitors: a hook cannot know whose memory it changes",
    "mem::g_readers": "hooks that are reading g_logs",
    "mem::g_flights": "changes under way in all threads",
    "mem::g_more_flights": "further ones",
    # facts about the machine, which never change once they are known
    "mem::g_page_size": "of this machine",
    "mem::g_page_mask": "of this machine",
    "mem::g_has_avx": "of this processor",
    "nic::g_cpu": "features of this processor",
    "nic::g_all_atomics": "which atomics exist: a constant that is computed when the library is loaded",
    "nic::g_no_world": "an object without state",
    # the trace: a thread may record for several NICs
    "nic::g_serials": "tells traces apart in t_known_by, also one at the address of an earlier one",
    "nic::t_known_by": "the trace that knows this thread",
    "nic::t_number": "this thread's number in that trace",
    # a program's threads post for all NICs
    "nic::t_posts": "this thread has posted an operation",
    # a library is loaded once
    "ofi::g_library": "the real libfabric",
    "ofi::g_loaded": "whether it is loaded",
}
ROOTS = ("bind", "host")  # above the NIC: the process's own NIC, its tables of types, its threads
_SYMBOL = re.compile(r"^[0-9a-f]{16} .{7} \.(?:t?bss|t?data)\S*\s+[0-9a-f]+\s+(?:\.hidden )?(?P<name>weft::.*)$")


def variables(extension: str) -> set[str]:
    """The variables in writable sections, as room::name; variables of templates without their arguments."""
    symbols = subprocess.run(["objdump", "-tC", extension], capture_output=True, text=True, check=True).stdout
    found = set()
    for line in symbols.splitlines():
        match = _SYMBOL.match(line)
        if not match or ".data.rel.ro" in line:
            continue
        name = match["name"].removeprefix("weft::").replace("(anonymous namespace)::", "")
        found.add(re.sub(r"<[^<>]*>", "<>", re.sub(r"\[abi:\w+\]", "", name)))
    return found


def test_variables_of_the_process_below_host_are_the_listed_ones() -> None:
    found = variables(_nic.__file__)
    assert any(name.startswith("bind::") for name in found), "no symbols: build the extension with `make ext`"
    below = {name for name in found if not name.startswith(tuple(f"{room}::" for room in ROOTS))}
    unknown = below - set(PER_PROCESS)
    assert not unknown, f"{sorted(unknown)} belong to no NIC: make each a member of a class, or list it with a reason"
    assert not set(PER_PROCESS) - below, "listed, and not there"
