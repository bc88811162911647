Feature: Input that is too large, too deep or too long is refused

  # Prevents: keys of the store growing without bound.
  Scenario: An id that is too long
    When I call "session::ensure" with {"session_id": "<text:1025>"}
    Then it fails with "session/invalid_request", saying "session_id"
    And no event fired
    And reading "session::list" with {} answers {"sessions": []}

  @not-jsonl
  # Prevents: a limit that is off by one, or a store that cannot hold what is accepted.
  Scenario: The longest id works
    When I call "session::ensure" with {"session_id": "<text:1024>"}
    Then it answers {"created": true, "session_id": "<s>"}
    And these events fired:
      | session::created | {"session_id": "<s>"} |
    And reading "session::get" with {"session_id": "<s>"} answers {"meta": {"session_id": "<s>"}}
    And reading "session::list" with {} answers {"sessions": [{"session_id": "<s>"}]}

  # Prevents: the same for entries.
  Scenario: The longest entry id works, and pages through it
    Given a session "s"
    And calling "session::append" with {"session_id": "s", "entry_id": "<text:1024>", "message": "<user:a>"} answered {"entry_id": "<e>"}
    And calling "session::append" with {"session_id": "s", "entry_id": "b", "message": "<user:b>"} answered {"parent_id": "<e>"}
    And calling "session::messages" with {"session_id": "s", "limit": 1} answered {"messages": [{"entry_id": "<e>"}], "next_cursor": "<c>"}
    When I call "session::messages" with {"session_id": "s", "limit": 1, "cursor": "<c>"}
    Then it lists "b"
    And no event fired
    And nothing changed

  # Prevents: an entry id that is one too long.
  Scenario: An entry id that is too long
    Given a session "s"
    When I call "session::append" with {"session_id": "s", "entry_id": "<text:1025>", "message": "<user:a>"}
    Then it fails with "session/invalid_request", saying "entry_id"
    And no event fired
    And nothing changed

  # Prevents: an entry with an empty id.
  Scenario: An entry id that is empty
    Given a session "s"
    When I call "session::append" with {"session_id": "s", "entry_id": "", "message": "<user:a>"}
    Then it fails with "session/invalid_request", saying "entry_id"
    And no event fired
    And nothing changed

  # Prevents: list pages with huge titles.
  Scenario: A title that is too long
    Given a session "s"
    When I call "session::set-meta" with {"session_id": "s", "title": "<text:65537>"}
    Then it fails with "session/invalid_request", saying "title"
    And no event fired
    And nothing changed

  # Prevents: an index entry for each of ten thousand keys.
  Scenario: Metadata with too many keys
    When I call "session::create" with {"metadata": "<keys:257>"}
    Then it fails with "session/invalid_request", saying "metadata"
    And no event fired
    And reading "session::list" with {} answers {"sessions": []}

  # Prevents: a limit that is off by one, or an index that cannot hold what is accepted.
  Scenario: Metadata with as many keys as allowed
    When I call "session::create" with {"metadata": "<keys:256>"}
    Then it answers {"session_id": "<s>", "meta": {"metadata": "<keys:256>"}}
    And these events fired:
      | session::created | {"session_id": "<s>"} |
    And reading "session::list" with {"metadata": {"k0": 0, "k255": 255}} answers {"sessions": [{"session_id": "<s>"}]}

  # Prevents: huge metadata, which is compared on every event.
  Scenario: Metadata that is too large
    Given a session "s"
    When I call "session::set-meta" with {"session_id": "s", "metadata": {"k": "<text:65536>"}}
    Then it fails with "session/invalid_request", saying "metadata"
    And no event fired
    And nothing changed

  # Prevents: an origin that is larger than its message.
  Scenario: An origin that is too large
    Given a session "s"
    When I call "session::append" with {"session_id": "s", "message": "<user:a>", "origin": {"k": "<text:65536>"}}
    Then it fails with "session/invalid_request", saying "origin"
    And no event fired
    And nothing changed

  # Prevents: a deep document overflowing the stack of a reader.
  Scenario: Content nested two thousand deep
    Given a session "s"
    When I call "session::append" with {"session_id": "s", "custom": {"custom_type": "x", "data": "<nested:2000>"}}
    Then it fails with "session/invalid_request", saying "deep"
    And no event fired
    And nothing changed

  # Prevents: deep values in an unknown field being accepted.
  Scenario: Depth in an unknown field counts too
    Given a session "s"
    When I call "session::delete" with {"session_id": "s", "unknown": "<nested:2000>"}
    Then it fails with "session/invalid_request", saying "deep"
    And no event fired
    And nothing changed

  # Prevents: accepted content that cannot be read back.
  Scenario: Content nested a hundred deep is read back
    Given a session "s"
    When I call "session::append" with {"session_id": "s", "entry_id": "a", "custom": {"custom_type": "x", "data": "<nested:100>"}}
    Then it answers {"entry_id": "a"}
    And these events fired:
      | session::message-added | {"entry_id": "a", "custom": {"data": "<nested:100>"}} |
    And reading "session::get-message" with {"session_id": "s", "entry_id": "a"} answers {"entry": {"data": "<nested:100>"}}

  # Prevents: one batch being too large for the log.
  Scenario: A batch that is too long
    Given a session "s"
    When I call "session::append-many" with {"session_id": "s", "messages": "<messages:1001>"}
    Then it fails with "session/invalid_request", saying "messages"
    And no event fired
    And nothing changed

  # Prevents: a limit that is off by one, or a page that cannot hold a whole batch.
  Scenario: The longest batch works
    Given a session "s"
    When I call "session::append-many" with {"session_id": "s", "messages": "<messages:1000>"}
    Then it answers {"last_entry_id": "<last>"}
    And 1000 "session::message-added" events fired and no other
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"message_count": 1000}}
    And reading "session::store::get-active-leaf" with {"session_id": "s"} answers {"entry_id": "<last>"}

  # Prevents: a message that is too large for a response.
  Scenario: A message that is too large
    Given a session "s"
    When I call "session::append" with {"session_id": "s", "message": {"role": "user", "timestamp": 1, "content": [{"type": "text", "text": "<text:16777216>"}]}}
    Then it fails with "session/invalid_request", saying "message"
    And no event fired
    And nothing changed

  # Prevents: a large message within the limits being lost.
  Scenario: A message of a megabyte is read back complete
    Given a session "s"
    When I call "session::append" with {"session_id": "s", "entry_id": "a", "message": {"role": "user", "timestamp": 1, "content": [{"type": "text", "text": "<text:1000000>"}]}}
    Then it answers {"entry_id": "a"}
    And 1 "session::message-added" event fired and no other
    And reading "session::get-message" with {"session_id": "s", "entry_id": "a"} answers {"entry": {"message": {"content": [{"text": "<text:1000000>"}]}}}

  # Prevents: a forged cursor taking much memory.
  Scenario: A cursor that is too long
    Given a session "s"
    When I call "session::list" with {"cursor": "<text:10000>"}
    Then it fails with "session/invalid_request", saying "cursor"
    And no event fired
    And nothing changed

  # Prevents: an error that quotes a megabyte of input.
  Scenario: An error stays short
    Given a session "s"
    When I call "session::set-status" with {"session_id": "s", "status": "<text:1000000>"}
    Then it fails with "session/invalid_request", in fewer than 2000 characters
    And no event fired
    And nothing changed
