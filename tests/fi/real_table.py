"""Which tests of weft.fi run over a real libfabric, and what differs there (docs/reference/ofi-differences.md).

MODULES       the files whose tests are about libfabric's semantics; all their tests run but those of
APART         tests of what is Weft's own, by their names (with `[`: for some of their parameters), with the reason.
DIFFERENCES   tests that fail over a provider of VERSION of the library, because the provider does otherwise: each is a
              row of the page. A listed test that passes, with that version, fails the run.
"""

from __future__ import annotations

import fnmatch

VERSION = (1, 17)

MODULES = (
    *("test_rma", "test_rma_flags", "test_rma_refused", "test_atomic", "test_null_buffers", "test_eq"),
    *("test_msg", "test_msg_multi_recv", "test_msg_refused", "test_mr", "test_tagged", "test_cntr", "test_cq"),
    *("test_av", "test_endpoint", "test_cm", "test_fabric", "test_collective", "test_getinfo"),
)

_NOT_OFFERED = ("LONG_DOUBLE", "DOUBLE_COMPLEX", "FLOAT16", "BFLOAT16", "FLOAT8")
_SAME_KIND = ("INT8", "UINT8", "INT16", "UINT16", "UINT32", "INT64", "FLOAT")

APART = {
    "test_cq_close_loses_unread_entries_and_releases_contexts": "CompletionQueue.pending(), which is Weft's",
    "test_cq_other_wait_objects_are_enosys": "which wait objects Weft has",
    "test_cq_open_unknown_flags_are_badflags": "which flags Weft refuses",
    "test_cq_repr_says_how_full_it_is": "CompletionQueue.pending(), which is Weft's",
    "test_cq_size_is_a_minimum": "Weft's sizes",
    "test_cq_error_entry_prints_names": "Weft's numbers and names of errors",
    "test_cq_error_entry_stops_reading_until_readerr": "Weft's number of an unknown key",
    "test_failure_of_the_initiators_own_names_no_peer": "the words of Weft's error entries",
    "test_error_entry_has_the_status_of_the_nic": "the status of Weft's NIC",
    "test_cq_full_of_remote_data_holds_the_writer_back": "how Weft's resource management fills a queue",
    "test_cq_without_resource_management_overruns": "how Weft's queues overrun",
    "test_cq_readfrom_pairs_entries_with_sources": "the source of the initiator's entries, which fi_cq(3) leaves open",
    "test_cq_fd_is_readable_while_entries_wait": "automatic progress; tests/ofi has fd with trywait",
    "test_cq_signal_wakes_a_waiting_sread": "a wait in one call; these runs read and wait in turn",
    "test_cq_threshold_condition_waits_for_as_many": "a wait in one call; these runs read and wait in turn",
    "test_cntr_open_refuses_unsupported_attributes": "which attributes Weft refuses",
    "test_cq_fd_asked_for_late_is_readable_while_entries_wait": "automatic progress; tests/ofi has fd with trywait",
    "test_cntr_fd_asked_for_late_is_readable_after_a_change": "WAIT_FD of counters, which providers need not have",
    "test_cntr_fd_is_readable_after_a_change": "WAIT_FD of counters, which providers need not have",
    "test_receive_needs_a_completion_queue": "Weft's words",
    "test_more_receives_than_the_queue_holds_are_refused": "Weft's limit and words",
    "test_rma_unknown_flag_is_badflags": "Weft's check: libfabric ignores what it does not know",
    "test_closing_an_endpoint_discards_its_receives_and_messages": "what the queue of a closed endpoint has",
    "test_rma_message_goes_to_the_peer_that_addr_names": "Weft's check of a missing peer",
    "test_rma_more_buffers_than_iov_limit_are_refused": "Weft's check of a limit, which libfabric leaves to the caller",
    "test_rma_writemsg_of_unequal_lengths_is_refused": "Weft's check, which libfabric leaves to the caller",
    "test_rma_error_completion_says_what_was_asked_and_found": "the words of Weft's error entries",
    "test_rma_to_an_address_without_endpoint_is_refused": "Weft's addresses",
    "test_rma_full_completion_queue_is_eagain_until_read": "how Weft's resource management fills a queue",
    "test_null_*[[]cxi*": "the provider cxi of Weft",
    "test_atomic_on_a_part_of_an_element_is_refused": "count= of a buffer with a part, which is refused as yet there",
    "test_atomic_128_bit_integers": "a datatype that these providers do not offer",
    "test_query_atomic_families_have_their_operations": "Weft's words",
    "test_inject_atomic_beyond_inject_size_is_refused": "Weft's inject_size",
    "test_eq_error_is_read_with_readerr": "EventQueue.post_error(), which is Weft's",
    "test_buffer_for_several_messages_is_one": "Weft's limit and words",
    "test_mr_reg_unsupported_flag_is_badflags": "which flags Weft refuses",
    "test_mr_reg_key_out_of_range_is_ekeyrejected": "Weft's size of keys",
    "test_mr_reg_offset_is_reserved": "Weft's check of a reserved field",
    "test_mr_regattr_hmem_data_is_reserved": "Weft's check of a reserved field",
    "test_mr_regattr_page_size_is_a_hint_of_the_system_s_sizes": "which page sizes Weft refuses",
    "test_mr_rma_pmem_needs_a_file_behind_the_memory": "Weft's check of persistent memory",
    "test_mr_repr_says_key_length_access_and_state": "what repr() prints",
    "test_mr_reg_of_addresses_without_memory_succeeds": "regions of memory that is not there, which Weft has",
    "test_mr_access_to_addresses_without_memory_fails": "regions of memory that is not there, which Weft has",
    "test_mr_without_mode_bits_follows_the_default_rules": "regions of memory that is not there, which Weft has",
    "test_mr_reg_key_of_8_bytes_works[[]*0]": "these runs give a region without a key one of its own",
    "test_flags_that_are_not_for_the_call_are_refused": "Weft's check: libfabric ignores what it does not know",
    "test_refused_receive_holds_neither_buffer_nor_context": "Weft's check of flags, which refuses the receive",
    "test_atomic_selective_completion_and_flags": "Weft's check: libfabric ignores what it does not know",
    "test_atomic_on_a_read_only_page_is_an_error_completion": "regions of memory that is not there, which Weft has",
    "test_local_buffer_without_memory_behind_it_is_refused": "regions of memory that is not there, which Weft has",
    "test_shutdown_from_a_stranger_ends_no_connection": "messages of Weft's connections",
    "test_accept_with_a_stale_number_connects_nothing": "messages of Weft's connections",
    "test_late_reject_of_an_earlier_request_does_not_end_the_new_one": "messages of Weft's connections",
    "test_connected_endpoint_admits_only_its_peer_to_memory": "an address of Weft's, which others can name",
    "test_message_of_a_stranger_is_refused_by_a_connected_endpoint": "an address of Weft's, which others can name",
    "test_wrong_steps_have_their_errors": "Weft's words and limits; a test for each step runs",
    "test_fabric_of_an_unknown_provider_is_enodev": "which providers Weft has",
    "test_fabric_and_domain_have_names": "Weft's names",
    "test_domain_alloc_is_an_array_of_the_nic_s_memory": "the memory of Weft's NIC",
    "test_weft_empty_and_zeros": "the memory of Weft's NIC",
    "test_trywait_with_unread_entries_is_again": "CompletionQueue.pending(); tests/ofi has trywait",
    "test_av_unsupported_is_refused": "which flags Weft refuses",
    "test_av_insert_of_no_address_is_invalid_and_inserts_nothing": "Weft's addresses",
    "test_av_insertsvc_takes_an_address_of_weft": "Weft's addresses",
    "test_av_straddr_of_a_string_is_the_string": "Weft's addresses",
    "test_ep_address_of_the_info_is_used": "Weft's addresses; the test of src_addr runs",
    "test_ep_setname_of_another_vni_is_invalid": "Weft's addresses",
    "test_ep_repr_says_what_it_is_and_its_state": "what repr() prints",
    "test_endpoint_statistics_are_a_frozen_record": "statistics(), which are Weft's",
    "test_endpoints_as_many_as_ep_cnt_says_can_be_open": "Weft's limit",
    "test_ninth_reduction_in_flight_is_refused_until_one_completes": "Weft's limit",
    "test_more_than_32_bytes": "Weft's limit",
    "test_unknown_flags": "Weft's check: libfabric ignores what it does not know",
    "test_join_with_flags": "Weft's check: libfabric ignores what it does not know",
    "test_mr_collective_asks_for_regions_of_collectives": "WEFT_MR_MODE",
    "test_getinfo_more_endpoints_than_the_nic_has_is_refused": "Weft's limit and words",
    **{f"test_atomic_*[[]*{one}*": "a datatype that these providers do not offer" for one in _NOT_OFFERED},
    **{f"test_atomic_*_agrees_with_numpy[[]*-{one}]": "another width is run, of the same kind" for one in _SAME_KIND},
}

