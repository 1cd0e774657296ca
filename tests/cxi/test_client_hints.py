"""What C programs ask of getinfo, as captured from them (policyhost/captured.py): each set gets an offer."""

from __future__ import annotations

import pytest

from weft import fi
from weft.policyhost.captured import CLIENTS, FOLDER, calls

PROGRAMS = sorted(path.stem for path in FOLDER.glob("*.txt"))


@pytest.mark.parametrize("program", PROGRAMS)
def test_hints_of_a_c_program_get_an_offer(program: str) -> None:
    asked = list(calls(program))
    assert asked
    format_of_cxi = next(one.addr_format for one in fi.getinfo() if one.fabric_attr.prov_name == "cxi")
    for provider, version, hints in asked:
        if hints is None:
            assert provider in {one.fabric_attr.prov_name for one in fi.getinfo(version)}
            continue
        if hints.addr_format:  # the format that the previous call returned
            hints.addr_format = format_of_cxi if provider == "cxi" else fi.ADDR_STR
        found = fi.getinfo(version, hints=hints)
        # libfabric asks every provider, not only the provider whose domain the hints name.
        of_provider = "cxi" if hints.domain_attr.name == "cxi0" else provider
        mine = [one for one in found if one.fabric_attr.prov_name == of_provider]
        assert mine, f"{program}: {provider} {hints}"
        for one in mine:
            assert one.caps & hints.caps == hints.caps
            # MPICH ends where one of these differs from its hints.
            for field in ("threading", "control_progress", "data_progress"):
                wish = getattr(hints.domain_attr, field)
                assert getattr(one.domain_attr, field) == wish or not wish


def test_hints_of_every_program_are_read() -> None:
    """A reader that finds nothing would show nothing."""
    count = {program: len(list(calls(program))) for program in PROGRAMS}
    assert count == {
        "fi_pingpong": 1,
        "impi-cxi": 3,
        "impi-weft": 3,
        "mpich-cxi": 2,
        "mpich-weft": 2,
        "nixl-1.4.1": 5,
        "ompi-btl": 4,
        "ompi-mtl": 2,
    }
    assert sorted(file for client in CLIENTS.values() for file in client.files) == PROGRAMS
    (_, mpich) = calls("mpich-weft")
    assert mpich.hints is not None
    assert mpich.version == fi.VERSION(2, 5)
    assert mpich.hints.ep_attr.mem_tag_format == 0xC000007FFFFFFF
    assert mpich.hints.domain_attr.threading == fi.THREAD_DOMAIN
