Feature: session::config-status tells how the last reload went

  # Prevents: a node that just started claiming that something was rejected.
  Scenario: A node starts with an applied configuration
    When I call "session::config-status" with {}
    Then it answers {"last_outcome": "applied", "last_error": "<absent>", "rejected_reloads": 0}
    And no event fired
    And nothing changed

  # Prevents: a reload that could not be built being mistaken for one that worked.
  Scenario: A rejected reload is told with its reason and counted
    Given the configuration says nonsense: "adapter.name: unknown adapter `tape`"
    And I called "session::on-config-change" with {"id": "session-manager"}
    When I call "session::config-status" with {}
    Then it answers {"last_outcome": "rejected", "last_error": "adapter.name: unknown adapter `tape`", "rejected_reloads": 1}
    And no event fired
    And nothing changed

  # Prevents: a node that stops serving because somebody saved a bad configuration.
  Scenario: After a rejected reload the node serves on as before
    Given a session "s"
    And the configuration says nonsense: "bad"
    And I called "session::on-config-change" with {}
    When I call "session::append" with {"session_id": "s", "entry_id": "a", "message": "<user:a>"}
    Then it answers {"entry_id": "a"}
    And these events fired:
      | session::message-added | {"session_id": "s", "entry_id": "a"} |
    And the transcript of "s" is "a"

  # Prevents: an old error sticking to a configuration that works, or the count of rejections being forgotten.
  Scenario: A good reload clears the error and keeps the count
    Given the configuration says nonsense: "bad"
    And I called "session::on-config-change" with {}
    And I called "session::on-config-change" with {}
    And the configuration is good
    And I called "session::on-config-change" with {}
    When I call "session::config-status" with {}
    Then it answers {"last_outcome": "applied", "last_error": "<absent>", "rejected_reloads": 2}
    And no event fired
    And nothing changed

  # Prevents: a caller of the reload hook feeding the node a configuration of its own.
  Scenario: The reload hook ignores what it is given
    Given a session "s"
    When I call "session::on-config-change" with {"id": "other", "value": {"max_list_limit": 1}, "new_value": {"adapter": {"name": "fs"}}}
    Then it answers {"ok": true}
    And no event fired
    And nothing changed
