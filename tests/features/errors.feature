Feature: Errors are one string: a code and a message

  # Prevents: text that is not JSON being stored, or an error without the position.
  Scenario: A body that does not parse
    Given a session "s"
    When I send "session::append" the text {"session_id": "s", "message": }
    Then it fails with "session/invalid_request", saying "invalid request: "
    And no event fired
    And nothing changed

  # Prevents: a truncated body being executed.
  Scenario: A truncated body
    Given a session "s"
    When I send "session::delete" the text {"session_id": "s"
    Then it fails with "session/invalid_request", saying "line 1"
    And no event fired
    And nothing changed

  # Prevents: a list or a number being read as a request.
  Scenario: A body that is not an object
    Given a session "s"
    When I send "session::delete" the text ["s"]
    Then it fails with "session/invalid_request", saying "object"
    And no event fired
    And nothing changed

  # Prevents: the second of two documents being ignored silently.
  Scenario: Two documents in one body
    Given a session "s"
    When I send "session::delete" the text {"session_id": "nobody"} {"session_id": "s"}
    Then it fails with "session/invalid_request"
    And no event fired
    And nothing changed

  # Prevents: an error that does not say which of many messages is invalid.
  Scenario: The place of the error is named
    Given a session "s"
    When I call "session::append-many" with {"session_id": "s", "messages": ["<user:fine>", {"role": "user", "content": [{"type": "text", "text": 5}], "timestamp": 1}]}
    Then it fails with "session/invalid_request", saying "messages[1]"
    And no event fired
    And nothing changed

  # Prevents: an id of the wrong type being converted to text.
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

  # Prevents: lone surrogates, which are not valid text, being replaced.
  Scenario: Text that is not valid Unicode
    Given a session "s"
    When I send "session::set-meta" the text {"session_id": "s", "title": "\ud800"}
    Then it fails with "session/invalid_request"
    And no event fired
    And nothing changed

  # Prevents: an unknown enum value failing with an internal parser message.
  Scenario: An unknown enum value names the known ones
    Given a session "s"
    When I call "session::set-status" with {"session_id": "s", "status": "busy"}
    Then it fails with "session/invalid_request", saying "working"
    And no event fired
    And nothing changed

  # Prevents: a function that does not exist answering.
  Scenario: An unknown function
    When I call "session::explode" with {}
    Then there is no such function
    And no event fired
    And reading "session::list" with {} answers {"sessions": []}

  # Prevents: a duplicate field, for which parsers choose different values.
  Scenario: A field given twice
    Given a session "s"
    When I send "session::set-meta" the text {"session_id": "s", "title": "one", "title": "two"}
    Then it fails with "session/invalid_request", saying "title"
    And no event fired
    And nothing changed
