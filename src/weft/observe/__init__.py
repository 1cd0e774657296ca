"""What processes do with Weft, seen from outside.

from weft import observe

with observe.Viewer() as viewer:
    for process in viewer.look():
        print(process.pid, process.state, process.view)

`weft top` shows this live.
"""

from __future__ import annotations

from .processes import Process as Process
from .processes import Viewer as Viewer
from .rates import Rates as Rates
from .rates import rates as rates
from .views import CounterView as CounterView
from .views import DomainView as DomainView
from .views import EndpointView as EndpointView
from .views import PeerView as PeerView
from .views import QueueView as QueueView
from .views import ReceiveView as ReceiveView
from .views import View as View

__all__ = [
    "CounterView",
    "DomainView",
    "EndpointView",
    "PeerView",
    "Process",
    "QueueView",
    "Rates",
    "ReceiveView",
    "View",
    "Viewer",
    "rates",
]
