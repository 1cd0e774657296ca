"""The answers to one client: getinfo, and what the provider's policy decides when a C program opens objects.

For each object that a client opens, the helper opens the same object of `weft.fi`, so that every check and every text
of a refusal is the one that Python programs get; the client's library then makes its own object with the resolved
numbers. When a client ends, the helper closes the objects that the client left open.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import errors, fi, settings
from .._process import client
from ..fi.endpoint import Bindings
from ..fi.info import of_provider
from ..flags import Control, Errno, Flag
from . import extensions, groups, infos, keys, network, rules
from .records import Record, Value, pack, unpack

if TYPE_CHECKING:
    from ..fi.attrs import Info

_Answer = Mapping[str, Value]

_EXTENSIONS: Mapping[str, Callable[[Any, Record], _Answer]] = {
    "control": extensions.own_control,
    "get_val": extensions.get_val,
    "set_val": extensions.set_val,
    "getopt": extensions.getopt,
    "setopt": extensions.setopt,
    "open_ops": extensions.open_ops,
    "set_ops": extensions.set_ops,
    "dom_ops": extensions.dom_ops,
    "work_waits": extensions.work_waits,
    "work_full": extensions.work_full,
    "insert_auth_key": keys.insert,
    "lookup_auth_key": keys.lookup,
    "insert_with_key": keys.insert_peer,
    "remove_with_key": keys.remove,
    "key_user_id": keys.user_id,
    "key_of": keys.of_sender,
    "query_collective": groups.query,
    "av_set": groups.av_set,
    "group": groups.run,
}
"""Question -> its answer about an object that the client has."""


class Client:
    """The objects of one client.

    Args:
        pid: The client's process, which refusals name; 0: this one.
        environ: The environment by which the client's NIC is made; None: this process's.
        folder: A folder of this user alone, for files that the client loads; None: there is none.
    """

    def __init__(self, pid: int = 0, environ: Mapping[str, str] | None = None, folder: Path | None = None) -> None:
        self._pid, self._environ, self._folder = pid, environ, folder
        self._leases: dict[int, tuple[Any, Callable[[], object]]] = {}
        self._last = secrets.randbits(62)  # random, so that a number of an earlier helper is unknown here
        self._wanted = 0
        self._questions: dict[str, Callable[[Record], _Answer]] = {
            "getinfo": _getinfo,
            "nic_control": _nic_control,
            "domain": self._domain,
            "endpoint": self._endpoint,
            "passive_ep": self._passive_ep,
            "cq": self._cq,
            "cntr": self._cntr,
            "av": self._av,
            "insertsvc": self._insertsvc,
            "insertsym": self._insertsym,
            "eq": self._eq,
            "bind": self._bind,
            "enable": self._enable,
            "op_flags": self._op_flags,
            "alias": self._alias,
            "outcome": self._outcome,
            "explain": self._explain,
            "query_atomic": self._query_atomic,
            "reclaim": self._reclaim,
            "mr_auth_key": self._mr_auth_key,
            "join": self._join,
            **{name: self._extension(call) for name, call in _EXTENSIONS.items()},
            "close": self._close,
        }

    def answer(self, question: bytes) -> bytes:
        """The answer to a question; a refusal is an answer with `errno` and `text`."""
        before = client.set(self._pid)
        try:
            asked = unpack(question)
            what = asked.text("ask") or ""
            self._wanted = asked.number("lease")
            handler = self._questions.get(what)
            if handler is None:
                raise errors.NoSys(f"the policy helper knows no question {what!r}")
            return pack(handler(asked))
        except errors.FabricError as refused:
            return pack({"errno": int(refused.errno or Errno.EOTHER), "text": refused.message})
        except Exception as broken:  # a defect of Weft: tell the client, and go on serving others
            return pack({"errno": int(Errno.EOTHER), "text": f"the policy helper failed: {broken!r}"})
        finally:
            client.reset(before)

    def close(self) -> None:
        """Close the objects that the ended client left open, last opened first."""
        for lease in sorted(self._leases, reverse=True):
            with contextlib.suppress(errors.FabricError):
                self._leases.pop(lease)[1]()

    # ---- objects -----------------------------------------------------------------------------------------------------

    def _keep(self, held: Any, end: Callable[[], object] | None = None) -> int:
        """The lease of an object: a new number, or the number that an earlier, killed helper gave it."""
        number = self._wanted or self._last + 1
        self._last = max(self._last, number)
        self._leases[number] = held, end or held.close
        return number

    def _held(self, asked: Record, name: str = "of") -> Any:
        found = self._leases.get(asked.number(name))
        if found is None:
            raise errors.BadState(f"the policy helper has no object {asked.number(name)}: it is closed")
        return found[0]

    def _domain(self, asked: Record) -> _Answer:
        environ = {
            **(os.environ if self._environ is None else self._environ),
            **network.variables(unpack(asked.bytes_of("variables") or pack({}))),
        }
        s = settings.Settings(environ)
        nic = {**rules.process(s, settings.CacheSettings(environ)), "network": network.process(s, self._folder)}
        info = infos.info_of(unpack(asked.bytes_of("info") or b""))
        of_info, of_fabric = info.fabric_attr.prov_name, asked.text("provider")
        if of_info and of_fabric and of_info != of_fabric:
            names = f"the info is of provider {of_info}, and the fabric of {of_fabric}"
            raise errors.InvalidArgument(f"fi_domain: {names}\n  try: the info whose fabric_attr opened this fabric")
        fabric = fi.Fabric(info.fabric_attr)
        try:
            domain = fabric.domain(info)
        except BaseException:
            fabric.close()
            raise

        def end() -> None:
            domain.close()
            fabric.close()

        return {
            "lease": self._keep(domain, end),
            **rules.domain(domain),
            "nic": nic,
        }

    def _endpoint(self, asked: Record) -> _Answer:
        domain = self._held(asked)
        ep = domain.endpoint(infos.info_of(unpack(asked.bytes_of("info") or b"")))

        def end() -> None:
            ep.policy.close()
            ep.close()

        return {"lease": self._keep(ep, end), **rules.endpoint(ep)}

    def _passive_ep(self, asked: Record) -> _Answer:
        pep = self._held(asked).fabric.passive_ep(infos.info_of(unpack(asked.bytes_of("info") or b"")))
        return {"lease": self._keep(pep), **rules.passive_endpoint(pep)}

    def _cq(self, asked: Record) -> _Answer:
        names = ("size", "flags", "format", "wait_obj", "signaling_vector", "wait_cond")
        cq = self._held(asked).cq_open(**{name: asked.number(name) for name in names})
        return {"lease": self._keep(cq), **rules.queue(cq)}

    def _cntr(self, asked: Record) -> _Answer:
        cntr = self._held(asked).cntr_open(**{name: asked.number(name) for name in ("events", "wait_obj", "flags")})
        of = cntr.domain.policy.counters
        return {
            "lease": self._keep(cntr),
            "wait_obj": int(cntr.wait_obj),
            "trywaits": int("cntr" in cntr.domain.provider.trywaits),
            "value_max": of.value_max,
            "errors_max": of.errors_max,
            "client_memory": int(of.client_memory),
            "cached": int(bool(asked.number("flags") & of.cached)),
        }

    def _av(self, asked: Record) -> _Answer:
        names = ("type", "rx_ctx_bits", "count", "ep_per_node", "flags")
        av = self._held(asked).av_open(name=asked.text("name"), **{name: asked.number(name) for name in names})
        return {"lease": self._keep(av), "type": int(av.type)}

    def _insertsvc(self, asked: Record) -> _Answer:
        """The address of a node and a service; the client inserts it."""
        av = self._held(asked)
        found = av.insertsvc(asked.text("node"), asked.text("service"), asked.number("flags"))
        return {"address": infos.address_bytes(av.lookup(found))}

    def _insertsym(self, asked: Record) -> _Answer:
        self._held(asked).insertsym(asked.text("node"), 1, asked.text("service"))
        return {}

    def _eq(self, asked: Record) -> _Answer:
        info = fi.FabricAttr(name=asked.text("fabric"), prov_name=asked.text("provider"))
        fabric = fi.Fabric(info)
        eq = fabric.eq_open(**{name: asked.number(name) for name in ("size", "flags", "wait_obj")})

        def end() -> None:
            eq.close()
            fabric.close()

        trywaits = int("eq" in fabric.provider.trywaits)
        return {"lease": self._keep(eq, end), "wait_obj": int(eq.wait_obj), "trywaits": trywaits}

    def _bind(self, asked: Record) -> _Answer:
        self._held(asked).bind(self._held(asked, "to"), asked.number("flags"))
        return {}

    def _enable(self, asked: Record) -> _Answer:
        ep = self._held(asked)
        ep.policy.check_enable(Bindings(ep))
        vnis = ep._vnis()
        ep._enabled = bool(vnis)  # its vector takes no more keys
        return {**rules.matching(ep), "vni": vnis}

    def _extension(self, call: Callable[[Any, Record], _Answer]) -> Callable[[Record], _Answer]:
        return lambda asked: call(self._held(asked), asked)

    def _op_flags(self, asked: Record) -> _Answer:
        ep = self._held(asked)
        ep.control(Control.SETOPSFLAG, asked.number("flags"))
        return rules.handle(ep)

    def _alias(self, asked: Record) -> _Answer:
        alias = self._held(asked).alias(asked.number("flags"))
        return {"lease": self._keep(alias), **rules.handle(alias)}

    def _outcome(self, asked: Record) -> _Answer:
        return rules.outcome(self._held(asked).policy, asked)

    def _mr_auth_key(self, asked: Record) -> _Answer:
        return keys.of_region(self._held(asked), self._held(asked, "av") if "av" in asked else None, asked)

    def _join(self, asked: Record) -> _Answer:
        answer, lease = groups.join(self._held(asked), asked)
        return answer if lease is None else {**answer, "lease": self._keep(lease)}

    def _explain(self, asked: Record) -> _Answer:
        of = self._held(asked)
        provider = of.provider if hasattr(of, "provider") else of.fabric.provider
        return {"text": provider.explain_error(_signed(asked.number("prov_errno")), None)}

    def _query_atomic(self, asked: Record) -> _Answer:
        attr = self._held(asked).query_atomic(asked.number("datatype"), asked.number("op"), asked.number("flags"))
        return {"count": attr.count, "size": attr.size}

    def _reclaim(self, asked: Record) -> _Answer:
        """Give back what dead processes have of the domain's service."""
        policy = self._held(asked).policy
        if hasattr(policy, "pool"):
            policy.pool.reclaim("les")
        return {}

    def _close(self, asked: Record) -> _Answer:
        found = self._leases.pop(asked.number("of"), None)
        if found is not None:
            try:
                found[1]()
            except errors.Busy:
                self._leases[asked.number("of")] = found
                raise
        return {}


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


