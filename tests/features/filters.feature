Feature: Subscribers receive the events that match their filters, and no others

  # Prevents: a subscriber of one event type receiving others.
  Scenario: Every trigger type delivers its own events
    Given Ann subscribes to "session::created" with {}
    And Ben subscribes to "session::message-added" with {}
    And Cat subscribes to "session::message-updated" with {}
    And Dan subscribes to "session::status-changed" with {}
    And Eva subscribes to "session::meta-updated" with {}
    And Fay subscribes to "session::deleted" with {}
    And a session "s"
    And "s" holds the messages "a"
    And I called "session::update-message" with {"session_id": "s", "entry_id": "a", "content": "<content:x>"}
    And I called "session::set-status" with {"session_id": "s", "status": "done"}
    And I called "session::set-meta" with {"session_id": "s", "title": "T"}
    When I call "session::delete" with {"session_id": "s"}
    Then it answers {"deleted": true}
    And these events fired:
      | session::deleted | {"session_id": "s"} |
    And Ann receives:
      | {"session_id": "s", "status": "idle"} |
    And Ben receives:
      | {"session_id": "s", "entry_id": "a", "message": "<user:a>"} |
    And Cat receives:
      | {"session_id": "s", "entry_id": "a", "revision": 1} |
    And Dan receives:
      | {"session_id": "s", "status": "done", "previous_status": "idle"} |
    And Eva receives:
      | {"session_id": "s", "title": "T"} |
    And Fay receives:
      | {"session_id": "s"} |
    And reading "session::get" with {"session_id": "s"} answers null

  # Prevents: a subscriber of one session receiving events of all sessions.
  Scenario: Only one session
    Given a session "s"
    And a session "s2"
    And Ann subscribes to "session::message-added" with {"session_id": "s"}
    And "s" holds the messages "a"
    When I call "session::append" with {"session_id": "s2", "entry_id": "b", "message": "<user:b>"}
    Then it answers {"entry_id": "b"}
    And these events fired:
      | session::message-added | {"session_id": "s2"} |
    And Ann receives:
      | {"session_id": "s", "entry_id": "a"} |
    And the transcript of "s2" is "b"

  # Prevents: a subscriber having to wait until a session exists.
  Scenario: A subscription may name a session that does not exist yet
    Given Ann subscribes to "session::message-added" with {"session_id": "later"}
    And a session "later"
    When I call "session::append" with {"session_id": "later", "entry_id": "a", "message": "<user:a>"}
    Then it answers {"entry_id": "a"}
    And 1 "session::message-added" event fired and no other
    And Ann receives:
      | {"session_id": "later", "entry_id": "a"} |
    And the transcript of "later" is "a"

  # Prevents: an agent receiving its own messages.
  Scenario: Only some roles
    Given a session "s"
    And Ann subscribes to "session::message-added" with {"roles": ["user", "custom"]}
    When I call "session::append-many" with {"session_id": "s", "messages": ["<user:1>", "<assistant:2>", "<result:3>", "<note:4>"]}
    Then it answers {"entry_ids": ["<1>", "<2>", "<3>", "<4>"]}
    And 4 "session::message-added" events fired and no other
    And Ann receives:
      | {"entry_id": "<1>", "message": {"role": "user"}} |
      | {"entry_id": "<4>", "message": {"role": "custom"}} |
    And the transcript of "s" is "<1>", "<2>", "<3>", "<4>"

  # Prevents: custom entries, which have no role, matching the role custom.
  Scenario: A custom entry never matches a role
    Given a session "s"
    And Ann subscribes to "session::message-added" with {"roles": ["user", "assistant", "function_result", "custom"]}
    And Ben subscribes to "session::message-added" with {}
    When I call "session::append" with {"session_id": "s", "entry_id": "c", "custom": {"custom_type": "mark"}}
    Then it answers {"entry_id": "c"}
    And 1 "session::message-added" event fired and no other
    And Ann receives nothing
    And Ben receives:
      | {"entry_id": "c", "custom": {"custom_type": "mark"}} |
    And the transcript of "s" is "c"

  # Prevents: updates of one role being delivered to subscribers of another.
  Scenario: Roles apply to updates too
    Given a session "s"
    And "s" holds the messages "u"
    And I called "session::append" with {"session_id": "s", "entry_id": "a", "message": "<assistant:a>"}
    And Ann subscribes to "session::message-updated" with {"roles": ["assistant"]}
    And I called "session::update-message" with {"session_id": "s", "entry_id": "u", "content": "<content:x>"}
    When I call "session::update-message" with {"session_id": "s", "entry_id": "a", "content": "<content:y>"}
    Then it answers {"updated": true}
    And 1 "session::message-updated" event fired and no other
    And Ann receives:
      | {"entry_id": "a", "message": "<assistant:y>"} |
    And reading "session::get-message" with {"session_id": "s", "entry_id": "a"} answers {"entry": {"revision": 1}}

  # Prevents: one tenant receiving another's events.
  Scenario: Only sessions whose metadata matches
    Given a session "a" with {"metadata": {"tenant": "acme", "n": 1}}
    And a session "b" with {"metadata": {"tenant": "beta"}}
    And a session "none"
    And Ann subscribes to "session::status-changed" with {"metadata": {"tenant": "acme"}}
    And I called "session::set-status" with {"session_id": "a", "status": "working"}
    And I called "session::set-status" with {"session_id": "b", "status": "working"}
    When I call "session::set-status" with {"session_id": "none", "status": "working"}
    Then it answers {"status": "working"}
    And 1 "session::status-changed" event fired and no other
    And Ann receives:
      | {"session_id": "a"} |
    And reading "session::list" with {"status": "working", "order": "created_asc"} answers {"sessions": [{"session_id": "a"}, {"session_id": "b"}, {"session_id": "none"}]}

  # Prevents: a metadata filter that ignores nested values.
  Scenario: Every key of the filter must be deeply equal
    Given a session "a" with {"metadata": {"v": {"x": [1, {"y": null}]}, "w": 1}}
    And Ann subscribes to "session::meta-updated" with {"metadata": {"v": {"x": [1, {"y": null}]}}}
    And Ben subscribes to "session::meta-updated" with {"metadata": {"v": {"x": [1]}}}
    And Cat subscribes to "session::meta-updated" with {"metadata": {"v": {"x": [1, {"y": null}]}, "w": "1"}}
    When I call "session::set-meta" with {"session_id": "a", "title": "T"}
    Then it answers {"meta": {"title": "T"}}
    And 1 "session::meta-updated" event fired and no other
    And Ann receives:
      | {"session_id": "a", "title": "T"} |
    And Ben receives nothing
    And Cat receives nothing
    And reading "session::get" with {"session_id": "a"} answers {"meta": {"title": "T"}}

  # Prevents: an empty filter excluding sessions without metadata.
  Scenario: An empty metadata filter matches everything
    Given Ann subscribes to "session::created" with {"metadata": {}}
    And a session "a" with {"metadata": {"v": 1}}
    When I call "session::ensure" with {"session_id": "b"}
    Then it answers {"created": true}
    And 1 "session::created" event fired and no other
    And Ann receives:
      | {"session_id": "a"} |
      | {"session_id": "b"} |
    And reading "session::get" with {"session_id": "b"} answers {"meta": {"metadata": "<absent>"}}

  # Prevents: a filter on metadata matching sessions that have none.
  Scenario: A metadata filter does not match a session without metadata
    Given a session "none"
    And Ann subscribes to "session::message-added" with {"metadata": {"v": null}}
    When I call "session::append" with {"session_id": "none", "entry_id": "a", "message": "<user:a>"}
    Then it answers {"entry_id": "a"}
    And 1 "session::message-added" event fired and no other
    And Ann receives nothing
    And the transcript of "none" is "a"

  # Prevents: a subscriber missing the update that makes a session match.
  Scenario: Meta-updated is matched by the metadata after the update
    Given a session "s" with {"metadata": {"team": "a"}}
    And Ann subscribes to "session::meta-updated" with {"metadata": {"team": "a"}}
    And Ben subscribes to "session::meta-updated" with {"metadata": {"team": "b"}}
    When I call "session::set-meta" with {"session_id": "s", "metadata": {"team": "b"}}
    Then it answers {"meta": {"metadata": {"team": "b"}}}
    And 1 "session::meta-updated" event fired and no other
    And Ann receives nothing
    And Ben receives:
      | {"session_id": "s", "metadata": {"team": "b"}} |
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"metadata": {"team": "b"}}}

  # Prevents: a deletion that cannot be filtered because the metadata is deleted too.
  Scenario: Deleted is matched by the metadata as of the deletion
    Given a session "s" with {"metadata": {"team": "a"}}
    And Ann subscribes to "session::deleted" with {"metadata": {"team": "a"}}
    And Ben subscribes to "session::deleted" with {"metadata": {"team": "b"}}
    When I call "session::delete" with {"session_id": "s"}
    Then it answers {"deleted": true}
    And 1 "session::deleted" event fired and no other
    And Ann receives:
      | {"session_id": "s", "timestamp": "<any>"} |
    And Ben receives nothing
    And reading "session::get" with {"session_id": "s"} answers null

  # Prevents: a fork whose event does not reach its tenant.
  Scenario: A fork is announced with the metadata it inherited
    Given a session "s" with {"metadata": {"team": "a"}}
    And "s" holds the messages "m"
    And Ann subscribes to "session::created" with {"metadata": {"team": "a"}}
    When I call "session::fork" with {"session_id": "s", "entry_id": "m"}
    Then it answers {"session_id": "<f>"}
    And 1 "session::created" event fired and no other
    And Ann receives:
      | {"session_id": "<f>", "forked_from": "s"} |
    And reading "session::get" with {"session_id": "<f>"} answers {"meta": {"metadata": {"team": "a"}}}

  # Prevents: filters being combined by or.
  Scenario: All given filters must match
    Given a session "s" with {"metadata": {"team": "a"}}
    And a session "t" with {"metadata": {"team": "a"}}
    And Ann subscribes to "session::message-added" with {"session_id": "s", "roles": ["user"], "metadata": {"team": "a"}}
    And I called "session::append" with {"session_id": "s", "entry_id": "1", "message": "<assistant:1>"}
    And I called "session::append" with {"session_id": "t", "entry_id": "2", "message": "<user:2>"}
    And I called "session::append" with {"session_id": "s", "entry_id": "3", "message": "<user:3>"}
    And I called "session::set-meta" with {"session_id": "s", "metadata": {"team": "b"}}
    When I call "session::append" with {"session_id": "s", "entry_id": "4", "message": "<user:4>"}
    Then it answers {"entry_id": "4"}
    And 1 "session::message-added" event fired and no other
    And Ann receives:
      | {"session_id": "s", "entry_id": "3"} |
    And the transcript of "s" is "1", "3", "4"

  # Prevents: two bindings of one function being merged into one delivery.
  Scenario: Every matching binding gets its own delivery
    Given a session "s"
    And Ann subscribes to "session::message-added" with {}
    And Ann subscribes to "session::message-added" with {"session_id": "s"}
    And Ann subscribes to "session::message-added" with {"roles": ["user"]}
    When I call "session::append" with {"session_id": "s", "entry_id": "a", "message": "<user:a>"}
    Then it answers {"entry_id": "a"}
    And 1 "session::message-added" event fired and no other
    And Ann receives:
      | {"entry_id": "a"} |
      | {"entry_id": "a"} |
      | {"entry_id": "a"} |
    And the transcript of "s" is "a"

  # Prevents: events of a session being delivered in another order than they were committed.
  Scenario: Events of a session are delivered in commit order, numbered without gaps
    Given a session "s"
    And Ann subscribes to "session::message-added" with {"session_id": "s"}
    And "s" holds the messages "a", "b"
    When I call "session::append" with {"session_id": "s", "entry_id": "c", "message": "<user:c>"}
    Then it answers {"entry_id": "c"}
    And 1 "session::message-added" event fired and no other
    And Ann receives, with the sidecar:
      | {"entry_id": "a"} | {"session-manager": {"position": "<p1>", "seq": 2}} |
      | {"entry_id": "b"} | {"session-manager": {"position": "<p2>", "seq": 3}} |
      | {"entry_id": "c"} | {"session-manager": {"position": "<p3>", "seq": 4}} |
    And "<p1>" and "<p2>" are different
    And "<p2>" and "<p3>" are different
    And the transcript of "s" is "a", "b", "c"

  # Prevents: a call that changed nothing or failed firing an event.
  Scenario: No-ops and refusals fire no event
    Given a session "s"
    And "s" holds the messages "a"
    And Ann subscribes to "session::message-added" with {}
    And Ben subscribes to "session::message-updated" with {}
    And I called "session::append" with {"session_id": "s", "entry_id": "a", "message": "<user:again>"}
    And I called "session::update-message" with {"session_id": "s", "entry_id": "a", "content": [], "expected_revision": 5}
    When I call "session::append" with {"session_id": "s", "parent_id": "nowhere", "message": "<user:x>"}
    Then it fails with "session/parent_not_found"
    And no event fired
    And Ann receives nothing
    And Ben receives nothing
    And nothing changed

  # Prevents: events of an edge not being filtered at the main.
  Scenario: Published events are filtered by the metadata they carry
    Given Ann subscribes to "session::message-added" with {"metadata": {"team": "a"}, "roles": ["user"]}
    When I call "session::store::publish-events" with:
      """
      {"events": [
        {"trigger_type": "session::message-added", "payload": {"session_id": "e", "entry_id": "1", "message": "<user:1>"}, "session_metadata": {"team": "a"}},
        {"trigger_type": "session::message-added", "payload": {"session_id": "e", "entry_id": "2", "message": "<user:2>"}, "session_metadata": {"team": "b"}},
        {"trigger_type": "session::message-added", "payload": {"session_id": "e", "entry_id": "3", "message": "<assistant:3>"}, "session_metadata": {"team": "a"}},
        {"trigger_type": "session::message-added", "payload": {"session_id": "e", "entry_id": "4", "message": "<user:4>"}}
      ]}
      """
    Then it answers {"published": 4}
    And 4 "session::message-added" events fired and no other
    And Ann receives:
      | {"session_id": "e", "entry_id": "1"} |
    And reading "session::get" with {"session_id": "e"} answers null

  # Prevents: bridges missing an event type, or the metadata for their own filters.
  Scenario: The internal feed carries everything in envelopes
    Given Bob subscribes to "session::store::events" with null
    And a session "s" with {"metadata": {"team": "a"}}
    And a session "t"
    When I call "session::delete" with {"session_id": "s"}
    Then it answers {"deleted": true}
    And 1 "session::deleted" event fired and no other
    And Bob receives:
      | {"trigger_type": "session::created", "payload": {"session_id": "s"}, "session_metadata": {"team": "a"}} |
      | {"trigger_type": "session::created", "payload": {"session_id": "t"}, "session_metadata": "<absent>"} |
      | {"trigger_type": "session::deleted", "payload": {"session_id": "s"}, "session_metadata": {"team": "a"}} |
    And reading "session::get" with {"session_id": "s"} answers null

  # Prevents: no config at all being refused.
  Scenario: A null config asks for everything
    When Ann tries to subscribe to "session::created" with null
    Then the subscription is accepted
    And no event fired
    And nothing changed

  # Prevents: a mistyped filter being ignored, so that the subscriber receives everything.
  Scenario: An unknown key is refused by name
    When Ann tries to subscribe to "session::message-added" with {"session": "s"}
    Then the subscription is refused, naming "session"
    And no event fired
    And nothing changed

  # Prevents: a roles filter where no role will ever be.
  Scenario: Roles on an event without a message are refused
    When Ann tries to subscribe to "session::status-changed" with {"roles": ["user"]}
    Then the subscription is refused, naming "roles"
    And no event fired
    And nothing changed

  # Prevents: a filter by session id on created events, whose ids are not known before.
  Scenario: A session id on created is refused
    When Ann tries to subscribe to "session::created" with {"session_id": "s"}
    Then the subscription is refused, naming "session_id"
    And no event fired
    And nothing changed

  # Prevents: a filter with a role that does not exist.
  Scenario: An invalid role is refused
    When Ann tries to subscribe to "session::message-updated" with {"roles": ["user", "system"]}
    Then the subscription is refused, naming "system"
    And no event fired
    And nothing changed

  # Prevents: a metadata filter that cannot be compared.
  Scenario: Metadata that is not an object is refused
    When Ann tries to subscribe to "session::deleted" with {"metadata": "team"}
    Then the subscription is refused, naming "metadata"
    And no event fired
    And nothing changed

  # Prevents: filters on the internal feed, which bridges need complete.
  Scenario: The internal feed takes no filters
    When Bob tries to subscribe to "session::store::events" with {"session_id": "s"}
    Then the subscription is refused, naming "session_id"
    And no event fired
    And nothing changed
