//! The contract as golden files: the schemas of the API, and transcripts of calls with their answers and events.

mod aliases;
mod node;
mod schemas;
mod transcripts;
