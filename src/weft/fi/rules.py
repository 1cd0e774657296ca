"""The named rules that calls enforce, and a provider's errors for them.

A refusal that another provider might answer differently is a `Rule` and a text. The rule has the man page's error;
`Refusals` replaces the error if a provider's documents have another. The text is the same under every provider: what
was asked, what was found, which rule, what to do next.
"""

# ruff: noqa: PIE796 (several rules have the same error; each is a member of its own)
from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from .. import errors
from ..flags import Errno


class Rule(enum.Enum):
    """A rule that a call enforces; `errno` is the man page's error number, which a provider may replace."""

    errno: Errno

    def __new__(cls, errno: Errno) -> Rule:
        rule = object.__new__(cls)
        rule._value_ = len(cls.__members__)  # several rules have the same error
        rule.errno = errno
        return rule

    # fi_fabric(3), fi_domain(3)
    FABRIC_UNKNOWN = Errno.ENODEV
    DOMAIN_UNKNOWN = Errno.ENODEV
    DOMAIN_FLAGS = Errno.EBADFLAGS
    DOMAIN_MR_MODE = Errno.EINVAL
    NOT_OFFERED = Errno.EINVAL
    DOMAIN_AUTH_KEY = Errno.EINVAL
    DOMAIN_NO_AUTH_KEY = Errno.ENOSYS
    DOMAIN_BIND_FLAGS = Errno.EBADFLAGS
    DOMAIN_BIND_TAKEN = Errno.EINVAL
    DOMAIN_KEYS_MAPPED = Errno.EBUSY
    DOMAIN_RESOURCES = Errno.ENOSPC
    DOMAIN_TCLASS = Errno.EINVAL
    DOMAIN_VALUE = Errno.EINVAL
    # fi_trigger(3)
    WORK_COUNTER = Errno.EINVAL
    WORK_TYPE = Errno.EINVAL
    WORK_ENDPOINT = Errno.EINVAL
    WORK_SPACE = Errno.ENOSPC
    TRIGGER_CONTEXT = Errno.EINVAL
    TRIGGER_EVENT = Errno.ENOSYS
    OPS_FID = Errno.EINVAL
    OPS_ARGUMENT = Errno.EINVAL
    OPS_STATE = Errno.EOPBADSTATE
    OPS_CHANGING = Errno.EAGAIN
    CQ_RESOURCES = Errno.ENOSPC
    # fi_control(3), fi_open_ops(3): of the kind of object
    DOMAIN_CONTROL = Errno.ENOSYS
    EP_CONTROL = Errno.ENOSYS
    MR_CONTROL = Errno.ENOSYS
    AV_CONTROL = Errno.ENOSYS
    CQ_CONTROL = Errno.ENOSYS
    CNTR_CONTROL = Errno.ENOSYS
    EQ_CONTROL = Errno.ENOSYS
    DOMAIN_OPS = Errno.ENOSYS
    CNTR_OPS = Errno.ENOSYS
    OPS_UNKNOWN = Errno.ENOSYS
    OPS_FLAGS = Errno.EBADFLAGS
    VAL_UNKNOWN = Errno.ENOSYS
    # fi_endpoint(3)
    EP_TYPE = Errno.EINVAL
    EP_AUTH_KEY = Errno.EINVAL
    EP_BIND_OBJECT = Errno.EINVAL
    EP_BIND_STATE = Errno.EOPBADSTATE
    EP_BIND_DOMAIN = Errno.EDOMAIN
    EP_BIND_FLAGS = Errno.EBADFLAGS
    EP_BIND_NOTHING = Errno.EBADFLAGS
    EP_BIND_TAKEN = Errno.EINVAL
    EP_BIND_CONNECTED = Errno.EINVAL
    EP_BIND_EVENT = Errno.EBADFLAGS
    EP_ENABLE_AV = Errno.ENOAV
    EP_ENABLE_CQ = Errno.ENOCQ
    EP_ENABLE_KEYS = Errno.EINVAL
    EP_RESOURCES = Errno.ENOSPC
    EP_TCLASS = Errno.EINVAL
    EP_PLACE = Errno.EINVAL
    EP_MSG_ORDER = Errno.EINVAL
    EP_PROTOCOL = Errno.EINVAL
    OPT_VALUE = Errno.EINVAL
    OPT_DEVICE = Errno.EOPNOTSUPP
    EP_ADDRESS_TAKEN = Errno.EADDRINUSE
    EP_CLOSE_REGION = Errno.EBUSY
    EP_ALIAS_FLAGS = Errno.EINVAL
    EP_OPS_FLAG = Errno.EINVAL
    EP_OPS_FLAG_UNKNOWN = Errno.EBADFLAGS
    EP_WRITEDATA = Errno.ENOSYS
    EP_NO_MESSAGES = Errno.ENOSYS
    EP_CANCEL_STATE = Errno.EOPBADSTATE
    EP_CANCEL_NONE = Errno.ENOENT
    OPT_LEVEL = Errno.ENOPROTOOPT
    OPT_UNKNOWN = Errno.ENOPROTOOPT
    OPT_READ_ONLY = Errno.ENOPROTOOPT
    # fi_cm(3)
    EP_GETNAME_STATE = Errno.EOPBADSTATE
    EP_SETNAME = Errno.ENOSYS
    EP_SETNAME_STATE = Errno.EOPBADSTATE
    EP_SETNAME_PLACE = Errno.EINVAL
    EP_CONNECT_ADDRESS = Errno.EINVAL
    EP_CONNECTIONLESS = Errno.EOPNOTSUPP
    EP_NO_EQ = Errno.ENOEQ
    EP_NOT_CONNECTED = Errno.ENOTCONN
    EP_CONNECTED = Errno.EISCONN
    EP_CONNECTING = Errno.EALREADY
    EP_SHUTDOWN_FLAGS = Errno.EBADFLAGS
    CM_REQUEST = Errno.EINVAL
    CM_DATA_SIZE = Errno.EINVAL
    PEP_TYPE = Errno.EINVAL
    PEP_BIND_FLAGS = Errno.EBADFLAGS
    PEP_BIND_FABRIC = Errno.EDOMAIN
    PEP_BIND_TAKEN = Errno.EINVAL
    # fi_atomic(3)
    ATOMIC_NO_CAP = Errno.EOPNOTSUPP
    ATOMIC_PAIR = Errno.EOPNOTSUPP
    ATOMIC_NUMBER = Errno.EOPNOTSUPP
    ATOMIC_FLAGS = Errno.EBADFLAGS
    ATOMIC_TAGGED = Errno.EOPNOTSUPP
    # fi_av(3)
    AV_OPEN_FLAGS = Errno.EBADFLAGS
    AV_OPEN_NAME = Errno.ENOSYS
    AV_OPEN_RX_CTX_BITS = Errno.EINVAL
    AV_OPEN_TYPE = Errno.EINVAL
    AV_USER_ID = Errno.EINVAL
    AV_BIND = Errno.ENOSYS
    AV_BIND_FLAGS = Errno.EBADFLAGS
    AV_INSERT_FLAGS = Errno.EBADFLAGS
    AV_INSERT_CONTEXT = Errno.EINVAL
    AV_INSERT_EQ = Errno.ENOEQ
    AV_INSERT_ADDRESS = Errno.EINVAL
    AV_INSERT_KEY = Errno.EINVAL
    AV_INSERTSVC_NAME = Errno.EINVAL
    AV_INSERTSVC_SENSE = Errno.EINVAL
    AV_INSERTSVC_UNKNOWN = Errno.EADDRNOTAVAIL
    AV_INSERTSYM = Errno.ENOSYS
    AV_REMOVE_FLAGS = Errno.EBADFLAGS
    AV_REMOVE_UNKNOWN = Errno.EINVAL
    AV_AUTH_KEY_FLAGS = Errno.EBADFLAGS
    AV_AUTH_KEY_COUNT = Errno.ENOSPC
    AV_AUTH_KEY_MODE = Errno.EINVAL
    AV_AUTH_KEY_UNKNOWN = Errno.EINVAL
    AV_AUTH_KEY_BUSY = Errno.EBUSY
    # fi_av_set(3), fi_collective(3)
    AV_SET_FLAGS = Errno.EBADFLAGS
    AV_SET_RANGE = Errno.EINVAL
    AV_SET_COMM_KEY = Errno.EINVAL
    AV_SET_MEMBER = Errno.EINVAL
    AV_SET_VECTOR = Errno.EINVAL
    AV_SET_JOINED = Errno.EPERM
    COLLECTIVE_ATTR = Errno.EINVAL
    COLLECTIVE_FLAGS = Errno.EOPNOTSUPP
    COLLECTIVE_PAIR = Errno.EOPNOTSUPP
    JOIN_NO_CAP = Errno.EOPNOTSUPP
    JOIN_ADDR = Errno.EINVAL
    JOIN_FLAGS = Errno.EBADFLAGS
    JOIN_STATE = Errno.EOPBADSTATE
    JOIN_SET = Errno.EINVAL
    JOIN_KEY = Errno.EINVAL
    # fi_cq(3), fi_cntr(3), fi_eq(3)
    CQ_OPEN_FLAGS = Errno.EBADFLAGS
    CQ_FORMAT = Errno.EINVAL
    CQ_FORMAT_UNSUPPORTED = Errno.ENOSYS
    CQ_WAIT_COND = Errno.EINVAL
    WAIT_OBJ = Errno.EINVAL
    WAIT_OBJ_UNSUPPORTED = Errno.ENOSYS
    WAIT_NONE = Errno.EINVAL
    GETWAIT_NONE = Errno.ENODATA
    TRYWAIT_KIND = Errno.ENOSYS
    TRYWAIT_NONE = Errno.EINVAL
    EQ_WAIT_NONE = Errno.EINVAL
    CQ_SIGNAL = Errno.ENOSYS
    CQ_PEER = Errno.ENOSYS
    CNTR_OPEN_FLAGS = Errno.EBADFLAGS
    CNTR_EVENTS = Errno.EINVAL
    CNTR_EVENTS_UNSUPPORTED = Errno.ENOSYS
    CNTR_RESOURCES = Errno.ENOSPC
    CNTR_VALUE = Errno.EINVAL
    CNTR_ERRORS = Errno.EINVAL
    CNTR_THRESHOLD = Errno.EINVAL
    EQ_OPEN_FLAGS = Errno.EBADFLAGS
    EQ_READ_FLAGS = Errno.EBADFLAGS
    EQ_WRITE = Errno.EINVAL
    # fi_mr(3)
    MR_ACCESS = Errno.EINVAL
    MR_OFFSET = Errno.EINVAL
    MR_FLAGS = Errno.EBADFLAGS
    MR_EMPTY = Errno.EINVAL
    MR_NO_BUFFER = Errno.EINVAL
    MR_IOV_LIMIT = Errno.EINVAL
    MR_READ_ONLY = Errno.EACCES
    MR_KEY_PROVIDER = Errno.EKEYREJECTED
    MR_KEY_RANGE = Errno.EKEYREJECTED
    MR_KEY_TAKEN = Errno.ENOKEY
    MR_AV_AUTH_KEY = Errno.EOPNOTSUPP
    MR_AUTH_KEY = Errno.EINVAL
    MR_AUTH_KEY_DOMAIN = Errno.EDOMAIN
    MR_ATTR = Errno.EINVAL
    MR_PAGE_SIZE = Errno.EINVAL
    MR_BASE_DOMAIN = Errno.EDOMAIN
    MR_BASE_RANGE = Errno.EINVAL
    MR_PERSISTENT = Errno.EINVAL
    MR_NOT_ALLOCATED = Errno.EFAULT
    MR_DEVICE = Errno.EINVAL
    MR_DEVICE_FLAGS = Errno.EBADFLAGS
    MR_DMABUF = Errno.EINVAL
    MR_DMABUF_MAP = Errno.EOPNOTSUPP
    MR_BIND_OBJECT = Errno.EINVAL
    MR_BIND_EP_EVENT = Errno.EINVAL
    MR_RESOURCES = Errno.ENOSPC
    MR_KEYS = Errno.ENOSPC
    MR_BIND_DOMAIN = Errno.EDOMAIN
    MR_BIND_STATE = Errno.EOPBADSTATE
    MR_BIND_ENDPOINT = Errno.EOPBADSTATE
    MR_BIND_COUNT = Errno.EINVAL
    MR_BIND_FLAGS = Errno.EBADFLAGS
    MR_BIND_EVENTS = Errno.ENOSYS
    MR_BIND_NO_EVENT = Errno.EOPBADSTATE
    MR_BIND_AV = Errno.EINVAL
    MR_ENABLE_UNBOUND = Errno.EOPBADSTATE
    MR_INCOMPLETE = Errno.EOPBADSTATE
    MR_RAW_ATTR_FLAGS = Errno.EBADFLAGS
    MR_RAW_ATTR_SIZE = Errno.ETOOSMALL
    MR_MAP_RAW_FLAGS = Errno.EBADFLAGS
    MR_RAW_KEY = Errno.EINVAL
    MR_UNMAP_UNKNOWN = Errno.EINVAL
    MR_REFRESH_MODE = Errno.ENOSYS
    MR_REFRESH_FLAGS = Errno.EBADFLAGS
    MR_REFRESH_RANGE = Errno.EINVAL
    MR_REFRESH_PAGES = Errno.EFAULT
    MR_CLOSE_BOUND = Errno.EBUSY


@dataclass(frozen=True)
class Refusals:
    """The error numbers with which a provider refuses.

    Attributes:
        override: rule -> the provider's error number, if it differs from the man page's.
    """

    override: Mapping[Rule, Errno] = field(default_factory=dict)

    def errno(self, rule: Rule) -> Errno:
        """The error number of a call that breaks the rule."""
        return self.override.get(rule, rule.errno)

    def refuse(self, rule: Rule, message: str, *, op: str | None = None) -> errors.FabricError:
        """The error to raise when a call breaks a rule.

        Args:
            message: What was asked, what was found, which rule, what to do next: the same under every provider.
        """
        return errors.make(int(self.errno(rule)), message, op=op)
