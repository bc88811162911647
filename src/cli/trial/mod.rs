//! A trial: mixed load through the public doors of every node while somebody breaks the nodes, and a judgement on it.
//!
//! Owns: the load, what it was told, and the laws that must hold of it. The cluster tests run trials; so may any command.
//! Never: how nodes are broken, started or found. A trial knows addresses, and those may change while it runs.

pub mod door;
pub mod history;
pub mod load;
pub mod verdict;

pub use door::{Door, Heard, Nodes};
pub use history::History;
pub use load::{Load, LoadSettings};
pub use verdict::judge;