HANGS, CRASHES = "does not return", "crashes"  # such a test is not started

# provider ("": both): {pattern of test names: what the provider does}. A reason that begins with one of the words above
# is of a test that is not started.
DIFFERENCES: dict[str, dict[str, str]] = {
    "": {
        "test_rma_inject_write_error_is_reported": "an injected transfer that fails makes no error entry",
        "test_rma_longer_than_max_msg_size_is_refused": "a smaller max_msg_size of the application's is not enforced",
        "test_message_of_more_than_max_msg_size_*": "a smaller max_msg_size of the application's is not enforced",
        "test_send_without_its_capability_is_refused*": "a transfer without its capability is made",
        "test_receive_without_its_capability_is_refused*": "a transfer without its capability is made",
        "test_desc_needs_the_right_of_the_call*": "the rights of a descriptor's region are not checked",
        "test_message_longer_than_the_rest_of_the_buffer_is_cut_*": "len, olen, flags of FI_ETRUNC are others",
        "test_cancel_of_a_multi_receive_*": "the error entry of a cancelled receive has other flags",
        "test_contexts_of_receives_are_returned_*": "contexts stay until the queue closes, as it may report them",
        "test_mr_reg_opens_len_bytes_*": "the error entry has another number, or there is none",
        "test_mr_reading_leaves_the_region_as_it_was": "the error entry has another number, or there is none",
        "test_mr_close_invalidates_the_key_and_nothing_else": "the error entry has another number, or there is none",
        "test_mr_close_under_traffic_never_crashes": "the error entry has another number, or there is none",
        "test_mr_local_region_needs_no_remote_access": "the error entry has another number, or there is none",
        "test_mr_close_with_open_endpoint_is_busy": "a region is bound to no endpoint: FI_ENOSYS",
        "test_mr_close_with_open_counter_is_busy": "a region is bound to no counter: FI_ENOSYS",
        "test_mr_registration_reports_to_an_event_queue": "a domain is bound to no event queue: FI_ENOSYS",
        "test_mr_access_is_any_combination_of_permissions": "what is no right of access is ignored",
        "test_mr_reg_of_no_bytes_is_invalid*": "a region of no bytes is made",
        "test_mr_regattr_iface_and_*[[]*CUDA*": "iface is heeded without FI_HMEM",
        "test_rma_selective_queue_reports_failures_always": "the error entry has another number, or there is none",
        "test_message_longer_than_its_receive_is_cut[[]*-100-*": "len, olen, flags of FI_ETRUNC are others",
        "test_match_complete_waits_for_the_receive*": "FI_MATCH_COMPLETE does not wait for the receive",
        "test_eq_write_without_its_flag_is_invalid": "an event queue without FI_WRITE is written to",
        "test_eq_fd_is_readable_while_events_wait": "one read makes an event queue's descriptor quiet",
        "test_eq_flags_are_checked": "flags that an event queue does not know are other errors, or none",
        "test_sender_alone_needs_no_receive_queue": "an endpoint that only sends needs a queue for FI_RECV",
        "test_each_entry_has_its_own_operation_s_fields[[]CQ_FORMAT_[MDT]*": "len of a transmit completion is 0",
        "test_cntr_of_bytes_counts_bytes_and_failures_by_one": "FI_CNTR_EVENTS_BYTES counts operations",
        "test_cntr_failure_counts_as_error_and_wakes_waiters": "a failed operation does not count as an error",
        "test_rma_unknown_key_is_an_error_at_the_initiator*": "the error entry has another number, or there is none",
        "test_rma_needs_the_granted_access": "the error entry has another number, or there is none",
        "test_rma_outside_the_region_touches_nothing*": "the error entry has another number, or there is none",
        "test_rma_capability_that_was_not_opened_is_refused": "a transfer without its capability is made",
        "test_atomic_takes_c_s_arguments_in_order": "the error entry has another number, or there is none",
        "test_atomic_misaligned_is_refused": "an atomic operation at an unaligned address is done",
        "test_atomic_base_operation_agrees_with_numpy[[]DIFF-*": "FI_DIFF is not offered",
        "test_atomic_fetch_operation_agrees_with_numpy[[]DIFF-*": "FI_DIFF is not offered",
        "test_fetch_atomicv_and_msg_scatter_the_result": "FI_DIFF is not offered",
        "test_atomic_read_needs_no_descriptor_of_an_operand": "fi_fetch_atomicv counts operands, of a read too",
        "test_message_to_an_endpoint_that_has_closed_fails*": f"no error entry over tcp; over shm it {CRASHES}",
        "test_ep_getname_before_enable_is_badstate": "an endpoint has its name before it is enabled",
        "test_ep_that_initiates_nothing_needs_no_transmit_queue": "an endpoint needs queues that it does not use",
        "test_ep_bind_after_enable_is_badstate": "a counter is bound to an endpoint that is enabled",
        "test_ep_bind_flags_are_checked[[]<lambda>-0-BadFlags1]": "a counter is bound without flags",
        "test_ep_remote_counter_needs_rma_event": "a counter of FI_REMOTE_WRITE is bound without FI_RMA_EVENT",
        "test_ep_options_tell_the_limits": "the options of fi_getopt that tell limits are not there",
        "test_ep_of_another_type_is_invalid": "FI_ENODATA, and not FI_EINVAL, for another type of endpoint",
        "test_domain_bind_takes_one_event_queue": "a domain is bound to no event queue",
        "test_domain_of_another_name_is_enodev": "fi_domain does not look at the domain's name",
        "test_alias_sends_with_its_own_flags*": "an endpoint has no aliases: FI_ENOSYS",
        "test_alias_receives*": "an endpoint has no aliases: FI_ENOSYS",
        "test_flags_set_later_are_used*": "FI_SETOPSFLAG is FI_ENOSYS",
        "test_hint_that_cannot_be_met_has_no_offer[[]domain]": "fi_getinfo does not look at the domain's name",
    },
    "ofi:tcp": {
        "test_reduce_gives_the_result_to_the_root_alone": "fi_reduce is not offered",
        "test_av_event_mode_reports_to_an_event_queue": "what is no address is refused at once, without an event",
        "test_several_joins_are_in_flight_at_once": "joins under way are mixed up: Weft refuses a second one",
        "test_members_that_disagree_all_get_an_error": f"a collective of members that disagree {HANGS}",
        "test_closing_a_group_fails_the_reductions_*": f"a collective of a group that a member has left {HANGS}",
        "test_member_whose_endpoint_is_closed_fails_*": f"a join of a set with an endpoint that is closed {HANGS}",
        "test_operation_that_is_no_reduction": "a reduction that is not offered is FI_EOPNOTSUPP",
        "test_valid_descriptors_are_taken_without_mr_*": "the rights of a descriptor's region are not checked",
        "test_mr_regv_makes_one_region_of_several_buffers": "mr_iov_limit is 1",
        "test_rma_writedata_delivers_data_at_the_target": "the entry of remote data lacks FI_RMA",
        "test_message_longer_than_its_receive_is_cut*": "len, olen, flags of FI_ETRUNC are others",
        "test_rma_fenced_operation_completes_after_all_before_it": "FI_FENCE is not offered, and ignored",
        "test_cntr_counts_operations_of_peers": "FI_RMA_EVENT is not offered: FI_REMOTE_WRITE counts nothing",
        "test_rejected_endpoint_may_retry": "an endpoint that was refused does not connect again",
        "test_shutdown_is_an_event_and_ends_transfers_both_ways": "a transfer after fi_shutdown is not refused at once",
        "test_shutdown_with_flags_is_refused_and_ends_nothing": "flags of fi_shutdown are ignored",
    },
    "ofi:shm": {
        "test_join_needs_the_capability": "a vector has no sets: FI_ENOSYS",
        "test_receive_takes_the_oldest_matching_message": "a receive of any tag misses earlier messages",
        "test_message_longer_than_its_receive_is_cut[[]*-10000*": f"fi_cq_read {HANGS} after a message that is cut",
        "test_rma_zero_bytes_are_valid": "FI_DELIVERY_COMPLETE: FI_EAGAIN for ever for no bytes",
        "test_rma_without_a_buffer_*[[]write*": "FI_DELIVERY_COMPLETE: FI_EAGAIN for ever for no bytes",
        "test_null_for_no_bytes_completes[[]general-write]": "FI_DELIVERY_COMPLETE: FI_EAGAIN for ever for no bytes",
        "test_null_for_no_bytes_completes[[]general-writev]": "FI_DELIVERY_COMPLETE: FI_EAGAIN for ever for no bytes",
        "test_null_is_a_message_of_no_bytes[[]general-True*": "FI_DELIVERY_COMPLETE: FI_EAGAIN for ever for no bytes",
        "test_atomic_beyond_the_region_touches_nothing": "no entry for a transfer that the target refuses",
        "test_atomic_needs_the_granted_access[[]*EACCES*": "no entry for a transfer that the target refuses",
        "test_buffer_takes_messages_until_*": "the end of a buffer of FI_MULTI_RECV is an entry of its own",
        "test_min_multi_recv_decides_*": "the end of a buffer of FI_MULTI_RECV is an entry of its own",
        "test_long_messages_follow_each_other_*": "the end of a buffer of FI_MULTI_RECV is an entry of its own",
        "test_mr_regv_makes_one_region_of_several_buffers": "the error entry has another number, or there is none",
        "test_multi_recv_of_tagged_receives_needs_its_capability": "FI_MULTI_RECV of a tagged receive: no entries",
        "test_cancel_ends_a_receive*": "the error entry of a cancelled receive has FI_COMPLETION too",
        "test_completion_tells_the_source*": "every peer has an fi_addr at once, inserted or not",
        "test_source_is_not_told_without_the_capability*": "the source is told without FI_SOURCE",
        "test_av_event_mode_reports_to_an_event_queue": "FI_EVENT of a vector is ignored",
        "test_ep_src_addr_of_the_info_is_used": "src_addr is the beginning of the name",
        "test_ep_bind_flags_are_checked[[]<lambda>-TRANSMIT-BadFlags]": "flags of the binding of a vector are ignored",
    },
}


