Feature: Time never goes backwards

  # Prevents: a list that changes its order because a new leader's clock is behind.
  Scenario: updated_at does not go back when the clock does
    Given a session "s"
    And "s" holds the messages "a"
    And calling "session::get" with {"session_id": "s"} answered {"meta": {"updated_at": "<before>"}}
    And the clock is set back by an hour
    When I call "session::append" with {"session_id": "s", "entry_id": "b", "message": "<user:b>"}
    Then it answers {"entry_id": "b", "timestamp": "<not before before>"}
    And these events fired:
      | session::message-added | {"entry_id": "b", "timestamp": "<not before before>"} |
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"updated_at": "<after before>"}}

  # Prevents: a newer session being listed as older.
  Scenario: A new session is not older than earlier changes of other sessions
    Given a session "old"
    And "old" holds the messages "a"
    And calling "session::get" with {"session_id": "old"} answered {"meta": {"updated_at": "<before>"}}
    And the clock is set back by an hour
    When I call "session::ensure" with {"session_id": "new"}
    Then it answers {"created": true, "meta": {"created_at": "<not before before>", "updated_at": "<not before before>"}}
    And these events fired:
      | session::created | {"session_id": "new", "created_at": "<not before before>"} |
    And reading "session::list" with {"order": "created_asc"} answers {"sessions": [{"session_id": "old"}, {"session_id": "new"}]}

  # Prevents: an entry's time moving with its content.
  Scenario: An entry keeps its creation time
    Given a session "s"
    And calling "session::append" with {"session_id": "s", "entry_id": "a", "message": "<user:a>"} answered {"timestamp": "<born>"}
    And I called "session::update-message" with {"session_id": "s", "entry_id": "a", "content": "<content:1>"}
    When I call "session::update-message" with {"session_id": "s", "entry_id": "a", "content": "<content:2>"}
    Then it answers exactly {"updated": true, "revision": 2}
    And these events fired:
      | session::message-updated | {"entry_id": "a", "timestamp": "<after born>"} |
    And reading "session::get-message" with {"session_id": "s", "entry_id": "a"} answers {"entry": {"timestamp": "<born>"}}

  # Prevents: a mutation that does not change updated_at.
  Scenario: Every mutation of a session moves updated_at
    Given a session "s"
    And "s" holds the messages "a", "b"
    And calling "session::get" with {"session_id": "s"} answered {"meta": {"updated_at": "<t1>"}}
    And I called "session::update-message" with {"session_id": "s", "entry_id": "a", "content": []}
    And calling "session::get" with {"session_id": "s"} answered {"meta": {"updated_at": "<after t1>"}}
    And calling "session::get" with {"session_id": "s"} answered {"meta": {"updated_at": "<t2>"}}
    And I called "session::set-active-leaf" with {"session_id": "s", "entry_id": "a"}
    And calling "session::get" with {"session_id": "s"} answered {"meta": {"updated_at": "<after t2>"}}
    And calling "session::get" with {"session_id": "s"} answered {"meta": {"updated_at": "<t3>"}}
    And I called "session::append" with {"session_id": "s", "custom": {"custom_type": "mark"}}
    And calling "session::get" with {"session_id": "s"} answered {"meta": {"updated_at": "<after t3>"}}
    And calling "session::get" with {"session_id": "s"} answered {"meta": {"updated_at": "<t4>"}}
    When I call "session::append-many" with {"session_id": "s", "messages": ["<user:x>"]}
    Then it answers {"last_entry_id": "<any>"}
    And 1 "session::message-added" event fired and no other
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"updated_at": "<after t4>"}}
