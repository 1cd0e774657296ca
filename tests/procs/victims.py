"""Victims: processes that are forked to be killed."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable


def fork_victim(victim: Callable[[int], object]) -> tuple[int, int]:
    """Run victim(fd) in a forked process, which ends with it; (its pid, a descriptor to read what it writes to fd).

    It inherits no NIC if this process has none open.
    """
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(ready)
            victim(told)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(1)
    os.close(told)
    return pid, ready
