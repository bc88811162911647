//! Owns: every metric of a node: its name, its kind and its meaning. `architecture/operations.md` lists the same, and a
//! test compares both with what a node exposes.
//! Units are base units and stand in the name. Names are an interface: alert rules and dashboards use them.

/// Before every name, with an underscore between.
pub const PREFIX: &str = "session_manager";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    /// Without the prefix.
    pub name: &'static str,
    pub kind: Kind,
    pub help: &'static str,
}

impl Metric {
    pub const fn counter(name: &'static str, help: &'static str) -> Metric {
        Metric { name, kind: Kind::Counter, help }
    }

    pub const fn gauge(name: &'static str, help: &'static str) -> Metric {
        Metric { name, kind: Kind::Gauge, help }
    }

    pub const fn histogram(name: &'static str, help: &'static str) -> Metric {
        Metric { name, kind: Kind::Histogram, help }
    }
}

// Consensus.
pub const HAS_LEADER: Metric =
    Metric::gauge("has_leader", "1 if this node knows a leader; for a leader, if a quorum answers it");
pub const IS_LEADER: Metric = Metric::gauge("is_leader", "1 if this node leads and a quorum answers it");
pub const LEADER_CHANGES: Metric = Metric::counter("leader_changes_total", "Leaders that this node has seen come");
pub const TERM: Metric = Metric::gauge("term", "The term of this node");
pub const PROPOSALS_COMMITTED: Metric =
    Metric::counter("proposals_committed_total", "Index of the last log entry that this node knows to be committed");
pub const PROPOSALS_APPLIED: Metric =
    Metric::counter("proposals_applied_total", "Index of the last log entry that this node has applied");
pub const PROPOSALS_PENDING: Metric =
    Metric::gauge("proposals_pending", "Mutations of callers of this node that wait for their answer");
pub const PROPOSALS_FAILED: Metric = Metric::counter(
    "proposals_failed_total",
    "Mutations of callers of this node that no leader executed in time, or whose outcome is unknown",
);
pub const APPLY_LAG: Metric = Metric::gauge("apply_lag_entries", "Committed log entries that are not applied here yet");
pub const LOG_FSYNC: Metric =
    Metric::histogram("log_fsync_duration_seconds", "Time to write one frame of the log and make it durable");
pub const COMMIT: Metric = Metric::histogram(
    "commit_duration_seconds",
    "Time from the proposal of an entry on this leader until it is durable on a majority and applied here",
);
pub const APPLY: Metric = Metric::histogram("apply_duration_seconds", "Time to apply one entry to the state");
pub const LOG_QUEUE: Metric =
    Metric::gauge("log_queued_writes", "Appends and votes that wait for the writer of the log");
pub const SNAPSHOT: Metric = Metric::histogram(
    "snapshot_duration_seconds",
    "Time to build a snapshot of the state, or to install one from the leader, by kind",
);
pub const SNAPSHOTS_FAILED: Metric =
    Metric::counter("snapshots_failed_total", "Snapshots that could not be built or installed, by kind");

// Calls.
pub const CALLS: Metric = Metric::counter("calls_total", "Calls that ended, by function, door and code");
pub const CALL_DURATION: Metric =
    Metric::histogram("call_duration_seconds", "Time of a call from its admission to its answer, by function and door");
pub const CALLS_IN_FLIGHT: Metric = Metric::gauge("calls_in_flight", "Calls that are being executed, by door");
pub const CALLS_WAITING: Metric = Metric::gauge("calls_waiting", "Calls that wait for memory");
pub const CALLS_QUEUED: Metric = Metric::gauge(
    "calls_queued",
    "Calls that wait because their caller has its share of calls running, or the node as many as it may",
);
pub const CALLS_NOT_ADMITTED: Metric = Metric::counter(
    "calls_not_admitted_total",
    "Calls that were refused because too many of their caller wait or the line is too long, or that got no memory by \
     their deadline",
);
pub const REFUSAL: Metric = Metric::histogram(
    "refusal_duration_seconds",
    "Time from the head of a request over HTTP to the answer that its call was not admitted",
);
pub const CALL_MEMORY: Metric = Metric::gauge("call_memory_bytes", "Memory that calls in flight have reserved");
pub const CALL_MEMORY_LIMIT: Metric = Metric::gauge("call_memory_limit_bytes", "The setting call_memory_bytes");

