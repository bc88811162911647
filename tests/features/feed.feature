Feature: A binding with a position receives the later events, then live ones

  # Prevents: a client that was disconnected for a moment missing events.
  Scenario: A binding with a position receives what it missed, then live events
    Given a session "s"
    And Ann subscribes to "session::message-added" with {}
    And "s" holds the messages "a", "b", "c"
    And Ann received up to "<p>":
      | {"entry_id": "a"} | {"session-manager": {"position": "<p>", "seq": 2}} |
      | {"entry_id": "b"} | {"session-manager": {"position": "<p2>", "seq": 3}} |
      | {"entry_id": "c"} | {"session-manager": {"position": "<p3>", "seq": 4}} |
    When Ben binds "session::message-added" with {}, metadata {"session-manager": {"after": "<p>"}}
    And I call "session::append" with {"session_id": "s", "entry_id": "d", "message": "<user:d>"}
    Then the subscription is accepted
    And it answers {"entry_id": "d"}
    And 1 "session::message-added" event fired and no other
    And Ben receives, with the sidecar:
      | {"entry_id": "b", "message": "<user:b>"} | {"session-manager": {"position": "<p2>", "seq": 3}} |
      | {"entry_id": "c", "message": "<user:c>"} | {"session-manager": {"position": "<p3>", "seq": 4}} |
      | {"entry_id": "d", "message": "<user:d>"} | {"session-manager": {"position": "<p4>", "seq": 5}} |
    And Ann receives, with the sidecar:
      | {"entry_id": "d"} | {"session-manager": {"position": "<p4>", "seq": 5}} |
    And the transcript of "s" is "a", "b", "c", "d"

  # Prevents: position and sequence number being added to payloads, or the client's own metadata being dropped.
  Scenario: Position and sequence number are in the sidecar, with the binding's own metadata
    Given a session "s"
    And "s" holds the messages "a"
    When Ann binds "session::message-added" with {}, metadata {"tenant": "t", "session-manager": {"after": "oldest"}}
    Then the subscription is accepted
    And no event fired
    And Ann receives exactly:
      | {"session_id": "s", "entry_id": "a", "parent_id": null, "message": "<user:a>", "timestamp": "<t>"} | {"tenant": "t", "session-manager": {"position": "<p>", "seq": 2}} |
    And the transcript of "s" is "a"

  # Prevents: gaps in the sequence that a client would take for lost events.
  Scenario: The sequence of a session is dense over all its events
    Given Ann subscribes to "session::created" with {}
    And Ann subscribes to "session::message-added" with {}
    And Ann subscribes to "session::message-updated" with {}
    And Ann subscribes to "session::status-changed" with {}
    And Ann subscribes to "session::meta-updated" with {}
    And a session "s"
    And a session "other"
    And "s" holds the messages "a"
    And I called "session::set-status" with {"session_id": "s", "status": "working"}
    And I called "session::update-message" with {"session_id": "s", "entry_id": "a", "content": "<content:x>"}
    When I call "session::set-meta" with {"session_id": "s", "title": "T"}
    Then it answers {}
    And 1 "session::meta-updated" event fired and no other
    And Ann receives, with the sidecar:
      | {"session_id": "s", "status": "idle"}           | {"session-manager": {"position": "<p1>", "seq": 1}} |
      | {"session_id": "other", "status": "idle"}       | {"session-manager": {"position": "<p2>", "seq": 1}} |
      | {"session_id": "s", "entry_id": "a"}            | {"session-manager": {"position": "<p3>", "seq": 2}} |
      | {"session_id": "s", "status": "working"}        | {"session-manager": {"position": "<p4>", "seq": 3}} |
      | {"session_id": "s", "entry_id": "a", "revision": 1} | {"session-manager": {"position": "<p5>", "seq": 4}} |
      | {"session_id": "s", "title": "T"}               | {"session-manager": {"position": "<p6>", "seq": 5}} |
    And "<p1>" and "<p2>" are different
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"title": "T"}}

  # Prevents: one of two bindings of a function suppressing deliveries of the other.
  Scenario: Several bindings to one function each get their own delivery, resumed or live
    Given a session "s"
    And "s" holds the messages "a"
    When Ann binds "session::message-added" with {}, metadata {"which": 1, "session-manager": {"after": "oldest"}}
    And Ann binds "session::message-added" with {"session_id": "s"}, metadata {"which": 2, "session-manager": {"after": "oldest"}}
    And Ann binds "session::message-added" with {"roles": ["assistant"]}, metadata {"which": 3, "session-manager": {"after": "oldest"}}
    And I call "session::append" with {"session_id": "s", "entry_id": "b", "message": "<user:b>"}
    Then it answers {"entry_id": "b"}
    And 1 "session::message-added" event fired and no other
    And Ann receives, in any order:
      | {"entry_id": "a"} | {"which": 1, "session-manager": {"position": "<pa>", "seq": 2}} |
      | {"entry_id": "a"} | {"which": 2, "session-manager": {"position": "<pa>", "seq": 2}} |
      | {"entry_id": "b"} | {"which": 1, "session-manager": {"position": "<pb>", "seq": 3}} |
      | {"entry_id": "b"} | {"which": 2, "session-manager": {"position": "<pb>", "seq": 3}} |
    And the transcript of "s" is "a", "b"

  # Prevents: a resumed subscriber receiving events that its filters exclude.
  Scenario: Filters apply to resumed events too
    Given a session "s" with {"metadata": {"tenant": "a"}}
    And a session "t" with {"metadata": {"tenant": "b"}}
    And "s" holds the messages "s1"
    And "t" holds the messages "t1"
    And I called "session::append" with {"session_id": "t", "entry_id": "t2", "message": "<assistant:2>"}
    When Ann binds "session::message-added" with {"session_id": "s"}, metadata {"session-manager": {"after": "oldest"}}
    And Ben binds "session::message-added" with {"roles": ["assistant"]}, metadata {"session-manager": {"after": "oldest"}}
    And Cat binds "session::message-added" with {"metadata": {"tenant": "b"}}, metadata {"session-manager": {"after": "oldest"}}
    And Dan binds "session::created" with {}, metadata {"session-manager": {"after": "oldest"}}
    Then the subscription is accepted
    And no event fired
    And Ann receives:
      | {"entry_id": "s1"} |
    And Ben receives:
      | {"entry_id": "t2"} |
    And Cat receives:
      | {"entry_id": "t1"} |
      | {"entry_id": "t2"} |
    And Dan receives:
      | {"session_id": "s"} |
      | {"session_id": "t"} |
    And the transcript of "t" is "t1", "t2"

  @kept-feed
  # Prevents: a client that was away for a moment missing updates that are still in memory.
  Scenario: Recent updates of a message are all resumed
    Given a session "s"
    And "s" holds the messages "a"
    And I called "session::update-message" with {"session_id": "s", "entry_id": "a", "content": "<content:x>"}
    And I called "session::update-message" with {"session_id": "s", "entry_id": "a", "content": "<content:xy>"}
    When Ann binds "session::message-updated" with {}, metadata {"session-manager": {"after": "oldest"}}
    Then the subscription is accepted
    And no event fired
    And Ann receives, with the sidecar:
      | {"entry_id": "a", "revision": 1} | {"session-manager": {"position": "<p>", "seq": 3}} |
      | {"entry_id": "a", "revision": 2} | {"session-manager": {"position": "<q>", "seq": 4}} |
    And reading "session::get-message" with {"session_id": "s", "entry_id": "a"} answers {"entry": {"revision": 2}}

  @durable @sled
  # Prevents: a late client receiving every update of a streamed answer again, or missing the last one.
  Scenario: Of several updates from before a restart only the last one is resumed
    Given a session "s"
    And "s" holds the messages "a"
    And I called "session::update-message" with {"session_id": "s", "entry_id": "a", "content": "<content:x>"}
    And I called "session::update-message" with {"session_id": "s", "entry_id": "a", "content": "<content:xy>"}
    And the node has restarted
    When Ann binds "session::message-updated" with {}, metadata {"session-manager": {"after": "oldest"}}
    Then the subscription is accepted
    And no event fired
    And Ann receives, with the sidecar:
      | {"entry_id": "a", "revision": 2} | {"session-manager": {"position": "<p>", "seq": 4, "skipped": {"first": 3, "last": 3}}} |
    And reading "session::get-message" with {"session_id": "s", "entry_id": "a"} answers {"entry": {"revision": 2}}

  @kept-feed
  # Prevents: events being dropped without an error.
  Scenario: A position before the kept events is refused with the oldest one
    Given a session "s"
    And Ann subscribes to "session::message-added" with {}
    And "s" holds the messages "a", "b", "c"
    And Ann received up to "<edge>":
      | {"entry_id": "a"} | {"session-manager": {"position": "<old>", "seq": 2}}  |
      | {"entry_id": "b"} | {"session-manager": {"position": "<edge>", "seq": 3}} |
      | {"entry_id": "c"} | {"session-manager": {"position": "<new>", "seq": 4}}  |
    And the feed is trimmed up to "<edge>"
    When Ben binds "session::message-added" with {}, metadata {"session-manager": {"after": "<old>"}}
    Then the subscription is refused, naming "compacted: cannot resume after <old>, the oldest is <edge>"
    And no event fired
    And nothing changed

  @kept-feed
  # Prevents: the oldest kept position being refused, or its event being delivered twice.
  Scenario: The oldest kept position can be resumed
    Given a session "s"
    And Ann subscribes to "session::message-added" with {}
    And "s" holds the messages "a", "b", "c"
    And Ann received up to "<edge>":
      | {"entry_id": "a"} | {"session-manager": {"position": "<old>", "seq": 2}}  |
      | {"entry_id": "b"} | {"session-manager": {"position": "<edge>", "seq": 3}} |
      | {"entry_id": "c"} | {"session-manager": {"position": "<new>", "seq": 4}}  |
    And the feed is trimmed up to "<edge>"
    When Ben binds "session::message-added" with {}, metadata {"session-manager": {"after": "<edge>"}}
    And Cat binds "session::message-added" with {}, metadata {"session-manager": {"after": "oldest"}}
    Then the subscription is accepted
    And no event fired
    And Ben receives:
      | {"entry_id": "c"} |
    And Cat receives:
      | {"entry_id": "c"} |
    And the transcript of "s" is "a", "b", "c"

  # Prevents: a position of another cluster being resumed.
  Scenario: A position of another cluster is refused by its name
    Given a session "s"
    When Ann binds "session::deleted" with {}, metadata {"session-manager": {"after": "elsewhere.0.1.0"}}
    Then the subscription is refused, naming "`metadata.session-manager.after`: position `elsewhere.0.1.0` belongs to cluster `elsewhere`"
    And no event fired
    And nothing changed

  @kept-feed
  # Prevents: a subscriber waiting without an error for a position that does not exist yet.
  Scenario: A position of the future is refused by its name
    Given a session "s"
    When Ann binds "session::deleted" with {}, metadata {"session-manager": {"after": "node.0.9000000000000000000.0"}}
    Then the subscription is refused, naming "position `node.0.9000000000000000000.0` is from the future: the newest here is"
    And no event fired
    And nothing changed

  # Prevents: an invalid position being treated as "from now on", which loses events.
  Scenario Outline: An invalid position is refused by its name
    Given a session "s"
    When Ann binds "session::deleted" with {}, metadata <metadata>
    Then the subscription is refused, naming "<words>"
    And no event fired
    And nothing changed

    Examples:
      | metadata                                                      | words                                                         |
      | {"session-manager": {"after": "garbage"}}                     | `metadata.session-manager.after`: `garbage` is not a position |
      | {"session-manager": {"after": ""}}                            | `` is not a position                                          |
      | {"session-manager": {"after": "node.0.-1.0"}}                 | `node.0.-1.0` is not a position                               |
      | {"session-manager": {"after": "node.0.99999999999999999999.0"}} | is not a position                                           |
      | {"session-manager": {"after": 7}}                             | `metadata.session-manager.after` must be a string             |
      | {"session-manager": "oldest"}                                 | `metadata.session-manager` must be an object                  |
      | {"session-manager": {"aftr": "oldest"}}                       | `metadata.session-manager.aftr` is not known                  |
      | {"session-manager": {"after": "node.7.1.0"}}                  | belongs to group 7                                            |

  @durable @sled
  # Prevents: events being lost in a restart.
  Scenario: Events from before a restart are resumed with their positions
    Given a session "s"
    And Ann subscribes to "session::message-added" with {}
    And "s" holds the messages "a", "b"
    And Ann received up to "<p>":
      | {"entry_id": "a"} | {"session-manager": {"position": "<p>", "seq": 2}}  |
      | {"entry_id": "b"} | {"session-manager": {"position": "<p2>", "seq": 3}} |
    And the node has restarted
    When Ben binds "session::message-added" with {}, metadata {"session-manager": {"after": "<p>"}}
    And I call "session::append" with {"session_id": "s", "entry_id": "c", "message": "<user:c>"}
    Then it answers {"entry_id": "c"}
    And 1 "session::message-added" event fired and no other
    And Ben receives, with the sidecar:
      | {"entry_id": "b"} | {"session-manager": {"position": "<p2>", "seq": 3}} |
      | {"entry_id": "c"} | {"session-manager": {"position": "<p3>", "seq": 4}} |
    And the transcript of "s" is "a", "b", "c"

  @durable @jsonl
  # Prevents: a store without a kept feed dropping events of earlier processes without an error.
  Scenario: The fs adapter keeps no feed across restarts, and refuses older positions
    Given a session "s"
    And Ann subscribes to "session::message-added" with {}
    And "s" holds the messages "a"
    And Ann received up to "<p>":
      | {"entry_id": "a"} | {"session-manager": {"position": "<p>", "seq": 2}} |
    And the node has restarted
    When Ben binds "session::message-added" with {}, metadata {"session-manager": {"after": "<p>"}}
    Then the subscription is refused, naming "compacted: cannot resume after <p>, the oldest is"
    And no event fired
    And nothing changed

  @durable @sled
  # Prevents: events of a deleted session being delivered as if it existed, or its deletion being missed.
  Scenario: Of a session deleted before a restart only the deletion is resumed
    Given a session "s" with {"metadata": {"tenant": "a"}}
    And "s" holds the messages "a"
    And I called "session::delete" with {"session_id": "s"}
    And the node has restarted
    When Ann binds "session::message-added" with {}, metadata {"session-manager": {"after": "oldest"}}
    And Ben binds "session::deleted" with {"metadata": {"tenant": "a"}}, metadata {"session-manager": {"after": "oldest"}}
    And Cat binds "session::store::events" with {}, metadata {"session-manager": {"after": "oldest"}}
    Then the subscription is accepted
    And no event fired
    And Ann receives nothing
    And Ben receives, with the sidecar:
      | {"session_id": "s"} | {"session-manager": {"position": "<p>", "seq": 3, "skipped": {"first": 2, "last": 2}}} |
    And Cat receives:
      | {"trigger_type": "session::deleted", "payload": {"session_id": "s"}, "session_metadata": {"tenant": "a"}} |
    And reading "session::get" with {"session_id": "s"} answers null
