Feature: session::set-status moves a session's status

  # Prevents: a caller not learning what the status was, or subscribers not learning what it became.
  Scenario: A change tells both statuses
    Given a session "s"
    And I asked "session::get" with {"session_id": "s"} and was told {"meta": {"updated_at": "<before>"}}
    When I call "session::set-status" with {"session_id": "s", "status": "working"}
    Then it answers exactly {"status": "working", "previous_status": "idle"}
    And this event fired, with nothing more in it: session::status-changed {"session_id": "s", "status": "working", "previous_status": "idle", "timestamp": "<now>"}
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"status": "working", "updated_at": "<after before>"}}

  # Prevents: a driver that repeats its status on every tick flooding subscribers.
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

  # Prevents: the first cause of an error being overwritten by a repeat.
  Scenario: An error again, with another reason, changes nothing
    Given a session "s"
    And I called "session::set-status" with {"session_id": "s", "status": "error", "reason": "first"}
    When I call "session::set-status" with {"session_id": "s", "status": "error", "reason": "second"}
    Then it answers exactly {"status": "error", "previous_status": "error"}
    And no event fired
    And nothing changed

  # Prevents: a session that works again still showing why it once failed.
  Scenario: Leaving error drops the reason
    Given a session "s"
    And I called "session::set-status" with {"session_id": "s", "status": "error", "reason": "why"}
    When I call "session::set-status" with {"session_id": "s", "status": "idle"}
    Then it answers exactly {"status": "idle", "previous_status": "error"}
    And these events fired:
      | session::status-changed | {"session_id": "s", "status": "idle", "status_reason": "<absent>"} |
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"status": "idle", "status_reason": "<absent>"}}

  # Prevents: a reason riding on a status that has none.
  Scenario: A reason is kept with error only
    Given a session "s"
    When I call "session::set-status" with {"session_id": "s", "status": "done", "reason": "finished early"}
    Then it answers exactly {"status": "done", "previous_status": "idle"}
    And these events fired:
      | session::status-changed | {"session_id": "s", "status": "done", "status_reason": "<absent>"} |
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"status": "done", "status_reason": "<absent>"}}

  # Prevents: an error having to be explained.
  Scenario: An error needs no reason
    Given a session "s"
    When I call "session::set-status" with {"session_id": "s", "status": "error"}
    Then it answers exactly {"status": "error", "previous_status": "idle"}
    And these events fired:
      | session::status-changed | {"status": "error", "status_reason": "<absent>"} |
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"status": "error", "status_reason": "<absent>"}}

  # Prevents: a status machine that forbids what a consumer needs: any status may follow any other.
  Scenario: Every status can be left again
    Given a session "s"
    And I called "session::set-status" with {"session_id": "s", "status": "done"}
    And I called "session::set-status" with {"session_id": "s", "status": "working"}
    When I call "session::set-status" with {"session_id": "s", "status": "idle"}
    Then it answers exactly {"status": "idle", "previous_status": "working"}
    And these events fired:
      | session::status-changed | {"status": "idle", "previous_status": "working"} |
    And reading "session::get" with {"session_id": "s"} answers {"meta": {"status": "idle"}}

  # Prevents: a session that comes to be because somebody named it.
  Scenario: An unknown session is an error
    When I call "session::set-status" with {"session_id": "nobody", "status": "done"}
    Then it fails with "session/not_found", saying "nobody"
    And no event fired
    And reading "session::get" with {"session_id": "nobody"} answers null

  # Prevents: a status nobody can render.
  Scenario: An unknown status is refused
    Given a session "s"
    When I call "session::set-status" with {"session_id": "s", "status": "paused"}
    Then it fails with "session/invalid_request", saying "status"
    And no event fired
    And nothing changed

  # Prevents: a request without its point being a no-op.
  Scenario: A missing status is refused
    Given a session "s"
    When I call "session::set-status" with {"session_id": "s"}
    Then it fails with "session/invalid_request", saying "status"
    And no event fired
    And nothing changed
