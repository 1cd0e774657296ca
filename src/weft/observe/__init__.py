"""What processes do with Weft, seen from outside.

from weft import observe

with observe.Viewer() as viewer:
    for process in viewer.look():
        print(process.pid, process.state, process.view)

`weft top` shows this live. `weft trace` records what processes do, and writes a timeline.
"""

from __future__ import annotations

from .processes import Process as Process
from .processes import Viewer as Viewer
from .rates import Rates as Rates
from .rates import rates as rates
from .records import Recording as Recording
from .records import read as read_trace
from .timeline import write as write_timeline
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
    "Recording",
    "View",
    "Viewer",
    "rates",
    "read_trace",
    "write_timeline",
]
