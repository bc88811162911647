//! The contract, as golden files: the schemas of the API, and transcripts of calls with their answers and events.

mod schemas;
