Feature: session::path reads a window of a transcript by depth

  # Prevents: a long transcript that can only be read from its beginning.
  Scenario: Without a depth it is the end of the path
    Given a session "s"
    And "s" holds the messages "a", "b", "c"
    When I call "session::path" with {"session_id": "s", "limit": 2}
    Then it answers {"entries": [{"id": "b", "parent_id": "a"}, {"id": "c", "parent_id": "b"}], "first": 1, "length": 3, "leaf": "c"}
    And no event fired
    And nothing changed

  # Prevents: a reader that cannot scroll back.
  Scenario: A depth names the first entry
    Given a session "s"
    And "s" holds the messages "a", "b", "c"
    When I call "session::path" with {"session_id": "s", "first": 0, "limit": 2}
    Then it answers {"entries": [{"id": "a"}, {"id": "b"}], "first": 0, "length": 3}
    And no event fired
    And nothing changed

  # Prevents: other branches that can be listed but not read.
  Scenario: Another branch is read by its last entry
    Given a session "s"
    And "s" holds the messages "a", "b"
    And I called "session::append" with {"session_id": "s", "entry_id": "x", "parent_id": "a", "message": "<user:x>"}
    When I call "session::path" with {"session_id": "s", "from_entry_id": "b"}
    Then it answers {"entries": [{"id": "a"}, {"id": "b"}], "first": 0, "length": 2, "leaf": "b"}
    And no event fired
    And nothing changed

  # Prevents: an error for a reader that is past the end, or for an empty session.
  Scenario: Past the end there is nothing
    Given a session "s"
    And "s" holds the messages "a"
    When I call "session::path" with {"session_id": "s", "first": 9}
    Then it answers {"entries": [], "first": 9, "length": 1, "leaf": "a"}
    And no event fired
    And nothing changed

  # Prevents: an unknown session that looks like an empty one.
  Scenario: An unknown session is refused
    When I call "session::path" with {"session_id": "nobody"}
    Then it fails with "session/not_found"
    And no event fired
    And reading "session::list" with {} answers {"sessions": []}
