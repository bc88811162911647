//! Owns: histograms of `GET /metrics`, over all nodes: what the nodes themselves measured during a part of a benchmark.

use std::time::Duration;

use super::error::BenchError;
use super::nodes::get;
use super::target::Target;

/// How many durations were at most so long, by the upper bounds of the buckets in seconds. The last bound is infinite.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Histogram(Vec<(f64, u64)>);

impl Histogram {
    /// A histogram without labels, added up over all nodes.
    pub async fn of(nodes: &[Target], metric: &str) -> Result<Histogram, BenchError> {
        let mut sum = Histogram::default();
        for node in nodes {
            let (_, page) = get(node, "/metrics").await?;
            sum.add(Histogram::read(&String::from_utf8_lossy(&page), metric));
        }
        Ok(sum)
    }

    fn read(page: &str, metric: &str) -> Histogram {
        let start = format!("{metric}_bucket{{le=\"");
        let bucket = |line: &str| {
            let (bound, count) = line.strip_prefix(&start)?.split_once("\"} ")?;
            Some((bound.replace("+Inf", "inf").parse().ok()?, count.parse().ok()?))
        };
        Histogram(page.lines().filter_map(bucket).collect())
    }

    fn add(&mut self, other: Histogram) {
        match self.0.is_empty() {
            true => *self = other,
            false => self.0.iter_mut().zip(other.0).for_each(|(own, (_, count))| own.1 += count),
        }
    }

    /// The bound of the bucket that holds this share of what was observed since an earlier reading. `None` if nothing was.
    pub fn quantile_since(&self, before: &Histogram, share: f64) -> Option<Duration> {
        let since = |at: usize| self.0[at].1.saturating_sub(before.0.get(at).map_or(0, |(_, count)| *count));
        let all = since(self.0.len().checked_sub(1)?);
        let wanted = (all as f64 * share).ceil() as u64;
        let at = (0..self.0.len()).find(|at| all > 0 && since(*at) >= wanted)?;
        Some(Duration::try_from_secs_f64(self.0[at].0).unwrap_or(Duration::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(counts: [u64; 3]) -> Histogram {
        let [a, b, all] = counts;
        let page = format!(
            "# TYPE x_seconds histogram\nx_seconds_sum 1.5\nx_seconds_count {all}\nx_seconds_bucket{{le=\"0.0025\"}} {a}\n\
             x_seconds_bucket{{le=\"0.05\"}} {b}\nx_seconds_bucket{{le=\"+Inf\"}} {all}\ny_seconds_bucket{{le=\"1\"}} 7\n"
        );
        Histogram::read(&page, "x_seconds")
    }

    #[test]
    fn a_histogram_is_read_as_a_node_prints_it() {
        let (before, now) = (page([1, 2, 10]), page([99, 102, 110]));
        let at = |share| now.quantile_since(&before, share);
        assert_eq!((at(0.5), at(0.99)), (Some(Duration::from_micros(2500)), Some(Duration::from_millis(50))));
        assert_eq!(page([1, 2, 12]).quantile_since(&before, 0.5), Some(Duration::MAX));
        assert_eq!(now.quantile_since(&now, 0.99), None);
        let mut both = before.clone();
        both.add(before.clone());
        assert_eq!(both, page([2, 4, 20]));
    }
}
