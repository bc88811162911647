//! Owns: why an export or an import fails.

use std::io;
use std::path::PathBuf;

use crate::machine::toolpath::error::DocumentError;
use crate::storage::jsonl::Unstorable;
use crate::storage::jsonl::stored_session::NoSession;

#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// What the node answered: `code: message`.
    #[error("{0}")]
    Refused(String),
    /// What the node answered about a path of a file.
    #[error("{}: path {path:?}: {error}", .file.display())]
    RefusedPath { file: PathBuf, path: String, error: String },
    /// The same, after batches were written.
    #[error(
        "{}: path {path:?}: {error}; no reader sees the entries that were written: run the same import again to finish \
         it, or with --replace to start over",
        .file.display()
    )]
    HalfWritten { file: PathBuf, path: String, error: String },
    /// The same, after batches were merged into a session that readers see.
    #[error("{}: path {path:?}: {error}; some entries were merged: run the same import again", .file.display())]
    HalfMerged { file: PathBuf, path: String, error: String },
    #[error("{}: {error}", .file.display())]
    Document { file: PathBuf, error: DocumentError },
    #[error("{}: {error}", .file.display())]
    File { file: PathBuf, error: io::Error },
    #[error("{}: not a transcript of {from}: {why}", .file.display())]
    Transcript { file: PathBuf, from: &'static str, why: String },
    #[error("{}: {error}", .file.display())]
    NoSession { file: PathBuf, error: NoSession },
    #[error("{id}: {error}")]
    Unstorable { id: String, error: Unstorable },
    #[error("{}: no transcript found", .0.display())]
    NothingFound(PathBuf),
    #[error("standard output: {0}")]
    Output(io::Error),
    #[error("the node answered something else than a page of an export")]
    NotAPage,
    #[error("{0}")]
    Arguments(&'static str),
    #[error("--metadata {0:?}: write KEY=VALUE, where VALUE is JSON or plain text")]
    Metadata(String),
    #[error("{failed} of {all} files were refused")]
    Some { failed: usize, all: usize },
}

impl TransferError {
    /// Whether the arguments are at fault, and nothing was tried.
    pub fn is_usage(&self) -> bool {
        match self {
            TransferError::Arguments(_) | TransferError::Metadata(_) => true,
            TransferError::Refused(_)
            | TransferError::RefusedPath { .. }
            | TransferError::HalfWritten { .. }
            | TransferError::HalfMerged { .. }
            | TransferError::Document { .. }
            | TransferError::File { .. }
            | TransferError::Transcript { .. }
            | TransferError::NoSession { .. }
            | TransferError::Unstorable { .. }
            | TransferError::NothingFound(_)
            | TransferError::Output(_)
            | TransferError::NotAPage
            | TransferError::Some { .. } => false,
        }
    }
}
