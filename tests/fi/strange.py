"""A second provider, which decides nearly everything differently than the general provider, to show that calls ask it.

Binary addresses of 12 bytes; keys of 4 bytes; MR_ENDPOINT mandatory; manual progress, on a NIC of its own; other error
numbers, for refusals and for failed operations; one buffer a call and a region; regions of no bytes; keys of the
provider known at enable; completion queues of three and three authorization keys, of four bytes, with a service;
endpoints numbered from 7 on; endpoints, not regions, are busy while they are bound; only FI_AV_TABLE, and removing an
unknown peer is ignored.
"""

from __future__ import annotations

import os
import struct
from typing import Any

from weft import _nic, errors, fi
from weft.fi import registry
from weft.fi.match import DOMAIN_CAPS, RX_CAPS, TX_CAPS
from weft.fi.offer import Offer
from weft.fi.policy import Address, Asked, Credential, Failure, StatusMap, man_page_statuses
from weft.fi.policy_rules import KeyRules, Option, QueueRules, RegionRules, VectorRules
from weft.fi.rules import Refusals, Rule
from weft.providers.base import BaseDomain, BaseEndpoint, BaseProvider

NAME = "strange"
NIC = 4000
VNI = 9
FORMAT = 0x80000077  # of the provider's own

_LAYOUT = struct.Struct("<IIHH")
_MAGIC = 0xADD7
_ANY = 0xFFFFFFFF

CAPS = (
    fi.RMA
    | fi.ATOMIC
    | fi.READ
    | fi.WRITE
    | fi.REMOTE_READ
    | fi.REMOTE_WRITE
    | fi.FENCE
    | fi.RMA_EVENT
    | fi.SOURCE
    | fi.LOCAL_COMM
    | fi.RMA_PMEM
    | fi.DIRECTED_RECV
)
ORDER = fi.ORDER_RAR | fi.ORDER_RAW | fi.ORDER_WAR | fi.ORDER_WAW


class StrangeAddresses:
    """12 bytes: NIC, endpoint, VNI, and a number that identifies the format."""

    format = FORMAT
    size = _LAYOUT.size
    tells_vni = True

    def parse(self, address: object) -> Address:
        data = bytes(address) if isinstance(address, (bytes, bytearray, memoryview)) else b""
        if len(data) != self.size or _LAYOUT.unpack(data)[3] != _MAGIC:
            raise errors.InvalidArgument(
                f"{address!r:.60} is no address of the provider {NAME}: 12 bytes, as Endpoint.getname() returns them"
            )
        nic, pid, vni, _ = _LAYOUT.unpack(data)
        return nic, None if pid == _ANY else pid, vni

    def emit(self, address: Address) -> bytes:
        nic, pid, vni = address
        return _LAYOUT.pack(nic, _ANY if pid is None else pid, vni, _MAGIC)

    def split(self, given: object) -> list[Any] | None:
        """Several addresses in one buffer, as C has them."""
        if not isinstance(given, (bytes, bytearray)) or len(given) <= self.size or len(given) % self.size:
            return None
        return [bytes(given[at : at + self.size]) for at in range(0, len(given), self.size)]

    def single(self, given: object) -> bool:
        return isinstance(given, (str, bytes, bytearray, memoryview))

    def text(self, address: Address) -> str:
        nic, pid, vni = address
        return f"strange nic {nic}, endpoint {'any' if pid is None else pid}, vni {vni}"

    def public(self, address: Address) -> Address:
        return address

    def own(self, address: Address) -> Address:
        return address


def call_rules(any_key: bool) -> _nic.OpRules:
    """Rules of calls that differ: no CSWAP of 16 bytes, atomics of 64 elements, PATIENT fences, FENCE needs its
    capability, keys of the application have four bytes, and some refusals have other error numbers."""
    rules = _nic.OpRules()
    rules.set_flags("write", (rules.flags("write") | PATIENT) & ~int(fi.COMMIT_COMPLETE))
    rules.set_atomics(2, int(fi.CSWAP), rules.atomics(2, int(fi.CSWAP)) & ~(1 << int(fi.INT128) | 1 << int(fi.UINT128)))
    rules.atomic_count_max = 64
    rules.fence_needs_cap = True
    rules.fence_also = PATIENT
    rules.local_lengths = True
    if not any_key:
        rules.add_key_form(mask=~0xFFFFFFFF & (1 << 64) - 1, value=0)
    rules.set_errno(_nic.Refusal.no_fence, fi.EINVAL)
    rules.set_errno(_nic.Refusal.too_many_elements, fi.E2BIG)
    rules.set_errno(_nic.Refusal.inject_too_long, fi.E2BIG)
    return rules


