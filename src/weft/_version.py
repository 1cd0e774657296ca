"""The version, without the cost of importlib.metadata; pyproject.toml agrees (tests/meta/test_rooms.py)."""

__version__ = "0.2.0"
