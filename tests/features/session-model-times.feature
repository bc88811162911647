Feature: The session model over time: limits, timers, approvals, leases, and the loss of a leader

  @turns
  # Prevents: a checkpoint that is never made, or made twice.
  Scenario: The limit of turns asks for one checkpoint
    Given a checkpoint after 2 turns and after 9 messages without one
    And I called "session::open" with {"agent_id": "main", "session_id": "cli:a", "source": {"kind": "cli", "interactive": true}}
    And calling "session::post" with {"agent_id": "main", "session_id": "cli:a", "message": {"text": "m1", "messageId": "m1"}} answered {"turn_id": "<a>"}
    And I called "session::turn::claim" with {"turn_id": "<a>", "driver_id": "d"}
    And I called "session::turn::emit" with {"turn_id": "<a>", "driver_id": "d", "n": 1, "events": [{"type": "turn_complete", "finalText": "ok"}]}
    And calling "session::post" with {"agent_id": "main", "session_id": "cli:a", "message": {"text": "m2", "messageId": "m2"}} answered {"turn_id": "<b>"}
    And I called "session::turn::claim" with {"turn_id": "<b>", "driver_id": "d"}
    When I call "session::turn::emit" with {"turn_id": "<b>", "driver_id": "d", "n": 1, "events": [{"type": "turn_complete", "finalText": "ok"}]}
    Then it answers {"state": "done"}
    And these events fired:
      | session::stream::event         | {"event": {"type": "turn_complete"}} |
      | session::stream::event         | {"event": {"type": "session_state", "state": "ready"}} |
      | session::profile::event        | {"event": {"type": "text_final", "text": "ok"}} |
      | session::profile::event        | {"event_id": 8, "event": {"type": "agent_end", "messageId": "m2"}} |
      | session::checkpoint::requested | {"checkpoint_id": "<c>", "reason": "turn_limit", "after_event_id": 0, "up_to_event_id": 8, "turns_since_last": 2} |
      | session::message-added         | {"message": {"role": "assistant"}} |
      | session::status-changed        | {"status": "idle"} |
    And reading "session::profile::get" with {"agent_id": "main", "session_id": "cli:a"} answers {"checkpoint": {"underway": "<c>"}, "completedTurnCount": 2}

  @turns
  # Prevents: a group that is never looked back at because nobody addresses the agent.
  Scenario: Messages without a turn ask for one checkpoint
    Given a checkpoint after 9 turns and after 2 messages without one
    And I called "session::open" with {"agent_id": "main", "session_id": "slack:g", "source": {"kind": "channel", "interactive": true, "type": "group"}}
    And I called "session::post" with {"agent_id": "main", "session_id": "slack:g", "message": {"text": "one", "mentioned": false}}
    When I call "session::post" with {"agent_id": "main", "session_id": "slack:g", "message": {"text": "two", "mentioned": false}}
    Then it answers {"triggered": false}
    And these events fired:
      | session::message-added         | {"message": {"role": "user"}} |
      | session::profile::event        | {"event_id": 2, "event": {"type": "user_message", "text": "two"}} |
      | session::checkpoint::requested | {"checkpoint_id": "<c>", "reason": "idle", "up_to_event_id": 2} |
    And reading "session::profile::get" with {"agent_id": "main", "session_id": "slack:g"} answers {"checkpoint": {"underway": "<c>"}}

  @turns
  # Prevents: an idle session that is never looked back at, or twice.
  Scenario: Ten minutes after a turn a checkpoint is asked for once
    Given I called "session::open" with {"agent_id": "main", "session_id": "cli:a", "source": {"kind": "cli", "interactive": true}}
    And calling "session::post" with {"agent_id": "main", "session_id": "cli:a", "message": {"text": "m1", "messageId": "m1"}} answered {"turn_id": "<a>"}
    And I called "session::turn::claim" with {"turn_id": "<a>", "driver_id": "d"}
    And I called "session::turn::emit" with {"turn_id": "<a>", "driver_id": "d", "n": 1, "events": [{"type": "turn_complete", "finalText": "ok"}]}
    When 11 minutes pass
    Then it answers {"due": "<any>"}
    And exactly this event fired: session::checkpoint::requested {"agent_id": "main", "session_id": "main/cli:a", "checkpoint_id": "<c>", "reason": "idle", "after_event_id": 0, "up_to_event_id": 4, "turns_since_last": 1, "description": "m1"}
    And reading "session::profile::get" with {"agent_id": "main", "session_id": "cli:a"} answers {"checkpoint": {"underway": "<c>"}, "status": "idle"}

  @turns
  # Prevents: a checkpoint in the middle of a conversation.
  Scenario: A message before that cancels it
    Given I called "session::open" with {"agent_id": "main", "session_id": "cli:a", "source": {"kind": "cli", "interactive": true}}
    And calling "session::post" with {"agent_id": "main", "session_id": "cli:a", "message": {"text": "m1", "messageId": "m1"}} answered {"turn_id": "<a>"}
    And I called "session::turn::claim" with {"turn_id": "<a>", "driver_id": "d"}
    And I called "session::turn::emit" with {"turn_id": "<a>", "driver_id": "d", "n": 1, "events": [{"type": "turn_complete", "finalText": "ok"}]}
    And 9 minutes passed
    And I called "session::post" with {"agent_id": "main", "session_id": "cli:a", "message": {"text": "wait"}}
    When 2 minutes pass
    Then it answers {"due": "<any>"}
    And no event fired
    And reading "session::profile::get" with {"agent_id": "main", "session_id": "cli:a"} answers {"checkpoint": {"underway": "<absent>"}, "status": "running"}

  @turns @cluster
  # Prevents: a timer that is lost with the leader, or fires again after it.
  Scenario: The idle checkpoint is asked for once although the leader is lost
    Given I called "session::open" with {"agent_id": "main", "session_id": "cli:a", "source": {"kind": "cli", "interactive": true}}
    And calling "session::post" with {"agent_id": "main", "session_id": "cli:a", "message": {"text": "m1", "messageId": "m1"}} answered {"turn_id": "<a>"}
    And I called "session::turn::claim" with {"turn_id": "<a>", "driver_id": "d"}
    And I called "session::turn::emit" with {"turn_id": "<a>", "driver_id": "d", "n": 1, "events": [{"type": "turn_complete", "finalText": "ok"}]}
    And the leader is lost
    When 11 minutes pass
    Then it answers {"due": "<any>"}
    And exactly this event fired: session::checkpoint::requested {"agent_id": "main", "session_id": "main/cli:a", "checkpoint_id": "<c>", "reason": "idle", "after_event_id": 0, "up_to_event_id": 4, "turns_since_last": 1, "description": "m1"}
    And reading "session::profile::get" with {"agent_id": "main", "session_id": "cli:a"} answers {"checkpoint": {"underway": "<c>"}}

  @turns
  # Prevents: a checkpoint that blocks all others because its worker never came.
  Scenario: A checkpoint that nobody takes has failed after ten seconds
    Given I called "session::open" with {"agent_id": "main", "session_id": "cli:a", "source": {"kind": "cli", "interactive": true}}
    And I called "session::post" with {"agent_id": "main", "session_id": "cli:a", "message": {"text": "a note"}, "mode": "append"}
    And calling "session::checkpoint" with {"agent_id": "main", "session_id": "cli:a"} answered {"checkpoint_id": "<c>"}
    When 11 seconds pass
    Then it answers {"due": "<any>"}
    And no event fired
    And reading "session::profile::get" with {"agent_id": "main", "session_id": "cli:a"} answers {"checkpoint": {"underway": "<absent>", "ended": "<c>", "checkpointed": false}, "cursor": {"eventId": 0}}

  @turns
  # Prevents: a session that is hidden again the moment it is opened.
  Scenario: After three days a session is inactive, and opening wakes it for good
    Given I called "session::open" with {"agent_id": "main", "session_id": "cli:a", "source": {"kind": "cli", "interactive": true}}
    And 4 days passed
    And calling "session::profile::list" with {"agent_id": "main"} answered {"rows": []}
    And calling "session::open" with {"agent_id": "main", "session_id": "cli:a", "source": {"kind": "cli", "interactive": true}} answered {"created": false, "status": "idle"}
    When 1 hour passes
    Then it answers {"due": "<any>"}
    And no event fired
    And reading "session::profile::get" with {"agent_id": "main", "session_id": "cli:a"} answers {"status": "idle"}

  @turns
  # Prevents: a tool that runs because nobody looked.
  Scenario: Nobody decides about a tool call for two minutes
    Given I called "session::open" with {"agent_id": "main", "session_id": "cli:a", "source": {"kind": "cli", "interactive": true}}
    And calling "session::post" with {"agent_id": "main", "session_id": "cli:a", "message": {"text": "m1", "messageId": "m1"}} answered {"turn_id": "<a>"}
    And I called "session::turn::claim" with {"turn_id": "<a>", "driver_id": "d"}
    And I called "session::turn::emit" with {"turn_id": "<a>", "driver_id": "d", "n": 1, "events": [{"type": "tool_approval_required", "toolName": "rm", "toolCallId": "c1"}]}
    And calling "session::profile::get" with {"agent_id": "main", "session_id": "cli:a"} answered {"status": "awaiting_approval"}
    When 3 minutes pass
    Then it answers {"due": "<any>"}
    And these events fired:
      | session::stream::event  | {"event": {"type": "approval_resolved"}} |
      | session::stream::event  | {"event": {"type": "session_state", "state": "running"}} |
      | session::turn::command  | {"command": "approve"} |
      | session::profile::event | {"event": {"type": "approval_resolved", "decision": "timed_out"}} |
      | session::message-added  | {"custom": {"custom_type": "profile/approval_resolved"}} |
    And reading "session::profile::get" with {"agent_id": "main", "session_id": "cli:a"} answers {"status": "running"}

  @turns @cluster
  # Prevents: a tool call that waits for ever, or is decided twice, because the leader was lost meanwhile.
  Scenario: Nobody decides about a tool call for two minutes although the leader is lost
    Given I called "session::open" with {"agent_id": "main", "session_id": "cli:a", "source": {"kind": "cli", "interactive": true}}
    And calling "session::post" with {"agent_id": "main", "session_id": "cli:a", "message": {"text": "m1", "messageId": "m1"}} answered {"turn_id": "<a>"}
    And I called "session::turn::claim" with {"turn_id": "<a>", "driver_id": "d"}
    And I called "session::turn::emit" with {"turn_id": "<a>", "driver_id": "d", "n": 1, "events": [{"type": "tool_approval_required", "toolName": "rm", "toolCallId": "c1"}]}
    And the leader is lost
    And 3 minutes passed
    When I call "session::approve" with {"agent_id": "main", "session_id": "cli:a", "tool_call_id": "c1", "approved": true}
    Then it answers exactly {"resolved": false}
    And no event fired
    And reading "session::profile::events" with {"agent_id": "main", "session_id": "cli:a", "after": 3} answers {"events": [{"event_id": 4}, {"event_id": 5, "event": {"type": "approval_resolved", "toolCallId": "c1", "decision": "timed_out"}}], "last": 5}
    And reading "session::profile::get" with {"agent_id": "main", "session_id": "cli:a"} answers {"status": "running"}

  @turns
  # Prevents: two people who both think that their decision counts.
  Scenario: The first decision about a tool call wins
    Given I called "session::open" with {"agent_id": "main", "session_id": "cli:a", "source": {"kind": "cli", "interactive": true}}
    And calling "session::post" with {"agent_id": "main", "session_id": "cli:a", "message": {"text": "m1", "messageId": "m1"}} answered {"turn_id": "<a>"}
    And I called "session::turn::claim" with {"turn_id": "<a>", "driver_id": "d"}
    And I called "session::turn::emit" with {"turn_id": "<a>", "driver_id": "d", "n": 1, "events": [{"type": "tool_approval_required", "toolName": "rm", "toolCallId": "c1"}]}
    And calling "session::approve" with {"agent_id": "main", "session_id": "cli:a", "tool_call_id": "c1", "approved": false} answered {"resolved": true}
    When I call "session::approve" with {"agent_id": "main", "session_id": "cli:a", "tool_call_id": "c1", "approved": true}
    Then it answers exactly {"resolved": false}
    And no event fired
    And nothing changed

  @turns
  # Prevents: a person who loses the two minutes because an older question had the same name.
  Scenario: The time for an older decision does not end a newer one
    Given I called "session::open" with {"agent_id": "main", "session_id": "cli:a", "source": {"kind": "cli", "interactive": true}}
    And calling "session::post" with {"agent_id": "main", "session_id": "cli:a", "message": {"text": "m1", "messageId": "m1"}} answered {"turn_id": "<a>"}
    And I called "session::turn::claim" with {"turn_id": "<a>", "driver_id": "d"}
    And I called "session::turn::emit" with {"turn_id": "<a>", "driver_id": "d", "n": 1, "events": [{"type": "tool_approval_required", "toolName": "rm", "toolCallId": "c1"}]}
    And calling "session::approve" with {"agent_id": "main", "session_id": "cli:a", "tool_call_id": "c1", "approved": true} answered {"resolved": true}
    And I called "session::turn::emit" with {"turn_id": "<a>", "driver_id": "d", "n": 2, "events": [{"type": "turn_complete", "finalText": "ok"}]}
    And 1 minute passed
    And calling "session::post" with {"agent_id": "main", "session_id": "cli:a", "message": {"text": "m2", "messageId": "m2"}} answered {"turn_id": "<b>"}
    And I called "session::turn::claim" with {"turn_id": "<b>", "driver_id": "d"}
    And I called "session::turn::emit" with {"turn_id": "<b>", "driver_id": "d", "n": 1, "events": [{"type": "tool_approval_required", "toolName": "rm", "toolCallId": "c1"}]}
    And 70 seconds passed
    When I call "session::approve" with {"agent_id": "main", "session_id": "cli:a", "tool_call_id": "c1", "approved": true}
    Then it answers exactly {"resolved": true}
    And these events fired:
      | session::stream::event  | {"event": {"type": "approval_resolved"}} |
      | session::stream::event  | {"event": {"type": "session_state", "state": "running"}} |
      | session::turn::command  | {"command": "approve"} |
      | session::profile::event | {"event": {"type": "approval_resolved", "decision": "approved"}} |
      | session::message-added  | {"custom": {"custom_type": "profile/approval_resolved"}} |
    And reading "session::profile::get" with {"agent_id": "main", "session_id": "cli:a"} answers {"status": "running"}

  @turns
  # Prevents: a deleted session whose tool call still waits.
  Scenario: A session that waits for a person is not deleted
    Given I called "session::open" with {"agent_id": "main", "session_id": "cli:a", "source": {"kind": "cli", "interactive": true}}
    And calling "session::post" with {"agent_id": "main", "session_id": "cli:a", "message": {"text": "m1", "messageId": "m1"}} answered {"turn_id": "<a>"}
    And I called "session::turn::claim" with {"turn_id": "<a>", "driver_id": "d"}
    And I called "session::turn::emit" with {"turn_id": "<a>", "driver_id": "d", "n": 1, "events": [{"type": "tool_approval_required", "toolName": "rm", "toolCallId": "c1"}]}
    When I call "session::profile::delete" with {"agent_id": "main", "session_id": "cli:a"}
    Then it answers {"deleted": false, "conflict": "Cannot delete a running session."}
    And no event fired
    And nothing changed

  @turns
  # Prevents: a message that waits for ever for a driver that is not there.
  Scenario: A message that no driver takes for ten minutes has a failed turn
    Given I called "session::open" with {"agent_id": "main", "session_id": "cli:a", "source": {"kind": "cli", "interactive": true}}
    And calling "session::post" with {"agent_id": "main", "session_id": "cli:a", "message": {"text": "hi", "messageId": "m1"}} answered {"turn_id": "<t>", "triggered": true}
    When 11 minutes pass
    Then it answers {"due": "<any>"}
    And these events fired:
      | session::stream::event  | {"event": {"type": "turn_error"}} |
      | session::stream::event  | {"event": {"type": "session_state", "state": "error"}} |
      | session::profile::event | {"event": {"type": "error"}} |
      | session::profile::event | {"event": {"type": "agent_end", "messageId": "m1"}} |
      | session::message-added  | {"custom": {"custom_type": "profile/error"}} |
      | session::status-changed | {"status": "error"} |
    And reading "session::profile::get" with {"agent_id": "main", "session_id": "cli:a"} answers {"status": "idle", "completedTurnCount": 0}

  @turns
  # Prevents: a killed driver that blocks its session, or a turn that runs twice.
  Scenario: The lease of a driver that is gone ends its turn, and the next one runs
    Given I called "session::open" with {"agent_id": "main", "session_id": "cli:a", "source": {"kind": "cli", "interactive": true}}
    And calling "session::post" with {"agent_id": "main", "session_id": "cli:a", "message": {"text": "m1", "messageId": "m1"}} answered {"turn_id": "<a>"}
    And I called "session::turn::claim" with {"turn_id": "<a>", "driver_id": "d"}
    And calling "session::post" with {"agent_id": "main", "session_id": "cli:a", "message": {"text": "two", "messageId": "m2"}} answered {"turn_id": "<b>"}
    And 2 minutes passed
    And calling "session::turn::claim" with {"turn_id": "<a>", "driver_id": "other"} answered {"claimed": false}
    When I call "session::turn::claim" with {"turn_id": "<b>", "driver_id": "other"}
    Then it answers {"claimed": true, "next_n": 1}
    And these events fired:
      | session::stream::event  | {"event": {"type": "session_state", "state": "ready"}} |
      | session::stream::event  | {"event": {"type": "session_state", "state": "running"}} |
      | session::stream::event  | {"event": {"type": "turn_started"}} |
      | session::profile::event | {"event": {"type": "agent_start", "correlationId": "m2"}} |
    And reading "session::profile::get" with {"agent_id": "main", "session_id": "cli:a"} answers {"status": "running", "completedTurnCount": 0}

  @turns
  # Prevents: drivers that run two turns of a session at once, or in another order.
  Scenario: Messages that come at once have turns one after the other
    Given I called "session::open" with {"agent_id": "main", "session_id": "cli:a", "source": {"kind": "cli", "interactive": true}}
    And calling "session::post" with {"agent_id": "main", "session_id": "cli:a", "message": {"text": "one", "messageId": "m1"}} answered {"turn_id": "<a>"}
    And calling "session::post" with {"agent_id": "main", "session_id": "cli:a", "message": {"text": "two", "messageId": "m2"}} answered {"turn_id": "<b>"}
    And I called "session::turn::claim" with {"turn_id": "<a>", "driver_id": "d"}
    When I call "session::turn::claim" with {"turn_id": "<b>", "driver_id": "other"}
    Then it answers {"claimed": false}
    And no event fired
    And reading "session::turn::state" with {"session_id": "main/cli:a"} answers {"current_turn": {"turn_id": "<a>"}}

  @turns @cluster
  # Prevents: a reply that loses text or numbers with the leader.
  Scenario: The numbers of a stream go on when the leader is lost
    Given I called "session::open" with {"agent_id": "main", "session_id": "cli:a", "source": {"kind": "cli", "interactive": true}}
    And calling "session::post" with {"agent_id": "main", "session_id": "cli:a", "message": {"text": "m1", "messageId": "m1"}} answered {"turn_id": "<a>"}
    And I called "session::turn::claim" with {"turn_id": "<a>", "driver_id": "d"}
    And I called "session::turn::emit" with {"turn_id": "<a>", "driver_id": "d", "n": 1, "events": [{"type": "text_delta", "text": "one "}]}
    And the leader is lost
    When I call "session::turn::emit" with {"turn_id": "<a>", "driver_id": "d", "n": 2, "events": [{"type": "text_delta", "text": "two"}, {"type": "agent_end"}]}
    Then it answers {"state": "done"}
    And these events fired:
      | session::stream::event   | {"event": {"type": "text_delta"}} |
      | session::stream::event   | {"event": {"type": "turn_complete"}} |
      | session::stream::event   | {"event": {"type": "session_state", "state": "ready"}} |
      | session::profile::event  | {"event_id": 4, "event": {"type": "text_delta", "text": "two"}} |
      | session::profile::event  | {"event_id": 5, "event": {"type": "text_final", "text": "one two"}} |
      | session::profile::event  | {"event_id": 6, "event": {"type": "agent_end", "messageId": "m1"}} |
      | session::message-updated | {"message": {"content": [{"type": "text", "text": "one two"}]}} |
      | session::status-changed  | {"status": "idle"} |
    And reading "session::profile::events" with {"agent_id": "main", "session_id": "cli:a", "after": 2} answers {"events": [{"event_id": 3}, {"event_id": 4}, {"event_id": 5}, {"event_id": 6}], "last": 6}

  @turns
  # Prevents: a reply that is cut where a tool was called.
  Scenario: The last words of a turn are those that its driver said
    Given I called "session::open" with {"agent_id": "main", "session_id": "cli:a", "source": {"kind": "cli", "interactive": true}}
    And calling "session::post" with {"agent_id": "main", "session_id": "cli:a", "message": {"text": "m1", "messageId": "m1"}} answered {"turn_id": "<a>"}
    And I called "session::turn::claim" with {"turn_id": "<a>", "driver_id": "d"}
    And I called "session::turn::emit" with {"turn_id": "<a>", "driver_id": "d", "n": 1, "events": [{"type": "text_delta", "text": "one "}, {"type": "tool_call", "tool": "ls", "toolCallId": "c1"}, {"type": "tool_result", "tool": "ls", "toolCallId": "c1", "isError": false, "text": "x"}, {"type": "text_delta", "text": "two"}, {"type": "text_final", "text": "one two"}]}
    When I call "session::turn::emit" with {"turn_id": "<a>", "driver_id": "d", "n": 2, "events": [{"type": "agent_end"}]}
    Then it answers {"state": "done"}
    And these events fired:
      | session::stream::event  | {"event": {"type": "turn_complete"}} |
      | session::stream::event  | {"event": {"type": "session_state", "state": "ready"}} |
      | session::profile::event | {"event": {"type": "text_final", "text": "one two"}} |
      | session::profile::event | {"event": {"type": "agent_end", "messageId": "m1"}} |
      | session::status-changed | {"status": "idle"} |
    And reading "session::profile::get" with {"agent_id": "main", "session_id": "cli:a"} answers {"status": "idle", "messageCount": 3, "lastMessagePreview": "one two"}

  @turns
  # Prevents: a client of the store that ends the stream of a session by a new label.
  Scenario: New metadata leaves a session one of the model
    Given I called "session::open" with {"agent_id": "main", "session_id": "cli:a", "source": {"kind": "cli", "interactive": true}}
    And I called "session::set-meta" with {"session_id": "main/cli:a", "metadata": {"color": "red"}}
    When I call "session::append" with {"session_id": "main/cli:a", "message": {"role": "user", "content": [{"type": "text", "text": "hi"}], "timestamp": 1}}
    Then it answers {"entry_id": "<e>"}
    And these events fired:
      | session::message-added  | {"entry_id": "<e>"} |
      | session::profile::event | {"event_id": 1, "event": {"type": "user_message", "text": "hi"}} |
    And reading "session::get" with {"session_id": "main/cli:a"} answers {"meta": {"metadata": {"color": "red", "profile": {"agent_id": "main", "kind": "cli", "type": "direct"}}}}
    And reading "session::profile::get" with {"agent_id": "main", "session_id": "cli:a"} answers {"messageCount": 1}

  @turns
  # Prevents: a stranger who talks to an agent that is not for everybody.
  Scenario: An agent that talks to no strangers does not find their sessions
    Given an agent that talks to no strangers
    And I called "session::open" with {"agent_id": "main", "session_id": "telegram:1", "source": {"kind": "channel", "interactive": true}}
    When I call "session::post" with {"agent_id": "main", "session_id": "telegram:1", "message": {"text": "hi", "sender": {"channel": "telegram", "channelUserId": "7"}}}
    Then it fails with "session/not_found"
    And no event fired
    And nothing changed

  @turns
  # Prevents: an adapter that writes in the name of people of another channel.
  Scenario: The adapter of a channel writes for the people of its channel
    Given I called "session::open" with {"agent_id": "main", "session_id": "telegram:1", "source": {"kind": "channel", "interactive": true}}
    When I call "session::post" with {"agent_id": "main", "session_id": "telegram:1", "message": {"text": "hi", "sender": {"channel": "slack", "channelUserId": "7"}}, "caller": {"channel": "telegram"}}
    Then it fails with "session/invalid_request", saying "sender.channel"
    And no event fired
    And nothing changed

  @turns
  # Prevents: a person who writes in the name of another.
  Scenario: A person is the sender of a message, whatever it says
    Given I called "session::open" with {"agent_id": "main", "session_id": "web:1", "source": {"kind": "api", "interactive": true}, "caller": {"channel": "web", "channel_user_id": "ann"}}
    When I call "session::post" with {"agent_id": "main", "session_id": "web:1", "message": {"text": "hi", "messageId": "m1", "sender": {"channel": "web", "channelUserId": "bob", "displayName": "Ann"}}, "mode": "append", "caller": {"channel": "web", "channel_user_id": "ann"}}
    Then it answers {"triggered": false}
    And these events fired:
      | session::message-added  | {"origin": {"name": "Ann", "sender": {"channel": "web", "channelUserId": "ann", "displayName": "Ann"}}} |
      | session::profile::event | {"event": {"type": "user_message", "text": "hi", "name": "Ann"}} |
    And reading "session::identity::resolve" with {"channel": "web", "channel_user_id": "bob"} answers {"user_id": "<absent>"}

  @turns
  # Prevents: a switch of the routing that does nothing.
  Scenario: Owners can be asked for a mention too
    Given an agent that asks owners for a mention too
    And I called "session::open" with {"agent_id": "main", "session_id": "slack:g", "source": {"kind": "channel", "interactive": true, "type": "group"}}
    And calling "session::identity::link" with {"channel": "slack", "channel_user_id": "7"} answered {"user_id": "<u>"}
    And I called "session::identity::set-role" with {"agent_id": "main", "user_id": "<u>", "role": "owner"}
    When I call "session::post" with {"agent_id": "main", "session_id": "slack:g", "message": {"text": "hi", "mentioned": false, "sender": {"channel": "slack", "channelUserId": "7"}}}
    Then it answers {"triggered": false, "turn_id": "<absent>"}
    And these events fired:
      | session::message-added  | {"message": {"role": "user"}} |
      | session::profile::event | {"event": {"type": "user_message"}} |
      | session::meta-updated   | {"description": "hi"} |
    And reading "session::profile::get" with {"agent_id": "main", "session_id": "slack:g"} answers {"status": "idle", "messageCount": 1}

  @turns
  # Prevents: a replaced session that stays in lists because another checkpoint was under way.
  Scenario: A session that is replaced while it works becomes inactive in the end
    Given I called "session::open" with {"agent_id": "main", "session_id": "cli:a", "source": {"kind": "cli", "interactive": true}}
    And calling "session::post" with {"agent_id": "main", "session_id": "cli:a", "message": {"text": "m1", "messageId": "m1"}} answered {"turn_id": "<a>"}
    And I called "session::turn::claim" with {"turn_id": "<a>", "driver_id": "d"}
    And calling "session::checkpoint" with {"agent_id": "main", "session_id": "cli:a"} answered {"begun": true, "checkpoint_id": "<c>"}
    And calling "session::checkpoint" with {"agent_id": "main", "session_id": "cli:a", "reason": "new_session"} answered {"begun": false}
    And I called "session::turn::emit" with {"turn_id": "<a>", "driver_id": "d", "n": 1, "events": [{"type": "turn_complete", "finalText": "ok"}]}
    And I called "session::checkpoint::claim" with {"checkpoint_id": "<c>", "driver_id": "w"}
    When I call "session::checkpoint::result" with {"checkpoint_id": "<c>", "success": false}
    Then it answers exactly {"accepted": true, "checkpointed": false}
    And these events fired:
      | session::message-added  | {"custom": {"custom_type": "profile/introspection_end"}} |
      | session::status-changed | {"status": "done"} |
    And reading "session::profile::list" with {"agent_id": "main"} answers {"rows": []}
