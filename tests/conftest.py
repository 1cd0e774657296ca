"""What every test has: the clause plugin, one seed a session, Hypothesis without deadlines.

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
from types import FrameType
from typing import Any, NoReturn

import hypothesis
import pytest
from tests.patience import Patience

pytest_plugins = ["tests.conformance.plugin", "pytester"]

# Machines that run tests stall for tens of milliseconds at will: no test asserts a duration, Hypothesis neither.
hypothesis.settings.register_profile(
    "weft", deadline=None, print_blob=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("weft")

SEED = int(os.environ.get("WEFT_SEED") or random.SystemRandom().randrange(2**32))


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """No test sees the CXI devices of whoever runs it: the processes of a run have a registry of their own."""
    folder = tempfile.mkdtemp(prefix="weft-tests-")
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    os.environ["WEFT_CXI_REGISTRY"] = os.path.join(folder, "cxi")
    if os.environ.get("WEFT_SANITIZED"):
        os.fork = _no_fork


def _no_fork() -> NoReturn:
    """Skip a test that forks under a sanitizer, whose allocator does not take its locks before a fork.

    A child made while another thread allocates inherits a lock that nobody releases, and waits for ever.
    """
    pytest.skip("a sanitizer's allocator does not survive a fork beside other threads")


def pytest_addoption(parser: pytest.Parser) -> None:
    """The tests of weft.fi run on the general provider, or on a strange one (tests/fi/strange.py)."""
    parser.addoption("--provider", choices=["general", "strange"], default="general", help="provider of tests/fi")


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_timeout_set_timer(item: Any, settings: Any) -> bool | None:
    """pytest-timeout's limit of a test, as patience: it stretches while others want the processors."""
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


def pytest_collection_finish() -> None:
    """Takes the tests themselves out of what a test's gc.collect() looks at: thousands of objects that stay."""
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
    """Random numbers of this test alone, from the session's seed and the test's name: whatever ran before."""
    return random.Random(f"{SEED}:{request.node.nodeid}")


@pytest.fixture
def kill_rounds() -> int:
    """How often a `kill` test kills: 30, or WEFT_KILL_ROUNDS (`make kill-test` sets 300)."""
    return int(os.environ.get("WEFT_KILL_ROUNDS") or 30)
