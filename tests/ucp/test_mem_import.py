"""Imported handles of memory that the importer does not map: the bytes pass through the owner."""

from __future__ import annotations

import select
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.procs.children import ROOT, environment
from tests.ucp.support import (
    INVALID_PARAM,
    IO_ERROR,
    NO_IMM,
    OK,
    PAGE,
    UNSUPPORTED,
    WATCHDOG_S,
    Rig,
    array,
    ended,
    refused,
)

from weft import ucp

EXPORT = int(ucp.MEMH_PACK_FLAG_EXPORT)
IOV = ucp.DATATYPE_IOV
RIGHTS = {"all": 0x303, "read": 0x101}

_OWNER = """
import sys
from weft import ucp
context = ucp.Context()
worker = context.worker_create()
memh = context.mem_map(bytearray(b"exported" + bytes(992)), prot=int(sys.argv[1]))
print(worker.address.hex(), memh.pack().hex(), memh.pack(flags=ucp.MEMH_PACK_FLAG_EXPORT).hex(), flush=True)
for line in sys.stdin:
    memh.unmap()
    print("unmapped", flush=True)
"""


class Owner:
    """A process that registered 1,000 bytes, "exported" and zeros, and exported them."""

    def __init__(self, prot: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _OWNER, str(prot)],
            cwd=ROOT, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self.address, self.key, self.exported = (bytes.fromhex(text) for text in self._line().split())

    def _line(self) -> str:
        out = self._process.stdout
        assert out is not None
        assert select.select([out], [], [], WATCHDOG_S)[0], "the owner says nothing"
        return out.readline().decode()

    def unmap(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"unmap\n")
        self._process.stdin.flush()
        assert self._line() == "unmapped\n"

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def look(self, rig: Rig, at: int, count: int) -> bytes:
        """Bytes of the owner's memory, by an ordinary key."""
        with rig.worker.ep_create(self.address) as ep, ep.rkey_unpack(self.key) as rkey:
            back = bytearray(count)
            ep.get_nbx(back, rkey.address + at, rkey).wait(WATCHDOG_S)
            return bytes(back)


@pytest.fixture
def owner(request: pytest.FixtureRequest) -> Iterator[Owner]:
    found = Owner(RIGHTS[getattr(request, "param", "all")])
    try:
        yield found
    finally:
        found.kill()


@pytest.mark.procs
@pytest.mark.clause("ucp.enum.export", "ucp.map.exported-peer")
def test_imported_registered_memory_is_a_buffer_of_operations(rig: Rig, owner: Owner) -> None:
    with rig.map(exported_memh_buffer=owner.exported) as theirs, rig.alloc() as target, rig.key(target) as rkey:
        at = theirs.address
        assert theirs.length == 1000
        assert rig.put((at, 8), target.address, rkey, memh=theirs) is OK
        assert bytes(target.memory[:8]) == b"exported"
        target.memory[:4] = b"back"
        assert ended(rig.ep.get_nbx((at + 100, 4), target.address, rkey, memh=theirs)) is OK
        assert owner.look(rig, 96, 12) == bytes(4) + b"back" + bytes(4)
        calls: list[int] = []
        request = rig.ep.get_nbx(
            (at + 200, 4), target.address, rkey, memh=theirs, flags=NO_IMM, cb=lambda *a: calls.append(a[1])
        )
        assert request.status is ucp.Status.INPROGRESS
        assert ended(request) is OK
        assert calls == [OK]
        assert owner.look(rig, 196, 12) == bytes(4) + b"back" + bytes(4)


@pytest.mark.procs
@pytest.mark.parametrize("pieces", [2, 20])
def test_imported_memory_owner_serves_lists_and_atomics(rig: Rig, owner: Owner, pieces: int) -> None:
    with rig.map(exported_memh_buffer=owner.exported) as theirs, rig.alloc() as target, rig.key(target) as rkey:
        at = theirs.address
        parts = [(at + n % 8, 1) for n in range(pieces)]
        sent = bytes(b"exported"[n % 8] for n in range(pieces))
        assert rig.put(parts, target.address, rkey, memh=theirs, datatype=IOV) is OK
        assert bytes(target.memory[:pieces]) == sent
        into = [(at + 500 + n, 1) for n in reversed(range(pieces))]
        assert ended(rig.ep.get_nbx(into, target.address, rkey, memh=theirs, datatype=IOV)) is OK
        assert owner.look(rig, 500, pieces) == sent[::-1]
        rig.ep.atomic_op_nbx(ucp.ATOMIC_OP_ADD, (at, 8), target.address + 64, rkey, memh=theirs)
        rig.flush()
        assert bytes(target.memory[64:72]) == b"exported"


