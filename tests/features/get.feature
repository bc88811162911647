Feature: session::get reads one session's metadata

  # Prevents: a reader not seeing an acknowledged write.
  Scenario: A session is read complete
    Given a session "s" with {"title": "Plan", "metadata": {"n": 1}}
    And "s" holds the messages "a"
    When I call "session::get" with {"session_id": "s"}
    Then it answers exactly:
      """
      {
        "meta": {
          "session_id": "s", "title": "Plan", "description": "", "status": "idle", "message_count": 1,
          "metadata": {"n": 1}, "created_at": "<t>", "updated_at": "<after t>"
        }
      }
      """
    And no event fired
    And nothing changed

  # Prevents: readers having to distinguish an error from an absent value.
  Scenario: An unknown session is null
    When I call "session::get" with {"session_id": "nobody"}
    Then it answers null
    And no event fired
    And reading "session::list" with {} answers {"sessions": []}

  # Prevents: the empty id matching a session.
  Scenario: The empty id is unknown
    Given a session "s"
    When I call "session::get" with {"session_id": ""}
    Then it answers null
    And no event fired
    And nothing changed

  # Prevents: a missing field being treated as an unknown session.
  Scenario: A request without an id is refused
    When I call "session::get" with {}
    Then it fails with "session/invalid_request", saying "session_id"
    And no event fired
    And nothing changed

  # Prevents: a deleted session being readable.
  Scenario: A deleted session is null
    Given a session "s"
    And I called "session::delete" with {"session_id": "s"}
    When I call "session::get" with {"session_id": "s"}
    Then it answers null
    And no event fired
    And nothing changed
