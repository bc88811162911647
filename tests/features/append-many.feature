Feature: session::append-many adds a chain of messages, all or none

  # Prevents: imported history arriving in another order, or subscribers seeing it in one.
  Scenario: Messages hang one below the other, in order
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

  # Prevents: a chain in an empty session hanging below nothing in particular.
  Scenario: The first of an empty session is a root
    Given a session "s"
    When I call "session::append-many" with {"session_id": "s", "messages": ["<user:one>", "<user:two>"]}
    Then it answers {"entry_ids": ["<1>", "<2>"]}
    And "<1>" and "<2>" are different
    And these events fired:
      | session::message-added | {"entry_id": "<1>", "parent_id": "<absent>"} |
      | session::message-added | {"entry_id": "<2>", "parent_id": "<1>"} |
    And the transcript of "s" is "<1>", "<2>"

  # Prevents: an import onto a branch landing on the active one.
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

  # Prevents: an empty import passing for a successful one.
  Scenario: An empty batch is an error
    Given a session "s"
    When I call "session::append-many" with {"session_id": "s", "messages": []}
    Then it fails with "session/empty_batch"
    And no event fired
    And nothing changed

  # Prevents: half a batch being written before its last message turns out to be broken.
  Scenario: One broken message refuses them all
    Given a session "s"
    And "s" holds the messages "a"
    When I call "session::append-many" with {"session_id": "s", "messages": ["<user:one>", {"role": "user", "content": []}]}
    Then it fails with "session/invalid_request", saying "messages"
    And no event fired
    And nothing changed

  # Prevents: a batch hanging in the air.
  Scenario: An unknown parent refuses them all
    Given a session "s"
    When I call "session::append-many" with {"session_id": "s", "parent_id": "nowhere", "messages": ["<user:one>"]}
    Then it fails with "session/parent_not_found"
    And no event fired
    And nothing changed

  # Prevents: a batch bringing a session to life.
  Scenario: An unknown session is an error
    When I call "session::append-many" with {"session_id": "nobody", "messages": ["<user:one>"]}
    Then it fails with "session/not_found"
    And no event fired
    And reading "session::get" with {"session_id": "nobody"} answers null

  # Prevents: equal batches being taken for one: they carry no ids to tell a repeat by.
  Scenario: The same batch twice is written twice
    Given a session "s"
    And I asked "session::append-many" with {"session_id": "s", "messages": ["<user:one>"]} and was told {"entry_ids": ["<1>"]}
    When I call "session::append-many" with {"session_id": "s", "messages": ["<user:one>"]}
    Then it answers {"entry_ids": ["<2>"]}
    And "<1>" and "<2>" are different
    And these events fired:
      | session::message-added | {"entry_id": "<2>", "parent_id": "<1>"} |
    And the transcript of "s" is "<1>", "<2>"

  # Prevents: only the first entry of a batch knowing who wrote it.
  Scenario: The origin rides on every entry
    Given a session "s"
    When I call "session::append-many" with {"session_id": "s", "origin": {"import": 7}, "messages": ["<user:one>", "<user:two>"]}
    Then it answers {"entry_ids": ["<1>", "<2>"]}
    And these events fired:
      | session::message-added | {"entry_id": "<1>", "origin": {"import": 7}} |
      | session::message-added | {"entry_id": "<2>", "origin": {"import": 7}} |
    And reading "session::get-message" with {"session_id": "s", "entry_id": "<2>"} answers {"entry": {"origin": {"import": 7}, "revision": 0}}
