Feature: The names of version 0.1.2 still answer

  # Prevents: a client of the older version losing its appends.
  Scenario: append_many
    Given a session "s"
    When I call "session::append_many" with {"session_id": "s", "messages": ["<user:a>"]}
    Then it answers {"entry_ids": ["<e>"], "last_entry_id": "<e>"}
    And these events fired:
      | session::message-added | {"session_id": "s", "entry_id": "<e>"} |
    And the transcript of "s" is "<e>"

  # Prevents: a client of the older version not being able to rename a session.
  Scenario: set_meta
    Given a session "s"
    When I call "session::set_meta" with {"session_id": "s", "title": "T"}
    Then it answers {"meta": {"title": "T"}}
    And these events fired:
      | session::meta-updated | {"session_id": "s", "title": "T"} |
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"title": "T"}}

  # Prevents: a driver of the older version not being able to report its status.
  Scenario: set_status
    Given a session "s"
    When I call "session::set_status" with {"session_id": "s", "status": "done"}
    Then it answers exactly {"status": "done", "previous_status": "idle"}
    And these events fired:
      | session::status-changed | {"session_id": "s", "status": "done"} |
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"status": "done"}}

  # Prevents: a driver of the older version not being able to stream.
  Scenario: update_message
    Given a session "s"
    And "s" holds the messages "a"
    When I call "session::update_message" with {"session_id": "s", "entry_id": "a", "content": "<content:x>"}
    Then it answers exactly {"updated": true, "revision": 1}
    And these events fired:
      | session::message-updated | {"session_id": "s", "entry_id": "a", "message": "<user:x>"} |
    And reading "session::get_message" with {"session_id": "s", "entry_id": "a"} answers {"entry": {"revision": 1}}

  # Prevents: a client of the older version not being able to switch branches.
  Scenario: set_active_leaf
    Given a session "s"
    And "s" holds the messages "a", "b"
    When I call "session::set_active_leaf" with {"session_id": "s", "entry_id": "a"}
    Then it answers exactly {"active_leaf": "a"}
    And no event fired
    And the transcript of "s" is "a"

  # Prevents: a bridge of the older version not being able to write.
  Scenario: The store protocol
    Given I called "session::store::put_meta" with {"meta": {"session_id": "s", "title": "T", "description": "", "status": "idle", "message_count": 1, "created_at": 1, "updated_at": 2}}
    And I called "session::store::put_entry" with {"session_id": "s", "entry": {"kind": "message", "id": "a", "timestamp": 1, "message": "<user:a>"}}
    When I call "session::store::set_active_leaf" with {"session_id": "s", "entry_id": "a"}
    Then it answers exactly {"ok": true}
    And no event fired
    And the transcript of "s" is "a"
    And reading "session::store::get_meta" with {"session_id": "s"} answers {"title": "T"}
    And reading "session::store::get_entry" with {"session_id": "s", "entry_id": "a"} answers {"id": "a"}
    And reading "session::store::get_active_leaf" with {"session_id": "s"} answers {"entry_id": "a"}
    And reading "session::store::list_entries" with {"session_id": "s"} answers {"entries": [{"id": "a"}]}
    And reading "session::store::list_metas" with {} answers {"metas": [{"session_id": "s"}]}

  # Prevents: a bridge of the older version not being able to delete or to publish events.
  Scenario: The rest of the store protocol
    Given a session "s"
    And "s" holds the messages "a"
    And I called "session::store::delete_active_leaf" with {"session_id": "s"}
    And I called "session::store::delete_entries" with {"session_id": "s"}
    And I called "session::store::delete_meta" with {"session_id": "s"}
    When I call "session::store::publish_events" with {"events": [{"trigger_type": "session::deleted", "payload": {"session_id": "s", "timestamp": 1}}]}
    Then it answers exactly {"published": 1}
    And these events fired:
      | session::deleted | {"session_id": "s", "timestamp": 1} |
    And reading "session::get" with {"session_id": "s"} answers null
    And reading "session::store::list-entries" with {"session_id": "s"} answers {"entries": []}

  # Prevents: the operational functions missing their older names.
  Scenario: config_status and on_config_change
    Given I called "session::on_config_change" with {}
    When I call "session::config_status" with {}
    Then it answers {"last_outcome": "applied", "rejected_reloads": 0}
    And no event fired
    And nothing changed

  # Prevents: a setting without an effect.
  Scenario: The older names can be switched off
    Given a session "s"
    And legacy names are switched off
    When I call "session::set_meta" with {"session_id": "s", "title": "T"}
    Then there is no such function
    And no event fired
    And nothing changed

  # Prevents: the setting disabling today's names too.
  Scenario: Today's names answer with the older ones switched off
    Given a session "s"
    And legacy names are switched off
    When I call "session::set-meta" with {"session_id": "s", "title": "T"}
    Then it answers {"meta": {"title": "T"}}
    And these events fired:
      | session::meta-updated | {"session_id": "s"} |
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"title": "T"}}

  # Prevents: names that are neither today's nor the older ones being accepted.
  Scenario: A mixture of both spellings is not accepted
    Given a session "s"
    When I call "session::store::set_active-leaf" with {"session_id": "s", "entry_id": "a"}
    Then there is no such function
    And no event fired
    And nothing changed
