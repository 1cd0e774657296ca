"""Options and operation flags of CXI endpoints: fi_getopt, fi_setopt, fi_set_val, FI_SETOPSFLAG."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cxi.support import opened
from tests.fi.support import Node

from weft import cxi, fi


@pytest.mark.parametrize("value", [0, 26, 90001, (1 << 24) - 1])
def test_min_multi_recv_is_set(node: Node, value: int) -> None:
    assert node.ep.getopt(fi.OPT_ENDPOINT, fi.OPT_MIN_MULTI_RECV) == 64
    node.ep.setopt(fi.OPT_ENDPOINT, fi.OPT_MIN_MULTI_RECV, value)
    assert node.ep.getopt(fi.OPT_ENDPOINT, fi.OPT_MIN_MULTI_RECV) == value


@pytest.mark.parametrize("value", [1 << 24, -1, None, "64"])
def test_min_multi_recv_out_of_range_is_refused(node: Node, value: Any) -> None:
    with pytest.raises(fi.InvalidArgument):
        node.ep.setopt(fi.OPT_ENDPOINT, fi.OPT_MIN_MULTI_RECV, value)
    assert node.ep.getopt(fi.OPT_ENDPOINT, fi.OPT_MIN_MULTI_RECV) == 64


@pytest.mark.parametrize(
    "option", [fi.OPT_TX_SIZE, fi.OPT_MAX_MSG_SIZE, fi.OPT_CM_DATA_SIZE, fi.OPT_XPU_TRIGGER, 12345]
)
def test_options_of_others_are_not_there(node: Node, option: int) -> None:
    with pytest.raises(fi.NoProtocolOption):
        node.ep.getopt(fi.OPT_ENDPOINT, option)
    with pytest.raises(fi.NoProtocolOption):
        node.ep.setopt(fi.OPT_ENDPOINT, option, 1)


def test_options_that_there_are_have_names(node: Node) -> None:
    with pytest.raises(fi.NoProtocolOption) as refused:
        node.ep.getopt(fi.OPT_ENDPOINT, fi.OPT_CM_DATA_SIZE)
    assert "unknown option OPT_CM_DATA_SIZE" in str(refused.value)
    assert "known: OPT_MIN_MULTI_RECV, OPT_CXI_GET_RNR_APPEND_RETRY_ATTEMPTS" in str(refused.value)


@pytest.mark.parametrize("level", [1, -1, -(1 << 31)])
def test_options_have_one_level(node: Node, level: int) -> None:
    with pytest.raises(fi.NoProtocolOption, match=f"level {level};"):
        node.ep.getopt(level, fi.OPT_MIN_MULTI_RECV)
    with pytest.raises(fi.NoProtocolOption, match=f"level {level};"):
        node.ep.setopt(level, fi.OPT_MIN_MULTI_RECV, 64)


@pytest.mark.parametrize("value", [True, False, None])
def test_cuda_is_not_permitted_where_there_is_none(node: Node, value: Any) -> None:
    if node.domain.policy.nic.hmem_devices(1) is not None:
        pytest.skip("this machine has CUDA")
    with pytest.raises(fi.NotSupported, match="no CUDA"):
        node.ep.setopt(fi.OPT_ENDPOINT, fi.OPT_CUDA_API_PERMITTED, value)


def test_retries_are_those_of_the_rnr_protocol(node: Node) -> None:
    with pytest.raises(fi.InvalidArgument, match="PROTO_CXI_RNR"):
        node.ep.getopt(fi.OPT_ENDPOINT, cxi.OPT_CXI_GET_RNR_APPEND_RETRY_ATTEMPTS)
    with pytest.raises(fi.InvalidArgument, match="PROTO_CXI_RNR"):
        node.ep.set_val(cxi.OPT_CXI_SET_RNR_MAX_RETRY_TIME, 1000)


# ---- FI_GETOPSFLAG, FI_SETOPSFLAG ------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [0, int(fi.TRANSMIT | fi.RECV), None])
def test_op_flags_are_of_one_side(node: Node, flags: Any) -> None:
    for command in (fi.GETOPSFLAG, fi.SETOPSFLAG):
        with pytest.raises(fi.InvalidArgument):
            node.ep.control(command, flags)


@pytest.mark.clause("cxi.op.transmit-complete-default")
@pytest.mark.parametrize("level", [fi.INJECT_COMPLETE, fi.TRANSMIT_COMPLETE, fi.DELIVERY_COMPLETE])
def test_op_flags_are_replaced_and_have_a_level(node: Node, level: fi.Flag) -> None:
    node.ep.control(fi.SETOPSFLAG, fi.TRANSMIT | fi.COMPLETION | level)
    assert node.ep.control(fi.GETOPSFLAG, fi.TRANSMIT) == fi.COMPLETION | level
    node.ep.control(fi.SETOPSFLAG, fi.TRANSMIT)
    assert node.ep.control(fi.GETOPSFLAG, fi.TRANSMIT) == fi.TRANSMIT_COMPLETE
    node.ep.control(fi.SETOPSFLAG, fi.RECV | fi.MULTI_RECV)
    assert node.ep.control(fi.GETOPSFLAG, fi.RECV) == fi.MULTI_RECV


def test_cq_without_selective_completion_sets_op_flags_completion() -> None:
    for cq_flags, there in ((fi.TRANSMIT | fi.RECV, True), (fi.TRANSMIT | fi.RECV | fi.SELECTIVE_COMPLETION, False)):
        with opened(cq_flags=int(cq_flags)) as node:
            node.ep.control(fi.SETOPSFLAG, fi.RECV)
            assert bool(node.ep.control(fi.GETOPSFLAG, fi.TRANSMIT) & fi.COMPLETION) is there


@pytest.mark.parametrize("command", [fi.GET_RAW_MR, fi.BACKLOG, fi.GETWAIT, fi.DUP, 4711])
def test_other_commands_of_an_endpoint_are_refused(node: Node, command: int) -> None:
    with pytest.raises(fi.InvalidArgument):
        node.ep.control(command)
    with pytest.raises(fi.InvalidArgument):
        node.ep.get_val(cxi.OPT_CXI_SET_TCLASS)
    with pytest.raises(fi.InvalidArgument):
        node.ep.set_val(cxi.OPT_CXI_GET_OPTIMIZED_MRS, 1)
    with pytest.raises(fi.InvalidArgument):
        node.ep.set_val(cxi.OPT_CXI_SET_TCLASS, None)


def of_counter(node: Node, command: int) -> None:
    with node.domain.cntr_open() as cntr:
        cntr.control(command)


UNKNOWN = {
    "domain.control": (lambda node: node.domain.control(fi.ENABLE), "ENABLE here\n  known: OPT_CXI_SET_"),
    "domain.set_val": (
        lambda node: node.domain.set_val(cxi.OPT_CXI_SET_TCLASS, 0),
        "OPT_CXI_SET_TCLASS here\n  try: domain.control(cxi.OPT_CXI_SET_...), or ep.set_val",
    ),
    "domain.open_ops": (lambda node: node.domain.open_ops("x"), "'x' here\n  known: dom_ops_v1 to dom_ops_v6"),
    "ep.set_val": (lambda node: node.ep.set_val(1, 0), "value 1 here\n  known: OPT_CXI_SET_TCLASS"),
    "ep.control": (
        lambda node: node.ep.control(fi.GETWAIT),
        "GETWAIT here\n  known: GETOPSFLAG, SETOPSFLAG, ALIAS, ENABLE",
    ),
    "cq.control": (lambda node: node.cq.control(fi.ENABLE), "ENABLE here\n  known: GETWAIT"),
    "av.control": (lambda node: node.av.control(fi.ENABLE), "ENABLE here\n  this object has no commands"),
    "cntr.control": (lambda node: of_counter(node, fi.ENABLE), "ENABLE here\n  known: GETOPSFLAG, SETOPSFLAG"),
}


@pytest.mark.parametrize("call", UNKNOWN)
def test_refusal_of_an_unknown_command_names_the_known_ones(node: Node, call: str) -> None:
    run, text = UNKNOWN[call]
    with pytest.raises(fi.FabricError) as refused:
        run(node)
    assert refused.value.message.startswith(call)
    assert text in refused.value.message


def test_option_that_cannot_be_set_is_refused_by_name(node: Node) -> None:
    with pytest.raises(fi.NoProtocolOption, match="OPT_CXI_GET_RNR_APPEND_RETRY_ATTEMPTS cannot be set"):
        node.ep.setopt(fi.OPT_ENDPOINT, cxi.OPT_CXI_GET_RNR_APPEND_RETRY_ATTEMPTS, 1)
