Feature: session::set-meta replaces title, description or metadata

  # Prevents: a rename removing the other fields.
  Scenario: A title alone replaces the title
    Given a session "s" with {"title": "Old", "description": "d", "metadata": {"team": "a"}}
    And calling "session::get" with {"session_id": "s"} answered {"meta": {"created_at": "<born>", "updated_at": "<before>"}}
    When I call "session::set-meta" with {"session_id": "s", "title": "New"}
    Then it answers exactly:
      """
      {
        "meta": {
          "session_id": "s", "title": "New", "description": "d", "status": "idle", "message_count": 0,
          "metadata": {"team": "a"}, "created_at": "<born>", "updated_at": "<now>"
        }
      }
      """
    And exactly this event fired: session::meta-updated {"session_id": "s", "title": "New", "description": "d", "metadata": {"team": "a"}, "timestamp": "<now>"}
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"title": "New", "description": "d", "updated_at": "<after before>"}}

  # Prevents: a description that cannot be changed without repeating the title.
  Scenario: A description alone replaces the description
    Given a session "s" with {"title": "T", "description": "old"}
    When I call "session::set-meta" with {"session_id": "s", "description": "new"}
    Then it answers {"meta": {"title": "T", "description": "new"}}
    And these events fired:
      | session::meta-updated | {"session_id": "s", "title": "T", "description": "new", "metadata": "<absent>"} |
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"title": "T", "description": "new"}}

  # Prevents: removed keys remaining because metadata is merged.
  Scenario: Metadata is replaced as a whole
    Given a session "s" with {"metadata": {"team": "a", "topic": "x"}}
    When I call "session::set-meta" with {"session_id": "s", "metadata": {"team": "b"}}
    Then it answers {"meta": {"metadata": {"team": "b", "topic": "<absent>"}}}
    And these events fired:
      | session::meta-updated | {"session_id": "s", "metadata": {"team": "b", "topic": "<absent>"}} |
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"metadata": {"team": "b", "topic": "<absent>"}}}

  # Prevents: metadata that can never be emptied again.
  Scenario: An empty object empties the metadata
    Given a session "s" with {"metadata": {"team": "a"}}
    When I call "session::set-meta" with {"session_id": "s", "metadata": {}}
    Then it answers {"meta": {"metadata": {"team": "<absent>"}}}
    And these events fired:
      | session::meta-updated | {"session_id": "s", "metadata": {"team": "<absent>"}} |
    And reading "session::list" with {"metadata": {"team": "a"}} answers {"sessions": []}

  # Prevents: a title that can never be emptied again.
  Scenario: Empty text is a value
    Given a session "s" with {"title": "T", "description": "d"}
    When I call "session::set-meta" with {"session_id": "s", "title": "", "description": ""}
    Then it answers {"meta": {"title": "", "description": ""}}
    And these events fired:
      | session::meta-updated | {"session_id": "s", "title": "", "description": ""} |
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"title": "", "description": ""}}

  # Prevents: a request without changes firing an event and reordering the list.
  Scenario: A request without fields is a no-op
    Given a session "s" with {"title": "T"}
    When I call "session::set-meta" with {"session_id": "s"}
    Then it answers {"meta": {"session_id": "s", "title": "T"}}
    And no event fired
    And nothing changed

  # Prevents: null, which some SDKs send for an absent field, erasing what is stored.
  Scenario: Null is the same as not given
    Given a session "s" with {"title": "T", "metadata": {"team": "a"}}
    When I call "session::set-meta" with {"session_id": "s", "title": null, "description": null, "metadata": null}
    Then it answers {"meta": {"title": "T", "metadata": {"team": "a"}}}
    And no event fired
    And nothing changed

  # Prevents: a session being created by a request that only names it.
  Scenario: An unknown session is an error
    When I call "session::set-meta" with {"session_id": "nobody", "title": "x"}
    Then it fails with "session/not_found", saying "nobody"
    And no event fired
    And reading "session::get" with {"session_id": "nobody"} answers null

  # Prevents: an unknown session not being reported by a request without fields.
  Scenario: An unknown session is an error even without fields
    When I call "session::set-meta" with {"session_id": "nobody"}
    Then it fails with "session/not_found"
    And no event fired
    And reading "session::list" with {} answers {"sessions": []}

  # Prevents: half of a request being executed.
  Scenario: A wrong type refuses the whole request
    Given a session "s" with {"title": "T"}
    When I call "session::set-meta" with {"session_id": "s", "title": "New", "metadata": "team"}
    Then it fails with "session/invalid_request", saying "metadata"
    And no event fired
    And nothing changed

  # Prevents: a rename changing status or transcript.
  Scenario: Status, count and transcript are unchanged
    Given a session "s"
    And "s" holds the messages "a", "b"
    And I called "session::set-status" with {"session_id": "s", "status": "error", "reason": "why"}
    When I call "session::set-meta" with {"session_id": "s", "title": "New"}
    Then it answers {"meta": {"status": "error", "status_reason": "why", "message_count": 2}}
    And these events fired:
      | session::meta-updated | {"session_id": "s", "title": "New"} |
    And the transcript of "s" is "a", "b"
