"""Tickets, names, and the processes that hold them."""
