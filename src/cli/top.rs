//! Owns: `session-manager top`: the cluster as it is now, once per second, with what changed since.
//! Never: state. It asks every member for its status, like `session-manager cluster status`.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;

use super::error::CliError;
use super::operator::OperatorArgs;
use super::{client_runtime, log_to_stderr};
use crate::admin::survey::{NodeStatus, Survey};
use crate::observe::{CLIENT_LEVEL, LogFormat};

const EXAMPLES: &str = "\
Examples:
  session-manager top
  session-manager top --peer 10.77.0.1:49135 --every-ms 500
  session-manager top --frames 1 | cat                     one picture as text

End it with ctrl-c. `session-manager cluster status --json` has the same for programs.";

/// Watch a cluster: roles, lag, rate of entries, disks and memory of every node
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct TopArgs {
    /// Time between two pictures, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(100..=60_000))]
    every_ms: u64,

    /// End after so many pictures [default: never]
    #[arg(long, value_name = "N")]
    frames: Option<u64>,

    #[command(flatten)]
    operator: OperatorArgs,
}

pub fn run(args: TopArgs) -> Result<ExitCode, CliError> {
    log_to_stderr(LogFormat::Text, CLIENT_LEVEL)?;
    client_runtime()?.block_on(watch(&args))?;
    Ok(ExitCode::SUCCESS)
}

async fn watch(args: &TopArgs) -> Result<(), CliError> {
    let OperatorArgs { peer, cluster_id, .. } = &args.operator;
    let tls = args.operator.tls()?;
    let every = Duration::from_millis(args.every_ms);
    let look = || async { Survey::take(tls.as_ref(), peer, cluster_id, every.max(Duration::from_secs(1))).await };
    // The first look shows whether there is a cluster. Later ones may fail while the node at --peer is restarted.
    let mut before = (Instant::now(), look().await?);
    let mut shown = 0;
    loop {
        tokio::time::sleep(every).await;
        let now = Instant::now();
        let text = match look().await {
            Ok(survey) => {
                let text = picture(&survey, &before.1, now - before.0);
                before = (now, survey);
                text
            }
            Err(error) => format!("{error}\n"),
        };
        // Clears the screen and begins at its top.
        let start = if io::stdout().is_terminal() { "\x1b[2J\x1b[H" } else { "" };
        if write!(io::stdout(), "{start}{text}").and_then(|()| io::stdout().flush()).is_err() {
            // Nobody reads it any more.
            return Ok(());
        }
        shown += 1;
        if args.frames.is_some_and(|frames| shown >= frames) {
            return Ok(());
        }
    }
}

const HEAD: [&str; 10] =
    ["node", "role", "term", "applied", "entries/s", "lag", "sync ms", "memory", "disk free", "health"];

fn picture(survey: &Survey, before: &Survey, passed: Duration) -> String {
    let leader = if survey.leader == 0 { "nobody leads".to_owned() } else { format!("node {} leads", survey.leader) };
    let state = if survey.is_healthy() { "healthy" } else { "NOT HEALTHY" };
    let mut rows = vec![HEAD.map(str::to_owned)];
    rows.extend(survey.nodes.iter().map(|node| row(node, before, passed)));
    let widths: Vec<usize> =
        (0..HEAD.len()).map(|at| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0)).collect();
    let mut text = format!("cluster {}  {leader}  {state}\n\n", survey.cluster_id);
    for row in rows {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    for (node, own) in survey.nodes.iter().filter_map(|node| Some((node.node, node.own.as_ref().ok()?))) {
        own.warnings.iter().for_each(|warning| text.push_str(&format!("\nnode {node}: WARNING: {warning}")));
    }
    text.push('\n');
    text
}

fn row(node: &NodeStatus, before: &Survey, passed: Duration) -> [String; 10] {
    let own = node.own.as_ref().ok();
    let number = |value: Option<u64>| value.map_or("-".to_owned(), |value| value.to_string());
    let earlier = before.nodes.iter().find(|earlier| earlier.node == node.node);
    let applied_before = earlier.and_then(|earlier| earlier.own.as_ref().ok()?.applied);
    let rate = own.and_then(|own| own.applied).zip(applied_before).map(|(now, before)| {
        let entries = now.saturating_sub(before) as f64;
        format!("{:.0}", entries / passed.as_secs_f64().max(0.001))
    });
    let mib = |bytes: u64| if bytes == 0 { "-".to_owned() } else { format!("{} MiB", bytes >> 20) };
    [
        format!("{} {}", node.node, node.name).trim_end().to_owned(),
        node.role().to_owned(),
        number(own.map(|own| own.term)),
        number(own.and_then(|own| own.applied)),
        rate.unwrap_or_else(|| "-".to_owned()),
        number(node.lag),
        own.map_or("-".to_owned(), |own| format!("{:.1}", own.sync_us as f64 / 1000.0)),
        own.map_or("-".to_owned(), |own| mib(own.memory_bytes)),
        own.map_or("-".to_owned(), |own| mib(own.disk_free_bytes)),
        node.health(),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::admin::AdminError;
    use crate::proto::admin::{Health, Member, Role, StatusResponse};

    fn survey(applied: u64) -> Survey {
        let member = |node| Member { node, address: format!("a:{node}"), voter: true, ..Member::default() };
        let status = StatusResponse {
            cluster_id: "c".to_owned(),
            node: 1,
            role: Role::Leader.into(),
            health: Health::Ok.into(),
            leader: 1,
            applied: Some(applied),
            members: vec![member(1), member(2)],
            disk_free_bytes: 3 << 30,
            warnings: vec!["the disk is nearly full".to_owned()],
            ..Default::default()
        };
        let silent = AdminError::Unavailable("x".to_owned());
        Survey::of(&status, BTreeMap::from([(1, Ok(status.clone())), (2, Err(silent))]))
    }

    #[test]
    fn a_picture_shows_rates_and_nodes_that_do_not_answer() {
        let text = picture(&survey(1500), &survey(500), Duration::from_secs(2));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "cluster c  node 1 leads  NOT HEALTHY");
        let cells: Vec<&str> = lines[3].split_whitespace().collect();
        assert_eq!(cells[..5], ["1", "leader", "0", "1500", "500"], "{text}");
        assert!(lines[3].contains("3072 MiB"), "{text}");
        assert!(lines[4].starts_with("2") && lines[4].contains(" - "), "{text}");
        assert!(text.contains("node 1: WARNING: the disk is nearly full"), "{text}");
    }
}
