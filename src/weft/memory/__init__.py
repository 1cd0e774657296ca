"""Memory that peers can map."""

from .allocator import empty as empty
from .allocator import zeros as zeros

__all__ = ["empty", "zeros"]
