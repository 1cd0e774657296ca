"""Locks, semaphores, events, barriers and queues in shared memory."""
