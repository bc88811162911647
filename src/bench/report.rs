//! Owns: the result of a measurement, as a table and as JSON, and its comparison with the goals.

use std::fmt::Write;

use serde_json::{Value, json};

use super::figures::Timings;
use super::window::Sample;

/// The measured system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum System {
    Ours,
    /// Ours with TLS and a token.
    Secure,
    Etcd,
    Postgres,
    Nats,
}

impl System {
    pub fn name(self) -> &'static str {
        match self {
            System::Ours => "session-manager",
            System::Secure => "session-manager, TLS",
            System::Etcd => "etcd",
            System::Postgres => "PostgreSQL",
            System::Nats => "NATS",
        }
    }
}

/// One row: one workload on one system. Unknown numbers are left out.
#[derive(Debug)]
pub struct Figure {
    /// The workload. Rows with the same name are compared.
    pub name: String,
    pub system: System,
    pub ops_per_s: f64,
    /// The rate of each round, which shows the noise.
    pub rounds: Vec<f64>,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub server_cpu_us: Option<f64>,
    pub client_cpu_us: Option<f64>,
    /// Bytes in the log of each node, per operation. They are also the bytes that were replicated.
    pub log_bytes: Option<f64>,
    /// Bytes that all servers together wrote to disk, per operation.
    pub disk_bytes: Option<f64>,
    pub errors: u64,
    pub first_error: Option<String>,
}

impl Figure {
    /// Combines the rounds of one workload on one system.
    pub fn of(name: String, system: System, samples: Vec<Sample>) -> Figure {
        let rounds: Vec<f64> = samples.iter().map(Sample::ops_per_s).collect();
        let seconds: f64 = samples.iter().map(|sample| sample.window.as_secs_f64()).sum();
        let per_op = |cost: fn(&Sample) -> Option<f64>| {
            let sum: f64 = samples.iter().map(cost).sum::<Option<f64>>()?;
            Some(sum / samples.iter().map(|sample| sample.timings.len()).sum::<usize>().max(1) as f64)
        };
        let server_cpu_us = per_op(|sample| Some(sample.servers?.cpu.as_secs_f64() * 1e6));
        let client_cpu_us = per_op(|sample| Some(sample.client?.cpu.as_secs_f64() * 1e6));
        let disk_bytes = per_op(|sample| Some(sample.servers?.disk_bytes as f64));
        let mut timings = Timings::default();
        let (mut errors, mut first_error) = (0, None);
        for sample in samples {
            timings.join(sample.timings);
            errors += sample.errors;
            first_error = first_error.or(sample.first_error);
        }
        Figure {
            name,
            system,
            ops_per_s: timings.len() as f64 / seconds.max(f64::MIN_POSITIVE),
            rounds,
            p50_ms: timings.median().as_secs_f64() * 1e3,
            p99_ms: timings.p99().as_secs_f64() * 1e3,
            server_cpu_us,
            client_cpu_us,
            log_bytes: None,
            disk_bytes,
            errors,
            first_error,
        }
    }

    fn json(&self) -> Value {
        let mut value = json!({
            "name": self.name,
            "system": self.system.name(),
            "ops_per_s": rounded(self.ops_per_s),
            "ops_per_s_of_rounds": self.rounds.iter().map(|rate| rounded(*rate)).collect::<Vec<_>>(),
            "p50_ms": rounded(self.p50_ms),
            "p99_ms": rounded(self.p99_ms),
            "errors": self.errors,
        });
        let known = [
            ("server_cpu_us_per_op", self.server_cpu_us),
            ("client_cpu_us_per_op", self.client_cpu_us),
            ("bytes_replicated_per_op", self.log_bytes),
            ("bytes_stored_per_op", self.disk_bytes),
        ];
        for (name, number) in known {
            if let Some(number) = number {
                value[name] = json!(rounded(number));
            }
        }
        if let Some(error) = &self.first_error {
            value["first_error"] = json!(error);
        }
        value
    }

