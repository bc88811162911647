//! Owns: the roles, what a caller can do, and the one table that says which role may do what. All doors ask this table.
//! Never: who has a role.

use std::fmt;

use clap::ValueEnum;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What an identity may do, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Everything, including the cluster
    Admin,
    /// All public functions, events, functions of its own
    App,
    /// Reads and events
    Reader,
    /// What an app may do, and the raw store protocol, for nodes that keep their data here
    Bridge,
    /// Metrics, and nothing else
    Monitor,
}

/// One kind of thing that a caller asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Read,
    Write,
    Events,
    Workers,
    RawStore,
    Administer,
    Metrics,
}

impl Role {
    pub const ALL: [Role; 5] = [Role::Admin, Role::App, Role::Reader, Role::Bridge, Role::Monitor];

    pub fn name(self) -> &'static str {
        match self {
            Role::Admin => "admin",
            Role::App => "app",
            Role::Reader => "reader",
            Role::Bridge => "bridge",
            Role::Monitor => "monitor",
        }
    }

    pub fn named(name: &str) -> Option<Role> {
        Role::ALL.into_iter().find(|role| role.name() == name)
    }

    /// The role matrix.
    pub fn may(self, action: Action) -> bool {
        let [admin, app, reader, bridge, monitor] = match action {
            Action::Read => [true, true, true, true, false],
            Action::Write => [true, true, false, true, false],
            Action::Events => [true, true, true, true, false],
            Action::Workers => [true, true, false, true, false],
            Action::RawStore => [true, false, false, true, false],
            Action::Administer => [true, false, false, false, false],
            Action::Metrics => [true, false, false, false, true],
        };
        match self {
            Role::Admin => admin,
            Role::App => app,
            Role::Reader => reader,
            Role::Bridge => bridge,
            Role::Monitor => monitor,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Action {
    pub const ALL: [Action; 7] = [
        Action::Read,
        Action::Write,
        Action::Events,
        Action::Workers,
        Action::RawStore,
        Action::Administer,
        Action::Metrics,
    ];

    /// What the action covers, for the documentation and for refusals.
    pub fn covers(self) -> &'static str {
        match self {
            Action::Read => "functions that read sessions, the bus, `GET /v1/nodes`",
            Action::Write => "functions that write sessions, and `session::on-config-change`",
            Action::Events => "events: bindings on the bus, `GET /v1/events`, `GET /v1/feed`, the gRPC watch",
            Action::Workers => "functions of other clients: register, list and call them; trigger types",
            Action::RawStore => "`session::store::*` and the trigger type `session::store::events`",
            Action::Administer => "the admin protocol (`session-manager cluster`), `POST /v1/cluster/<operation>`",
            Action::Metrics => "`GET /metrics`, `GET /v1/history`, `GET /v1/cluster`",
        }
    }
}

/// The role matrix as a table in Markdown, as the documentation prints it.
pub fn table() -> String {
    let mut table =
        String::from("| a caller may use | admin | app | reader | bridge | monitor |\n|---|---|---|---|---|---|\n");
    for action in Action::ALL {
        let cells = Role::ALL.map(|role| if role.may(action) { "yes" } else { "no" }).join(" | ");
        table.push_str(&format!("| {} | {cells} |\n", action.covers()));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documentation_prints_the_role_matrix() {
        let page = include_str!("../../architecture/access.md");
        assert!(page.contains(&table()), "architecture/access.md must contain this table:\n\n{}", table());
    }

    #[test]
    fn a_role_is_found_by_its_name() {
        for role in Role::ALL {
            assert_eq!(Role::named(role.name()), Some(role));
        }
        assert_eq!(Role::named("root"), None);
    }
}
