Feature: session::fork copies a path into a new session

  # Prevents: a copy that shares ids with its source, or fires an event per entry.
  Scenario: The path up to an entry is copied with new ids
    Given a session "s" with {"title": "Plan", "description": "d", "metadata": {"team": "a"}}
    And "s" holds the messages "a", "b", "c"
    When I call "session::fork" with {"session_id": "s", "entry_id": "b"}
    Then it answers exactly:
      """
      {
        "session_id": "<f>",
        "meta": {
          "session_id": "<f>", "title": "Plan", "description": "d", "status": "idle", "message_count": 2,
          "metadata": {"team": "a"}, "forked_from": "s", "created_at": "<t>", "updated_at": "<t>"
        }
      }
      """
    And "<f>" is a minted session id
    And exactly this event fired: session::created {"session_id": "<f>", "title": "Plan", "description": "d", "status": "idle", "forked_from": "s", "created_at": "<t>"}
    And reading "session::messages" with {"session_id": "<f>"} answers {"messages": [{"entry_id": "<fa>", "message": "<user:a>"}, {"entry_id": "<fb>", "message": "<user:b>"}]}
    And "<fa>" is a minted entry id
    And "<fa>" and "<fb>" are different
    And reading "session::get-message" with {"session_id": "<f>", "entry_id": "a"} answers null
    And reading "session::get-message" with {"session_id": "<f>", "entry_id": "<fb>"} answers {"entry": {"parent_id": "<fa>"}}
    And reading "session::store::get-active-leaf" with {"session_id": "<f>"} answers {"entry_id": "<fb>"}

  # Prevents: a fork changing its source.
  Scenario: The source is unchanged
    Given a session "s"
    And "s" holds the messages "a", "b", "c"
    And calling "session::get" with {"session_id": "s"} answered {"meta": {"updated_at": "<u>"}}
    When I call "session::fork" with {"session_id": "s", "entry_id": "a"}
    Then it answers {"session_id": "<f>"}
    And these events fired:
      | session::created | {"session_id": "<f>", "forked_from": "s"} |
    And the transcript of "s" is "a", "b", "c"
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"message_count": 3, "updated_at": "<u>", "forked_from": "<absent>"}}

  # Prevents: a fork that cannot be distinguished from its source.
  Scenario: A fork may have a title of its own
    Given a session "s" with {"title": "Plan"}
    And "s" holds the messages "a"
    When I call "session::fork" with {"session_id": "s", "entry_id": "a", "title": "Plan B"}
    Then it answers {"session_id": "<f>", "meta": {"title": "Plan B"}}
    And these events fired:
      | session::created | {"session_id": "<f>", "title": "Plan B"} |
    And reading "session::get" with {"session_id": "<f>"} answers {"meta": {"title": "Plan B"}}
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"title": "Plan"}}

  # Prevents: a fork inheriting the status of its source.
  Scenario: A fork starts idle
    Given a session "s"
    And "s" holds the messages "a"
    And I called "session::set-status" with {"session_id": "s", "status": "error", "reason": "why"}
    When I call "session::fork" with {"session_id": "s", "entry_id": "a"}
    Then it answers {"session_id": "<f>", "meta": {"status": "idle", "status_reason": "<absent>"}}
    And these events fired:
      | session::created | {"session_id": "<f>", "status": "idle"} |
    And reading "session::get" with {"session_id": "<f>"} answers {"meta": {"status": "idle", "status_reason": "<absent>"}}

  # Prevents: copied entries getting the time of the copy.
  Scenario: Entries keep their time and origin and start at revision 0
    Given a session "s"
    And calling "session::append" with {"session_id": "s", "entry_id": "a", "message": "<user:old>", "origin": {"n": 1}} answered {"timestamp": "<then>"}
    And I called "session::update-message" with {"session_id": "s", "entry_id": "a", "content": "<content:new>"}
    When I call "session::fork" with {"session_id": "s", "entry_id": "a"}
    Then it answers {"session_id": "<f>", "meta": {"created_at": "<after then>"}}
    And these events fired:
      | session::created | {"session_id": "<f>"} |
    And reading "session::store::list-entries" with {"session_id": "<f>"} answers {"entries": [{"timestamp": "<then>", "revision": 0, "origin": {"n": 1}, "message": "<user:new>"}]}

  # Prevents: writes to a fork changing its source.
  Scenario: Writing to the fork does not change the source
    Given a session "s"
    And "s" holds the messages "a", "b"
    And calling "session::fork" with {"session_id": "s", "entry_id": "b"} answered {"session_id": "<f>"}
    When I call "session::append" with {"session_id": "<f>", "entry_id": "mine", "message": "<user:x>"}
    Then it answers {"entry_id": "mine"}
    And these events fired:
      | session::message-added | {"session_id": "<f>", "entry_id": "mine"} |
    And the transcript of "s" is "a", "b"
    And reading "session::get-message" with {"session_id": "s", "entry_id": "mine"} answers null
    And reading "session::get" with {"session_id": "<f>"} answers {"meta": {"message_count": 3}}

  # Prevents: writes to the source changing the fork.
  Scenario: Writing to the source does not change the fork
    Given a session "s"
    And "s" holds the messages "a"
    And calling "session::fork" with {"session_id": "s", "entry_id": "a"} answered {"session_id": "<f>"}
    When I call "session::update-message" with {"session_id": "s", "entry_id": "a", "content": "<content:changed>"}
    Then it answers {"updated": true, "revision": 1}
    And these events fired:
      | session::message-updated | {"session_id": "s", "entry_id": "a"} |
    And reading "session::messages" with {"session_id": "<f>"} answers {"messages": [{"message": "<user:a>"}]}

  # Prevents: custom entries missing in a copy, or being counted as messages.
  Scenario: Custom entries are copied and not counted
    Given a session "s"
    And "s" holds the messages "a"
    And I called "session::append" with {"session_id": "s", "entry_id": "c", "custom": {"custom_type": "mark", "data": 1}}
    And "s" holds the messages "b"
    When I call "session::fork" with {"session_id": "s", "entry_id": "b"}
    Then it answers {"session_id": "<f>", "meta": {"message_count": 2}}
    And these events fired:
      | session::created | {"session_id": "<f>"} |
    And reading "session::messages" with {"session_id": "<f>", "include_custom": true} answers {"messages": [{"message": "<user:a>"}, {"custom": {"custom_type": "mark", "data": 1}}, {"message": "<user:b>"}]}

  # Prevents: a fork that can end only at a message.
  Scenario: A fork may end at a custom entry
    Given a session "s"
    And "s" holds the messages "a"
    And I called "session::append" with {"session_id": "s", "entry_id": "c", "custom": {"custom_type": "mark"}}
    When I call "session::fork" with {"session_id": "s", "entry_id": "c"}
    Then it answers {"session_id": "<f>", "meta": {"message_count": 1}}
    And these events fired:
      | session::created | {"session_id": "<f>"} |
    And reading "session::store::list-entries" with {"session_id": "<f>"} answers {"entries": [{"kind": "message"}, {"kind": "custom", "id": "<c>"}]}
    And reading "session::store::get-active-leaf" with {"session_id": "<f>"} answers {"entry_id": "<c>"}

  # Prevents: a compaction record in the copy referring to an entry of the source.
  Scenario: A compaction record names the copied entry
    Given a session "s"
    And "s" holds the messages "a", "b"
    And I called "session::append" with {"session_id": "s", "entry_id": "c", "custom": {"custom_type": "compaction", "data": {"tail_start_entry_id": "b", "summary": "x"}}}
    When I call "session::fork" with {"session_id": "s", "entry_id": "c"}
    Then it answers {"session_id": "<f>"}
    And these events fired:
      | session::created | {"session_id": "<f>"} |
    And reading "session::messages" with {"session_id": "<f>", "include_custom": true} answers:
      """
      {"messages": [
        {"message": "<user:a>"},
        {"entry_id": "<copy of b>", "message": "<user:b>"},
        {"custom": {"custom_type": "compaction", "data": {"tail_start_entry_id": "<copy of b>", "summary": "x"}}}
      ]}
      """
    And reading "session::get-message" with {"session_id": "s", "entry_id": "c"} answers {"entry": {"data": {"tail_start_entry_id": "b"}}}

  # Prevents: the id of an entry that was not copied being replaced by an unknown one.
  Scenario: A compaction record about an entry off the path is unchanged
    Given a session "s"
    And "s" holds the messages "a", "b"
    And I called "session::append" with {"session_id": "s", "entry_id": "c", "parent_id": "a", "custom": {"custom_type": "compaction", "data": {"tail_start_entry_id": "b"}}}
    When I call "session::fork" with {"session_id": "s", "entry_id": "c"}
    Then it answers {"session_id": "<f>"}
    And these events fired:
      | session::created | {"session_id": "<f>"} |
    And reading "session::messages" with {"session_id": "<f>", "include_custom": true} answers {"messages": [{"message": "<user:a>"}, {"custom": {"data": {"tail_start_entry_id": "b"}}}]}

  # Prevents: data of applications that use the same key being rewritten.
  Scenario: Only compaction records are rewritten
    Given a session "s"
    And "s" holds the messages "a"
    And I called "session::append" with {"session_id": "s", "entry_id": "c", "custom": {"custom_type": "bookmark", "data": {"tail_start_entry_id": "a"}}}
    When I call "session::fork" with {"session_id": "s", "entry_id": "c"}
    Then it answers {"session_id": "<f>"}
    And these events fired:
      | session::created | {"session_id": "<f>"} |
    And reading "session::messages" with {"session_id": "<f>", "include_custom": true} answers {"messages": ["<any>", {"custom": {"data": {"tail_start_entry_id": "a"}}}]}

  # Prevents: a fork that works only on the active path.
  Scenario: An abandoned branch can be forked
    Given a session "s"
    And "s" holds the messages "a", "b"
    And I called "session::append" with {"session_id": "s", "entry_id": "x", "parent_id": "a", "message": "<user:x>"}
    When I call "session::fork" with {"session_id": "s", "entry_id": "b"}
    Then it answers {"session_id": "<f>"}
    And these events fired:
      | session::created | {"session_id": "<f>"} |
    And reading "session::messages" with {"session_id": "<f>"} answers {"messages": [{"message": "<user:a>"}, {"message": "<user:b>"}]}
    And the transcript of "s" is "a", "x"

  # Prevents: a fork of a fork naming the wrong source.
  Scenario: A fork can be forked
    Given a session "s"
    And "s" holds the messages "a", "b"
    And calling "session::fork" with {"session_id": "s", "entry_id": "b"} answered {"session_id": "<f>"}
    And calling "session::store::get-active-leaf" with {"session_id": "<f>"} answered {"entry_id": "<leaf>"}
    When I call "session::fork" with {"session_id": "<f>", "entry_id": "<leaf>"}
    Then it answers {"session_id": "<g>", "meta": {"forked_from": "<f>", "message_count": 2}}
    And "<f>" and "<g>" are different
    And these events fired:
      | session::created | {"session_id": "<g>", "forked_from": "<f>"} |
    And reading "session::messages" with {"session_id": "<g>"} answers {"messages": [{"message": "<user:a>"}, {"message": "<user:b>"}]}

  # Prevents: a fork at an entry that does not exist.
  Scenario: An unknown entry is an error
    Given a session "s"
    And "s" holds the messages "a"
    When I call "session::fork" with {"session_id": "s", "entry_id": "b"}
    Then it fails with "session/entry_not_found"
    And no event fired
    And nothing changed

  # Prevents: a fork of a session that does not exist.
  Scenario: An unknown session is an error
    When I call "session::fork" with {"session_id": "nobody", "entry_id": "a"}
    Then it fails with "session/not_found"
    And no event fired
    And reading "session::list" with {} answers {"sessions": []}
