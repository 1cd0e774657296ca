"""What goes wrong around processes that use the CXI provider: their registry, their services, forks, other users."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tests import patience
from tests.cxi.support import opened, register
from tests.fi.support import Node
from tests.patience import Patience

from weft import cxi, errors, fi
from weft.providers.cxi import device, registry, resources, service, telemetry
from weft.providers.cxi import registry as registry_module

ROOT = os.geteuid() == 0
NOBODY = 65534


def works(node: Node) -> None:
    """Everything that a program does with an open endpoint."""
    memory = np.zeros(64, np.uint8)
    mr = register(node, memory, 60)
    node.ep.write(b"12345678", dest_addr=node.me, addr=0, key=60)
    node.wait()
    assert bytes(memory[:8]) == b"12345678"
    node.extra.remove(mr)
    mr.close()


def in_child(run: Callable[[], object]) -> int:
    """Run in a forked process; its exit status, 0 where nothing was raised."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            run()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    patience = Patience(60)
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if patience.over:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise AssertionError("the forked process hangs")
        signal.sigtimedwait([signal.SIGCHLD], 0.05)


# ---- services and devices under use ----------------------------------------------------------------------------------


def test_service_that_is_disabled_goes_on_for_who_uses_it_and_for_nobody_else() -> None:
    made = service.create(vnis=[77])
    key = cxi.AuthKey(made.id, 77)
    with opened(auth_key=key) as node:
        info = fi.dupinfo(node.info)
        service.enable("cxi0", made.id, False)
        works(node)
        with node.domain.endpoint(node.info) as ep:
            ep.bind(node.cq, fi.TRANSMIT | fi.RECV)
            ep.bind(node.av)
            ep.enable()
        with pytest.raises(fi.InvalidArgument, match="disabled"):
            node.fabric.domain(info)
        service.enable("cxi0", made.id, True)
        node.fabric.domain(info).close()


def test_service_and_device_in_use_cannot_be_taken_away() -> None:
    made = service.create(vnis=[77])
    with opened(auth_key=cxi.AuthKey(made.id, 77)) as node:
        with pytest.raises(errors.Busy, match=f"process {os.getpid()}"):
            service.destroy("cxi0", made.id)
        with pytest.raises(errors.Busy, match=f"process {os.getpid()}"):
            device.remove("cxi0")
        works(node)
    service.destroy("cxi0", made.id)


# ---- the registry's folder -------------------------------------------------------------------------------------------


def test_folder_that_is_removed_under_use_is_made_anew_and_its_users_go_on(registry: Path) -> None:
    with opened() as node:
        shutil.rmtree(registry)
        works(node)
    with opened() as node:
        works(node)
    assert (registry / "registry.json").exists()


@pytest.mark.parametrize(
    "text", ["", "{", "null", "[]", '{"weft": "cxi registry", "format": 1}', "\0" * 4096, "[" * 100_000]
)
def test_file_that_is_damaged_is_refused_and_its_users_go_on(registry: Path, text: str) -> None:
    file = "registry.json"
    with opened() as node:
        whole = (registry / file).read_text()
        (registry / file).write_text(text)
        info = fi.dupinfo(node.info)
        with pytest.raises(fi.FabricError, match=file) as refused:
            open_again(node, info)
        assert "try:" in str(refused.value)
        works_without_files(node)
        (registry / file).write_text(whole)
        works(node)


def turn_the_link() -> None:
    """A change of the registry, which writes it anew."""
    with registry_module.here().change() as record:
        record["devices"][0]["up"] = not record["devices"][0]["up"]


@pytest.mark.parametrize(
    "file", ["registry.json", "use/cxi0.ledger", "registry.json.new", "lock"], ids=lambda file: file.replace("/", "-")
)
def test_fifo_in_place_of_a_file_is_refused_and_does_not_hang(registry: Path, file: str) -> None:
    """A plain open() of a FIFO waits for a writer, for ever."""
    with opened() as node:
        info = fi.dupinfo(node.info)
    place = registry / file
    place.unlink(missing_ok=True)
    os.mkfifo(place, 0o600)
    use = turn_the_link if file.endswith((".new", "lock")) else lambda: fi.Fabric(info.fabric_attr).domain(info)
    with pytest.raises(fi.FabricError, match="no regular file") as refused:
        use()
    assert "try: rm " in str(refused.value)


