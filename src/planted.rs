//! Owns: bugs put in on purpose, to show that the simulation finds them (`cargo sim -- --planted`).
//! Never: in a release build, where `has` is a constant and every branch that asks it is gone; nor by any setting, argument
//! or variable of the product: in a debug build a bug is there only after the simulation's own program has planted it.

/// One way to be wrong. A process has one at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// The log says that a frame is durable without having asked the disk.
    SkipFsync,
    /// The leader answers a mutation when it is proposed.
    AnswerBeforeCommit,
    /// A read is answered from the state here, however old it is.
    ReadWithoutBarrier,
    /// A repetition does not say that it is one.
    ForgetDedup,
    /// The leader publishes the events of a mutation when it is proposed.
    PublishBeforeCommit,
    /// A node that comes back carries out the first command after its snapshot twice, as if changes and mark had not been
    /// committed together.
    ApplyTwiceAfterRestart,
    /// Ids count up from nothing on every new leader.
    ReuseIdsAfterFailover,
    /// A snapshot whose sender broke off counts as whole.
    AcceptTruncatedSnapshot,
}

impl Bug {
    pub const ALL: [Bug; 8] = [
        Bug::SkipFsync,
        Bug::AnswerBeforeCommit,
        Bug::ReadWithoutBarrier,
        Bug::ForgetDedup,
        Bug::PublishBeforeCommit,
        Bug::ApplyTwiceAfterRestart,
        Bug::ReuseIdsAfterFailover,
        Bug::AcceptTruncatedSnapshot,
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

    /// For the rest of this process, whose data is worth nothing from here on.
    pub fn plant(bug: Bug) {
        let planted = PLANTED.get_or_init(|| bug);
        assert!(*planted == bug, "{} is planted already", planted.name());
    }
}
