"""weft.interop.torch: tensors of all ranks by a TCPStore; tensors in memory of Weft. Skipped where torch is absent."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sysconfig
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import patience

import weft
from weft import errors
from weft.interop import torch as tensors

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

FLOATS = ("bfloat16", "float8_e4m3fn", "float8_e5m2")


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.mark.parametrize("name", ["float32", "float64", "int64", "uint8", "bool", "float16", "complex64", *FLOATS])
def test_tensors_in_memory_of_weft_are_mapped_by_peers(torch: Any, name: str) -> None:
    """empty, zeros and like make them; as_tensor of the attached array is the same memory."""
    dtype = getattr(torch, name)
    assert tensors.zeros(2, 3, dtype=dtype).shape == (2, 3)
    assert tensors.empty((4,), dtype=dtype).dtype == dtype
    mine = tensors.like(torch.ones(3, 2).to(dtype))
    assert mine.dtype == dtype
    with weft.open() as node:
        remote = node.attach(node.share(mine).ticket)
        assert remote.ticket.direct
        theirs = tensors.as_tensor(remote)
        assert theirs.dtype == dtype
        assert theirs.shape == (3, 2)
        assert bool((theirs.to(torch.complex64) == 1).all())
        mine[0, 0] = 0
        assert theirs[0, 0].to(torch.complex64) == 0
        theirs[2, 1] = 0
        assert mine[2, 1].to(torch.complex64) == 0
    assert theirs[1, 1].to(torch.complex64) == 1  # the tensor keeps the memory


def test_empty_has_the_default_dtype_and_refuses_others(torch: Any) -> None:
    assert tensors.empty(2).dtype == torch.get_default_dtype()
    with pytest.raises(TypeError, match="no equivalent that processes can share"):
        tensors.empty(2, dtype=torch.qint8)


def test_move_keeps_the_module_and_its_shared_parameters(torch: Any) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4))
    model[2].weight = model[0].weight
    before = {name: one.clone() for name, one in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert tensors.move(model) is model
    assert model[2].weight is model[0].weight
    for name, one in model.state_dict().items():
        assert torch.equal(one, before[name])
    with weft.open() as node:
        for one in model.state_dict().values():
            with node.share(one) as shared:
                assert shared.ticket.direct
        remote = node.attach(node.share(model[0].weight.detach(), access="r").ticket)
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        assert np.array_equal(remote.read(), model[0].weight.detach().numpy())
        assert not torch.equal(model[0].weight, before["0.weight"])


def test_as_tensor_of_a_read_only_array_is_refused(torch: Any) -> None:
    """torch would let the program write, and the process would end by a signal."""
    with weft.open() as node:
        remote = node.attach(node.share(tensors.zeros(3), access="r").ticket)
        with pytest.raises(errors.AccessDenied, match="torch has no read-only tensors"):
            tensors.as_tensor(remote)
        assert remote.read(out=torch.ones(3)).sum() == 0


def test_as_tensor_of_memory_that_is_not_mapped_is_refused(torch: Any) -> None:
    """torch's own memory, of another node's process: here by the ticket's word."""
    with weft.open() as node:
        remote = node.attach(node.share(weft.zeros(0)).ticket)
        assert tensors.as_tensor(remote).shape == (0,)


PRELUDE = """\
import datetime, json, os, sys
import torch, weft
from weft import errors
from weft.interop import torch as tensors
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

def say(*words):
    os.write(1, ("say " + json.dumps([rank, *words]) + "\\n").encode())

def refused(call):
    try:
        call()
    except (OSError, TypeError, ValueError) as reason:
        say(type(reason).__name__, str(reason))
    else:
        say("no error", "")
"""


def run(program: str, size: int, folder: Path) -> list[list[list[Any]]]:
    """The output of each rank of torchrun."""
    import json

    torchrun = shutil.which("torchrun", path=sysconfig.get_path("scripts"))
    if torchrun is None:
        pytest.skip("no torchrun beside this Python")
    file = folder / "program.py"
    file.write_text(PRELUDE + textwrap.dedent(program))
    ended: subprocess.CompletedProcess[str] = patience.run(
        [torchrun, "--nproc-per-node", str(size), str(file)], 90, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    found: list[list[list[Any]]] = [[] for _ in range(size)]
    for line in ended.stdout.splitlines():
        if line.startswith("say "):
            rank, *words = json.loads(line[4:])
            found[rank].append(words)
    return found


@pytest.mark.procs
def test_torchrun_ranks_have_each_others_tensors(tmp_path: Path) -> None:
    """By the store of torchrun's agent; a model's state by names, moved, and a tensor of torch's own memory."""
    program = """
    store, _, _ = next(torch.distributed.rendezvous("env://"))
    model = tensors.move(torch.nn.Linear(3, 2))
    with torch.no_grad():
        model.weight.fill_(rank)
    state = dict(model.state_dict()) | {"half": tensors.like(torch.full((2,), 10.0 + rank, dtype=torch.bfloat16))}
    other = 1 - rank
    with tensors.attach_all(store, state, rank=rank, size=size) as peers:
        say(list(peers.names(other)), peers.tensor(other, "weight").tolist(), peers.tensor(other, "half").tolist())
        mine = peers.copy_to(other, torch.empty(2, 3), "weight")
        say(mine.sum().item(), list(peers.mapped))
    with tensors.attach_all(store, torch.full((4,), float(rank), requires_grad=True), rank=rank, size=size) as peers:
        say(peers.copy_to(other, torch.empty(4)).tolist())
    """
    for rank, said in enumerate(run(program, 2, tmp_path)):
        other = 1 - rank
        assert said[0] == [["weight", "bias", "half"], [[other] * 3] * 2, [10.0 + other] * 2]
        assert said[1] == [6.0 * other, [True, True]]
        assert said[2] == [[float(other)] * 4]


@pytest.mark.procs
def test_torchrun_errors_are_everyones(tmp_path: Path) -> None:
    """A tensor that is not contiguous, one on a device without memory, and a rank that does not come."""
    program = """
    store, _, _ = next(torch.distributed.rendezvous("env://"))
    refused(lambda: tensors.attach_all(store, torch.zeros(4, 4).T if rank else torch.zeros(4), rank=rank, size=size))
    refused(lambda: tensors.attach_all(store, torch.zeros(4, device="meta") if rank else None, rank=rank, size=size))
    if rank == 0:
        refused(lambda: tensors.attach_all(store, None, rank=0, size=size, name="late", timeout=1))
        store.set("over", "1")
    else:
        store.wait(["over"], datetime.timedelta(seconds=60))
    """
    first, second = run(program, 2, tmp_path)
    assert first[:2] == second[:2]
    assert first[0][0] == "InvalidArgument"
    assert "rank 1 cannot share its array" in first[0][1]
    assert "rank 1 cannot share its array" in first[1][1]
    assert first[2][0] == "TimedOut"
    assert "ranks 1" in first[2][1]
