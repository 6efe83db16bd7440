"""Faults, bad input and attacks: which test shows that each is survived.

Other cases (differential privacy, attacks by inversion, the dashboard, long runs) are shown elsewhere, hence the gaps.
`tests/test_conventions.py` holds the table to the files. Marked S: real processes, run by `make test-faults`; the
others run with every `make test`, most of them over real sockets with real certificates and a real broker.
"""

CASES: dict[int, tuple[str, tuple[str, ...]]] = {
    1: (
        "pickles, unknown messages",
        (
            "faults/test_updates.py::test_bytes_that_are_no_message_are_refused_and_nothing_runs",
            "deploy/test_requests.py::test_an_unusable_request_is_answered_with_the_reason_at_once",
            "faults/test_lies.py::test_silos_that_send_pickles_nonsense_and_ten_gigabytes",  # S
        ),
    ),
    2: (
        "unknown, expired, revoked, foreign certificates",
        (
            "deploy/test_strangers.py::test_a_certificate_of_another_authority_is_refused",
            "deploy/test_strangers.py::test_an_expired_certificate_is_refused",
            "deploy/test_strangers.py::test_whoever_is_revoked_is_cut_off_at_once",
            "deploy/test_places.py::test_silos_do_not_obey_a_coordinator_that_was_revoked",
            "deploy/test_strangers.py::test_a_silo_speaks_and_listens_only_where_it_may",
            "deploy/test_liars.py::test_whoever_is_revoked_in_the_middle_of_a_round_is_lost_at_once",
            "faults/test_lies.py::test_strangers_replays_and_a_siege_while_silos_work",  # S
        ),
    ),
    3: (
        "replayed, stale, skewed letters",
        (
            "deploy/test_letters.py::test_other_letters_are_refused",
            "deploy/test_letters.py::test_what_is_believed_never_goes_back",
            "deploy/test_strangers.py::test_forged_doubled_and_late_letters_do_not_count",
            "faults/test_lies.py::test_strangers_replays_and_a_siege_while_silos_work",  # S
        ),
    ),
    4: (
        "kill -9 of anybody at any time",
        (
            "faults/test_crash.py::test_kill_9_and_resume_end_in_the_same_bits",  # S
            "faults/test_far.py::test_the_coordinator_is_killed_before_the_first_round_in_the_middle_of_one_and_in_a_"
            "checkpoint",  # S
            "faults/test_far.py::test_a_silo_and_then_the_broker_are_killed_at_work",  # S
            "faults/test_far.py::test_a_region_is_killed_while_its_silos_work",  # S
        ),
    ),
    5: (
        "the secure sum is the plain one",
        (
            "laws/test_secagg.py::test_fixed_point_is_as_near_as_stated",
            "deploy/test_vouch.py::test_without_lies_the_server_learns_the_mean_and_it_is_right",
        ),
    ),
    6: (
        "drop-outs in every phase of secure aggregation",
        (
            "laws/test_secagg.py::test_whoever_drops_out_down_to_the_threshold_the_sum_is_right",
            "test_veil.py::test_silos_may_drop_out_in_every_phase",
            "test_veil.py::test_one_below_the_threshold_nothing_is_unmasked",
            "faults/test_far.py::test_a_silo_and_then_the_broker_are_killed_at_work",  # S
        ),
    ),
    7: (
        "a server that wants both secrets of a silo",
        (
            "deploy/test_vouch.py::test_of_no_silo_can_both_secrets_be_had",
            "deploy/test_vouch.py::test_shares_are_opened_for_one_list_of_who_answered",
        ),
    ),
    8: (
        "a server that sends different models",
        (
            "deploy/test_vouch.py::test_a_forged_list_is_refused_and_the_true_one_is_not",
            "deploy/test_vouch.py::test_a_model_that_was_not_announced_is_not_trained",
            "deploy/test_liars.py::test_a_coordinator_that_treats_one_silo_differently_gets_nothing_from_it",
        ),
    ),
    9: (
        "small cohorts, differencing",
        (
            "deploy/test_vouch.py::test_a_forged_list_is_refused_and_the_true_one_is_not",
            "deploy/test_vouch.py::test_a_second_update_under_the_same_masks_is_refused_also_after_a_restart",
            "deploy/test_vouch.py::test_half_of_the_others_must_not_suffice",
            "deploy/test_liars.py::test_a_coordinator_that_treats_one_silo_differently_gets_nothing_from_it",
            "laws/test_policy.py::test_what_a_rule_does_not_allow_stays_and_why",
            "faults/test_lies.py::test_a_coordinator_that_wants_few_in_a_sum_gets_nothing",  # S
        ),
    ),
    10: (
        "updates that make no sense",
        (
            "faults/test_updates.py::test_a_bad_update_is_left_out_with_a_reason",
            "deploy/test_strangers.py::test_a_silo_that_sends_nonsense_is_left_out_and_the_round_goes_on",
            "deploy/test_liars.py::test_nonsense_for_scores_and_a_mask_that_nobody_asked_for",
            "faults/test_lies.py::test_silos_that_send_pickles_nonsense_and_ten_gigabytes",  # S
        ),
    ),
    13: (
        "a policy that is missing, malformed or too loose",
        (
            "laws/test_policy.py::test_a_missing_or_broken_policy_allows_nothing",
            "laws/test_policy.py::test_a_jurisdictions_policy_must_allow_it_too",
            "deploy/test_law.py::test_a_silo_without_a_policy_releases_nothing_and_both_sides_hear_why",
            "faults/test_lies.py::test_silos_in_trouble_are_left_out_and_no_word_of_theirs_gets_out",  # S
        ),
    ),
    14: (
        "canaries",
        (
            "deploy/test_canary.py::test_canaries_stay_in_their_silo",
            "faults/test_lies.py::test_silos_in_trouble_are_left_out_and_no_word_of_theirs_gets_out",  # S
        ),
    ),
    16: (
        "an audit log edited, cut, reordered",
        (
            "laws/test_audit.py::test_any_changed_byte_is_found",
            "laws/test_audit.py::test_any_removed_or_repeated_or_moved_line_is_found",
            "laws/test_audit.py::test_a_tail_that_is_cut_off_is_caught_by_the_anchor",
            "faults/test_lies.py::test_silos_in_trouble_are_left_out_and_no_word_of_theirs_gets_out",  # S
        ),
    ),
    21: (
        "stragglers, and silos that never return",
        (
            "deploy/test_places.py::test_a_coordinator_that_starts_again_does_not_wait_for_one_that_is_gone",  # S
            "deploy/test_places.py::test_a_wait_ends_at_its_deadline_also_without_a_broker",
            "faults/test_pool.py::test_a_silo_that_never_answers_costs_one_deadline",
            "faults/test_far.py::test_a_silo_that_does_not_come_back_costs_one_deadline_and_its_late_answer_does_not_"
            "count",  # S
        ),
    ),
    22: (
        "partitions, broken and doubled transfers",
        (
            "deploy/test_blobs.py::test_an_interrupted_transfer_continues_where_it_stopped",
            "deploy/test_strangers.py::test_forged_doubled_and_late_letters_do_not_count",
            "faults/test_far.py::test_a_silo_is_cut_off_in_the_middle_of_a_round",  # S
            "faults/test_far.py::test_a_proxy_that_breaks_every_connection_now_and_then",  # S
        ),
    ),
    23: (
        "ten gigabytes announced, slow writers, huge headers",
        (
            "deploy/test_blobs.py::test_whoever_asks_for_too_much_is_refused_and_counted",
            "deploy/test_blobs.py::test_a_line_without_an_end_and_a_slow_writer_disturb_nobody",
            "deploy/test_room.py::test_a_request_may_bring_eight_models_and_some_more",
            "deploy/test_requests.py::test_an_unusable_request_is_answered_with_the_reason_at_once",
            "faults/test_lies.py::test_silos_that_send_pickles_nonsense_and_ten_gigabytes",  # S
            "faults/test_lies.py::test_strangers_replays_and_a_siege_while_silos_work",  # S
        ),
    ),
    25: (
        "full and read-only disks, and names that lead elsewhere",
        (
            "faults/test_crash.py::test_a_disk_that_takes_no_more_leaves_the_previous_checkpoint",
            "faults/test_crash.py::test_a_disk_that_becomes_read_only_leaves_the_previous_checkpoint",
            "faults/test_lies.py::test_a_silo_whose_disk_becomes_read_only_is_left_out_until_it_is_mended",  # S
            "deploy/test_blobs.py::test_a_full_disk_is_waited_for",
            "deploy/test_requests.py::test_a_disk_that_is_full_when_a_letter_comes_is_survived",
            "deploy/test_letters.py::test_a_run_or_a_request_that_could_lead_elsewhere_is_refused",
            "deploy/test_letters.py::test_files_that_lead_elsewhere_or_may_hold_code_are_refused",
            "laws/test_policy.py::test_nothing_leaves_that_the_audit_log_cannot_take",
            "faults/test_lies.py::test_silos_in_trouble_are_left_out_and_no_word_of_theirs_gets_out",  # S
        ),
    ),
}
