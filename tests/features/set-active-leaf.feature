Feature: session::set-active-leaf switches the branch

  # Prevents: a branch switch that loses the old branch or fires an event.
  Scenario: The transcript ends at the new leaf
    Given a session "s"
    And "s" holds the messages "a", "b"
    And I called "session::append" with {"session_id": "s", "entry_id": "x", "parent_id": "a", "message": "<user:x>"}
    And calling "session::get" with {"session_id": "s"} answered {"meta": {"updated_at": "<before>"}}
    When I call "session::set-active-leaf" with {"session_id": "s", "entry_id": "b"}
    Then it answers exactly {"active_leaf": "b"}
    And no event fired
    And the transcript of "s" is "a", "b"
    And reading "session::messages" with {"session_id": "s", "from_entry_id": "x"} answers {"messages": [{"entry_id": "a"}, {"entry_id": "x"}]}
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"message_count": 3, "updated_at": "<after before>"}}

  # Prevents: moving the leaf back deleting the later entries.
  Scenario: The leaf may move up its own path
    Given a session "s"
    And "s" holds the messages "a", "b", "c"
    When I call "session::set-active-leaf" with {"session_id": "s", "entry_id": "a"}
    Then it answers exactly {"active_leaf": "a"}
    And no event fired
    And the transcript of "s" is "a"
    And reading "session::get-message" with {"session_id": "s", "entry_id": "c"} answers {"entry": {"parent_id": "b"}}
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"message_count": 3}}

  # Prevents: the next message being added to the old branch.
  Scenario: The next append is a child of the new leaf
    Given a session "s"
    And "s" holds the messages "a", "b", "c"
    And I called "session::set-active-leaf" with {"session_id": "s", "entry_id": "a"}
    When I call "session::append" with {"session_id": "s", "entry_id": "x", "message": "<user:x>"}
    Then it answers {"entry_id": "x", "parent_id": "a"}
    And these events fired:
      | session::message-added | {"entry_id": "x", "parent_id": "a"} |
    And the transcript of "s" is "a", "x"

  # Prevents: a leaf that can only be a message.
  Scenario: The leaf may be a custom entry
    Given a session "s"
    And "s" holds the messages "a"
    And I called "session::append" with {"session_id": "s", "entry_id": "c", "custom": {"custom_type": "mark"}}
    And "s" holds the messages "b"
    When I call "session::set-active-leaf" with {"session_id": "s", "entry_id": "c"}
    Then it answers exactly {"active_leaf": "c"}
    And no event fired
    And the transcript of "s" is "a", "c"

  # Prevents: a leaf that does not exist.
  Scenario: An unknown entry is an error
    Given a session "s"
    And "s" holds the messages "a"
    When I call "session::set-active-leaf" with {"session_id": "s", "entry_id": "b"}
    Then it fails with "session/entry_not_found"
    And no event fired
    And nothing changed

  # Prevents: a leaf in another session.
  Scenario: An entry of another session is an error
    Given a session "s"
    And a session "t"
    And "s" holds the messages "a"
    And "t" holds the messages "b"
    When I call "session::set-active-leaf" with {"session_id": "s", "entry_id": "b"}
    Then it fails with "session/entry_not_found"
    And no event fired
    And nothing changed

  # Prevents: a session being created by a request that only names it.
  Scenario: An unknown session is an error
    When I call "session::set-active-leaf" with {"session_id": "nobody", "entry_id": "a"}
    Then it fails with "session/not_found"
    And no event fired
    And reading "session::get" with {"session_id": "nobody"} answers null

  # Prevents: a client that sets the same leaf again getting an error.
  Scenario: Setting the same leaf again is accepted
    Given a session "s"
    And "s" holds the messages "a", "b"
    When I call "session::set-active-leaf" with {"session_id": "s", "entry_id": "b"}
    Then it answers exactly {"active_leaf": "b"}
    And no event fired
    And the transcript of "s" is "a", "b"
