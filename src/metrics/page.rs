//! Owns: the answer to `GET /metrics`: the samples of all parts, printed in the text format of Prometheus (0.0.4).

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::catalogue::{Kind, Metric, PREFIX};
use super::durations::{Durations, Reading};

/// One page, while parts add their samples to it.
#[derive(Debug, Default)]
pub struct Page {
    /// By name: the format wants the samples of a metric together.
    families: BTreeMap<&'static str, Family>,
}

#[derive(Debug)]
struct Family {
    metric: Metric,
    samples: Vec<Sample>,
}

#[derive(Debug)]
struct Sample {
    labels: Vec<(&'static str, String)>,
    value: Value,
}

#[derive(Debug)]
enum Value {
    Whole(u64),
    Part(f64),
    Durations(Reading),
}

impl Page {
    pub const CONTENT_TYPE: &'static str = "text/plain; version=0.0.4; charset=utf-8";

    pub fn whole(&mut self, metric: Metric, value: u64) {
        self.add(metric, &[], Value::Whole(value));
    }

    pub fn whole_of(&mut self, metric: Metric, labels: &[(&'static str, &str)], value: u64) {
        self.add(metric, labels, Value::Whole(value));
    }

    pub fn flag(&mut self, metric: Metric, is_set: bool) {
        self.add(metric, &[], Value::Whole(u64::from(is_set)));
    }

    pub fn seconds_of(&mut self, metric: Metric, labels: &[(&'static str, &str)], seconds: f64) {
        self.add(metric, labels, Value::Part(seconds));
    }

    pub fn durations(&mut self, metric: Metric, labels: &[(&'static str, &str)], durations: &Durations) {
        self.add(metric, labels, Value::Durations(durations.read()));
    }

    /// The encoder does not escape, and need not: labels have values of this program, never of a caller.
    fn add(&mut self, metric: Metric, labels: &[(&'static str, &str)], value: Value) {
        debug_assert!(labels.iter().all(|(_, value)| !value.contains(['"', '\\', '\n'])), "{labels:?}");
        let labels = labels.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        let family = self.families.entry(metric.name).or_insert_with(|| Family { metric, samples: Vec::new() });
        family.samples.push(Sample { labels, value });
    }

    /// The sum of a metric's whole numbers. `of` sees the value of the first label, and says whether a sample counts.
    pub fn sum(&self, metric: Metric, of: impl Fn(&str) -> bool) -> u64 {
        self.samples(metric, of).map(|value| if let Value::Whole(number) = value { *number } else { 0 }).sum()
    }

    /// The sum of the samples whose label has this value.
    pub fn sum_where(&self, metric: Metric, label: &str, value: &str) -> u64 {
        let samples = self.families.get(metric.name).into_iter().flat_map(|family| &family.samples);
        let counts = samples.filter(|sample| sample.labels.iter().any(|(name, has)| *name == label && has == value));
        counts.map(|sample| if let Value::Whole(number) = sample.value { number } else { 0 }).sum()
    }

    /// A metric's histograms as one.
    pub fn total(&self, metric: Metric, of: impl Fn(&str) -> bool) -> Reading {
        let mut total = Reading::default();
        for value in self.samples(metric, of) {
            if let Value::Durations(reading) = value {
                total.add(reading);
            }
        }
        total
    }

    fn samples(&self, metric: Metric, of: impl Fn(&str) -> bool) -> impl Iterator<Item = &Value> {
        let samples = self.families.get(metric.name).into_iter().flat_map(|family| &family.samples);
        let counts = move |sample: &&Sample| of(sample.labels.first().map_or("", |(_, value)| value));
        samples.filter(counts).map(|sample| &sample.value)
    }

    pub fn print(self) -> String {
        let mut registry = Registry::with_prefix(PREFIX);
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        // Writing to a string cannot fail, and no value is beyond what the encoder can print.
        let _ = encode_registry(&mut text, &registry);
        text
    }
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        for Family { metric, samples } in self.families.values() {
            let kind = match metric.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Histogram => MetricType::Histogram,
            };
            let mut encoder = encoder.encode_descriptor(metric.name, metric.help, None, kind)?;
            for Sample { labels, value } in samples {
                match labels.is_empty() {
                    true => encode(&mut encoder, value)?,
                    false => encode(&mut encoder.encode_family(labels)?, value)?,
                }
            }
        }
        Ok(())
    }
}

/// The encoder writes OpenMetrics, where the name of a counter in `TYPE` lacks the suffix `_total` of its samples.
/// Prometheus' own format has the suffix in both, so counters have it in their name and are written without another.
fn encode(encoder: &mut MetricEncoder<'_>, value: &Value) -> Result<(), fmt::Error> {
    match value {
        Value::Whole(number) => encoder.encode_gauge(&(*number).min(i64::MAX as u64)),
        Value::Part(number) => encoder.encode_gauge(number),
        Value::Durations(Reading { buckets, count, sum_seconds }) => {
            encoder.encode_histogram::<NoLabelSet>(*sum_seconds, *count, buckets, None)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_page_is_the_text_format_of_prometheus() {
        const CALLS: Metric = Metric::counter("calls_total", "Calls");
        const OPEN: Metric = Metric::gauge("open", "Whether it is open");
        const TOOK: Metric = Metric::histogram("took_seconds", "How long it took");
        let mut page = Page::default();
        let durations = Durations::default();
        durations.observe(Duration::from_micros(20));
        page.durations(TOOK, &[], &durations);
        page.whole_of(CALLS, &[("function", "a::b")], 3);
        page.flag(OPEN, true);
        page.whole_of(CALLS, &[("function", "d")], u64::MAX);
        let text = page.print();
        let head = "# HELP session_manager_calls_total Calls\n\
                    # TYPE session_manager_calls_total counter\n\
                    session_manager_calls_total{function=\"a::b\"} 3\n\
                    session_manager_calls_total{function=\"d\"} 9223372036854775807\n\
                    # HELP session_manager_open Whether it is open\n\
                    # TYPE session_manager_open gauge\n\
                    session_manager_open 1\n\
                    # HELP session_manager_took_seconds How long it took\n\
                    # TYPE session_manager_took_seconds histogram\n\
                    session_manager_took_seconds_sum 0.00002\n\
                    session_manager_took_seconds_count 1\n\
                    session_manager_took_seconds_bucket{le=\"0.00001\"} 0\n\
                    session_manager_took_seconds_bucket{le=\"0.000025\"} 1\n";
        assert!(text.starts_with(head), "{text}");
        assert!(text.ends_with("session_manager_took_seconds_bucket{le=\"+Inf\"} 1\n"), "{text}");
    }
}