    fn row(&self) -> String {
        let shown = |number: Option<f64>| number.map_or_else(|| "-".to_owned(), |number| format!("{number:.0}"));
        let failed = if self.errors > 0 { format!(" ({} errors)", self.errors) } else { String::new() };
        format!(
            "| {} | {} | {:.0}{failed} | {:.2} / {:.2} | {} | {} | {} | {} |\n",
            self.name,
            self.system.name(),
            self.ops_per_s,
            self.p50_ms,
            self.p99_ms,
            shown(self.server_cpu_us),
            shown(self.client_cpu_us),
            shown(self.log_bytes),
            shown(self.disk_bytes),
        )
    }
}

const FIGURES_HEAD: &str = "\
| workload | system | per second | p50 / p99 ms | server CPU µs/op | client CPU µs/op | log B/op, each node | disk B/op, all nodes |
|---|---|---|---|---|---|---|---|
";

const RATIOS_HEAD: &str = "\
| compared | value | goal | |
|---|---|---|---|
";

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Goal {
    AtLeast(f64),
    AtMost(f64),
    /// Shown without a verdict.
    None,
}

/// One number of the report, with its goal.
#[derive(Debug)]
pub struct Ratio {
    pub name: String,
    pub value: f64,
    pub goal: Goal,
}

impl Ratio {
    pub fn pass(&self) -> bool {
        match self.goal {
            Goal::AtLeast(least) => self.value >= least,
            Goal::AtMost(most) => self.value <= most,
            Goal::None => true,
        }
    }

    fn goal_text(&self) -> String {
        match self.goal {
            Goal::AtLeast(least) => format!("≥ {least}"),
            Goal::AtMost(most) => format!("≤ {most}"),
            Goal::None => String::new(),
        }
    }

    fn verdict(&self) -> &'static str {
        match (self.goal, self.pass()) {
            (Goal::None, _) => "",
            (Goal::AtLeast(_) | Goal::AtMost(_), true) => "pass",
            (Goal::AtLeast(_) | Goal::AtMost(_), false) => "MISSED",
        }
    }

    fn json(&self) -> Value {
        let mut value = json!({ "name": self.name, "value": rounded(self.value) });
        if self.goal != Goal::None {
            value["goal"] = json!(self.goal_text());
            value["pass"] = json!(self.pass());
        }
        value
    }
}

#[derive(Debug, Default)]
pub struct Report {
    pub figures: Vec<Figure>,
    pub ratios: Vec<Ratio>,
    /// Descriptions of the measured systems.
    pub systems: Vec<String>,
}

impl Report {
    pub fn join(&mut self, other: Report) {
        self.figures.extend(other.figures);
        self.ratios.extend(other.ratios);
        for system in other.systems {
            if !self.systems.contains(&system) {
                self.systems.push(system);
            }
        }
    }

    /// Adds the rows of one workload, for etcd only if it was measured.
    pub fn add(&mut self, workload: &str, ours: Vec<Sample>, etcd: Vec<Sample>) {
        self.figures.push(Figure::of(workload.to_owned(), System::Ours, ours));
        self.add_peer(workload, System::Etcd, etcd);
    }

    /// Adds the row of another system, if it was measured.
    pub fn add_peer(&mut self, workload: &str, system: System, samples: Vec<Sample>) {
        if !samples.is_empty() {
            self.figures.push(Figure::of(workload.to_owned(), system, samples));
        }
    }

