Feature: The session model: sources, people, routing and checkpoints

  @turns
  # Prevents: a session that is no session of the store, or a profile in its published shape.
  Scenario: Opening creates a session of the store with a profile beside it
    When I call "session::open" with {"agent_id": "main", "session_id": "cli:a", "source": {"kind": "cli", "interactive": true}, "metadata": {"cwd": "/x"}}
    Then it answers exactly {"session_id": "cli:a", "store_session_id": "main/cli:a", "created": true, "status": "idle"}
    And these events fired:
      | session::created | {"session_id": "main/cli:a", "status": "idle"} |
    And reading "session::get" with {"session_id": "main/cli:a"} answers {"meta": {"metadata": {"cwd": "/x", "profile": {"agent_id": "main", "kind": "cli", "type": "direct"}}}}
    And reading "session::profile::get" with {"agent_id": "main", "session_id": "cli:a"} answers {"sessionId": "cli:a", "status": "idle", "messageCount": 0, "lastEventId": 0, "metadata": {"cwd": "/x"}, "userIds": []}

  @turns
  # Prevents: a session that changes where it came from, or a visitor who becomes a participant.
  Scenario: Opening again keeps the source, merges metadata and adds nobody
    Given I called "session::open" with {"agent_id": "main", "session_id": "telegram:1", "source": {"kind": "channel", "interactive": true, "platform": "telegram"}, "metadata": {"telegram_user_id": 7, "a": 1}}
    When I call "session::open" with {"agent_id": "main", "session_id": "telegram:1", "source": {"kind": "api", "interactive": false}, "metadata": {"a": 2}}
    Then it answers {"created": false, "status": "idle"}
    And these events fired:
      | session::meta-updated | {"session_id": "main/telegram:1", "metadata": {"a": 2, "telegram_user_id": 7}} |
    And reading "session::profile::get" with {"agent_id": "main", "session_id": "telegram:1"} answers {"source": {"kind": "channel", "platform": "telegram"}, "metadata": {"a": 2, "telegram_user_id": 7}, "userIds": ["<any>"]}

  @turns
  # Prevents: a message without its turn, or a turn without its message.
  Scenario: A direct message asks for a turn in the same commit
    Given I called "session::open" with {"agent_id": "main", "session_id": "cli:a", "source": {"kind": "cli", "interactive": true}}
    When I call "session::post" with {"agent_id": "main", "session_id": "cli:a", "message": {"text": "hello  there", "messageId": "m1"}}
    Then it answers {"message_id": "m1", "entry_id": "m:m1", "turn_id": "<t>", "triggered": true, "deduped": false}
    And these events fired:
      | session::message-added   | {"session_id": "main/cli:a", "entry_id": "m:m1", "message": {"role": "user"}} |
      | session::profile::event  | {"agent_id": "main", "session_id": "cli:a", "event_id": 1, "event": {"type": "user_message", "text": "hello  there", "correlationId": "m1"}} |
      | session::meta-updated    | {"description": "hello there"} |
      | session::stream::event   | {"event": {"type": "session_state", "state": "activating"}} |
      | session::turn::requested | {"turn_id": "<t>", "agent_id": "main", "session_id": "main/cli:a", "message_id": "m1", "entry_id": "m:m1", "prompt_text": "hello  there"} |
      | session::status-changed  | {"status": "working"} |
    And reading "session::profile::get" with {"agent_id": "main", "session_id": "cli:a"} answers {"status": "running", "messageCount": 1, "description": "hello there", "lastMessagePreview": "hello  there"}

  @turns
  # Prevents: a retry that is stored or answered twice.
  Scenario: A message id that is known writes nothing
    Given I called "session::open" with {"agent_id": "main", "session_id": "cli:a", "source": {"kind": "cli", "interactive": true}}
    And calling "session::post" with {"agent_id": "main", "session_id": "cli:a", "message": {"text": "hi", "messageId": "m1"}} answered {"turn_id": "<t>"}
    When I call "session::post" with {"agent_id": "main", "session_id": "cli:a", "message": {"text": "changed", "messageId": "m1"}}
    Then it answers {"message_id": "m1", "turn_id": "<t>", "triggered": true, "deduped": true}
    And no event fired
    And nothing changed

  @turns
  # Prevents: an appended note that wakes the agent.
  Scenario: Appending only stores
    Given I called "session::open" with {"agent_id": "main", "session_id": "cli:a", "source": {"kind": "cli", "interactive": true}}
    When I call "session::post" with {"agent_id": "main", "session_id": "cli:a", "message": {"text": "a note", "messageId": "n"}, "mode": "append"}
    Then it answers {"triggered": false, "turn_id": "<absent>"}
    And these events fired:
      | session::message-added  | {"entry_id": "m:n"} |
      | session::profile::event | {"event_id": 1, "event": {"type": "user_message", "text": "a note", "correlationId": "<absent>"}} |
    And reading "session::profile::get" with {"agent_id": "main", "session_id": "cli:a"} answers {"status": "idle", "messageCount": 1, "description": "<absent>"}

  @turns
  # Prevents: a group message that the agent does not hear, or hears in other words.
  Scenario: A group message of an owner with mentioned true asks for a turn
    Given I called "session::open" with {"agent_id": "main", "session_id": "telegram:g", "source": {"kind": "channel", "interactive": true, "platform": "telegram", "type": "group"}}
    And calling "session::identity::link" with {"channel": "telegram", "channel_user_id": "7"} answered {"user_id": "<u>"}
    And I called "session::identity::set-role" with {"agent_id": "main", "user_id": "<u>", "role": "owner"}
    When I call "session::post" with {"agent_id": "main", "session_id": "telegram:g", "message": {"text": "hi", "mentioned": true, "sender": {"channel": "telegram", "channelUserId": "7", "displayName": "Ann"}}}
    Then it answers {"triggered": true, "turn_id": "<t>"}
    And these events fired:
      | session::message-added   | {"message": {"content": [{"type": "text", "text": "hi"}]}} |
      | session::profile::event  | {"event": {"type": "user_message", "text": "hi", "name": "Ann"}} |
      | session::meta-updated    | {"description": "hi"} |
      | session::stream::event   | {"event": {"type": "session_state"}} |
      | session::turn::requested | {"prompt_text": "[Ann] hi", "text": "hi", "sender": {"user_id": "<u>", "role": "owner", "name": "Ann"}} |
      | session::status-changed  | {"status": "working"} |
    And reading "session::profile::get" with {"agent_id": "main", "session_id": "telegram:g"} answers {"userIds": ["<u>"]}

  @turns
  # Prevents: a group message that the agent does not hear, or hears in other words.
  Scenario: A group message of an owner with mentioned false asks for a turn
    Given I called "session::open" with {"agent_id": "main", "session_id": "telegram:g", "source": {"kind": "channel", "interactive": true, "platform": "telegram", "type": "group"}}
    And calling "session::identity::link" with {"channel": "telegram", "channel_user_id": "7"} answered {"user_id": "<u>"}
    And I called "session::identity::set-role" with {"agent_id": "main", "user_id": "<u>", "role": "owner"}
    When I call "session::post" with {"agent_id": "main", "session_id": "telegram:g", "message": {"text": "hi", "mentioned": false, "sender": {"channel": "telegram", "channelUserId": "7", "displayName": "Ann"}}}
    Then it answers {"triggered": true, "turn_id": "<t>"}
    And these events fired:
      | session::message-added   | {"message": {"content": [{"type": "text", "text": "hi"}]}} |
      | session::profile::event  | {"event": {"type": "user_message", "text": "hi", "name": "Ann"}} |
      | session::meta-updated    | {"description": "hi"} |
      | session::stream::event   | {"event": {"type": "session_state"}} |
      | session::turn::requested | {"prompt_text": "[Ann] [not directed at you] hi", "text": "hi", "sender": {"user_id": "<u>", "role": "owner", "name": "Ann"}} |
      | session::status-changed  | {"status": "working"} |
    And reading "session::profile::get" with {"agent_id": "main", "session_id": "telegram:g"} answers {"userIds": ["<u>"]}

  @turns
  # Prevents: a group message that the agent does not hear, or hears in other words.
  Scenario: A group message of a user with mentioned true asks for a turn
    Given I called "session::open" with {"agent_id": "main", "session_id": "telegram:g", "source": {"kind": "channel", "interactive": true, "platform": "telegram", "type": "group"}}
    And calling "session::identity::link" with {"channel": "telegram", "channel_user_id": "7"} answered {"user_id": "<u>"}
    And I called "session::identity::set-role" with {"agent_id": "main", "user_id": "<u>", "role": "user"}
    When I call "session::post" with {"agent_id": "main", "session_id": "telegram:g", "message": {"text": "hi", "mentioned": true, "sender": {"channel": "telegram", "channelUserId": "7", "displayName": "Ann"}}}
    Then it answers {"triggered": true, "turn_id": "<t>"}
    And these events fired:
      | session::message-added   | {"message": {"content": [{"type": "text", "text": "hi"}]}} |
      | session::profile::event  | {"event": {"type": "user_message", "text": "hi", "name": "Ann"}} |
      | session::meta-updated    | {"description": "hi"} |
      | session::stream::event   | {"event": {"type": "session_state"}} |
      | session::turn::requested | {"prompt_text": "[Ann] hi", "text": "hi", "sender": {"user_id": "<u>", "role": "user", "name": "Ann"}} |
      | session::status-changed  | {"status": "working"} |
    And reading "session::profile::get" with {"agent_id": "main", "session_id": "telegram:g"} answers {"userIds": ["<u>"]}

  @turns
  # Prevents: a group message that the agent does not hear, or hears in other words.
  Scenario: A group message of a guest with mentioned true asks for a turn
    Given I called "session::open" with {"agent_id": "main", "session_id": "telegram:g", "source": {"kind": "channel", "interactive": true, "platform": "telegram", "type": "group"}}
    And calling "session::identity::link" with {"channel": "telegram", "channel_user_id": "7"} answered {"user_id": "<u>"}
    And I called "session::identity::set-role" with {"agent_id": "main", "user_id": "<u>", "role": "guest"}
    When I call "session::post" with {"agent_id": "main", "session_id": "telegram:g", "message": {"text": "hi", "mentioned": true, "sender": {"channel": "telegram", "channelUserId": "7", "displayName": "Ann"}}}
    Then it answers {"triggered": true, "turn_id": "<t>"}
    And these events fired:
      | session::message-added   | {"message": {"content": [{"type": "text", "text": "hi"}]}} |
      | session::profile::event  | {"event": {"type": "user_message", "text": "hi", "name": "Ann"}} |
      | session::meta-updated    | {"description": "hi"} |
      | session::stream::event   | {"event": {"type": "session_state"}} |
      | session::turn::requested | {"prompt_text": "[Ann] hi", "text": "hi", "sender": {"user_id": "<u>", "role": "guest", "name": "Ann"}} |
      | session::status-changed  | {"status": "working"} |
    And reading "session::profile::get" with {"agent_id": "main", "session_id": "telegram:g"} answers {"userIds": ["<u>"]}

  @turns
  # Prevents: an agent that answers what was not said to it.
  Scenario: A group message of a user without a mention is only stored
    Given I called "session::open" with {"agent_id": "main", "session_id": "telegram:g", "source": {"kind": "channel", "interactive": true, "platform": "telegram", "type": "group"}}
    And calling "session::identity::link" with {"channel": "telegram", "channel_user_id": "7"} answered {"user_id": "<u>"}
    And I called "session::identity::set-role" with {"agent_id": "main", "user_id": "<u>", "role": "user"}
    When I call "session::post" with {"agent_id": "main", "session_id": "telegram:g", "message": {"text": "hi", "mentioned": false, "sender": {"channel": "telegram", "channelUserId": "7", "displayName": "Ann"}}}
    Then it answers {"triggered": false, "turn_id": "<absent>"}
    And these events fired:
      | session::message-added  | {"message": {"content": [{"type": "text", "text": "hi"}]}} |
      | session::profile::event | {"event": {"type": "user_message", "text": "hi"}} |
      | session::meta-updated   | {"description": "hi"} |
    And reading "session::profile::get" with {"agent_id": "main", "session_id": "telegram:g"} answers {"status": "idle", "messageCount": 1, "userIds": ["<any>"]}

  @turns
  # Prevents: an agent that answers what was not said to it.
  Scenario: A group message of a guest without a mention is only stored
    Given I called "session::open" with {"agent_id": "main", "session_id": "telegram:g", "source": {"kind": "channel", "interactive": true, "platform": "telegram", "type": "group"}}
    And calling "session::identity::link" with {"channel": "telegram", "channel_user_id": "7"} answered {"user_id": "<u>"}
    And I called "session::identity::set-role" with {"agent_id": "main", "user_id": "<u>", "role": "guest"}
    When I call "session::post" with {"agent_id": "main", "session_id": "telegram:g", "message": {"text": "hi", "mentioned": false, "sender": {"channel": "telegram", "channelUserId": "7", "displayName": "Ann"}}}
    Then it answers {"triggered": false, "turn_id": "<absent>"}
    And these events fired:
      | session::message-added  | {"message": {"content": [{"type": "text", "text": "hi"}]}} |
      | session::profile::event | {"event": {"type": "user_message", "text": "hi"}} |
      | session::meta-updated   | {"description": "hi"} |
    And reading "session::profile::get" with {"agent_id": "main", "session_id": "telegram:g"} answers {"status": "idle", "messageCount": 1, "userIds": ["<any>"]}

  @turns
  # Prevents: an agent that answers what was not said to it.
  Scenario: A group message of an unknown without a mention is only stored
    Given I called "session::open" with {"agent_id": "main", "session_id": "telegram:g", "source": {"kind": "channel", "interactive": true, "platform": "telegram", "type": "group"}}
    When I call "session::post" with {"agent_id": "main", "session_id": "telegram:g", "message": {"text": "hi", "mentioned": false, "sender": {"channel": "telegram", "channelUserId": "7", "displayName": "Ann"}}}
    Then it answers {"triggered": false, "turn_id": "<absent>"}
    And these events fired:
      | session::message-added  | {"message": {"content": [{"type": "text", "text": "hi"}]}} |
      | session::profile::event | {"event": {"type": "user_message", "text": "hi"}} |
      | session::meta-updated   | {"description": "hi"} |
    And reading "session::profile::get" with {"agent_id": "main", "session_id": "telegram:g"} answers {"status": "idle", "messageCount": 1, "userIds": ["<any>"]}

  @turns
  # Prevents: a stranger who learns that a session is there.
  Scenario: session::post does not find the session of somebody else
    Given I called "session::open" with {"agent_id": "main", "session_id": "web:a", "source": {"kind": "cli", "interactive": true}, "caller": {"channel": "web", "channel_user_id": "ann"}}
    When I call "session::post" with {"agent_id": "main", "session_id": "web:a", "message": {"text": "x"}, "caller": {"channel": "web", "channel_user_id": "bob"}}
    Then it fails with "session/not_found", saying "web:a"
    And no event fired
    And nothing changed

  @turns
  # Prevents: a stranger who learns that a session is there.
  Scenario: session::approve does not find the session of somebody else
    Given I called "session::open" with {"agent_id": "main", "session_id": "web:a", "source": {"kind": "cli", "interactive": true}, "caller": {"channel": "web", "channel_user_id": "ann"}}
    When I call "session::approve" with {"agent_id": "main", "session_id": "web:a", "tool_call_id": "c", "approved": true, "caller": {"channel": "web", "channel_user_id": "bob"}}
    Then it fails with "session/not_found", saying "web:a"
    And no event fired
    And nothing changed

  @turns
  # Prevents: a stranger who learns that a session is there.
  Scenario: session::checkpoint does not find the session of somebody else
    Given I called "session::open" with {"agent_id": "main", "session_id": "web:a", "source": {"kind": "cli", "interactive": true}, "caller": {"channel": "web", "channel_user_id": "ann"}}
    When I call "session::checkpoint" with {"agent_id": "main", "session_id": "web:a", "caller": {"channel": "web", "channel_user_id": "bob"}}
    Then it fails with "session/not_found", saying "web:a"
    And no event fired
    And nothing changed

  @turns
  # Prevents: a stranger who learns that a session is there.
  Scenario: session::deactivate does not find the session of somebody else
    Given I called "session::open" with {"agent_id": "main", "session_id": "web:a", "source": {"kind": "cli", "interactive": true}, "caller": {"channel": "web", "channel_user_id": "ann"}}
    When I call "session::deactivate" with {"agent_id": "main", "session_id": "web:a", "caller": {"channel": "web", "channel_user_id": "bob"}}
    Then it fails with "session/not_found", saying "web:a"
    And no event fired
    And nothing changed

  @turns
  # Prevents: a stranger who learns that a session is there.
  Scenario: session::profile::delete does not find the session of somebody else
    Given I called "session::open" with {"agent_id": "main", "session_id": "web:a", "source": {"kind": "cli", "interactive": true}, "caller": {"channel": "web", "channel_user_id": "ann"}}
    When I call "session::profile::delete" with {"agent_id": "main", "session_id": "web:a", "caller": {"channel": "web", "channel_user_id": "bob"}}
    Then it fails with "session/not_found", saying "web:a"
    And no event fired
    And nothing changed

  @turns
  # Prevents: a stranger who learns that a session is there.
  Scenario: session::profile::set-description does not find the session of somebody else
    Given I called "session::open" with {"agent_id": "main", "session_id": "web:a", "source": {"kind": "cli", "interactive": true}, "caller": {"channel": "web", "channel_user_id": "ann"}}
    When I call "session::profile::set-description" with {"agent_id": "main", "session_id": "web:a", "description": "x", "caller": {"channel": "web", "channel_user_id": "bob"}}
    Then it fails with "session/not_found", saying "web:a"
    And no event fired
    And nothing changed

  @turns
  # Prevents: a stranger who learns that a session is there.
  Scenario: session::profile::set-working-memory does not find the session of somebody else
    Given I called "session::open" with {"agent_id": "main", "session_id": "web:a", "source": {"kind": "cli", "interactive": true}, "caller": {"channel": "web", "channel_user_id": "ann"}}
    When I call "session::profile::set-working-memory" with {"agent_id": "main", "session_id": "web:a", "working_memory": "x", "caller": {"channel": "web", "channel_user_id": "bob"}}
    Then it fails with "session/not_found", saying "web:a"
    And no event fired
    And nothing changed

  @turns
  # Prevents: a stranger who learns that a session is there.
  Scenario: session::open does not find the session of somebody else
    Given I called "session::open" with {"agent_id": "main", "session_id": "web:a", "source": {"kind": "cli", "interactive": true}, "caller": {"channel": "web", "channel_user_id": "ann"}}
    When I call "session::open" with {"agent_id": "main", "session_id": "web:a", "source": {"kind": "cli", "interactive": true}, "caller": {"channel": "web", "channel_user_id": "bob"}}
    Then it fails with "session/not_found", saying "web:a"
    And no event fired
    And nothing changed

  @turns
  # Prevents: a stranger who reads the session of somebody else.
  Scenario: Reading does not find the session of somebody else, and lists leave it out
    Given I called "session::open" with {"agent_id": "main", "session_id": "web:a", "source": {"kind": "cli", "interactive": true}, "caller": {"channel": "web", "channel_user_id": "ann"}}
    When I call "session::profile::list" with {"agent_id": "main", "caller": {"channel": "web", "channel_user_id": "bob"}}
    Then it answers exactly {"rows": [], "next": null}
    And no event fired
    And reading "session::profile::history" with {"agent_id": "main", "session_id": "web:a", "caller": {"channel": "web", "channel_user_id": "bob"}} fails with "session/not_found"
    And reading "session::profile::events" with {"agent_id": "main", "session_id": "web:a", "caller": {"channel": "web", "channel_user_id": "bob"}} fails with "session/not_found"
    And reading "session::profile::get" with {"agent_id": "main", "session_id": "web:a", "caller": {"channel": "web", "channel_user_id": "bob"}} fails with "session/not_found"

  @turns
  # Prevents: a merge or a new role that does not count.
  Scenario: Merged identities and new roles count at once
    Given I called "session::open" with {"agent_id": "main", "session_id": "web:a", "source": {"kind": "cli", "interactive": true}, "caller": {"channel": "web", "channel_user_id": "ann"}}
    And calling "session::identity::resolve" with {"channel": "web", "channel_user_id": "ann"} answered {"user_id": "<ann>"}
    And calling "session::identity::link" with {"channel": "web", "channel_user_id": "bob"} answered {"user_id": "<bob>"}
    When I call "session::identity::merge" with {"user_id": "<ann>", "into": "<bob>"}
    Then it answers {"user_id": "<bob>", "merged": true}
    And no event fired
    And reading "session::profile::get" with {"agent_id": "main", "session_id": "web:a", "caller": {"channel": "web", "channel_user_id": "bob"}} answers {"sessionId": "web:a"}
    And reading "session::profile::list" with {"agent_id": "main", "caller": {"channel": "web", "channel_user_id": "ann"}} answers {"rows": [{"sessionId": "web:a"}]}

  @turns
  # Prevents: an adapter outside its channel.
  Scenario: The adapter of a channel stays in its namespace
    Given I called "session::open" with {"agent_id": "main", "session_id": "cli:a", "source": {"kind": "cli", "interactive": true}}
    When I call "session::post" with {"agent_id": "main", "session_id": "cli:a", "message": {"text": "x"}, "caller": {"channel": "telegram"}}
    Then it fails with "session/invalid_request", saying "telegram:"
    And no event fired
    And nothing changed

  @turns
  # Prevents: a reply that is not counted, or a session that stays busy.
  Scenario: The end of a turn is told in the words of the model
    Given I called "session::open" with {"agent_id": "main", "session_id": "cli:a", "source": {"kind": "cli", "interactive": true}}
    And calling "session::post" with {"agent_id": "main", "session_id": "cli:a", "message": {"text": "hi", "messageId": "m1"}} answered {"turn_id": "<t>"}
    And I called "session::turn::claim" with {"turn_id": "<t>", "driver_id": "d"}
    When I call "session::turn::emit" with {"turn_id": "<t>", "driver_id": "d", "n": 1, "events": [{"type": "turn_complete", "finalText": "done"}]}
    Then it answers {"state": "done"}
    And these events fired:
      | session::stream::event  | {"event": {"type": "turn_complete"}} |
      | session::stream::event  | {"event": {"type": "session_state", "state": "ready"}} |
      | session::profile::event | {"event_id": 3, "event": {"type": "text_final", "text": "done", "correlationId": "m1"}} |
      | session::profile::event | {"event_id": 4, "event": {"type": "agent_end", "messageId": "m1", "correlationId": "m1"}} |
      | session::message-added  | {"message": {"role": "assistant"}} |
      | session::status-changed | {"status": "idle"} |
    And reading "session::profile::get" with {"agent_id": "main", "session_id": "cli:a"} answers {"status": "idle", "messageCount": 2, "completedTurnCount": 1, "lastMessagePreview": "done"}

  @turns
  # Prevents: a failed turn without a trace in the history.
  Scenario: A failed turn is in the history and counts as no completed one
    Given I called "session::open" with {"agent_id": "main", "session_id": "cli:a", "source": {"kind": "cli", "interactive": true}}
    And calling "session::post" with {"agent_id": "main", "session_id": "cli:a", "message": {"text": "hi"}} answered {"turn_id": "<t>"}
    And I called "session::turn::claim" with {"turn_id": "<t>", "driver_id": "d"}
    When I call "session::turn::emit" with {"turn_id": "<t>", "driver_id": "d", "n": 1, "events": [{"type": "error", "message": "no model"}, {"type": "agent_end"}]}
    Then it answers {"state": "failed"}
    And these events fired:
      | session::stream::event  | {"event": {"type": "turn_error"}} |
      | session::stream::event  | {"event": {"type": "session_state", "state": "error"}} |
      | session::profile::event | {"event": {"type": "error", "message": "no model"}} |
      | session::profile::event | {"event": {"type": "agent_end"}} |
      | session::message-added  | {"custom": {"custom_type": "profile/error"}} |
      | session::status-changed | {"status": "error", "status_reason": "no model"} |
    And reading "session::profile::history" with {"agent_id": "main", "session_id": "cli:a"} answers {"rows": [{"role": "user"}, {"role": "error", "content": "no model"}]}
    And reading "session::profile::get" with {"agent_id": "main", "session_id": "cli:a"} answers {"status": "idle", "completedTurnCount": 0}

  @turns
  # Prevents: two checkpoints of one session at a time.
  Scenario: One checkpoint is under way at a time
    Given I called "session::open" with {"agent_id": "main", "session_id": "cli:a", "source": {"kind": "cli", "interactive": true}}
    And I called "session::post" with {"agent_id": "main", "session_id": "cli:a", "message": {"text": "a note"}, "mode": "append"}
    And calling "session::checkpoint" with {"agent_id": "main", "session_id": "cli:a"} answered {"begun": true, "checkpoint_id": "<c>"}
    When I call "session::checkpoint" with {"agent_id": "main", "session_id": "cli:a"}
    Then it answers {"begun": false, "checkpoint_id": "<absent>"}
    And no event fired
    And reading "session::profile::get" with {"agent_id": "main", "session_id": "cli:a"} answers {"checkpoint": {"underway": "<c>"}}

  @turns
  # Prevents: a checkpoint about nothing.
  Scenario: A checkpoint with nothing new does not begin
    Given I called "session::open" with {"agent_id": "main", "session_id": "cli:a", "source": {"kind": "cli", "interactive": true}}
    When I call "session::checkpoint" with {"agent_id": "main", "session_id": "cli:a"}
    Then it answers {"begun": false}
    And no event fired
    And reading "session::profile::get" with {"agent_id": "main", "session_id": "cli:a"} answers {"checkpoint": {"underway": "<absent>"}}

  @turns
  # Prevents: a worker that learned something in vain.
  Scenario: A successful checkpoint writes memory and description and moves the cursor
    Given I called "session::open" with {"agent_id": "main", "session_id": "cli:a", "source": {"kind": "cli", "interactive": true}}
    And I called "session::post" with {"agent_id": "main", "session_id": "cli:a", "message": {"text": "a note"}, "mode": "append"}
    And calling "session::checkpoint" with {"agent_id": "main", "session_id": "cli:a"} answered {"checkpoint_id": "<c>"}
    And calling "session::checkpoint::claim" with {"checkpoint_id": "<c>", "driver_id": "w"} answered {"claimed": true}
    When I call "session::checkpoint::result" with {"checkpoint_id": "<c>", "success": true, "summary": "s", "working_memory": "wm", "description": "about notes"}
    Then it answers exactly {"accepted": true, "checkpointed": true}
    And these events fired:
      | session::meta-updated  | {"description": "about notes"} |
      | session::message-added | {"custom": {"custom_type": "profile/introspection_end"}} |
    And reading "session::profile::get" with {"agent_id": "main", "session_id": "cli:a"} answers {"workingMemory": "wm", "description": "about notes", "descriptionSource": "ai", "cursor": {"eventId": 1}, "checkpoint": {"ended": "<c>", "checkpointed": true}}
    And reading "session::profile::history" with {"agent_id": "main", "session_id": "cli:a"} answers {"rows": [{"role": "user"}, {"role": "introspection", "introspectionPhase": "start"}, {"role": "introspection", "introspectionPhase": "end", "introspectionSummary": "s"}]}

  @turns
  # Prevents: rows that no checkpoint ever covers.
  Scenario: A failed checkpoint leaves the cursor where it was
    Given I called "session::open" with {"agent_id": "main", "session_id": "cli:a", "source": {"kind": "cli", "interactive": true}}
    And I called "session::post" with {"agent_id": "main", "session_id": "cli:a", "message": {"text": "a note"}, "mode": "append"}
    And calling "session::checkpoint" with {"agent_id": "main", "session_id": "cli:a"} answered {"checkpoint_id": "<c>"}
    And calling "session::checkpoint::claim" with {"checkpoint_id": "<c>", "driver_id": "w"} answered {"claimed": true}
    And I called "session::checkpoint::result" with {"checkpoint_id": "<c>", "success": false}
    When I call "session::checkpoint" with {"agent_id": "main", "session_id": "cli:a"}
    Then it answers {"begun": true}
    And these events fired:
      | session::checkpoint::requested | {"agent_id": "main", "session_id": "main/cli:a", "reason": "manual", "after_event_id": 0, "up_to_event_id": 1} |
    And reading "session::profile::get" with {"agent_id": "main", "session_id": "cli:a"} answers {"cursor": {"eventId": 0}}

  @turns
  # Prevents: a replaced session that stays in lists, or is lost.
  Scenario: A new session hides the old one, and opening it brings it back
    Given I called "session::open" with {"agent_id": "main", "session_id": "cli:a", "source": {"kind": "cli", "interactive": true}}
    And I called "session::checkpoint" with {"agent_id": "main", "session_id": "cli:a", "reason": "new_session"}
    And calling "session::profile::list" with {"agent_id": "main"} answered {"rows": []}
    And calling "session::profile::list" with {"agent_id": "main", "include_inactive": true} answered {"rows": [{"status": "inactive"}]}
    When I call "session::open" with {"agent_id": "main", "session_id": "cli:a", "source": {"kind": "cli", "interactive": true}}
    Then it answers {"created": false, "status": "idle"}
    And these events fired:
      | session::status-changed | {"status": "idle", "previous_status": "done"} |
    And reading "session::profile::list" with {"agent_id": "main"} answers {"rows": [{"sessionId": "cli:a", "status": "idle"}]}

  @turns
  # Prevents: the history of a group that one person deletes.
  Scenario: A group session is not deleted
    Given I called "session::open" with {"agent_id": "main", "session_id": "telegram:g", "source": {"kind": "channel", "interactive": true, "platform": "telegram", "type": "group"}}
    When I call "session::profile::delete" with {"agent_id": "main", "session_id": "telegram:g"}
    Then it answers exactly {"deleted": false, "conflict": "Cannot delete group sessions."}
    And no event fired
    And nothing changed

  @turns
  # Prevents: a turn whose session is gone.
  Scenario: A running session is not deleted
    Given I called "session::open" with {"agent_id": "main", "session_id": "cli:a", "source": {"kind": "cli", "interactive": true}}
    And I called "session::post" with {"agent_id": "main", "session_id": "cli:a", "message": {"text": "hi"}}
    When I call "session::profile::delete" with {"agent_id": "main", "session_id": "cli:a"}
    Then it answers exactly {"deleted": false, "conflict": "Cannot delete a running session."}
    And no event fired
    And nothing changed

  @turns
  # Prevents: a deleted session that is still listed.
  Scenario: An idle direct session is deleted with everything of it
    Given I called "session::open" with {"agent_id": "main", "session_id": "cli:a", "source": {"kind": "cli", "interactive": true}}
    When I call "session::profile::delete" with {"agent_id": "main", "session_id": "cli:a"}
    Then it answers exactly {"deleted": true}
    And these events fired:
      | session::deleted | {"session_id": "main/cli:a"} |
    And reading "session::profile::list" with {"agent_id": "main", "include_inactive": true} answers {"rows": []}
    And reading "session::profile::get" with {"agent_id": "main", "session_id": "cli:a"} fails with "session/not_found"

  @turns
  # Prevents: an append that clients of the model do not see.
  Scenario: Messages appended to the store are told in the stream
    Given I called "session::open" with {"agent_id": "main", "session_id": "cli:a", "source": {"kind": "cli", "interactive": true}}
    When I call "session::append" with {"session_id": "main/cli:a", "entry_id": "e", "message": "<assistant:from elsewhere>"}
    Then it answers {"entry_id": "e"}
    And these events fired:
      | session::message-added  | {"entry_id": "e"} |
      | session::profile::event | {"event_id": 1, "event": {"type": "text_final", "text": "from elsewhere"}} |
    And reading "session::profile::history" with {"agent_id": "main", "session_id": "cli:a"} answers {"rows": [{"role": "assistant", "content": "from elsewhere"}]}

  @turns
  # Prevents: bad input that is stored, or an error without the name of the field.
  Scenario: session::open refuses a wrong session_id
    Given a session "s"
    When I call "session::open" with {"agent_id": "main", "session_id": "", "source": {"kind": "cli", "interactive": true}}
    Then it fails with "session/invalid_request", saying "session_id"
    And no event fired
    And nothing changed

  @turns
  # Prevents: bad input that is stored, or an error without the name of the field.
  Scenario: session::open refuses a wrong source
    Given a session "s"
    When I call "session::open" with {"agent_id": "main", "session_id": "cli:a"}
    Then it fails with "session/invalid_request", saying "source"
    And no event fired
    And nothing changed

  @turns
  # Prevents: bad input that is stored, or an error without the name of the field.
  Scenario: session::open refuses a wrong metadata.a
    Given a session "s"
    When I call "session::open" with {"agent_id": "main", "session_id": "cli:a", "source": {"kind": "cli", "interactive": true}, "metadata": {"a": {}}}
    Then it fails with "session/invalid_request", saying "metadata.a"
    And no event fired
    And nothing changed

  @turns
  # Prevents: bad input that is stored, or an error without the name of the field.
  Scenario: session::post refuses a wrong text
    Given a session "s"
    When I call "session::post" with {"agent_id": "main", "session_id": "cli:a", "message": {}}
    Then it fails with "session/invalid_request", saying "text"
    And no event fired
    And nothing changed

  @turns
  # Prevents: bad input that is stored, or an error without the name of the field.
  Scenario: session::post refuses a wrong occurredAt
    Given a session "s"
    When I call "session::post" with {"agent_id": "main", "session_id": "cli:a", "message": {"text": "a", "occurredAt": "now"}}
    Then it fails with "session/invalid_request", saying "occurredAt"
    And no event fired
    And nothing changed

  @turns
  # Prevents: bad input that is stored, or an error without the name of the field.
  Scenario: session::identity::merge refuses a wrong user_id
    Given a session "s"
    When I call "session::identity::merge" with {"user_id": "nobody", "into": "no one"}
    Then it fails with "session/invalid_request", saying "user_id"
    And no event fired
    And nothing changed

  @turns
  # Prevents: bad input that is stored, or an error without the name of the field.
  Scenario: session::identity::set-channel-token refuses a wrong digest
    Given a session "s"
    When I call "session::identity::set-channel-token" with {"agent_id": "main", "namespace": "telegram", "digest": "secret"}
    Then it fails with "session/invalid_request", saying "digest"
    And no event fired
    And nothing changed

  @turns
  # Prevents: bad input that is stored, or an error without the name of the field.
  Scenario: session::checkpoint::claim refuses a wrong checkpoint_id
    Given a session "s"
    When I call "session::checkpoint::claim" with {"checkpoint_id": "nothing", "driver_id": "d"}
    Then it fails with "session/invalid_request", saying "checkpoint_id"
    And no event fired
    And nothing changed

  @turns @durable
  # Prevents: profiles, people or streams that are lost with the process.
  Scenario: Everything of the model survives a restart
    Given I called "session::open" with {"agent_id": "main", "session_id": "web:a", "source": {"kind": "cli", "interactive": true}, "caller": {"channel": "web", "channel_user_id": "ann"}}
    And I called "session::post" with {"agent_id": "main", "session_id": "web:a", "message": {"text": "hi", "messageId": "m1"}, "caller": {"channel": "web", "channel_user_id": "ann"}}
    And the node has restarted
    When I call "session::profile::get" with {"agent_id": "main", "session_id": "web:a", "caller": {"channel": "web", "channel_user_id": "ann"}}
    Then it answers {"status": "running", "messageCount": 1, "lastEventId": 1, "description": "hi"}
    And no event fired
    And reading "session::profile::events" with {"agent_id": "main", "session_id": "web:a", "after": 0} answers {"events": [{"event_id": 1, "event": {"type": "user_message", "text": "hi"}}], "oldest": 1, "last": 1}