# ---- getinfo ---------------------------------------------------------------------------------------------------------


def _getinfo(asked: Record) -> _Answer:
    name = asked.text("provider") or ""
    hinted = asked.bytes_of("hints")
    found = offers(
        name,
        asked.number("version"),
        None if hinted is None else infos.info_of(unpack(hinted)),
        asked.text("node"),
        asked.text("service"),
        asked.number("flags"),
    )
    return {"offer": [infos.record_of(info) for info in found], "pid": os.getpid()}


def _nic_control(asked: Record) -> _Answer:
    """fi_control of an Info's NIC: the attributes that the provider changes."""
    provider, name = asked.text("provider") or "", asked.text("name")
    every = of_provider(provider, fi.VERSION(2, 1), None, None, 0, None)
    nic = next((info.nic for info in every if info.nic is not None and info.nic.name == name), None)
    if nic is None:
        raise errors.NoDevice(f"nic.control: {provider} has no NIC {name} any more\n  try: `weft device list`")
    control = getattr(nic.prov_attr, "control", None)
    if control is None:
        raise errors.NoSys(f"nic.control: a NIC of {provider} has no commands")
    control(_signed(asked.number("command")), None)
    return infos.record_of_prov(nic.prov_attr)


def offers(
    name: str, version: int, hints: Info | None, node: str | None = None, service: str | None = None, flags: int = 0
) -> list[Info]:
    """The offers that a C program gets of a provider. Raises as `fi.getinfo`. The hints get the provider's name."""
    if hints is not None:
        hints.fabric_attr.prov_name = name
    found = of_provider(name, version, node, service, flags, hints)
    if hints is not None and hints.caps & Flag.SOURCE_ERR:
        return found
    return [_without(info, Flag.SOURCE_ERR) for info in found]


def _without(info: Info, gone: Flag) -> Info:
    """An offer without FI_SOURCE_ERR, which only programs get that ask for it.

    MPICH takes over all capabilities of an offer, and ends when a message from an unknown sender is an error entry.
    """
    for part in (info, info.tx_attr, info.rx_attr, info.domain_attr):
        part.caps = Flag(part.caps & ~gone)
    return info
