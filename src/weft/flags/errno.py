"""Error numbers: the system's, and libfabric's own from 256 on."""

from __future__ import annotations

from ._base import Enum


class Errno(Enum):
    """Error numbers: the platform's below 256, libfabric's own from there. Calls in C return them negated."""

    SUCCESS = 0
    EPERM = 1
    ENOENT = 2
    EINTR = 4
    EIO = 5
    E2BIG = 7
    EBADF = 9
    EAGAIN = 11
    EWOULDBLOCK = 11
    ENOMEM = 12
    EACCES = 13
    EFAULT = 14
    EBUSY = 16
    ENODEV = 19
    EINVAL = 22
    EMFILE = 24
    ENOSPC = 28
    ENOSYS = 38
    ENOMSG = 42
    ENODATA = 61
    EPROTO = 71
    EOVERFLOW = 75
    EMSGSIZE = 90
    ENOPROTOOPT = 92
    EOPNOTSUPP = 95
    EADDRINUSE = 98
    EADDRNOTAVAIL = 99
    ENETDOWN = 100
    ENETUNREACH = 101
    ECONNABORTED = 103
    ECONNRESET = 104
    ENOBUFS = 105
    EISCONN = 106
    ENOTCONN = 107
    ESHUTDOWN = 108
    ETIMEDOUT = 110
    ECONNREFUSED = 111
    EHOSTDOWN = 112
    EHOSTUNREACH = 113
    EALREADY = 114
    EINPROGRESS = 115
    EREMOTEIO = 121
    ECANCELED = 125
    EKEYREJECTED = 129
    EOTHER = 256
    ETOOSMALL = 257
    EOPBADSTATE = 258
    EAVAIL = 259
    EBADFLAGS = 260
    ENOEQ = 261
    EDOMAIN = 262
    ENOCQ = 263
    ECRC = 264
    ETRUNC = 265
    ENOKEY = 266
    ENOAV = 267
    EOVERRUN = 268
    ENORX = 269
    ENOMR = 270
    EFIREWALLADDR = 271