PATIENT = 1 << 57  # an operation flag of the provider's own: it fences


class StrangeEndpoint(BaseEndpoint):
    """Endpoints are numbered from 7, and have an option that can be set."""

    pids = range(7, 4000)
    fence_covers_all = True

    def __init__(self, domain: BaseDomain, info: fi.Info) -> None:
        super().__init__(domain, info)
        self.op_rules = call_rules(domain.keys.provider or bool(domain.info.domain_attr.mr_mode & fi.MR_RAW))
        self.patience = 0
        own = {0x77: Option(get=lambda: self.patience, set=self._set_patience), 0x78: Option(set=self._set_patience)}
        self.options = {**self.options, **own}

    def _set_patience(self, value: Any) -> None:
        if not isinstance(value, int):
            raise self.refusals.refuse(Rule.OPT_READ_ONLY, f"ep.setopt: patience is a number, not {value!r}")
        self.patience = value


class StrangeDomain(BaseDomain):
    """Has values that can be set, and records the resources that were taken and returned."""

    endpoint_class = StrangeEndpoint

    def control(self, fid: Any, command: int, arg: Any) -> Any:
        return ("heard", arg) if command == 42 else super().control(fid, command, arg)

    def open_ops(self, fid: Any, name: str, flags: int) -> Any:
        return {"twice": lambda n: 2 * n} if name == "counting" else super().open_ops(fid, name, flags)

    def get_val(self, fid: Any, name: int) -> Any:
        return len(LOG) if name == 1 else super().get_val(fid, name)

    def set_val(self, fid: Any, name: int, value: Any) -> None:
        if name != 1:
            super().set_val(fid, name, value)
        LOG.append(value)

    def outcome(self, failed: Failure) -> tuple[int, int]:
        """Unknown keys that end in 0x77 have a number of their own, made of the VNIs too."""
        err, number = super().outcome(failed)
        if failed.status is _nic.Status.no_key and failed.key & 0xFF == 0x77 and failed.peer is not None:
            return err, number + 1000 + failed.peer[2] + failed.own[2]
        return err, number

    def close(self) -> None:
        LOG.append("closed")


LOG: list[Any] = []
"""The values that domains were given, and the resources that they returned."""


# Every failure is an I/O error with a number of its own.
_STATUSES = {
    status: (int(fi.EIO) if err not in (0, fi.EAGAIN, fi.ECANCELED) else err, number + 1000)
    for status, (err, number) in man_page_statuses().items()
}


