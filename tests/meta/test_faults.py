"""The list of seeded faults names texts and tests that exist (`make mutants` runs it)."""

from __future__ import annotations

import dataclasses

from tests.faults.listed import Fault, load


def test_faults_of_the_list_fit_the_sources() -> None:
    rotten = [words for fault in load() if (words := fault.trouble())]
    assert not rotten, "\n".join(rotten)


def test_fault_is_listed_once() -> None:
    seen = [(fault.file, fault.before, fault.after) for fault in load()]
    assert len(set(seen)) == len(seen)


def test_rotten_entry_is_told() -> None:
    here = "tests/meta/test_faults.py::test_rotten_entry_is_told"
    good = Fault("x", "tests/faults/listed.py", "class Fault:", "class Other:", (here,))
    assert good.trouble() == ""
    for change, words in [
        ({"file": "src/weft/none.py"}, "no such file"),
        ({"before": "class Fault :"}, "found 0 times"),
        ({"before": "Fault"}, "times, not once"),
        ({"after": "class Fault:"}, "the text before"),
        ({"tests": ()}, "no tests"),
        ({"tests": (here + "_twice",)}, "no test"),
    ]:
        assert words in dataclasses.replace(good, **change).trouble()
