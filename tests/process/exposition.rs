//! Owns: a strict reader of Prometheus' text format (0.0.4). Whatever a scraper could stumble over fails the test.

use std::collections::{BTreeMap, BTreeSet};

const PREFIX: &str = "session_manager_";

pub type Labels = BTreeMap<String, String>;

#[derive(Debug)]
pub struct Family {
    pub kind: String,
    pub help: String,
    /// By the name of the sample, which has a suffix in a histogram, and its labels.
    pub samples: BTreeMap<(String, Labels), f64>,
}

#[derive(Debug)]
pub struct Exposition(pub BTreeMap<String, Family>);

impl Exposition {
    pub fn read(text: &str) -> Exposition {
        assert!(text.ends_with('\n'), "the last line is not ended");
        let mut families: BTreeMap<String, Family> = BTreeMap::new();
        let mut current = String::new();
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').unwrap_or_else(|| panic!("no help: {line}"));
                let kind =
                    lines.next().and_then(|line| line.strip_prefix("# TYPE ")?.strip_prefix(name)?.strip_prefix(' '));
                let kind = kind.unwrap_or_else(|| panic!("no TYPE after {line}"));
                check_name(name, kind);
                assert!(!help.is_empty() && !help.contains('\\'), "{line}");
                current = name.to_owned();
                let family = Family { kind: kind.to_owned(), help: help.to_owned(), samples: BTreeMap::new() };
                assert!(families.insert(current.clone(), family).is_none(), "{name} stands in two places");
                continue;
            }
            let (name, labels, value) = sample(line);
            let family = families.get_mut(&current).unwrap_or_else(|| panic!("a sample without a TYPE: {line}"));
            let suffixes: &[&str] = if family.kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            assert!(suffixes.iter().any(|suffix| name == format!("{current}{suffix}")), "{line} is in {current}");
            assert!(family.kind == "gauge" || value >= 0.0, "{line}");
            assert!(family.samples.insert((name, labels), value).is_none(), "twice: {line}");
        }
        for (name, family) in &families {
            assert!(!family.samples.is_empty(), "{name} has no sample");
            if family.kind == "histogram" {
                check_histogram(name, family);
            }
        }
        Exposition(families)
    }

    /// The sum of the samples of this name whose labels include these. Zero if there are none.
    pub fn sum(&self, sample: &str, labels: &[(&str, &str)]) -> f64 {
        let includes = |found: &Labels| labels.iter().all(|(key, value)| found.get(*key).is_some_and(|is| is == value));
        let samples = self.0.values().flat_map(|family| &family.samples);
        samples.filter(|((name, found), _)| name == sample && includes(found)).map(|(_, value)| value).sum()
    }
}

/// Base units, and `_total` for counters only.
fn check_name(name: &str, kind: &str) {
    let plain = name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    assert!(plain && name.starts_with(PREFIX), "{name}");
    assert!(["counter", "gauge", "histogram"].contains(&kind), "{name}: {kind}");
    assert_eq!(name.ends_with("_total"), kind == "counter", "{name}: {kind}");
    assert!(kind != "histogram" || name.ends_with("_seconds") || name.ends_with("_bytes"), "{name}");
    for unit in ["_ms", "_us", "_milliseconds", "_kib", "_mb", "_bucket", "_count", "_sum"] {
        assert!(!name.ends_with(unit), "{name}");
    }
}

/// `name{key="value",…} number`.
fn sample(line: &str) -> (String, Labels, f64) {
    let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no value: {line}"));
    let value: f64 = value.parse().unwrap_or_else(|error| panic!("{line}: {error}"));
    assert!(value.is_finite(), "{line}");
    let Some((name, labels)) = series.split_once('{') else { return (series.to_owned(), Labels::new(), value) };
    let labels = labels.strip_suffix('}').unwrap_or_else(|| panic!("open labels: {line}"));
    let mut found = Labels::new();
    for label in labels.split(',') {
        let (key, quoted) = label.split_once('=').unwrap_or_else(|| panic!("{line}"));
        let text = quoted.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or_else(|| panic!("{line}"));
        assert!(key.chars().all(|c| c.is_ascii_lowercase() || c == '_') && !key.is_empty(), "{line}");
        assert!(!text.contains(['"', '\\']) && !text.is_empty(), "{line}");
        assert!(found.insert(key.to_owned(), text.to_owned()).is_none(), "a label twice: {line}");
    }
    (name.to_owned(), found, value)
}

/// Every series has its sum, its count, and buckets that grow up to the count.
fn check_histogram(name: &str, family: &Family) {
    let without_bound = |(_, labels): &(String, Labels)| {
        labels.iter().filter(|(key, _)| *key != "le").map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    let series: BTreeSet<Labels> = family.samples.keys().map(without_bound).collect();
    for labels in series {
        let one = |suffix: &str| family.samples.get(&(format!("{name}{suffix}"), labels.clone())).copied();
        let (count, _) = (one("_count").expect("a count"), one("_sum").expect("a sum"));
        let is_bucket = |key: &&(String, Labels)| key.0 == format!("{name}_bucket") && without_bound(key) == labels;
        let bound = |key: &(String, Labels)| key.1["le"].replace("+Inf", "inf").parse::<f64>().expect("a bound");
        let mut buckets: Vec<(f64, f64)> =
            family.samples.keys().filter(is_bucket).map(|key| (bound(key), family.samples[key])).collect();
        buckets.sort_by(|one, two| one.0.total_cmp(&two.0));
        assert!(buckets.is_sorted_by(|one, two| one.1 <= two.1), "{name}{labels:?}: {buckets:?}");
        assert_eq!(buckets.last(), Some(&(f64::INFINITY, count)), "{name}{labels:?}");
    }
}

#[test]
#[should_panic(expected = "a label twice")]
fn a_label_that_stands_twice_is_found() {
    Exposition::read(
        "# HELP session_manager_a A\n# TYPE session_manager_a gauge\nsession_manager_a{b=\"1\",b=\"2\"} 1\n",
    );
}

#[test]
#[should_panic(expected = "is in session_manager_a")]
fn a_sample_of_another_metric_is_found() {
    Exposition::read("# HELP session_manager_a A\n# TYPE session_manager_a gauge\nsession_manager_b 1\n");
}
