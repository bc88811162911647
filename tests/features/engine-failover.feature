@engine
Feature: Replicas that share an engine behave as one worker

  # Prevents: two replicas that both serve on the engine, or fire every event twice.
  Scenario: Only the leader serves
    Given three replicas on the engine
    And "ear" subscribes to "session::created" with {}
    When 5 sessions are created
    Then exactly one replica serves on the engine
    And "ear" receives an event of every session, once each

  # Prevents: calls that keep failing, lost bindings and lost events when a leader is killed.
  Scenario: Another replica takes over from a leader that was killed
    Given three replicas on the engine
    And "ear" subscribes to "session::created" with {}
    And 20 sessions were created
    When the replica that serves is killed
    And 20 sessions are created
    Then exactly one replica serves on the engine
    And "ear" receives an event of every session, at least once

  # Prevents: duplicate events although nothing failed.
  Scenario: A leader that shuts down hands over without duplicates
    Given three replicas on the engine
    And "ear" subscribes to "session::created" with {}
    And 10 sessions were created
    When the replica that serves shuts down
    And 10 sessions are created
    Then exactly one replica serves on the engine
    And "ear" receives an event of every session, once each

  # Prevents: undelivered events that were committed while no replica served, or shortly before a crash.
  Scenario: Events that are committed around a crash are delivered
    Given three replicas on the engine
    And "ear" subscribes to "session::created" with {}
    And sessions are created continuously on every replica's own port
    When the replica that serves is killed
    And the killed replica restarts
    And the replica that serves is killed
    And 5 sessions are created
    And no more sessions are created
    Then "ear" receives an event of every session, at least once

  # Prevents: duplicate or lost events because of a planned leader change.
  Scenario: A leadership transfer duplicates and loses no event
    Given three replicas on the engine
    And "ear" subscribes to "session::created" with {}
    And sessions are created continuously on every replica's own port
    When the leadership is handed to another replica
    And the leadership is handed to another replica
    And 5 sessions are created
    And no more sessions are created
    Then exactly one replica serves on the engine
    And "ear" receives an event of every session, once each

  # Prevents: duplicate or lost events because the leader shut down under load.
  Scenario: A leader that shuts down under load duplicates and loses no event
    Given three replicas on the engine
    And "ear" subscribes to "session::created" with {}
    And sessions are created continuously on the own ports of the replicas that do not serve
    When the replica that serves shuts down
    And 5 sessions are created
    And no more sessions are created
    Then "ear" receives an event of every session, once each

  # Prevents: duplicate events because the leader did not wait for the confirmation of the engine.
  Scenario: A leader that shuts down waits for outstanding confirmations
    Given three replicas on the engine, over slow connections
    And "ear" subscribes to "session::created" with {}
    And 2 sessions were created
    When the replica that serves shuts down over its slow connection
    And 2 sessions are created
    Then "ear" receives an event of every session, once each

  # Prevents: a subscriber that receives, after a crash, events from before its binding.
  Scenario: A binding receives no earlier events
    Given three replicas on the engine
    And "ear" subscribes to "session::created" with {}
    And 5 sessions were created
    And "late" subscribes to "session::created" with {}
    When the replica that serves is killed
    And 5 sessions are created
    Then "ear" receives an event of every session, at least once
    And "late" receives events of the last 5 sessions and of none before

  # Prevents: a paused leader that blocks the events of the cluster, or still serves when it resumes.
  Scenario: A paused leader loses no event, and stops serving when it resumes
    Given three replicas on the engine
    And "ear" subscribes to "session::created" with {}
    And 5 sessions were created
    When the replica that serves is paused
    And 5 sessions are created on another replica's own port
    Then "ear" receives an event of every session, at least once
    When the paused replica resumes
    And 5 sessions are created
    Then exactly one replica serves on the engine
    And "ear" receives an event of every session, at least once

  @embedded
  # Prevents: a restart that loses the events for the subscribers of the engine.
  Scenario: A restarted node with its own engine continues at its last position
    Given three replicas, each on an engine of its own
    And "there" subscribes on the second engine to "session::created" with {}
    And 3 sessions were created
    When the second replica shuts down
    And 3 sessions are created, without the second replica
    And the second replica restarts
    And 3 sessions are created
    Then "there" receives an event of every session, once each

  # Prevents: edges that receive no or duplicate events after the serving replica is killed.
  Scenario: Edges of a cluster on an engine continue when its leader is killed
    Given everything is in the default namespace
    And three replicas on the engine
    And two edges whose main is on the engine
    And "one" subscribes at edge 1 to "session::created" with {}
    And "two" subscribes at edge 2 to "session::created" with {}
    And "ear" subscribes to "session::created" with {}
    And 3 sessions were created at each edge
    And 3 sessions were created
    When the replica that serves is killed
    And 5 sessions are created at each edge
    And 3 sessions are created
    Then "ear" receives an event of every session, at least once
    And "one" receives an event of every session, once each
    And "two" receives an event of every session, once each
