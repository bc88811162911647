//! The generated protobuf types, one module per file in `proto/`. The only formats on wire and disk.
#![allow(clippy::all, clippy::pedantic)]

pub mod store {
    tonic::include_proto!("session_manager.store.v1");
}

pub mod log {
    tonic::include_proto!("session_manager.log.v1");
}
