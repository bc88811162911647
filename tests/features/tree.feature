Feature: session::tree lists all entries without their bodies

  # Prevents: a reader that must read every message to find the branches.
  Scenario: Branches are found by their parents
    Given a session "s"
    And "s" holds the messages "a", "b"
    And I called "session::append" with {"session_id": "s", "entry_id": "x", "parent_id": "a", "message": "<user:x>"}
    When I call "session::tree" with {"session_id": "s"}
    Then it answers {"entries": [{"id": "a", "role": "user", "parent_id": "<absent>", "message": "<absent>"}, {"id": "b", "parent_id": "a"}, {"id": "x", "parent_id": "a"}], "active_leaf": "x", "next_cursor": "<absent>"}
    And no event fired
    And nothing changed

  # Prevents: work that grows with the session.
  Scenario: It is read in pages
    Given a session "s"
    And "s" holds the messages "a", "b", "c"
    And calling "session::tree" with {"session_id": "s", "limit": 2} answered {"next_cursor": "<then>"}
    When I call "session::tree" with {"session_id": "s", "limit": 2, "cursor": "<then>"}
    Then it answers {"entries": [{"id": "c"}], "next_cursor": "<absent>"}
    And no event fired
    And nothing changed

  # Prevents: a cursor of another function that is silently ignored.
  Scenario: A foreign cursor is refused
    Given a session "s"
    When I call "session::tree" with {"session_id": "s", "cursor": "m.61"}
    Then it fails with "session/invalid_cursor"
    And no event fired
    And nothing changed

  # Prevents: an unknown session that looks like an empty one.
  Scenario: An unknown session is refused
    When I call "session::tree" with {"session_id": "nobody"}
    Then it fails with "session/not_found"
    And no event fired
    And reading "session::list" with {} answers {"sessions": []}
