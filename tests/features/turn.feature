Feature: Turns are asked for by clients and run by drivers

  @turns
  # Prevents: a message without its turn, or a turn that no driver hears of.
  Scenario: Asking for a turn stores the message and tells the drivers
    Given a session "s"
    When I call "session::turn::ask" with {"session_id": "s", "text": "hi", "agent_type": "coder"}
    Then it answers {"turn_id": "<t>", "entry_id": "<e>", "queued": false, "state": "queued"}
    And these events fired:
      | session::stream::event   | {"session_id": "s", "seq": 1, "kept": true, "event": {"type": "session_state", "state": "activating", "seq": 1}} |
      | session::turn::requested | {"session_id": "s", "turn_id": "<t>", "entry_id": "<e>", "text": "hi", "agent_type": "coder"} |
      | session::message-added   | {"session_id": "s", "entry_id": "<e>"} |
      | session::status-changed  | {"session_id": "s", "status": "working"} |
    And reading "session::turn::pending" with {"agent_type": "coder"} answers {"turns": [{"turn_id": "<t>"}]}

  @turns
  # Prevents: two drivers running the same turn.
  Scenario: The first driver gets the turn
    Given a session "s"
    And calling "session::turn::ask" with {"session_id": "s", "text": "hi"} answered {"turn_id": "<t>"}
    And I called "session::turn::claim" with {"turn_id": "<t>", "driver_id": "one"}
    When I call "session::turn::claim" with {"turn_id": "<t>", "driver_id": "two"}
    Then it answers {"claimed": false, "reason": "another driver has claimed it"}
    And no event fired
    And reading "session::turn::state" with {"session_id": "s"} answers {"state": "running", "driver_id": "one", "current_turn": {"turn_id": "<t>"}}

  @turns
  # Prevents: the text of the message and the deltas disagreeing.
  Scenario: Deltas grow one message
    Given a session "s"
    And calling "session::turn::ask" with {"session_id": "s", "text": "hi"} answered {"turn_id": "<t>"}
    And I called "session::turn::claim" with {"turn_id": "<t>", "driver_id": "d"}
    And I called "session::turn::emit" with {"turn_id": "<t>", "driver_id": "d", "n": 1, "events": [{"type": "text_delta", "text": "Hel"}]}
    When I call "session::turn::emit" with {"turn_id": "<t>", "driver_id": "d", "n": 2, "events": [{"type": "text_delta", "text": "lo"}]}
    Then it answers {"next_n": 3, "seqs": [6], "state": "running"}
    And these events fired:
      | session::stream::event   | {"seq": 6, "kept": false, "event": {"type": "text_delta", "text": "lo", "turnId": "<t>", "seq": 6}} |
      | session::message-updated | {"session_id": "s", "revision": 1, "message": {"role": "assistant", "content": [{"type": "text", "text": "Hello"}]}} |
    And reading "session::turn::state" with {"session_id": "s"} answers {"head_seq": 6, "current_turn": {"text_so_far": "Hello", "as_of_seq": 6}}

  @turns
  # Prevents: a batch that counts twice because its answer was lost.
  Scenario: A repeated batch changes nothing and gets the first answer
    Given a session "s"
    And calling "session::turn::ask" with {"session_id": "s", "text": "hi"} answered {"turn_id": "<t>"}
    And I called "session::turn::claim" with {"turn_id": "<t>", "driver_id": "d"}
    And I called "session::turn::emit" with {"turn_id": "<t>", "driver_id": "d", "n": 1, "events": [{"type": "text_delta", "text": "Hel"}]}
    When I call "session::turn::emit" with {"turn_id": "<t>", "driver_id": "d", "n": 1, "events": [{"type": "text_delta", "text": "Hel"}]}
    Then it answers {"next_n": 2, "seqs": [5]}
    And no event fired
    And reading "session::turn::state" with {"session_id": "s"} answers {"head_seq": 5, "current_turn": {"text_so_far": "Hel"}}

  @turns
  # Prevents: half of a batch being stored.
  Scenario: A batch with one wrong event is refused as a whole
    Given a session "s"
    And calling "session::turn::ask" with {"session_id": "s", "text": "hi"} answered {"turn_id": "<t>"}
    And I called "session::turn::claim" with {"turn_id": "<t>", "driver_id": "d"}
    When I call "session::turn::emit" with {"turn_id": "<t>", "driver_id": "d", "n": 1, "events": [{"type": "text_delta", "text": "a"}, {"type": "tool_call", "toolCallId": "c"}]}
    Then it fails with "session/invalid_request", saying "events[1]"
    And no event fired
    And reading "session::turn::state" with {"session_id": "s"} answers {"head_seq": 4, "current_turn": {"text_so_far": ""}}

  @turns
  # Prevents: a finished turn that keeps its session busy, or loses its text.
  Scenario: The end of a turn frees the session
    Given a session "s"
    And calling "session::turn::ask" with {"session_id": "s", "text": "hi"} answered {"turn_id": "<t>"}
    And I called "session::turn::claim" with {"turn_id": "<t>", "driver_id": "d"}
    When I call "session::turn::emit" with {"turn_id": "<t>", "driver_id": "d", "n": 1, "events": [{"type": "turn_complete", "finalText": "Hello"}]}
    Then it answers {"next_n": 2, "seqs": [5], "state": "done"}
    And these events fired:
      | session::stream::event  | {"seq": 5, "kept": true, "event": {"type": "turn_complete", "finalText": "Hello"}} |
      | session::stream::event  | {"seq": 6, "kept": true, "event": {"type": "session_state", "state": "ready", "reason": "turn_complete"}} |
      | session::message-added  | {"session_id": "s", "message": {"role": "assistant", "content": [{"type": "text", "text": "Hello"}]}} |
      | session::status-changed | {"session_id": "s", "status": "idle", "previous_status": "working"} |
    And reading "session::turn::events" with {"session_id": "s", "after_seq": 4} answers {"seqs": [5, 6], "head_seq": 6, "oldest_seq": 1, "more": false}

  @jsonl
  # Prevents: turns that vanish with a restart, because the files have no place for them.
  Scenario: A node over files refuses turns in clear words
    Given a session "s"
    When I call "session::turn::ask" with {"session_id": "s", "text": "hi"}
    Then it fails with "session/invalid_request", saying "raft"
    And no event fired
    And the transcript of "s" is empty