@pytest.mark.parametrize("text", ["{", "null", "[" * 4096, "\0" * 1_000_000])
def test_ledger_that_is_replaced_by_another_file_is_refused_and_its_users_go_on(registry: Path, text: str) -> None:
    file = registry / "use" / "cxi0.ledger"
    with opened() as node:
        file.rename(file.with_suffix(".kept"))
        file.write_text(text)
        info = fi.dupinfo(node.info)
        with pytest.raises(fi.FabricError, match=r"use/cxi0\.ledger") as refused:
            resources.users("cxi0")
        assert "try:" in str(refused.value)
        works(node)
        file.with_suffix(".kept").rename(file)
        open_again(node, info)


def open_again(node: Node, info: fi.Info) -> None:
    """Every reader of the registry: another domain, another share of the device."""
    resources.users("cxi0")
    node.fabric.domain(info).close()


def works_without_files(node: Node) -> None:
    memory = np.zeros(8, np.uint8)
    node.ep.write(memory, dest_addr=node.me, addr=0, key=200)  # no such region
    with pytest.raises(fi.FabricError):
        node.cq.sread(1, timeout=10)
    node.cq.readerr()


@pytest.mark.skipif(not ROOT, reason="needs root: to be another user")
def test_folder_that_is_read_only_is_refused_with_its_name(registry: Path) -> None:
    """Root may write everywhere: another user tries, on a folder of its own."""
    home = registry.parent / "home"
    home.mkdir()
    for path in (home, *home.parents):
        if path == Path("/tmp"):
            break
        os.chmod(path, 0o711)
    os.chown(home, NOBODY, NOBODY)

    def as_nobody() -> None:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        os.environ["WEFT_CXI_REGISTRY"] = str(home / "cxi")
        with opened() as node:
            works(node)
        os.chmod(home / "cxi", 0o500)
        with pytest.raises(errors.AccessDenied, match=str(home / "cxi")):
            device.add("cxi1")
        os.chmod(home / "cxi", 0o700)
        device.add("cxi1")

    assert in_child(as_nobody) == 0


@pytest.fixture
def small_disk(registry: Path) -> Iterator[Path]:
    registry.mkdir()
    os.chmod(registry, 0o700)
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k,mode=0700", "none", registry], capture_output=True)
    if made.returncode:
        pytest.skip("no file system can be mounted here")
    yield registry
    subprocess.run(["umount", "-l", registry], check=True)


