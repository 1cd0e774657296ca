"""Memory that peers can map."""

from .arrays import allocator as allocator
from .arrays import empty as empty
from .arrays import zeros as zeros
from .cache import CacheState as CacheState
from .cache import CacheStatistics as CacheStatistics
from .cache import cache_settings as cache_settings
from .cache import cache_state as cache_state

__all__ = ["CacheState", "CacheStatistics", "allocator", "cache_settings", "cache_state", "empty", "zeros"]
