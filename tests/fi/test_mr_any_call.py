"""The flags of fi_mr(3) in all three registration calls."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakes import gpu as fake

from weft import fi
from weft.memory import hmem

ACCESS = int(fi.REMOTE_READ | fi.REMOTE_WRITE)
N = 1 << 14
pytestmark = pytest.mark.general


@pytest.fixture(scope="module")
def gpu() -> fake.Gpu:
    return fake.start()


@pytest.fixture
def domain(gpu: fake.Gpu) -> Iterator[fi.Domain]:
    with opened(fi.RMA | fi.HMEM | fi.RMA_EVENT | fi.RMA_PMEM) as found:
        yield found


@contextlib.contextmanager
def opened(caps: int) -> Iterator[fi.Domain]:
    info = fi.getinfo(hints=fi.Info(caps=caps))[0]
    with fi.Fabric(info.fabric_attr) as fabric, fabric.domain(info) as found:
        yield found


def reg(domain: fi.Domain, memory: Any, flags: int) -> fi.MemoryRegion:
    return domain.mr_reg(memory, ACCESS, requested_key=5, flags=flags)


def regv(domain: fi.Domain, memory: Any, flags: int) -> fi.MemoryRegion:
    return domain.mr_regv([memory], ACCESS, requested_key=5, flags=flags)


def regattr(domain: fi.Domain, memory: Any, flags: int) -> fi.MemoryRegion:
    attr = fi.MrAttr(access=ACCESS, requested_key=5)
    if flags & fi.MR_DMABUF:
        attr.dmabuf = memory
    else:
        attr.mr_iov = [memory]
        attr.iface = fi.HMEM_CUDA if flags & (fi.HMEM_DEVICE_ONLY | fi.HMEM_HOST_ALLOC) else fi.HMEM_SYSTEM
    return domain.mr_regattr(attr, flags)


CALLS = [reg, regv, regattr]
Call = Callable[[fi.Domain, Any, int], fi.MemoryRegion]


@pytest.mark.clause("mr.flags.any-call")
@pytest.mark.parametrize("call", CALLS)
def test_every_flag_of_a_registration_is_accepted_by_each_call(
    domain: fi.Domain, gpu: fake.Gpu, tmp_path: Path, call: Call
) -> None:
    """All but FI_AUTH_KEY: on the domains that have it, every region needs the vector that only mr_regattr takes."""
    file = tmp_path / "pages"
    file.write_bytes(bytes(N))
    device, pinned = gpu.array(N), gpu.array(N, "host")
    fd, offset = hmem.export_dmabuf(device)
    with open(file, "r+b") as opened_file, mmap.mmap(opened_file.fileno(), N) as pages:
        memories: dict[int, Any] = {
            fi.RMA_EVENT: bytearray(N),
            fi.RMA_PMEM: pages,
            fi.MR_SINGLE_USE: bytearray(N),
            fi.HMEM_DEVICE_ONLY: device,
            fi.HMEM_HOST_ALLOC: pinned,
            fi.MR_DMABUF: fi.MrDmabuf(fd=fd, offset=offset, len=N),
        }
        for flag, memory in memories.items():
            with call(domain, memory, int(flag)) as mr:
                assert mr.key == 5, flag
    os.close(fd)


@pytest.mark.parametrize("call", CALLS)
def test_flags_that_the_memory_contradicts_are_refused_by_each_call(domain: fi.Domain, call: Call) -> None:
    for flag in (fi.HMEM_DEVICE_ONLY, fi.MR_DMABUF):
        with pytest.raises(fi.InvalidArgument):
            call(domain, bytearray(64), int(flag))


@pytest.mark.parametrize("call", CALLS)
def test_flags_of_device_memory_need_a_domain_with_hmem(call: Call) -> None:
    with opened(int(fi.RMA)) as domain, pytest.raises(fi.BadFlags):
        call(domain, bytearray(64), int(fi.HMEM_DEVICE_ONLY))
