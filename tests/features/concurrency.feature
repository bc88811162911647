Feature: Many clients at once lose nothing

  # Prevents: concurrent retries after a lost connection storing the message twelve times.
  Scenario: Twelve clients append the same entry
    Given a session "s"
    When 12 clients append the entry "e" to "s" at once
    Then all of them got the same answer
    And 1 "session::message-added" event fired and no other
    And the transcript of "s" is "e"
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"message_count": 1}}

  # Prevents: two appends with the same parent, so that the transcript misses one of them.
  Scenario: Six appenders make one unbroken chain
    Given a session "s"
    When 6 clients each append 20 messages to "s" at once
    Then the transcript of "s" is one unbroken chain of 120 messages
    And 120 "session::message-added" events fired and no other
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"message_count": 120}}

  # Prevents: an update being overwritten by a client that did not see it.
  Scenario: Six writers guarded by expected_revision lose no update
    Given a session "s"
    And "s" holds the messages "m"
    When 6 clients each update "m" of "s" 10 times, guarded by expected_revision
    Then it answers {"done": 60}
    And "m" of "s" holds every one of the 60 updates, at revision 60
    And 60 "session::message-updated" events fired and no other

  # Prevents: a session being created twice.
  Scenario: Eight clients ensure the same session
    When 8 clients call "session::ensure" with {"session_id": "s"} at once
    Then 1 of them gets {"created": true} and 7 get {"created": false}
    And 1 "session::created" event fired and no other
    And reading "session::list" with {} answers {"sessions": [{"session_id": "s"}]}

  # Prevents: a deletion being announced more than once.
  Scenario: Eight clients delete the same session
    Given a session "s"
    And "s" holds the messages "a", "b"
    When 8 clients call "session::delete" with {"session_id": "s"} at once
    Then 1 of them gets {"deleted": true} and 7 get {"deleted": false}
    And 1 "session::deleted" event fired and no other
    And reading "session::get" with {"session_id": "s"} answers null

  # Prevents: a status change firing twice, or being acknowledged to several clients.
  Scenario: Eight clients set the same status
    Given a session "s"
    When 8 clients call "session::set-status" with {"session_id": "s", "status": "working"} at once
    Then 1 of them gets {"previous_status": "idle"} and 7 get {"previous_status": "working"}
    And 1 "session::status-changed" event fired and no other
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"status": "working"}}

  # Prevents: two updates with the same expected revision both succeeding.
  Scenario: Eight clients update the same revision
    Given a session "s"
    And "s" holds the messages "m"
    When 8 clients call "session::update-message" with {"session_id": "s", "entry_id": "m", "content": [], "expected_revision": 0} at once
    Then 1 of them gets {"updated": true, "revision": 1} and 7 get {"updated": false, "revision": 1}
    And 1 "session::message-updated" event fired and no other
    And reading "session::get-message" with {"session_id": "s", "entry_id": "m"} answers {"entry": {"revision": 1}}

  # Prevents: two new sessions under one id.
  Scenario: Eight clients fork the same entry
    Given a session "s"
    And "s" holds the messages "a", "b"
    When 8 clients call "session::fork" with {"session_id": "s", "entry_id": "b"} at once
    Then all 8 of them get {"meta": {"message_count": 2, "forked_from": "s"}}
    And 8 "session::created" events fired and no other
    And the answers' "session_id" are all different
    And the transcript of "s" is "a", "b"

  # Prevents: the messages of two concurrent batches being interleaved.
  Scenario: Batches stay together
    Given a session "s"
    When 8 clients call "session::append-many" with {"session_id": "s", "messages": ["<user:1>", "<assistant:2>", "<user:3>"]} at once
    Then all 8 of them get {"entry_ids": ["<any>", "<any>", "<any>"]}
    And 24 "session::message-added" events fired and no other
    And the roles in "s" repeat "user", "assistant", "user"
