"""Who started this process, as which of how many, and on which hosts: read from the environment.

    here = weft.launch.environment()
    here.name, here.rank, here.size, here.hosts, here.slingshot, here.problems

`weft doctor` prints the result. Nothing else in Weft uses it: `weft.open()` does the same under every launcher.
"""

from __future__ import annotations

from .hosts import expand_hosts as expand_hosts
from .launchers import Launch as Launch
from .launchers import Launcher as Launcher
from .launchers import environment as environment
from .slingshot import Slingshot as Slingshot

__all__ = ["Launch", "Launcher", "Slingshot", "environment", "expand_hosts"]
