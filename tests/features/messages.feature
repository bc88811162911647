Feature: session::messages pages through a transcript

  # Prevents: a transcript read in another order than it was said, or with fields readers do not know.
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

  # Prevents: bookkeeping reaching a model's context unasked.
  Scenario: Custom entries are left out
    Given a session "s"
    And "s" holds the messages "a"
    And I called "session::append" with {"session_id": "s", "entry_id": "c", "custom": {"custom_type": "mark"}}
    And "s" holds the messages "b"
    When I call "session::messages" with {"session_id": "s"}
    Then it lists "a", "b"
    And no event fired
    And nothing changed

  # Prevents: bookkeeping that cannot be read back where it stands.
  Scenario: Custom entries are shown on request, in their place
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
    And I asked "session::append-many" with {"session_id": "s", "messages": ["<user:1>", "<assistant:2>", "<result:3>", "<note:4>", "<user:5>"]} and was told {"entry_ids": ["<1>", "<2>", "<3>", "<4>", "<5>"]}
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

  # Prevents: a branch that was left being lost.
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

  # Prevents: a path that ends at bookkeeping being unreadable.
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
    And I asked "session::messages" with {"session_id": "s", "limit": 2} and was told {"messages": [{"entry_id": "a"}, {"entry_id": "b"}], "next_cursor": "<one>"}
    And I asked "session::messages" with {"session_id": "s", "limit": 2, "cursor": "<one>"} and was told {"messages": [{"entry_id": "c"}, {"entry_id": "d"}], "next_cursor": "<two>"}
    When I call "session::messages" with {"session_id": "s", "limit": 2, "cursor": "<two>"}
    Then it answers exactly {"messages": [{"entry_id": "e", "message": "<user:e>"}]}
    And no event fired
    And nothing changed

  # Prevents: a client that follows cursors reading one empty page at the end.
  Scenario: A last page that is full names no next one
    Given a session "s"
    And "s" holds the messages "a", "b"
    When I call "session::messages" with {"session_id": "s", "limit": 2}
    Then it lists "a", "b"
    And it answers {"next_cursor": "<absent>"}
    And no event fired
    And nothing changed

  # Prevents: a cursor that promises a page on which the filter leaves nothing.
  Scenario: What the filter leaves out promises no next page
    Given a session "s"
    And "s" holds the messages "a", "b"
    And I called "session::append" with {"session_id": "s", "entry_id": "c", "custom": {"custom_type": "mark"}}
    When I call "session::messages" with {"session_id": "s", "limit": 2}
    Then it lists "a", "b"
    And it answers {"next_cursor": "<absent>"}
    And no event fired
    And nothing changed

  # Prevents: pages of a filtered transcript that count what they do not show.
  Scenario: Pages of some roles are full pages
    Given a session "s"
    And I asked "session::append-many" with {"session_id": "s", "messages": ["<user:1>", "<assistant:2>", "<user:3>", "<assistant:4>", "<user:5>"]} and was told {"entry_ids": ["<1>", "<2>", "<3>", "<4>", "<5>"]}
    And I asked "session::messages" with {"session_id": "s", "roles": ["user"], "limit": 2} and was told {"messages": [{"entry_id": "<1>"}, {"entry_id": "<3>"}], "next_cursor": "<c>"}
    When I call "session::messages" with {"session_id": "s", "roles": ["user"], "limit": 2, "cursor": "<c>"}
    Then it lists "<5>"
    And no event fired
    And nothing changed

  # Prevents: a reader losing its place because the conversation went on.
  Scenario: A cursor survives appends made between pages
    Given a session "s"
    And "s" holds the messages "a", "b", "c"
    And I asked "session::messages" with {"session_id": "s", "limit": 2} and was told {"next_cursor": "<c>"}
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
    And I asked "session::messages" with {"session_id": "s", "limit": 2} and was told {"next_cursor": "<c>"}
    And I called "session::update-message" with {"session_id": "s", "entry_id": "b", "content": "<content:x>"}
    When I call "session::messages" with {"session_id": "s", "limit": 2, "cursor": "<c>"}
    Then it lists "c"
    And no event fired
    And nothing changed

  # Prevents: pages of two branches being stitched into a conversation that never was.
  Scenario: A cursor whose entry left the path is refused
    Given a session "s"
    And "s" holds the messages "a", "b", "c"
    And I asked "session::messages" with {"session_id": "s", "limit": 2} and was told {"next_cursor": "<c>"}
    And I called "session::append" with {"session_id": "s", "entry_id": "x", "parent_id": "a", "message": "<user:x>"}
    When I call "session::messages" with {"session_id": "s", "limit": 2, "cursor": "<c>"}
    Then it fails with "session/invalid_cursor"
    And no event fired
    And nothing changed

  # Prevents: a reader being sent back although the entry it stands on is still there.
  Scenario: A cursor survives a branch that starts behind it
    Given a session "s"
    And "s" holds the messages "a", "b", "c"
    And I asked "session::messages" with {"session_id": "s", "limit": 2} and was told {"next_cursor": "<c>"}
    And I called "session::append" with {"session_id": "s", "entry_id": "x", "parent_id": "b", "message": "<user:x>"}
    When I call "session::messages" with {"session_id": "s", "limit": 2, "cursor": "<c>"}
    Then it lists "x"
    And no event fired
    And nothing changed

  # Prevents: garbage being read as "from the beginning".
  Scenario: A malformed cursor is refused
    Given a session "s"
    And "s" holds the messages "a"
    When I call "session::messages" with {"session_id": "s", "cursor": "2"}
    Then it fails with "session/invalid_cursor"
    And no event fired
    And nothing changed

  # Prevents: a cursor carried over to another conversation starting somewhere in it.
  Scenario: A cursor of another session is refused
    Given a session "s"
    And a session "t"
    And "s" holds the messages "a", "b"
    And "t" holds the messages "x", "y"
    And I asked "session::messages" with {"session_id": "s", "limit": 1} and was told {"next_cursor": "<c>"}
    When I call "session::messages" with {"session_id": "t", "limit": 1, "cursor": "<c>"}
    Then it fails with "session/invalid_cursor"
    And no event fired
    And nothing changed

  # Prevents: a page so large that it stops the node, or so small that it never ends.
  Scenario: The limit is clamped at both ends
    Given pages of 2, at most 3
    And a session "s"
    And "s" holds the messages "a", "b", "c", "d"
    When I call "session::messages" with {"session_id": "s", "limit": 1000000}
    Then it lists "a", "b", "c"
    And no event fired
    And reading "session::messages" with {"session_id": "s", "limit": 0} answers {"messages": [{"entry_id": "a"}], "next_cursor": "<any>"}
    And reading "session::messages" with {"session_id": "s"} answers {"messages": [{"entry_id": "a"}, {"entry_id": "b"}], "next_cursor": "<any>"}

  # Prevents: a role with a typing error filtering everything out in silence.
  Scenario: An unknown role is refused
    Given a session "s"
    And "s" holds the messages "a"
    When I call "session::messages" with {"session_id": "s", "roles": ["user", "system"]}
    Then it fails with "session/invalid_request", saying "roles"
    And no event fired
    And nothing changed

  # Prevents: a negative page.
  Scenario: A limit below zero is refused
    Given a session "s"
    When I call "session::messages" with {"session_id": "s", "limit": -5}
    Then it fails with "session/invalid_request", saying "limit"
    And no event fired
    And nothing changed
