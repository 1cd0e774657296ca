"""The reference page of settings agrees with the extension, and every table becomes bytes and back."""

from __future__ import annotations

from typing import Any

import pytest
from tests.meta.settings import PAGE, page

from weft import _nic, _process, errors

assert _process  # gives the extension its error classes
TABLES = [name for name, _, _ in _nic.tables()]


def test_page_of_settings_is_what_the_extension_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m tests.meta.settings`"


@pytest.mark.parametrize("name", TABLES)
def test_table_is_read_as_it_was_written(name: str) -> None:
    table: Any = getattr(_nic, name)
    assert table.from_record(table().to_record()) == table()
    assert repr(table()) == f"{name}()"


def test_record_keeps_what_was_set() -> None:
    made = _nic.EndpointConfig(caps=5, pids=_nic.PidRange(first=1, last=2))
    made.rules.set_flags("read", 3)
    made.messages.match.mode = _nic.MatchMode.hybrid
    read = _nic.EndpointConfig.from_record(made.to_record())
    assert read == made
    assert (read.pids.last, read.rules.flags("read"), read.messages.match.mode) == (2, 3, _nic.MatchMode.hybrid)


def test_damaged_record_is_refused() -> None:
    record = _nic.QueueConfig(size=9).to_record()
    with pytest.raises(errors.FabricError, match=r"a record of QueueConfig: .* the record was cut"):
        _nic.QueueConfig.from_record(record[:10])
    with pytest.raises(errors.InvalidArgument, match="of table 17, not of table 18"):
        _nic.CounterConfig.from_record(record)
    with pytest.raises(errors.FabricError, match="bytes were changed on their way"):
        _nic.QueueConfig.from_record(record[:-1] + b"\xff")
    with pytest.raises(TypeError):
        _nic.QueueConfig.from_record("text")  # type: ignore[arg-type]


# ---- what a table takes ----------------------------------------------------------------------------------------------


def test_unknown_field_is_refused_with_the_known_ones() -> None:
    with pytest.raises(TypeError, match="PidRange has no field 'frist'; there are first, last"):
        _nic.PidRange(frist=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="PidRange has no field"):
        _nic.PidRange().replace(frist=1)
    with pytest.raises(AttributeError):
        _nic.PidRange().frist = 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(("field", "value", "error", "text"), [
    ("caps", "x", TypeError, "EndpointConfig.caps is a number, not 'x'"),
    ("caps", 1.0, TypeError, "EndpointConfig.caps is a number"),
    ("caps", -1, errors.InvalidArgument, "EndpointConfig.caps is 0 to 0xffffffffffffffff, not -1"),
    ("vni", 65536, errors.InvalidArgument, "EndpointConfig.vni is 0 to 65535, not 65536"),
    ("connected", 1, TypeError, "EndpointConfig.connected is True or False, not 1"),
    ("rules", None, TypeError, "EndpointConfig.rules is of type OpRules, not None"),
    ("pids", (1, 2), TypeError, "EndpointConfig.pids is of type PidRange"),
])  # fmt: skip
def test_value_that_a_field_does_not_take_is_refused(
    field: str, value: object, error: type[Exception], text: str
) -> None:
    config = _nic.EndpointConfig()
    with pytest.raises(error, match=text):
        setattr(config, field, value)
    assert config == _nic.EndpointConfig()


def test_choice_is_taken_by_its_type_alone() -> None:
    mode = _nic.RxModeConfig(mode=_nic.MatchMode.software)
    with pytest.raises(TypeError, match="of type MatchMode: unlimited, hardware, hybrid or software, not 2"):
        mode.mode = 2  # type: ignore[assignment]
    with pytest.raises(TypeError, match="of type MatchMode"):
        mode.mode = _nic.WriteBack.low  # type: ignore[assignment]
    assert mode.mode == _nic.MatchMode.software


def test_statuses_need_an_entry_each() -> None:
    with pytest.raises(errors.InvalidArgument, match=r"StatusMap.entries has 34 elements, not 1"):
        _nic.StatusMap(entries=[(1, 2)])
    with pytest.raises(TypeError, match="StatusCode"):
        _nic.StatusMap(entries=[1] * 34)  # type: ignore[list-item]
    codes = _nic.StatusMap(entries=[(-number, number) for number in range(34)]).entries
    assert (codes[33].err, codes[33].prov) == (-33, 33)


def test_part_of_a_table_lives_as_long_as_it_is_used() -> None:
    match = _nic.EndpointConfig(messages=_nic.MessageConfig(credits=3)).messages
    assert match.credits == 3
    changed = match.replace(credits=4)
    assert (match.credits, changed.credits) == (3, 4)
