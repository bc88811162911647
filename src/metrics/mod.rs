//! Figures about a running node, for Prometheus.
//!
//! Owns: what parts record into (`Counter`, `Durations`), the list of all metrics (`catalogue`), and the page that
//! `GET /metrics` answers with (`Page`). A part keeps its own counters, and adds them to a page when it is asked to.
//! Also where the time of one call goes (`timeline`), for the log, and its spans (`trace`), for a collector.
//! Never: a lock or an allocation where a figure is recorded, or a decision by a figure.

pub mod catalogue;
mod counter;
mod durations;
mod page;
pub mod timeline;
pub mod trace;

pub use catalogue::{Kind, Metric};
pub use counter::Counter;
pub use durations::{Durations, Reading};
pub use page::Page;
