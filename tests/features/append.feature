Feature: session::append adds one entry to the transcript

  # Prevents: the first entry having a parent, or its event lacking a field that a user interface needs.
  Scenario: The first entry is a root
    Given a session "s"
    And calling "session::get" with {"session_id": "s"} answered {"meta": {"updated_at": "<before>"}}
    When I call "session::append" with {"session_id": "s", "message": "<user:hello>"}
    Then it answers {"entry_id": "<e>", "parent_id": "<absent>", "timestamp": "<now>"}
    And "<e>" is a minted entry id
    And exactly this event fired: session::message-added {"session_id": "s", "entry_id": "<e>", "parent_id": "<absent>", "message": "<user:hello>", "timestamp": "<now>"}
    And reading "session::messages" with {"session_id": "s"} answers {"messages": [{"entry_id": "<e>", "message": "<user:hello>"}]}
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"message_count": 1, "updated_at": "<after before>"}}
    And reading "session::store::get-active-leaf" with {"session_id": "s"} answers {"entry_id": "<e>"}

  # Prevents: a transcript whose order depends on anything but the chain of parents.
  Scenario: The next entry is a child of the active leaf and becomes the leaf
    Given a session "s"
    And "s" holds the messages "a"
    When I call "session::append" with {"session_id": "s", "entry_id": "b", "message": "<assistant:hi>"}
    Then it answers {"entry_id": "b", "parent_id": "a"}
    And these events fired:
      | session::message-added | {"session_id": "s", "entry_id": "b", "parent_id": "a", "message": "<assistant:hi>"} |
    And the transcript of "s" is "a", "b"
    And reading "session::store::get-active-leaf" with {"session_id": "s"} answers {"entry_id": "b"}

  # Prevents: custom entries appearing in the conversation, or being counted as messages.
  Scenario: A custom entry is neither shown nor counted as a message
    Given a session "s"
    And "s" holds the messages "a"
    When I call "session::append" with {"session_id": "s", "entry_id": "c", "custom": {"custom_type": "compaction", "data": {"kept": 3}}}
    Then it answers {"entry_id": "c", "parent_id": "a"}
    And these events fired:
      | session::message-added | {"session_id": "s", "entry_id": "c", "parent_id": "a", "message": "<absent>", "custom": {"custom_type": "compaction", "data": {"kept": 3}}} |
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"message_count": 1}}
    And reading "session::messages" with {"session_id": "s"} answers {"messages": [{"entry_id": "a"}]}
    And the transcript of "s" is "a", "c"

  # Prevents: a custom entry breaking the chain of parents.
  Scenario: A message after a custom entry is its child
    Given a session "s"
    And "s" holds the messages "a"
    And I called "session::append" with {"session_id": "s", "entry_id": "c", "custom": {"custom_type": "mark"}}
    When I call "session::append" with {"session_id": "s", "entry_id": "b", "message": "<user:b>"}
    Then it answers {"entry_id": "b", "parent_id": "c"}
    And these events fired:
      | session::message-added | {"entry_id": "b", "parent_id": "c"} |
    And the transcript of "s" is "a", "c", "b"
    And reading "session::messages" with {"session_id": "s"} answers {"messages": [{"entry_id": "a"}, {"entry_id": "b"}]}

  # Prevents: clients having to invent data for a marker without data.
  Scenario: A custom entry needs no data
    Given a session "s"
    When I call "session::append" with {"session_id": "s", "entry_id": "c", "custom": {"custom_type": "mark"}}
    Then it answers {"entry_id": "c"}
    And these events fired:
      | session::message-added | {"entry_id": "c", "custom": {"custom_type": "mark", "data": null}} |
    And reading "session::get-message" with {"session_id": "s", "entry_id": "c"} answers {"entry": {"kind": "custom", "custom_type": "mark", "data": null}}

  # Prevents: custom messages being confused with custom entries.
  Scenario: A custom message is part of the transcript
    Given a session "s"
    When I call "session::append" with {"session_id": "s", "entry_id": "n", "message": "<note:look>"}
    Then it answers {"entry_id": "n"}
    And these events fired:
      | session::message-added | {"entry_id": "n", "message": "<note:look>", "custom": "<absent>"} |
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"message_count": 1}}
    And reading "session::messages" with {"session_id": "s"} answers {"messages": [{"entry_id": "n", "message": "<note:look>"}]}

  # Prevents: an entry that is a message and a custom entry at once.
  Scenario: A message and a custom payload together are refused
    Given a session "s"
    When I call "session::append" with {"session_id": "s", "message": "<user:a>", "custom": {"custom_type": "mark"}}
    Then it fails with "session/invalid_request", saying "custom"
    And no event fired
    And nothing changed

  # Prevents: an entry without a body.
  Scenario: Neither a message nor a custom payload is refused
    Given a session "s"
    When I call "session::append" with {"session_id": "s"}
    Then it fails with "session/invalid_request", saying "message"
    And no event fired
    And nothing changed

  # Prevents: an edit of an earlier turn overwriting the turns after it.
  Scenario: A named parent starts a branch, and the leaf moves there
    Given a session "s"
    And "s" holds the messages "a", "b", "c"
    When I call "session::append" with {"session_id": "s", "entry_id": "b2", "parent_id": "a", "message": "<user:other>"}
    Then it answers {"entry_id": "b2", "parent_id": "a"}
    And these events fired:
      | session::message-added | {"entry_id": "b2", "parent_id": "a"} |
    And the transcript of "s" is "a", "b2"
    And reading "session::messages" with {"session_id": "s", "from_entry_id": "c"} answers {"messages": [{"entry_id": "a"}, {"entry_id": "b"}, {"entry_id": "c"}]}
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"message_count": 4}}

  # Prevents: the next append continuing the abandoned branch.
  Scenario: The next append continues the new branch
    Given a session "s"
    And "s" holds the messages "a", "b"
    And I called "session::append" with {"session_id": "s", "entry_id": "b2", "parent_id": "a", "message": "<user:b2>"}
    When I call "session::append" with {"session_id": "s", "entry_id": "c2", "message": "<user:c2>"}
    Then it answers {"entry_id": "c2", "parent_id": "b2"}
    And these events fired:
      | session::message-added | {"entry_id": "c2", "parent_id": "b2"} |
    And the transcript of "s" is "a", "b2", "c2"

  # Prevents: an entry whose parent does not exist.
  Scenario: An unknown parent is an error
    Given a session "s"
    And "s" holds the messages "a"
    When I call "session::append" with {"session_id": "s", "parent_id": "nowhere", "message": "<user:x>"}
    Then it fails with "session/parent_not_found", saying "nowhere"
    And no event fired
    And nothing changed

  # Prevents: an entry whose parent is in another session.
  Scenario: A parent in another session is an error
    Given a session "s"
    And a session "t"
    And "t" holds the messages "a"
    When I call "session::append" with {"session_id": "s", "parent_id": "a", "message": "<user:x>"}
    Then it fails with "session/parent_not_found"
    And no event fired
    And nothing changed

  # Prevents: a retry after a lost answer storing the message twice.
  Scenario: A repeated entry_id is a complete no-op
    Given a session "s"
    And "s" holds the messages "a"
    And calling "session::append" with {"session_id": "s", "entry_id": "b", "message": "<user:b>"} answered {"timestamp": "<then>"}
    When I call "session::append" with {"session_id": "s", "entry_id": "b", "message": "<user:b>"}
    Then it answers exactly {"entry_id": "b", "parent_id": "a", "timestamp": "<then>"}
    And no event fired
    And nothing changed

  # Prevents: a retry with another message changing the transcript.
  Scenario: The message of a retry is ignored
    Given a session "s"
    And "s" holds the messages "a", "b"
    And calling "session::append" with {"session_id": "s", "entry_id": "c", "message": "<user:c>"} answered {"timestamp": "<then>"}
    When I call "session::append" with {"session_id": "s", "entry_id": "c", "parent_id": "a", "custom": {"custom_type": "mark"}, "origin": {"x": 1}}
    Then it answers exactly {"entry_id": "c", "parent_id": "b", "timestamp": "<then>"}
    And no event fired
    And nothing changed

  # Prevents: a retry failing because its parent is no longer known.
  Scenario: The parent of a retry is ignored
    Given a session "s"
    And "s" holds the messages "a", "b"
    When I call "session::append" with {"session_id": "s", "entry_id": "b", "parent_id": "nowhere", "message": "<user:b>"}
    Then it answers {"entry_id": "b", "parent_id": "a"}
    And no event fired
    And nothing changed

  # Prevents: a late retry moving the leaf back to an old entry.
  Scenario: A retry does not move the leaf
    Given a session "s"
    And "s" holds the messages "a", "b", "c"
    When I call "session::append" with {"session_id": "s", "entry_id": "a", "message": "<user:a>"}
    Then it answers {"entry_id": "a", "parent_id": "<absent>"}
    And no event fired
    And the transcript of "s" is "a", "b", "c"
    And nothing changed

  # Prevents: a retry of the append undoing later updates of the message.
  Scenario: A retry keeps later revisions
    Given a session "s"
    And "s" holds the messages "a"
    And I called "session::update-message" with {"session_id": "s", "entry_id": "a", "content": "<content:streamed>"}
    When I call "session::append" with {"session_id": "s", "entry_id": "a", "message": "<user:a>"}
    Then it answers {"entry_id": "a"}
    And no event fired
    And reading "session::get-message" with {"session_id": "s", "entry_id": "a"} answers {"entry": {"revision": 1, "message": {"content": "<content:streamed>"}}}
    And nothing changed

  # Prevents: entry ids of different sessions colliding.
  Scenario: The same entry_id in another session is another entry
    Given a session "s"
    And a session "t"
    And "s" holds the messages "a"
    When I call "session::append" with {"session_id": "t", "entry_id": "a", "message": "<assistant:mine>"}
    Then it answers {"entry_id": "a", "parent_id": "<absent>"}
    And these events fired:
      | session::message-added | {"session_id": "t", "entry_id": "a"} |
    And reading "session::get-message" with {"session_id": "s", "entry_id": "a"} answers {"entry": {"message": "<user:a>"}}
    And reading "session::get-message" with {"session_id": "t", "entry_id": "a"} answers {"entry": {"message": "<assistant:mine>"}}

  # Prevents: a writer being unable to recognise its own events.
  Scenario: The origin is stored and delivered with the event
    Given a session "s"
    When I call "session::append" with {"session_id": "s", "entry_id": "a", "message": "<user:a>", "origin": {"turn_id": "t-1", "deep": {"n": [1]}}}
    Then it answers {"entry_id": "a"}
    And these events fired:
      | session::message-added | {"entry_id": "a", "origin": {"turn_id": "t-1", "deep": {"n": [1]}}} |
    And reading "session::get-message" with {"session_id": "s", "entry_id": "a"} answers {"entry": {"origin": {"turn_id": "t-1", "deep": {"n": [1]}}}}

  # Prevents: an append creating a session under a mistyped id.
  Scenario: An unknown session is an error
    When I call "session::append" with {"session_id": "nobody", "message": "<user:x>"}
    Then it fails with "session/not_found", saying "nobody"
    And no event fired
    And reading "session::get" with {"session_id": "nobody"} answers null

  # Prevents: an id of a client being normalised, truncated or used as a path.
  Scenario: An entry id may be any Unicode
    Given a session "../escape/chat 42:?"
    When I call "session::append" with {"session_id": "../escape/chat 42:?", "entry_id": "../../🦀 e:?\u0000%2f", "message": "<user:x>"}
    Then it answers {"entry_id": "../../🦀 e:?\u0000%2f"}
    And these events fired:
      | session::message-added | {"session_id": "../escape/chat 42:?"} |
    And reading "session::get-message" with {"session_id": "../escape/chat 42:?", "entry_id": "../../🦀 e:?\u0000%2f"} answers {"entry": {"message": "<user:x>"}}

  # Prevents: a field of an assistant message being lost in the store.
  Scenario: An assistant message is read back complete
    Given a session "s"
    When I call "session::append" with:
      """
      {"session_id": "s", "entry_id": "a", "message": {
        "role": "assistant", "model": "m-1", "provider": "p", "timestamp": 12, "stop_reason": "function_call",
        "native_stop_reason": "tool_use", "error_message": "e", "error_kind": "rate_limited", "warnings": ["w"],
        "usage": {"input": 1, "output": 2, "cache_read": 3, "cache_write": 4, "reasoning": 5, "cost_usd": 0.25},
        "content": [
          {"type": "thinking", "text": "hm", "signature": "sig"},
          {"type": "text", "text": "so"},
          {"type": "image", "data": "aGk=", "mime": "image/png"},
          {"type": "function_call", "id": "c1", "function_id": "files::read", "arguments": {"path": "x", "n": [1, null]}}
        ]}}
      """
    Then it answers {"entry_id": "a"}
    And 1 "session::message-added" event fired and no other
    And reading "session::get-message" with {"session_id": "s", "entry_id": "a"} answers:
      """
      {"entry": {"kind": "message", "message": {
        "role": "assistant", "model": "m-1", "provider": "p", "timestamp": 12, "stop_reason": "function_call",
        "native_stop_reason": "tool_use", "error_message": "e", "error_kind": "rate_limited", "warnings": ["w"],
        "usage": {"input": 1, "output": 2, "cache_read": 3, "cache_write": 4, "reasoning": 5, "cost_usd": 0.25},
        "content": [
          {"type": "thinking", "text": "hm", "signature": "sig"},
          {"type": "text", "text": "so"},
          {"type": "image", "data": "aGk=", "mime": "image/png"},
          {"type": "function_call", "id": "c1", "function_id": "files::read", "arguments": {"path": "x", "n": [1, null]}}
        ]}}}
      """

  # Prevents: a function result losing its details or its error flag.
  Scenario: A function result is read back complete
    Given a session "s"
    When I call "session::append" with:
      """
      {"session_id": "s", "entry_id": "r", "message": {
        "role": "function_result", "function_call_id": "c1", "function_id": "files::read", "timestamp": 5, "is_error": true,
        "details": {"exit": 1}, "content": [{"type": "function_result", "function_call_id": "c1", "is_error": true, "content": [{"type": "text", "text": "no"}]}]
      }}
      """
    Then it answers {"entry_id": "r"}
    And 1 "session::message-added" event fired and no other
    And reading "session::get-message" with {"session_id": "s", "entry_id": "r"} answers:
      """
      {"entry": {"message": {
        "role": "function_result", "function_call_id": "c1", "function_id": "files::read", "timestamp": 5, "is_error": true,
        "details": {"exit": 1}, "content": [{"type": "function_result", "function_call_id": "c1", "is_error": true, "content": [{"type": "text", "text": "no"}]}]
      }}}
      """

  # Prevents: a message no reader could render.
  Scenario: An unknown role is refused
    Given a session "s"
    When I call "session::append" with {"session_id": "s", "message": {"role": "system", "content": [], "timestamp": 1}}
    Then it fails with "session/invalid_request", saying "role"
    And no event fired
    And nothing changed

  # Prevents: a content block no reader could render.
  Scenario: An unknown content block is refused
    Given a session "s"
    When I call "session::append" with {"session_id": "s", "message": {"role": "user", "content": [{"type": "video", "data": ""}], "timestamp": 1}}
    Then it fails with "session/invalid_request", saying "video"
    And no event fired
    And nothing changed

  # Prevents: content as plain text, which the schema does not allow, being taken for blocks.
  Scenario: Content that is not a list of blocks is refused
    Given a session "s"
    When I call "session::append" with {"session_id": "s", "message": {"role": "user", "content": "hi", "timestamp": 1}}
    Then it fails with "session/invalid_request", saying "content"
    And no event fired
    And nothing changed

  # Prevents: null, which some SDKs send for an absent field, meaning something else.
  Scenario: Null is the same as not given
    Given a session "s"
    And "s" holds the messages "a"
    When I call "session::append" with {"session_id": "s", "message": "<user:b>", "custom": null, "entry_id": null, "parent_id": null, "origin": null}
    Then it answers {"entry_id": "<e>", "parent_id": "a"}
    And "<e>" is a minted entry id
    And these events fired:
      | session::message-added | {"entry_id": "<e>", "parent_id": "a", "origin": "<absent>"} |
    And reading "session::get-message" with {"session_id": "s", "entry_id": "<e>"} answers {"entry": {"parent_id": "a", "origin": "<absent>"}}

  # Prevents: the client's timestamp of a message being used as the time of the entry.
  Scenario: The entry has the store's time, the message keeps its own
    Given a session "s"
    When I call "session::append" with {"session_id": "s", "entry_id": "a", "message": {"role": "user", "content": [], "timestamp": -7}}
    Then it answers {"entry_id": "a", "timestamp": "<now>"}
    And these events fired:
      | session::message-added | {"entry_id": "a", "timestamp": "<now>", "message": {"timestamp": -7}} |
    And reading "session::get-message" with {"session_id": "s", "entry_id": "a"} answers {"entry": {"timestamp": "<now>", "revision": 0, "message": {"timestamp": -7}}}
