"""WEFT_ENGINE=manual and arrays: sharing is refused, attaching works, and a call without an answer times out."""

from __future__ import annotations

import pytest
from tests.procs.children import run
from tests.share.owner import Owner

pytestmark = pytest.mark.procs

# The parent has an engine thread. Its workers read WEFT_ENGINE when they make their own NIC.
WORKERS = """
import multiprocessing, os, sys
import numpy as np
import weft
from tests.share.mp_worker import double

if __name__ == "__main__":
    context = multiprocessing.get_context({method!r})
    answers = context.Queue()
    with weft.open() as node:
        for array in (weft.zeros(3) + 1, np.ones(3)):
            shared = node.share(array)
            os.environ["WEFT_ENGINE"] = "manual"
            worker = context.Process(target=double, args=(shared, answers))
            worker.start()
            print(answers.get()[1:], array.tolist())
            worker.join()
"""


def test_share_with_manual_progress_is_refused() -> None:
    """Peers could not use the array, because the owner would serve them only inside its own calls."""
    found = run(
        "import weft\nnode = weft.open()\ntry:\n    node.share(weft.zeros(3))\nexcept weft.errors.NotSupported as e:\n"
        "    print(e.message)",
        WEFT_ENGINE="manual",
    )
    assert "WEFT_ENGINE=manual" in found.stdout
    assert "try: run the owner without WEFT_ENGINE=manual" in found.stdout
    assert not found.returncode, found.stderr


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_worker_with_manual_progress_uses_a_share(method: str, tmp_path: object) -> None:
    """A process that only attaches makes progress inside its calls, which is enough."""
    script = f"{tmp_path}/workers.py"
    with open(script, "w", encoding="utf-8") as file:
        file.write(WORKERS.format(method=method))
    found = run(f"import runpy, sys\nsys.argv = [{script!r}]\nrunpy.run_path({script!r}, run_name='__main__')")
    assert not found.returncode, found.stderr
    expected = "(3, [3.0, 7.0, 2.0], True) [3.0, 7.0, 2.0]"
    assert found.stdout.splitlines() == [expected, expected], found.stderr


ATTACH = """
import weft
with weft.open() as node:
    try:
        node.attach({ticket!r})
    except weft.errors.TimedOut as e:
        print(e.message)
"""


def test_attach_to_a_stopped_owner_says_that_it_is_stopped() -> None:
    """The NIC's limit ends the operation before the node's limit: the error is explained in this case, too."""
    tcp = {"WEFT_SHM": "0", "WEFT_LISTEN": "tcp://127.0.0.1:0", "WEFT_SECRET": "of the tests, for stopped owners"}
    with Owner("stopped-", WEFT_ENGINE="thread", **tcp) as owner:
        ticket = owner.tell("str(node.share(weft.zeros(3)).ticket)")
        owner.stop()
        try:
            found = run(ATTACH.format(ticket=ticket), WEFT_TCP_TIMEOUT="0.2", **tcp)
        finally:
            owner.go_on()
        assert f"process {owner.pid}, the owner of the array of (3,), did not answer" in found.stdout, found
        assert "it seems that the owner is stopped" in found.stdout
        assert "within" not in found.stdout  # the node's limit, 30 s, is not what ended the call
