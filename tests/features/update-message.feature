Feature: session::update-message replaces a message's content

  # Prevents: subscribers of a streamed reply getting only a part of the message, or other fields being lost.
  Scenario: The content is replaced, everything else is unchanged
    Given a session "s"
    And calling "session::append" with {"session_id": "s", "entry_id": "a", "message": "<assistant:st>", "origin": {"o": 1}} answered {"timestamp": "<then>"}
    And calling "session::get" with {"session_id": "s"} answered {"meta": {"updated_at": "<before>"}}
    When I call "session::update-message" with {"session_id": "s", "entry_id": "a", "content": "<content:streamed>"}
    Then it answers exactly {"updated": true, "revision": 1}
    And these events fired:
      | session::message-updated | {"session_id": "s", "entry_id": "a", "message": "<assistant:streamed>", "revision": 1, "timestamp": "<after then>"} |
    And reading "session::get-message" with {"session_id": "s", "entry_id": "a"} answers {"entry": {"timestamp": "<then>", "revision": 1, "origin": {"o": 1}, "message": "<assistant:streamed>"}}
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"message_count": 1, "updated_at": "<after before>"}}

  # Prevents: revisions that skip or repeat.
  Scenario: Every update raises the revision by one
    Given a session "s"
    And "s" holds the messages "a", "b"
    And I called "session::update-message" with {"session_id": "s", "entry_id": "a", "content": "<content:1>"}
    And I called "session::update-message" with {"session_id": "s", "entry_id": "b", "content": "<content:x>"}
    And I called "session::update-message" with {"session_id": "s", "entry_id": "a", "content": "<content:2>"}
    When I call "session::update-message" with {"session_id": "s", "entry_id": "a", "content": "<content:3>"}
    Then it answers exactly {"updated": true, "revision": 3}
    And these events fired:
      | session::message-updated | {"entry_id": "a", "revision": 3, "message": {"content": "<content:3>"}} |
    And reading "session::get-message" with {"session_id": "s", "entry_id": "b"} answers {"entry": {"revision": 1}}

  # Prevents: an update with the current revision being refused.
  Scenario: The expected revision matches
    Given a session "s"
    And "s" holds the messages "a"
    And I called "session::update-message" with {"session_id": "s", "entry_id": "a", "content": "<content:1>"}
    When I call "session::update-message" with {"session_id": "s", "entry_id": "a", "content": "<content:2>", "expected_revision": 1}
    Then it answers exactly {"updated": true, "revision": 2}
    And these events fired:
      | session::message-updated | {"entry_id": "a", "revision": 2} |
    And reading "session::get-message" with {"session_id": "s", "entry_id": "a"} answers {"entry": {"revision": 2, "message": {"content": "<content:2>"}}}

  # Prevents: a lost update: another client wrote first.
  Scenario: A stale expected revision writes nothing
    Given a session "s"
    And "s" holds the messages "a"
    And I called "session::update-message" with {"session_id": "s", "entry_id": "a", "content": "<content:theirs>"}
    When I call "session::update-message" with {"session_id": "s", "entry_id": "a", "content": "<content:mine>", "expected_revision": 0}
    Then it answers exactly {"updated": false, "revision": 1}
    And no event fired
    And nothing changed

  # Prevents: a future revision being accepted.
  Scenario: An expected revision that was never reached writes nothing
    Given a session "s"
    And "s" holds the messages "a"
    When I call "session::update-message" with {"session_id": "s", "entry_id": "a", "content": "<content:mine>", "expected_revision": 1}
    Then it answers exactly {"updated": false, "revision": 0}
    And no event fired
    And nothing changed

  # Prevents: a function result whose details cannot be updated.
  Scenario: A function result takes new details
    Given a session "s"
    And I called "session::append" with {"session_id": "s", "entry_id": "r", "message": "<result:running>"}
    When I call "session::update-message" with {"session_id": "s", "entry_id": "r", "content": "<content:done>", "details": {"exit": 7}}
    Then it answers exactly {"updated": true, "revision": 1}
    And these events fired:
      | session::message-updated | {"entry_id": "r", "message": {"role": "function_result", "content": "<content:done>", "details": {"exit": 7}}} |
    And reading "session::get-message" with {"session_id": "s", "entry_id": "r"} answers {"entry": {"message": {"content": "<content:done>", "details": {"exit": 7}}}}

  # Prevents: an update of the content removing the details.
  Scenario: Details that are not given are unchanged
    Given a session "s"
    And I called "session::append" with {"session_id": "s", "entry_id": "r", "message": "<result:running>"}
    When I call "session::update-message" with {"session_id": "s", "entry_id": "r", "content": "<content:done>"}
    Then it answers exactly {"updated": true, "revision": 1}
    And these events fired:
      | session::message-updated | {"entry_id": "r", "message": "<result:done>"} |
    And reading "session::get-message" with {"session_id": "s", "entry_id": "r"} answers {"entry": {"message": {"details": {"exit": 0}}}}

  # Prevents: details of custom messages not being supported.
  Scenario: A custom message takes details
    Given a session "s"
    And I called "session::append" with {"session_id": "s", "entry_id": "n", "message": "<note:x>"}
    When I call "session::update-message" with {"session_id": "s", "entry_id": "n", "content": "<content:y>", "details": [1, 2]}
    Then it answers exactly {"updated": true, "revision": 1}
    And these events fired:
      | session::message-updated | {"entry_id": "n", "message": {"role": "custom", "custom_type": "note", "content": "<content:y>", "details": [1, 2]}} |
    And reading "session::get-message" with {"session_id": "s", "entry_id": "n"} answers {"entry": {"message": {"details": [1, 2]}}}

  # Prevents: details being ignored on a message that cannot have them.
  Scenario: A user message takes no details
    Given a session "s"
    And "s" holds the messages "a"
    When I call "session::update-message" with {"session_id": "s", "entry_id": "a", "content": "<content:x>", "details": {"n": 1}}
    Then it fails with "session/details_not_supported"
    And no event fired
    And nothing changed

  # Prevents: the same, on an assistant message.
  Scenario: An assistant message takes no details
    Given a session "s"
    And I called "session::append" with {"session_id": "s", "entry_id": "a", "message": "<assistant:x>"}
    When I call "session::update-message" with {"session_id": "s", "entry_id": "a", "content": "<content:y>", "details": 0}
    Then it fails with "session/details_not_supported"
    And no event fired
    And nothing changed

  # Prevents: null details, which mean "not given", being refused on a message that has none.
  Scenario: Null details are no details
    Given a session "s"
    And "s" holds the messages "a"
    When I call "session::update-message" with {"session_id": "s", "entry_id": "a", "content": "<content:x>", "details": null, "expected_revision": null, "origin": null}
    Then it answers exactly {"updated": true, "revision": 1}
    And these events fired:
      | session::message-updated | {"entry_id": "a", "message": "<user:x>"} |
    And reading "session::get-message" with {"session_id": "s", "entry_id": "a"} answers {"entry": {"message": "<user:x>"}}

  # Prevents: a custom entry becoming a message.
  Scenario: A custom entry has no content
    Given a session "s"
    And I called "session::append" with {"session_id": "s", "entry_id": "c", "custom": {"custom_type": "mark", "data": 1}}
    When I call "session::update-message" with {"session_id": "s", "entry_id": "c", "content": "<content:x>"}
    Then it fails with "session/invalid_entry_kind"
    And no event fired
    And nothing changed

  # Prevents: an update creating an entry.
  Scenario: An unknown entry is an error
    Given a session "s"
    And "s" holds the messages "a"
    When I call "session::update-message" with {"session_id": "s", "entry_id": "b", "content": "<content:x>"}
    Then it fails with "session/entry_not_found"
    And no event fired
    And nothing changed

  # Prevents: an update creating a session.
  Scenario: An unknown session is an error
    When I call "session::update-message" with {"session_id": "nobody", "entry_id": "a", "content": "<content:x>"}
    Then it fails with "session/not_found"
    And no event fired
    And reading "session::get" with {"session_id": "nobody"} answers null

  # Prevents: a late update moving the leaf back to its message.
  Scenario: An update does not move the leaf
    Given a session "s"
    And "s" holds the messages "a", "b"
    When I call "session::update-message" with {"session_id": "s", "entry_id": "a", "content": "<content:x>"}
    Then it answers exactly {"updated": true, "revision": 1}
    And these events fired:
      | session::message-updated | {"entry_id": "a"} |
    And the transcript of "s" is "a", "b"
    And reading "session::store::get-active-leaf" with {"session_id": "s"} answers {"entry_id": "b"}

  # Prevents: a reply that streams on an abandoned branch being refused.
  Scenario: An entry on an abandoned branch can be updated
    Given a session "s"
    And "s" holds the messages "a", "b"
    And I called "session::append" with {"session_id": "s", "entry_id": "c", "parent_id": "a", "message": "<user:c>"}
    When I call "session::update-message" with {"session_id": "s", "entry_id": "b", "content": "<content:late>"}
    Then it answers exactly {"updated": true, "revision": 1}
    And these events fired:
      | session::message-updated | {"entry_id": "b", "message": {"content": "<content:late>"}} |
    And the transcript of "s" is "a", "c"
    And reading "session::messages" with {"session_id": "s", "from_entry_id": "b"} answers {"messages": [{"entry_id": "a"}, {"message": {"content": "<content:late>"}}]}

  # Prevents: the origin of an update being lost, or replacing the entry's.
  Scenario: The origin of an update is only in its event
    Given a session "s"
    And I called "session::append" with {"session_id": "s", "entry_id": "a", "message": "<user:x>", "origin": {"by": "append"}}
    When I call "session::update-message" with {"session_id": "s", "entry_id": "a", "content": "<content:y>", "origin": {"by": "update"}}
    Then it answers exactly {"updated": true, "revision": 1}
    And these events fired:
      | session::message-updated | {"entry_id": "a", "origin": {"by": "update"}} |
    And reading "session::get-message" with {"session_id": "s", "entry_id": "a"} answers {"entry": {"origin": {"by": "append"}}}

  # Prevents: a message that cannot be emptied.
  Scenario: Content may be empty
    Given a session "s"
    And "s" holds the messages "a"
    When I call "session::update-message" with {"session_id": "s", "entry_id": "a", "content": []}
    Then it answers exactly {"updated": true, "revision": 1}
    And these events fired:
      | session::message-updated | {"entry_id": "a", "message": {"content": []}} |
    And reading "session::get-message" with {"session_id": "s", "entry_id": "a"} answers {"entry": {"message": {"content": []}}}

  # Prevents: an invalid expected revision being ignored.
  Scenario: An invalid expected revision is refused
    Given a session "s"
    And "s" holds the messages "a"
    When I call "session::update-message" with {"session_id": "s", "entry_id": "a", "content": [], "expected_revision": "0"}
    Then it fails with "session/invalid_request", saying "expected_revision"
    And no event fired
    And nothing changed