@pytest.mark.procs
def test_imported_memory_that_is_not_mapped_has_no_bytes(rig: Rig, owner: Owner) -> None:
    with rig.map(exported_memh_buffer=owner.exported) as theirs:
        for use in (lambda: theirs.memory, theirs.array, lambda: theirs[:4]):
            with refused(UNSUPPORTED, "not mapped here"):
                use()
        with refused(UNSUPPORTED, "imported"):
            theirs.pack()
        with refused(UNSUPPORTED, "belongs to another process"):
            theirs.pack(flags=EXPORT)


@pytest.mark.procs
@pytest.mark.parametrize("owner", ["read"], indirect=True)
def test_imported_unmapped_memory_keeps_rights_and_bounds(rig: Rig, owner: Owner) -> None:
    with rig.map(exported_memh_buffer=owner.exported) as theirs, rig.alloc() as target, rig.key(target) as rkey:
        assert theirs.prot == ucp.MEM_MAP_PROT_LOCAL_READ
        assert rig.put((theirs.address, 8), target.address, rkey, memh=theirs) is OK
        with refused(INVALID_PARAM, "LOCAL_WRITE"):
            rig.ep.get_nbx((theirs.address, 4), target.address, rkey, memh=theirs)
        with refused(INVALID_PARAM, "does not lie in"):
            rig.ep.put_nbx((theirs.address + 996, 5), target.address, rkey, memh=theirs)


@pytest.mark.procs
def test_use_of_an_import_after_its_owner_unmapped_is_an_error(rig: Rig, owner: Owner) -> None:
    """The put raises in its call; the get reports by its request, if it has one."""
    with rig.map(exported_memh_buffer=owner.exported) as theirs, rig.alloc() as target, rig.key(target) as rkey:
        owner.unmap()
        with refused(IO_ERROR):
            rig.ep.put_nbx((theirs.address, 4), target.address, rkey, memh=theirs)
        assert not any(target.memory)
        request = rig.ep.get_nbx((theirs.address, 4), target.address, rkey, memh=theirs, flags=NO_IMM)
        assert ended(request) is IO_ERROR
        with refused(IO_ERROR):
            rig.ep.get_nbx((theirs.address, 4), target.address, rkey, memh=theirs).wait(WATCHDOG_S)


@pytest.mark.procs
def test_use_of_an_import_after_its_owner_died_is_an_error(rig: Rig, owner: Owner) -> None:
    with rig.map(exported_memh_buffer=owner.exported) as theirs, rig.alloc() as target, rig.key(target) as rkey:
        owner.kill()
        for _ in range(2):
            with refused(ucp.Status.ERR_CONNECTION_RESET):
                rig.ep.put_nbx((theirs.address, 4), target.address, rkey, memh=theirs)
            request = rig.ep.get_nbx((theirs.address, 4), target.address, rkey, memh=theirs, flags=NO_IMM)
            assert ended(request) is ucp.Status.ERR_CONNECTION_RESET
        assert rig.ep.status is OK  # of the third, nothing failed


@pytest.mark.parametrize("kind", ["allocated", "registered", "imported"])
def test_handle_of_another_context_is_no_memh(rig: Rig, other: Rig, kind: str) -> None:
    memh = own = rig.map(array(PAGE)) if kind == "registered" else rig.alloc()
    if kind == "imported":
        memh = rig.map(exported_memh_buffer=own.pack(flags=EXPORT))
    with other.alloc() as target, other.key(target) as rkey:
        for method in (other.ep.put_nbx, other.ep.get_nbx):
            with refused(INVALID_PARAM, "mapped by another context"):
                method((memh.address, 4), target.address, rkey, memh=memh)
        with refused(INVALID_PARAM, "mapped by another context"):
            other.ep.atomic_op_nbx(ucp.ATOMIC_OP_ADD, (memh.address, 8), target.address, rkey, memh=memh)
        with refused(INVALID_PARAM, "mapped by another context"):
            other.ep.put_nbx([(memh.address, 4)], target.address, rkey, memh=memh, datatype=IOV)
        assert not any(target.memory)
