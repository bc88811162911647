//! The generated protobuf types, one module per file in `proto/`. The only formats on wire and disk.
//!
//! Each stands in `v1` because generated code names other files by their package path; callers leave that out.
#![allow(clippy::all, clippy::pedantic)]

pub mod store {
    pub use v1::*;
    pub mod v1 {
        tonic::include_proto!("session_manager.store.v1");
    }
}

pub mod log {
    pub use v1::*;
    pub mod v1 {
        tonic::include_proto!("session_manager.log.v1");
    }
}

pub mod peer {
    pub use v1::*;
    pub mod v1 {
        tonic::include_proto!("session_manager.peer.v1");
    }
}

pub mod watch {
    pub use v1::*;
    pub mod v1 {
        tonic::include_proto!("session_manager.watch.v1");
    }
}

pub mod admin {
    pub use v1::*;
    pub mod v1 {
        tonic::include_proto!("session_manager.admin.v1");
    }
}

/// Not ours: what `bench` asks of etcd.
pub mod etcd {
    tonic::include_proto!("etcdserverpb");
}
