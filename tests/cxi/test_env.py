"""fi_cxi(7) "RUNTIME PARAMETERS": values, defaults, bounds, and what stands in for a bad text."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any

import pytest

from weft.providers.cxi import env

clause = pytest.mark.clause


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("FI_", "CXI", "SLINGSHOT_", "WEFT_CXI_RELEASE"))]:
        monkeypatch.delenv(name)


def value(name: str) -> Any:
    return getattr(env.load(), name)


# ---- defaults --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param("FI_CXI_OFLOW_BUF_SIZE", 2 << 20, marks=clause("cxi.env.oflow-buf-size-default")),
        pytest.param("FI_CXI_OFLOW_BUF_MIN_POSTED", 3, marks=clause("cxi.env.oflow-buf-min-posted-default")),
        pytest.param("FI_CXI_OFLOW_BUF_MAX_CACHED", 9, marks=clause("cxi.env.oflow-buf-max-cached-default")),
        pytest.param("FI_CXI_MR_MATCH_EVENTS", False, marks=clause("cxi.env.mr-match-events-default")),
        pytest.param("FI_CXI_PROV_KEY_CACHE", True, marks=clause("cxi.env.prov-key-cache-default")),
        pytest.param("FI_CXI_HYBRID_PREEMPTIVE", False, marks=clause("cxi.env.hybrid-preemptive-default")),
        pytest.param("FI_CXI_HYBRID_RECV_PREEMPTIVE", False, marks=clause("cxi.env.hybrid-recv-preemptive-default")),
        pytest.param("FI_CXI_HYBRID_POSTED_RECV_PREEMPTIVE", False, marks=clause("cxi.env.hybrid-posted-recv-default")),
        pytest.param(
            "FI_CXI_HYBRID_UNEXPECTED_MSG_PREEMPTIVE", False, marks=clause("cxi.env.hybrid-unexp-msg-default")
        ),
        pytest.param("FI_CXI_REQ_BUF_SIZE", 2 << 20, marks=clause("cxi.env.req-buf-size-default")),
        pytest.param("FI_CXI_REQ_BUF_MIN_POSTED", 4, marks=clause("cxi.env.req-buf-min-posted-default")),
        pytest.param("FI_CXI_REQ_BUF_MAX_CACHED", 0, marks=clause("cxi.env.req-buf-max-cached-default")),
        pytest.param("FI_CXI_MSG_LOSSLESS", False, marks=clause("cxi.env.msg-lossless-default")),
        pytest.param("FI_CXI_COLL_TIMEOUT_USEC", 32000, marks=clause("cxi.env.coll-timeout-default")),
        pytest.param("FI_CXI_COLL_USE_DMA_PUT", False, marks=clause("cxi.env.coll-dma-put-default")),
        pytest.param("FI_CXI_ENABLE_TRIG_OP_LIMIT", False, marks=clause("cxi.trig.limit-default")),
        pytest.param("FI_CXI_RDZV_THRESHOLD", 2048),
        pytest.param("FI_CXI_RDZV_GET_MIN", 2049),
        pytest.param("FI_CXI_DEFAULT_VNI", 10),
        pytest.param("FI_CXI_DEFAULT_CQ_SIZE", 1024),
        pytest.param("FI_CXI_DEFAULT_TX_SIZE", 1024),
        pytest.param("FI_CXI_DEFAULT_RX_SIZE", 1024),
        pytest.param("FI_CXI_CQ_FILL_PERCENT", 50),
        pytest.param("FI_CXI_EQ_ACK_BATCH_SIZE", 32),
        pytest.param("FI_CXI_RX_MATCH_MODE", "hardware"),
        pytest.param("FI_CXI_OPTIMIZED_MRS", True),
        pytest.param("FI_CXI_COMPAT", 1),
        pytest.param("FI_CXI_TELEMETRY_RGID", -1),
        pytest.param("FI_CXI_DEVICE_NAME", ()),
    ],
)
def test_default_is_the_document_s(name: str, expected: Any) -> None:
    assert value(name) == expected
    assert env.load().all[name].origin == "default"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("FI_CXI_DEFAULT_CQ_SIZE", 131072),
        ("FI_CXI_DEFAULT_TX_SIZE", 1024),
        ("FI_CXI_RDZV_THRESHOLD", 16384),
        ("FI_CXI_RDZV_EAGER_SIZE", 2048),
        ("FI_CXI_OFLOW_BUF_SIZE", 12582912),
        ("FI_CXI_REQ_BUF_MIN_POSTED", 6),
        ("FI_CXI_COLL_TIMEOUT_USEC", 20000000),
    ],
)
def test_default_of_current_releases(monkeypatch: pytest.MonkeyPatch, name: str, expected: Any) -> None:
    monkeypatch.setenv("WEFT_CXI_RELEASE", "current")
    assert value(name) == expected


def test_variable_of_other_releases_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FI_CXI_ENABLE_WRITEDATA", "1")
    assert "FI_CXI_ENABLE_WRITEDATA" not in {row.name for row in env.table()}
    monkeypatch.setenv("WEFT_CXI_RELEASE", "current")
    assert env.load().FI_CXI_ENABLE_WRITEDATA is True
    assert "FI_CXI_COMPAT" not in {row.name for row in env.table()}


# ---- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "words"),
    [
        pytest.param("FI_CXI_ATS_MLOCK_MODE", ("off", "all"), marks=clause("cxi.env.ats-mlock-values")),
        pytest.param("FI_CXI_RDZV_PROTO", ("default", "alt_read"), marks=clause("cxi.env.rdzv-proto-values")),
        pytest.param("FI_CXI_LLRING_MODE", ("idle", "always", "never"), marks=clause("cxi.env.llring-values")),
        pytest.param(
            "FI_CXI_CQ_POLICY",
            ("always", "high_empty", "low_empty", "low"),
            marks=clause("cxi.env.cq-policy-values"),
        ),
        pytest.param(
            "FI_CXI_RX_MATCH_MODE",
            ("hardware", "software", "hybrid"),
            marks=clause("cxi.env.rx-match-mode-values"),
        ),
    ],
)
def test_words_are_taken_and_others_are_not(monkeypatch: pytest.MonkeyPatch, name: str, words: tuple[str, ...]) -> None:
    default = value(name)
    for word in words:
        monkeypatch.setenv(name, word)
        assert value(name) == word
        assert env.load().all[name].origin == "environment"
    for word in ("", "everything", words[0] + "s"):
        monkeypatch.setenv(name, word)
        assert value(name) == default
        assert env.load().all[name].origin == "default"


@pytest.mark.parametrize("text", ["1", "yes", "TRUE", "on"])
def test_flag_is_set(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("FI_CXI_MR_MATCH_EVENTS", text)
    assert value("FI_CXI_MR_MATCH_EVENTS") is True


@pytest.mark.parametrize("text", ["0", "No", "false", "off"])
def test_flag_is_cleared(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("FI_CXI_OPTIMIZED_MRS", text)
    assert value("FI_CXI_OPTIMIZED_MRS") is False


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(
            "FI_CXI_OFLOW_BUF_COUNT",
            "FI_CXI_OFLOW_BUF_MIN_POSTED",
            marks=clause("cxi.env.oflow-buf-count"),
        ),
        pytest.param(
            "FI_CXI_REQ_BUF_MAX_COUNT",
            "FI_CXI_REQ_BUF_MAX_CACHED",
            marks=clause("cxi.env.req-buf-max-count"),
        ),
    ],
)
def test_older_name_is_as_good(monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    monkeypatch.setenv(old, "17")
    assert value(new) == 17
    monkeypatch.setenv(new, "18")
    assert value(new) == 18


@clause("cxi.env.disable-cq-hugetlb")
def test_older_name_of_the_hugetlb_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FI_CXI_DISABLE_CQ_HUGETLB", "1")
    assert value("FI_CXI_DISABLE_EQ_HUGETLB") is True


@clause("cxi.env.device-name-format")
def test_device_name_is_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FI_CXI_DEVICE_NAME", "cxi0,cxi1")
    assert value("FI_CXI_DEVICE_NAME") == ("cxi0", "cxi1")
    for wrong in ("cxi0,eth0", "cxi100", "cxi"):
        monkeypatch.setenv("FI_CXI_DEVICE_NAME", wrong)
        assert value("FI_CXI_DEVICE_NAME") == ()


# ---- bounds ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("FI_CXI_DEFAULT_TX_SIZE", "15", 1024),
        ("FI_CXI_DEFAULT_TX_SIZE", "16", 16),
        ("FI_CXI_DEFAULT_TX_SIZE", "16384", 16384),
        ("FI_CXI_DEFAULT_TX_SIZE", "16385", 1024),
        ("FI_CXI_DEFAULT_RX_SIZE", "15361", 1024),
        ("FI_CXI_DEFAULT_CQ_SIZE", "0", 1024),
        ("FI_CXI_DEFAULT_CQ_SIZE", "0x20", 32),
        ("FI_CXI_CQ_FILL_PERCENT", "101", 50),
        ("FI_CXI_EQ_ACK_BATCH_SIZE", "0", 1),
        ("FI_CXI_RDZV_THRESHOLD", "10", 192),
        ("FI_CXI_SW_RX_TX_INIT_MAX", "5", 64),
        ("FI_CXI_FC_RETRY_USEC_DELAY", "-1", 0),
        ("FI_CXI_RNR_MAX_TIMEOUT_US", "-1", 500000),
        ("FI_CXI_REQ_BUF_MIN_POSTED", "1", 2),
        ("FI_CXI_ZBCOLL_RADIX", "0", 2),
        ("FI_CXI_COLL_RETRY_USEC", "99999", 32000),
        ("FI_CXI_DEFAULT_VNI", "65536", 10),
        ("FI_CXI_OFLOW_BUF_MAX_CACHED", "2", 3),
        ("FI_CXI_OFLOW_BUF_MAX_CACHED", "0", 0),
        ("FI_CXI_REQ_BUF_SIZE", "100", 63 + 2048 + 2049),
        ("FI_CXI_COLL_FABRIC_MGR_URL", "ftp://fm", ""),
        ("FI_CXI_RDZV_EAGER_SIZE", "5000", 2048),
        ("FI_CXI_COMPAT", "3", 1),
        pytest.param(
            "FI_CXI_COLL_TIMEOUT_USEC",
            "20000001",
            20000000,
            marks=clause("cxi.env.coll-timeout-max"),
        ),
        pytest.param("FI_CXI_CTRL_RX_EQ_MAX_SIZE", "5000", 8192, marks=clause("cxi.env.ctrl-rx-eq-align")),
    ],
)
def test_number_out_of_bounds_is_replaced(monkeypatch: pytest.MonkeyPatch, name: str, text: str, expected: Any) -> None:
    monkeypatch.setenv(name, text)
    assert value(name) == expected


@clause("cxi.env.rdzv-sum-limit")
def test_rendezvous_fits_an_overflow_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FI_CXI_OFLOW_BUF_SIZE", "8192")
    monkeypatch.setenv("FI_CXI_RDZV_THRESHOLD", "8000")
    assert (value("FI_CXI_RDZV_THRESHOLD"), value("FI_CXI_RDZV_GET_MIN")) == (8000, 0)
    monkeypatch.setenv("FI_CXI_RDZV_THRESHOLD", "6143")
    assert (value("FI_CXI_RDZV_THRESHOLD"), value("FI_CXI_RDZV_GET_MIN")) == (6143, 2049)
    monkeypatch.setenv("FI_CXI_RDZV_THRESHOLD", "8193")
    assert value("FI_CXI_RDZV_THRESHOLD") == 2048


def test_overflow_buffers_are_kept_three_for_each_posted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FI_CXI_OFLOW_BUF_MIN_POSTED", "5")
    assert value("FI_CXI_OFLOW_BUF_MAX_CACHED") == 15


def test_forced_odp_turns_odp_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FI_CXI_FORCE_ODP", "1")
    assert value("FI_CXI_ODP") is True


def test_bad_text_is_warned_of_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("FI_CXI_DEFAULT_TX_SIZE", "many, and of this test")
    with caplog.at_level(logging.WARNING, "weft.cxi"):
        assert value("FI_CXI_DEFAULT_TX_SIZE") == 1024
        assert value("FI_CXI_DEFAULT_TX_SIZE") == 1024
    (record,) = caplog.records
    assert "FI_CXI_DEFAULT_TX_SIZE='many, and of this test' is no whole number: 1024 is used" in record.getMessage()


# ---- the table -------------------------------------------------------------------------------------------------------


def test_table_says_value_origin_and_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FI_CXI_DEFAULT_TX_SIZE", "64")
    monkeypatch.setenv("FI_CXI_COLL_MCAST_TOKEN", "of the fabric manager")
    rows = {row.name: row for row in env.table()}
    assert rows["FI_CXI_DEFAULT_TX_SIZE"][1:3] == ("64", "environment")
    assert rows["FI_CXI_DEFAULT_RX_SIZE"][1:3] == ("1024", "default")
    assert rows["FI_CXI_DEFAULT_TX_SIZE"].effect == "as documented"
    assert "event queue" in rows["FI_UNIVERSE_SIZE"].effect
    assert rows["FI_CXI_RDZV_THRESHOLD"].effect == "as documented"
    assert rows["FI_CXI_COLL_MCAST_TOKEN"].value == "set, not shown"
    assert all(row.meaning and row.values and row.effect for row in rows.values())


# Read by their name elsewhere: in auth_key.py, and in weft.settings.
READ_BY_NAME = {
    "SLINGSHOT_VNIS",
    "SLINGSHOT_DEVICES",
    "SLINGSHOT_SVC_IDS",
    "FI_MR_CACHE_MAX_SIZE",
    "FI_MR_CACHE_MONITOR",
}


def test_variable_that_works_as_documented_is_used() -> None:
    """A variable without effect says why; every other variable is read somewhere in the provider."""
    sources = [path for path in Path(env.__file__).parent.glob("*.py") if path.name != "env.py"]
    text = "".join(path.read_text(encoding="utf-8") for path in sources)
    names = {v.name for v in env.CxiEnvironment.variables() if not v.effect}
    unused = {name for name in names - READ_BY_NAME if not re.search(rf"\b(e|found)\.{name}\b", text)}
    assert unused == set()
