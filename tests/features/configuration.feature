@engine
Feature: The settings of a node live in the engine's configuration worker

  @embedded
  # Prevents: a worker whose settings cannot be seen or changed on the engine.
  Scenario: The first boot stores the file, later ones leave it alone
    Given a configuration worker
    And a file says:
      """
      default_list_limit: 2
      max_list_limit: 3
      """
    And a node "a" on the engine, seeded from that file
    Then the stored configuration says {"default_list_limit": 2, "max_list_limit": 3}
    And the configuration worker knows the schema of "max_list_limit"
    When the stored configuration becomes {"default_list_limit": 1, "max_list_limit": 1}
    And the replica that serves stops in order, the last one
    And a node "a" is started, seeded from that file
    Then the stored configuration says {"default_list_limit": 1, "max_list_limit": 1}
    When 3 sessions are created
    Then a page of "session::list" comes to 1 sessions

  # Prevents: a change that waits for a restart.
  Scenario: A changed limit counts at once
    Given a configuration worker
    And a node "a" on the engine
    And the stored configuration is {}
    And 3 sessions were created
    When the stored configuration becomes {"default_list_limit": 2}
    Then a page of "session::list" comes to 2 sessions

  @embedded
  # Prevents: a node that runs on with settings of before, because it could not hear that they changed.
  Scenario: A change that nobody could tell of counts when the engine is back
    Given a configuration worker
    And a node "a" on the engine
    And 3 sessions were created
    When the stored configuration becomes {"default_list_limit": 2}, unheard
    And the engine restarts
    Then a page of "session::list" comes to 2 sessions

  @embedded
  # Prevents: a node that dies of a bad setting, or runs on with it silently.
  Scenario: A setting that cannot be put to work changes nothing and is reported
    Given a configuration worker
    And a node "a" on the engine
    And 3 sessions were created
    When the stored configuration becomes {"default_list_limit": 2}
    Then a page of "session::list" comes to 2 sessions
    When the stored configuration becomes {"default_lst_limit": 1}
    Then "session::config-status" comes to {"last_outcome": "rejected"}
    And the last error names "default_lst_limit"
    And a page of "session::list" comes to 2 sessions
    When the stored configuration becomes {"default_list_limit": "many"}
    Then the last error comes to name "default_list_limit"
    When the stored configuration becomes {"default_list_limit": 1}
    Then "session::config-status" comes to {"last_outcome": "applied"}
    And a page of "session::list" comes to 1 sessions

  @embedded
  # Prevents: a node that starts with other settings than it was told.
  Scenario: Bad settings at boot are fatal
    Given a configuration worker
    And the stored configuration is {"max_list_limit": "many"}
    Then a node "a" does not start, and says "max_list_limit"
    And the stored configuration says {"max_list_limit": "many"}
