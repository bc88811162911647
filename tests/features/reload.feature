@engine
Feature: The data of a node is swapped while it runs

  # Prevents: a node that must be stopped to move its data, subscribers that go deaf, and calls that fail meanwhile.
  Scenario: From files to the replicated log, to a bridge and back, with subscribers attached
    Given everything is in the default namespace
    And a configuration worker
    And a main elsewhere
    And the stored configuration is {"adapter": {"name": "fs", "config": {"data_dir": "DIR/one"}}}
    And a node "a" on the engine, with its settings stored
    And "ear" listens to "session::created" with {}
    And "gone" listens to "session::deleted" with {}
    And "words" listens to "session::message-updated" with {}
    And I called "session::ensure" with {"session_id": "in files"}
    And I called "session::append" with {"session_id": "in files", "entry_id": "e", "message": "<user:hi>"}
    And I called "session::update-message" with {"session_id": "in files", "entry_id": "e", "content": "<content:better>"}
    And calls are made all the while
    When the stored configuration becomes {"adapter": {"name": "bridge", "config": {"url": "ENGINE"}}}
    Then "session::config-status" comes to {"last_outcome": "rejected"}
    And the last error names "adapter.config.url"
    And the last error names "this very instance"
    And a page of "session::list" comes to 1 sessions
    When the stored configuration becomes {"adapter": {"name": "raft", "config": {"data_dir": "DIR/two"}}}
    Then "session::config-status" comes to {"last_outcome": "applied"}
    And a page of "session::list" comes to 0 sessions
    And "gone" hears {"session_id": "in files"}
    When I call "session::ensure" with {"session_id": "in the log"}
    Then it answers {"created": true}
    And "ear" hears {"session_id": "in the log"}
    When the stored configuration becomes {"adapter": {"name": "bridge", "config": {"url": "MAIN"}}}
    Then a page of "session::list" comes to 0 sessions
    And "session::config-status" comes to {"last_outcome": "applied"}
    When "at the main" is ensured at the main
    Then "ear" hears {"session_id": "at the main"}
    When I call "session::get" with {"session_id": "at the main"}
    Then it answers {"meta": {"session_id": "at the main"}}
    When the stored configuration becomes {"adapter": {"name": "bridge", "config": {"url": "ws://127.0.0.1:1"}}}
    Then "session::config-status" comes to {"last_outcome": "rejected"}
    And the last error names "127.0.0.1:1"
    When the stored configuration becomes {"adapter": {"name": "raft", "config": {"data_dir": "DIR/two"}}}
    Then "session::config-status" comes to {"last_outcome": "applied"}
    When the stored configuration becomes {"adapter": {"name": "raft", "config": {"data_dir": "DIR/one"}}}
    Then "session::config-status" comes to {"last_outcome": "rejected"}
    And the last error names "adapter"
    And a page of "session::list" comes to 1 sessions
    When the stored configuration becomes {"adapter": {"name": "fs", "config": {"data_dir": "DIR/one"}}}
    Then "session::config-status" comes to {"last_outcome": "applied"}
    When I call "session::get" with {"session_id": "in files"}
    Then it answers {"meta": {"session_id": "in files"}}
    And "ear" hears {"session_id": "in files"} twice
    And "words" hears {"session_id": "in files", "entry_id": "e", "revision": 1} twice
    And "gone" hears {"session_id": "in the log"}
    When I call "session::ensure" with {"session_id": "in files again"}
    Then "ear" hears {"session_id": "in files again"}
    And no call failed

  @embedded
  # Prevents: settings of a file that wait for a restart, or for somebody to send a signal.
  Scenario: A changed file is put to work by itself
    Given a file says:
      """
      default_list_limit: 2
      """
    And a node "a" on the engine, seeded from that file
    And 3 sessions were created
    Then a page of "session::list" comes to 2 sessions
    When the file is changed to:
      """
      default_list_limit: 1
      """
    Then a page of "session::list" comes to 1 sessions
    When the file is changed to:
      """
      default_list_limit: none of your business
      """
    Then "session::config-status" comes to {"last_outcome": "rejected"}
    And the last error names "default_list_limit"
    And a page of "session::list" comes to 1 sessions
