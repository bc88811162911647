@engine
Feature: The adapter of a node is changed while it runs

  # Prevents: a node that must be stopped to change its adapter, lost subscriptions and failing calls meanwhile.
  Scenario: From files to the replicated log, to a bridge and back, with subscribers attached
    Given everything is in the default namespace
    And a configuration worker
    And a main outside the engine
    And the stored configuration is {"adapter": {"name": "fs", "config": {"data_dir": "DIR/one"}}}
    And a node "a" on the engine, with its settings stored
    And "ear" subscribes to "session::created" with {}
    And "gone" subscribes to "session::deleted" with {}
    And "words" subscribes to "session::message-updated" with {}
    And I called "session::ensure" with {"session_id": "in files"}
    And I called "session::append" with {"session_id": "in files", "entry_id": "e", "message": "<user:hi>"}
    And I called "session::update-message" with {"session_id": "in files", "entry_id": "e", "content": "<content:better>"}
    And calls are made continuously
    When the stored configuration becomes {"adapter": {"name": "bridge", "config": {"url": "ENGINE"}}}
    Then "session::config-status" eventually answers {"last_outcome": "rejected"}
    And the last error names "adapter.config.url"
    And the last error names "this very instance"
    And a page of "session::list" eventually holds 1 sessions
    When the stored configuration becomes {"adapter": {"name": "raft", "config": {"data_dir": "DIR/two"}}}
    Then "session::config-status" eventually answers {"last_outcome": "applied"}
    And a page of "session::list" eventually holds 0 sessions
    And "gone" receives {"session_id": "in files"}
    When I call "session::ensure" with {"session_id": "in the log"}
    Then it answers {"created": true}
    And "ear" receives {"session_id": "in the log"}
    When the stored configuration becomes {"adapter": {"name": "bridge", "config": {"url": "MAIN"}}}
    Then a page of "session::list" eventually holds 0 sessions
    And "session::config-status" eventually answers {"last_outcome": "applied"}
    When "at the main" is ensured at the main
    Then "ear" receives {"session_id": "at the main"}
    When I call "session::get" with {"session_id": "at the main"}
    Then it answers {"meta": {"session_id": "at the main"}}
    When the stored configuration becomes {"adapter": {"name": "bridge", "config": {"url": "ws://127.0.0.1:1"}}}
    Then "session::config-status" eventually answers {"last_outcome": "rejected"}
    And the last error names "127.0.0.1:1"
    When the stored configuration becomes {"adapter": {"name": "raft", "config": {"data_dir": "DIR/two"}}}
    Then "session::config-status" eventually answers {"last_outcome": "applied"}
    When the stored configuration becomes {"adapter": {"name": "raft", "config": {"data_dir": "DIR/one"}}}
    Then "session::config-status" eventually answers {"last_outcome": "rejected"}
    And the last error names "adapter"
    And a page of "session::list" eventually holds 1 sessions
    When the stored configuration becomes {"adapter": {"name": "fs", "config": {"data_dir": "DIR/one"}}}
    Then "session::config-status" eventually answers {"last_outcome": "applied"}
    When I call "session::get" with {"session_id": "in files"}
    Then it answers {"meta": {"session_id": "in files"}}
    And "ear" receives {"session_id": "in files"} twice
    And "words" receives {"session_id": "in files", "entry_id": "e", "revision": 1} twice
    And "gone" receives {"session_id": "in the log"}
    When I call "session::ensure" with {"session_id": "in files again"}
    Then "ear" receives {"session_id": "in files again"}
    And no call failed

  @embedded
  # Prevents: a changed file that takes effect only after a restart or a signal.
  Scenario: A changed file takes effect without a signal
    Given a file says:
      """
      default_list_limit: 2
      """
    And a node "a" on the engine, seeded from that file
    And 3 sessions were created
    Then a page of "session::list" eventually holds 2 sessions
    When the file is changed to:
      """
      default_list_limit: 1
      """
    Then a page of "session::list" eventually holds 1 sessions
    When the file is changed to:
      """
      default_list_limit: none of your business
      """
    Then "session::config-status" eventually answers {"last_outcome": "rejected"}
    And the last error names "default_list_limit"
    And a page of "session::list" eventually holds 1 sessions
