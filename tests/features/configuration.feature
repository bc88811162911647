@engine
Feature: The settings of a node live in the engine's configuration worker

  @embedded
  # Prevents: a worker whose settings cannot be seen or changed on the engine.
  Scenario: The first start stores the file, later starts do not change the stored settings
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
    And the last replica shuts down
    And a node "a" is started, seeded from that file
    Then the stored configuration says {"default_list_limit": 1, "max_list_limit": 1}
    When 3 sessions are created
    Then a page of "session::list" eventually holds 1 sessions

  # Prevents: a change that takes effect only after a restart.
  Scenario: A changed limit takes effect at once
    Given a configuration worker
    And a node "a" on the engine
    And the stored configuration is {}
    And 3 sessions were created
    When the stored configuration becomes {"default_list_limit": 2}
    Then a page of "session::list" eventually holds 2 sessions

  @embedded
  # Prevents: a node that keeps old settings because it missed the notification of a change.
  Scenario: A missed change takes effect when the engine is back
    Given a configuration worker
    And a node "a" on the engine
    And 3 sessions were created
    When the stored configuration becomes {"default_list_limit": 2} without a notification
    And the engine restarts
    Then a page of "session::list" eventually holds 2 sessions

  @embedded
  # Prevents: a node that ends because of an invalid setting, or accepts it silently.
  Scenario: An invalid setting changes nothing and is reported
    Given a configuration worker
    And a node "a" on the engine
    And 3 sessions were created
    When the stored configuration becomes {"default_list_limit": 2}
    Then a page of "session::list" eventually holds 2 sessions
    When the stored configuration becomes {"default_lst_limit": 1}
    Then "session::config-status" eventually answers {"last_outcome": "rejected"}
    And the last error names "default_lst_limit"
    And a page of "session::list" eventually holds 2 sessions
    When the stored configuration becomes {"default_list_limit": "many"}
    Then the last error eventually names "default_list_limit"
    When the stored configuration becomes {"default_list_limit": 1}
    Then "session::config-status" eventually answers {"last_outcome": "applied"}
    And a page of "session::list" eventually holds 1 sessions

  @embedded
  # Prevents: a node that starts with other settings than the configured ones.
  Scenario: Invalid settings at the start are fatal
    Given a configuration worker
    And the stored configuration is {"max_list_limit": "many"}
    Then a node "a" does not start, and says "max_list_limit"
    And the stored configuration says {"max_list_limit": "many"}
