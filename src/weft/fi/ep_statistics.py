"""Counts of endpoints: `Endpoint.statistics` and `Endpoint.message_statistics`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EndpointStatistics:
    """A snapshot of `Endpoint.statistics`.

    Attributes:
        tx_pending: Operations under way.
        tx_size: Maximum number of operations under way.
        batches: Number of FI_MORE batches submitted.

    The next five are of the NIC's command queue; all 0 if the provider does not model one.

    Attributes:
        commands: Commands put into the queue.
        low_latency_commands: Commands that took the low-latency ring; part of `commands`.
        doorbells: Writes that told the NIC of new commands, one for each command or batch.
        write_backs: Number of times that the NIC wrote back its read position.
        free_commands: Slots that the program knows to be free, from the last write-back.
        page_requests: Missing pages that transfers requested in time, under on-demand paging with a limit.
        page_timeouts: Transfers that failed because more pages than the limit were missing.
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

    Attributes:
        mode: The match mode of the enabled endpoint: "unlimited", "hardware", "hybrid" or "software".
        state: "hardware", "changing" or "software": where messages are matched now; "" for an endpoint that receives
            nothing, or is not enabled.
        cause: Cause of the last change or refusal: "", "no entry for a message", "no entry for a receive", "few
            entries", "many receives", "many messages".
        posted: Receives that wait for a message.
        unexpected: Messages that wait for a receive.
        matched: Messages that have found a posted receive.
        kept: Messages that had to wait for a receive.
        refused: Messages that were refused: their senders send them again.
        flows: Peers that have sent a message, each by address.
        flows_by_index: Flows whose peer names itself by its fi_addr (FI_SYMMETRIC).
        gets: Rendezvous messages whose rest the NIC has fetched from the sender's buffer.
        reads: Messages whose rest was read by operations that the application's progress started.
        reads_most: The most such operations at one time.

    Buffers of messages without a receive (overflow buffers; request buffers when messages are matched by software):

    Attributes:
        buffers: Buffers that exist.
        buffers_posted: Buffers ready for messages.
        buffers_most: The most buffers that have existed.
        buffers_registered: Buffers that the runtime of a device knows.

    List entries of the service. All are 0 for an endpoint without a limit.

    Attributes:
        entries_of_receives: Entries that receives have now.
        entries_of_messages: Entries that messages have now.
        entries_of_buffers: Entries that buffers have now.
        entries_wanted: Entries that would have sufficed for this endpoint so far.
        changes: Times that matching moved to software.
        flow_controls: Times that flow control began.
        pauses: Messages, or changes, that a lossless endpoint answered by pausing its senders.
        onloaded: Messages that gave their entries back to end flow control, or by a change to software.
        no_entries: Receives refused for want of an entry.
        waiting: Receives that wait for an entry (FI_PROTO_CXI_RNR).
        append_attempts: Attempts to post such receives again.

    Sends of this endpoint:

    Attributes:
        tagged_ids: Tagged messages that wait to be pulled by their receivers.
        untagged_ids: Untagged messages that wait to be pulled.
        no_id: Sends refused because as many wait as the provider allows.
        no_id_bytes: Length of the longest refused send.
        stops: Messages that a receiver has refused for the time being.
        stopped: Peers that take no messages at present.
        stopped_s: Seconds for which the peer that has been stopped longest has taken no messages.
        stopped_dest: fi_addr of that peer.
        controls: Control messages that arrived: a peer takes messages again.
        control_slots: Control messages that may wait for the application's progress; 0: none waits.
        controls_dropped: Control messages that found no slot: after a while the NIC sends the refused message again.
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
