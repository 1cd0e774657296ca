"""`weft fabtest`: benchmarks of libfabric's fabtests, RMA and messages, started as fi_cxi(7) "FABTESTS" does.

    weft fabtest rma_bw -B 10 -s cxi0           the server: its PID and its device
    weft device get cxi0 nic_addr               the address that the client needs
    weft fabtest rma_bw -P 10 0x840             the client: the server's PID, then its NIC address

    weft fabtest rma_bw -p ofi:tcp -s ADDRESS   the server over a real libfabric: its own address, and -B PORT
    weft fabtest rma_bw -p ofi:tcp ADDRESS      the client; -P PORT. Of ofi:shm it is the name that the server prints.

`_fabtest.py` has the two sides.
"""

from __future__ import annotations

import ipaddress

from ._text import UsageError, parse_sizes

TESTS = ("rma_bw", "rma_pingpong", "rdm_bw", "rdm_pingpong", "rdm_tagged_bw", "rdm_tagged_pingpong", "bw")
SIZES = "64,256,1K,4K,64K,1M"


def _refuse_ip(provider: str, peer: str | None) -> None:
    try:
        ipaddress.ip_address(peer or "")
    except ValueError:
        return
    raise UsageError(
        f"fabtest: {peer} is an IP address, and addresses of {provider} are not\n"
        '  rule: fabtests that need IP addressing are not supported, fi_cxi(7) "FABTESTS"\n'
        "  try: -P PID, and the server's NIC address: `weft device get cxi0 nic_addr` there"
    )


def _short(size: int) -> str:
    """4096 as "4k", as fabtests writes it."""
    for unit, letter in ((1 << 30, "g"), (1 << 20, "m"), (1 << 10, "k")):
        if size >= unit and size % unit == 0:
            return f"{size // unit}{letter}"
    return str(size)


def fabtest(
    test: str,
    address: str | None,
    *,
    provider: str | None = None,
    interface: str | None = None,
    source_pid: str | None = None,
    dest_pid: str | None = None,
    sizes: str = SIZES,
    count: int = 1000,
    op: str = "write",
    check: bool = False,
    oob: bool = False,
) -> int:
    """One side of a benchmark: the server without an address, the client with one. Raises UsageError."""
    if test.startswith("multinode"):
        raise UsageError('fabtest: multinode tests are not supported, fi_cxi(7) "FABTESTS"\n  try: `weft launch`')
    if test not in TESTS:
        raise UsageError(f"fabtest: no test {test!r}\n  known: {', '.join(TESTS)}")
    if oob:
        raise UsageError(
            "fabtest: -b, -E: the two sides agree by the fabric alone\n"
            '  rule: tests that use IP sockets are not supported, fi_cxi(7) "FABTESTS"'
        )
    if op not in ("write", "read"):
        raise UsageError(f"fabtest: -o {op}: write or read")
    from . import _fabtest, _real

    provider = provider or _fabtest.DEFAULT_PROVIDER
    if not _real.is_real(provider):
        _refuse_ip(provider, address)
    wanted = parse_sizes(sizes)
    info = _fabtest.info_of(provider, interface, source_pid, address, dest_pid)
    if address is None:
        _fabtest.serve(info, max(wanted), lambda text: print(text, flush=True))
        return 0
    print(f"{'bytes':<8}{'iters':<8}{'total':<8}{'time':>10}{'MB/sec':>12}{'usec/xfer':>12}{'Mxfers/sec':>12}")
    ways = 2 if test.endswith("pingpong") else 1
    for size, spent in _fabtest.run(info, test, op, wanted, count, check):
        total, each = size * count * ways, spent / (count * ways)
        print(
            f"{_short(size):<8}{count:<8}{_short(total):<8}{spent:>9.2f}s{total / spent / 1e6:>12.2f}"
            f"{each * 1e6:>12.2f}{1 / each / 1e6:>12.2f}",
            flush=True,
        )
    return 0
