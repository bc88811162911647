Feature: session::get-message reads one entry

  # Prevents: an entry without its parent, time or revision.
  Scenario: A message is read complete
    Given a session "s"
    And "s" holds the messages "a"
    And calling "session::append" with {"session_id": "s", "entry_id": "b", "message": "<assistant:hi>", "origin": {"n": 1}} answered {"timestamp": "<then>"}
    When I call "session::get-message" with {"session_id": "s", "entry_id": "b"}
    Then it answers exactly {"entry": {"kind": "message", "id": "b", "parent_id": "a", "timestamp": "<then>", "revision": 0, "origin": {"n": 1}, "message": "<assistant:hi>"}}
    And no event fired
    And nothing changed

  # Prevents: custom entries that can be written but not read.
  Scenario: A custom entry can be read
    Given a session "s"
    And I called "session::append" with {"session_id": "s", "entry_id": "c", "custom": {"custom_type": "mark", "data": {"n": 1}}}
    When I call "session::get-message" with {"session_id": "s", "entry_id": "c"}
    Then it answers {"entry": {"kind": "custom", "id": "c", "parent_id": "<absent>", "revision": 0, "custom_type": "mark", "data": {"n": 1}, "message": "<absent>"}}
    And no event fired
    And nothing changed

  # Prevents: readers having to distinguish an error from an absent value.
  Scenario: An unknown entry is null
    Given a session "s"
    And "s" holds the messages "a"
    When I call "session::get-message" with {"session_id": "s", "entry_id": "b"}
    Then it answers null
    And no event fired
    And nothing changed

  # Prevents: the same for an unknown session.
  Scenario: An unknown session is null
    When I call "session::get-message" with {"session_id": "nobody", "entry_id": "a"}
    Then it answers null
    And no event fired
    And reading "session::list" with {} answers {"sessions": []}

  # Prevents: an entry being found in a session it does not belong to.
  Scenario: An entry of another session is null
    Given a session "s"
    And a session "t"
    And "t" holds the messages "a"
    When I call "session::get-message" with {"session_id": "s", "entry_id": "a"}
    Then it answers null
    And no event fired
    And nothing changed

  # Prevents: entries off the active path being unreadable.
  Scenario: An entry on an abandoned branch can be read
    Given a session "s"
    And "s" holds the messages "a", "b"
    And I called "session::append" with {"session_id": "s", "entry_id": "x", "parent_id": "a", "message": "<user:x>"}
    When I call "session::get-message" with {"session_id": "s", "entry_id": "b"}
    Then it answers {"entry": {"id": "b", "parent_id": "a", "message": "<user:b>"}}
    And no event fired
    And nothing changed

  # Prevents: a reader getting the old content after an acknowledged update.
  Scenario: The latest revision is read
    Given a session "s"
    And "s" holds the messages "a"
    And I called "session::update-message" with {"session_id": "s", "entry_id": "a", "content": "<content:new>"}
    When I call "session::get-message" with {"session_id": "s", "entry_id": "a"}
    Then it answers {"entry": {"revision": 1, "message": "<user:new>"}}
    And no event fired
    And nothing changed

  # Prevents: a missing field being treated as an absent entry.
  Scenario: A request without an entry id is refused
    Given a session "s"
    When I call "session::get-message" with {"session_id": "s"}
    Then it fails with "session/invalid_request", saying "entry_id"
    And no event fired
    And nothing changed
