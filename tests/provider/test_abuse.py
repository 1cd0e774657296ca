"""C programs at unusual ends: groups closed last, busy, or never; objects closed under deferred work."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.provider import support

FREED = {"MALLOC_PERTURB_": "165"}
"""glibc fills memory that is freed with this byte: its use is seen."""
FAILED = {"cxi": "err -111, prov_errno 2056", "weft": "err 111, prov_errno 104"}
GROUPS = {
    ("late", 2): "join: {failed}, data 6\nclosed\nand the group\n",
    ("late", 4): "join: {failed}, data 6\nclosed\nand the group\n",
    ("many", 3): "24 groups\nclosed\n",
    ("busy", 3): "each call ended\nclosed\n",
    ("forked", 2): "joined\nclosed\n",
    ("leaves", 3): "left\n",
    ("together", 1): "closed\n",
    ("keys", 1): "fi_av_set: Invalid argument\nfi_mr_regattr: Invalid argument\n" * 4 + "closed\n",
}
WORK = {
    "endpoint": "fi_close of the endpoint: no error\ndone 0, memory \n"
    "work of a closed endpoint's counter: no error\nclosed\n",
    "region": "fi_close of the region: no error\ndone 0, errors 1, memory \nclosed\n",
    "trigger": "fi_close of the trigger: no error\nclosed\n",
    "done": "fi_close of the counter of completions: no error\nmemory written\nclosed\n",
    "all": "closed\n",
    "leaves": "left\n",
    "forked": "".join(
        f"in a child, {call}: Operation not permitted in current state\n"
        for call in ("FI_QUEUE_WORK", "FI_FLUSH_WORK", "fi_cntr_add")
    )
    + "done 0, memory \ndone 1, memory written\nclosed\n",
}


@pytest.mark.parametrize(("case", "members"), GROUPS)
def test_groups_end_in_any_order(programs: Path, library: str, provider: str, case: str, members: int) -> None:
    program = support.compiled("collective_abuse", programs)
    env = support.environment(provider, library, **FREED)
    out = support.run(program, provider, str(members), case, env=env).stdout
    assert out == GROUPS[case, members].format(failed=FAILED[provider])


@pytest.mark.parametrize("case", WORK)
def test_objects_of_deferred_work_are_closed_in_any_order(
    programs: Path, library: str, provider: str, case: str
) -> None:
    program = support.compiled("work_abuse", programs)
    env = support.environment(provider, library, **FREED)
    assert support.run(program, provider, case, env=env).stdout == WORK[case]
