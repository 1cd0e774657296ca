"""Random hints: getinfo never crashes, and never returns an Info that contradicts them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from weft import fi

BITS = [int(flag) for flag in fi.Flag if int(flag).bit_count() == 1]


def flags(*likely: int) -> st.SearchStrategy[int]:
    """Mostly nothing or some of the likely bits, now and then any."""
    some = st.lists(st.sampled_from(likely), max_size=4).map(lambda bits: sum(set(bits)))
    return st.one_of(st.just(0), some, some, st.lists(st.sampled_from(BITS), max_size=3).map(lambda b: sum(set(b))))


def limits(*likely: int) -> st.SearchStrategy[int]:
    return st.one_of(st.just(0), st.just(0), st.just(0), st.sampled_from(likely), st.integers(0, 2**64 - 1))


def kinds(cls: Any) -> st.SearchStrategy[int]:
    return st.one_of(st.just(0), st.just(0), st.sampled_from([int(c) for c in cls]), st.integers(0, 2**32))


CAPS = flags(*map(int, (fi.RMA, fi.ATOMIC, fi.READ, fi.WRITE, fi.REMOTE_READ, fi.REMOTE_WRITE, fi.FENCE, fi.RMA_EVENT)))
ORDER = st.one_of(st.just(0), st.sampled_from([int(o) for o in fi.Order]), st.integers(0, 2**40))
MR_MODES = [int(m) for m in fi.MrMode if int(m).bit_count() == 1]
TEXT = st.one_of(st.none(), st.none(), st.sampled_from(("weft", "weft0", "cxi", "")), st.text(max_size=5))

FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "caps": CAPS,
    "mode": flags(*[int(m) for m in fi.Mode if int(m).bit_count() == 1]),
    "addr_format": kinds(fi.AddrFormat),
    "src_addr": st.sampled_from(("weft://0/1/5", "weft://0", b"weft://0/1", "junk", 7)),
    "dest_addr": st.sampled_from(("weft://0/1/5", "", "weft://9/9/9")),
    "tx_attr.caps": CAPS,
    "tx_attr.op_flags": flags(int(fi.COMPLETION), int(fi.DELIVERY_COMPLETE), int(fi.INJECT_COMPLETE)),
    "tx_attr.msg_order": ORDER,
    "tx_attr.inject_size": limits(1, 256, 257),
    "tx_attr.size": limits(1, 4096, 65536),
    "tx_attr.iov_limit": limits(1, 8, 9),
    "tx_attr.rma_iov_limit": limits(1, 8),
    "rx_attr.caps": CAPS,
    "rx_attr.msg_order": ORDER,
    "rx_attr.size": limits(1),
    "rx_attr.iov_limit": limits(8),
    "ep_attr.type": kinds(fi.EpType),
    "ep_attr.protocol": kinds(fi.Protocol),
    "ep_attr.max_msg_size": limits(1, 2**62),
    "ep_attr.max_order_raw_size": limits(2**60),
    "ep_attr.tx_ctx_cnt": limits(1, 2),
    "domain_attr.name": TEXT,
    "domain_attr.threading": kinds(fi.Threading),
    "domain_attr.control_progress": kinds(fi.Progress),
    "domain_attr.data_progress": kinds(fi.Progress),
    "domain_attr.resource_mgmt": kinds(fi.ResourceMgmt),
    "domain_attr.av_type": kinds(fi.AvType),
    "domain_attr.mr_mode": st.one_of(
        st.just(1), st.just(sum(MR_MODES) & ~3), st.lists(st.sampled_from(MR_MODES)).map(sum), st.integers(0, 2**31)
    ),
    "domain_attr.mr_key_size": limits(4, 8, 9),
    "domain_attr.mr_iov_limit": limits(1, 8, 9),
    "domain_attr.cntr_cnt": limits(10),
    "domain_attr.ep_cnt": limits(10),
    "domain_attr.mr_cnt": limits(1000, 2**21),
    "fabric_attr.name": TEXT,
    "fabric_attr.prov_name": TEXT,
    "tx_attr": st.none(),
    "rx_attr": st.none(),
    "ep_attr": st.none(),
    "domain_attr": st.none(),
    "fabric_attr": st.none(),
}


def build(wishes: list[tuple[str, Any]]) -> fi.Info:
    """An Info with some fields set: few, so that many are granted."""
    hints = fi.Info()
    for name, value in wishes:
        *part, last = name.split(".")
        target = getattr(hints, part[0]) if part else hints
        if target is not None:
            setattr(target, last, value)
    return hints


HINTS = st.lists(
    st.sampled_from(sorted(FIELDS)).flatmap(lambda name: st.tuples(st.just(name), FIELDS[name])), max_size=4
).map(build)
VERSIONS = st.one_of(
    st.none(), st.sampled_from([fi.VERSION(1, 4), fi.VERSION(1, 5), fi.VERSION(1, 22), fi.VERSION(2, 1)])
)
REQUIRED = st.sampled_from(
    ["", "local", "virt_addr", "prov_key", "virt_addr|prov_key|local", "endpoint", "raw", "basic"]
)

# A hint that is a lower bound, field by field.
AT_LEAST = {
    "tx_attr": ("inject_size", "size", "iov_limit", "rma_iov_limit"),
    "rx_attr": ("size", "iov_limit"),
    "ep_attr": ("max_msg_size", "max_order_raw_size", "tx_ctx_cnt"),
    "domain_attr": ("mr_key_size", "mr_iov_limit", "cntr_cnt", "ep_cnt", "mr_cnt"),
}
EQUAL = {
    "ep_attr": ("type", "protocol"),
    "domain_attr": ("name", "resource_mgmt", "av_type"),
    "fabric_attr": ("name", "prov_name"),
}
SPECIAL = {int(fi.MR_BASIC), int(fi.MR_SCALABLE)}


@pytest.mark.clause("mr.mode.getinfo-input", "mr.mode.kept-when-required", "mr.mode.cleared-when-not-needed")
@given(hints=HINTS, version=VERSIONS, required=REQUIRED)
@example(hints=fi.Info(), version=None, required="")
@example(hints=fi.Info(domain_attr=fi.DomainAttr(mr_mode=fi.MR_LOCAL | fi.MR_RAW)), version=None, required="local")
@settings(max_examples=400)
def test_getinfo_returns_nothing_that_contradicts_the_hints(hints: fi.Info, version: int | None, required: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEFT_MR_MODE", required)
        before = fi.dupinfo(hints)
        refused: fi.NoData | None = None
        infos = []
        try:
            infos = fi.getinfo(version, hints=hints)
        except fi.NoData as error:
            refused = error
        except fi.InvalidArgument:
            assert hints.src_addr is not None or hints.dest_addr is not None  # bytes that are no address
            return
        if refused is not None:
            assert refused.explanation.rejected
            assert str(refused)
            assert not fi.getinfo(version, hints=hints, explain=True).infos
            return
        event("accepted")
        assert hints == before
        assert infos
        explained = fi.getinfo(version, hints=hints, explain=True)
        assert explained.infos == infos
        assert str(explained)
    for info in infos:
        if info.fabric_attr.prov_name != "weft":
            continue  # it follows other rules: tests/cxi/test_hints.py
        assert info.caps & hints.caps == hints.caps
        assert hints.addr_format in (0, info.addr_format)
        assert info.mode & ~hints.mode == 0  # the application's required steps are among the steps that it offered
        for part, names in AT_LEAST.items():
            for name in names:
                asked = getattr(getattr(hints, part), name, 0)
                assert getattr(getattr(info, part), name) >= asked, (part, name)
        for part, names in EQUAL.items():
            for name in names:
                asked = getattr(getattr(hints, part), name, None)
                assert asked in (None, 0) or getattr(getattr(info, part), name) == asked, (part, name)
        for part in ("tx_attr", "rx_attr"):
            asked = getattr(getattr(hints, part), "msg_order", 0)
            assert getattr(info, part).msg_order & asked == asked
            asked = getattr(getattr(hints, part), "caps", 0)
            assert getattr(info, part).caps & asked == asked
        op_flags = getattr(hints.tx_attr, "op_flags", 0)
        assert info.tx_attr.op_flags == op_flags
        offered = getattr(hints.domain_attr, "mr_mode", 0)
        got = int(info.domain_attr.mr_mode)
        if version is None or version >= fi.VERSION(1, 5) or offered:
            assert got == offered if offered in SPECIAL else got & ~offered == 0
        names = {"local": fi.MR_LOCAL, "virt_addr": fi.MR_VIRT_ADDR, "prov_key": fi.MR_PROV_KEY, "raw": fi.MR_RAW}
        if got not in SPECIAL and offered:
            for word, bit in names.items():
                assert bool(got & bit) == (word in required.split("|") or (required == "basic" and word in BASIC))
        if info.dest_addr is None and hints.caps:
            usable(info)


BASIC = ("virt_addr", "prov_key")


def usable(info: fi.Info) -> None:
    """Each Info of getinfo can be opened."""
    with fi.Fabric(info.fabric_attr) as fabric, fabric.domain(info) as domain:
        ep = domain.endpoint(info)
        assert ep.info.caps == info.caps
        ep.close()
