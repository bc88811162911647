@door
Feature: The session model at its door: HTTP, server-sent events and the WebSocket of real nodes

  # The numbers in front of names are those of the scenarios that the model was specified with.

  # Prevents: a reply that the history or the store tells differently.
  Scenario: 1 A posted message is answered, and its history agrees with the transcript
    Given an agent
    And Ann has the session "cli:a"
    When Ann begins to send POST "/sessions/cli%3Aa/messages?wait=true" with {"text": "hi", "messageId": "m1"}
    And the driver Dora echoes
    Then Ann gets exactly 200 {"sessionId": "cli:a", "messageId": "m1", "text": "echo: hi", "toolCalls": []}
    And the summary of "cli:a" is {"status": "idle", "messageCount": 2, "lastEventId": 6, "description": "hi", "lastMessagePreview": "echo: hi"}
    When Ann sends GET "/sessions/cli%3Aa/messages"
    Then Ann gets 200 [{"role": "user", "content": "hi", "messageId": "m1"}, {"role": "assistant", "content": "echo: hi"}]
    And reading "session::messages" with {"session_id": "main/cli:a"} answers {"messages": [{"message": {"role": "user", "content": "<content:hi>"}}, {"message": {"role": "assistant", "content": "<content:echo: hi>"}}]}

  # Prevents: a stream that shows more than its turn, or does not end.
  Scenario: 2 A stream shows one turn and ends with it, also for the same message again
    Given an agent
    And Ann has the session "cli:a"
    When Ann streams "hello" as "m1" in "cli:a"
    And the driver Dora echoes
    Then Ann's stream shows exactly:
      | number | type         | data |
      |        | message_ack  | {"sessionId": "cli:a", "messageId": "m1"} |
      | 1      | user_message | {"sessionId": "cli:a", "text": "hello", "correlationId": "m1"} |
      | 2      | agent_start  | {"sessionId": "cli:a", "correlationId": "m1"} |
      | 3      | text_delta   | {"sessionId": "cli:a", "text": "echo:", "correlationId": "m1"} |
      | 4      | text_delta   | {"sessionId": "cli:a", "text": " hello", "correlationId": "m1"} |
      | 5      | text_final   | {"sessionId": "cli:a", "text": "echo: hello", "correlationId": "m1"} |
      | 6      | agent_end    | {"sessionId": "cli:a", "messageId": "m1", "correlationId": "m1"} |
    And Ann's stream ends
    When Ann streams "hello" as "m1" in "cli:a"
    Then Ann's stream shows exactly:
      | number | type         | data |
      |        | message_ack  | {"sessionId": "cli:a", "messageId": "m1"} |
      | 1      | user_message | {"text": "hello"} |
      | 2      | agent_start  | {} |
      | 3      | text_delta   | {"text": "echo:"} |
      | 4      | text_delta   | {"text": " hello"} |
      | 5      | text_final   | {"text": "echo: hello"} |
      | 6      | agent_end    | {"messageId": "m1"} |
    And Ann's stream ends
    And the summary of "cli:a" is {"messageCount": 2, "lastEventId": 6}

  # Prevents: a message that is lost because no driver was there, or a client that does not learn why it waits.
  Scenario: 3 Without a driver the message waits, and a driver that starts now answers it
    Given an agent
    And Ann has the session "cli:a"
    When Ann sends POST "/sessions/cli%3Aa/messages?wait=true&timeout=500" with {"text": "hi", "messageId": "m1"}
    Then Ann gets exactly 504 {"sessionId": "cli:a", "messageId": "m1", "text": null, "toolCalls": [], "error": "Timeout waiting for agent response: no driver has taken the turn."}
    And the summary of "cli:a" is {"status": "running", "messageCount": 1}
    When the driver Dora echoes
    And Ann sends POST "/sessions/cli%3Aa/messages?wait=true" with {"text": "hi", "messageId": "m1"}
    Then Ann gets exactly 200 {"sessionId": "cli:a", "messageId": "m1", "text": "echo: hi", "toolCalls": []}
    When Ann sends GET "/sessions/cli%3Aa/messages"
    Then Ann gets 200 [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "echo: hi"}]

  @three-nodes
  # Prevents: a reply that loses words, or says them twice, when the leader is lost.
  Scenario: 4 A stream through a follower goes on when the leader is killed in the middle of a reply
    Given an agent
    And Ann has the session "cli:a"
    When Ann streams "go on" as "m1" in "cli:a"
    And the driver Dora takes the turn of "go on"
    And Dora emits 10 deltas
    And Ann's stream goes on until "text_delta"
    And the leader is killed
    And Dora emits 10 deltas
    And Dora completes the turn
    Then Ann's stream goes on until "agent_end"
    And Ann's stream ends
    And Ann has seen every number from 1 to that of "agent_end"
    And the deltas that Ann has seen are 20, and the final text
    And the summary of "cli:a" is {"status": "idle", "messageCount": 2, "lastEventId": 24}

  @three-nodes
  # Prevents: a client that loses events, or gets them twice, because it must go to another node.
  Scenario Outline: 5 When the <place> that serves a client is killed, another node has exactly the rest
    Given an agent
    And Ann is at the <place>
    And Ann has the session "cli:a"
    And Ann follows "cli:a"
    And Ann sends POST "/sessions/cli%3Aa/messages" with {"text": "go on", "messageId": "m1"}
    When the driver Dora takes the turn of "go on"
    And Dora emits 10 deltas
    And Ann's stream goes on until "text_delta"
    And the node of Ann is killed
    And Dora emits 10 deltas
    And Dora completes the turn
    And Ann follows "cli:a" there, after what she has seen
    Then Ann's stream goes on until "agent_end"
    And Ann has seen every number from 1 to that of "agent_end"
    And the deltas that Ann has seen are 20, and the final text
    And Ann gets 200 {"messageId": "m1", "triggered": true}
    When Ann sends POST "/sessions/cli%3Aa/messages?append=true" with {"text": "live"}
    Then Ann gets exactly 200 {"sessionId": "cli:a", "appended": true}
    And Ann's stream shows exactly:
      | number | type         | data |
      | 25     | user_message | {"text": "live"} |

    Examples:
      | place    |
      | leader   |
      | follower |

  # Prevents: numbers, counts or events that a restart changes, and a subscriber who is told that it has all too early.
  Scenario: 6 After a restart a client gets what it missed, before the answer, and then what happens
    Given an agent
    And Ann has the session "cli:a"
    And Ann appended 60 messages to "cli:a"
    When the nodes restart
    And Ann opens a socket
    And Ann asks "session.subscribe" with {"sessionId": "cli:a", "lastEventId": 50}
    Then Ann hears {"subscribed": true}
    And before that came the events 51 to 60 to Ann
    And the summary of "cli:a" is {"messageCount": 60, "lastEventId": 60, "status": "idle"}
    When Bob follows "cli:a" after 55
    Then Bob is told that the next number is 61
    And Bob's stream shows the numbers from 56 to 60
    When Ann asks "session.message" with {"sessionId": "cli:a", "text": "live", "messageId": "m1"}
    Then Ann hears {"sessionId": "cli:a", "messageId": "m1", "triggered": true}
    And Ann's socket shows {"kind": "event", "eventId": 61, "sessionId": "cli:a", "event": {"type": "user_message", "eventId": "61", "text": "live"}}
    And Bob's stream shows exactly:
      | number | type         | data |
      | 61     | user_message | {"text": "live", "correlationId": "m1"} |
    And the summary of "cli:a" is {"messageCount": 61, "lastEventId": 61, "status": "running"}

  # Prevents: an agent that answers what was not said to it, or hears it in other words, and messages that are lost.
  Scenario: 7 The role of the sender and the mention decide about a message in a group
    Given an agent
    And Ann has the group "telegram:g"
    Then messages of Ann in "telegram:g" reach the driver Dora so:
      | role    | mentioned | prompt                             |
      | owner   | true      | [Ann] TEXT                         |
      | owner   | absent    | [Ann] TEXT                         |
      | owner   | false     | [Ann] [not directed at you] TEXT   |
      | user    | true      | [Ann] TEXT                         |
      | user    | absent    | [Ann] TEXT                         |
      | user    | false     |                                    |
      | guest   | true      | [Ann] TEXT                         |
      | guest   | absent    | [Ann] TEXT                         |
      | guest   | false     |                                    |
      | unknown | true      | [Ann] TEXT                         |
      | unknown | absent    | [Ann] TEXT                         |
      | unknown | false     |                                    |
    And the summary of "telegram:g" is {"messageCount": 12, "status": "idle", "description": "text 0"}

  # Prevents: a direct message that is not answered because it mentions nobody.
  Scenario: 7 A direct message always asks for a turn, in its own words
    Given an agent
    And Ann has the session "telegram:1"
    Then messages of Ann in "telegram:1" reach the driver Dora so:
      | role    | mentioned | prompt |
      | owner   | false     | TEXT   |
      | user    | true      | TEXT   |
      | guest   | false     | TEXT   |
      | unknown | absent    | TEXT   |

  # Prevents: a session that changes where it came from, or a visitor who becomes a participant.
  Scenario: 8 A session of Telegram that its owner opens from the web stays one of Telegram
    Given an agent among people
    And Ops sends POST "/sessions" with {"sessionId": "telegram:1", "source": {"kind": "channel", "interactive": true, "platform": "telegram"}, "metadata": {"telegram_user_id": 7, "a": 1}}
    And calling "session::identity::link" with {"channel": "web", "channel_user_id": "olga"} answered {"user_id": "<olga>"}
    And calling "session::identity::link" with {"channel": "telegram", "channel_user_id": "7"} answered {"user_id": "<seven>"}
    And I called "session::identity::set-role" with {"agent_id": "main", "user_id": "<olga>", "role": "owner"}
    And the summary of "telegram:1" is {"userIds": ["<seven>"]}
    When Olga sends POST "/sessions" with {"sessionId": "telegram:1", "source": {"kind": "api", "interactive": false}, "metadata": {"a": 2, "b": true}}
    Then Ops gets 200 {"sessionId": "telegram:1"}
    And Olga gets exactly 200 {"sessionId": "telegram:1"}
    And the summary of "telegram:1" is {"source": {"kind": "channel", "interactive": true, "platform": "telegram"}, "metadata": {"telegram_user_id": 7, "a": 2, "b": true}, "userIds": ["<seven>"]}

  # Prevents: a stranger who learns that a session is there, at any route and any door.
  Scenario: 9 A person finds only what the person takes part in
    Given an agent among people
    And Ann has the session "web:a"
    And Ann appended 1 message to "web:a"
    Then Bob gets the same answer about "web:a" as about "web:b", which is not there:
      | method | path                                  | body                                |
      | GET    | /sessions/SESSION/messages            |                                     |
      | POST   | /sessions/SESSION/messages            | {"text": "x"}                       |
      | POST   | /sessions/SESSION/messages?append=true | {"text": "x"}                      |
      | POST   | /sessions/SESSION/messages?wait=true  | {"text": "x"}                       |
      | POST   | /sessions/SESSION/messages?stream=true | {"text": "x"}                      |
      | POST   | /sessions/SESSION/approve             | {"toolCallId": "c", "approved": true} |
      | POST   | /sessions/SESSION/checkpoint          |                                     |
      | GET    | /sessions/SESSION/events              |                                     |
      | DELETE | /sessions/SESSION                     |                                     |
    When Bob sends POST "/sessions" with {"sessionId": "web:a", "source": {"kind": "api", "interactive": true}}
    And Bob sends GET "/sessions"
    And Ann sends GET "/sessions"
    Then Bob gets exactly 404 {"error": {"code": "not_found", "message": "Session not found: web:a"}}
    And Bob gets exactly 200 []
    And Ann gets 200 [{"sessionId": "web:a", "userIds": "<absent>"}]
    And the summary of "web:a" is {"messageCount": 1, "userIds": ["<ann>"]}
    When Bob opens a socket
    Then these requests on Bob's socket are refused:
      | method             | params                                                          | code              |
      | session.history    | {"sessionId": "web:a"}                                          | SESSION_NOT_FOUND |
      | session.message    | {"sessionId": "web:a", "text": "x"}                             | SESSION_NOT_FOUND |
      | session.approve    | {"sessionId": "web:a", "toolCallId": "c", "approved": true}     | SESSION_NOT_FOUND |
      | session.checkpoint | {"sessionId": "web:a"}                                          | SESSION_NOT_FOUND |
      | session.delete     | {"sessionId": "web:a"}                                          | SESSION_NOT_FOUND |
      | session.subscribe  | {"sessionId": "web:a"}                                          | SESSION_NOT_FOUND |
      | session.open       | {"sessionId": "web:a", "source": {"kind": "api", "interactive": true}} | SESSION_NOT_FOUND |
    And these functions show Bob nothing:
      | function                    | body                                                                         |
      | session::get                | {"session_id": "main/web:a"}                                                 |
      | session::messages           | {"session_id": "main/web:a"}                                                 |
      | session::append             | {"session_id": "main/web:a", "message": {"role": "user"}}                    |
      | session::profile::history   | {"agent_id": "main", "session_id": "web:a"}                                  |
      | session::identity::set-role | {"agent_id": "main", "user_id": "u", "role": "owner"}                        |
      | session::list               | {}                                                                           |
    And nobody gets in with a token that is wrong, or signed with another key

  # Prevents: a merge or a new role that does not count.
  Scenario: 10 Merged identities and new roles count when a session is opened
    Given an agent among people
    And Ann has the session "web:a"
    And calling "session::identity::resolve" with {"channel": "web", "channel_user_id": "ann"} answered {"user_id": "<ann>"}
    And calling "session::identity::link" with {"channel": "web", "channel_user_id": "bob"} answered {"user_id": "<bob>"}
    And calling "session::identity::link" with {"channel": "web", "channel_user_id": "olga"} answered {"user_id": "<olga>"}
    When Bob sends POST "/sessions" with {"sessionId": "web:a", "source": {"kind": "api", "interactive": true}}
    And Olga sends POST "/sessions" with {"sessionId": "web:a", "source": {"kind": "api", "interactive": true}}
    Then Bob gets 404 {"error": {"code": "not_found"}}
    And Olga gets 404 {"error": {"code": "not_found"}}
    Given I called "session::identity::merge" with {"user_id": "<bob>", "into": "<ann>"}
    And I called "session::identity::set-role" with {"agent_id": "main", "user_id": "<olga>", "role": "owner"}
    When Bob sends POST "/sessions" with {"sessionId": "web:a", "source": {"kind": "api", "interactive": true}}
    And Olga sends POST "/sessions" with {"sessionId": "web:a", "source": {"kind": "api", "interactive": true}}
    And Bob sends GET "/sessions"
    Then Bob gets exactly 200 {"sessionId": "web:a"}
    And Olga gets exactly 200 {"sessionId": "web:a"}
    And Bob gets 200 [{"sessionId": "web:a"}]
    And the summary of "web:a" is {"userIds": ["<ann>"]}

  # Prevents: an adapter that reads or writes outside its channel, or at another agent.
  Scenario: 11 The token of a channel stays in its namespace
    Given an agent
    And the adapter Tina of "telegram"
    And Ann has the session "slack:1"
    And Tina has the group "telegram:1"
    When Tina sends POST "/sessions" with {"sessionId": "slack:2", "source": {"kind": "channel", "interactive": true}}
    Then Tina gets 400 {"error": {"code": "validation_error"}}
    When Tina sends POST "/sessions" with {"sessionId": "slack:1", "source": {"kind": "channel", "interactive": true}}
    Then Tina gets 400 {"error": {"code": "validation_error"}}
    When Tina sends GET "/sessions/slack%3A1/messages"
    Then Tina gets 400 {"error": {"code": "validation_error"}}
    When Tina sends POST "/sessions/telegram%3A1/messages" with {"text": "a", "sender": {"channel": "slack", "channelUserId": "7"}}
    Then Tina gets 400 {"error": {"code": "validation_error"}}
    When Tina sends POST "/sessions/telegram%3A1/messages" with {"text": "a", "messageId": "m1", "sender": {"channel": "telegram", "channelUserId": "7", "displayName": "Ann"}}
    Then Tina gets exactly 200 {"sessionId": "telegram:1", "messageId": "m1", "triggered": true}
    When Tina sends GET "/sessions"
    Then Tina gets 200 [{"sessionId": "telegram:1", "messageCount": 1, "userIds": "<absent>"}]
    And at the agent "other" Tina gets 401, and 403 at its socket

  # Prevents: two checkpoints at a time, one about nothing, and messages that none ever covers.
  Scenario: 12 Of two checkpoints at once one is made, and a failed one is repeated over the same messages
    Given an agent
    And Ann has the session "cli:a"
    And Ann appended 2 messages to "cli:a"
    And the worker Wim
    When Ann begins to send POST "/sessions/cli%3Aa/checkpoint" with {"reason": "manual"}
    And Bob begins to send POST "/sessions/cli%3Aa/checkpoint"
    And Wim is asked for the checkpoint {"agent_id": "main", "session_id": "main/cli:a", "reason": "manual", "after_event_id": 0, "up_to_event_id": 2}
    And Wim takes it, and ends it with {"success": true, "summary": "two notes"}
    Then one of Ann and Bob gets 200 {"checkpointed": true}, and the other {"checkpointed": false}
    When Ann sends POST "/sessions/cli%3Aa/checkpoint" with null
    Then Ann gets exactly 200 {"checkpointed": false}
    Given Ann appended 1 message to "cli:a"
    When Ann begins to send POST "/sessions/cli%3Aa/checkpoint"
    And Wim is asked for the checkpoint {"after_event_id": 2, "up_to_event_id": 3}
    And Wim takes it, and ends it with {"success": false}
    Then Ann gets exactly 200 {"checkpointed": false}
    When Ann begins to send POST "/sessions/cli%3Aa/checkpoint"
    And Wim is asked for the checkpoint {"after_event_id": 2, "up_to_event_id": 3}
    And Wim takes it, and ends it with {"success": true, "summary": "one more"}
    Then Ann gets exactly 200 {"checkpointed": true}
    When Ann sends GET "/sessions/cli%3Aa/messages"
    Then Ann gets 200 [{"role": "user"}, {"role": "user"}, {"introspectionPhase": "start"}, {"introspectionSummary": "two notes"}, {"role": "user"}, {"introspectionPhase": "start"}, {"introspectionPhase": "end"}, {"introspectionPhase": "start"}, {"introspectionSummary": "one more"}]

  # Prevents: a caller that waits for a quarter of an hour because another checkpoint came right after its own.
  Scenario: 12 Two checkpoints right after each other both have their answer
    Given an agent
    And Ann has the session "cli:a"
    And Ann appended 1 message to "cli:a"
    And the worker Wim
    When Ann begins to send POST "/sessions/cli%3Aa/checkpoint"
    And Wim is asked for the checkpoint {"after_event_id": 0, "up_to_event_id": 1}
    And Wim takes it, and ends it with {"success": true}
    Given Ann appended 1 message to "cli:a"
    When Bob begins to send POST "/sessions/cli%3Aa/checkpoint"
    And Wim is asked for the checkpoint {"after_event_id": 1, "up_to_event_id": 2}
    And Wim takes it, and ends it with {"success": false}
    Then Ann gets exactly 200 {"checkpointed": true}
    And Bob gets exactly 200 {"checkpointed": false}

  # Prevents: a limit that asks for no checkpoint, or for more than one.
  Scenario: 13 Five turns, and twenty messages without one, ask for one checkpoint each
    Given an agent
    And the worker Wim
    And Ann has the session "cli:a"
    And Ann has the session "cli:b"
    And Ann has the group "slack:g"
    And the driver Dora echoed 6 messages in "cli:a"
    And Ann posted 21 messages to "slack:g" that mention nobody
    And Ann appended 1 message to "cli:b"
    When Ann begins to send POST "/sessions/cli%3Ab/checkpoint"
    Then Wim is asked for the checkpoint {"session_id": "main/cli:a", "reason": "turn_limit", "after_event_id": 0, "up_to_event_id": 30, "turns_since_last": 5}
    And Wim is asked for the checkpoint {"session_id": "main/slack:g", "reason": "idle", "after_event_id": 0, "up_to_event_id": 20}
    And Wim is asked for the checkpoint {"session_id": "main/cli:b", "reason": "manual"}
    When Wim takes it, and ends it with {"success": true}
    Then Ann gets exactly 200 {"checkpointed": true}

  # Prevents: a checkpoint in the middle of a conversation.
  Scenario: 14 A message in time cancels the checkpoint of an idle session
    Given an agent with the settings {"session_model": {"idle_secs": 4}}
    And the worker Wim
    And Ann has the session "cli:a"
    And Ann has the session "cli:b"
    And the driver Dora echoed 1 message in "cli:a"
    When Ann sends POST "/sessions/cli%3Aa/messages" with {"text": "wait"}
    Then Ann gets 200 {"triggered": true}
    When the driver Dora takes the turn of "wait"
    Given the driver Dan echoed 1 message in "cli:b"
    Then Wim is asked for the checkpoint {"session_id": "main/cli:b", "reason": "idle"}

  @three-nodes
  # Prevents: a timer that is lost with the leader, or fires again after it.
  Scenario: 14 An idle session has one checkpoint although the leader is killed
    Given an agent with the settings {"session_model": {"idle_secs": 3}}
    And the worker Wim
    And Ann has the session "cli:a"
    And Ann has the session "cli:b"
    And the driver Dora echoed 1 message in "cli:a"
    When the leader is killed
    Then Wim is asked for the checkpoint {"session_id": "main/cli:a", "reason": "idle", "after_event_id": 0, "up_to_event_id": 6, "turns_since_last": 1}
    When Wim takes it, and ends it with {"success": true, "description": "a greeting"}
    Given the driver Dora echoed 1 message in "cli:b"
    Then Wim is asked for the checkpoint {"session_id": "main/cli:b", "reason": "idle"}
    Given the driver Dora echoed 1 message in "cli:a"
    Then Wim is asked for the checkpoint {"session_id": "main/cli:a", "reason": "idle", "after_event_id": 6, "up_to_event_id": 12}
    And the summary of "cli:a" is {"description": "a greeting", "messageCount": 4}

  # Prevents: a replaced session that stays in lists because its checkpoint failed, or that is lost.
  Scenario: 15 A session whose last checkpoint failed is hidden, and opening it brings it back
    Given an agent
    And the worker Wim
    And Ann has the session "cli:a"
    And Ann appended 1 message to "cli:a"
    When Ann begins to send POST "/sessions/cli%3Aa/checkpoint" with {"reason": "new_session"}
    And Wim is asked for the checkpoint {"reason": "new_session"}
    And Wim takes it, and ends it with {"success": false}
    Then Ann gets exactly 200 {"checkpointed": false}
    When Ann sends GET "/sessions"
    And Ann sends GET "/sessions?includeInactive=true"
    Then Ann gets exactly 200 []
    And Ann gets 200 [{"sessionId": "cli:a", "status": "inactive"}]
    When Ann opens the session "cli:a"
    And Ann sends GET "/sessions"
    Then Ann gets 200 [{"sessionId": "cli:a", "status": "idle", "messageCount": 1}]

  # Prevents: the history of a group that one person deletes, and turns whose session is gone.
  Scenario: 16 Only an idle session of one person is deleted
    Given an agent
    And Ann has the session "cli:a"
    And Ann has the group "telegram:g"
    When Ann sends DELETE "/sessions/telegram%3Ag"
    Then Ann gets exactly 409 {"error": {"code": "conflict", "message": "Cannot delete group sessions."}}
    When Ann sends POST "/sessions/cli%3Aa/messages" with {"text": "remove it"}
    And Ann sends DELETE "/sessions/cli%3Aa"
    Then Ann gets 200 {"triggered": true}
    And Ann gets exactly 409 {"error": {"code": "conflict", "message": "Cannot delete a running session."}}
    When the driver Dora takes the turn of "remove it"
    And Dora emits {"type": "tool_approval_required", "toolName": "rm", "toolCallId": "c1"}
    And Ann sends GET "/sessions?kind=cli"
    And Ann sends DELETE "/sessions/cli%3Aa"
    Then Ann gets 200 [{"sessionId": "cli:a", "status": "awaiting_approval"}]
    And Ann gets exactly 409 {"error": {"code": "conflict", "message": "Cannot delete a running session."}}
    When Ann sends POST "/sessions/cli%3Aa/approve" with {"toolCallId": "c1", "approved": false}
    And Dora emits {"type": "text_delta", "text": "then not"}
    And Dora completes the turn
    And Ann sends DELETE "/sessions/cli%3Aa"
    Then Ann gets exactly 200 {"resolved": true}
    And Ann gets exactly 200 {"deleted": true}
    When Ann sends GET "/sessions/cli%3Aa/messages"
    And Ann sends DELETE "/sessions/cli%3Aa"
    And Ann sends GET "/sessions?includeInactive=true"
    Then Ann gets exactly 404 {"error": {"code": "not_found", "message": "Session not found: cli:a"}}
    And Ann gets 404 {"error": {"code": "not_found"}}
    And Ann gets 200 [{"sessionId": "telegram:g"}]

  # Prevents: two people who both think that their decision counts.
  Scenario: 17 Of two decisions about a tool call one counts
    Given an agent
    And Ann has the session "cli:a"
    And Ann follows "cli:a"
    And Ann sends POST "/sessions/cli%3Aa/messages" with {"text": "remove it"}
    When the driver Dora takes the turn of "remove it"
    And Dora emits {"type": "tool_approval_required", "toolName": "rm", "toolCallId": "c1", "args": {"path": "x"}}
    Then Ann gets 200 {"triggered": true}
    And the summary of "cli:a" is {"status": "awaiting_approval"}
    When Ann begins to send POST "/sessions/cli%3Aa/approve" with {"toolCallId": "c1", "approved": true}
    And Bob begins to send POST "/sessions/cli%3Aa/approve" with {"toolCallId": "c1", "approved": false}
    Then one of Ann and Bob gets 200 {"resolved": true}, and the other {"resolved": false}
    And the summary of "cli:a" is {"status": "running"}
    When Dora emits {"type": "text_delta", "text": "done"}
    And Dora completes the turn
    Then Ann's stream goes on until "agent_end"
    And Ann has seen each of these once: "tool_approval_required", "approval_requested", "approval_resolved", "text_final"

  # Prevents: a retry that is stored twice, asks for a second turn, or stays without the reply.
  Scenario: 18 A message that is posted twice has one entry and one turn, and both get the reply
    Given an agent
    And Ann has the session "cli:a"
    When Ann begins to send POST "/sessions/cli%3Aa/messages?wait=true" with {"text": "hi", "messageId": "m1"}
    And Bob begins to send POST "/sessions/cli%3Aa/messages?wait=true" with {"text": "hi", "messageId": "m1"}
    And the driver Dora echoes
    Then Ann gets exactly 200 {"sessionId": "cli:a", "messageId": "m1", "text": "echo: hi", "toolCalls": []}
    And Bob gets exactly 200 {"sessionId": "cli:a", "messageId": "m1", "text": "echo: hi", "toolCalls": []}
    And the summary of "cli:a" is {"messageCount": 2, "lastEventId": 6, "status": "idle"}
    And reading "session::turn::pending" with {"agent_id": "main"} answers {"turns": []}
    When Ann sends GET "/sessions/cli%3Aa/messages"
    Then Ann gets 200 [{"role": "user", "messageId": "m1"}, {"role": "assistant"}]

  # Prevents: drivers that run two turns of a session at once, or in another order.
  Scenario: 19 Of two drivers one has each turn, and the turns of a session run one after the other
    Given an agent
    And Ann has the session "cli:a"
    When Ann begins to send POST "/sessions/cli%3Aa/messages" with {"text": "one", "messageId": "m1"}
    And Bob begins to send POST "/sessions/cli%3Aa/messages" with {"text": "two", "messageId": "m2"}
    And Cid begins to send POST "/sessions/cli%3Aa/messages" with {"text": "three", "messageId": "m3"}
    Then Ann gets exactly 200 {"sessionId": "cli:a", "messageId": "m1", "triggered": true}
    And Bob gets exactly 200 {"sessionId": "cli:a", "messageId": "m2", "triggered": true}
    And Cid gets exactly 200 {"sessionId": "cli:a", "messageId": "m3", "triggered": true}
    And Dora and Dan run 3 turns of "cli:a", each one of them, in the order of the history
    And the summary of "cli:a" is {"status": "idle", "messageCount": 6, "lastMessagePreview": "reply 2"}

  # Prevents: an adapter that takes the end of an old turn for that of its own.
  Scenario: 20 An adapter that posts and then connects sees its own turn and none before it
    Given an agent
    And the adapter Tina of "telegram"
    And Tina has the session "telegram:1"
    And the driver Dora echoed 2 messages in "telegram:1"
    When Tina sends POST "/sessions/telegram%3A1/messages" with {"text": "again", "messageId": "m9"}
    And Tina follows "telegram:1"
    And the driver Dora echoes
    Then Tina's stream goes on until "agent_end"
    And what Tina has seen belongs to "m9"
    And Tina gets 200 {"messageId": "m9", "triggered": true}
    # The turn has ended before the adapter connects.
    When Tina follows "telegram:1"
    Then Tina's stream goes on until "agent_end"
    And what Tina has seen belongs to "m9"

  # Prevents: a client that waits for a turn which a message does not ask for.
  Scenario: Who waits for a message that asks for no turn gets the answer at once
    Given an agent
    And Ann has the group "telegram:g"
    When Ann sends POST "/sessions/telegram%3Ag/messages?wait=true" with {"text": "a", "messageId": "m1", "mentioned": false}
    And Ann sends POST "/sessions/telegram%3Ag/messages?stream=true" with {"text": "b", "messageId": "m2", "mentioned": false}
    And Ann sends POST "/sessions/telegram%3Ag/messages" with {"text": "c", "messageId": "m3", "mentioned": false}
    Then Ann gets exactly 200 {"sessionId": "telegram:g", "messageId": "m1", "text": null, "toolCalls": [], "triggered": false}
    And Ann gets exactly 200 {"sessionId": "telegram:g", "messageId": "m2", "triggered": false}
    And Ann gets exactly 200 {"sessionId": "telegram:g", "messageId": "m3", "triggered": false}
    And the summary of "telegram:g" is {"status": "idle", "messageCount": 3}

  # Prevents: a reply without what its tools said, or an error that is told as a reply.
  Scenario: Who waits gets the tool calls, the last text and the last error of the turn
    Given an agent
    And Ann has the session "cli:a"
    When Ann begins to send POST "/sessions/cli%3Aa/messages?wait=true" with {"text": "list", "messageId": "m1"}
    And the driver Dora takes the turn of "list"
    And Dora emits {"type": "tool_call", "tool": "ls", "toolCallId": "c1", "args": {"path": "."}}
    And Dora emits {"type": "tool_result", "tool": "ls", "toolCallId": "c1", "isError": false, "text": "a b", "details": {"files": 2}}
    And Dora emits {"type": "text_delta", "text": "two files"}
    And Dora completes the turn
    Then Ann gets exactly 200 {"sessionId": "cli:a", "messageId": "m1", "text": "two files", "toolCalls": [{"tool": "ls", "args": {"path": "."}, "isError": false, "text": "a b", "details": {"files": 2}}]}
    When Ann begins to send POST "/sessions/cli%3Aa/messages?wait=true" with {"text": "again", "messageId": "m2"}
    And the driver Dora takes the turn of "again"
    And Dora emits {"type": "error", "message": "no model"}
    And Dora emits {"type": "agent_end"}
    Then Ann gets exactly 200 {"sessionId": "cli:a", "messageId": "m2", "text": null, "toolCalls": [], "error": "no model"}
    And the summary of "cli:a" is {"status": "idle"}

  # Prevents: an append that is stored twice, wakes the agent, or is taken for a post because of another parameter.
  Scenario: Appending wins over waiting and streaming, and a repeat is told
    Given an agent
    And Ann has the session "cli:a"
    When Ann sends POST "/sessions/cli%3Aa/messages?append=true&wait=true&stream=true" with {"text": "a", "messageId": "m1"}
    And Ann sends POST "/sessions/cli%3Aa/messages?inject=true" with {"text": "a", "messageId": "m1"}
    And Ann sends POST "/sessions/cli%3Aa/messages?append=true" with {"text": "said elsewhere", "messageId": "m2", "appendAs": "assistant", "occurredAt": "2026-01-29T10:00:00.000Z"}
    And Ann sends GET "/sessions/cli%3Aa/messages"
    Then Ann gets exactly 200 {"sessionId": "cli:a", "appended": true}
    And Ann gets exactly 200 {"sessionId": "cli:a", "appended": false, "deduped": true}
    And Ann gets exactly 200 {"sessionId": "cli:a", "appended": true}
    And Ann gets 200 [{"role": "user", "content": "a"}, {"role": "assistant", "content": "said elsewhere", "ts": "2026-01-29T10:00:00.000Z"}]
    And the summary of "cli:a" is {"status": "idle", "messageCount": 2, "lastEventId": 1}

  # Prevents: ids that are cut at a slash, and sessions that two agents share.
  Scenario: An id may have slashes and percent signs, and belongs to one agent
    Given an agent
    And Ann has the session "cli:a/b%"
    And Ann appended 1 message to "cli:a/b%"
    When Ann follows "cli:a/b%"
    Then Ann's stream shows the numbers from 1 to 1
    And reading "session::messages" with {"session_id": "main/cli:a/b%"} answers {"messages": [{"message": {"content": "<content:note 1>"}}]}
    Given calling "session::open" with {"agent_id": "o/ther", "session_id": "cli:a/b%", "source": {"kind": "cli", "interactive": true}} answered {"store_session_id": "o%2Fther/cli:a/b%", "created": true}
    Then the summary of "cli:a/b%" is {"messageCount": 1}
    And reading "session::profile::list" with {"agent_id": "o/ther"} answers {"rows": [{"sessionId": "cli:a/b%", "messageCount": 0}]}
    And each of these requests is refused, and nothing changes:
      | method | path                                | body | status |
      | GET    | /sessions/cli:a/b/messages          |      | 404    |
      | GET    | /sessions/cli%3Aa/messages          |      | 404    |

  # Prevents: a number of another store that hides what is there.
  Scenario: A client with a number that the stream has not reached gets the last events
    Given an agent
    And Ann has the session "cli:a"
    And Ann appended 3 messages to "cli:a"
    When Ann follows "cli:a" after 4
    Then Ann's stream shows the numbers from 1 to 3
    When Ann follows "cli:a" after 3
    And Ann sends POST "/sessions/cli%3Aa/messages?append=true" with {"text": "live"}
    Then Ann's stream shows the numbers from 4 to 4
    And Ann gets 200 {"appended": true}

  # Prevents: bad input that is stored, or an error in another form than clients of the model read.
  Scenario: Bad input gets an error of the model and changes nothing
    Given an agent
    And Ops has the session "cli:a"
    And Ops appended 1 message to "cli:a"
    Then each of these requests is refused, and nothing changes:
      | method | path                                            | body                                                                                         | status |
      | POST   | /sessions                                       | {                                                                                            | 400    |
      | POST   | /sessions                                       | []                                                                                           | 400    |
      | POST   | /sessions                                       | {}                                                                                           | 400    |
      | POST   | /sessions                                       | {"sessionId": "", "source": {"kind": "cli", "interactive": true}}                            | 400    |
      | POST   | /sessions                                       | {"sessionId": 7, "source": {"kind": "cli", "interactive": true}}                             | 400    |
      | POST   | /sessions                                       | {"sessionId": "<text:2000>", "source": {"kind": "cli", "interactive": true}}                 | 400    |
      | POST   | /sessions                                       | {"sessionId": "cli:b", "source": {"kind": "cli"}}                                            | 400    |
      | POST   | /sessions                                       | {"sessionId": "cli:b", "source": {"kind": "cli", "interactive": "yes"}}                      | 400    |
      | POST   | /sessions                                       | {"sessionId": "cli:b", "source": {"kind": "cli", "interactive": true, "type": "crowd"}}      | 400    |
      | POST   | /sessions                                       | {"sessionId": "cli:b", "source": {"kind": "cli", "interactive": true}, "metadata": {"a": []}} | 400   |
      | POST   | /sessions/cli%3Aa/messages                      | {}                                                                                           | 400    |
      | POST   | /sessions/cli%3Aa/messages                      | {"text": 7}                                                                                  | 400    |
      | POST   | /sessions/cli%3Aa/messages                      | {"text": "a", "messageId": ""}                                                               | 400    |
      | POST   | /sessions/cli%3Aa/messages                      | {"text": "a", "sender": {"channel": "web"}}                                                  | 400    |
      | POST   | /sessions/cli%3Aa/messages                      | {"text": "a", "attachments": [{"url": "u"}]}                                                 | 400    |
      | POST   | /sessions/cli%3Aa/messages                      | {"text": "a", "mentioned": "no"}                                                             | 400    |
      | POST   | /sessions/cli%3Aa/messages                      | {"text": "a", "metadata": []}                                                                | 400    |
      | POST   | /sessions/cli%3Aa/messages                      | {"text": "a", "participants": {}}                                                            | 400    |
      | POST   | /sessions/cli%3Aa/messages?wait=true&timeout=soon | {"text": "a"}                                                                              | 400    |
      | POST   | /sessions/cli%3Aa/messages?append=true          | {"text": "a", "occurredAt": "yesterday"}                                                     | 400    |
      | POST   | /sessions/cli%3Aa/messages?append=true          | {"text": "a", "appendAs": "x"}                                                               | 400    |
      | POST   | /sessions/cli%3Aa/approve                       | {"toolCallId": "c"}                                                                          | 400    |
      | POST   | /sessions/cli%3Aa/approve                       | {"approved": true}                                                                           | 400    |
      | POST   | /sessions/cli%3Aa/approve                       | {"toolCallId": 7, "approved": true}                                                          | 400    |
      | POST   | /sessions/cli%3Aa/approve                       | []                                                                                           | 400    |
      | POST   | /sessions/cli%3Aa/checkpoint                    | {"reason": "boredom"}                                                                        | 400    |
      | POST   | /sessions/cli%3Aa/checkpoint                    | "x"                                                                                          | 400    |
      | POST   | /sessions/%zz/checkpoint                        |                                                                                              | 400    |
      | DELETE | /sessions/%zz                                   |                                                                                              | 400    |
      | GET    | /sessions/%zz/events                            |                                                                                              | 400    |
      | GET    | /sessions/%ff/messages                          |                                                                                              | 400    |
      | GET    | /sessions?limit=0                               |                                                                                              | 400    |
      | GET    | /sessions?limit=-1                              |                                                                                              | 400    |
      | GET    | /sessions?limit=many                            |                                                                                              | 400    |
      | GET    | /sessions?interactive=maybe                     |                                                                                              | 400    |
      | GET    | /sessions?includeInactive=2                     |                                                                                              | 400    |
      | GET    | /sessions?kind=%zz                              |                                                                                              | 400    |
      | GET    | /ws                                             |                                                                                              | 400    |
      | GET    | /sessions/cli%3Anone/messages                   |                                                                                              | 404    |
      | GET    | /sessions/cli%3Anone/events                     |                                                                                              | 404    |
      | POST   | /sessions/cli%3Anone/messages                   | {"text": "a"}                                                                                | 404    |
      | POST   | /sessions/cli%3Anone/messages?append=true       | {"text": "a"}                                                                                | 404    |
      | POST   | /sessions/cli%3Anone/messages?wait=true         | {"text": "a"}                                                                                | 404    |
      | POST   | /sessions/cli%3Anone/messages?stream=true       | {"text": "a"}                                                                                | 404    |
      | POST   | /sessions/cli%3Anone/checkpoint                 |                                                                                              | 404    |
      | POST   | /sessions/cli%3Anone/approve                    | {"toolCallId": "c", "approved": true}                                                        | 404    |
      | DELETE | /sessions/cli%3Anone                            |                                                                                              | 404    |
      | POST   | /health                                         |                                                                                              | 404    |
      | PATCH  | /sessions/cli%3Aa                               |                                                                                              | 404    |
      | PUT    | /sessions                                       |                                                                                              | 404    |
      | GET    | /nothing                                        |                                                                                              | 404    |
    And with the header "last-event-id: x" GET "/sessions/cli%3Aa/events" gets 400 "validation_error"
    And with the header "last-event-id: -1" GET "/sessions/cli%3Aa/events" gets 400 "validation_error"
    And with the header "last-event-id: 1.5" GET "/sessions/cli%3Aa/events" gets 400 "validation_error"
    And with the header "authorization: " GET "/sessions" gets 401 "unauthorized"
    And with the header "authorization: Basic x" GET "/sessions" gets 401 "unauthorized"
    And with the header "" GET "/sessions" gets 401 "unauthorized"
    And with the header "" GET "/health" gets 200 "running"

  # Prevents: a request on the socket that ends the connection, changes something, or has no answer.
  Scenario: Bad input on the socket gets an error of the model and changes nothing
    Given an agent
    And Ann has the session "cli:a"
    And Ann has a socket
    And Ann sends POST "/sessions/cli%3Aa/messages" with {"text": "hi"}
    Then these requests on Ann's socket are refused:
      | method              | params                                                            | code              |
      | session.nothing     | {"sessionId": "cli:a"}                                            | INVALID_PARAMS    |
      | session.history     | {}                                                                | INVALID_PARAMS    |
      | session.history     | {"sessionId": "cli:none"}                                         | SESSION_NOT_FOUND |
      | session.history     | "cli:a"                                                           | INVALID_PARAMS    |
      | session.unsubscribe | {"sessionId": "cli:none"}                                         | NOT_SUBSCRIBED    |
      | session.delete      | {"sessionId": "cli:a"}                                            | INTERNAL_ERROR    |
      | session.open        | {"sessionId": "cli:b"}                                            | INVALID_PARAMS    |
      | session.open        | {"source": {"kind": "cli", "interactive": true}}                  | INVALID_PARAMS    |
      | session.message     | {"sessionId": "cli:a"}                                            | INVALID_PARAMS    |
      | session.message     | {"sessionId": "cli:a", "text": 7}                                 | INVALID_PARAMS    |
      | session.approve     | {"sessionId": "cli:a", "toolCallId": "c"}                         | INVALID_PARAMS    |
      | session.checkpoint  | {"sessionId": "cli:a", "reason": "boredom"}                       | INVALID_PARAMS    |
      | session.subscribe   | {"sessionId": "cli:a", "lastEventId": "x"}                        | INVALID_PARAMS    |
      | session.list        | {"limit": 0}                                                      | INVALID_PARAMS    |
      | session.list        | {"interactive": "yes"}                                            | INVALID_PARAMS    |
      | session.list        | {"metadata": {"a": {}}}                                           | INVALID_PARAMS    |
      | session.list        | []                                                                | INVALID_PARAMS    |
    And the text "{" on Ann's socket is refused as "INVALID_PARAMS" with the id ""
    And the text "{"kind": "request", "method": "session.list"}" on Ann's socket is refused as "INVALID_PARAMS" with the id ""
    And the text "{"kind": "note", "id": "7", "method": "session.list"}" on Ann's socket is refused as "INVALID_PARAMS" with the id "7"
    And Ann gets 200 {"triggered": true}
    When Ann asks "session.list" with {}
    Then Ann hears ["<row>"]
    And the summary of "cli:a" is {"messageCount": 1, "status": "running"}

  # Prevents: a request that a client waits for in vain, because a later one took its place.
  Scenario: Every request for a subscription is answered, also if a later one replaces it
    Given an agent
    And Ann has the session "cli:a"
    And Ann appended 3 messages to "cli:a"
    And Ann has a socket
    When Ann asks 5 times at once to subscribe to "cli:a"
    Then each of the 5 requests of Ann is answered, and the last one with {"subscribed": true}
    And Ann's socket has shown the events 1 to 3 at least once
    When Ann asks "session.unsubscribe" with {"sessionId": "cli:a"}
    Then Ann hears {"unsubscribed": true}
    And these requests on Ann's socket are refused:
      | method              | params                    | code              |
      | session.subscribe   | {"sessionId": "cli:none"} | SESSION_NOT_FOUND |
      | session.unsubscribe | {"sessionId": "cli:a"}    | NOT_SUBSCRIBED    |

  # Prevents: methods of the socket that do something else than the routes.
  Scenario: The socket does what the routes do
    Given an agent
    And Ann has a socket
    When Ann asks "session.open" with {"sessionId": "telegram:1", "source": {"kind": "channel", "interactive": true}, "metadata": {"chat": 42, "vip": true}}
    Then Ann hears {"sessionId": "telegram:1"}
    When Ann asks "session.subscribe" with {"sessionId": "telegram:1"}
    Then Ann hears {"subscribed": true}
    When Ann asks "session.message" with {"sessionId": "telegram:1", "text": "remove it", "messageId": "m1"}
    Then Ann hears {"sessionId": "telegram:1", "messageId": "m1", "triggered": true}
    And Ann's socket shows {"eventId": 1, "sessionId": "telegram:1", "event": {"type": "user_message", "text": "remove it"}}
    When the driver Dora takes the turn of "remove it"
    And Dora emits {"type": "tool_approval_required", "toolName": "rm", "toolCallId": "c1"}
    Then Ann's socket shows {"eventId": 2, "event": {"type": "agent_start"}}
    And Ann's socket shows {"eventId": 3, "event": {"type": "tool_approval_required"}}
    And Ann's socket shows {"eventId": 4, "event": {"type": "approval_requested", "mode": "realtime"}}
    When Ann asks "session.unsubscribe" with {"sessionId": "telegram:1"}
    Then Ann hears {"unsubscribed": true}
    When Ann asks "session.approve" with {"sessionId": "telegram:1", "toolCallId": "c1", "approved": true}
    Then Ann hears {"resolved": true}
    When Dora emits {"type": "text_delta", "text": "done"}
    And Dora completes the turn
    And Ann asks "session.list" with {"kind": "channel", "channel": "telegram:", "metadata": {"chat": 42, "vip": true}, "limit": 3}
    Then Ann hears ["<row>"]
    When Ann asks "session.list" with {"metadata": {"chat": "42"}, "interactive": true}
    Then Ann hears ["<row>"]
    When Ann asks "session.list" with {"metadata": {"chat": 43}}
    Then Ann hears []
    When Ann sends GET "/sessions?metadata.chat=42&metadata.vip=true&channel=telegram"
    And Ann sends GET "/sessions?metadata.chat=43"
    Then Ann gets 200 ["<row>"]
    And Ann gets exactly 200 []
    When Ann sends GET "/sessions/telegram%3A1/messages"
    Then Ann gets 200 "<history>"
    When Ann asks "session.history" with {"sessionId": "telegram:1"}
    Then Ann hears "<history>"
    When Ann asks "session.delete" with {"sessionId": "telegram:1"}
    Then Ann hears {"deleted": true}
    When Ann asks "session.open" with {"sessionId": "cli:b", "source": {"kind": "cli", "interactive": true}}
    Then Ann hears {"sessionId": "cli:b"}
    When Ann asks "session.checkpoint" with {"sessionId": "cli:b", "reason": "new_session"}
    Then Ann hears {"checkpointed": false}
    When Ann asks "session.list" with {}
    Then Ann hears []
    When Ann asks "session.list" with {"includeInactive": true}
    Then Ann hears ["<inactive>"]
