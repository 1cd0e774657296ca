"""Test files with the mark `long`: `make test` leaves them out, to end in ten minutes; `make test-all` runs them.

Here are files of which each takes more than about ten seconds, and beside which a shorter file shows the usual way.
`make test` prints the slowest tests: a file that grows is split, or comes here.
"""

from __future__ import annotations

LONG = {
    "fm/test_kill.py": "managers are killed and started again",
    "fuzz/test_deaf_peers.py": "fifty peers that never read",
    "interop/test_attach_all.py": "jobs of several ranks",
    "interop/test_dask_attacked.py": "clusters whose workers are killed",
    "interop/test_dask_cluster.py": "clusters",
    "interop/test_kill.py": "ranks are killed at any instant",
    "interop/test_refusals.py": "jobs of ranks that lie",
    "memory/test_hmem_procs.py": "every kind of device memory, between processes",
    "meta/test_docs.py": "runs every block of the documentation",
    "ofi/test_exit.py": "processes that end in each state of a real libfabric",
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
    "provider/test_mpi.py": "jobs of several ranks, of three MPI libraries",
    "provider/test_mpi_suites.py": "mpi4py's own tests, and Intel's benchmarks",
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
