Feature: session::append-many adds a chain of messages, all or none

  # Prevents: imported history stored or delivered in another order than it was sent.
  Scenario: Each message is the child of the one before it
    Given a session "s"
    And "s" holds the messages "a"
    When I call "session::append-many" with {"session_id": "s", "messages": ["<user:one>", "<assistant:two>", "<result:three>"]}
    Then it answers exactly {"entry_ids": ["<1>", "<2>", "<3>"], "last_entry_id": "<3>"}
    And these events fired:
      | session::message-added | {"session_id": "s", "entry_id": "<1>", "parent_id": "a", "message": "<user:one>", "timestamp": "<now>"} |
      | session::message-added | {"session_id": "s", "entry_id": "<2>", "parent_id": "<1>", "message": "<assistant:two>", "timestamp": "<now>"} |
      | session::message-added | {"session_id": "s", "entry_id": "<3>", "parent_id": "<2>", "message": "<result:three>", "timestamp": "<now>"} |
    And the transcript of "s" is "a", "<1>", "<2>", "<3>"
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"message_count": 4}}

  # Prevents: a batch in an empty session getting a parent that does not exist.
  Scenario: The first message of an empty session is a root
    Given a session "s"
    When I call "session::append-many" with {"session_id": "s", "messages": ["<user:one>", "<user:two>"]}
    Then it answers {"entry_ids": ["<1>", "<2>"]}
    And "<1>" and "<2>" are different
    And these events fired:
      | session::message-added | {"entry_id": "<1>", "parent_id": "<absent>"} |
      | session::message-added | {"entry_id": "<2>", "parent_id": "<1>"} |
    And the transcript of "s" is "<1>", "<2>"

  # Prevents: an import into one branch being added to the active branch.
  Scenario: A named parent starts a branch
    Given a session "s"
    And "s" holds the messages "a", "b"
    When I call "session::append-many" with {"session_id": "s", "parent_id": "a", "messages": ["<user:one>", "<user:two>"]}
    Then it answers {"entry_ids": ["<1>", "<2>"]}
    And these events fired:
      | session::message-added | {"entry_id": "<1>", "parent_id": "a"} |
      | session::message-added | {"entry_id": "<2>", "parent_id": "<1>"} |
    And the transcript of "s" is "a", "<1>", "<2>"
    And reading "session::messages" with {"session_id": "s", "from_entry_id": "b"} answers {"messages": [{"entry_id": "a"}, {"entry_id": "b"}]}

  # Prevents: an empty import being reported as successful.
  Scenario: An empty batch is an error
    Given a session "s"
    When I call "session::append-many" with {"session_id": "s", "messages": []}
    Then it fails with "session/empty_batch"
    And no event fired
    And nothing changed

  # Prevents: half a batch being written before its last message is found to be invalid.
  Scenario: One invalid message refuses the whole batch
    Given a session "s"
    And "s" holds the messages "a"
    When I call "session::append-many" with {"session_id": "s", "messages": ["<user:one>", {"role": "user", "content": []}]}
    Then it fails with "session/invalid_request", saying "messages"
    And no event fired
    And nothing changed

  # Prevents: a batch whose parent does not exist.
  Scenario: An unknown parent refuses the whole batch
    Given a session "s"
    When I call "session::append-many" with {"session_id": "s", "parent_id": "nowhere", "messages": ["<user:one>"]}
    Then it fails with "session/parent_not_found"
    And no event fired
    And nothing changed

  # Prevents: a batch creating a session.
  Scenario: An unknown session is an error
    When I call "session::append-many" with {"session_id": "nobody", "messages": ["<user:one>"]}
    Then it fails with "session/not_found"
    And no event fired
    And reading "session::get" with {"session_id": "nobody"} answers null

  # Prevents: a second equal batch being treated as a retry: messages of a batch have no ids to recognise one.
  Scenario: The same batch twice is written twice
    Given a session "s"
    And calling "session::append-many" with {"session_id": "s", "messages": ["<user:one>"]} answered {"entry_ids": ["<1>"]}
    When I call "session::append-many" with {"session_id": "s", "messages": ["<user:one>"]}
    Then it answers {"entry_ids": ["<2>"]}
    And "<1>" and "<2>" are different
    And these events fired:
      | session::message-added | {"entry_id": "<2>", "parent_id": "<1>"} |
    And the transcript of "s" is "<1>", "<2>"

  # Prevents: only the first entry of a batch keeping its origin.
  Scenario: Every entry keeps the origin
    Given a session "s"
    When I call "session::append-many" with {"session_id": "s", "origin": {"import": 7}, "messages": ["<user:one>", "<user:two>"]}
    Then it answers {"entry_ids": ["<1>", "<2>"]}
    And these events fired:
      | session::message-added | {"entry_id": "<1>", "origin": {"import": 7}} |
      | session::message-added | {"entry_id": "<2>", "origin": {"import": 7}} |
    And reading "session::get-message" with {"session_id": "s", "entry_id": "<2>"} answers {"entry": {"origin": {"import": 7}, "revision": 0}}
