Feature: Too large, too deep, too many is a clear refusal

  # Prevents: keys of the store growing without bound.
  Scenario: An id that is too long
    When I call "session::ensure" with {"session_id": "<text:1025>"}
    Then it fails with "session/invalid_request", saying "session_id"
    And no event fired
    And reading "session::list" with {} answers {"sessions": []}

  @not-jsonl
  # Prevents: a bound that is off by one, or a store that cannot hold what the door lets in.
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
    And I asked "session::append" with {"session_id": "s", "entry_id": "<text:1024>", "message": "<user:a>"} and was told {"entry_id": "<e>"}
    And I asked "session::append" with {"session_id": "s", "entry_id": "b", "message": "<user:b>"} and was told {"parent_id": "<e>"}
    And I asked "session::messages" with {"session_id": "s", "limit": 1} and was told {"messages": [{"entry_id": "<e>"}], "next_cursor": "<c>"}
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

  # Prevents: an entry nobody can name.
  Scenario: An entry id that is empty
    Given a session "s"
    When I call "session::append" with {"session_id": "s", "entry_id": "", "message": "<user:a>"}
    Then it fails with "session/invalid_request", saying "entry_id"
    And no event fired
    And nothing changed

  # Prevents: a list whose every page carries a novel.
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

  # Prevents: a bound that is off by one, or an index that cannot hold what the door lets in.
  Scenario: Metadata with as many keys as allowed
    When I call "session::create" with {"metadata": "<keys:256>"}
    Then it answers {"session_id": "<s>", "meta": {"metadata": "<keys:256>"}}
    And these events fired:
      | session::created | {"session_id": "<s>"} |
    And reading "session::list" with {"metadata": {"k0": 0, "k255": 255}} answers {"sessions": [{"session_id": "<s>"}]}

  # Prevents: metadata compared on every event being megabytes large.
  Scenario: Metadata that is too large
    Given a session "s"
    When I call "session::set-meta" with {"session_id": "s", "metadata": {"k": "<text:65536>"}}
    Then it fails with "session/invalid_request", saying "metadata"
    And no event fired
    And nothing changed

  # Prevents: a correlation that is larger than the message it belongs to.
  Scenario: An origin that is too large
    Given a session "s"
    When I call "session::append" with {"session_id": "s", "message": "<user:a>", "origin": {"k": "<text:65536>"}}
    Then it fails with "session/invalid_request", saying "origin"
    And no event fired
    And nothing changed

  # Prevents: a deep document overflowing the stack of whoever reads it.
  Scenario: Content nested two thousand deep
    Given a session "s"
    When I call "session::append" with {"session_id": "s", "custom": {"custom_type": "x", "data": "<nested:2000>"}}
    Then it fails with "session/invalid_request", saying "deep"
    And no event fired
    And nothing changed

  # Prevents: depth slipping in through a field nobody reads.
  Scenario: Depth in an unknown field counts as well
    Given a session "s"
    When I call "session::delete" with {"session_id": "s", "unknown": "<nested:2000>"}
    Then it fails with "session/invalid_request", saying "deep"
    And no event fired
    And nothing changed

  # Prevents: what was accepted not being readable again.
  Scenario: Content nested a hundred deep comes back
    Given a session "s"
    When I call "session::append" with {"session_id": "s", "entry_id": "a", "custom": {"custom_type": "x", "data": "<nested:100>"}}
    Then it answers {"entry_id": "a"}
    And these events fired:
      | session::message-added | {"entry_id": "a", "custom": {"data": "<nested:100>"}} |
    And reading "session::get-message" with {"session_id": "s", "entry_id": "a"} answers {"entry": {"data": "<nested:100>"}}

  # Prevents: one batch filling the log in one step.
  Scenario: A batch that is too long
    Given a session "s"
    When I call "session::append-many" with {"session_id": "s", "messages": "<messages:1001>"}
    Then it fails with "session/invalid_request", saying "messages"
    And no event fired
    And nothing changed

  # Prevents: a bound that is off by one, or a page that cannot carry what a batch can.
  Scenario: The longest batch works
    Given a session "s"
    When I call "session::append-many" with {"session_id": "s", "messages": "<messages:1000>"}
    Then it answers {"last_entry_id": "<last>"}
    And 1000 "session::message-added" events fired and no other
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"message_count": 1000}}
    And reading "session::store::get-active-leaf" with {"session_id": "s"} answers {"entry_id": "<last>"}

  # Prevents: a message that no frame could carry back.
  Scenario: A message that is too large
    Given a session "s"
    When I call "session::append" with {"session_id": "s", "message": {"role": "user", "timestamp": 1, "content": [{"type": "text", "text": "<text:16777216>"}]}}
    Then it fails with "session/invalid_request", saying "message"
    And no event fired
    And nothing changed

  # Prevents: a large message, well within bounds, getting lost between door and disk.
  Scenario: A message of a megabyte comes back whole
    Given a session "s"
    When I call "session::append" with {"session_id": "s", "entry_id": "a", "message": {"role": "user", "timestamp": 1, "content": [{"type": "text", "text": "<text:1000000>"}]}}
    Then it answers {"entry_id": "a"}
    And 1 "session::message-added" event fired and no other
    And reading "session::get-message" with {"session_id": "s", "entry_id": "a"} answers {"entry": {"message": {"content": [{"text": "<text:1000000>"}]}}}

  # Prevents: a cursor that nobody handed out filling memory.
  Scenario: A cursor that is too long
    Given a session "s"
    When I call "session::list" with {"cursor": "<text:10000>"}
    Then it fails with "session/invalid_request", saying "cursor"
    And no event fired
    And nothing changed

  # Prevents: an error that quotes a megabyte back.
  Scenario: An error stays short
    Given a session "s"
    When I call "session::set-status" with {"session_id": "s", "status": "<text:1000000>"}
    Then it fails with "session/invalid_request", in fewer than 2000 characters
    And no event fired
    And nothing changed
