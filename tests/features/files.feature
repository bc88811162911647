@jsonl
Feature: The fs adapter keeps one JSONL file per session

  # Prevents: files that the upstream program or a person cannot read.
  Scenario: The records are meta, entry and leaf
    Given a session "s" with {"title": "T"}
    And "s" holds the messages "a"
    When I call "session::append" with {"session_id": "s", "entry_id": "c", "custom": {"custom_type": "mark", "data": 1}, "origin": {"o": 1}}
    Then it answers {"entry_id": "c", "timestamp": "<now>"}
    And 1 "session::message-added" event fired and no other
    And the data directory holds exactly the files "s.jsonl"
    And the last records of the file "s.jsonl" are:
      """
      [
        {"type": "entry", "entry": {"kind": "message", "id": "a", "timestamp": "<any>", "revision": 0, "message": "<user:a>"}},
        {"type": "entry", "entry": {"kind": "custom", "id": "c", "parent_id": "a", "timestamp": "<now>", "revision": 0, "origin": {"o": 1}, "custom_type": "mark", "data": 1}},
        {"type": "leaf", "entry_id": "c"},
        {"type": "meta", "meta": {"session_id": "s", "title": "T", "description": "", "status": "idle", "message_count": 1, "created_at": "<any>", "updated_at": "<now>"}}
      ]
      """

  # Prevents: an id escaping the data directory, or two ids sharing a file.
  Scenario: Special characters are encoded in the file name
    Given a session "../escape/chat 42:?"
    And a session "plain_A-1.b"
    When I call "session::ensure" with {"session_id": "é%"}
    Then it answers {"created": true}
    And 1 "session::created" event fired and no other
    And the data directory holds exactly the files "%C3%A9%25.jsonl", "..%2Fescape%2Fchat%2042%3A%3F.jsonl", "plain_A-1.b.jsonl"

  # Prevents: the file of a deleted session remaining and being loaded again.
  Scenario: A deleted session has no file
    Given a session "s"
    And a session "t"
    When I call "session::delete" with {"session_id": "s"}
    Then it answers {"deleted": true}
    And 1 "session::deleted" event fired and no other
    And the data directory holds exactly the files "t.jsonl"

  # Prevents: an id with a too long file name failing with an I/O error.
  Scenario: An id with a too long file name is refused
    When I call "session::ensure" with {"session_id": "<text:300>"}
    Then it fails with "session/invalid_request", saying "session_id"
    And no event fired
    And reading "session::list" with {} answers {"sessions": []}

  # Prevents: files written by upstream not opening.
  Scenario: A file of the upstream program opens unchanged
    Given the node is stopped
    And the file "chat%201.jsonl" says:
      """
      {"type":"meta","meta":{"session_id":"chat 1","title":"Old","description":"","status":"idle","message_count":0,"created_at":100,"updated_at":100}}
      {"type":"entry","entry":{"kind":"message","id":"e_1","timestamp":101,"message":"<user:one>"}}
      {"type":"leaf","entry_id":"e_1"}
      {"type":"meta","meta":{"session_id":"chat 1","title":"Old","description":"","status":"idle","message_count":1,"created_at":100,"updated_at":101}}
      {"type":"entry","entry":{"kind":"custom","id":"e_2","parent_id":"e_1","timestamp":102,"revision":0,"custom_type":"mark","data":{"n":1}}}
      {"type":"leaf","entry_id":"e_2"}
      {"type":"entry","entry":{"kind":"message","id":"e_1","parent_id":null,"timestamp":101,"revision":1,"message":"<user:edited>"}}

      """
    And the node has started again
    When I call "session::messages" with {"session_id": "chat 1", "include_custom": true}
    Then it answers {"messages": [{"entry_id": "e_1", "message": "<user:edited>"}, {"entry_id": "e_2", "custom": {"custom_type": "mark", "data": {"n": 1}}}]}
    And no event fired
    And reading "session::get" with {"session_id": "chat 1"} answers {"meta": {"title": "Old", "message_count": 1, "created_at": 100}}
    And reading "session::get-message" with {"session_id": "chat 1", "entry_id": "e_1"} answers {"entry": {"revision": 1}}

  # Prevents: a crash in the middle of a write making the session unreadable.
  Scenario: A torn last line is skipped
    Given a session "s"
    And "s" holds the messages "a", "b"
    And the node is stopped
    And the end of the file "s.jsonl" is {"type":"entry","entry":{"kind":"mess
    When the node starts again
    Then the restart changed nothing
    And no event fired
    And the transcript of "s" is "a", "b"

  # Prevents: the next record being appended to a torn line and lost with it.
  Scenario: After a torn line the session can be written
    Given a session "s"
    And "s" holds the messages "a"
    And the node is stopped
    And the end of the file "s.jsonl" is {"type":"leaf","entr
    And the node has started again
    And "s" holds the messages "b"
    And the node has restarted
    When I call "session::messages" with {"session_id": "s"}
    Then it lists "a", "b"
    And no event fired
    And nothing changed

  # Prevents: one damaged line making other entries or sessions unreadable.
  Scenario: A damaged line does not affect other lines
    Given a session "s"
    And a session "t"
    And "s" holds the messages "a"
    And "t" holds the messages "x"
    And I called "session::append" with {"session_id": "s", "entry_id": "side", "message": "<user:side>"}
    And I called "session::append" with {"session_id": "s", "entry_id": "b", "parent_id": "a", "message": "<user:b>"}
    And the node is stopped
    And in the file "s.jsonl" the line with "id":"side" is damaged
    And the node has started again
    When I call "session::messages" with {"session_id": "s"}
    Then it lists "a", "b"
    And no event fired
    And reading "session::get-message" with {"session_id": "s", "entry_id": "side"} answers null
    And the transcript of "t" is "x"

  # Prevents: a stray file stopping the node from starting.
  Scenario: A file that is not a session is ignored
    Given a session "s"
    And the node is stopped
    And the file "notes.txt" says:
      """
      not ours
      """
    And the file "empty.jsonl" says:
      """
      """
    When the node starts again
    Then the restart changed nothing
    And no event fired
    And reading "session::list" with {} answers {"sessions": [{"session_id": "s"}]}
