"""What endpoints count: `Endpoint.statistics` and `Endpoint.message_statistics`."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EndpointStatistics", "MessageStatistics"]


@dataclass(frozen=True)
class EndpointStatistics:
    """A snapshot of `Endpoint.statistics`.

    tx_pending   operations under way.
    tx_size      maximum number of operations under way.
    batches      groups of operations that FI_MORE held and that were begun together.

    The next five are of the NIC's command queue; all 0 if the provider does not model one.

    commands               commands put into the queue.
    low_latency_commands   of these, the commands that took the low-latency ring.
    doorbells              writes that told the NIC of the others, one for each command or batch.
    write_backs            how often the NIC wrote back how far it had read the queue.
    free_commands          slots that the program knows to be free, from the last write-back.

    page_requests, page_timeouts   on-demand paging with a limit: missing pages that transfers requested in time, and
                                   transfers that failed because more were missing.
    """

    tx_pending: int
    tx_size: int
    batches: int = 0
    commands: int = 0
    low_latency_commands: int = 0
    doorbells: int = 0
    write_backs: int = 0
    free_commands: int = 0
    page_requests: int = 0
    page_timeouts: int = 0


@dataclass(frozen=True, repr=False)
class MessageStatistics:
    """A snapshot of `Endpoint.message_statistics`.

    Matching, of this endpoint's receives and its peers' messages:

    mode          the match mode that the endpoint was enabled with: "unlimited", "hardware", "hybrid" or "software".
    state         "hardware", "changing" or "software": where messages are matched now; "" for an endpoint that receives
                  nothing, or is not enabled.
    cause         of the last change or refusal: "", "no entry for a message", "no entry for a receive", "few entries",
                  "many receives", "many messages".
    posted        receives that wait for a message.
    unexpected    messages that wait for a receive.
    matched       messages that have found a posted receive.
    kept          messages that had to wait for a receive.
    refused       messages that were refused: their senders send them again.
    flows         peers that have sent a message, each by address.
    flows_by_index   of these, peers that name themselves by their fi_addr (FI_SYMMETRIC).

    gets          rendezvous messages whose rest the NIC has fetched from the sender's buffer.
    reads         messages whose rest was read by operations that the application's progress started.
    reads_most    the most of these operations at a time.

    Buffers of messages without a receive (overflow buffers; request buffers when messages are matched by software):

    buffers, buffers_posted, buffers_most   buffers that exist; of these, buffers ready for messages; the most so far.
    buffers_registered   of the buffers that exist, those that the runtime of a device knows.

    List entries of the service. All are 0 for an endpoint without a limit.

    entries_of_receives, entries_of_messages, entries_of_buffers   entries that the endpoint has now.
    entries_wanted   entries that would have sufficed for this endpoint so far.
    changes          times that matching moved to software.
    flow_controls    times that flow control began.
    pauses           messages, or changes, that a lossless endpoint answered by pausing its senders.
    onloaded         messages that gave their entries back to end flow control, or by a change to software.
    no_entries       receives refused for want of an entry.
    waiting          receives that wait for an entry (FI_PROTO_CXI_RNR).
    append_attempts  attempts to post such receives again.

    Sends of this endpoint:

    tagged_ids, untagged_ids   messages that wait to be pulled by their receivers.
    no_id            sends refused because as many wait as the provider allows.
    no_id_bytes      the longest of these, in bytes.
    stops            messages that a receiver has refused for the time being.
    stopped          peers that take no messages at present.
    stopped_s        seconds that the oldest of these has taken none.
    stopped_dest     its fi_addr.
    controls         control messages that arrived: a peer takes messages again.
    control_slots    control messages that may wait for the application's progress; 0: none waits.
    controls_dropped   control messages that found no slot: after a while the NIC sends the refused message again.
    """

    tagged_ids: int = 0
    untagged_ids: int = 0
    no_id: int = 0
    no_id_bytes: int = 0
    stops: int = 0
    stopped: int = 0
    stopped_s: float = 0.0
    stopped_dest: int = 0
    controls: int = 0
    control_slots: int = 0
    controls_dropped: int = 0
    posted: int = 0
    unexpected: int = 0
    matched: int = 0
    kept: int = 0
    refused: int = 0
    flows: int = 0
    flows_by_index: int = 0
    buffers: int = 0
    buffers_posted: int = 0
    buffers_most: int = 0
    buffers_registered: int = 0
    gets: int = 0
    reads: int = 0
    reads_most: int = 0
    mode: str = "unlimited"
    state: str = ""
    cause: str = ""
    entries_of_receives: int = 0
    entries_of_messages: int = 0
    entries_of_buffers: int = 0
    entries_wanted: int = 0
    changes: int = 0
    flow_controls: int = 0
    pauses: int = 0
    onloaded: int = 0
    no_entries: int = 0
    waiting: int = 0
    append_attempts: int = 0

    @property
    def entries(self) -> int:
        """List entries that the endpoint has now."""
        return self.entries_of_receives + self.entries_of_messages + self.entries_of_buffers

    def __repr__(self) -> str:
        where = "not receiving" if not self.state else f"matched in {self.state}"
        if self.state == "changing":
            where = "changing its match mode"
        counts = f"{self.posted} receives posted, {self.unexpected} messages unexpected"
        parts = [f"mode {self.mode}", where, counts]
        if self.mode != "unlimited":
            parts.append(f"{self.entries} list entries, {self.entries_wanted} wanted")
        if self.flow_controls:
            parts.append(f"flow control {self.flow_controls} times")
        if self.stopped:
            parts.append(f"{self.stopped} peers take no messages")
        return f"<MessageStatistics {', '.join(parts)}>"
