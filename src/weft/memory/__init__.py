"""Memory that peers can map."""

from .arrays import allocator as allocator
from .arrays import empty as empty
from .arrays import zeros as zeros

__all__ = ["allocator", "empty", "zeros"]
