@engine
Feature: A node is a worker of an iii engine

  # Prevents: a node that attaches, and whose functions nobody can call, or find out about.
  Scenario: Everything a node serves is served on the engine
    Given a node "a" on the engine
    And I called "session::ensure" with {"session_id": "s", "title": "Over the engine"}
    When I call "session::get" with {"session_id": "s"}
    Then it answers {"meta": {"session_id": "s", "title": "Over the engine", "status": "idle"}}
    And on the engine "session::append" is described with its schemas
    And on the engine "session::store::put-meta" is described with its schemas, as internal

  # Prevents: clients of version 0.1.2 finding their functions gone on an engine.
  Scenario: The older names answer on the engine too
    Given a node "a" on the engine
    And I called "session::ensure" with {"session_id": "s"}
    When I call "session::append_many" with {"session_id": "s", "messages": ["<user:hi>"]}
    Then it answers {"entry_ids": ["<any>"]}

  # Prevents: an error that loses its code on the way, or carries a stack trace that took longer than the call.
  Scenario: Errors keep their code
    Given a node "a" on the engine
    When I call "session::messages" with {"session_id": "nobody"}
    Then it fails with "session/not_found"

  # Prevents: a request of a wrong shape being taken, or refused without saying what is wrong.
  Scenario: A bad request is refused with the field
    Given a node "a" on the engine
    When I call "session::ensure" with {"session_id": 7}
    Then it fails with "session/invalid_request"

  # Prevents: events that do not reach subscribers on the engine, or reach those whose filter says no.
  Scenario: Subscribers on the engine hear what they asked for
    Given a node "a" on the engine
    And I called "session::ensure" with {"session_id": "s", "metadata": {"owner": "u1"}}
    And "mine" listens to "session::message-added" with {"metadata": {"owner": "u1"}, "roles": ["user"]}
    And "foreign" listens to "session::message-added" with {"metadata": {"owner": "u2"}}
    When I call "session::append" with {"session_id": "s", "entry_id": "e", "message": "<user:hi>"}
    Then it answers {"entry_id": "e"}
    And "mine" hears {"session_id": "s", "entry_id": "e"}
    And "foreign" hears nothing of it

  @embedded
  # Prevents: a node that stays away after its engine was restarted, or forgets who listened.
  Scenario: A node comes back to an engine that restarted
    Given a node "a" on the engine
    And "ear" listens to "session::created" with {}
    When the engine restarts
    And 3 sessions are created
    Then "ear" hears of every session, at least once

  @embedded
  # Prevents: a replica that serves nobody because another one leads.
  Scenario: Replicas on engines of their own all serve
    Given two replicas, each on an engine of its own
    And "here" listens to "session::created" with {}
    And "there" listens on the second engine to "session::created" with {}
    When 3 sessions are created
    Then "here" hears of every session, once each
    And "there" hears of every session, once each