@pytest.mark.skipif(not ROOT, reason="needs root: to mount a file system")
def test_full_disk_is_an_error_that_says_so_and_leaves_the_registry_whole(small_disk: Path) -> None:
    device.add("cxi1")
    before = device.devices()
    (small_disk / "fill").write_bytes(b"")
    with open(small_disk / "fill", "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(512))
    for change in (lambda: device.add("cxi2"), lambda: service.create(vnis=[5])):
        with pytest.raises(errors.NoSpace, match=f"{small_disk}.*No space left"):
            change()
    assert device.devices() == before
    assert in_child(uses_a_full_disk) == 0
    (small_disk / "fill").unlink()
    device.add("cxi2")
    with opened() as node:
        works(node)


def uses_a_full_disk() -> None:
    """Opening a domain is refused, or works; it neither crashes nor hangs."""
    try:
        with opened() as node:
            works(node)
    except errors.NoSpace:
        return


# ---- users -----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not ROOT, reason="needs root: to be another user")
def test_registry_of_another_user_is_refused(registry: Path) -> None:
    """Also where the folders above let others through."""
    with opened():
        pass
    for path in (registry, *registry.parents):
        if path == Path("/tmp"):
            break
        os.chmod(path, 0o711 if path != registry else 0o700)

    def as_nobody() -> None:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        hints = fi.Info(fabric_attr=fi.FabricAttr(prov_name="cxi"))
        for call in (device.devices, lambda: fi.getinfo(hints=hints), lambda: service.create(vnis=[5])):
            with pytest.raises(errors.FabricError, match="try:"):
                call()

    assert in_child(as_nobody) == 0


@pytest.mark.skipif(not ROOT, reason="needs root: to be another user")
def test_two_users_have_pids_of_their_own(registry: Path) -> None:
    """Each has a registry, and so a fabric: the same address is free for both, and they do not reach each other."""
    home = registry.parent / "theirs"
    home.mkdir()
    for path in (home, *home.parents):
        if path == Path("/tmp"):
            break
        os.chmod(path, 0o711)
    os.chown(home, NOBODY, NOBODY)
    info = fi.getinfo(node="cxi0", service="17", flags=fi.SOURCE, hints=hints_of_17())[0]

    def as_nobody() -> None:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        os.environ["WEFT_CXI_REGISTRY"] = str(home / "cxi")
        theirs = fi.getinfo(node="cxi0", service="17", flags=fi.SOURCE, hints=hints_of_17())[0]
        with opened(edit=lambda found: setattr(found, "src_addr", theirs.src_addr)) as node:
            assert node.name.pid == 17
            works(node)

    def put(found: fi.Info) -> None:
        found.src_addr = info.src_addr

    with opened(edit=put) as node:
        assert node.name.pid == 17
        assert in_child(as_nobody) == 0
        works(node)


def hints_of_17() -> fi.Info:
    return fi.Info(
        caps=fi.RMA | fi.ATOMIC,
        domain_attr=fi.DomainAttr(mr_mode=fi.MR_ENDPOINT | fi.MR_ALLOCATED),
        fabric_attr=fi.FabricAttr(prov_name="cxi"),
    )


# ---- fork and exec ---------------------------------------------------------------------------------------------------


def test_forked_child_leaves_its_parents_objects_alone_and_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CXI_FORK_HAZARD", "ignore")  # the child's pages are not of interest here
    made = service.create(limits={"les": 9, "cts": 9, "eqs": 9, "ptes": 20})
    with opened(auth_key=cxi.AuthKey(made.id, 10)) as node:
        counter = node.keep(node.domain.cntr_open())
        mr = register(node, np.zeros(8, np.uint8), 7)
        held = resources.usage("cxi0")

        def child() -> None:
            calls: list[Callable[[], object]] = [
                lambda: node.ep.write(b"12345678", dest_addr=0, addr=0, key=7),
                node.cq.read,
                counter.read,
                node.domain.cq_open,
                node.domain.cntr_open,
                lambda: node.domain.mr_reg(bytearray(8), fi.REMOTE_READ, requested_key=8),
                lambda: node.domain.endpoint(node.info),
                node.ep.getname,
            ]
            for call in calls:
                with pytest.raises(errors.FabricError, match=r"parent|forked"):
                    call()
            for one in (mr, counter, node.ep, node.cq, node.av, node.domain, node.fabric):
                one.close()
            with opened(auth_key=cxi.AuthKey(made.id, 10)) as mine:
                works(mine)

        assert in_child(child) == 0
        assert resources.usage("cxi0") == held
        assert registry_is_whole()
        works(node)


def registry_is_whole() -> bool:
    return [one["name"] for one in registry.here().read().record["devices"]] == ["cxi0"]


def test_program_that_execs_has_given_everything_back() -> None:
    """exec ends the old program's endpoint: its PID is free, and the new program can have it."""
    program = """
import os, sys
from tests.procs.cxi_side import CxiSide
side = CxiSide("cxi0", 33, None)
if len(sys.argv) == 1:
    os.execv(sys.executable, [sys.executable, "-c", sys.orig_argv[2], "again"])
print(side.address.pid)
side.close()
"""
    said = patience.run([sys.executable, "-c", program], timeout=100)
    assert (said.returncode, said.stdout) == (0, "33\n"), said.stderr
    assert resources.users("cxi0") == []


def test_page_of_counters_has_its_place_on_the_disk_before_it_is_stored_to() -> None:
    """A store into a hole of a file on a full disk would kill the process."""
    with opened():
        assert os.stat(telemetry.page("cxi0")).st_blocks * 512 >= telemetry.PAGE_BYTES


def test_telemetry_of_a_damaged_page_is_no_reason_to_refuse_a_domain(registry: Path) -> None:
    with opened():
        pass
    telemetry.page("cxi0").write_bytes(b"short")
    with opened() as node:
        works(node)
