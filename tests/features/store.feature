Feature: session::store::* is the raw protocol that bridges speak

  # Prevents: a bridge that cannot write its decisions, or raw writes that fire a second event.
  Scenario: A raw meta is stored unchanged and fires no event
    When I call "session::store::put-meta" with {"meta": {"session_id": "s", "title": "T", "description": "d", "status": "error", "status_reason": "r", "message_count": 7, "metadata": {"team": "a"}, "forked_from": "x", "created_at": 3, "updated_at": 4}}
    Then it answers exactly {"ok": true}
    And no event fired
    And reading "session::store::get-meta" with {"session_id": "s"} answers {"session_id": "s", "title": "T", "description": "d", "status": "error", "status_reason": "r", "message_count": 7, "metadata": {"team": "a"}, "forked_from": "x", "created_at": 3, "updated_at": 4}
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"title": "T", "message_count": 7}}
    And reading "session::list" with {"status": "error", "metadata": {"team": "a"}} answers {"sessions": [{"session_id": "s"}]}

  # Prevents: a raw write being merged with the old value, or refused because of it.
  Scenario: A raw meta replaces the one before
    Given a session "s" with {"title": "Old", "metadata": {"team": "a"}}
    When I call "session::store::put-meta" with {"meta": {"session_id": "s", "title": "New", "description": "", "status": "done", "message_count": 0, "created_at": 1, "updated_at": 2}}
    Then it answers exactly {"ok": true}
    And no event fired
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"title": "New", "status": "done", "metadata": "<absent>", "updated_at": 2}}
    And reading "session::list" with {"metadata": {"team": "a"}} answers {"sessions": []}
    And reading "session::list" with {"status": "idle"} answers {"sessions": []}

  # Prevents: an unknown meta being an error.
  Scenario: An unknown meta is null
    When I call "session::store::get-meta" with {"session_id": "nobody"}
    Then it answers null
    And no event fired
    And nothing changed

  # Prevents: raw entries being counted, moving the leaf or firing: the bridge does all that itself.
  Scenario: A raw entry is stored and nothing else happens
    Given a session "s"
    When I call "session::store::put-entry" with {"session_id": "s", "entry": {"kind": "message", "id": "a", "timestamp": 5, "revision": 2, "origin": {"n": 1}, "message": "<user:a>"}}
    Then it answers exactly {"ok": true}
    And no event fired
    And reading "session::store::get-entry" with {"session_id": "s", "entry_id": "a"} answers {"kind": "message", "id": "a", "parent_id": "<absent>", "timestamp": 5, "revision": 2, "origin": {"n": 1}, "message": "<user:a>"}
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"message_count": 0}}
    And reading "session::store::get-active-leaf" with {"session_id": "s"} answers {"entry_id": "<absent>"}
    And the transcript of "s" is empty

  # Prevents: a second raw write being ignored as a retry, so that a bridge's update is lost.
  Scenario: A raw entry replaces the one before
    Given a session "s"
    And "s" holds the messages "a", "b"
    When I call "session::store::put-entry" with {"session_id": "s", "entry": {"kind": "message", "id": "b", "parent_id": "a", "timestamp": 5, "revision": 9, "message": "<assistant:new>"}}
    Then it answers exactly {"ok": true}
    And no event fired
    And reading "session::get-message" with {"session_id": "s", "entry_id": "b"} answers {"entry": {"revision": 9, "message": "<assistant:new>"}}
    And the transcript of "s" is "a", "b"

  # Prevents: a raw write changing the parent of an entry, and every path through it.
  Scenario: A raw entry cannot change its parent
    Given a session "s"
    And "s" holds the messages "a", "b", "c"
    When I call "session::store::put-entry" with {"session_id": "s", "entry": {"kind": "message", "id": "c", "parent_id": "a", "timestamp": 5, "message": "<user:c>"}}
    Then it fails with "session/invalid_request", saying "parent_id"
    And no event fired
    And nothing changed

  # Prevents: an entry that is its own parent.
  Scenario: A raw entry cannot be its own parent
    Given a session "s"
    When I call "session::store::put-entry" with {"session_id": "s", "entry": {"kind": "custom", "id": "c", "parent_id": "c", "timestamp": 5, "custom_type": "x"}}
    Then it fails with "session/invalid_request", saying "parent_id"
    And no event fired
    And nothing changed

  # Prevents: a bridge that writes children first leaving a transcript that cannot be read.
  Scenario: Raw entries may arrive in any order
    Given a session "s"
    And I called "session::store::put-entry" with {"session_id": "s", "entry": {"kind": "message", "id": "c", "parent_id": "b", "timestamp": 3, "message": "<user:c>"}}
    And I called "session::store::put-entry" with {"session_id": "s", "entry": {"kind": "message", "id": "b", "parent_id": "a", "timestamp": 2, "message": "<user:b>"}}
    And I called "session::store::put-entry" with {"session_id": "s", "entry": {"kind": "message", "id": "a", "timestamp": 1, "message": "<user:a>"}}
    When I call "session::store::set-active-leaf" with {"session_id": "s", "entry_id": "c"}
    Then it answers exactly {"ok": true}
    And no event fired
    And the transcript of "s" is "a", "b", "c"
    And reading "session::store::list-entries" with {"session_id": "s"} answers {"entries": [{"id": "a"}, {"id": "b"}, {"id": "c"}]}

  # Prevents: a cycle of parents, which raw writes can make, hanging a reader.
  Scenario: A cycle of parents ends a path
    Given a session "s"
    And I called "session::store::put-entry" with {"session_id": "s", "entry": {"kind": "message", "id": "a", "parent_id": "b", "timestamp": 1, "message": "<user:a>"}}
    And I called "session::store::put-entry" with {"session_id": "s", "entry": {"kind": "message", "id": "b", "parent_id": "a", "timestamp": 2, "message": "<user:b>"}}
    When I call "session::store::set-active-leaf" with {"session_id": "s", "entry_id": "b"}
    Then it answers exactly {"ok": true}
    And no event fired
    And the transcript of "s" is "a", "b"

  # Prevents: an unknown entry being an error.
  Scenario: An unknown entry is null
    Given a session "s"
    When I call "session::store::get-entry" with {"session_id": "s", "entry_id": "a"}
    Then it answers null
    And no event fired
    And nothing changed

  # Prevents: a child being listed before its parent.
  Scenario: Entries are listed parents first
    Given a session "s"
    And "s" holds the messages "z", "y", "x"
    And I called "session::append" with {"session_id": "s", "entry_id": "a", "parent_id": "z", "custom": {"custom_type": "mark"}}
    When I call "session::store::list-entries" with {"session_id": "s"}
    Then it answers {"entries": [{"id": "z"}, {"id": "a", "kind": "custom"}, {"id": "y"}, {"id": "x"}]}
    And no event fired
    And nothing changed

  # Prevents: an unknown session being an error.
  Scenario: An unknown session has no entries
    When I call "session::store::list-entries" with {"session_id": "nobody"}
    Then it answers exactly {"entries": []}
    And no event fired
    And nothing changed

  # Prevents: a session missing from what a bridge reads at its start.
  Scenario: All metas are listed
    Given a session "b"
    And a session "a"
    When I call "session::store::list-metas" with {}
    Then it answers {"metas": [{"session_id": "b"}, {"session_id": "a"}]}
    And no event fired
    And nothing changed

  # Prevents: the raw leaf differing from the active leaf.
  Scenario: The raw leaf is the active leaf
    Given a session "s"
    And "s" holds the messages "a", "b"
    When I call "session::store::set-active-leaf" with {"session_id": "s", "entry_id": "a"}
    Then it answers exactly {"ok": true}
    And no event fired
    And reading "session::store::get-active-leaf" with {"session_id": "s"} answers {"entry_id": "a"}
    And the transcript of "s" is "a"

  # Prevents: a cleared leaf not changing the transcript.
  Scenario: A cleared leaf empties the transcript and keeps the entries
    Given a session "s"
    And "s" holds the messages "a", "b"
    When I call "session::store::delete-active-leaf" with {"session_id": "s"}
    Then it answers exactly {"ok": true}
    And no event fired
    And the transcript of "s" is empty
    And reading "session::store::get-active-leaf" with {"session_id": "s"} answers {"entry_id": "<absent>"}
    And reading "session::get-message" with {"session_id": "s", "entry_id": "b"} answers {"entry": {"id": "b"}}

  # Prevents: the raw delete of a meta deleting the entries, which the bridge deletes itself.
  Scenario: A raw meta is deleted alone
    Given a session "s" with {"metadata": {"team": "a"}}
    And "s" holds the messages "a"
    When I call "session::store::delete-meta" with {"session_id": "s"}
    Then it answers exactly {"ok": true}
    And no event fired
    And reading "session::get" with {"session_id": "s"} answers null
    And reading "session::list" with {"metadata": {"team": "a"}} answers {"sessions": []}
    And reading "session::store::list-entries" with {"session_id": "s"} answers {"entries": [{"id": "a"}]}

  # Prevents: the raw delete of entries deleting the meta, or another session's entries.
  Scenario: Raw entries are deleted alone
    Given a session "s"
    And a session "s2"
    And "s" holds the messages "a"
    And "s2" holds the messages "a"
    When I call "session::store::delete-entries" with {"session_id": "s"}
    Then it answers exactly {"ok": true}
    And no event fired
    And reading "session::store::list-entries" with {"session_id": "s"} answers {"entries": []}
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"message_count": 1}}
    And the transcript of "s2" is "a"

  # Prevents: a session with deleted entries refusing appends.
  Scenario: An append to a deleted leaf starts a new root
    Given a session "s"
    And "s" holds the messages "a"
    And I called "session::store::delete-entries" with {"session_id": "s"}
    When I call "session::append" with {"session_id": "s", "entry_id": "b", "message": "<user:b>"}
    Then it answers {"entry_id": "b", "parent_id": "<absent>"}
    And these events fired:
      | session::message-added | {"entry_id": "b", "parent_id": "<absent>"} |
    And the transcript of "s" is "b"

  # Prevents: subscribers at the main missing events of an edge, or receiving them changed.
  Scenario: Published events are delivered unchanged
    When I call "session::store::publish-events" with:
      """
      {"events": [
        {"trigger_type": "session::created", "payload": {"session_id": "e", "title": "T", "anything": [1]}, "session_metadata": {"team": "a"}},
        {"trigger_type": "session::message-added", "payload": {"session_id": "e", "entry_id": "x", "message": "<user:x>"}}
      ]}
      """
    Then it answers exactly {"published": 2}
    And these events fired:
      | session::created       | {"session_id": "e", "title": "T", "anything": [1]} |
      | session::message-added | {"session_id": "e", "entry_id": "x", "message": "<user:x>"} |
    And reading "session::get" with {"session_id": "e"} answers null

  # Prevents: one malformed envelope costing subscribers the well-formed ones beside it.
  Scenario: Malformed envelopes are skipped and the others are delivered
    When I call "session::store::publish-events" with:
      """
      {"events": [
        {"trigger_type": "session::vanished", "payload": {"session_id": "e"}},
        {"trigger_type": "session::created", "payload": {"session_id": "e"}},
        {"payload": {"session_id": "e"}},
        7,
        {"trigger_type": "session::message-added", "payload": {"session_id": "e", "message": {"role": "robot"}}},
        {"trigger_type": "session::deleted", "payload": {"session_id": "e"}}
      ]}
      """
    Then it answers exactly {"published": 2}
    And these events fired:
      | session::created | {"session_id": "e"} |
      | session::deleted | {"session_id": "e"} |
    And reading "session::get" with {"session_id": "e"} answers null

  # Prevents: an event without a session, which has no order.
  Scenario: An event without a session is skipped
    When I call "session::store::publish-events" with {"events": [{"trigger_type": "session::created", "payload": {"title": "x"}}]}
    Then it answers exactly {"published": 0}
    And no event fired
    And nothing changed

  # Prevents: an empty batch being an error.
  Scenario: An empty batch of events is accepted
    When I call "session::store::publish-events" with {"events": []}
    Then it answers exactly {"published": 0}
    And no event fired
    And nothing changed

  # Prevents: a node without the data serving it, or a bridge connected to a bridge.
  Scenario: A node that does not hold the data refuses the raw protocol
    Given a session "s"
    And the node does not hold the data
    When I call "session::store::delete-meta" with {"session_id": "s"}
    Then it fails with "session/invalid_request", saying "store"
    And no event fired
    And reading "session::store::get-meta" with {"session_id": "s"} fails with "session/invalid_request"
    And reading "session::store::list-metas" with {} fails with "session/invalid_request"
    And nothing changed

  # Prevents: extreme raw numbers overflowing when the node adds one to them.
  Scenario: Counters at their maximum neither wrap nor crash
    Given I called "session::store::put-meta" with {"meta": {"session_id": "s", "title": "", "description": "", "status": "idle", "message_count": 18446744073709551615, "created_at": 1, "updated_at": 1}}
    And I called "session::store::put-entry" with {"session_id": "s", "entry": {"kind": "message", "id": "a", "timestamp": 1, "revision": 18446744073709551615, "message": "<user:a>"}}
    And I called "session::append" with {"session_id": "s", "entry_id": "b", "message": "<user:b>"}
    When I call "session::update-message" with {"session_id": "s", "entry_id": "a", "content": "<content:x>"}
    Then it fails with "session/invalid_request", saying "revision"
    And no event fired
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"message_count": 18446744073709551615}}
    And nothing changed
