//! The generated protobuf types, one module per file in `proto/`.
//!
//! Each module contains `v1`, because generated code refers to other files by their package path. Callers omit `v1`.
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

pub mod formation {
    pub use v1::*;
    pub mod v1 {
        tonic::include_proto!("session_manager.formation.v1");
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

/// The API of etcd, for `bench`. Not one of our formats.
pub mod etcd {
    tonic::include_proto!("etcdserverpb");
}
