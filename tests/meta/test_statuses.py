"""Each status with which the NIC ends an operation has a text: prov_errno of an error entry is that number."""

from __future__ import annotations

from weft import _nic
from weft.providers.general import PROV_ERRORS


def test_every_status_has_a_text_of_its_own() -> None:
    assert sorted(PROV_ERRORS) == sorted(map(int, _nic.Status))
    texts = [*PROV_ERRORS.values()]
    assert all(texts)
    assert len(set(texts)) == len(texts)
    assert PROV_ERRORS[int(_nic.Status.stale_key)] == "the key is stale: its region was closed"
