"""Kept arrays, locks and queues, and the process that keeps them."""
