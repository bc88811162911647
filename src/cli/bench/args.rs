//! Owns: the arguments that every measurement under load shares, and what they must be.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// A node takes 800 connections.
const CLIENTS_MAX: usize = 700;
/// Spread over three nodes.
const SUBSCRIBERS_MAX: usize = 2000;

/// Which systems, for how long, and where the result goes
#[derive(Debug, Clone, Args)]
pub struct LoadArgs {
    /// A running node to measure; repeat it for each node of the cluster [default: start nodes of our own]
    #[arg(long = "node", value_name = "URL", conflicts_with_all = ["nodes", "data_dir"])]
    pub node: Vec<String>,

    /// How many nodes to start
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=9))]
    pub nodes: u16,

    /// Where started servers keep their data while they run; choose the disk that is meant [default: temporary files]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,

    /// How long each round counts, in seconds
    #[arg(long, default_value_t = 5.0, value_parser = seconds)]
    pub seconds: f64,

    /// How often each workload runs on each system, in turns
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=100))]
    pub rounds: u16,

    /// The door that clients come through
    #[arg(long, value_enum, default_value_t = DoorName::Bus)]
    pub door: DoorName,

    /// How many connections the clients share [default: one each]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=700))]
    pub connections: Option<u16>,

    /// Measure a running etcd beside us: the client addresses of its members
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',', conflicts_with = "with_etcd")]
    pub etcd: Vec<String>,

    /// Measure etcd beside us, started here: as many members as nodes; the program `etcd` must be in the PATH
    #[arg(long)]
    pub with_etcd: bool,

    /// Print one JSON object instead of a table, or write it to FILE beside the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub json: Option<PathBuf>,

    /// Draw a chart of the result
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DoorName {
    /// The iii bus over WebSocket, as SDKs speak it
    Bus,
    /// One HTTP request per call
    Http,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        Ok(_) => Err("must lie between 0.1 and 3600".to_owned()),
        Err(_) => Err("not a number of seconds".to_owned()),
    }
}

/// One number of clients out of a list.
pub fn clients(text: &str) -> Result<usize, String> {
    count(text, CLIENTS_MAX, "clients")
}

/// One number of subscribers out of a list.
pub fn subscribers(text: &str) -> Result<usize, String> {
    count(text, SUBSCRIBERS_MAX, "subscribers")
}

fn count(text: &str, most: usize, of: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(count) if (1..=most).contains(&count) => Ok(count),
        Ok(_) => Err(format!("must lie between 1 and {most}")),
        Err(_) => Err(format!("not a number of {of}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_make_no_sense_are_refused_in_words() {
        assert_eq!(seconds("2.5"), Ok(2.5));
        for wrong in ["0", "-1", "NaN", "inf", "4000", "x"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
        assert_eq!(clients("128"), Ok(128));
        for wrong in ["0", "701", "-1", "many"] {
            assert!(clients(wrong).is_err(), "{wrong}");
        }
    }
}
