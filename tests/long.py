"""Test files with the mark `long`: `make test` leaves them out, to end in ten minutes; `make test-all` runs them.

Here are files of which each takes more than about ten seconds, and beside which a shorter file shows the usual way.
`make test` prints the slowest tests: a file that grows is split, or comes here.

CASES has cases of a test, where one rule is tried on many paths, types or sizes and the others stay, and slow tests of
files whose other tests are short.
"""

from __future__ import annotations

import re

LONG = {
    "fm/test_kill.py": "managers are killed and started again",
    "fuzz/test_deaf_peers.py": "fifty peers that never read",
    "interop/test_attach_all.py": "jobs of several ranks",
    "interop/test_dask_attacked.py": "clusters whose workers are killed",
    "interop/test_dask_cluster.py": "clusters",
    "interop/test_dask_freed.py": "peers that are killed with memory in use",
    "interop/test_hosts.py": "jobs on two hosts",
    "interop/test_kill.py": "ranks are killed at any instant",
    "interop/test_refusals.py": "jobs of ranks that lie",
    "memory/test_hmem_procs.py": "every kind of device memory, between processes",
    "memory/test_under_fire.py": "puts into memory that is unmapped meanwhile, with every monitor",
    "meta/test_docs.py": "runs every block of the documentation",
    "meta/test_packaging.py": "builds archives, and configures what they hold",
    "ofi/test_collectives.py": "ranks of a real libfabric",
    "ofi/test_exit.py": "processes that end in each state of a real libfabric",
    "ofi/test_quirks.py": "each quirk of a library in a process of its own",
    "ofi/test_share.py": "arrays over a real libfabric, between processes",
    "procs/test_close.py": "closes under traffic, on every path",
    "procs/test_collective.py": "members are killed",
    "procs/test_coordination.py": "locks, queues and barriers between processes that are killed",
    "procs/test_exec.py": "owners that exec",
    "procs/test_hosts.py": "every path between two hosts",
    "procs/test_interrupted_waits.py": "every wait of every object is given up, on every path",
    "procs/test_kill_cxi.py": "kills",
    "procs/test_kill_dialects.py": "kills",
    "procs/test_kill_keep.py": "kills",
    "procs/test_kill_registry.py": "kills",
    "procs/test_many_senders.py": "two hundred processes",
    "procs/test_pages.py": "pages that fail, on every path",
    "procs/test_peer_kinds.py": "every start method",
    "procs/test_pid_race.py": "hundreds of processes that end while others begin",
    "procs/test_relay.py": "a relay between two hosts",
    "procs/test_ucp_two_processes.py": "every fact of weft.ucp on every path",
    "procs/test_ucp_windows.py": "places of unmapped memory, on every path",
    "procs/test_views.py": "views whose owner closes, dies or frees them, on every path",
    "props/test_interleavings.py": "random interleavings against a model",
    "props/test_matching.py": "random matches against a model",
    "provider/test_connections.py": "C programs that connect, and end at any instant",
    "provider/test_doctor_for.py": "the doctor examines C programs and MPI libraries",
    "provider/test_hosts.py": "C programs on two hosts",
    "provider/test_mpi.py": "jobs of several ranks, of three MPI libraries",
    "provider/test_mpi_hosts.py": "jobs of several ranks on two hosts",
    "provider/test_mpi_suites.py": "mpi4py's own tests, and Intel's benchmarks",
    "provider/test_nixl.py": "two NIXL agents",
    "provider/test_users.py": "C programs of two users, and of a container",
    "provider/test_watched.py": "C programs in the views of weft top",
    "share/test_elements_turns.py": "block updates beside atomic updates, in several processes",
    "share/test_keep.py": "keepers are started, stopped and killed",
    "share/test_kept_again.py": "kept objects outlive their makers",
    "testing/test_plugin.py": "pytest in pytest",
    "tools/test_fabtest.py": "benchmarks of fabtests",
    "tools/test_ofi.py": "the measuring commands over a real libfabric",
    "tools/test_perf.py": "measures every operation on every path",
    "tools/test_perf_hosts.py": "measures between two hosts",
    "tools/test_perf_messages.py": "measures messages on every path",
    "tools/test_perf_server.py": "measures against a server",
    "tools/test_pingpong.py": "ping-pongs of each size and kind",
}

# file -> (what begins the name of each of these tests, what its case matches, why)
CASES = {
    "cxi/test_message_offload.py": [
        ("test_counter_of_", r"(True-192|False-2047|False-8)\b", "every length on every path")
    ],
    "fi/test_atomic.py": [
        ("test_atomic_", r"ofi:tcp-(?!\w+-INT32)", "every datatype over a real tcp; over a real shm they stay"),
        ("test_datatypes_and_operations_have_their_names", r"ofi:(?!\w+-(INT8|DOUBLE)\b)", "every datatype's name"),
    ],
    "fi/test_exports.py": [("test_exports_type_checker", "", "a type checker reads the package")],
    "fi/test_mr.py": [("test_mr_hundred_thousand", "ofi:", "a real library's regions, one by one")],
    "memory/test_device_monitors.py": [("test_monitor_of_device_memory_notices", "ZE", "both kinds of device")],
    "memory/test_rocr.py": [("test_rocr_memory_is_reached", r"0-1|1-0|-1", "every device from every device")],
    "meta/test_conformance.py": [("test_parallel_run_writes", "", "a run of its own in processes")],
    "meta/test_light_import.py": [("test_missing_package_of_an_extra", "^rich", "the doctor's command without rich")],
    "meta/test_patience.py": [("test_tests_wait_with", "", "reads all tests")],
    "meta/test_readme.py": [("test_readme_shows_the_real_output", "", "runs what README shows")],
    "meta/test_types.py": [("test_type_checker_", "pyright", "a second type checker")],
    "procs/test_connect.py": [("test_connect_", r"manual", "without an engine too")],
    "procs/test_exit.py": [("test_teardown_in_any_order", "manual", "without an engine too")],
    "procs/test_two_processes.py": [
        (
            "test_two_endpoints",
            r"(strict-thread|foreign|self|manual)\S*-messages_of_every_length",
            "every length on every path",
        )
    ],
    "provider/test_collective.py": [
        ("test_every_collective", r"^system-\w+-[24]|-3$", "each number of members, of each libfabric"),
        ("test_programs_of_both_languages", r"^system-|-cpcp|-pc$", "each order of the members"),
    ],
    "provider/test_programs.py": [
        ("test_calls_of_a_table", r"^system-\w+-(atomic|alias|tagged)", "each kind of call, of each provider")
    ],
    "share/test_node.py": [("test_killed_owner_that_has_much_to_close", "", "gigabytes are closed")],
    "tools/test_perf_ends.py": [("test_perf_interrupt_ends", "", "measures until it is interrupted")],
}


def case_is_long(file: str, name: str) -> bool:
    """Of a test's file below tests/, and its name with its case in brackets."""
    test, _, case = name.partition("[")
    return any(test.startswith(begin) and re.search(of, case) for begin, of, _ in CASES.get(file, ()))
