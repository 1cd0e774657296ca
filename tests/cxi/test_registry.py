"""The registry of devices and services: made on first use, private, replaced whole, and clear about its refusals."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.procs import children

from weft import errors
from weft.providers.cxi import device, fabrics, registry, service


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("WEFT_CXI_REGISTRY", str(tmp_path / "cxi"))
    return tmp_path / "cxi"


def rewrite(folder: Path, **values: Any) -> None:
    file = folder / "registry.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


# ---- first use -------------------------------------------------------------------------------------------------------


@pytest.mark.clause("cxi.auth.default-service")
def test_first_use_makes_one_device_with_an_open_service(folder: Path) -> None:
    (found,) = device.devices()
    assert (found.name, found.up) == ("cxi0", True)
    (default,) = service.services("cxi0")
    assert (default.id, default.enabled, default.members, default.vnis, default.tclasses) == (1, True, (), None, None)
    assert json.loads((folder / "registry.json").read_text())["devices"][0]["name"] == "cxi0"


def test_folder_and_files_are_this_user_s_alone(folder: Path) -> None:
    device.devices()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir() if file.is_file()} == {0o600}


def test_default_folder_is_in_the_runtime_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("WEFT_CXI_REGISTRY", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert registry.folder() == tmp_path / "weft" / "cxi"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert registry.folder() == tmp_path / f"weft-{os.geteuid()}" / "cxi"
    assert device.by_name("cxi0") is not None


def test_many_processes_make_one_registry(folder: Path) -> None:
    running = [children.Child() for _ in range(3)]
    try:
        calls = [child.start(first_fabric, str(folder)) for child in running]
        assert len({call.result() for call in calls}) == 1
    finally:
        for child in running:
            child.destroy()


def first_fabric(world: object, folder: str) -> int:
    os.environ["WEFT_CXI_REGISTRY"] = folder
    return device.devices()[0].fabric


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_relative_folder_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CXI_REGISTRY", "somewhere")
    with pytest.raises(errors.InvalidArgument, match="no absolute path"):
        device.devices()


def test_folder_that_others_can_read_is_refused(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    with pytest.raises(errors.AccessDenied, match=f"chmod 700 {folder}"):
        device.devices()


def test_folder_that_serves_another_purpose_keeps_its_mode(folder: Path) -> None:
    """As /tmp, or a home: nobody should be told to chmod those."""
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    (folder / "thesis.txt").write_text("")
    with pytest.raises(errors.AccessDenied) as refused:
        device.devices()
    assert f"try: WEFT_CXI_REGISTRY={folder}/weft-cxi" in str(refused.value)
    assert "chmod" not in str(refused.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_folder_of_another_user_is_refused(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, 12345)
    with pytest.raises(errors.AccessDenied, match="belongs to user 12345"):
        device.devices()


def test_link_to_a_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(errors.AccessDenied, match="no folder, or a link"):
        device.devices()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_folder_in_a_folder_of_another_user_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of the default registry, in a folder where everybody can make a registry of that name."""
    monkeypatch.delenv("WEFT_CXI_REGISTRY", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (tmp_path / "weft-0").mkdir(mode=0o700)
    os.chown(tmp_path / "weft-0", 12345, 12345)
    with pytest.raises(errors.AccessDenied, match="belongs to user 12345"):
        device.devices()


def test_error_of_the_system_names_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device.devices()

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(errors.FabricError, match=f"registry: {folder}/registry.json: No space left") as caught:
        device.set_up("cxi0", False)
    assert caught.value.errno == errno.ENOSPC
    monkeypatch.undo()
    monkeypatch.setenv("WEFT_CXI_REGISTRY", str(folder))
    assert device.devices()[0].up


def test_folder_that_cannot_be_made_is_refused_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WEFT_CXI_REGISTRY", str(tmp_path / "file" / "cxi"))
    with pytest.raises(errors.AccessDenied, match="try: WEFT_CXI_REGISTRY="):
        device.devices()


@pytest.mark.parametrize("format", [0, 2, "1", None])
def test_registry_of_another_format_is_refused(folder: Path, format: object) -> None:
    device.devices()
    rewrite(folder, format=format)
    with pytest.raises(errors.InvalidArgument) as caught:
        device.devices()
    assert f"format {format!r}, this weft reads format 1" in str(caught.value)
    assert f"rm -r {folder}" in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"weft": "something"}', "\xff\xfe", "[" * 100_000])
def test_garbage_is_refused_with_what_to_do(folder: Path, text: str) -> None:
    device.devices()
    (folder / "registry.json").write_text(text, encoding="latin-1")
    with pytest.raises(errors.InvalidArgument, match=f"rm -r {folder}"):
        device.devices()
    with pytest.raises(errors.InvalidArgument, match="registry:"):
        device.set_up("cxi0", False)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"fabric": 0}, "fabric is 0"),
        ({"fabric": 1024}, "fabric is 1024"),
        ({"devices": {}}, "devices, services or launches are missing"),
        ({"devices": [{"name": "cxi0"}]}, "a device has no 'nic'"),
        ({"devices": [7]}, "a device is 7"),
        ({"services": {"cxi0": {"next": 2, "all": [{"id": 0}]}}}, "service of cxi0 has id 0"),
        ({"launches": [{"id": "x", "vnis": ["1"]}]}, "a launch has vnis"),
    ],
)
def test_field_that_is_not_understood_is_named(folder: Path, values: dict[str, Any], message: str) -> None:
    device.devices()
    rewrite(folder, **values)
    with pytest.raises(errors.InvalidArgument, match=message.replace("[", r"\[")):
        device.devices()