    pub fn figure(&self, name: &str, system: System) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.name == name && figure.system == system)
    }

    /// Adds the ratio of our number to etcd's, if both were measured.
    pub fn compare(&mut self, workload: &str, what: &str, of: fn(&Figure) -> f64, goal: Goal) {
        let ours = self.figure(workload, System::Ours).map(of);
        let peer = self.figure(workload, System::Etcd).map(of);
        if let (Some(ours), Some(peer)) = (ours, peer)
            && ours.is_finite()
            && peer.is_finite()
        {
            let value = ours / peer.max(f64::MIN_POSITIVE);
            self.ratios.push(Ratio { name: format!("{workload}: {what}, ours / etcd"), value, goal });
        }
    }

    /// Adds what TLS costs: the ratio of the rates with and without it, if both were measured.
    pub fn compare_tls(&mut self, workload: &str) {
        let rate = |system| self.figure(workload, system).map(|figure| figure.ops_per_s);
        if let (Some(secure), Some(plain)) = (rate(System::Secure), rate(System::Ours)) {
            let (name, value) =
                (format!("{workload}: rate, with TLS / without"), secure / plain.max(f64::MIN_POSITIVE));
            self.ratios.push(Ratio { name, value, goal: Goal::None });
        }
    }

    pub fn pass(&self) -> bool {
        self.ratios.iter().all(Ratio::pass)
    }

    pub fn table(&self) -> String {
        let mut text = String::new();
        for system in &self.systems {
            let _ = writeln!(text, "{system}");
        }
        let _ = write!(text, "{}\n\n{FIGURES_HEAD}", machine());
        self.figures.iter().for_each(|figure| text.push_str(&figure.row()));
        if !self.ratios.is_empty() {
            let _ = write!(text, "\n{RATIOS_HEAD}");
        }
        for ratio in &self.ratios {
            let (name, goal, verdict) = (&ratio.name, ratio.goal_text(), ratio.verdict());
            let _ = writeln!(text, "| {name} | {:.2} | {goal} | {verdict} |", ratio.value);
        }
        for figure in &self.figures {
            if let Some(error) = &figure.first_error {
                let _ = writeln!(text, "\n{} on {}: the first error: {error}", figure.name, figure.system.name());
            }
        }
        text
    }

    pub fn json(&self) -> Value {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "debug_build": cfg!(debug_assertions),
            "unix_time": now.map_or(0, |since| since.as_secs()),
            "machine": { "os": std::env::consts::OS, "arch": std::env::consts::ARCH, "cores": cores(), "cpu": cpu() },
            "command": command(),
            "systems": self.systems,
            "figures": self.figures.iter().map(Figure::json).collect::<Vec<_>>(),
            "ratios": self.ratios.iter().map(Ratio::json).collect::<Vec<_>>(),
            "pass": self.pass(),
        })
    }
}

/// Three decimals below 100, none above: the measurements are not more precise.
fn rounded(number: f64) -> f64 {
    let scale = if number.abs() >= 100.0 { 1.0 } else { 1000.0 };
    (number * scale).round() / scale
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(0, |cores| cores.get())
}

/// The name of the processor, on Linux.
fn cpu() -> Option<String> {
    let info = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = info.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn machine() -> String {
    let build = if cfg!(debug_assertions) { ", DEBUG BUILD: do not keep these figures" } else { "" };
    let cpu = cpu().map(|cpu| format!(" ({cpu})")).unwrap_or_default();
    format!("{} {}, {} cores{cpu}{build}", std::env::consts::OS, std::env::consts::ARCH, cores())
}

/// The command line of this measurement.
fn command() -> String {
    let words = std::env::args().skip(1).map(|word| if word.contains(' ') { format!("'{word}'") } else { word });
    std::iter::once("session-manager".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn figure(system: System, rounds: &[usize]) -> Figure {
        let sample = |ops: &usize| {
            let mut timings = Timings::default();
            (0..*ops).for_each(|_| timings.push(Duration::from_millis(2)));
            let window = Duration::from_secs(1);
            Sample { timings, errors: 0, first_error: None, window, servers: None, client: None }
        };
        Figure::of("append".to_owned(), system, rounds.iter().map(sample).collect())
    }

    #[test]
    fn rounds_are_combined_and_compared_with_etcd() {
        let mut report = Report::default();
        report.figures.push(figure(System::Ours, &[30, 60]));
        report.compare("append", "rate", |figure| figure.ops_per_s, Goal::AtLeast(3.0));
        assert!(report.ratios.is_empty(), "there is nothing to compare with yet");
        report.figures.push(figure(System::Etcd, &[15]));
        assert_eq!(report.figures[0].ops_per_s, 45.0);
        assert_eq!(report.figures[0].p50_ms, 2.0);
        report.compare("append", "rate", |figure| figure.ops_per_s, Goal::AtLeast(3.0));
        assert!(report.pass());
        report.compare("append", "rate", |figure| figure.ops_per_s, Goal::AtMost(2.9));
        assert!(!report.pass());
        report.figures.push(figure(System::Secure, &[36]));
        report.compare_tls("append");
        assert_eq!(report.ratios.last().map(|ratio| ratio.value), Some(0.8));
        assert!(report.table().contains("| MISSED |"));
        assert_eq!(report.json()["ratios"][0]["value"], 3.0);
    }
}
