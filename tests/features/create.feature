Feature: session::create creates a session

  # Prevents: a session that does not start idle and empty, or an answer without a field.
  Scenario: A new session is idle and empty and has a minted id
    When I call "session::create" with {"title": "Plan", "description": "for spring", "metadata": {"team": "a"}}
    Then it answers exactly:
      """
      {
        "session_id": "<s>",
        "meta": {
          "session_id": "<s>", "title": "Plan", "description": "for spring", "status": "idle", "message_count": 0,
          "metadata": {"team": "a"}, "created_at": "<t>", "updated_at": "<t>"
        }
      }
      """
    And "<s>" is a minted session id
    And exactly this event fired: session::created {"session_id": "<s>", "title": "Plan", "description": "for spring", "status": "idle", "created_at": "<t>"}
    And reading "session::get" with {"session_id": "<s>"} answers {"meta": {"session_id": "<s>", "status": "idle", "message_count": 0}}
    And reading "session::messages" with {"session_id": "<s>"} answers {"messages": []}

  # Prevents: a request without fields being refused, or a title being invented.
  Scenario: All fields are optional
    When I call "session::create" with {}
    Then it answers {"session_id": "<s>", "meta": {"title": "", "description": "", "metadata": "<absent>"}}
    And these events fired:
      | session::created | {"session_id": "<s>", "title": "", "description": ""} |
    And reading "session::get" with {"session_id": "<s>"} answers {"meta": {"title": "", "description": "", "metadata": "<absent>"}}

  # Prevents: SDKs that send null for an absent field getting another result than those that omit it.
  Scenario: Null is the same as not given
    When I call "session::create" with {"title": null, "description": null, "metadata": null}
    Then it answers {"session_id": "<s>", "meta": {"title": "", "metadata": "<absent>"}}
    And these events fired:
      | session::created | {"session_id": "<s>"} |
    And reading "session::get" with {"session_id": "<s>"} answers {"meta": {"metadata": "<absent>"}}

  # Prevents: a second equal create being treated as a retry.
  Scenario: Create is not idempotent
    Given calling "session::create" with {"title": "Same"} answered {"session_id": "<first>"}
    When I call "session::create" with {"title": "Same"}
    Then it answers {"session_id": "<second>"}
    And "<first>" and "<second>" are different
    And these events fired:
      | session::created | {"session_id": "<second>", "title": "Same"} |
    And reading "session::list" with {"order": "created_asc"} answers {"sessions": [{"session_id": "<first>"}, {"session_id": "<second>"}]}

  # Prevents: a request failing because of additional fields, or a client choosing the id by one.
  Scenario: Unknown fields are ignored
    When I call "session::create" with {"title": "x", "_caller_worker_id": "w-1", "session_id": "mine", "status": "done"}
    Then it answers {"session_id": "<s>", "meta": {"title": "x", "status": "idle"}}
    And "<s>" is a minted session id
    And these events fired:
      | session::created | {"session_id": "<s>", "status": "idle"} |
    And reading "session::get" with {"session_id": "mine"} answers null

  # Prevents: a value of the wrong type being converted, or half of the request being executed.
  Scenario: A title that is not text is refused
    When I call "session::create" with {"title": 5}
    Then it fails with "session/invalid_request", saying "title"
    And no event fired
    And nothing changed

  # Prevents: metadata that filters cannot read.
  Scenario: Metadata that is not an object is refused
    When I call "session::create" with {"metadata": ["team"]}
    Then it fails with "session/invalid_request", saying "metadata"
    And no event fired
    And nothing changed

  # Prevents: text being changed by the store.
  Scenario: Any Unicode is read back unchanged
    When I call "session::create" with {"title": "e\u0301 🦀 \u0000 \"q\" \\ \n", "metadata": {"": "", "🦀": {"\u0000": [1.5, null]}}}
    Then it answers {"session_id": "<s>", "meta": {"title": "e\u0301 🦀 \u0000 \"q\" \\ \n"}}
    And these events fired:
      | session::created | {"session_id": "<s>"} |
    And reading "session::get" with {"session_id": "<s>"} answers:
      """
      {"meta": {"title": "e\u0301 🦀 \u0000 \"q\" \\ \n", "metadata": {"": "", "🦀": {"\u0000": [1.5, null]}}}}
      """

  # Prevents: null bodies, which some SDKs send for "no payload", being refused.
  Scenario: A null body is an empty request
    When I send "session::create" the text null
    Then it answers {"session_id": "<s>"}
    And these events fired:
      | session::created | {"session_id": "<s>"} |
    And reading "session::get" with {"session_id": "<s>"} answers {"meta": {"session_id": "<s>"}}
