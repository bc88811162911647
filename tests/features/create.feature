Feature: session::create makes a new session

  # Prevents: a session that starts in another state than idle and empty, or an answer that leaves a field out.
  Scenario: A session is born idle and empty under a minted id
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
    And this event fired, with nothing more in it: session::created {"session_id": "<s>", "title": "Plan", "description": "for spring", "status": "idle", "created_at": "<t>"}
    And reading "session::get" with {"session_id": "<s>"} answers {"meta": {"session_id": "<s>", "status": "idle", "message_count": 0}}
    And reading "session::messages" with {"session_id": "<s>"} answers {"messages": []}

  # Prevents: a request without any field being refused, or words being made up for a title.
  Scenario: Nothing has to be given
    When I call "session::create" with {}
    Then it answers {"session_id": "<s>", "meta": {"title": "", "description": "", "metadata": "<absent>"}}
    And these events fired:
      | session::created | {"session_id": "<s>", "title": "", "description": ""} |
    And reading "session::get" with {"session_id": "<s>"} answers {"meta": {"title": "", "description": "", "metadata": "<absent>"}}

  # Prevents: bindings that spell an absent field as null being treated differently from those that leave it out.
  Scenario: Null is the same as not given
    When I call "session::create" with {"title": null, "description": null, "metadata": null}
    Then it answers {"session_id": "<s>", "meta": {"title": "", "metadata": "<absent>"}}
    And these events fired:
      | session::created | {"session_id": "<s>"} |
    And reading "session::get" with {"session_id": "<s>"} answers {"meta": {"metadata": "<absent>"}}

  # Prevents: two creates, equal in every word, being taken for a repeat of one.
  Scenario: Create is not idempotent
    Given I asked "session::create" with {"title": "Same"} and was told {"session_id": "<first>"}
    When I call "session::create" with {"title": "Same"}
    Then it answers {"session_id": "<second>"}
    And "<first>" and "<second>" are different
    And these events fired:
      | session::created | {"session_id": "<second>", "title": "Same"} |
    And reading "session::list" with {"order": "created_asc"} answers {"sessions": [{"session_id": "<first>"}, {"session_id": "<second>"}]}

  # Prevents: the bus's own additions to a request making it fail, or a caller choosing the id through them.
  Scenario: Unknown fields are ignored
    When I call "session::create" with {"title": "x", "_caller_worker_id": "w-1", "session_id": "mine", "status": "done"}
    Then it answers {"session_id": "<s>", "meta": {"title": "x", "status": "idle"}}
    And "<s>" is a minted session id
    And these events fired:
      | session::created | {"session_id": "<s>", "status": "idle"} |
    And reading "session::get" with {"session_id": "mine"} answers null

  # Prevents: a value of the wrong type being coerced, or half of the request being carried out.
  Scenario: A title that is no text is refused
    When I call "session::create" with {"title": 5}
    Then it fails with "session/invalid_request", saying "title"
    And no event fired
    And nothing changed

  # Prevents: metadata that no filter could ever look into.
  Scenario: Metadata that is no object is refused
    When I call "session::create" with {"metadata": ["team"]}
    Then it fails with "session/invalid_request", saying "metadata"
    And no event fired
    And nothing changed

  # Prevents: text being mangled on its way to the store and back.
  Scenario: Any Unicode survives
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
