"""weft.errors: one type, a class for each code that callers handle."""

from __future__ import annotations

import pickle

import pytest

from weft import errors, fi
from weft.testing import Pair


@pytest.mark.parametrize(
    ("code", "cls", "also"),
    [
        (fi.EAGAIN, fi.Again, BlockingIOError),
        (fi.ENOKEY, fi.NoKey, OSError),
        (fi.EKEYREJECTED, fi.KeyRejected, OSError),
        (fi.EBUSY, fi.Busy, OSError),
        (fi.ETOOSMALL, fi.TooSmall, OSError),
        (fi.EADDRNOTAVAIL, fi.NotAvailable, OSError),
        (fi.EAVAIL, fi.Available, OSError),
        (fi.EOPBADSTATE, fi.BadState, OSError),
        (fi.EBADFLAGS, fi.BadFlags, ValueError),
        (fi.EINVAL, fi.InvalidArgument, ValueError),
        (fi.EACCES, fi.AccessDenied, PermissionError),
        (fi.ENODATA, fi.NoData, OSError),
        (fi.ETIMEDOUT, fi.TimedOut, TimeoutError),
        (fi.ECONNREFUSED, fi.ConnectionRefused, ConnectionRefusedError),
        (fi.ECONNRESET, fi.ConnectionReset, ConnectionResetError),
    ],
)
def test_error_code_has_a_class(code: int, cls: type[fi.FabricError], also: type[Exception]) -> None:
    error = errors.make(code, "what happened")
    assert type(error) is cls
    assert isinstance(error, fi.FabricError)
    assert isinstance(error, also)
    assert error.errno == code
    assert str(error) == f"{code!s}: what happened"


@pytest.mark.clause("mr.ret.errno-header", "rma.ret.errno-header")
def test_error_numbers_are_names_of_weft_fi() -> None:
    """fi_errno(3): the numbers that calls report have names; and each has words."""
    for code in fi.Errno:
        assert getattr(fi, code.name) is code
        assert fi.strerror(code) != fi.strerror(9999)


def test_error_made_of_a_negated_number_is_the_same() -> None:
    assert type(errors.make(-fi.EBUSY, "x")) is fi.Busy


def test_error_of_a_code_without_class_is_the_base() -> None:
    error = errors.make(fi.EPROTO, "bad frame")
    assert type(error) is fi.FabricError
    assert error.errno == fi.EPROTO


def test_error_without_message_says_what_the_code_means() -> None:
    assert fi.Busy().message == fi.strerror(fi.EBUSY)


@pytest.mark.parametrize(
    ("message", "op"),
    [
        ("mr_reg: no buffer", "mr_reg"),
        ("domain.bind: the queue is closed", "domain.bind"),
        ("write(loc=...): no region", "write(loc=...)"),
        ("close of a domain: endpoint 3 is open", None),
        ("no region has key 7", None),
        ("", None),
    ],
)
def test_error_names_its_call_from_its_message(message: str, op: str | None) -> None:
    assert errors.make(fi.EINVAL, message).op == op


def test_error_names_the_call_that_it_was_told() -> None:
    error = fi.Busy("mr_reg: a key is in use", op="refresh")
    assert error.op == "refresh"
    error.op = "close"
    assert (error.op, str(error)) == ("close", f"{fi.EBUSY!s}: mr_reg: a key is in use")


def test_error_of_the_extension_names_its_call(weft_pair: Pair) -> None:
    with pytest.raises(fi.FabricError) as caught:
        weft_pair.initiator.ep.inject_write(bytes(1 << 20), weft_pair.peer, 0, 7)
    assert caught.value.op == "inject_write"


def test_error_survives_pickling() -> None:
    error = fi.KeyRejected("no region has key 7", op="write", peer=3)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.errno, copy.message, copy.op, copy.peer) == (
        fi.KeyRejected,
        fi.EKEYREJECTED,
        "no region has key 7",
        "write",
        3,
    )


def test_error_subclass_codes_are_distinct() -> None:
    classes = [one for one in fi.FabricError.__subclasses__() if one.__module__ == fi.FabricError.__module__]
    assert len({int(c.code) for c in classes}) == len(classes)
    assert {c.__name__ for c in classes} <= set(fi.__all__)
