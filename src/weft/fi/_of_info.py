"""What endpoints and domains tell of themselves from their fi_info, whichever library or NIC is behind them.

Source: fi_endpoint(3), fi_domain(3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..flags import Flag, MrMode

if TYPE_CHECKING:
    from .attrs import DomainAttr, Info


class DomainOfInfo:
    """Attributes of a domain."""

    __slots__ = ()
    if TYPE_CHECKING:
        info: Info
        _mr_mode: MrMode

    @property
    def attr(self) -> DomainAttr:
        """The domain's attributes, as opened."""
        return self.info.domain_attr

    @property
    def name(self) -> str:
        """The name of the domain: the name of the NIC."""
        return str(self.info.domain_attr.name)

    @property
    def mr_mode(self) -> MrMode:
        """The registration modes in force; fi_mr(3)."""
        return self._mr_mode

    @property
    def virt_addr(self) -> bool:
        """True if peers address remote memory by virtual address, False if by offset."""
        return bool(self.mr_mode & (MrMode.MR_VIRT_ADDR | MrMode.MR_BASIC))


class EndpointOfInfo:
    """Capabilities and limits of an endpoint."""

    info: Info
    _enabled = False

    @property
    def enabled(self) -> bool:
        """True after enable()."""
        return self._enabled

    @property
    def caps(self) -> Flag:
        """The capabilities that the endpoint was opened with."""
        return Flag(self.info.caps)

    @property
    def tx_size(self) -> int:
        """Maximum number of operations under way at a time."""
        return int(self.info.tx_attr.size)

    @property
    def inject_size(self) -> int:
        """Maximum bytes of an inject call."""
        return int(self.info.tx_attr.inject_size)

    @property
    def max_msg_size(self) -> int:
        """Maximum bytes of a call."""
        return int(self.info.ep_attr.max_msg_size)

    @property
    def iov_limit(self) -> int:
        """Maximum number of local buffers of a call."""
        return int(self.info.tx_attr.iov_limit)

    @property
    def rma_iov_limit(self) -> int:
        """Maximum number of remote ranges of a call."""
        return int(self.info.tx_attr.rma_iov_limit)

    def atomicvalid(self, datatype: int, op: int) -> int:
        """Maximum elements of one `atomic` (fi_atomicvalid). Raises NotSupported for unsupported pairs."""
        return self._valid(datatype, op, 0)

    def fetch_atomicvalid(self, datatype: int, op: int) -> int:
        """Maximum elements of one `fetch_atomic` (fi_fetch_atomicvalid). Raises NotSupported."""
        return self._valid(datatype, op, 1)

    def compare_atomicvalid(self, datatype: int, op: int) -> int:
        """Maximum elements of one `compare_atomic` (fi_compare_atomicvalid). Raises NotSupported."""
        return self._valid(datatype, op, 2)

    def _valid(self, datatype: int, op: int, family: int) -> int:
        raise NotImplementedError
