"""Tensors of all ranks of a torch job, and tensors in memory that other processes map.

    import torch, weft
    from weft.interop import torch as weft_torch

    store, rank, size = next(torch.distributed.rendezvous("env://"))       # under torchrun
    weights = weft_torch.move(model)                                       # into memory of Weft
    with weft_torch.attach_all(store, dict(model.state_dict()), rank=rank, size=size) as peers:
        peers.tensor(0, "layer.weight")                                    # rank 0's own memory, as a tensor

A store of torch.distributed carries one value of each rank, its tickets. No process group is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from .. import errors, memory
from ..share import Node, RemoteArray
from .peers import DEFAULT_TIMEOUT_S, PeerArrays
from .store import KeyValueStore, meet_by_store

if TYPE_CHECKING:
    import torch

_Module = TypeVar("_Module", bound="torch.nn.Module")
# NumPy has these dtypes only from ml_dtypes, which torch does not know: their bits are passed on as integers.
_AS_BITS = {"bfloat16": "int16", "float8_e4m3fn": "uint8", "float8_e4m3fnuz": "uint8", "float8_e5m2": "uint8"}
_AS_BITS |= {"float8_e5m2fnuz": "uint8", "float8_e8m0fnu": "uint8"}


def attach_all(
    store: KeyValueStore,
    tensor: torch.Tensor | Mapping[str, torch.Tensor] | None,
    *,
    rank: int,
    size: int,
    name: str = "weft",
    access: str = "rw",
    node: Node | None = None,
    listen: str | None = None,
    secret: str | bytes | None = None,
    timeout: float = DEFAULT_TIMEOUT_S,
) -> PeerTensors:
    """Share a tensor with all ranks, and attach the tensors of all ranks. Collective.

    Args:
        store: torch.distributed.TCPStore, FileStore ... or any object with `set`, `get` and `wait`.
        tensor: A contiguous CPU tensor, used in place, of any shape and dtype in each rank; a dict of tensors, such as
            module.state_dict(): each under its name; None: this rank shares nothing. Tensors of this module's empty(),
            zeros(), like() and move() are mapped by the other ranks of the host, others are reached by
            process_vm_readv. bfloat16 and the 8-bit floats need the package ml_dtypes.

    The other arguments, the result and the errors are those of `weft.interop.store.attach_all`. A tensor on a GPU, or
    one that is not contiguous, is an error of every rank (NotSupported, InvalidArgument): `tensor.cpu()`,
    `tensor.contiguous()`.
    """
    tensors = dict(tensor) if isinstance(tensor, Mapping) else {"": tensor}
    offered = {name: _plain(one) for name, one in tensors.items()}
    return meet_by_store(
        store,
        offered,
        access,
        rank=rank,
        size=size,
        name=name,
        made=PeerTensors,
        node=node,
        listen=listen,
        secret=secret,
        timeout=timeout,
    )


def _plain(tensor: Any) -> Any:
    """Without a gradient's history: the same memory."""
    return tensor.detach() if hasattr(tensor, "detach") else tensor


class PeerTensors(PeerArrays):
    """PeerArrays whose arrays are also given as tensors."""

    def tensor(self, rank: int, name: str | None = None) -> torch.Tensor:
        """The rank's tensor itself, over its own memory: `as_tensor(peers[rank])`, with its errors."""
        return as_tensor(self[rank] if name is None else self[rank, name])

    def copy_to(self, rank: int, tensor: torch.Tensor, name: str | None = None) -> torch.Tensor:
        """Read the rank's tensor into `tensor`, a contiguous CPU tensor of the same shape and dtype, in one copy; from
        any host. Returns `tensor`. Raises ValueError (shape), TypeError (dtype)."""
        (self[rank] if name is None else self[rank, name]).read(out=tensor.detach())
        return tensor


def as_tensor(array: RemoteArray) -> torch.Tensor:
    """The memory of another process's array as a tensor: nothing is copied.

    The rules of RemoteArray.view hold: each side sees the other's stores at once, and the memory stays valid as long as
    the tensor lives. Atomic updates are calls of `array`. Raises AccessDenied for an array that is shared with another
    access than "rw", because torch has no read-only tensors; NotSupported if the memory is not mapped here: read it
    with array.read(out=tensor).
    """
    if array.ticket.access != "rw":
        raise errors.AccessDenied(
            f"as_tensor: the array is shared with access {array.ticket.access!r}\n"
            "  rule: torch has no read-only tensors\n  try: access='rw' in its owner; or array.read(out=tensor)"
        )
    return _from_numpy(array.view("rw"))


def _from_numpy(view: Any) -> torch.Tensor:
    import torch

    bits = _AS_BITS.get(view.dtype.name)
    if bits is None:
        return torch.from_numpy(view)
    found: torch.Tensor = torch.from_numpy(view.view(bits)).view(getattr(torch, view.dtype.name))
    return found


# ---- tensors in memory of Weft ---------------------------------------------------------------------------------------


def empty(*shape: int | tuple[int, ...], dtype: torch.dtype | None = None) -> torch.Tensor:
    """As torch.empty, in memory that other processes of the host map once it is shared. The tensor owns the memory.

    Args:
        dtype: None: torch's default.

    Raises:
        NoMemory: More than the machine has.
        TypeError: A quantized dtype.
    """
    return _made(memory.empty, shape, dtype)


def zeros(*shape: int | tuple[int, ...], dtype: torch.dtype | None = None) -> torch.Tensor:
    """As `empty`, with zeros."""
    return _made(memory.zeros, shape, dtype)


def _made(make: Any, shape: Any, dtype: Any) -> torch.Tensor:
    import torch

    if len(shape) == 1 and not isinstance(shape[0], int):
        shape = tuple(shape[0])
    name = str(torch.get_default_dtype() if dtype is None else dtype).removeprefix("torch.")
    bits = _AS_BITS.get(name, name)
    try:
        found = torch.from_numpy(make(shape, np.dtype(bits)))
    except TypeError:
        raise TypeError(f"empty: dtype {dtype} has no equivalent that processes can share") from None
    if bits == name:
        return found
    floats: torch.Tensor = found.view(getattr(torch, name))
    return floats


def like(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor, in memory of Weft on the CPU."""
    found = empty(tuple(tensor.shape), dtype=tensor.dtype)
    found.copy_(tensor.detach())
    return found


def move(module: _Module) -> _Module:
    """Move the parameters and buffers of a module into memory of Weft, in place, and return the module.

    The module goes on training there: an optimizer that was made before has the same Parameters. Tensors that several
    parameters share stay shared. Raises NotSupported for a module on a GPU.
    """
    moved: dict[int, torch.Tensor] = {}
    for one in (*module.parameters(), *module.buffers()):
        if one.device.type != "cpu":
            raise errors.NotSupported(f"move: the module has tensors on {one.device}\n  try: module.cpu()")
        if id(one) not in moved:
            moved[id(one)] = one
            one.data = like(one.data)
    return module
