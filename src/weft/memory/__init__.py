"""Memory that peers can map."""

from .arrays import allocator as allocator
from .arrays import array as array
from .arrays import empty as empty
from .arrays import empty_like as empty_like
from .arrays import full as full
from .arrays import full_like as full_like
from .arrays import ones as ones
from .arrays import ones_like as ones_like
from .arrays import zeros as zeros
from .arrays import zeros_like as zeros_like
from .cache import CacheState as CacheState
from .cache import CacheStatistics as CacheStatistics
from .cache import cache_settings as cache_settings
from .cache import cache_state as cache_state

__all__ = [
    "CacheState",
    "CacheStatistics",
    "allocator",
    "array",
    "cache_settings",
    "cache_state",
    "empty",
    "empty_like",
    "full",
    "full_like",
    "ones",
    "ones_like",
    "zeros",
    "zeros_like",
]
