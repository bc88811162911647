Feature: session::delete removes a session and all its data

  # Prevents: deleted data being readable through another function.
  Scenario: Metadata, entries and leaf are removed
    Given a session "s" with {"metadata": {"team": "a"}}
    And "s" holds the messages "a", "b"
    When I call "session::delete" with {"session_id": "s"}
    Then it answers exactly {"deleted": true}
    And exactly this event fired: session::deleted {"session_id": "s", "timestamp": "<now>"}
    And reading "session::get" with {"session_id": "s"} answers null
    And reading "session::get-message" with {"session_id": "s", "entry_id": "a"} answers null
    And reading "session::messages" with {"session_id": "s"} fails with "session/not_found"
    And reading "session::store::list-entries" with {"session_id": "s"} answers {"entries": []}
    And reading "session::store::get-active-leaf" with {"session_id": "s"} answers {"entry_id": "<absent>"}

  # Prevents: a second cleanup failing or firing an event.
  Scenario: An unknown session is not an error
    When I call "session::delete" with {"session_id": "nobody"}
    Then it answers exactly {"deleted": false}
    And no event fired
    And reading "session::list" with {} answers {"sessions": []}

  # Prevents: a second delete firing an event.
  Scenario: The second delete does nothing
    Given a session "s"
    And I called "session::delete" with {"session_id": "s"}
    When I call "session::delete" with {"session_id": "s"}
    Then it answers exactly {"deleted": false}
    And no event fired
    And nothing changed

  # Prevents: the deletion of a session removing entries of its forks.
  Scenario: Forks are not affected
    Given a session "s"
    And "s" holds the messages "a", "b"
    And calling "session::fork" with {"session_id": "s", "entry_id": "b"} answered {"session_id": "<f>"}
    When I call "session::delete" with {"session_id": "s"}
    Then it answers exactly {"deleted": true}
    And these events fired:
      | session::deleted | {"session_id": "s"} |
    And reading "session::get" with {"session_id": "<f>"} answers {"meta": {"forked_from": "s", "message_count": 2}}
    And reading "session::messages" with {"session_id": "<f>"} answers {"messages": [{"message": "<user:a>"}, {"message": "<user:b>"}]}

  # Prevents: a new session with a reused id getting the deleted session's transcript.
  Scenario: A reused session id starts empty
    Given a session "s" with {"title": "Old"}
    And "s" holds the messages "a", "b"
    And I called "session::delete" with {"session_id": "s"}
    When I call "session::ensure" with {"session_id": "s", "title": "New"}
    Then it answers {"created": true, "meta": {"title": "New", "message_count": 0}}
    And these events fired:
      | session::created | {"session_id": "s", "title": "New"} |
    And the transcript of "s" is empty
    And reading "session::get-message" with {"session_id": "s", "entry_id": "a"} answers null

  # Prevents: an entry id of the deleted session being treated as a retry in the new one.
  Scenario: Entry ids can be reused too
    Given a session "s"
    And "s" holds the messages "a"
    And I called "session::delete" with {"session_id": "s"}
    And a session "s"
    When I call "session::append" with {"session_id": "s", "entry_id": "a", "message": "<assistant:new>"}
    Then it answers {"entry_id": "a", "parent_id": "<absent>"}
    And these events fired:
      | session::message-added | {"session_id": "s", "entry_id": "a", "message": "<assistant:new>"} |
    And reading "session::get-message" with {"session_id": "s", "entry_id": "a"} answers {"entry": {"message": "<assistant:new>"}}

  # Prevents: a deletion affecting sessions whose ids have a common prefix.
  Scenario: Other sessions are not affected
    Given a session "s"
    And a session "s2"
    And a session "s/2"
    And "s" holds the messages "a"
    And "s2" holds the messages "a"
    And "s/2" holds the messages "a"
    When I call "session::delete" with {"session_id": "s"}
    Then it answers exactly {"deleted": true}
    And these events fired:
      | session::deleted | {"session_id": "s"} |
    And the transcript of "s2" is "a"
    And the transcript of "s/2" is "a"
    And reading "session::list" with {"order": "created_asc"} answers {"sessions": [{"session_id": "s2"}, {"session_id": "s/2"}]}

  # Prevents: a writer that missed the deletion recreating the session.
  Scenario: Writing to a deleted session is an error
    Given a session "s"
    And I called "session::delete" with {"session_id": "s"}
    When I call "session::append" with {"session_id": "s", "message": "<user:late>"}
    Then it fails with "session/not_found"
    And no event fired
    And reading "session::get" with {"session_id": "s"} answers null

  # Prevents: a delete without an id deleting something.
  Scenario: A missing id is refused
    Given a session "s"
    When I call "session::delete" with {}
    Then it fails with "session/invalid_request", saying "session_id"
    And no event fired
    And nothing changed
