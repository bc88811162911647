Feature: session::set-status changes the status of a session

  # Prevents: a caller not getting the previous status, or subscribers not getting the new one.
  Scenario: A change reports both statuses
    Given a session "s"
    And calling "session::get" with {"session_id": "s"} answered {"meta": {"updated_at": "<before>"}}
    When I call "session::set-status" with {"session_id": "s", "status": "working"}
    Then it answers exactly {"status": "working", "previous_status": "idle"}
    And exactly this event fired: session::status-changed {"session_id": "s", "status": "working", "previous_status": "idle", "timestamp": "<now>"}
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"status": "working", "updated_at": "<after before>"}}

  # Prevents: a client that sets the same status repeatedly flooding subscribers.
  Scenario: The same status again is a complete no-op
    Given a session "s"
    And I called "session::set-status" with {"session_id": "s", "status": "working"}
    When I call "session::set-status" with {"session_id": "s", "status": "working", "reason": "still"}
    Then it answers exactly {"status": "working", "previous_status": "working"}
    And no event fired
    And nothing changed

  # Prevents: an error without its cause.
  Scenario: An error keeps its reason
    Given a session "s"
    When I call "session::set-status" with {"session_id": "s", "status": "error", "reason": "rate limited"}
    Then it answers exactly {"status": "error", "previous_status": "idle"}
    And these events fired:
      | session::status-changed | {"session_id": "s", "status": "error", "previous_status": "idle", "status_reason": "rate limited"} |
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"status": "error", "status_reason": "rate limited"}}

  # Prevents: the first reason of an error being overwritten.
  Scenario: A second error with another reason changes nothing
    Given a session "s"
    And I called "session::set-status" with {"session_id": "s", "status": "error", "reason": "first"}
    When I call "session::set-status" with {"session_id": "s", "status": "error", "reason": "second"}
    Then it answers exactly {"status": "error", "previous_status": "error"}
    And no event fired
    And nothing changed

  # Prevents: the reason of an old error remaining after the error.
  Scenario: Leaving error drops the reason
    Given a session "s"
    And I called "session::set-status" with {"session_id": "s", "status": "error", "reason": "why"}
    When I call "session::set-status" with {"session_id": "s", "status": "idle"}
    Then it answers exactly {"status": "idle", "previous_status": "error"}
    And these events fired:
      | session::status-changed | {"session_id": "s", "status": "idle", "status_reason": "<absent>"} |
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"status": "idle", "status_reason": "<absent>"}}

  # Prevents: a reason being stored with another status than error.
  Scenario: A reason is kept with error only
    Given a session "s"
    When I call "session::set-status" with {"session_id": "s", "status": "done", "reason": "finished early"}
    Then it answers exactly {"status": "done", "previous_status": "idle"}
    And these events fired:
      | session::status-changed | {"session_id": "s", "status": "done", "status_reason": "<absent>"} |
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"status": "done", "status_reason": "<absent>"}}

  # Prevents: an error without a reason being refused.
  Scenario: An error needs no reason
    Given a session "s"
    When I call "session::set-status" with {"session_id": "s", "status": "error"}
    Then it answers exactly {"status": "error", "previous_status": "idle"}
    And these events fired:
      | session::status-changed | {"status": "error", "status_reason": "<absent>"} |
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"status": "error", "status_reason": "<absent>"}}

  # Prevents: a forbidden change between two statuses: any status may follow any other.
  Scenario: Every status can be left again
    Given a session "s"
    And I called "session::set-status" with {"session_id": "s", "status": "done"}
    And I called "session::set-status" with {"session_id": "s", "status": "working"}
    When I call "session::set-status" with {"session_id": "s", "status": "idle"}
    Then it answers exactly {"status": "idle", "previous_status": "working"}
    And these events fired:
      | session::status-changed | {"status": "idle", "previous_status": "working"} |
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"status": "idle"}}

  # Prevents: a session being created by a request that only names it.
  Scenario: An unknown session is an error
    When I call "session::set-status" with {"session_id": "nobody", "status": "done"}
    Then it fails with "session/not_found", saying "nobody"
    And no event fired
    And reading "session::get" with {"session_id": "nobody"} answers null

  # Prevents: an unknown status being stored.
  Scenario: An unknown status is refused
    Given a session "s"
    When I call "session::set-status" with {"session_id": "s", "status": "paused"}
    Then it fails with "session/invalid_request", saying "status"
    And no event fired
    And nothing changed

  # Prevents: a request without a status being accepted.
  Scenario: A missing status is refused
    Given a session "s"
    When I call "session::set-status" with {"session_id": "s"}
    Then it fails with "session/invalid_request", saying "status"
    And no event fired
    And nothing changed