class Strange(BaseProvider):
    """The provider."""

    name = NAME
    version = fi.VERSION(7, 7)
    addresses: Any = StrangeAddresses()
    address_text = _nic.AddressText(form="strange nic {nic}, endpoint {pid}, vni {vni} (0x{nic:x})", nic_mask=0xFFF)
    refusals = Refusals(
        {
            Rule.MR_BIND_STATE: fi.Errno.EINVAL,
            Rule.MR_BIND_FLAGS: fi.Errno.EINVAL,
            Rule.MR_BIND_DOMAIN: fi.Errno.EINVAL,
            Rule.MR_ENABLE_UNBOUND: fi.Errno.EINVAL,
            Rule.MR_IOV_LIMIT: fi.Errno.ENOSYS,
            Rule.MR_KEY_TAKEN: fi.Errno.EADDRINUSE,
            Rule.AV_OPEN_FLAGS: fi.Errno.EINVAL,
            Rule.EP_ADDRESS_TAKEN: fi.Errno.ENOSPC,
            Rule.OPT_UNKNOWN: fi.Errno.EINVAL,
        }
    )
    keys = KeyRules(client_bits=32, known_at="enable", meanings=1 << 31)
    regions = RegionRules(bytes_min=0, busy="ep")
    queues = QueueRules(size=3, format_unspec=fi.CQ_FORMAT_CONTEXT)
    vectors = VectorRules(types=frozenset({fi.AV_TABLE}), remove_unknown="ignore")
    statuses: StatusMap = _STATUSES
    auth_key_size = 4
    max_ep_auth_key = 3
    domain_class = StrangeDomain

    def __init__(self) -> None:
        self._nics: dict[int, _nic.Nic] = {}

    def nic(self) -> _nic.Nic:
        """A NIC of its own for each process, without an engine thread: manual progress."""
        return self._nics.setdefault(os.getpid(), None) or self._opened()

    def _opened(self) -> _nic.Nic:
        self._nics[os.getpid()] = _nic.Nic(engine="manual")
        return self._nics[os.getpid()]

    def close(self) -> None:
        nic = self._nics.pop(os.getpid(), None)
        if nic is not None:
            nic.close()

    def credential_of(self, key: bytes) -> Credential:
        """VNI and service, two bytes each."""
        if len(key) != 4 or not any(key[:2]):
            raise errors.InvalidArgument(f"{key!r} is no authorization key of the provider {NAME}: 4 bytes")
        vni, service = struct.unpack("<HH", key)
        return Credential(vni, service, key)

    def offers(self, asked: Asked) -> list[Offer]:
        found = []
        for domain in ("strange0", "strange1"):
            info = fi.Info(
                caps=CAPS,
                addr_format=FORMAT,
                src_addr=self.addresses.emit((NIC, None, VNI)),
                tx_attr=fi.TxAttr(
                    caps=CAPS & TX_CAPS, msg_order=ORDER, inject_size=64, size=1024, iov_limit=1, rma_iov_limit=1
                ),
                rx_attr=fi.RxAttr(caps=CAPS & RX_CAPS, msg_order=ORDER, size=1024, iov_limit=1),
                ep_attr=fi.EpAttr(
                    type=fi.EP_RDM,
                    protocol=FORMAT,
                    protocol_version=1,
                    max_msg_size=1 << 32,
                    tx_ctx_cnt=1,
                    rx_ctx_cnt=1,
                ),
                domain_attr=fi.DomainAttr(
                    name=domain,
                    threading=fi.THREAD_SAFE,
                    control_progress=fi.PROGRESS_MANUAL,
                    data_progress=fi.PROGRESS_MANUAL,
                    resource_mgmt=fi.RM_ENABLED,
                    av_type=fi.AV_TABLE,
                    cq_data_size=8,
                    cq_cnt=64,
                    ep_cnt=64,
                    cntr_cnt=64,
                    max_ep_tx_ctx=1,
                    max_ep_rx_ctx=1,
                    mr_iov_limit=1,
                    caps=CAPS & DOMAIN_CAPS,
                    max_err_data=256,
                    mr_cnt=1 << 16,
                    max_ep_auth_key=1,
                    max_cntr_value=(1 << 64) - 1,
                    max_err_cntr_value=(1 << 64) - 1,
                ),
                fabric_attr=fi.FabricAttr(name="strange", prov_name=NAME, prov_version=self.version),
            )
            ceilings = {
                "domain_attr.max_ep_auth_key": 3,
                "tx_attr.op_flags": int(
                    fi.COMPLETION | fi.INJECT_COMPLETE | fi.TRANSMIT_COMPLETE | fi.DELIVERY_COMPLETE
                ),
            }
            quiet = fi.RMA_EVENT | fi.SOURCE | fi.RMA_PMEM
            found.append(Offer(info, ceilings, int(fi.MR_ENDPOINT), quiet=quiet))
        return found

    def select(self, candidates: list[Any], asked: Asked) -> list[Any]:
        """Offer the second NIC only if the hints name it."""
        if asked.hints is not None and asked.hints.domain_attr.name is not None:
            return candidates
        return [one for one in candidates if one.domain == "strange0"]

    def resolve(self, asked: Asked, offer: Offer | None) -> tuple[Any, Any]:
        """node is "strange0" or "strange1", of which an offer takes its own; service is an endpoint."""
        named = None
        if asked.node is not None or asked.service is not None:
            here = None if offer is None else offer.info.domain_attr.name
            if asked.node not in (None, here, "strange0"):
                raise errors.NotAvailable(f"no node {asked.node!r} here")
            if asked.service is not None and not asked.service.isdecimal():
                raise errors.NotAvailable(f"no service {asked.service!r} here")
            named = self.addresses.emit((NIC, None if asked.service is None else int(asked.service), VNI))
        hints = asked.hints
        if asked.flags & fi.SOURCE:
            return named, None if hints is None else hints.dest_addr
        src = None if hints is None else hints.src_addr
        return src, named if named is not None else None if hints is None else hints.dest_addr


def register() -> Strange:
    """Register the provider, until `unregister`."""
    found = Strange()
    registry.register(found)
    return found


def unregister(provider: Strange) -> None:
    registry._providers.pop(NAME, None)
    provider.close()


def application(domain: fi.Domain, ep: fi.Endpoint) -> None:
    """Take the steps of a program written for MR_ENDPOINT: bind each region to the endpoint, and enable it."""
    for name in ("mr_reg", "mr_regv", "mr_regattr"):
        setattr(domain, name, _bound(getattr(domain, name), ep))


def _bound(call: Any, ep: fi.Endpoint) -> Any:
    def registering(*args: Any, **more: Any) -> Any:
        mr = call(*args, **more)
        mr.bind(ep)
        mr.enable()
        return mr

    return registering
