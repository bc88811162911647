Feature: session::messages pages through a transcript

  # Prevents: a transcript in another order than it was written, or with unknown fields.
  Scenario: Oldest first, along the chain of parents
    Given a session "s"
    And "s" holds the messages "a", "b", "c"
    When I call "session::messages" with {"session_id": "s"}
    Then it answers exactly:
      """
      {"messages": [
        {"entry_id": "a", "message": "<user:a>"},
        {"entry_id": "b", "message": "<user:b>"},
        {"entry_id": "c", "message": "<user:c>"}
      ]}
      """
    And no event fired
    And nothing changed

  # Prevents: a fresh session being an error to read.
  Scenario: A session without entries has an empty transcript
    Given a session "s"
    When I call "session::messages" with {"session_id": "s"}
    Then it answers exactly {"messages": []}
    And no event fired
    And nothing changed

  # Prevents: a mistyped id reading as an empty conversation.
  Scenario: An unknown session is an error
    When I call "session::messages" with {"session_id": "nobody"}
    Then it fails with "session/not_found", saying "nobody"
    And no event fired
    And reading "session::list" with {} answers {"sessions": []}

  # Prevents: custom entries reaching a model's context without request.
  Scenario: Custom entries are left out
    Given a session "s"
    And "s" holds the messages "a"
    And I called "session::append" with {"session_id": "s", "entry_id": "c", "custom": {"custom_type": "mark"}}
    And "s" holds the messages "b"
    When I call "session::messages" with {"session_id": "s"}
    Then it lists "a", "b"
    And no event fired
    And nothing changed

  # Prevents: custom entries that cannot be read back in their position.
  Scenario: Custom entries are shown on request, in their position
    Given a session "s"
    And "s" holds the messages "a"
    And I called "session::append" with {"session_id": "s", "entry_id": "c", "custom": {"custom_type": "mark", "data": [1]}}
    And "s" holds the messages "b"
    When I call "session::messages" with {"session_id": "s", "include_custom": true}
    Then it answers exactly:
      """
      {"messages": [
        {"entry_id": "a", "message": "<user:a>"},
        {"entry_id": "c", "custom": {"custom_type": "mark", "data": [1]}},
        {"entry_id": "b", "message": "<user:b>"}
      ]}
      """
    And no event fired
    And nothing changed

  # Prevents: a reader that wants one side of the conversation getting both.
  Scenario: Only some roles
    Given a session "s"
    And calling "session::append-many" with {"session_id": "s", "messages": ["<user:1>", "<assistant:2>", "<result:3>", "<note:4>", "<user:5>"]} answered {"entry_ids": ["<1>", "<2>", "<3>", "<4>", "<5>"]}
    When I call "session::messages" with {"session_id": "s", "roles": ["user", "function_result"]}
    Then it lists "<1>", "<3>", "<5>"
    And no event fired
    And reading "session::messages" with {"session_id": "s", "roles": ["custom"]} answers {"messages": [{"entry_id": "<4>"}]}
    And nothing changed

  # Prevents: custom entries, which have no role, slipping through a roles filter.
  Scenario: A roles filter drops custom entries even on request
    Given a session "s"
    And "s" holds the messages "a"
    And I called "session::append" with {"session_id": "s", "entry_id": "c", "custom": {"custom_type": "mark"}}
    And I called "session::append" with {"session_id": "s", "entry_id": "n", "message": "<note:n>"}
    When I call "session::messages" with {"session_id": "s", "roles": ["user", "custom"], "include_custom": true}
    Then it lists "a", "n"
    And no event fired
    And nothing changed

  # Prevents: an abandoned branch being lost.
  Scenario: The path to any entry can be read
    Given a session "s"
    And "s" holds the messages "a", "b", "c"
    And I called "session::append" with {"session_id": "s", "entry_id": "x", "parent_id": "a", "message": "<user:x>"}
    When I call "session::messages" with {"session_id": "s", "from_entry_id": "b"}
    Then it lists "a", "b"
    And no event fired
    And reading "session::messages" with {"session_id": "s", "from_entry_id": "c"} answers {"messages": [{"entry_id": "a"}, {"entry_id": "b"}, {"entry_id": "c"}]}
    And the transcript of "s" is "a", "x"
    And nothing changed

  # Prevents: a path that ends at a custom entry being unreadable.
  Scenario: The path may end at a custom entry
    Given a session "s"
    And "s" holds the messages "a"
    And I called "session::append" with {"session_id": "s", "entry_id": "c", "custom": {"custom_type": "mark"}}
    And "s" holds the messages "b"
    When I call "session::messages" with {"session_id": "s", "from_entry_id": "c"}
    Then it lists "a"
    And no event fired
    And nothing changed

  # Prevents: a mistyped entry id reading as the active path.
  Scenario: An unknown from_entry_id is an error
    Given a session "s"
    And "s" holds the messages "a"
    When I call "session::messages" with {"session_id": "s", "from_entry_id": "b"}
    Then it fails with "session/entry_not_found"
    And no event fired
    And nothing changed

  # Prevents: a page that repeats or skips an entry.
  Scenario: Pages follow each other without gap or overlap
    Given a session "s"
    And "s" holds the messages "a", "b", "c", "d", "e"
    And calling "session::messages" with {"session_id": "s", "limit": 2} answered {"messages": [{"entry_id": "a"}, {"entry_id": "b"}], "next_cursor": "<one>"}
    And calling "session::messages" with {"session_id": "s", "limit": 2, "cursor": "<one>"} answered {"messages": [{"entry_id": "c"}, {"entry_id": "d"}], "next_cursor": "<two>"}
    When I call "session::messages" with {"session_id": "s", "limit": 2, "cursor": "<two>"}
    Then it answers exactly {"messages": [{"entry_id": "e", "message": "<user:e>"}]}
    And no event fired
    And nothing changed

  # Prevents: a client that follows cursors reading one empty page at the end.
  Scenario: A last page that is full has no cursor
    Given a session "s"
    And "s" holds the messages "a", "b"
    When I call "session::messages" with {"session_id": "s", "limit": 2}
    Then it lists "a", "b"
    And it answers {"next_cursor": "<absent>"}
    And no event fired
    And nothing changed

  # Prevents: a cursor for a page that is empty after filtering.
  Scenario: Filtered entries do not cause a cursor
    Given a session "s"
    And "s" holds the messages "a", "b"
    And I called "session::append" with {"session_id": "s", "entry_id": "c", "custom": {"custom_type": "mark"}}
    When I call "session::messages" with {"session_id": "s", "limit": 2}
    Then it lists "a", "b"
    And it answers {"next_cursor": "<absent>"}
    And no event fired
    And nothing changed

  # Prevents: the limit counting entries that the filter excludes.
  Scenario: Pages of some roles are full pages
    Given a session "s"
    And calling "session::append-many" with {"session_id": "s", "messages": ["<user:1>", "<assistant:2>", "<user:3>", "<assistant:4>", "<user:5>"]} answered {"entry_ids": ["<1>", "<2>", "<3>", "<4>", "<5>"]}
    And calling "session::messages" with {"session_id": "s", "roles": ["user"], "limit": 2} answered {"messages": [{"entry_id": "<1>"}, {"entry_id": "<3>"}], "next_cursor": "<c>"}
    When I call "session::messages" with {"session_id": "s", "roles": ["user"], "limit": 2, "cursor": "<c>"}
    Then it lists "<5>"
    And no event fired
    And nothing changed

  # Prevents: a reader losing its position because of new messages.
  Scenario: A cursor survives appends made between pages
    Given a session "s"
    And "s" holds the messages "a", "b", "c"
    And calling "session::messages" with {"session_id": "s", "limit": 2} answered {"next_cursor": "<c>"}
    And "s" holds the messages "d", "e"
    When I call "session::messages" with {"session_id": "s", "limit": 2, "cursor": "<c>"}
    Then it lists "c", "d"
    And it answers {"next_cursor": "<any>"}
    And no event fired
    And nothing changed

  # Prevents: a streaming update making a reader start over.
  Scenario: A cursor survives updates made between pages
    Given a session "s"
    And "s" holds the messages "a", "b", "c"
    And calling "session::messages" with {"session_id": "s", "limit": 2} answered {"next_cursor": "<c>"}
    And I called "session::update-message" with {"session_id": "s", "entry_id": "b", "content": "<content:x>"}
    When I call "session::messages" with {"session_id": "s", "limit": 2, "cursor": "<c>"}
    Then it lists "c"
    And no event fired
    And nothing changed

  # Prevents: pages of two branches being combined.
  Scenario: A cursor whose entry is off the path is refused
    Given a session "s"
    And "s" holds the messages "a", "b", "c"
    And calling "session::messages" with {"session_id": "s", "limit": 2} answered {"next_cursor": "<c>"}
    And I called "session::append" with {"session_id": "s", "entry_id": "x", "parent_id": "a", "message": "<user:x>"}
    When I call "session::messages" with {"session_id": "s", "limit": 2, "cursor": "<c>"}
    Then it fails with "session/invalid_cursor"
    And no event fired
    And nothing changed

  # Prevents: a cursor being refused although its entry is still on the path.
  Scenario: A cursor survives a branch that starts after it
    Given a session "s"
    And "s" holds the messages "a", "b", "c"
    And calling "session::messages" with {"session_id": "s", "limit": 2} answered {"next_cursor": "<c>"}
    And I called "session::append" with {"session_id": "s", "entry_id": "x", "parent_id": "b", "message": "<user:x>"}
    When I call "session::messages" with {"session_id": "s", "limit": 2, "cursor": "<c>"}
    Then it lists "x"
    And no event fired
    And nothing changed

  # Prevents: an invalid cursor being treated as "from the beginning".
  Scenario: A malformed cursor is refused
    Given a session "s"
    And "s" holds the messages "a"
    When I call "session::messages" with {"session_id": "s", "cursor": "2"}
    Then it fails with "session/invalid_cursor"
    And no event fired
    And nothing changed

  # Prevents: a cursor of one session being accepted for another.
  Scenario: A cursor of another session is refused
    Given a session "s"
    And a session "t"
    And "s" holds the messages "a", "b"
    And "t" holds the messages "x", "y"
    And calling "session::messages" with {"session_id": "s", "limit": 1} answered {"next_cursor": "<c>"}
    When I call "session::messages" with {"session_id": "t", "limit": 1, "cursor": "<c>"}
    Then it fails with "session/invalid_cursor"
    And no event fired
    And nothing changed

  # Prevents: a page that is too large for the node, or empty.
  Scenario: The limit is clamped at both ends
    Given pages of 2, at most 3
    And a session "s"
    And "s" holds the messages "a", "b", "c", "d"
    When I call "session::messages" with {"session_id": "s", "limit": 1000000}
    Then it lists "a", "b", "c"
    And no event fired
    And reading "session::messages" with {"session_id": "s", "limit": 0} answers {"messages": [{"entry_id": "a"}], "next_cursor": "<any>"}
    And reading "session::messages" with {"session_id": "s"} answers {"messages": [{"entry_id": "a"}, {"entry_id": "b"}], "next_cursor": "<any>"}

  # Prevents: a mistyped role filtering everything out without an error.
  Scenario: An unknown role is refused
    Given a session "s"
    And "s" holds the messages "a"
    When I call "session::messages" with {"session_id": "s", "roles": ["user", "system"]}
    Then it fails with "session/invalid_request", saying "roles"
    And no event fired
    And nothing changed

  # Prevents: a negative limit being accepted.
  Scenario: A limit below zero is refused
    Given a session "s"
    When I call "session::messages" with {"session_id": "s", "limit": -5}
    Then it fails with "session/invalid_request", saying "limit"
    And no event fired
    And nothing changed
