@engine
Feature: A node is a worker of an iii engine

  # Prevents: a node on an engine whose functions cannot be called or listed.
  Scenario: All functions of a node are served on the engine
    Given a node "a" on the engine
    And I called "session::ensure" with {"session_id": "s", "title": "Over the engine"}
    When I call "session::get" with {"session_id": "s"}
    Then it answers {"meta": {"session_id": "s", "title": "Over the engine", "status": "idle"}}
    And on the engine "session::append" is described with its schemas
    And on the engine "session::store::put-meta" is described with its schemas, as internal

  # Prevents: clients of version 0.1.2 failing on an engine.
  Scenario: The older names answer on the engine too
    Given a node "a" on the engine
    And I called "session::ensure" with {"session_id": "s"}
    When I call "session::append_many" with {"session_id": "s", "messages": ["<user:hi>"]}
    Then it answers {"entry_ids": ["<any>"]}

  # Prevents: an error without its code, or with a stack trace that is slow to build.
  Scenario: Errors keep their code
    Given a node "a" on the engine
    When I call "session::messages" with {"session_id": "nobody"}
    Then it fails with "session/not_found"

  # Prevents: an invalid request being accepted, or refused without a reason.
  Scenario: An invalid request is refused with the field
    Given a node "a" on the engine
    When I call "session::ensure" with {"session_id": 7}
    Then it fails with "session/invalid_request"

  # Prevents: subscribers on the engine missing events, or receiving filtered ones.
  Scenario: Subscribers on the engine receive the events that match their filters
    Given a node "a" on the engine
    And I called "session::ensure" with {"session_id": "s", "metadata": {"owner": "u1"}}
    And "mine" subscribes to "session::message-added" with {"metadata": {"owner": "u1"}, "roles": ["user"]}
    And "foreign" subscribes to "session::message-added" with {"metadata": {"owner": "u2"}}
    When I call "session::append" with {"session_id": "s", "entry_id": "e", "message": "<user:hi>"}
    Then it answers {"entry_id": "e"}
    And "mine" receives {"session_id": "s", "entry_id": "e"}
    And "foreign" receives no event of it

  @embedded
  # Prevents: a node that does not reconnect to a restarted engine, or loses its bindings.
  Scenario: A node reconnects to a restarted engine
    Given a node "a" on the engine
    And "ear" subscribes to "session::created" with {}
    When the engine restarts
    And 3 sessions are created
    Then "ear" receives an event of every session, at least once

  @embedded
  # Prevents: a replica that does not serve its own engine because another replica leads.
  Scenario: Replicas on engines of their own all serve
    Given two replicas, each on an engine of its own
    And "here" subscribes to "session::created" with {}
    And "there" subscribes on the second engine to "session::created" with {}
    When 3 sessions are created
    Then "here" receives an event of every session, once each
    And "there" receives an event of every session, once each
