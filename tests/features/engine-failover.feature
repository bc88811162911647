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
