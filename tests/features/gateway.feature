@gateway
Feature: Front-ends follow agents live through the gateway

  # Prevents: a client waiting for a login that nobody needs, or being told more than the protocol says.
  Scenario: In dev mode a client is greeted with three frames
    Given a node
    When Ann connects
    Then Ann gets exactly:
      | {"type": "welcome", "protocolVersion": 1, "requiresAuth": false} |
      | {"type": "connected", "clientId": "<any>", "heartbeatIntervalMs": 30000, "ts": "<any>"} |
      | {"type": "authenticated", "identity": {"userId": "dev-user-001", "email": "developer@example.com", "tenantId": "dev", "role": "owner"}} |
    And Ann gets nothing more

  # Prevents: a caller without credentials, or with wrong ones, reaching the store.
  Scenario: With tokens a client authenticates first
    Given a node with the tokens:
      | good | app | acme |
    When Ann connects
    And Ann sends {"type": "list_sessions"}
    Then Ann gets the error "AUTH_REQUIRED"
    When Ann sends 3 times {"type": "authenticate", "token": "bad"}
    Then Ann gets 3 times the error "AUTH_FAILED"
    When Ann sends {"type": "authenticate", "token": "good"}
    Then Ann gets {"type": "authenticated", "identity": {"userId": "good", "tenantId": "acme"}}
    When Ann sends {"type": "list_sessions"}
    Then Ann gets {"type": "session_list", "sessions": []}
    When Ben connects
    And Ben sends 4 times {"type": "authenticate", "token": "bad"}
    Then Ben gets 4 times the error "AUTH_FAILED"
    When Cid connects
    And Cid sends 4 times {"type": "authenticate", "token": "bad"}
    Then Cid gets 3 times the error "AUTH_FAILED"
    And Cid gets the error "AUTH_RATE_LIMITED" with "retryAfterMs"

  # Prevents: clients of an unknown version guessing, and pages of other sites driving a node.
  Scenario: Versions and origins are checked
    Given a node
    When Ann connects to "/gateway?protocolVersion=2"
    Then Ann gets {"type": "welcome", "protocolVersion": 2}
    When Ben connects to "/ws?protocolVersion=9"
    Then Ben gets the error "ProtocolVersionMismatch"
    And Ben is disconnected with 1002
    When Eve connects from the page "http://evil.example"
    Then the connection is refused with 403

  # Prevents: one bad frame ending a connection, or passing in silence.
  Scenario: Bad frames get their errors and the connection lives
    Given a node
    And Ann is there
    When Ann sends the text "{"
    Then Ann gets the error "INVALID_JSON"
    When Ann sends a binary frame
    Then Ann gets the error "INVALID_JSON"
    When Ann sends {"type": "fly"}
    Then Ann gets the error "INVALID_MESSAGE"
    When Ann sends 1048577 bytes of text
    Then Ann gets the error "MESSAGE_TOO_LARGE"
    And Ann gets nothing more

  # Prevents: one client taking the node's time from the others.
  Scenario: The sixty-first message of ten seconds is dropped
    Given a node
    And Ann is there
    When Ann sends 61 times {"type": "ping", "ts": 1}
    Then Ann gets 60 times {"type": "pong", "clientTs": 1}
    And Ann gets the error "RATE_LIMITED" with "retryAfterMs"
    When 10 s pass
    Then Ann gets nothing more

  # Prevents: a reader writing, and one tenant learning what another has.
  Scenario: A viewer writes nothing and a foreign session is unknown
    Given a node with the tokens:
      | ann | app    | acme  |
      | vic | reader | acme  |
      | eve | admin  | bravo |
    And Ann is there with the token "ann"
    And Ann has a session "s"
    And Vic is there with the token "vic"
    And Eve is there with the token "eve"
    When Vic sends {"type": "run_turn", "sessionId": "<s>", "text": "x"}
    Then Vic gets the error "Forbidden"
    When Vic sends {"type": "join_session", "sessionId": "<s>"}
    Then Vic gets {"type": "state_snapshot", "headSeq": 0, "recentHistory": [], "session": {"status": "inactive"}}
    When Eve sends {"type": "join_session", "sessionId": "<s>"}
    Then Eve gets the error "SessionNotFound"
    When Eve sends {"type": "join_session", "sessionId": "never-was"}
    Then Eve gets the error "SessionNotFound"

  # Prevents: a list of sessions that is stale until it is asked for again.
  Scenario: A new name reaches all connections of the tenant
    Given a cluster of three nodes
    And Ann is there at node 1
    And Ben is there at node 2
    And Ann has a session "s"
    When Ann sends {"type": "rename_session", "sessionId": "<s>", "name": "Ada"}
    Then Ann gets {"type": "session_updated", "session": {"id": "<s>", "name": "Ada"}}
    And Ben gets {"type": "session_updated", "session": {"id": "<s>", "name": "s"}}
    And Ben gets {"type": "session_updated", "session": {"id": "<s>", "name": "Ada"}}
    And "session::get" with {"session_id": "<s>"} answers {"meta": {"title": "Ada"}}

  # Prevents: two followers of one turn seeing different things, or the transcript telling another story.
  Scenario: Two clients follow a whole turn
    Given a cluster of three nodes
    And the driver Dan at node 3
    And Ann is there at node 1
    And Ben is there at node 2
    And Ann has a session "s"
    And Ann sends {"type": "join_session", "sessionId": "<s>", "afterSeq": 0}
    And Ben sends {"type": "join_session", "sessionId": "<s>", "afterSeq": 0}
    And Ben gets {"type": "replay_complete", "lastSeq": 0}
    And Ann gets {"type": "replay_complete", "lastSeq": 0}
    When Ann runs the turn "t" of "s" with Dan
    Then "session::get" with {"session_id": "<s>"} answers {"meta": {"status": "working"}}
    When Dan emits in "t":
      | {"type": "text_delta", "text": "Hel"} |
      | {"type": "text_delta", "text": "lo"}  |
    And Dan emits in "t":
      | {"type": "tool_call", "toolCallId": "c", "toolName": "ls", "args": {"path": "."}} |
      | {"type": "tool_result", "toolCallId": "c", "status": "success", "output": "a"}    |
      | {"type": "turn_complete", "finalText": "Hello"}                                    |
    Then Ann gets exactly:
      | {"type": "session_state", "state": "activating", "seq": 1}              |
      | {"type": "session_state", "state": "ready", "seq": 2}                   |
      | {"type": "session_state", "state": "running", "seq": 3}                 |
      | {"type": "turn_started", "turnId": "<t>", "seq": 4}                     |
      | {"type": "text_delta", "text": "Hel", "turnId": "<t>", "seq": 5}        |
      | {"type": "text_delta", "text": "lo", "seq": 6}                          |
      | {"type": "tool_call", "toolCallId": "c", "args": {"path": "."}, "seq": 7} |
      | {"type": "tool_result", "toolCallId": "c", "status": "success", "seq": 8} |
      | {"type": "turn_complete", "finalText": "Hello", "seq": 9}               |
      | {"type": "session_state", "state": "ready", "reason": "turn_complete", "seq": 10} |
    And Ben gets exactly:
      | {"type": "session_state", "state": "activating", "seq": 1}       |
      | {"type": "session_state", "state": "ready", "seq": 2}            |
      | {"type": "session_state", "state": "running", "seq": 3}          |
      | {"type": "turn_started", "turnId": "<t>", "seq": 4}              |
      | {"type": "text_delta", "text": "Hel", "turnId": "<t>", "seq": 5} |
      | {"type": "text_delta", "text": "lo", "seq": 6}                   |
      | {"type": "tool_call", "toolCallId": "c", "seq": 7}               |
      | {"type": "tool_result", "toolCallId": "c", "seq": 8}             |
      | {"type": "turn_complete", "finalText": "Hello", "seq": 9}        |
      | {"type": "session_state", "state": "ready", "seq": 10}           |
    When Ben sends {"type": "get_history", "sessionId": "<s>"}
    Then Ben gets {"type": "history", "items": [{"id": "<asked>", "role": "user", "content": "please t"}, {"id": "<said>", "role": "assistant", "content": "Hello"}]}
    And "session::messages" with {"session_id": "<s>"} answers {"messages": [{"entry_id": "<asked>", "message": {"role": "user", "content": [{"text": "please t"}]}}, {"entry_id": "<said>", "message": {"role": "assistant", "content": [{"text": "Hello"}]}}, {"message": {"role": "assistant", "content": [{"type": "function_call"}]}}, {"message": {"role": "function_result"}}]}
    And "session::get" with {"session_id": "<s>"} answers {"meta": {"status": "idle"}}

  # Prevents: a turn that nobody runs looking like one that hangs.
  Scenario: Without a driver a turn is refused and nothing is written
    Given a node
    And Ann is there
    And Ann has a session "s"
    When Ann sends {"type": "run_turn", "sessionId": "<s>", "text": "x"}
    Then Ann gets the error "AgentUnavailable" within 6 s
    And "session::get" with {"session_id": "<s>"} answers {"meta": {"status": "idle", "message_count": 0}}
    When Ann sends {"type": "get_events", "sessionId": "<s>"}
    Then Ann gets {"type": "events", "events": []}

  # Prevents: a second turn beside the first, and a retry of a client starting another one.
  Scenario: A session has one turn at a time, and the same request is the same turn
    Given a node
    And the driver Dan
    And Ann is there
    And Ann has a session "s"
    And Ann runs the turn "t" of "s" with Dan
    And Ann gets {"type": "turn_started", "turnId": "<t>"}
    When Ann sends {"type": "run_turn", "sessionId": "<s>", "text": "y"}
    Then Ann gets the error "TurnInProgress"
    When Ann sends {"type": "run_turn", "sessionId": "<s>", "text": "please t", "clientTurnId": "t"}
    Then Ann gets {"type": "turn_started", "turnId": "<t>", "seq": 4}

  # Prevents: a client that was away missing an event, getting one twice, or not knowing what it missed.
  Scenario: A client that comes back gets what was kept and exact gaps
    Given a node
    And the driver Dan
    And Ann is there
    And Ann has a session "s"
    And Ann runs the turn "t" of "s" with Dan
    And Dan emits in "t":
      | {"type": "thinking_start"}                   |
      | {"type": "thinking_progress", "text": "a"}   |
      | {"type": "thinking_progress", "text": "b"}   |
      | {"type": "thinking_progress", "text": "c"}   |
      | {"type": "thinking_complete"}                |
    And Dan emits 5 deltas in "t"
    And Dan emits in "t":
      | {"type": "tool_call", "toolCallId": "c", "toolName": "ls", "args": {}}      |
      | {"type": "tool_result", "toolCallId": "c", "status": "success"}             |
    And Dan emits 11 deltas in "t"
    And Cid is there
    When Cid sends {"type": "join_session", "sessionId": "<s>", "afterSeq": 20}
    Then Cid gets exactly:
      | {"type": "state_snapshot", "headSeq": 27, "currentTurn": {"turnId": "<t>", "asOfSeq": 27, "textSoFar": "w0 w1 w2 w3 w4 w0 w1 w2 w3 w4 w5 w6 w7 w8 w9 w10 "}} |
      | {"type": "stream_snapshot", "turnId": "<t>", "textSoFar": "w0 w1 w2 w3 w4 w0 w1 w2 w3 w4 w5 w6 w7 w8 w9 w10 "} |
      | {"type": "gap", "fromSeq": 20, "toSeq": 27} |
      | {"type": "replay_complete", "lastSeq": 20}  |
    When Dan emits 3 deltas in "t"
    Then Cid gets {"type": "text_delta", "text": "w0 ", "seq": 28}
    When Dan emits in "t":
      | {"type": "usage_update", "model": "m", "provider": "p", "inputTokens": 1, "outputTokens": 2, "cachedTokens": null, "costMicroDollars": null} |
      | {"type": "turn_complete", "finalText": "all"} |
    Given Ben is there
    When Ben sends {"type": "join_session", "sessionId": "<s>", "afterSeq": 0}
    Then Ben gets {"type": "state_snapshot", "headSeq": 33, "currentTurn": null, "session": {"status": "ready"}}
    And Ben gets exactly:
      | {"type": "session_state", "state": "activating", "seq": 1} |
      | {"type": "session_state", "state": "ready", "seq": 2}      |
      | {"type": "session_state", "state": "running", "seq": 3}    |
      | {"type": "turn_started", "seq": 4}                         |
      | {"type": "thinking_start", "seq": 5}                       |
      | {"type": "gap", "fromSeq": 5, "toSeq": 8}                  |
      | {"type": "thinking_complete", "seq": 9}                    |
      | {"type": "gap", "fromSeq": 9, "toSeq": 14}                 |
      | {"type": "tool_call", "seq": 15}                           |
      | {"type": "tool_result", "seq": 16}                         |
      | {"type": "gap", "fromSeq": 16, "toSeq": 31}                |
      | {"type": "turn_complete", "seq": 32}                       |
      | {"type": "session_state", "state": "ready", "seq": 33}     |
      | {"type": "replay_complete", "lastSeq": 33}                 |
    And Ben gets nothing more
    When Ben sends {"type": "join_session", "sessionId": "<s>", "afterSeq": 12}
    Then Ben gets {"type": "state_snapshot"}
    And Ben gets exactly:
      | {"type": "gap", "fromSeq": 12, "toSeq": 14} |
      | {"type": "tool_call", "seq": 15}            |
      | {"type": "tool_result", "seq": 16}          |
      | {"type": "gap", "fromSeq": 16, "toSeq": 31} |
      | {"type": "turn_complete", "seq": 32}        |
      | {"type": "session_state", "seq": 33}        |
      | {"type": "replay_complete", "lastSeq": 33}  |
    When Ben sends {"type": "join_session", "sessionId": "<s>", "afterSeq": 33}
    Then Ben gets {"type": "state_snapshot"}
    And Ben gets exactly:
      | {"type": "replay_complete", "lastSeq": 33} |
    When Ben sends {"type": "join_session", "sessionId": "<s>", "afterSeq": 34}
    Then Ben gets the error "INVALID_MESSAGE"

  # Prevents: a late joiner with a text that is too short or has a piece twice.
  Scenario: A client that joins in the middle has the exact text so far
    Given a node
    And the driver Dan
    And Ann is there
    And Ann has a session "s"
    And Ann runs the turn "t" of "s" with Dan
    And Dan emits in "t":
      | {"type": "text_delta", "text": "one "} |
      | {"type": "text_delta", "text": "two "} |
    And Ben is there
    When Ben sends {"type": "join_session", "sessionId": "<s>", "afterSeq": 4}
    Then Ben gets exactly:
      | {"type": "state_snapshot", "currentTurn": {"turnId": "<t>", "textSoFar": "one two ", "asOfSeq": 6}, "session": {"status": "running"}, "headSeq": 6} |
      | {"type": "stream_snapshot", "turnId": "<t>", "textSoFar": "one two "} |
      | {"type": "gap", "fromSeq": 4, "toSeq": 6}                             |
      | {"type": "replay_complete", "lastSeq": 4}                             |
    When Dan emits in "t":
      | {"type": "text_delta", "text": "three"}                 |
      | {"type": "turn_complete", "finalText": "one two three"} |
    Then Ben gets exactly:
      | {"type": "text_delta", "text": "three", "seq": 7}                 |
      | {"type": "turn_complete", "finalText": "one two three", "seq": 8} |
    Given Cid is there
    And Ann runs the turn "u" of "s" with Dan
    When Dan ends "u" with 40 deltas, and Cid joins "s" after 20
    Then the text so far that Cid gets and the deltas after it are the final text

  # Prevents: an event that answers a request and comes once more, or too early, to the client that joins meanwhile.
  Scenario: A client that joins while its turn begins gets no number twice
    Given a node
    And the driver Dan
    And Ann is there
    Then the numbers of Ann only grow in 15 sessions that are joined while Dan takes their turns

  # Prevents: an agent that is told two answers to one question.
  Scenario: The first of two answers wins
    Given a cluster of three nodes
    And the driver Dan at node 3
    And Ann is there at node 1
    And Ben is there at node 2
    And Ann has a session "s"
    And Ann runs the turn "t" of "s" with Dan
    And Ann gets {"type": "turn_started"}
    And Dan emits in "t":
      | {"type": "question_requested", "requestId": "q1", "questions": [{"id": "a", "text": "Which?", "type": "text"}]} |
    And Ann sends {"type": "join_session", "sessionId": "<s>"}
    And Ann gets {"type": "state_snapshot", "session": {"status": "waiting"}, "pendingRequests": [{"requestId": "q1"}]}
    When Ann sends {"type": "answer_question", "sessionId": "<s>", "requestId": "q1", "answers": {"a": "this"}}
    Then Dan gets {"type": "driver_command", "command": "answer", "answer": {"answers": {"a": "this"}}, "command_id": "<answer>"}
    And Ann gets {"type": "session_state", "state": "running"}
    When Dan sends {"type": "command_result", "command_id": "<answer>", "accepted": true}
    And Ben sends {"type": "answer_question", "sessionId": "<s>", "requestId": "q1", "answers": {"a": "that"}}
    Then Ben gets the error "RequestNotFound"
    And Dan gets nothing more

  # Prevents: an agent that goes on after it was stopped.
  Scenario: A turn is stopped
    Given a node
    And the driver Dan
    And Ann is there
    And Ann has a session "s"
    And Ann sends {"type": "join_session", "sessionId": "<s>"}
    And Ann runs the turn "t" of "s" with Dan
    And Dan emits in "t":
      | {"type": "text_delta", "text": "I will never"} |
    When Ann sends {"type": "stop_turn", "sessionId": "<s>"}
    And Dan gets {"type": "driver_command", "command": "stop", "command_id": "<stop>"}
    And Dan sends {"type": "command_result", "command_id": "<stop>", "accepted": true}
    Then Ann gets {"type": "stop_acknowledged", "turnId": "<t>"}
    And Ann gets {"type": "session_state", "state": "ready", "reason": "user_stopped"}
    When Dan sends {"type": "emit", "turn_id": "<t>", "n": 2, "events": [{"type": "text_delta", "text": "stop"}]}
    Then Dan gets the error "INVALID_MESSAGE"
    And Ann gets nothing more
    When Ann sends {"type": "stop_turn", "sessionId": "<s>"}
    Then Ann gets the error "NoActiveTurn"
    When Ann sends {"type": "get_history", "sessionId": "<s>"}
    Then Ann gets {"type": "history", "items": [{"role": "user"}, {"role": "assistant", "content": "I will never"}]}

  # Prevents: words for a running turn that reach nobody, or no turn at all.
  Scenario: A running turn is steered
    Given a node
    And the driver Dan
    And Ann is there
    And Ann has a session "s"
    When Ann sends {"type": "steer", "sessionId": "<s>", "content": "left"}
    Then Ann gets the error "NoActiveTurn"
    When Ann runs the turn "t" of "s" with Dan
    And Ann gets {"type": "turn_started"}
    And Ann sends {"type": "steer", "sessionId": "<s>", "content": "left"}
    Then Dan gets {"type": "driver_command", "command": "steer", "content": "left"}
    And Ann gets {"type": "steer_sent", "content": "left", "sessionId": "<s>"}

  # Prevents: a driver that repeats a batch after a lost answer doubling its events.
  Scenario: A repeated batch is one batch
    Given a node
    And the driver Dan
    And Ann is there
    And Ann has a session "s"
    And Ann runs the turn "t" of "s" with Dan
    When Dan sends {"type": "emit", "turn_id": "<t>", "n": 1, "events": [{"type": "text_delta", "text": "x"}]}
    Then Dan gets {"type": "emitted", "turn_id": "<t>", "next_n": 2, "seqs": [5]}
    When Dan sends {"type": "emit", "turn_id": "<t>", "n": 1, "events": [{"type": "text_delta", "text": "x"}]}
    Then Dan gets {"type": "emitted", "turn_id": "<t>", "next_n": 2, "seqs": [5]}
    When Dan sends {"type": "emit", "turn_id": "<t>", "n": 3, "events": [{"type": "text_delta", "text": "x"}]}
    Then Dan gets the error "INVALID_MESSAGE"
    When Dan sends {"type": "emit", "turn_id": "<t>", "n": 2, "events": [{"type": "session_list", "sessions": []}]}
    Then Dan gets the error "INVALID_MESSAGE"

  # Prevents: a turn whose driver is dead running for ever, and one that was away for a moment losing its turn.
  Scenario: A driver that is gone fails its turn, and one that comes back goes on
    Given a node
    And the driver Dan
    And Ann is there
    And Ann has a session "s"
    And Ann sends {"type": "join_session", "sessionId": "<s>"}
    And Ann runs the turn "t" of "s" with Dan
    And Dan emits in "t":
      | {"type": "text_delta", "text": "one "} |
    When Dan disconnects
    And the driver Dan is back
    And Dan emits in "t":
      | {"type": "text_delta", "text": "two"}             |
      | {"type": "turn_complete", "finalText": "one two"} |
    Then Ann gets {"type": "turn_complete", "finalText": "one two"}
    When Ann runs the turn "u" of "s" with Dan
    And Ann gets {"type": "turn_started", "turnId": "<u>"}
    And Dan disconnects
    Then Ann gets {"type": "turn_error", "turnId": "<u>", "code": "AGENT_DISCONNECTED"}
    And Ann gets {"type": "session_state", "state": "error"}

  # Prevents: one driver that drowns in turns beside one that has none, and an agent that changes with every turn.
  Scenario: A turn goes to the least loaded driver, and the next one to the same
    Given a node
    And the driver Dan
    And the driver Eve
    And Ann is there
    And Ann has a session "s"
    And Ann has a session "u"
    And Ann has a session "w"
    And Ann runs the turn "t" of "s" with Dan
    And Dan gets {"type": "turn_claimed", "turn_id": "<t>", "claimed": true}
    And Eve gets nothing more
    When Ann runs the turn "v" of "u" with Eve
    Then Eve gets {"type": "turn_claimed", "turn_id": "<v>", "claimed": true}
    And Dan gets nothing more
    When Dan emits in "t":
      | {"type": "turn_complete", "finalText": "t"} |
    And Ann runs the turn "x" of "w" with Dan
    And Ann runs the turn "y" of "s" with Dan
    Then Eve gets nothing more

  # Prevents: a driver that hangs keeping a turn from the others.
  Scenario: A driver that does not answer is not the only one that is asked
    Given a node
    And the driver Dan
    And the driver Eve
    And Ann is there
    And Ann has a session "s"
    And Ann sends {"type": "join_session", "sessionId": "<s>"}
    When Ann sends {"type": "run_turn", "sessionId": "<s>", "text": "x"}
    Then Dan gets {"type": "driver_command", "command": "run_turn", "turn_id": "<t>"}
    And Eve gets within 5 s of {"type": "session_state", "state": "activating"} for Ann: {"type": "driver_command", "command": "run_turn", "turn_id": "<t>"}
    And Dan gets nothing more
    When Eve sends {"type": "command_result", "command_id": "<t>", "accepted": true}
    Then Ann gets {"type": "turn_started", "turnId": "<t>"}
    When Dan sends {"type": "command_result", "command_id": "<t>", "accepted": true}
    Then Dan gets {"type": "turn_claimed", "turn_id": "<t>", "claimed": false}

  # Prevents: a choice that only the node of a driver knows.
  Scenario: Drivers of several nodes share the turns
    Given a cluster of three nodes
    And the driver Dan at a follower
    And the driver Eve at the leader
    And Ann is there at the leader
    And Ann has a session "s"
    And Ann has a session "u"
    And Ann sends {"type": "join_session", "sessionId": "<u>"}
    And Ann runs the turn "t" of "s" with Dan
    And Dan gets {"type": "turn_claimed", "turn_id": "<t>", "claimed": true}
    And Ann runs the turn "v" of "u" with Eve
    And Dan gets nothing more
    When Dan disconnects
    And the driver Dan is back at node 1
    And Dan emits in "t":
      | {"type": "turn_complete", "finalText": "t"} |
    And Eve emits in "v":
      | {"type": "turn_complete", "finalText": "v"} |
    And Ann runs the turn "w" of "u" with Eve
    Then Dan gets nothing more

  # Prevents: a driver on the bus that hears of no turn, or of one that another driver has.
  Scenario: A driver on the bus is asked like the others
    Given a cluster of three nodes
    And the driver Bob on the bus of node 3, which has files
    And the driver Eve at node 2
    And Ann is there at node 1
    And Ann has a session "s"
    And Ann sends {"type": "join_session", "sessionId": "<s>"}
    When Ann sends {"type": "run_turn", "sessionId": "<s>", "text": "x"}
    Then Ann gets {"type": "turn_complete", "finalText": "Bob did it"}
    When Ann sends {"type": "run_turn", "sessionId": "<s>", "text": "y"}
    Then Ann gets {"type": "turn_complete", "finalText": "Bob did it"}
    And Eve gets nothing more

  # Prevents: a turn that waits for a driver whose node is dead.
  Scenario: The driver that is asked first is lost with its node
    Given a cluster of three nodes
    And the driver Dan at a follower
    And the driver Eve at the leader
    And Ann is there at the leader
    And Ann has a session "s"
    And Ann sends {"type": "join_session", "sessionId": "<s>"}
    When the follower is killed
    And Ann sends {"type": "run_turn", "sessionId": "<s>", "text": "x"}
    Then Eve gets within 5 s of {"type": "session_state", "state": "activating"} for Ann: {"type": "driver_command", "command": "run_turn", "turn_id": "<t>", "not_taken_by": "Dan"}
    When Eve sends {"type": "command_result", "command_id": "<t>", "accepted": true}
    Then Ann gets {"type": "turn_started", "turnId": "<t>"}

  # Prevents: modes and settings that a client believes were set.
  Scenario: Mode, profile and settings are told to all
    Given a node
    And Ann is there
    And Ben is there
    And Ann has a session "s"
    And Ben sends {"type": "join_session", "sessionId": "<s>"}
    And Ben gets {"type": "state_snapshot"}
    When Ann sends {"type": "set_mode", "sessionId": "<s>", "mode": "plan"}
    Then Ben gets {"type": "mode_switched", "sessionId": "<s>", "mode": "plan"}
    And Ann gets {"type": "mode_switched", "mode": "plan"}
    When Ann sends {"type": "set_autonomy_profile", "sessionId": "<s>", "profile": "auto_pilot"}
    Then Ben gets {"type": "autonomy_profile_updated", "profile": "auto_pilot"}
    When Ann sends {"type": "update_session_settings", "sessionId": "<s>", "settings": {"coalesceMs": 100}}
    Then Ben gets {"type": "session_settings_updated", "settings": {"coalesceMs": 100}}
    When Ann sends {"type": "update_session_settings", "sessionId": "<s>", "settings": {"tone": "dry", "depth": 2}}
    Then Ben gets {"type": "session_settings_updated", "settings": {"coalesceMs": 100, "tone": "dry", "depth": 2}}
    When Ann sends {"type": "update_session_settings", "sessionId": "<s>", "settings": {"coalesceMs": null, "depth": 3}}
    Then Ben gets {"type": "session_settings_updated", "settings": {"coalesceMs": "<absent>", "tone": "dry", "depth": 3}}

  # Prevents: a front-end waiting for files that nobody has.
  Scenario: Files come from the driver that offers them
    Given a node
    And Ann is there
    And Ann has a session "s"
    When Ann sends {"type": "list_files", "sessionId": "<s>", "path": "src"}
    Then Ann gets the error "AgentUnavailable"
    Given the driver Dan
    When Ann sends {"type": "list_files", "sessionId": "<s>", "path": "src"}
    Then Dan gets {"type": "driver_command", "command": "list_files", "path": "src", "sessionId": "<s>", "command_id": "<c>"}
    When Dan sends {"type": "command_result", "command_id": "<c>", "result": {"files": [{"path": "src/a"}]}}
    Then Ann gets {"type": "file_list", "sessionId": "<s>", "files": [{"path": "src/a"}]}
    When Ann sends {"type": "list_projects"}
    Then Ann gets the error "AgentUnavailable"

  # Prevents: files that only the clients of one node see.
  Scenario: Files come from a driver on the bus of another node
    Given a cluster of three nodes
    And the driver Bob on the bus of node 3, which has files
    And Ann is there at node 1
    And Ann has a session "s"
    When Ann sends {"type": "list_files", "sessionId": "<s>", "path": "src"}
    Then Ann gets {"type": "file_list", "sessionId": "<s>", "files": [{"path": "src"}]}

  # Prevents: an inbox that fills without anybody noticing.
  Scenario: A driver tells all connections of the tenant
    Given a node
    And the driver Dan
    And Ann is there
    And Ben is there
    And Ann has a session "s"
    And Ann runs the turn "t" of "s" with Dan
    When Dan emits in "t":
      | {"type": "inbox_delivery", "item": {"id": "i1"}} |
    Then Ben gets {"type": "inbox_delivery", "item": {"id": "i1"}}
    And Ann gets {"type": "inbox_delivery", "item": {"id": "i1"}}

  # Prevents: clients that find out about a stop by a broken connection.
  Scenario: A shutdown is told before the connection closes
    Given a node
    And Ann is there
    When the node is stopped
    Then Ann gets {"type": "server_shutdown", "reason": "<any>", "ts": "<any>"}
    And Ann is disconnected with 1001

  # Prevents: a client that loses its node losing its place in the stream, or its turn.
  Scenario: The leader is killed in the middle of a turn
    Given a cluster of three nodes
    And the driver Dan at a follower
    And Ann is there at the leader
    And Ann has a session "s"
    And Ann sends {"type": "join_session", "sessionId": "<s>"}
    And Ann runs the turn "t" of "s" with Dan
    And Dan emits in "t":
      | {"type": "text_delta", "text": "one "}                                 |
      | {"type": "tool_call", "toolCallId": "c", "toolName": "ls", "args": {}} |
    And Ann gets {"type": "tool_call", "seq": 6}
    When Ann loses the leader, which is killed
    And Dan emits in "t":
      | {"type": "text_delta", "text": "two"}                           |
      | {"type": "tool_result", "toolCallId": "c", "status": "success"} |
    And Ann is there at another node
    And Ann sends {"type": "join_session", "sessionId": "<s>", "afterSeq": 6}
    Then Ann gets exactly:
      | {"type": "state_snapshot", "headSeq": 8, "currentTurn": {"turnId": "<t>", "textSoFar": "one two", "asOfSeq": 8}} |
      | {"type": "stream_snapshot", "turnId": "<t>", "textSoFar": "one two"} |
      | {"type": "gap", "fromSeq": 6, "toSeq": 7}                            |
      | {"type": "tool_result", "toolCallId": "c", "seq": 8}                 |
      | {"type": "replay_complete", "lastSeq": 8}                            |
    When Dan sends {"type": "emit", "turn_id": "<t>", "n": 2, "events": [{"type": "text_delta", "text": "two"}]}
    Then Dan gets {"type": "emitted", "turn_id": "<t>", "next_n": 3, "seqs": [7, 8]}
    When Dan emits in "t":
      | {"type": "turn_complete", "finalText": "one two"} |
    Then Ann gets exactly:
      | {"type": "turn_complete", "finalText": "one two", "seq": 9}            |
      | {"type": "session_state", "state": "ready", "reason": "turn_complete"} |
    And Ann gets nothing more

  # Prevents: a turn that runs for ever because everything was lost at once.
  Scenario: All nodes and the driver are killed
    Given a cluster of three nodes
    And the driver Dan at node 1
    And Ann is there at node 2
    And Ann has a session "s"
    And Ann runs the turn "t" of "s" with Dan
    And Dan emits in "t":
      | {"type": "text_delta", "text": "half"} |
    When all nodes are killed
    And Ann is there at node 3
    And Ann sends {"type": "join_session", "sessionId": "<s>", "afterSeq": 4}
    Then Ann gets {"type": "state_snapshot", "session": {"id": "<s>"}}
    And Ann gets {"type": "gap", "fromSeq": 4, "toSeq": 5}
    And Ann gets within 20 s of the kill {"type": "turn_error", "turnId": "<t>", "code": "AGENT_DISCONNECTED", "seq": 6}
    And Ann gets {"type": "session_state", "state": "error", "seq": 7}
    And Ann gets {"type": "session_state", "state": "inactive", "reason": "recovered", "seq": 8}
    When Ann sends {"type": "get_events", "sessionId": "<s>"}
    Then Ann gets {"type": "events", "events": [{"seq": 1}, {"seq": 2}, {"seq": 3}, {"type": "turn_started", "seq": 4}, {"type": "turn_error", "seq": 6}, {"seq": 7}, {"seq": 8}]}

  # Prevents: one browser that hangs delaying all others, or losing what is kept.
  Scenario: A client that stops reading delays nobody
    Given a node
    And the driver Dan
    And Ann is there
    And Ben is there
    And Ann has a session "s"
    And Ann runs the turn "t" of "s" with Dan
    And Ann gets {"type": "turn_started", "turnId": "<t>"}
    And Ann sends {"type": "join_session", "sessionId": "<s>"}
    And Ben sends {"type": "join_session", "sessionId": "<s>"}
    And Ben gets {"type": "stream_snapshot"}
    When Dan emits 60 batches of 256 KiB in "t" while Ben reads
    And Dan emits in "t":
      | {"type": "turn_complete", "finalText": "done"} |
    Then Ben gets {"type": "turn_complete", "finalText": "done"}
    And Ann gets 60 tool calls, and a gap for what she missed

  # Prevents: a tenant without an owner, and people who give themselves more than they have.
  Scenario: A tenant keeps an owner and nobody grants above himself
    Given a node with the tokens:
      | ann | app   | acme |
      | eve | admin | acme |
    And Ann is there with the token "ann"
    And Eve is there with the token "eve"
    When Ann sends {"type": "manage_members", "action": "set_role", "userId": "ann", "role": "viewer"}
    Then Ann gets the error "LastOwner"
    When Eve sends {"type": "manage_members", "action": "set_role", "userId": "eve", "role": "owner"}
    Then Eve gets the error "Forbidden"
    When Ann sends {"type": "manage_members", "action": "list"}
    Then Ann gets {"type": "member_list", "members": [{"userId": "ann", "role": "owner", "addedAt": "<any>"}]}

  # Prevents: a name that a driver emits getting lost, and a driver that speaks for the store.
  Scenario: A driver emits each of the 114 names
    Given a node
    And the driver Dan
    And Ann is there
    And Ann has a session "s"
    And Ann sends {"type": "join_session", "sessionId": "<s>"}
    And Ann gets {"type": "state_snapshot"}
    Then every name that Dan emits in "s" is taken or refused as the table says, and Ann hears of it
    And the journal of "s" has every kept name and no other for Ann

  # Prevents: a front-end that believes it is alone, or that never learns where the agent works.
  Scenario: A snapshot counts the followers of all nodes and tells about the sandbox
    Given a cluster of three nodes
    And the driver Dan at node 3
    And Ann is there at node 1
    And Ann has a session "s"
    And Ann sends {"type": "join_session", "sessionId": "<s>"}
    And Ann gets {"type": "state_snapshot", "subscriberCount": 1, "sandbox": null}
    And Ann runs the turn "t" of "s" with Dan
    And Dan emits in "t":
      | {"type": "sandbox_init", "provider": "box"}                  |
      | {"type": "sandbox_provisioning", "phase": "installing_deps"} |
    When Ben is there at node 2
    Then Ben joins "s" until the snapshot is {"subscriberCount": 2, "sandbox": {"provider": "box", "status": "provisioning", "phase": "installing_deps"}}
    When Dan emits in "t":
      | {"type": "sandbox_removed", "reason": "manual"} |
    And Ann disconnects
    Then Ben joins "s" until the snapshot is {"subscriberCount": 1, "sandbox": null}

  # Prevents: memories that only one client sees, or that are gone after a reload.
  Scenario: What an agent remembers is an event of the session
    Given a node
    And the driver Dan
    And Ann is there
    And Ben is there
    And Ann has a session "s"
    And Ben sends {"type": "join_session", "sessionId": "<s>"}
    And Ben gets {"type": "state_snapshot"}
    When Ann sends {"type": "memory_recall", "sessionId": "<s>", "query": "tea"}
    And Dan gets {"type": "driver_command", "command": "memory_recall", "query": "tea", "command_id": "<c>"}
    And Dan sends {"type": "command_result", "command_id": "<c>", "result": {"memories": "all"}}
    Then Ann gets the error "AgentError"
    When Ann sends {"type": "memory_recall", "sessionId": "<s>", "query": "tea"}
    And Dan gets {"type": "driver_command", "command": "memory_recall", "command_id": "<d>"}
    And Dan sends {"type": "command_result", "command_id": "<d>", "result": {"memories": [{"id": "m"}]}}
    Then Ann gets {"type": "memory_recalled", "sessionId": "<s>", "memories": [{"id": "m"}], "seq": 1}
    And Ben gets {"type": "memory_recalled", "memories": [{"id": "m"}], "seq": 1}
    When Ann sends {"type": "get_events", "sessionId": "<s>"}
    Then Ann gets {"type": "events", "events": [{"type": "memory_recalled", "seq": 1}]}

  # Prevents: a mode that is chosen between two turns and reaches no agent.
  Scenario: A driver learns what was chosen before its turn
    Given a node
    And the driver Dan
    And Ann is there
    And Ann has a session "s"
    And Ann sends {"type": "set_mode", "sessionId": "<s>", "mode": "plan"}
    And Ann gets {"type": "mode_switched", "mode": "plan"}
    And Ann sends {"type": "update_session_settings", "sessionId": "<s>", "settings": {"coalesceMs": 100}}
    And Ann gets {"type": "session_settings_updated"}
    When Ann sends {"type": "run_turn", "sessionId": "<s>", "text": "go"}
    Then Dan gets {"type": "driver_command", "command": "run_turn", "mode": "plan", "settings": {"coalesceMs": 100}}

  # Prevents: a client that has to guess where to go when its node stops.
  Scenario: A client of a node that stops goes on at another one
    Given a cluster of three nodes
    And the driver Dan at node 3
    And Ann is there at node 1
    And Ann has a session "s"
    And Ann sends {"type": "join_session", "sessionId": "<s>"}
    And Ann runs the turn "t" of "s" with Dan
    And Ann gets {"type": "turn_started", "seq": 4}
    When node 1 is stopped
    Then Ann gets {"type": "server_shutdown", "reason": "<any>", "ts": "<any>"}
    And Ann is disconnected with 1001
    When Ann is there at node 2
    And Ann sends {"type": "join_session", "sessionId": "<s>", "afterSeq": 4}
    Then Ann gets {"type": "replay_complete", "lastSeq": 4}
