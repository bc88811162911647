Feature: session::config-status reports the last reload

  # Prevents: a new node reporting a rejected reload.
  Scenario: A node starts with an applied configuration
    When I call "session::config-status" with {}
    Then it answers {"last_outcome": "applied", "last_error": "<absent>", "rejected_reloads": 0}
    And no event fired
    And nothing changed

  # Prevents: a failed reload being reported as successful.
  Scenario: A rejected reload is reported with its reason and counted
    Given the configuration is invalid: "adapter.name: unknown adapter `tape`"
    And I called "session::on-config-change" with {"id": "session-manager"}
    When I call "session::config-status" with {}
    Then it answers {"last_outcome": "rejected", "last_error": "adapter.name: unknown adapter `tape`", "rejected_reloads": 1}
    And no event fired
    And nothing changed

  # Prevents: a node that stops serving because of an invalid configuration.
  Scenario: After a rejected reload the node serves with the old configuration
    Given a session "s"
    And the configuration is invalid: "bad"
    And I called "session::on-config-change" with {}
    When I call "session::append" with {"session_id": "s", "entry_id": "a", "message": "<user:a>"}
    Then it answers {"entry_id": "a"}
    And these events fired:
      | session::message-added | {"session_id": "s", "entry_id": "a"} |
    And the transcript of "s" is "a"

  # Prevents: an old error staying after a successful reload, or the count of rejections being reset.
  Scenario: A successful reload clears the error and keeps the count
    Given the configuration is invalid: "bad"
    And I called "session::on-config-change" with {}
    And I called "session::on-config-change" with {}
    And the configuration is valid
    And I called "session::on-config-change" with {}
    When I call "session::config-status" with {}
    Then it answers {"last_outcome": "applied", "last_error": "<absent>", "rejected_reloads": 2}
    And no event fired
    And nothing changed

  # Prevents: a client setting the configuration through the reload hook.
  Scenario: The reload hook ignores its request body
    Given a session "s"
    When I call "session::on-config-change" with {"id": "other", "value": {"max_list_limit": 1}, "new_value": {"adapter": {"name": "fs"}}}
    Then it answers {"ok": true}
    And no event fired
    And nothing changed