# Of VERSION_2 alone (the tcp there is another provider than that of 1.17, without rxm).
VERSION_2 = (2, 5)
DIFFERENCES_OF_2 = {
    "ofi:tcp": {
        "test_threading_is_the_one_asked_for_or_freer[[]THREAD_[EF]*": "FI_THREAD_FID, FI_THREAD_ENDPOINT: FI_ENODATA",
        "test_directed_receive_takes_messages_of_its_source_alone[[]msg]": "a directed receive takes others' messages",
        "test_mr_access_of_local_buffers": "FI_ENOKEY for the second region of local use",
        "test_rma_remote_data_has_its_source": "the entry of remote data has no source",
        "test_av_event_mode_reports_to_an_event_queue": "FI_EVENT of a vector is ignored",
        "test_completions_have_context_and_flag_in_*": "the entry of a collective lacks FI_COLLECTIVE",
        "test_join_needs_the_capability": "a vector has no sets: FI_ENOSYS",
    },
    "ofi:shm": {
        "test_threading_is_the_one_asked_for_or_freer[[]THREAD_[EF]*": "FI_THREAD_FID, FI_THREAD_ENDPOINT: FI_ENODATA",
        "test_rma_fenced_operation_completes_after_all_before_it": "FI_FENCE orders no completions",
        "test_unread_entries_keep_the_context_*": "FI_OPT_MIN_MULTI_RECV of an enabled endpoint has no effect",
        "test_multi_recv_as_a_default_flag": "FI_MULTI_RECV as a default flag has no effect",
        "test_av_insert_gives_sequential_indices*": "fi_av_lookup leaves fi_shm:// of the name out",
        "test_av_takes_bytes_as_c_strings": "fi_av_lookup leaves fi_shm:// of the name out",
    },
}


def apart(module: str, name: str) -> bool:
    """True if a test is not about libfabric's semantics, or not in one of the modules."""
    return module not in MODULES or any(fnmatch.fnmatchcase(name, one) for one in APART)


def left_out(name: str) -> bool:
    """True if a test is left out for a value of its parameters, which its name ends with."""
    return any("[" in one and fnmatch.fnmatchcase(name, one) for one in APART)


def difference(provider: str, name: str) -> str | None:
    """What the provider does otherwise, if a test (with the id of its other parameters) is known to fail there."""
    return _row({**DIFFERENCES[""], **DIFFERENCES[provider]}, name)


def difference_of_2(provider: str, name: str) -> str | None:
    """The same of VERSION_2, where that of VERSION does not fail."""
    return _row(DIFFERENCES_OF_2[provider], name)


def _row(rows: dict[str, str], name: str) -> str | None:
    return next((what for pattern, what in rows.items() if fnmatch.fnmatchcase(name, pattern)), None)


def starts(what: str) -> bool:
    """False if a test would end the run, or not end at all."""
    return HANGS not in what and CRASHES not in what
