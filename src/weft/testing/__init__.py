"""A pytest plugin for the tests of applications, and the functions behind its fixtures.

pytest loads the plugin of an installed Weft by itself (`pip install 'weft-fabric[testing]'` also installs pytest):

    def test_put(weft_pair):            # two endpoints of the general provider, connected
        data = bytearray(64)
        mr = weft_pair.target.reg(data, fi.REMOTE_WRITE)
        addr, key = weft_pair.remote(mr)
        weft_pair.initiator.ep.write(b"hello", dest_addr=weft_pair.peer, addr=addr, key=key)
        weft_pair.initiator.wait()
        assert data[:5] == b"hello"

    def test_exchange(mr_mode):         # runs once under each registration mode
        ...

`pytest -p weft.testing`, or `pytest_plugins = ["weft.testing"]` in a conftest.py, loads the plugin from a source tree.

    plugin.py     weft_pair, weft_domain, weft_hints, mr_mode; cxi_pair, cxi_domain, cxi_hints, cxi_host, cxi_service
    stacks.py     Stack, Pair, opened, pair: fabric to endpoint in one object
    slingshot.py  cxi: CXI devices for one test, with limits that the test can reach
    manager.py    fabric_manager: a Fabric Manager for one test
    modes.py      MR_MODES, requiring: the registration modes of fi_mr(3)

pytest imports this package in every run, even if no test uses Weft. So the package imports no other module of Weft: a
fixture does when it is used, and the names of `stacks` and `modes` are resolved at their first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

try:
    from .plugin import cxi_domain as cxi_domain
    from .plugin import cxi_hints as cxi_hints
    from .plugin import cxi_host as cxi_host
    from .plugin import cxi_pair as cxi_pair
    from .plugin import cxi_service as cxi_service
    from .plugin import mr_mode as mr_mode
    from .plugin import weft_domain as weft_domain
    from .plugin import weft_hints as weft_hints
    from .plugin import weft_pair as weft_pair
except ModuleNotFoundError as _error:
    from .._extras import missing  # not before: pytest imports this package in every run

    if (_text := missing(_error, "weft.testing")) is None:
        raise
    raise ModuleNotFoundError(_text, name=_error.name) from None

_ON_USE = {
    "manager": "FabricManager fabric_manager",
    "modes": "MR_MODES requiring",
    "slingshot": "CxiHost cxi",
    "stacks": "Pair Stack opened pair",
}
_MODULES = {name: module for module, names in _ON_USE.items() for name in names.split()}

if TYPE_CHECKING:  # `make flags` writes the list
    from ._on_use import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return getattr(importlib.import_module(f"weft.testing.{_MODULES[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
