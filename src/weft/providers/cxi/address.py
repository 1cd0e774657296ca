"""Addresses of the CXI provider (FI_ADDR_CXI): eight bytes, NIC address and PID; the VNI is the authorization key's.

The layout is that of C's struct: a 32-bit word with the PID in bits 0 to 8 and the NIC address in bits 9 to 28, then a
16-bit word for the VNI. The document has no VNI in addresses, and the field is 0. Later releases fill the field in but
do not use it either: a peer is reached on the VNI of the authorization key.

Source: fi_cxi(7) "Addressing Format".
"""

from __future__ import annotations

import struct
from typing import Any

from ... import errors
from ...fi.policy import Address as NicAddress
from ...flags import AddrFormat
from . import hosts, profile

_LAYOUT = struct.Struct("<IHxx")
ADDRESS_BYTES = _LAYOUT.size
PID_ANY = 511  # the PID of an address whose endpoint has none yet: enable() chooses
NIC_MAX = (1 << 20) - 1
_PID_BITS = 9


def check_number(what: str, value: object, top: int) -> None:
    """Raises InvalidArgument unless `value` is a number from 0 to `top`."""
    if not isinstance(value, int) or not 0 <= value <= top:
        raise errors.InvalidArgument(f"{what} is a number from 0 to {top}, not {value!r}")


def _bytes_of(data: object) -> bytes | None:
    """The bytes of any buffer; None if `data` is not a buffer."""
    try:
        return bytes(memoryview(data))  # type: ignore[arg-type]
    except TypeError:
        return None


class Address(bytes):
    """A CXI address, as eight bytes.

    Attributes:
        nic: Address of the NIC in the fabric, 0 to 2**20-1.
        pid: Number of the endpoint on the NIC, 0 to 510; 511 for any.
        vni: 0 if the address does not contain it.

    Raises:
        InvalidArgument: Numbers out of range.

    Source: fi_cxi(7) "Addressing Format".
    """

    __slots__ = ()

    def __new__(cls, nic: int, pid: int = PID_ANY, vni: int = 0) -> Address:
        for name, value, top in (("nic", nic, NIC_MAX), ("pid", pid, PID_ANY), ("vni", vni, 0xFFFF)):
            check_number(f"cxi.Address: {name}", value, top)
        return super().__new__(cls, _LAYOUT.pack(nic << _PID_BITS | pid, vni))

    @classmethod
    def from_bytes(cls, data: Any) -> Address:
        """The address in eight bytes, as returned by getname, getinfo and C programs. The padding is ignored.

        Raises InvalidArgument for another number of bytes.
        """
        raw = _bytes_of(data) or b""
        if len(raw) != ADDRESS_BYTES:
            raise errors.InvalidArgument(
                f"{data!r:.60} is no address of the provider cxi\n"
                f"  rule: FI_ADDR_CXI, {ADDRESS_BYTES} bytes, as Endpoint.getname() returns them\n"
                "  try: cxi.Address(nic, pid)"
            )
        word, vni = _LAYOUT.unpack(raw)
        return cls(word >> _PID_BITS & NIC_MAX, word & PID_ANY, vni)

    def __getnewargs__(self) -> tuple[int, int, int]:  # type: ignore[override]
        return self.nic, self.pid, self.vni

    @property
    def nic(self) -> int:
        """Address of the NIC in the fabric."""
        return int(_LAYOUT.unpack(self)[0] >> _PID_BITS)

    @property
    def pid(self) -> int:
        """Number of the endpoint on the NIC; 511 for any."""
        return int(_LAYOUT.unpack(self)[0] & PID_ANY)

    @property
    def vni(self) -> int:
        """The virtual network; 0 if the address does not contain it."""
        return int(_LAYOUT.unpack(self)[1])

    def __repr__(self) -> str:
        vni = f", vni={self.vni}" if self.vni else ""
        return f"cxi.Address(nic={self.nic:#x}, pid={self.pid}{vni})"

    def __str__(self) -> str:
        return f"nic {self.nic:#x}, pid {'any' if self.pid == PID_ANY else self.pid}"


class CxiAddresses:
    """An `AddressCodec` of eight bytes. NIC numbers are relative to a fabric, which the domain knows."""

    format = AddrFormat.ADDR_CXI
    size = ADDRESS_BYTES
    tells_vni = False

    def parse(self, address: object) -> NicAddress:
        """NIC, PID or None, and VNI 0: the key of the address's user determines the VNI, not the address."""
        found = address if isinstance(address, Address) else Address.from_bytes(address)
        pid = found.pid
        return found.nic, None if pid == PID_ANY else pid, 0

    def emit(self, address: NicAddress) -> Address:
        """The address as bytes."""
        nic, pid, vni = address
        return Address(
            hosts.nic_address(nic), PID_ANY if pid is None else pid, vni if profile.load().address_vni else 0
        )

    def split(self, given: object) -> list[Any] | None:
        """Several addresses in one buffer, as in C."""
        data = _bytes_of(given)
        if data is None or len(data) <= ADDRESS_BYTES or len(data) % ADDRESS_BYTES:
            return None
        return [data[at : at + ADDRESS_BYTES] for at in range(0, len(data), ADDRESS_BYTES)]

    def single(self, given: object) -> bool:
        """True for bytes of any length, which are one address."""
        return isinstance(given, str) or _bytes_of(given) is not None

    def text(self, address: NicAddress) -> str:
        """The address as text."""
        return str(self.emit(address))

    def public(self, address: NicAddress) -> NicAddress:
        """The address itself: it is the same for everyone in the fabric."""
        return address

    def own(self, address: NicAddress) -> NicAddress:
        """The address itself."""
        return address
