//! Owns: bugs planted on purpose, to show that the simulation finds them (`cargo sim -- --planted`). A bug sits in the
//! simulation's disk or mint if it can; the others are one condition each in the product.
//! Never: active in a release build, where `has` is the constant `false`, or by any setting or argument of the product: in
//! a debug build only the program of the simulation plants a bug.

/// A planted bug. A process has at most one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// The disk does not sync log files (`simulation/disk.rs`).
    SkipFsync,
    /// The leader answers a mutation before the commit.
    AnswerBeforeCommit,
    /// A read is answered from the local state, however old it is.
    ReadWithoutBarrier,
    /// A retry is not marked as a retry.
    ForgetDedup,
    /// The leader publishes the events of a mutation before the commit.
    PublishBeforeCommit,
    /// A restarted node applies the first command after its snapshot twice, as if changes and checkpoint were not
    /// committed together.
    ApplyTwiceAfterRestart,
    /// Every start of a node mints the same ids again (`simulation/mint.rs`).
    ReuseIdsAfterFailover,
    /// An interrupted transfer of a snapshot counts as whole (`simulation/truncated.rs`).
    AcceptTruncatedSnapshot,
    /// Vote requests and rounds of an election last as long on a slow disk as on a fast one.
    ConstantElectionTimes,
    /// A follower counts a heartbeat only when its disk is done with what came before.
    HeartbeatsWaitForDisk,
    /// A command that is forwarded to the leader loses the scope of its caller.
    ForwardWithoutScope,
    /// A leader forgets what was due before it led.
    ForgetOverdue,
    /// The gateway tells a hole in a stream as a gap, whatever the journal has.
    GapsOverKeptEvents,
}

impl Bug {
    pub const ALL: [Bug; 13] = [
        Bug::SkipFsync,
        Bug::AnswerBeforeCommit,
        Bug::ReadWithoutBarrier,
        Bug::ForgetDedup,
        Bug::PublishBeforeCommit,
        Bug::ApplyTwiceAfterRestart,
        Bug::ReuseIdsAfterFailover,
        Bug::AcceptTruncatedSnapshot,
        Bug::ConstantElectionTimes,
        Bug::HeartbeatsWaitForDisk,
        Bug::ForwardWithoutScope,
        Bug::ForgetOverdue,
        Bug::GapsOverKeptEvents,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Bug::SkipFsync => "skip-fsync",
            Bug::AnswerBeforeCommit => "answer-before-commit",
            Bug::ReadWithoutBarrier => "read-without-barrier",
            Bug::ForgetDedup => "forget-dedup",
            Bug::PublishBeforeCommit => "publish-before-commit",
            Bug::ApplyTwiceAfterRestart => "apply-twice-after-restart",
            Bug::ReuseIdsAfterFailover => "reuse-ids-after-failover",
            Bug::AcceptTruncatedSnapshot => "accept-truncated-snapshot",
            Bug::ConstantElectionTimes => "constant-election-times",
            Bug::HeartbeatsWaitForDisk => "heartbeats-wait-for-disk",
            Bug::ForwardWithoutScope => "forward-without-scope",
            Bug::ForgetOverdue => "forget-overdue",
            Bug::GapsOverKeptEvents => "gaps-over-kept-events",
        }
    }
}

#[cfg(not(debug_assertions))]
pub const fn has(_bug: Bug) -> bool {
    false
}

#[cfg(debug_assertions)]
pub use debug::{has, plant};

#[cfg(debug_assertions)]
mod debug {
    use std::sync::OnceLock;

    use super::Bug;

    static PLANTED: OnceLock<Bug> = OnceLock::new();

    pub fn has(bug: Bug) -> bool {
        PLANTED.get() == Some(&bug)
    }

    /// Plants a bug for the rest of this process.
    pub fn plant(bug: Bug) {
        let planted = PLANTED.get_or_init(|| bug);
        assert!(*planted == bug, "{} is planted already", planted.name());
    }
}
