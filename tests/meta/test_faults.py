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


def test_fault_in_cpp_names_files_and_cases_of_boost() -> None:
    case = "tests/cpp/test_match.cpp::match/test_tagged_and_untagged_never_match"
    good = Fault("x", "cpp/nic/match.cpp", "constexpr uint64_t kCheapSearch = 32;", "", (case,))
    assert good.compiled
    for tests, words in [
        ((case,), ""),
        (("tests/cpp/test_match.cpp",), ""),
        (("tests/cpp/test_match.cpp::match/test_none",), "no test"),
        (("tests/cpp/test_none.cpp",), "no test"),
        (("tests/meta/test_faults.py",), "another language"),
    ]:
        found = dataclasses.replace(good, tests=tests).trouble()
        assert words in found
        assert bool(words) == bool(found)


def test_fault_in_the_library_of_c_programs_may_name_their_tests() -> None:
    good = Fault(
        "x", "cpp/provider/network.cpp", "constexpr uint16_t kDefaultVni = 1;", "", ("tests/provider/test_hosts.py",)
    )
    assert good.of_c_programs
    assert good.trouble() == ""
    assert "another language" in dataclasses.replace(good, tests=("tests/meta/test_faults.py",)).trouble()
    both = (*good.tests, "tests/cpp/test_match.cpp")
    assert "another language" in dataclasses.replace(good, tests=both).trouble()
