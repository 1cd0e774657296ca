"""A domain that the library does not give back: tcp with rxm of libfabric 1.17, after messages that did not end."""

from __future__ import annotations

from tests.ofi.support import run_program

PROGRAM = """
import gc
import numpy as np
from tests.ofi.support import open_node, offer
from weft import fi

receiver, passing = open_node(offer("ofi:tcp")), open_node(offer("ofi:tcp"))
to = passing.to(receiver)
for data in (np.zeros(8, np.uint8), np.zeros(20_000, np.uint8)):
    while True:
        try:
            passing.ep.tsend(data, dest_addr=to, tag=7)  # nobody receives it
            break
        except fi.Again:
            receiver.cq.read(), passing.cq.read()
for one in (passing.ep, passing.cq, passing.av):
    one.close()
for _ in range(2):
    try:
        passing.domain.close()
        print("closed")
    except fi.Busy as reason:
        assert "try: read the completions of all messages before ep.close()" in str(reason), reason
        print("busy")
del passing
gc.collect()
receiver.close()
print("end")
"""


def test_domain_that_the_library_keeps_is_left_to_it() -> None:
    """A second fi_close of the domain, also at its collection, would end the process."""
    done = run_program(PROGRAM)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "end"
