Feature: Errors are one string, a code and words that help

  # Prevents: text that is no JSON reaching the store, or the error hiding where it breaks.
  Scenario: A body that does not parse
    Given a session "s"
    When I send "session::append" the text {"session_id": "s", "message": }
    Then it fails with "session/invalid_request", saying "invalid request: "
    And no event fired
    And nothing changed

  # Prevents: half a frame being carried out as far as it goes.
  Scenario: A body that breaks off
    Given a session "s"
    When I send "session::delete" the text {"session_id": "s"
    Then it fails with "session/invalid_request", saying "line 1"
    And no event fired
    And nothing changed

  # Prevents: a list or a number being read as a request.
  Scenario: A body that is no object
    Given a session "s"
    When I send "session::delete" the text ["s"]
    Then it fails with "session/invalid_request", saying "object"
    And no event fired
    And nothing changed

  # Prevents: the second of two documents being dropped in silence.
  Scenario: Two documents in one body
    Given a session "s"
    When I send "session::delete" the text {"session_id": "nobody"} {"session_id": "s"}
    Then it fails with "session/invalid_request"
    And no event fired
    And nothing changed

  # Prevents: a reader of the error having to guess which of many messages is wrong.
  Scenario: The place of the error is named
    Given a session "s"
    When I call "session::append-many" with {"session_id": "s", "messages": ["<user:fine>", {"role": "user", "content": [{"type": "text", "text": 5}], "timestamp": 1}]}
    Then it fails with "session/invalid_request", saying "messages[1]"
    And no event fired
    And nothing changed

  # Prevents: the wrong type of an id being turned into text.
  Scenario: An id that is a number
    Given a session "5"
    When I call "session::delete" with {"session_id": 5}
    Then it fails with "session/invalid_request", saying "session_id"
    And no event fired
    And nothing changed

  # Prevents: a null where an id is needed being read as "all" or "none".
  Scenario: An id that is null
    Given a session "s"
    When I call "session::delete" with {"session_id": null}
    Then it fails with "session/invalid_request", saying "session_id"
    And no event fired
    And nothing changed

  # Prevents: lone halves of characters, which no text can hold, being stored as something else.
  Scenario: Text that is no Unicode
    Given a session "s"
    When I send "session::set-meta" the text {"session_id": "s", "title": "\ud800"}
    Then it fails with "session/invalid_request"
    And no event fired
    And nothing changed

  # Prevents: an unknown word failing with the words of a parser nobody knows.
  Scenario: An unknown enum value names the known ones
    Given a session "s"
    When I call "session::set-status" with {"session_id": "s", "status": "busy"}
    Then it fails with "session/invalid_request", saying "working"
    And no event fired
    And nothing changed

  # Prevents: a function that was never there answering.
  Scenario: An unknown function
    When I call "session::explode" with {}
    Then there is no such function
    And no event fired
    And reading "session::list" with {} answers {"sessions": []}

  # Prevents: the same field twice, where readers disagree about which one counts.
  Scenario: A field given twice
    Given a session "s"
    When I send "session::set-meta" the text {"session_id": "s", "title": "one", "title": "two"}
    Then it fails with "session/invalid_request", saying "title"
    And no event fired
    And nothing changed