# ---- changes ---------------------------------------------------------------------------------------------------------


def test_error_in_a_change_leaves_all_as_it_was(folder: Path) -> None:
    device.devices()
    before = (folder / "registry.json").read_bytes()

    def fail() -> None:
        with registry.here().change() as record:
            record["devices"].clear()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert (folder / "registry.json").read_bytes() == before
    assert [one.name for one in device.devices()] == ["cxi0"]


def test_change_of_another_process_is_seen(folder: Path) -> None:
    found = device.by_name("cxi0")
    assert found is not None
    assert found.up
    assert children.run("from weft.providers.cxi import device; device.set_up('cxi0', False)").returncode == 0
    found = device.by_name("cxi0")
    assert found is not None
    assert not found.up


def test_unchanged_registry_is_not_read_again(folder: Path) -> None:
    assert device.devices() is device.devices()
    device.set_up("cxi0", False)
    first = device.devices()
    assert not first[0].up
    assert device.devices() is first


def test_each_change_has_a_later_time(folder: Path) -> None:
    """A reader that knows only inode, time and size sees every change, even where the clock stands still."""
    device.devices()
    seen = set()
    for n in range(50):
        device.set_values("cxi0", mtu=1000 + n)
        seen.add((folder / "registry.json").stat().st_mtime_ns)
        assert device.devices()[0].mtu == 1000 + n
    assert len(seen) == 50


def test_changes_of_threads_and_processes_are_all_kept(folder: Path) -> None:
    device.devices()

    def mine() -> None:
        for _ in range(10):
            service.create("cxi0")

    with children.Child() as child:
        call = child.start(create_services, str(folder), 20)
        threads = [threading.Thread(target=mine) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        call.result()
    assert [one.id for one in service.services("cxi0")] == list(range(1, 42))


def create_services(world: object, folder: str, count: int) -> None:
    os.environ["WEFT_CXI_REGISTRY"] = folder
    for _ in range(count):
        service.create("cxi0")


def test_holder_of_the_lock_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from weft import _files as files

    device.devices()
    monkeypatch.setattr(files, "LOCK_S_MAX", 0.05)
    with children.Child() as child:
        call = child.start(hold_the_lock, str(folder))
        while (folder / "lock").read_text().strip() != str(child.pid):
            time.sleep(0.01)
        with pytest.raises(errors.Busy, match=f"process {child.pid} has held"):
            device.set_up("cxi0", False)
        child.process.kill()
        child.process.wait()
        del call
        monkeypatch.setattr(files, "LOCK_S_MAX", 10.0)
        assert not device.set_up("cxi0", False).up  # the lock went with its holder
        child.destroy()


def hold_the_lock(world: object, folder: str) -> None:
    os.environ["WEFT_CXI_REGISTRY"] = folder
    with registry.here().lock():
        time.sleep(100)


def test_registry_lock_is_not_kept_by_a_forked_child(folder: Path) -> None:
    device.devices()
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            device.set_values("cxi0", mtu=2048)
            device.set_values("cxi0", mtu=4096)

    thread = threading.Thread(target=change)
    thread.start()
    forked = []
    try:
        for _ in range(10):
            pid = os.fork()
            if pid == 0:
                time.sleep(60)
                os._exit(0)
            forked.append(pid)
    finally:
        stop.set()
        thread.join()
        try:
            assert device.set_values("cxi0", mtu=9000).mtu == 9000
        finally:
            for pid in forked:
                os.kill(pid, 9)
                os.waitpid(pid, 0)


# ---- fabrics ---------------------------------------------------------------------------------------------------------


def test_two_registries_are_two_fabrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = set()
    for n in range(20):
        monkeypatch.setenv("WEFT_CXI_REGISTRY", str(tmp_path / str(n)))
        (found,) = device.devices()
        assert 1 <= found.fabric <= fabrics.MOST
        assert found.engine_nic() == found.fabric << 20 | found.nic
        numbers.add(found.fabric)
    assert len(numbers) == 20


def test_copy_of_a_registry_is_another_fabric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CXI_REGISTRY", str(tmp_path / "a"))
    (first,) = device.devices()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    monkeypatch.setenv("WEFT_CXI_REGISTRY", str(tmp_path / "b"))
    (copy,) = device.devices()
    assert copy.fabric != first.fabric
    assert copy.nic == first.nic


def test_moved_registry_keeps_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CXI_REGISTRY", str(tmp_path / "a"))
    (first,) = device.devices()
    (tmp_path / "a").rename(tmp_path / "b")
    monkeypatch.setenv("WEFT_CXI_REGISTRY", str(tmp_path / "b"))
    assert device.devices() == (first,)


def test_numbers_of_fabrics_run_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fabrics, "MOST", 3)
    monkeypatch.setattr(fabrics, "_index_folder", lambda: tmp_path / "index")
    for n in range(3):
        monkeypatch.setenv("WEFT_CXI_REGISTRY", str(tmp_path / str(n)))
        device.devices()
    monkeypatch.setenv("WEFT_CXI_REGISTRY", str(tmp_path / "3"))
    with pytest.raises(errors.NoSpace, match=r"fabrics\.json names them"):
        device.devices()
    shutil.rmtree(tmp_path / "1")  # a registry that is gone gives its number back
    assert device.devices()[0].fabric in (1, 2, 3)


def test_registry_works_where_the_list_of_fabrics_cannot_be_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fabrics, "_index_folder", lambda: Path("/proc/nowhere"))
    assert 1 <= device.devices()[0].fabric <= fabrics.MOST
