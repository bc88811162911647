@durable
Feature: What was answered is there after a restart

  # Prevents: any part of a session being kept in memory only.
  Scenario: Everything comes back
    Given a session "s" with {"title": "T", "description": "d", "metadata": {"team": "a", "deep": {"n": [1.5, null]}}}
    And a session "empty"
    And "s" holds the messages "a", "b"
    And I called "session::append" with {"session_id": "s", "entry_id": "c", "custom": {"custom_type": "mark", "data": {"n": 1}}, "origin": {"o": 1}}
    And I called "session::append" with {"session_id": "s", "entry_id": "x", "parent_id": "a", "message": "<result:x>"}
    And I called "session::update-message" with {"session_id": "s", "entry_id": "b", "content": "<content:new>"}
    And I called "session::set-status" with {"session_id": "s", "status": "error", "reason": "why"}
    And I called "session::fork" with {"session_id": "s", "entry_id": "c"}
    When the node restarts
    Then everything is as it was
    And no event fired
    And the transcript of "s" is "a", "x"
    And reading "session::get-message" with {"session_id": "s", "entry_id": "b"} answers {"entry": {"revision": 1, "message": {"content": "<content:new>"}}}
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"status": "error", "status_reason": "why", "message_count": 3}}

  # Prevents: a restart telling subscribers everything once more.
  Scenario: A restart fires nothing
    Given a session "s"
    And "s" holds the messages "a", "b"
    When the node restarts
    Then no event fired
    And everything is as it was

  # Prevents: a transcript that cannot go on after a restart.
  Scenario: The next append hangs below the leaf of before
    Given a session "s"
    And "s" holds the messages "a", "b"
    And I called "session::set-active-leaf" with {"session_id": "s", "entry_id": "a"}
    And the node has restarted
    When I call "session::append" with {"session_id": "s", "entry_id": "c", "message": "<user:c>"}
    Then it answers {"entry_id": "c", "parent_id": "a"}
    And these events fired:
      | session::message-added | {"entry_id": "c", "parent_id": "a"} |
    And the transcript of "s" is "a", "c"
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"message_count": 3}}

  # Prevents: a client that retries across a restart saying everything twice.
  Scenario: A repeated entry_id is still a repeat
    Given a session "s"
    And I asked "session::append" with {"session_id": "s", "entry_id": "a", "message": "<user:a>"} and was told {"timestamp": "<then>"}
    And the node has restarted
    When I call "session::append" with {"session_id": "s", "entry_id": "a", "message": "<user:other>"}
    Then it answers exactly {"entry_id": "a", "timestamp": "<then>", "parent_id": "<absent>"}
    And no event fired
    And nothing changed

  # Prevents: a restart making a stale guard valid again.
  Scenario: Revisions go on where they were
    Given a session "s"
    And "s" holds the messages "a"
    And I called "session::update-message" with {"session_id": "s", "entry_id": "a", "content": "<content:1>"}
    And the node has restarted
    When I call "session::update-message" with {"session_id": "s", "entry_id": "a", "content": "<content:2>", "expected_revision": 0}
    Then it answers exactly {"updated": false, "revision": 1}
    And no event fired
    And nothing changed

  # Prevents: deleted data rising from the files.
  Scenario: What was deleted stays deleted
    Given a session "s" with {"metadata": {"team": "a"}}
    And a session "t"
    And "s" holds the messages "a"
    And I called "session::delete" with {"session_id": "s"}
    When the node restarts
    Then everything is as it was
    And no event fired
    And reading "session::get" with {"session_id": "s"} answers null
    And reading "session::get-message" with {"session_id": "s", "entry_id": "a"} answers null
    And reading "session::list" with {} answers {"sessions": [{"session_id": "t"}]}

  # Prevents: a session under a reused id getting the old one's entries back.
  Scenario: A session that was deleted and made again is the new one
    Given a session "s" with {"title": "Old"}
    And "s" holds the messages "a", "b"
    And I called "session::delete" with {"session_id": "s"}
    And a session "s" with {"title": "New"}
    And "s" holds the messages "c"
    When the node restarts
    Then everything is as it was
    And no event fired
    And the transcript of "s" is "c"
    And reading "session::get-message" with {"session_id": "s", "entry_id": "a"} answers null
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"title": "New", "message_count": 1}}

  # Prevents: ids that become file names or keys colliding or escaping.
  Scenario: Ids of any kind come back
    Given a session "../escape/chat 42:?"
    And a session "..%2Fescape%2Fchat 42:?"
    And a session "🦀 会話"
    And a session "."
    And a session "CON"
    And a session "con"
    And "../escape/chat 42:?" holds the messages "../../e", "🦀"
    And "🦀 会話" holds the messages "x"
    When the node restarts
    Then everything is as it was
    And no event fired
    And the transcript of "../escape/chat 42:?" is "../../e", "🦀"
    And the transcript of "🦀 会話" is "x"
    And reading "session::list" with {"order": "created_asc"} answers {"sessions": [{"session_id": "../escape/chat 42:?"}, {"session_id": "..%2Fescape%2Fchat 42:?"}, {"session_id": "🦀 会話"}, {"session_id": "."}, {"session_id": "CON"}, {"session_id": "con"}]}

  # Prevents: indexes that are built while running and forgotten on disk.
  Scenario: Lists and filters work as before
    Given a session "a" with {"metadata": {"team": "x"}}
    And a session "b" with {"metadata": {"team": "y"}}
    And a session "c" with {"metadata": {"team": "x"}}
    And I called "session::set-status" with {"session_id": "a", "status": "working"}
    And the node has restarted
    When I call "session::list" with {"metadata": {"team": "x"}, "order": "created_desc"}
    Then it lists "c", "a"
    And no event fired
    And reading "session::list" with {"status": "working"} answers {"sessions": [{"session_id": "a"}]}
    And reading "session::list" with {} answers {"sessions": [{"session_id": "a"}, {"session_id": "c"}, {"session_id": "b"}]}

  # Prevents: a reader in the middle of a transcript being sent back by a restart.
  Scenario: Cursors survive
    Given a session "s"
    And "s" holds the messages "a", "b", "c"
    And I asked "session::messages" with {"session_id": "s", "limit": 2} and was told {"next_cursor": "<c>"}
    And the node has restarted
    When I call "session::messages" with {"session_id": "s", "limit": 2, "cursor": "<c>"}
    Then it lists "c"
    And no event fired
    And nothing changed

  # Prevents: time running backwards because the clock was set back while the node was down.
  Scenario: updated_at does not go back across a restart
    Given a session "s"
    And "s" holds the messages "a"
    And I asked "session::get" with {"session_id": "s"} and was told {"meta": {"updated_at": "<before>"}}
    And the clock falls back by an hour
    And the node has restarted
    When I call "session::append" with {"session_id": "s", "entry_id": "b", "message": "<user:b>"}
    Then it answers {"entry_id": "b"}
    And 1 "session::message-added" event fired and no other
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"updated_at": "<not before before>"}}

  # Prevents: raw writes of a bridge living in memory only.
  Scenario: Raw writes come back
    Given I called "session::store::put-meta" with {"meta": {"session_id": "s", "title": "T", "description": "", "status": "done", "message_count": 2, "created_at": 5, "updated_at": 6}}
    And I called "session::store::put-entry" with {"session_id": "s", "entry": {"kind": "message", "id": "b", "parent_id": "a", "timestamp": 2, "revision": 3, "message": "<user:b>"}}
    And I called "session::store::put-entry" with {"session_id": "s", "entry": {"kind": "message", "id": "a", "timestamp": 1, "message": "<user:a>"}}
    And I called "session::store::set-active-leaf" with {"session_id": "s", "entry_id": "b"}
    When the node restarts
    Then everything is as it was
    And no event fired
    And the transcript of "s" is "a", "b"
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"title": "T", "status": "done", "message_count": 2, "updated_at": 6}}

  # Prevents: a cleared leaf coming back.
  Scenario: Raw deletes come back as deletes
    Given a session "s"
    And "s" holds the messages "a", "b"
    And I called "session::store::delete-active-leaf" with {"session_id": "s"}
    When the node restarts
    Then everything is as it was
    And no event fired
    And the transcript of "s" is empty

  # Prevents: minted ids starting over and hitting those of before.
  Scenario: Minted ids do not repeat
    Given I asked "session::create" with {} and was told {"session_id": "<first>"}
    And the node has restarted
    When I call "session::create" with {}
    Then it answers {"session_id": "<second>"}
    And "<first>" and "<second>" are different
    And these events fired:
      | session::created | {"session_id": "<second>"} |
    And reading "session::list" with {"order": "created_asc"} answers {"sessions": [{"session_id": "<first>"}, {"session_id": "<second>"}]}

  # Prevents: a second restart undoing what the first one kept.
  Scenario: Two restarts in a row
    Given a session "s"
    And "s" holds the messages "a"
    And the node has restarted
    And "s" holds the messages "b"
    When the node restarts
    Then everything is as it was
    And no event fired
    And the transcript of "s" is "a", "b"

  # Prevents: large bodies, which stores keep apart, getting lost.
  Scenario: A large message comes back
    Given a session "s"
    And I called "session::append" with {"session_id": "s", "entry_id": "a", "message": {"role": "user", "timestamp": 1, "content": [{"type": "text", "text": "<text:300000>"}]}}
    When the node restarts
    Then everything is as it was
    And no event fired
    And reading "session::get-message" with {"session_id": "s", "entry_id": "a"} answers {"entry": {"message": {"content": [{"text": "<text:300000>"}]}}}

  @sled
  # Prevents: a consumer that counts events taking a restart for a new session.
  Scenario: The sequence of a session's events goes on
    Given a session "s"
    And "s" holds the messages "a", "b"
    And the node has restarted
    And Ann listens to "session::message-added" with {"session_id": "s"}
    When I call "session::append" with {"session_id": "s", "entry_id": "c", "message": "<user:c>"}
    Then it answers {"entry_id": "c"}
    And 1 "session::message-added" event fired and no other
    And Ann hears, with the sidecar:
      | {"entry_id": "c"} | {"session-manager": {"position": "<any>", "seq": 4}} |
    And the transcript of "s" is "a", "b", "c"
