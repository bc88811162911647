@durable
Feature: Acknowledged writes survive a restart

  # Prevents: any part of a session being kept in memory only.
  Scenario: Everything survives
    Given a session "s" with {"title": "T", "description": "d", "metadata": {"team": "a", "deep": {"n": [1.5, null]}}}
    And a session "empty"
    And "s" holds the messages "a", "b"
    And I called "session::append" with {"session_id": "s", "entry_id": "c", "custom": {"custom_type": "mark", "data": {"n": 1}}, "origin": {"o": 1}}
    And I called "session::append" with {"session_id": "s", "entry_id": "x", "parent_id": "a", "message": "<result:x>"}
    And I called "session::update-message" with {"session_id": "s", "entry_id": "b", "content": "<content:new>"}
    And I called "session::set-status" with {"session_id": "s", "status": "error", "reason": "why"}
    And I called "session::fork" with {"session_id": "s", "entry_id": "c"}
    When the node restarts
    Then the restart changed nothing
    And no event fired
    And the transcript of "s" is "a", "x"
    And reading "session::get-message" with {"session_id": "s", "entry_id": "b"} answers {"entry": {"revision": 1, "message": {"content": "<content:new>"}}}
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"status": "error", "status_reason": "why", "message_count": 3}}

  # Prevents: a restart firing old events again.
  Scenario: A restart fires nothing
    Given a session "s"
    And "s" holds the messages "a", "b"
    When the node restarts
    Then no event fired
    And the restart changed nothing

  # Prevents: a transcript that cannot be continued after a restart.
  Scenario: The next append is a child of the old leaf
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

  # Prevents: a retry across a restart storing the message twice.
  Scenario: A retry is recognised after a restart
    Given a session "s"
    And calling "session::append" with {"session_id": "s", "entry_id": "a", "message": "<user:a>"} answered {"timestamp": "<then>"}
    And the node has restarted
    When I call "session::append" with {"session_id": "s", "entry_id": "a", "message": "<user:other>"}
    Then it answers exactly {"entry_id": "a", "timestamp": "<then>", "parent_id": "<absent>"}
    And no event fired
    And nothing changed

  # Prevents: a restart making a stale expected revision valid.
  Scenario: Revisions continue
    Given a session "s"
    And "s" holds the messages "a"
    And I called "session::update-message" with {"session_id": "s", "entry_id": "a", "content": "<content:1>"}
    And the node has restarted
    When I call "session::update-message" with {"session_id": "s", "entry_id": "a", "content": "<content:2>", "expected_revision": 0}
    Then it answers exactly {"updated": false, "revision": 1}
    And no event fired
    And nothing changed

  # Prevents: deleted data being loaded again.
  Scenario: What was deleted stays deleted
    Given a session "s" with {"metadata": {"team": "a"}}
    And a session "t"
    And "s" holds the messages "a"
    And I called "session::delete" with {"session_id": "s"}
    When the node restarts
    Then the restart changed nothing
    And no event fired
    And reading "session::get" with {"session_id": "s"} answers null
    And reading "session::get-message" with {"session_id": "s", "entry_id": "a"} answers null
    And reading "session::list" with {} answers {"sessions": [{"session_id": "t"}]}

  # Prevents: a session with a reused id getting the deleted one's entries.
  Scenario: A session that was deleted and created again stays the new one
    Given a session "s" with {"title": "Old"}
    And "s" holds the messages "a", "b"
    And I called "session::delete" with {"session_id": "s"}
    And a session "s" with {"title": "New"}
    And "s" holds the messages "c"
    When the node restarts
    Then the restart changed nothing
    And no event fired
    And the transcript of "s" is "c"
    And reading "session::get-message" with {"session_id": "s", "entry_id": "a"} answers null
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"title": "New", "message_count": 1}}

  # Prevents: ids colliding or escaping as file names or keys.
  Scenario: Ids of any kind survive
    Given a session "../escape/chat 42:?"
    And a session "..%2Fescape%2Fchat 42:?"
    And a session "🦀 会話"
    And a session "."
    And a session "CON"
    And a session "con"
    And "../escape/chat 42:?" holds the messages "../../e", "🦀"
    And "🦀 会話" holds the messages "x"
    When the node restarts
    Then the restart changed nothing
    And no event fired
    And the transcript of "../escape/chat 42:?" is "../../e", "🦀"
    And the transcript of "🦀 会話" is "x"
    And reading "session::list" with {"order": "created_asc"} answers {"sessions": [{"session_id": "../escape/chat 42:?"}, {"session_id": "..%2Fescape%2Fchat 42:?"}, {"session_id": "🦀 会話"}, {"session_id": "."}, {"session_id": "CON"}, {"session_id": "con"}]}

  # Prevents: indexes that exist only in memory.
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

  # Prevents: a cursor becoming invalid in a restart.
  Scenario: Cursors survive
    Given a session "s"
    And "s" holds the messages "a", "b", "c"
    And calling "session::messages" with {"session_id": "s", "limit": 2} answered {"next_cursor": "<c>"}
    And the node has restarted
    When I call "session::messages" with {"session_id": "s", "limit": 2, "cursor": "<c>"}
    Then it lists "c"
    And no event fired
    And nothing changed

  # Prevents: time running backwards because the clock was set back while the node was down.
  Scenario: updated_at does not go back across a restart
    Given a session "s"
    And "s" holds the messages "a"
    And calling "session::get" with {"session_id": "s"} answered {"meta": {"updated_at": "<before>"}}
    And the clock is set back by an hour
    And the node has restarted
    When I call "session::append" with {"session_id": "s", "entry_id": "b", "message": "<user:b>"}
    Then it answers {"entry_id": "b"}
    And 1 "session::message-added" event fired and no other
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"updated_at": "<not before before>"}}

  # Prevents: raw writes of a bridge being kept in memory only.
  Scenario: Raw writes survive
    Given I called "session::store::put-meta" with {"meta": {"session_id": "s", "title": "T", "description": "", "status": "done", "message_count": 2, "created_at": 5, "updated_at": 6}}
    And I called "session::store::put-entry" with {"session_id": "s", "entry": {"kind": "message", "id": "b", "parent_id": "a", "timestamp": 2, "revision": 3, "message": "<user:b>"}}
    And I called "session::store::put-entry" with {"session_id": "s", "entry": {"kind": "message", "id": "a", "timestamp": 1, "message": "<user:a>"}}
    And I called "session::store::set-active-leaf" with {"session_id": "s", "entry_id": "b"}
    When the node restarts
    Then the restart changed nothing
    And no event fired
    And the transcript of "s" is "a", "b"
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"title": "T", "status": "done", "message_count": 2, "updated_at": 6}}

  # Prevents: a cleared leaf being restored.
  Scenario: Raw deletes survive
    Given a session "s"
    And "s" holds the messages "a", "b"
    And I called "session::store::delete-active-leaf" with {"session_id": "s"}
    When the node restarts
    Then the restart changed nothing
    And no event fired
    And the transcript of "s" is empty

  # Prevents: minted ids starting over and colliding with old ones.
  Scenario: Minted ids do not repeat
    Given calling "session::create" with {} answered {"session_id": "<first>"}
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
    Then the restart changed nothing
    And no event fired
    And the transcript of "s" is "a", "b"

  # Prevents: large bodies, which are stored separately, being lost.
  Scenario: A large message survives
    Given a session "s"
    And I called "session::append" with {"session_id": "s", "entry_id": "a", "message": {"role": "user", "timestamp": 1, "content": [{"type": "text", "text": "<text:300000>"}]}}
    When the node restarts
    Then the restart changed nothing
    And no event fired
    And reading "session::get-message" with {"session_id": "s", "entry_id": "a"} answers {"entry": {"message": {"content": [{"text": "<text:300000>"}]}}}

  @sled
  # Prevents: sequence numbers starting over in a restart.
  Scenario: The sequence numbers of a session continue
    Given a session "s"
    And "s" holds the messages "a", "b"
    And the node has restarted
    And Ann subscribes to "session::message-added" with {"session_id": "s"}
    When I call "session::append" with {"session_id": "s", "entry_id": "c", "message": "<user:c>"}
    Then it answers {"entry_id": "c"}
    And 1 "session::message-added" event fired and no other
    And Ann receives, with the sidecar:
      | {"entry_id": "c"} | {"session-manager": {"position": "<any>", "seq": 4}} |
    And the transcript of "s" is "a", "b", "c"
