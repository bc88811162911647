//! Owns: how nodes that start with the same command become one cluster: finding each other, founding exactly one cluster,
//! and joining a cluster that exists.
//! Never: what a cluster does once it exists.

pub mod announce;
pub mod decide;
pub mod discovery;
pub mod forming;
pub mod meeting;
pub mod record;
pub mod rejoin;
pub mod service;
