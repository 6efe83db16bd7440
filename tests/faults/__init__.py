"""Faults, invalid input and attacks: which test shows that each is handled.

Other cases (differential privacy, inversion attacks, the dashboard, long runs) are tested elsewhere, hence the gaps in
the numbers. `tests/test_conventions.py` checks that the tests of the table exist. Tests marked S use real processes and
run with `make test-faults`; the others run with `make test`, most of them with real sockets, certificates and a real
broker.
"""

CASES: dict[int, tuple[str, tuple[str, ...]]] = {
    1: (
        "pickles, unknown messages",
        (
            "faults/test_updates.py::test_invalid_messages_are_rejected_and_no_code_runs",
            "deploy/test_agent.py::test_an_invalid_request_is_answered_with_the_reason",
            "faults/test_byzantine.py::test_silos_that_send_pickles_invalid_updates_and_ten_gigabytes",  # S
        ),
    ),
    2: (
        "unknown, expired, revoked, foreign certificates",
        (
            "deploy/test_authentication.py::test_a_certificate_of_another_authority_is_refused",
            "deploy/test_authentication.py::test_an_expired_certificate_is_refused",
            "deploy/test_authentication.py::test_a_revoked_member_is_disconnected_at_once",
            "deploy/test_server_session.py::test_silos_reject_requests_of_a_revoked_coordinator",
            "deploy/test_authentication.py::test_a_silo_publishes_and_subscribes_only_to_its_own_subjects",
            "deploy/test_byzantine.py::test_a_silo_revoked_during_a_round_is_dropped_at_once",
            "faults/test_byzantine.py::test_unauthenticated_peers_replays_and_floods_during_training",  # S
        ),
    ),
    3: (
        "replayed, stale and future envelopes",
        (
            "deploy/network/test_envelope.py::test_invalid_envelopes_are_rejected",
            "deploy/network/test_envelope.py::test_accepted_positions_only_rise",
            "deploy/test_authentication.py::test_forged_duplicate_and_late_replies_are_rejected",
            "faults/test_byzantine.py::test_unauthenticated_peers_replays_and_floods_during_training",  # S
        ),
    ),
    4: (
        "SIGKILL of any process at any time",
        (
            "faults/test_crash.py::test_killed_and_resumed_runs_end_in_the_same_bits",  # S
            "faults/test_network_faults.py::test_the_coordinator_is_killed_three_times",  # S
            "faults/test_network_faults.py::test_a_silo_and_the_broker_are_killed_during_training",  # S
            "faults/test_network_faults.py::test_a_region_is_killed_while_its_silos_train",  # S
        ),
    ),
    5: (
        "the masked sum equals the plain sum",
        (
            "privacy/secure_aggregation/test_protocol.py::test_fixed_point_is_as_near_as_stated",
            "deploy/test_signatures.py::test_an_honest_server_gets_the_mean",
        ),
    ),
    6: (
        "drop-outs in every phase of secure aggregation",
        (
            "privacy/secure_aggregation/test_protocol.py::"
            "test_whoever_drops_out_down_to_the_threshold_the_sum_is_right",
            "privacy/secure_aggregation/test_rounds.py::test_silos_may_drop_out_in_every_phase",
            "privacy/secure_aggregation/test_rounds.py::test_one_below_the_threshold_nothing_is_unmasked",
            "faults/test_network_faults.py::test_a_silo_and_the_broker_are_killed_during_training",  # S
        ),
    ),
    7: (
        "a server that wants both secrets of a silo",
        (
            "deploy/test_signatures.py::test_no_server_gets_both_secrets_of_a_silo",
            "deploy/test_signatures.py::test_shares_are_revealed_for_one_list_of_silos_that_answered",
        ),
    ),
    8: (
        "a server that sends different models",
        (
            "deploy/test_signatures.py::test_a_forged_roster_is_refused_and_the_original_is_accepted",
            "deploy/test_signatures.py::test_a_model_that_was_not_announced_is_refused",
            "deploy/test_byzantine.py::test_a_silo_refuses_requests_that_differ_from_those_of_the_others",
        ),
    ),
    9: (
        "small cohorts, differencing attacks",
        (
            "deploy/test_signatures.py::test_a_forged_roster_is_refused_and_the_original_is_accepted",
            "deploy/test_signatures.py::test_a_second_update_under_the_same_masks_is_refused",
            "deploy/test_signatures.py::test_a_threshold_of_half_of_the_other_silos_is_refused",
            "deploy/test_byzantine.py::test_a_silo_refuses_requests_that_differ_from_those_of_the_others",
            "privacy/policy/test_rules.py::test_what_a_rule_does_not_allow_stays_and_why",
            "faults/test_byzantine.py::test_silos_refuse_rosters_that_are_too_short_or_change",  # S
        ),
    ),
    10: (
        "invalid updates",
        (
            "faults/test_updates.py::test_an_invalid_update_is_left_out_with_a_reason",
            "deploy/test_authentication.py::test_a_silo_with_invalid_updates_is_left_out_of_the_round",
            "deploy/test_byzantine.py::test_invalid_scores_and_an_unexpected_mask_are_rejected",
            "faults/test_byzantine.py::test_silos_that_send_pickles_invalid_updates_and_ten_gigabytes",  # S
        ),
    ),
    13: (
        "a policy that is missing, malformed or too permissive",
        (
            "privacy/policy/test_rules.py::test_a_missing_or_broken_policy_allows_nothing",
            "privacy/policy/test_rules.py::test_a_jurisdictions_policy_must_allow_it_too",
            "deploy/test_policy_enforcer.py::"
            "test_a_silo_without_a_policy_releases_nothing_and_both_sides_get_the_reason",
            "faults/test_byzantine.py::test_faulty_silos_are_left_out_and_their_data_is_not_released",  # S
        ),
    ),
    14: (
        "canaries",
        (
            "deploy/test_canary.py::test_canaries_stay_in_their_silo",
            "faults/test_byzantine.py::test_faulty_silos_are_left_out_and_their_data_is_not_released",  # S
        ),
    ),
    16: (
        "an audit log that is edited, truncated or reordered",
        (
            "privacy/policy/test_audit_log.py::test_any_changed_byte_is_found",
            "privacy/policy/test_audit_log.py::test_any_removed_or_repeated_or_moved_line_is_found",
            "privacy/policy/test_audit_log.py::test_a_tail_that_is_cut_off_is_caught_by_the_anchor",
            "faults/test_byzantine.py::test_faulty_silos_are_left_out_and_their_data_is_not_released",  # S
        ),
    ),
    21: (
        "stragglers, and silos that never return",
        (
            "deploy/test_server_session.py::"
            "test_a_restarted_coordinator_waits_for_a_missing_silo_only_until_the_deadline",  # S
            "deploy/test_server_session.py::test_a_wait_without_a_broker_ends_at_its_deadline",
            "faults/test_pool.py::test_a_silo_that_never_answers_is_awaited_until_the_deadline",
            "faults/test_network_faults.py::test_a_late_reply_does_not_count",  # S
        ),
    ),
    22: (
        "partitions, interrupted and duplicate transfers",
        (
            "deploy/network/test_blob_server.py::test_an_interrupted_transfer_continues_where_it_stopped",
            "deploy/test_authentication.py::test_forged_duplicate_and_late_replies_are_rejected",
            "faults/test_network_faults.py::test_a_silo_is_partitioned_during_a_round",  # S
            "faults/test_network_faults.py::test_a_proxy_that_breaks_connections",  # S
        ),
    ),
    23: (
        "ten gigabytes announced, slow writers, huge headers",
        (
            "deploy/network/test_blob_server.py::test_invalid_requests_are_refused_and_counted",
            "deploy/network/test_blob_server.py::test_an_endless_head_and_a_slow_writer_do_not_block_others",
            "deploy/test_quota.py::test_a_request_may_have_the_size_of_eight_models_and_an_allowance",
            "deploy/test_agent.py::test_an_invalid_request_is_answered_with_the_reason",
            "faults/test_byzantine.py::test_silos_that_send_pickles_invalid_updates_and_ten_gigabytes",  # S
            "faults/test_byzantine.py::test_unauthenticated_peers_replays_and_floods_during_training",  # S
        ),
    ),
    25: (
        "full and read-only disks, names that are paths",
        (
            "faults/test_crash.py::test_a_full_disk_leaves_the_previous_checkpoint",
            "faults/test_crash.py::test_a_read_only_disk_leaves_the_previous_checkpoint",
            "faults/test_byzantine.py::test_a_silo_with_a_read_only_disk_is_left_out_until_it_is_writable",  # S
            "deploy/network/test_blob_server.py::test_an_upload_waits_while_the_disk_is_full",
            "deploy/test_agent.py::test_a_full_disk_rejects_an_envelope_until_there_is_space",
            "deploy/network/test_envelope.py::test_a_run_or_a_request_that_is_a_path_is_rejected",
            "deploy/network/test_envelope.py::test_bundles_with_paths_or_code_are_refused",
            "privacy/policy/test_guard.py::test_nothing_leaves_that_the_audit_log_cannot_take",
            "faults/test_byzantine.py::test_faulty_silos_are_left_out_and_their_data_is_not_released",  # S
        ),
    ),
}
