"""Statistics of an endpoint, whose records are imported at the first use: few programs look at them."""

from __future__ import annotations

from typing import Any


class Counted:
    """The calls of an endpoint that count. The numbers come from its core as dictionaries."""

    __slots__ = ()

    def statistics(self) -> Any:
        """A snapshot of the transmit context; works on a disabled endpoint, too."""
        from .ep_statistics import EndpointStatistics

        return EndpointStatistics(**super().statistics())  # type: ignore[misc]  # the core's

    def message_statistics(self) -> Any:
        """A snapshot of the messages: match mode, list entries, flow control; works on a disabled endpoint, too."""
        from .ep_statistics import MessageStatistics

        return MessageStatistics(**super().message_statistics())  # type: ignore[misc]  # the core's
