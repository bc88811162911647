Feature: session::export and session::import move sessions as Toolpath documents

  # Prevents: a session without messages having no document, or one that no reader takes.
  Scenario: An empty session is a document without steps
    Given a session "s" with {"title": "Nothing yet"}
    When I call "session::export" with {"session_id": "s"}
    Then it answers {"lines": [{"PathOpen": {"id": "s", "meta": {"title": "Nothing yet", "kind": "https://toolpath.net/kinds/agent-coding-session/v1.1.0", "source": "session-manager"}}}, {"Head": {"step_id": ""}}, {"PathClose": {}}], "next_cursor": "<absent>"}
    And no event fired
    And nothing changed

  # Prevents: an export that does unbounded work in one call.
  Scenario: An export comes in pages
    Given a session "s"
    And "s" holds the messages "a", "b", "c"
    When I call "session::export" with {"session_id": "s", "limit": 2, "redactable": true}
    Then it answers {"next_cursor": "x.path.63.62"}
    And no event fired
    And nothing changed

  # Prevents: an export of a session that does not exist looking like an empty one.
  Scenario: An unknown session cannot be exported
    When I call "session::export" with {"session_id": "nobody"}
    Then it fails with "session/not_found"
    And no event fired
    And nothing changed

  # Prevents: a misspelled field leaving a secret in a document that was to be redacted.
  Scenario: A field that cannot be redacted is refused by name
    Given a session "s"
    When I call "session::export" with {"session_id": "s", "redact": ["passwords"]}
    Then it fails with "session/invalid_request", saying "passwords"
    And no event fired
    And nothing changed

  # Prevents: an imported session that nobody hears of, or one event for each of its old messages.
  Scenario: A document becomes a session
    When I call "session::import" with {"document": {"graph": {"id": "p"}, "paths": [{"path": {"id": "p", "head": "b"}, "steps": [{"step": {"id": "a", "actor": "human:alex", "timestamp": "2026-01-01T00:00:00Z"}, "change": {"x://p": {"structural": {"type": "conversation.append", "role": "user", "text": "hello"}}}}, {"step": {"id": "b", "parents": ["a"], "actor": "agent:m", "timestamp": "2026-01-01T00:00:01Z"}, "change": {"x://p": {"structural": {"type": "conversation.append", "role": "assistant", "text": "hi"}}}}], "meta": {"kind": "https://toolpath.net/kinds/agent-coding-session/v1.1.0", "source": "x", "title": "Greeting"}}]}}
    Then it answers {"outcome": "finished"}
    And 1 "session::created" event fired and no other
    And reading "session::get" with {"session_id": "p"} answers {"meta": {"title": "Greeting", "message_count": 2, "metadata": {"source": "x"}, "created_at": 1767225600000}}
    And the transcript of "p" is "a", "b"

  # Prevents: a part of a bad document being written, or an error that does not say where it is bad.
  Scenario: A bad document is refused with the step that is wrong
    When I call "session::import" with {"document": {"graph": {"id": "p"}, "paths": [{"path": {"id": "p", "head": "a"}, "steps": [{"step": {"id": "a", "parents": ["z"], "actor": "human:alex", "timestamp": "2026-01-01T00:00:00Z"}, "change": {}}], "meta": {"kind": "https://toolpath.net/kinds/agent-coding-session/v1.1.0"}}]}}
    Then it fails with "session/invalid_request", saying "step"
    And no event fired
    And reading "session::get" with {"session_id": "p"} answers null

  # Prevents: a half-imported session that readers take for a whole one.
  Scenario: A session exists only when its last batch is written
    Given I called "session::import" with {"session_id": "s", "first": true, "entries": [{"kind": "message", "id": "a", "timestamp": 5, "message": "<user:a>"}]}
    When I call "session::import" with {"session_id": "s", "entries": [{"kind": "message", "id": "b", "parent_id": "a", "timestamp": 6, "message": "<user:b>"}]}
    Then it answers exactly {"outcome": "staged", "added": 1}
    And no event fired
    And reading "session::get" with {"session_id": "s"} answers null

  # Prevents: a batch that is sent again after an unknown outcome being refused, or written twice.
  Scenario: A batch may be sent again
    Given I called "session::import" with {"session_id": "s", "first": true, "entries": [{"kind": "message", "id": "a", "timestamp": 5, "message": "<user:a>"}]}
    And I called "session::import" with {"session_id": "s", "entries": [], "finish": {"meta": {"session_id": "s", "title": "T", "description": "", "status": "idle", "message_count": 1, "created_at": 5, "updated_at": 5}, "active_leaf": "a"}}
    When I call "session::import" with {"session_id": "s", "entries": [], "finish": {"meta": {"session_id": "s", "title": "T", "description": "", "status": "idle", "message_count": 1, "created_at": 5, "updated_at": 5}, "active_leaf": "a"}}
    Then it answers exactly {"outcome": "unchanged", "added": 0}
    And no event fired
    And the transcript of "s" is "a"

  # Prevents: an import writing over a session without being told to.
  Scenario: An existing session is not overwritten
    Given a session "s" with {"title": "Mine"}
    When I call "session::import" with {"session_id": "s", "first": true, "entries": [{"kind": "message", "id": "a", "timestamp": 5, "message": "<user:a>"}], "finish": {"meta": {"session_id": "s", "title": "Theirs", "description": "", "status": "idle", "message_count": 1, "created_at": 5, "updated_at": 5}, "active_leaf": "a"}}
    Then it fails with "session/invalid_request", saying "exists already"
    And no event fired
    And nothing changed

  # Prevents: a merge that is silent, or that touches what the session has.
  Scenario: Merging adds the entries that are missing
    Given a session "s" with {"title": "Mine"}
    When I call "session::import" with {"session_id": "s", "first": true, "if_exists": "merge", "entries": [{"kind": "message", "id": "a", "timestamp": 5, "message": "<user:a>"}], "finish": {"meta": {"session_id": "s", "title": "Theirs", "description": "", "status": "idle", "message_count": 1, "created_at": 5, "updated_at": 5}, "active_leaf": "a"}}
    Then it answers exactly {"outcome": "finished", "added": 1}
    And 1 "session::message-added" event fired and no other
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"title": "Mine", "message_count": 1}}
    And the transcript of "s" is "a"

  # Prevents: entries that hang below nothing.
  Scenario: An entry whose parent is missing is refused
    When I call "session::import" with {"session_id": "s", "first": true, "entries": [{"kind": "message", "id": "b", "parent_id": "a", "timestamp": 6, "message": "<user:b>"}]}
    Then it fails with "session/parent_not_found"
    And no event fired
    And nothing changed

  # Prevents: subscribers that keep showing the entries of a session that was replaced.
  Scenario: Replacing a session deletes it and creates it
    Given a session "s" with {"title": "Mine"}
    And "s" holds the messages "x", "y"
    When I call "session::import" with {"session_id": "s", "first": true, "if_exists": "replace", "entries": [{"kind": "message", "id": "a", "timestamp": 5, "message": "<user:a>"}], "finish": {"meta": {"session_id": "s", "title": "Theirs", "description": "", "status": "idle", "message_count": 1, "created_at": 5, "updated_at": 5}, "active_leaf": "a"}}
    Then it answers exactly {"outcome": "finished", "added": 1}
    And these events fired:
      | session::deleted | {"session_id": "s"} |
      | session::created | {"session_id": "s", "title": "Theirs", "created_at": 5} |
    And reading "session::get-message" with {"session_id": "s", "entry_id": "x"} answers null
    And the transcript of "s" is "a"

  # Prevents: an import whose record names another session than it writes, which replicas would understand differently.
  Scenario: The record must name the session
    When I call "session::import" with {"session_id": "s", "first": true, "entries": [], "finish": {"meta": {"session_id": "t", "title": "", "description": "", "status": "idle", "message_count": 0, "created_at": 5, "updated_at": 5}}}
    Then it fails with "session/invalid_request", saying "finish.meta.session_id"
    And no event fired
    And nothing changed
