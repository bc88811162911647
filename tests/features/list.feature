Feature: session::list pages through sessions

  # Prevents: an empty store being an error.
  Scenario: No session at all
    When I call "session::list" with {}
    Then it answers exactly {"sessions": []}
    And no event fired
    And nothing changed

  # Prevents: the session that was updated last not being first.
  Scenario: Without an order the session updated last comes first
    Given a session "a"
    And a session "b"
    And a session "c"
    And "a" holds the messages "m"
    When I call "session::list" with {}
    Then it lists "a", "c", "b"
    And no event fired
    And nothing changed

  # Prevents: updates changing the order of a list by creation time.
  Scenario: Oldest first
    Given a session "b"
    And a session "a"
    And "b" holds the messages "m"
    When I call "session::list" with {"order": "created_asc"}
    Then it lists "b", "a"
    And no event fired
    And nothing changed

  # Prevents: the newest session being last.
  Scenario: Newest first
    Given a session "b"
    And a session "a"
    And a session "c"
    And "b" holds the messages "m"
    When I call "session::list" with {"order": "created_desc"}
    Then it lists "c", "a", "b"
    And no event fired
    And nothing changed

  # Prevents: sessions with the same time changing their order between two reads.
  Scenario: Ties break by session id, in every order
    Given I called "session::store::put-meta" with {"meta": {"session_id": "y", "title": "", "description": "", "status": "idle", "message_count": 0, "created_at": 5, "updated_at": 9}}
    And I called "session::store::put-meta" with {"meta": {"session_id": "x", "title": "", "description": "", "status": "idle", "message_count": 0, "created_at": 5, "updated_at": 9}}
    And I called "session::store::put-meta" with {"meta": {"session_id": "x2", "title": "", "description": "", "status": "idle", "message_count": 0, "created_at": 5, "updated_at": 9}}
    When I call "session::list" with {"order": "created_desc"}
    Then it lists "x", "x2", "y"
    And reading "session::list" with {"order": "created_asc"} answers {"sessions": [{"session_id": "x"}, {"session_id": "x2"}, {"session_id": "y"}]}
    And reading "session::list" with {"order": "updated_desc"} answers {"sessions": [{"session_id": "x"}, {"session_id": "x2"}, {"session_id": "y"}]}
    And no event fired

  # Prevents: a list of running work that shows finished work.
  Scenario: Only one status
    Given a session "a"
    And a session "b"
    And a session "c"
    And I called "session::set-status" with {"session_id": "b", "status": "working"}
    When I call "session::list" with {"status": "working"}
    Then it lists "b"
    And no event fired
    And reading "session::list" with {"status": "idle", "order": "created_asc"} answers {"sessions": [{"session_id": "a"}, {"session_id": "c"}]}
    And reading "session::list" with {"status": "done"} answers {"sessions": []}

  # Prevents: a session staying in the list of a status it has left.
  Scenario: A session moves with its status
    Given a session "a"
    And I called "session::set-status" with {"session_id": "a", "status": "working"}
    And I called "session::set-status" with {"session_id": "a", "status": "done"}
    When I call "session::list" with {"status": "working"}
    Then it lists nothing
    And no event fired
    And reading "session::list" with {"status": "done"} answers {"sessions": [{"session_id": "a", "status": "done"}]}

  # Prevents: one tenant seeing another's sessions.
  Scenario: Only sessions whose metadata holds a value
    Given a session "a" with {"metadata": {"tenant": "acme", "n": 1}}
    And a session "b" with {"metadata": {"tenant": "beta"}}
    And a session "c"
    When I call "session::list" with {"metadata": {"tenant": "acme"}}
    Then it lists "a"
    And no event fired
    And nothing changed

  # Prevents: a filter with two keys matching sessions that have only one of them.
  Scenario: Every given key must match
    Given a session "a" with {"metadata": {"tenant": "acme", "kind": "chat"}}
    And a session "b" with {"metadata": {"tenant": "acme", "kind": "job"}}
    And a session "c" with {"metadata": {"kind": "chat"}}
    When I call "session::list" with {"metadata": {"kind": "chat", "tenant": "acme"}}
    Then it lists "a"
    And no event fired
    And nothing changed

  # Prevents: status and metadata being combined by or.
  Scenario: Status and metadata must both match
    Given a session "a" with {"metadata": {"tenant": "acme"}}
    And a session "b" with {"metadata": {"tenant": "acme"}}
    And a session "c"
    And I called "session::set-status" with {"session_id": "b", "status": "error", "reason": "r"}
    And I called "session::set-status" with {"session_id": "c", "status": "error", "reason": "r"}
    When I call "session::list" with {"metadata": {"tenant": "acme"}, "status": "error"}
    Then it lists "b"
    And no event fired
    And nothing changed

  # Prevents: values of different types matching each other.
  Scenario: Values are compared deeply and by type
    Given a session "number" with {"metadata": {"v": 1}}
    And a session "text" with {"metadata": {"v": "1"}}
    And a session "deep" with {"metadata": {"v": {"a": [1, {"b": null}], "c": true}}}
    And a session "more" with {"metadata": {"v": {"a": [1, {"b": null}], "c": true, "d": 1}}}
    When I call "session::list" with {"metadata": {"v": {"c": true, "a": [1, {"b": null}]}}}
    Then it lists "deep"
    And no event fired
    And reading "session::list" with {"metadata": {"v": 1}} answers {"sessions": [{"session_id": "number"}]}
    And reading "session::list" with {"metadata": {"v": "1"}} answers {"sessions": [{"session_id": "text"}]}

  # Prevents: a filter for null matching every session that lacks the key.
  Scenario: A stored null is a value, a missing key is not
    Given a session "null" with {"metadata": {"v": null}}
    And a session "other" with {"metadata": {"w": 1}}
    And a session "none"
    When I call "session::list" with {"metadata": {"v": null}}
    Then it lists "null"
    And no event fired
    And nothing changed

  # Prevents: an empty filter hiding sessions without metadata.
  Scenario: An empty metadata filter matches everything
    Given a session "a" with {"metadata": {"v": 1}}
    And a session "b"
    When I call "session::list" with {"metadata": {}, "order": "created_asc"}
    Then it lists "a", "b"
    And no event fired
    And nothing changed

  # Prevents: a session being found by its old metadata.
  Scenario: Metadata that was replaced no longer matches
    Given a session "a" with {"metadata": {"v": 1, "w": 1}}
    And I called "session::set-meta" with {"session_id": "a", "metadata": {"v": 2}}
    When I call "session::list" with {"metadata": {"v": 1}}
    Then it lists nothing
    And no event fired
    And reading "session::list" with {"metadata": {"w": 1}} answers {"sessions": []}
    And reading "session::list" with {"metadata": {"v": 2}} answers {"sessions": [{"session_id": "a"}]}

  # Prevents: a page that repeats or skips a session.
  Scenario: Pages follow each other without gap or overlap
    Given a session "a"
    And a session "b"
    And a session "c"
    And a session "d"
    And a session "e"
    And calling "session::list" with {"order": "created_asc", "limit": 2} answered {"sessions": [{"session_id": "a"}, {"session_id": "b"}], "next_cursor": "<one>"}
    And calling "session::list" with {"order": "created_asc", "limit": 2, "cursor": "<one>"} answered {"sessions": [{"session_id": "c"}, {"session_id": "d"}], "next_cursor": "<two>"}
    When I call "session::list" with {"order": "created_asc", "limit": 2, "cursor": "<two>"}
    Then it lists "e"
    And it answers {"next_cursor": "<absent>"}
    And no event fired
    And nothing changed

  # Prevents: a client that follows cursors reading one empty page at the end.
  Scenario: A last page that is full has no cursor
    Given a session "a"
    And a session "b"
    When I call "session::list" with {"limit": 2}
    Then it answers {"sessions": ["<any>", "<any>"], "next_cursor": "<absent>"}
    And no event fired
    And nothing changed

  # Prevents: a new session shifting a known one onto the next page.
  Scenario: A session created between two pages does not shift them
    Given a session "a"
    And a session "b"
    And a session "c"
    And calling "session::list" with {"order": "created_desc", "limit": 2} answered {"sessions": [{"session_id": "c"}, {"session_id": "b"}], "next_cursor": "<one>"}
    And a session "d"
    When I call "session::list" with {"order": "created_desc", "limit": 2, "cursor": "<one>"}
    Then it lists "a"
    And no event fired
    And nothing changed

  # Prevents: the deletion of the session a cursor ended at making the rest unreadable.
  Scenario: The session of a cursor may be deleted
    Given a session "a"
    And a session "b"
    And a session "c"
    And calling "session::list" with {"order": "created_asc", "limit": 2} answered {"next_cursor": "<one>"}
    And I called "session::delete" with {"session_id": "b"}
    When I call "session::list" with {"order": "created_asc", "limit": 2, "cursor": "<one>"}
    Then it lists "c"
    And no event fired
    And nothing changed

  # Prevents: a cursor being used with another order.
  Scenario: A cursor is bound to its order
    Given a session "a"
    And a session "b"
    And calling "session::list" with {"order": "created_asc", "limit": 1} answered {"next_cursor": "<one>"}
    When I call "session::list" with {"order": "created_desc", "limit": 1, "cursor": "<one>"}
    Then it fails with "session/invalid_cursor", saying "order"
    And no event fired
    And nothing changed

  # Prevents: an invalid cursor being treated as "from the beginning".
  Scenario: A malformed cursor is refused
    Given a session "a"
    When I call "session::list" with {"cursor": "page-2"}
    Then it fails with "session/invalid_cursor"
    And no event fired
    And nothing changed

  # Prevents: a cursor of a transcript being accepted for a list.
  Scenario: A cursor of session::messages is refused
    Given a session "a"
    And "a" holds the messages "m", "n"
    And calling "session::messages" with {"session_id": "a", "limit": 1} answered {"next_cursor": "<c>"}
    When I call "session::list" with {"cursor": "<c>"}
    Then it fails with "session/invalid_cursor"
    And no event fired
    And nothing changed

  # Prevents: a page that is too large for the node.
  Scenario: The limit is clamped at both ends
    Given pages of 2, at most 3
    And a session "a"
    And a session "b"
    And a session "c"
    And a session "d"
    When I call "session::list" with {"order": "created_asc", "limit": 1000000}
    Then it lists "a", "b", "c"
    And no event fired
    And reading "session::list" with {"order": "created_asc", "limit": 0} answers {"sessions": [{"session_id": "a"}], "next_cursor": "<any>"}
    And reading "session::list" with {"order": "created_asc"} answers {"sessions": [{"session_id": "a"}, {"session_id": "b"}], "next_cursor": "<any>"}

  # Prevents: a mistyped order or status being treated as the default.
  Scenario: Unknown values are refused
    Given a session "a"
    When I call "session::list" with {"order": "updated_asc"}
    Then it fails with "session/invalid_request", saying "order"
    And no event fired
    And reading "session::list" with {"status": "busy"} fails with "session/invalid_request"
    And reading "session::list" with {"limit": -1} fails with "session/invalid_request"
    And nothing changed

  # Prevents: a deleted session being listed, or making a page shorter.
  Scenario: A deleted session is not listed
    Given a session "a" with {"metadata": {"v": 1}}
    And a session "b" with {"metadata": {"v": 1}}
    And a session "c" with {"metadata": {"v": 1}}
    And I called "session::delete" with {"session_id": "b"}
    When I call "session::list" with {"order": "created_asc", "limit": 2}
    Then it lists "a", "c"
    And no event fired
    And reading "session::list" with {"metadata": {"v": 1}, "order": "created_asc"} answers {"sessions": [{"session_id": "a"}, {"session_id": "c"}]}