// Traces.
pub const SPANS_EXPORTED: Metric = Metric::counter("spans_exported_total", "Spans that the OTLP collector accepted");
pub const SPANS_DROPPED: Metric = Metric::counter(
    "spans_dropped_total",
    "Spans that were lost because the OTLP collector did not accept them, or not fast enough",
);

// Connections.
pub const CONNECTIONS: Metric = Metric::gauge("connections", "Open connections of clients");
pub const CONNECTIONS_LIMIT: Metric = Metric::gauge("connections_limit", "The most connections of clients");
pub const CONNECTIONS_REFUSED: Metric =
    Metric::counter("connections_refused_total", "Connections of clients past the limit");
pub const GATEWAY_CONNECTIONS: Metric = Metric::gauge("gateway_connections", "Clients connected to the gateway");
pub const BUS_CLIENTS: Metric = Metric::gauge("bus_clients", "Clients connected to the bus");
pub const OUTBOUND: Metric =
    Metric::gauge("outbound_queued_bytes", "Bytes that wait for clients of the bus to read them");
pub const LOGINS_REFUSED: Metric =
    Metric::counter("logins_refused_total", "Requests without valid credentials, by door");
pub const CERTIFICATE_EXPIRY: Metric = Metric::gauge(
    "certificate_expiry_timestamp_seconds",
    "When a certificate of this node expires, in seconds since the epoch, by port",
);

pub const TASK_LATENESS: Metric = Metric::histogram(
    "task_lateness_seconds",
    "How late a task of the doors runs: what every request waits for besides its own work",
);

// Events.
pub const SUBSCRIBERS: Metric = Metric::gauge("subscribers", "Subscribers of events");
pub const SUBSCRIBERS_BEHIND: Metric =
    Metric::gauge("subscribers_behind", "Subscribers that read the stored feed because they are not up to date");
pub const SUBSCRIBER_LAG: Metric = Metric::gauge(
    "subscriber_lag_entries",
    "Log entries between the newest event and the subscriber that is furthest behind",
);
pub const BINDINGS: Metric = Metric::gauge("bindings", "Bindings of all subscribers");
pub const EVENTS: Metric = Metric::counter("events_total", "Events that were committed on this node since it started");
pub const FEED_QUEUED: Metric = Metric::gauge("feed_queued_bytes", "Events that were committed and not delivered yet");
pub const FEED_RECENT: Metric =
    Metric::gauge("feed_recent_bytes", "Recent events in memory, for subscribers that resume");
pub const FEED_KEPT: Metric = Metric::gauge("feed_kept_bytes", "Events that are stored for subscribers that resume");

// Storage.
pub const DISK: Metric = Metric::gauge("disk_bytes", "Bytes of files in the data directory, by part");
pub const DISK_FILES: Metric = Metric::gauge("disk_files", "Files in the data directory, by part");
pub const DISK_FREE: Metric =
    Metric::gauge("disk_free_bytes", "Bytes that the file system of the data directory has left");
pub const DISK_SIZE: Metric = Metric::gauge("disk_size_bytes", "Size of the file system of the data directory");
pub const DISK_LOW: Metric = Metric::gauge(
    "disk_low",
    "1 if less than min_free_bytes is left on the disk of this node: the cluster accepts no writes",
);
pub const DISK_MIN_FREE: Metric = Metric::gauge("disk_min_free_bytes", "The bytes that must stay free on the disk");
pub const STATE_LAYERS: Metric =
    Metric::gauge("state_layers_bytes", "Changes of the state in memory that are not in sled yet, by layer");

// The process.
pub const RESIDENT_MEMORY: Metric = Metric::gauge("process_resident_memory_bytes", "Resident memory of the process");
pub const OPEN_FILES: Metric = Metric::gauge("process_open_fds", "Open file descriptors of the process");
pub const BUILD: Metric = Metric::gauge("build_info", "Always 1; the labels describe the build");
