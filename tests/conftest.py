"""Configuration of all tests: the clause plugin, one seed a session, Hypothesis without deadlines.

This file imports nothing of weft at module level: `make lint` runs the import-graph test before anything is compiled.
"""

from __future__ import annotations

import gc
import os
import random
import shutil
import signal
import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import hypothesis
import pytest
from tests.long import LONG, case_is_long
from tests.patience import Patience

pytest_plugins = ["tests.conformance.plugin", "pytester"]

# Machines that run tests stall for tens of milliseconds: neither tests nor Hypothesis assert a duration.
hypothesis.settings.register_profile(
    "weft", deadline=None, print_blob=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("weft")

SEED = int(os.environ.get("WEFT_SEED") or random.SystemRandom().randrange(2**32))


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """The processes of a test run have their own registry of CXI devices, not the user's."""
    folder = tempfile.mkdtemp(prefix="weft-tests-")
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    os.environ["WEFT_CXI_REGISTRY"] = os.path.join(folder, "cxi")
    # getinfo answers the same with and without a libfabric on the machine; tests/ofi names the library that it uses.
    os.environ.setdefault("WEFT_TEST_LIBFABRIC", os.environ.get("WEFT_LIBFABRIC", ""))
    os.environ["WEFT_LIBFABRIC"] = "off"
    # Buffers that each endpoint of a libfabric's tcp;ofi_rxm posts as it opens: at its default, 80 ms of a test there.
    os.environ.setdefault("FI_OFI_RXM_MSG_RX_SIZE", "64")
    os.environ.pop("COLUMNS", None)  # of the terminal, or of a worker's: tables in a pipe would heed it
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a job that a shell started with &
        signal.signal(signal.SIGINT, signal.default_int_handler)  # the programs that tests interrupt inherit it
    if os.environ.get("WEFT_SANITIZED"):
        os.fork = _no_fork


def _no_fork() -> NoReturn:
    """Skip a test that forks under a sanitizer, whose allocator does not take its locks before a fork.

    A child that is forked while another thread allocates inherits a locked lock, and waits for it without end.
    """
    pytest.skip("a sanitizer's allocator does not survive a fork beside other threads")


def pytest_addoption(parser: pytest.Parser) -> None:
    """The tests of weft.fi run on the general provider, and tests of libfabric's semantics on a real libfabric's too
    (tests/fi/real.py); or all on a strange one (tests/fi/strange.py)."""
    names = ["all", "general", "strange", "ofi", "ofi:tcp", "ofi:shm"]
    parser.addoption("--provider", choices=names, default="all", help="provider of tests/fi")


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_timeout_set_timer(item: Any, settings: Any) -> bool | None:
    """pytest-timeout's limit of a test, as Patience: the limit grows while other processes need the processors."""
    if settings.method != "signal" or threading.current_thread() is not threading.main_thread():
        return None
    import pytest_timeout

    patience = Patience(settings.timeout)

    def ring(number: int, frame: FrameType | None) -> None:
        left = patience.left()
        if left > 0:
            signal.setitimer(signal.ITIMER_REAL, max(left, 0.1))
        else:
            pytest_timeout.timeout_sigalrm(item, settings)

    def cancel() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    item.cancel_timeout = cancel
    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, settings.timeout)
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that `make test` leaves out (tests/long.py)."""
    here = Path(__file__).parent
    names: dict[Path, str] = {}
    for item in items:
        name = names.get(item.path)
        if name is None:
            name = names[item.path] = item.path.relative_to(here).as_posix() if here in item.path.parents else ""
        if name in LONG or case_is_long(name, item.name):
            item.add_marker("long")


def pytest_collection_finish() -> None:
    """Freeze the thousands of objects of the tests, so that gc.collect() in a test does not examine them."""
    gc.collect()
    gc.freeze()


def pytest_report_header() -> str:
    return f"weft: seed {SEED} (repeat with WEFT_SEED={SEED})"


@pytest.fixture
def seed() -> int:
    """The session's seed, for tests that pass it to another process."""
    return SEED


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Random numbers from the session's seed and the test's name, independent of earlier tests."""
    return random.Random(f"{SEED}:{request.node.nodeid}")


@pytest.fixture
def kill_rounds() -> int:
    """How often a `kill` test kills: 30, or WEFT_KILL_ROUNDS (`make kill-test` sets 300)."""
    return int(os.environ.get("WEFT_KILL_ROUNDS") or 30)
