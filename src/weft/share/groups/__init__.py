"""Groups: processes that share arrays and combine values."""
