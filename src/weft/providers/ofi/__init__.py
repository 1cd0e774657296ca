"""The pass-through provider: a real libfabric, found at run time, behind the classes of `weft.fi`.

`fi.getinfo` names its offers `ofi:` and the library's name: `ofi:tcp`, `ofi:shm`, `ofi:verbs;ofi_rxm`. Nothing here is
imported, and no library is loaded, before a program asks for it: `library.py` says when.

Source: fi_getinfo(3), fi_provider(7).
"""
