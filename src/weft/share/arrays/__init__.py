"""RemoteArray: the selection, its jobs, NumPy's operators and functions, and waiting for elements."""
