"""fi_cxi(7) "RUNTIME PARAMETERS": what each variable is where nothing, or nonsense, is said, in both releases."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from weft.providers.cxi import env
from weft.providers.cxi.kinds import Count, Flag, Words
from weft.tools.cli import main

MIB = 1 << 20
U64_MAX = (1 << 64) - 1

# Variable -> its default in the releases of the document, and in later ones where that is another.
DEFAULTS: dict[str, tuple[Any, ...]] = {
    "ODP": (False,),
    "FORCE_ODP": (False,),
    "ATS": (False,),
    "ATS_MLOCK_MODE": ("all",),
    "IOTLB": (True,),
    "DEVICE_NAME": ((),),
    "DEFAULT_VNI": (10,),
    "DEFAULT_CQ_SIZE": (1024, 131072),
    "DEFAULT_TX_SIZE": (1024,),
    "DEFAULT_RX_SIZE": (1024,),
    "CQ_FILL_PERCENT": (50,),
    "EQ_ACK_BATCH_SIZE": (32,),
    "CQ_POLICY": ("low_empty",),
    "LLRING_MODE": ("idle",),
    "DISABLE_EQ_HUGETLB": (False,),
    "CTRL_RX_EQ_MAX_SIZE": (67108864,),
    "CNTR_SPIN_BEFORE_YIELD": (1000,),
    "ENABLE_TRIG_OP_LIMIT": (False,),
    "RX_MATCH_MODE": ("hardware",),
    "RDZV_THRESHOLD": (2048, 16384),
    "RDZV_GET_MIN": (2049,),
    "RDZV_EAGER_SIZE": (2048,),
    "RDZV_PROTO": ("default",),
    "RDZV_ALIGNED_SW_RGET": (True,),
    "DISABLE_ALT_READ_CMDQ": (False,),
    "RGET_TC": ("",),
    "OFLOW_BUF_SIZE": (2 * MIB, 12 * MIB),
    "OFLOW_BUF_MIN_POSTED": (3,),
    "OFLOW_BUF_MAX_CACHED": (9,),
    "REQ_BUF_SIZE": (2 * MIB, 12 * MIB),
    "REQ_BUF_MIN_POSTED": (4, 6),
    "REQ_BUF_MAX_CACHED": (0,),
    "SW_RX_TX_INIT_MAX": (1024,),
    "MSG_LOSSLESS": (False,),
    "FC_RETRY_USEC_DELAY": (1000,),
    "HYBRID_PREEMPTIVE": (False,),
    "HYBRID_RECV_PREEMPTIVE": (False,),
    "HYBRID_POSTED_RECV_PREEMPTIVE": (False,),
    "HYBRID_UNEXPECTED_MSG_PREEMPTIVE": (False,),
    "RNR_MAX_TIMEOUT_US": (500_000,),
    "TRUNC_OK": (False,),
    "OPTIMIZED_MRS": (True,),
    "PROV_KEY_CACHE": (True,),
    "MR_MATCH_EVENTS": (False,),
    "MR_TARGET_ORDERING": ("default",),
    "MR_CACHE_EVENTS_DISABLE_POLL_NSECS": (100_000,),
    "MR_CACHE_EVENTS_DISABLE_LE_POLL_NSECS": (1_000_000_000,),
    "DISABLE_NON_INJECT_MSG_IDC": (False,),
    "DISABLE_NON_INJECT_RMA_IDC": (False,),
    "DISABLE_NON_INJECT_AMO_IDC": (False,),
    "DISABLE_HOST_REGISTER": (False,),
    "SAFE_DEVMEM_COPY_THRESHOLD": (4096,),
    "DISABLE_HMEM_DEV_REGISTER": (False,),
    "FORCE_ZE_HMEM_SUPPORT": (False,),
    "FORCE_DEV_REG_COPY": (False,),
    "DISABLE_DMABUF_CUDA": (False,),
    "DISABLE_DMABUF_ROCR": (False,),
    "ZBCOLL_RADIX": (2,),
    "COLL_JOB_ID": ("",),
    "COLL_JOB_STEP_ID": ("",),
    "COLL_MCAST_TOKEN": ("",),
    "COLL_FABRIC_MGR_URL": ("",),
    "COLL_FABRIC_MGR_CACERT": ("no",),
    "COLL_RETRY_USEC": (32_000,),
    "COLL_TIMEOUT_USEC": (32_000, 20_000_000),
    "COLL_USE_DMA_PUT": (False,),
    "HWCOLL_ADDRS_PER_JOB": (0,),
    "HWCOLL_MIN_NODES": (U64_MAX,),
    "TELEMETRY": ((),),
    "TELEMETRY_RGID": (-1,),
}
DOC_ALONE = {"COMPAT": 1}
CURRENT_ALONE = {
    "CNTR_TRIG_CMDQ": False,
    "RNR_APPEND_RETRY_TIMEOUT_US": 2_000_000,
    "ENABLE_WRITEDATA": False,
    "DISABLE_CUDA_SYNC_MEMOPS": False,
}


def defaults(release: str) -> dict[str, Any]:
    """Variable -> its default in a release."""
    alone = DOC_ALONE if release == "doc" else CURRENT_ALONE
    return {name: both[0 if release == "doc" else -1] for name, both in DEFAULTS.items()} | alone


@pytest.mark.parametrize("release", ["doc", "current"])
def test_release_has_exactly_these_variables_and_defaults(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CXI_RELEASE", release)
    e = env.load()
    there = {v.name.removeprefix("FI_CXI_"): v for v in e.variables(release) if v.name.startswith("FI_CXI_")}
    assert {name: e.all[v.name].value for name, v in there.items()} == defaults(release)


@pytest.mark.parametrize("release", ["doc", "current"])
@pytest.mark.parametrize("text", ["nonsense", "", "-", "1.5", "0x"])
def test_nonsense_leaves_the_default_and_is_noted(release: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CXI_RELEASE", release)
    for v in env.CxiEnvironment.variables(release):
        if not v.name.startswith("FI_CXI_") or not isinstance(v.parse, (Flag, Count, Words)):
            continue
        with monkeypatch.context() as here:
            here.setenv(v.name, text)
            found = env.load().all[v.name]
        assert (found.value, found.origin) == (defaults(release)[v.name.removeprefix("FI_CXI_")], "default"), v.name
        assert v.name in found.note, v.name


@pytest.mark.parametrize("release", ["doc", "current"])
def test_info_shows_every_variable_with_origin_meaning_and_effect(
    release: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WEFT_CXI_RELEASE", release)
    monkeypatch.setenv("FI_CXI_DEFAULT_TX_SIZE", "100")
    monkeypatch.setenv("FI_CXI_DEFAULT_RX_SIZE", "a lot")

    def told(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["weft", "info", "-p", "cxi", "-e", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        return capsys.readouterr().out

    rows = {row["variable"].split()[0]: row for row in json.loads(told("--json"))["environment"]}
    text = told()
    for name in [f"FI_CXI_{name}" for name in defaults(release)] + [
        "CXI_FORK_SAFE",
        "FI_UNIVERSE_SIZE",
        "SLINGSHOT_VNIS",
    ]:
        row = rows[name]
        assert row["from"] == ("environment" if name == "FI_CXI_DEFAULT_TX_SIZE" else "default"), name
        assert row["values"], name
        assert row["meaning"], name
        assert row["effect"].startswith(("as ", "none: ")), (name, row["effect"])
        assert f"{name}={row['value']} ({row['from']})" in text, name
        assert f"# {row['meaning']}" in text, name
    assert rows["FI_CXI_DEFAULT_TX_SIZE"]["value"] == "100"
    assert "'a lot' is no whole number" in rows["FI_CXI_DEFAULT_RX_SIZE"]["effect"]
