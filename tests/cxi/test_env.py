"""fi_cxi(7) "RUNTIME PARAMETERS": values, defaults, bounds, and what stands in for a bad text."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any

import pytest

from weft.providers.cxi import env
from weft.settings import Variable

clause = pytest.mark.clause


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("FI_", "CXI", "SLINGSHOT_", "WEFT_CXI_RELEASE"))]:
        monkeypatch.delenv(name)


def value(attribute: str) -> Any:
    return getattr(env.load(), attribute)


# ---- defaults --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attribute", "expected"),
    [
        pytest.param("oflow_buf_size", 2 << 20, marks=clause("cxi.env.oflow-buf-size-default")),
        pytest.param("oflow_buf_min_posted", 3, marks=clause("cxi.env.oflow-buf-min-posted-default")),
        pytest.param("oflow_buf_max_cached", 9, marks=clause("cxi.env.oflow-buf-max-cached-default")),
        pytest.param("mr_match_events", False, marks=clause("cxi.env.mr-match-events-default")),
        pytest.param("prov_key_cache", True, marks=clause("cxi.env.prov-key-cache-default")),
        pytest.param("hybrid_preemptive", False, marks=clause("cxi.env.hybrid-preemptive-default")),
        pytest.param("hybrid_recv_preemptive", False, marks=clause("cxi.env.hybrid-recv-preemptive-default")),
        pytest.param("hybrid_posted_recv_preemptive", False, marks=clause("cxi.env.hybrid-posted-recv-default")),
        pytest.param("hybrid_unexpected_msg_preemptive", False, marks=clause("cxi.env.hybrid-unexp-msg-default")),
        pytest.param("req_buf_size", 2 << 20, marks=clause("cxi.env.req-buf-size-default")),
        pytest.param("req_buf_min_posted", 4, marks=clause("cxi.env.req-buf-min-posted-default")),
        pytest.param("req_buf_max_cached", 0, marks=clause("cxi.env.req-buf-max-cached-default")),
        pytest.param("msg_lossless", False, marks=clause("cxi.env.msg-lossless-default")),
        pytest.param("coll_timeout_usec", 32000, marks=clause("cxi.env.coll-timeout-default")),
        pytest.param("coll_use_dma_put", False, marks=clause("cxi.env.coll-dma-put-default")),
        pytest.param("enable_trig_op_limit", False, marks=clause("cxi.trig.limit-default")),
        pytest.param("rdzv_threshold", 2048),
        pytest.param("rdzv_get_min", 2049),
        pytest.param("default_vni", 10),
        pytest.param("default_cq_size", 1024),
        pytest.param("default_tx_size", 1024),
        pytest.param("default_rx_size", 1024),
        pytest.param("cq_fill_percent", 50),
        pytest.param("eq_ack_batch_size", 32),
        pytest.param("rx_match_mode", "hardware"),
        pytest.param("optimized_mrs", True),
        pytest.param("compat", 1),
        pytest.param("telemetry_rgid", -1),
        pytest.param("device_name", ()),
    ],
)
def test_default_is_the_document_s(attribute: str, expected: Any) -> None:
    assert value(attribute) == expected
    assert env.load().found(attribute).origin == "default"


@pytest.mark.parametrize(
    ("attribute", "expected"),
    [
        ("default_cq_size", 131072),
        ("default_tx_size", 1024),
        ("rdzv_threshold", 16384),
        ("rdzv_eager_size", 2048),
        ("oflow_buf_size", 12582912),
        ("req_buf_min_posted", 6),
        ("coll_timeout_usec", 20000000),
    ],
)
def test_default_of_current_releases(monkeypatch: pytest.MonkeyPatch, attribute: str, expected: Any) -> None:
    monkeypatch.setenv("WEFT_CXI_RELEASE", "current")
    assert value(attribute) == expected


def test_variable_of_other_releases_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FI_CXI_ENABLE_WRITEDATA", "1")
    assert "FI_CXI_ENABLE_WRITEDATA" not in {row.name for row in env.table()}
    monkeypatch.setenv("WEFT_CXI_RELEASE", "current")
    assert env.load().enable_writedata is True
    assert "FI_CXI_COMPAT" not in {row.name for row in env.table()}


# ---- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "attribute", "words"),
    [
        pytest.param(
            "FI_CXI_ATS_MLOCK_MODE", "ats_mlock_mode", ("off", "all"), marks=clause("cxi.env.ats-mlock-values")
        ),
        pytest.param(
            "FI_CXI_RDZV_PROTO", "rdzv_proto", ("default", "alt_read"), marks=clause("cxi.env.rdzv-proto-values")
        ),
        pytest.param(
            "FI_CXI_LLRING_MODE", "llring_mode", ("idle", "always", "never"), marks=clause("cxi.env.llring-values")
        ),
        pytest.param(
            "FI_CXI_CQ_POLICY",
            "cq_policy",
            ("always", "high_empty", "low_empty", "low"),
            marks=clause("cxi.env.cq-policy-values"),
        ),
        pytest.param(
            "FI_CXI_RX_MATCH_MODE",
            "rx_match_mode",
            ("hardware", "software", "hybrid"),
            marks=clause("cxi.env.rx-match-mode-values"),
        ),
    ],
)
def test_words_are_taken_and_others_are_not(
    monkeypatch: pytest.MonkeyPatch, variable: str, attribute: str, words: tuple[str, ...]
) -> None:
    default = value(attribute)
    for word in words:
        monkeypatch.setenv(variable, word)
        assert value(attribute) == word
        assert env.load().found(attribute).origin == "environment"
    for word in ("", "everything", words[0] + "s"):
        monkeypatch.setenv(variable, word)
        assert value(attribute) == default
        assert env.load().found(attribute).origin == "default"


@pytest.mark.parametrize("text", ["1", "yes", "TRUE", "on"])
def test_flag_is_set(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("FI_CXI_MR_MATCH_EVENTS", text)
    assert value("mr_match_events") is True


@pytest.mark.parametrize("text", ["0", "No", "false", "off"])
def test_flag_is_cleared(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("FI_CXI_OPTIMIZED_MRS", text)
    assert value("optimized_mrs") is False


@pytest.mark.parametrize(
    ("old", "new", "attribute"),
    [
        pytest.param(
            "FI_CXI_OFLOW_BUF_COUNT",
            "FI_CXI_OFLOW_BUF_MIN_POSTED",
            "oflow_buf_min_posted",
            marks=clause("cxi.env.oflow-buf-count"),
        ),
        pytest.param(
            "FI_CXI_REQ_BUF_MAX_COUNT",
            "FI_CXI_REQ_BUF_MAX_CACHED",
            "req_buf_max_cached",
            marks=clause("cxi.env.req-buf-max-count"),
        ),
    ],
)
def test_older_name_is_as_good(monkeypatch: pytest.MonkeyPatch, old: str, new: str, attribute: str) -> None:
    monkeypatch.setenv(old, "17")
    assert value(attribute) == 17
    monkeypatch.setenv(new, "18")
    assert value(attribute) == 18


@clause("cxi.env.disable-cq-hugetlb")
def test_older_name_of_the_hugetlb_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FI_CXI_DISABLE_CQ_HUGETLB", "1")
    assert value("disable_eq_hugetlb") is True


@clause("cxi.env.device-name-format")
def test_device_name_is_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FI_CXI_DEVICE_NAME", "cxi0,cxi1")
    assert value("device_name") == ("cxi0", "cxi1")
    for wrong in ("cxi0,eth0", "cxi100", "cxi"):
        monkeypatch.setenv("FI_CXI_DEVICE_NAME", wrong)
        assert value("device_name") == ()


# ---- bounds ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "text", "attribute", "expected"),
    [
        ("FI_CXI_DEFAULT_TX_SIZE", "15", "default_tx_size", 1024),
        ("FI_CXI_DEFAULT_TX_SIZE", "16", "default_tx_size", 16),
        ("FI_CXI_DEFAULT_TX_SIZE", "16384", "default_tx_size", 16384),
        ("FI_CXI_DEFAULT_TX_SIZE", "16385", "default_tx_size", 1024),
        ("FI_CXI_DEFAULT_RX_SIZE", "15361", "default_rx_size", 1024),
        ("FI_CXI_DEFAULT_CQ_SIZE", "0", "default_cq_size", 1024),
        ("FI_CXI_DEFAULT_CQ_SIZE", "0x20", "default_cq_size", 32),
        ("FI_CXI_CQ_FILL_PERCENT", "101", "cq_fill_percent", 50),
        ("FI_CXI_EQ_ACK_BATCH_SIZE", "0", "eq_ack_batch_size", 1),
        ("FI_CXI_RDZV_THRESHOLD", "10", "rdzv_threshold", 192),
        ("FI_CXI_SW_RX_TX_INIT_MAX", "5", "sw_rx_tx_init_max", 64),
        ("FI_CXI_FC_RETRY_USEC_DELAY", "-1", "fc_retry_usec_delay", 0),
        ("FI_CXI_RNR_MAX_TIMEOUT_US", "-1", "rnr_max_timeout_us", 500000),
        ("FI_CXI_REQ_BUF_MIN_POSTED", "1", "req_buf_min_posted", 2),
        ("FI_CXI_ZBCOLL_RADIX", "0", "zbcoll_radix", 2),
        ("FI_CXI_COLL_RETRY_USEC", "99999", "coll_retry_usec", 32000),
        ("FI_CXI_DEFAULT_VNI", "65536", "default_vni", 10),
        ("FI_CXI_OFLOW_BUF_MAX_CACHED", "2", "oflow_buf_max_cached", 3),
        ("FI_CXI_OFLOW_BUF_MAX_CACHED", "0", "oflow_buf_max_cached", 0),
        ("FI_CXI_REQ_BUF_SIZE", "100", "req_buf_size", 63 + 2048 + 2049),
        ("FI_CXI_COLL_FABRIC_MGR_URL", "ftp://fm", "coll_fabric_mgr_url", ""),
        ("FI_CXI_RDZV_EAGER_SIZE", "5000", "rdzv_eager_size", 2048),
        ("FI_CXI_COMPAT", "3", "compat", 1),
        pytest.param(
            "FI_CXI_COLL_TIMEOUT_USEC",
            "20000001",
            "coll_timeout_usec",
            20000000,
            marks=clause("cxi.env.coll-timeout-max"),
        ),
        pytest.param(
            "FI_CXI_CTRL_RX_EQ_MAX_SIZE", "5000", "ctrl_rx_eq_max_size", 8192, marks=clause("cxi.env.ctrl-rx-eq-align")
        ),
    ],
)
def test_number_out_of_bounds_is_replaced(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, attribute: str, expected: Any
) -> None:
    monkeypatch.setenv(variable, text)
    assert value(attribute) == expected


@clause("cxi.env.rdzv-sum-limit")
def test_rendezvous_fits_an_overflow_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FI_CXI_OFLOW_BUF_SIZE", "8192")
    monkeypatch.setenv("FI_CXI_RDZV_THRESHOLD", "8000")
    assert (value("rdzv_threshold"), value("rdzv_get_min")) == (8000, 0)
    monkeypatch.setenv("FI_CXI_RDZV_THRESHOLD", "6143")
    assert (value("rdzv_threshold"), value("rdzv_get_min")) == (6143, 2049)
    monkeypatch.setenv("FI_CXI_RDZV_THRESHOLD", "8193")
    assert value("rdzv_threshold") == 2048


def test_overflow_buffers_are_kept_three_for_each_posted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FI_CXI_OFLOW_BUF_MIN_POSTED", "5")
    assert value("oflow_buf_max_cached") == 15


def test_forced_odp_turns_odp_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FI_CXI_FORCE_ODP", "1")
    assert value("odp") is True


def test_bad_text_is_warned_of_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("FI_CXI_DEFAULT_TX_SIZE", "many, and of this test")
    with caplog.at_level(logging.WARNING, "weft.cxi"):
        assert value("default_tx_size") == 1024
        assert value("default_tx_size") == 1024
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
READ_BY_NAME = {"slingshot_vnis", "slingshot_devices", "slingshot_svc_ids", "mr_cache_max_size", "mr_cache_monitor"}


def test_variable_that_works_as_documented_is_used() -> None:
    """A variable without effect says why; every other variable is read somewhere in the provider."""
    sources = [path for path in Path(env.__file__).parent.glob("*.py") if path.name != "env.py"]
    text = "".join(path.read_text(encoding="utf-8") for path in sources)
    names = {name for name, v in vars(env.CxiEnvironment).items() if isinstance(v, Variable) and not v.effect}
    unused = {name for name in names - READ_BY_NAME if not re.search(rf"\b(e|found)\.{name}\b", text)}
    assert unused == set()
