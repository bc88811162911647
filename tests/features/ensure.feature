Feature: session::ensure creates a session with a given id, once

  # Prevents: clients having to check first whether their session exists.
  Scenario: A missing session is created
    When I call "session::ensure" with {"session_id": "chat-1", "title": "Plan", "description": "d", "metadata": {"team": "a"}}
    Then it answers exactly:
      """
      {
        "session_id": "chat-1", "created": true,
        "meta": {
          "session_id": "chat-1", "title": "Plan", "description": "d", "status": "idle", "message_count": 0,
          "metadata": {"team": "a"}, "created_at": "<t>", "updated_at": "<t>"
        }
      }
      """
    And exactly this event fired: session::created {"session_id": "chat-1", "title": "Plan", "description": "d", "status": "idle", "created_at": "<t>"}
    And reading "session::get" with {"session_id": "chat-1"} answers {"meta": {"title": "Plan", "created_at": "<t>"}}

  # Prevents: an ensure at every program start overwriting later changes, or firing events.
  Scenario: An existing session is only read
    Given a session "chat-1" with {"title": "Old", "metadata": {"team": "a"}}
    When I call "session::ensure" with {"session_id": "chat-1", "title": "New", "description": "new", "metadata": {"team": "b"}}
    Then it answers {"session_id": "chat-1", "created": false, "meta": {"title": "Old", "description": "", "metadata": {"team": "a"}}}
    And no event fired
    And nothing changed

  # Prevents: a session with an empty id.
  Scenario: An empty id is refused
    When I call "session::ensure" with {"session_id": ""}
    Then it fails with "session/invalid_request", saying "session_id"
    And no event fired
    And reading "session::list" with {} answers {"sessions": []}

  # Prevents: an id being generated for a request without one.
  Scenario: A missing id is refused
    When I call "session::ensure" with {"title": "x"}
    Then it fails with "session/invalid_request", saying "session_id"
    And no event fired
    And reading "session::list" with {} answers {"sessions": []}

  # Prevents: an id being used as a path, or normalised to another id.
  Scenario: An id may look like a path
    When I call "session::ensure" with {"session_id": "../escape/chat 42:?"}
    Then it answers {"session_id": "../escape/chat 42:?", "created": true}
    And these events fired:
      | session::created | {"session_id": "../escape/chat 42:?"} |
    And reading "session::get" with {"session_id": "../escape/chat 42:?"} answers {"meta": {"session_id": "../escape/chat 42:?"}}
    And reading "session::get" with {"session_id": "escape/chat 42:?"} answers null

  # Prevents: ids that differ only in case, Unicode composition or an invisible character being treated as equal.
  Scenario: Ids that look alike are different ids
    Given a session "chat"
    When I call "session::ensure" with {"session_id": "chat\u0000"}
    Then it answers {"session_id": "chat\u0000", "created": true}
    And these events fired:
      | session::created | {"session_id": "chat\\u0000"} |
    And reading "session::get" with {"session_id": "CHAT"} answers null
    And reading "session::get" with {"session_id": "cha"} answers null
    And reading "session::list" with {"order": "created_asc"} answers {"sessions": [{"session_id": "chat"}, {"session_id": "chat\u0000"}]}

  # Prevents: ids with emoji or in any script being refused.
  Scenario: An id may be any Unicode
    When I call "session::ensure" with {"session_id": "🦀 сессия 会話 %2e%2e"}
    Then it answers {"session_id": "🦀 сессия 会話 %2e%2e", "created": true}
    And these events fired:
      | session::created | {"session_id": "🦀 сессия 会話 %2e%2e"} |
    And reading "session::get" with {"session_id": "🦀 сессия 会話 %2e%2e"} answers {"meta": {"session_id": "🦀 сессия 会話 %2e%2e"}}

  # Prevents: a second ensure removing the transcript.
  Scenario: Ensuring again keeps the transcript
    Given a session "s"
    And "s" holds the messages "a", "b"
    When I call "session::ensure" with {"session_id": "s"}
    Then it answers {"created": false, "meta": {"message_count": 2}}
    And no event fired
    And the transcript of "s" is "a", "b"
