"""__array_interface__ and __cuda_array_interface__.

Source: the NumPy array interface, version 3; the CUDA array interface, version 3.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from typing import Any

from ._export import from_buffer
from ._info import (
    DEVICE_ID_UNKNOWN,
    DLPACK_CUDA,
    HMEM_CUDA,
    HMEM_SYSTEM,
    BufferInfo,
    c_strides,
    checked,
    count,
    name_of,
    refuse_objects,
)


def _descr_holds_objects(descr: Any) -> bool:
    """True if the `descr` of an array interface, a list of (name, typestr or fields, shape), has a field of objects."""
    if isinstance(descr, str):
        return re.match(r"[<>|=]?O", descr) is not None
    return any(_descr_holds_objects(field[1]) for field in descr if isinstance(field, tuple) and len(field) > 1)


def _interface(obj: object, name: str) -> Mapping[str, Any] | None:
    """The interface's dictionary, or None. As in NumPy, an attribute of the instance counts too."""
    if isinstance(obj, type):
        return None
    try:
        interface = getattr(obj, name)
    except AttributeError:
        return None
    except (RuntimeError, TypeError, ValueError) as reason:  # PyTorch: tensors that require a gradient
        raise BufferError(f"{name_of(obj)} does not give its {name}: {reason}") from reason
    if not isinstance(interface, Mapping):
        raise TypeError(f"{name} of {name_of(obj)} must be a dict, not {name_of(interface)}")
    return interface


def _layout(interface: Mapping[str, Any], obj: object, name: str) -> tuple[int, tuple[int, ...], tuple[int, ...], str]:
    """itemsize, shape, strides and typestr of an interface of either kind."""
    try:
        typestr = str(interface["typestr"])
        shape = tuple(operator.index(n) for n in interface["shape"])
    except (KeyError, TypeError) as reason:
        raise ValueError(
            f"{name} of {name_of(obj)} is not valid: {reason!r} (shape and typestr are required)"
        ) from reason
    match = re.fullmatch(r"[<>|=]?([a-zA-Z?])(\d*)", typestr)
    if match is None or match[1] == "t":
        raise ValueError(f"{name} of {name_of(obj)} has typestr {typestr!r}: not a whole number of bytes an element")
    if match[1] == "O" or _descr_holds_objects(interface.get("descr") or ()):
        refuse_objects(obj)
    itemsize = int(match[2] or 1) * (4 if match[1] == "U" else 1)
    if any(n < 0 for n in shape):
        raise ValueError(f"{name} of {name_of(obj)} has a negative length: shape {shape}")
    raw = interface.get("strides")
    strides = c_strides(shape, itemsize) if raw is None else tuple(operator.index(s) for s in raw)
    if len(strides) != len(shape):
        raise ValueError(f"{name} of {name_of(obj)}: {len(shape)} lengths but {len(strides)} strides")
    if interface.get("mask") is not None:
        raise BufferError(
            f"cannot use {name_of(obj)} as a buffer: it is a masked array\n  try: a.filled(), or its .data and .mask"
        )
    return itemsize, shape, strides, typestr


def from_array_interface(obj: object) -> BufferInfo | None:
    interface = _interface(obj, "__array_interface__")
    if interface is None:
        return None
    itemsize, shape, strides, typestr = _layout(interface, obj, "__array_interface__")
    data = interface.get("data")
    door = "__array_interface__"
    nbytes = itemsize * count(shape)
    if isinstance(data, tuple):
        if len(data) != 2:
            raise ValueError(f"{door} of {name_of(obj)}: data must be (address, read-only)")
        info = BufferInfo(
            int(data[0] or 0),
            nbytes,
            bool(data[1]),
            HMEM_SYSTEM,
            (obj, interface),
            itemsize,
            shape,
            strides,
            typestr,
            door,
        )
        return checked(info, obj)
    # Otherwise data is an object with the buffer protocol (or the object itself has it), and there may be an offset.
    source = obj if data is None else data
    inner = from_buffer(source)
    if inner is None:
        raise ValueError(
            f"{door} of {name_of(obj)}: data is neither (address, read-only) nor a buffer, but {name_of(source)}"
        )
    offset = int(interface.get("offset", 0))
    last = offset + itemsize + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True) if stride > 0)
    if offset < 0 or (nbytes > 0 and last > inner.nbytes):
        raise ValueError(
            f"{door} of {name_of(obj)}: {last} B from offset {offset} on do not fit its data of {inner.nbytes} B"
        )
    return BufferInfo(
        inner.address + offset,
        nbytes,
        inner.readonly,
        HMEM_SYSTEM,
        inner.keepalive,
        itemsize,
        shape,
        strides,
        typestr,
        door,
    )


def from_cuda_array_interface(obj: object) -> BufferInfo | None:
    """Does not wait for the producer's stream: finish writing device memory before you register or send it."""
    door = "__cuda_array_interface__"
    interface = _interface(obj, door)
    if interface is None:
        return None
    itemsize, shape, strides, typestr = _layout(interface, obj, door)
    data = interface.get("data")
    if not isinstance(data, tuple) or len(data) != 2:
        raise ValueError(f"{door} of {name_of(obj)}: data must be (address, read-only)")
    device_id = DEVICE_ID_UNKNOWN
    if hasattr(obj, "__dlpack_device__"):  # gives the device, which this interface omits
        device_type, ordinal = obj.__dlpack_device__()
        device_id = int(ordinal) if int(device_type) == DLPACK_CUDA else DEVICE_ID_UNKNOWN
    info = BufferInfo(
        int(data[0] or 0),
        itemsize * count(shape),
        bool(data[1]),
        HMEM_CUDA,
        (obj, interface),
        itemsize,
        shape,
        strides,
        typestr,
        door,
        device_id,
        False,
    )
    return checked(info, obj)
