@engine
Feature: Replicas that share an engine behave as one worker

  # Prevents: two replicas that take each other's functions and bindings, or fire every event twice.
  Scenario: Only the leader serves
    Given three replicas on the engine
    And "ear" listens to "session::created" with {}
    When 5 sessions are created
    Then exactly one replica serves on the engine
    And "ear" hears of every session, once each

  # Prevents: calls that fail for good, bindings that are forgotten and events that are lost when a leader dies.
  Scenario: Another replica takes over from a leader that was killed
    Given three replicas on the engine
    And "ear" listens to "session::created" with {}
    And 20 sessions were created
    When the replica that serves is killed
    And 20 sessions are created
    Then exactly one replica serves on the engine
    And "ear" hears of every session, at least once

  # Prevents: events that come twice although nothing broke.
  Scenario: A leader that stops in order leaves nothing behind
    Given three replicas on the engine
    And "ear" listens to "session::created" with {}
    And 10 sessions were created
    When the replica that serves stops in order
    And 10 sessions are created
    Then exactly one replica serves on the engine
    And "ear" hears of every session, once each

  # Prevents: events that are committed while nobody serves, or shortly before a leader dies, and that nobody delivers.
  Scenario: What is committed around a crash is delivered
    Given three replicas on the engine
    And "ear" listens to "session::created" with {}
    And sessions are created all the while at every replica's own door
    When the replica that serves is killed
    And the killed replica comes back
    And the replica that serves is killed
    And 5 sessions are created
    And no more sessions are created
    Then "ear" hears of every session, at least once

  # Prevents: events that come twice, or never, because the leader changed although nothing broke.
  Scenario: A leadership that is handed over doubles nothing
    Given three replicas on the engine
    And "ear" listens to "session::created" with {}
    And sessions are created all the while at every replica's own door
    When the leadership is handed to another replica
    And the leadership is handed to another replica
    And 5 sessions are created
    And no more sessions are created
    Then exactly one replica serves on the engine
    And "ear" hears of every session, once each

  # Prevents: events that come twice, or never, because the leader was restarted in order under load.
  Scenario: A leader that stops in order under load doubles nothing
    Given three replicas on the engine
    And "ear" listens to "session::created" with {}
    And sessions are created all the while at the doors of those that do not serve
    When the replica that serves stops in order
    And 5 sessions are created
    And no more sessions are created
    Then "ear" hears of every session, once each

  # Prevents: events that come twice because the engine confirmed them later than the leader that stopped cared to wait.
  Scenario: A leader that stops in order waits for what is on its way
    Given three replicas on the engine, over slow lines
    And "ear" listens to "session::created" with {}
    And 2 sessions were created
    When the replica that serves stops in order, over its slow line
    And 2 sessions are created
    Then "ear" hears of every session, once each

  # Prevents: a subscriber that hears, after a crash, of what happened before it came.
  Scenario: A binding gets nothing from before it was made
    Given three replicas on the engine
    And "ear" listens to "session::created" with {}
    And 5 sessions were created
    And "late" listens to "session::created" with {}
    When the replica that serves is killed
    And 5 sessions are created
    Then "ear" hears of every session, at least once
    And "late" hears of the last 5 sessions and of none before

  # Prevents: a frozen leader that takes the events of the whole cluster with it, or doubles them when it wakes.
  Scenario: A leader that freezes loses no event, and lets go when it wakes
    Given three replicas on the engine
    And "ear" listens to "session::created" with {}
    And 5 sessions were created
    When the replica that serves freezes
    And 5 sessions are created at the others' own doors
    Then "ear" hears of every session, at least once
    When the frozen replica wakes
    And 5 sessions are created
    Then exactly one replica serves on the engine
    And "ear" hears of every session, at least once

  @embedded
  # Prevents: a node that forgets, while it is restarted, what its engine's subscribers are to hear.
  Scenario: A node with an engine of its own goes on where it stopped
    Given three replicas, each on an engine of its own
    And "there" listens on the second engine to "session::created" with {}
    And 3 sessions were created
    When the second replica stops in order
    And 3 sessions are created, without the second replica
    And the second replica comes back
    And 3 sessions are created
    Then "there" hears of every session, once each

  # Prevents: edges that go deaf, or hear things twice, when the replica their main's engine led to dies.
  Scenario: Edges of a cluster on an engine go on when its leader is killed
    Given everything is in the default namespace
    And three replicas on the engine
    And two edges whose main is on the engine
    And "one" listens at edge 1 to "session::created" with {}
    And "two" listens at edge 2 to "session::created" with {}
    And "ear" listens to "session::created" with {}
    And 3 sessions were created at each edge
    And 3 sessions were created
    When the replica that serves is killed
    And 5 sessions are created at each edge
    And 3 sessions are created
    Then "ear" hears of every session, at least once
    And "one" hears of every session, once each
    And "two" hears of every session, once each
