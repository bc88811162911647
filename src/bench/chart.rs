//! Owns: the SVG chart of a report: lines of rate and p99 over the number of clients, and for every workload one bar
//! per system.

use std::fmt::Write;

use super::report::{Figure, Report, System};

const WIDTH: f64 = 860.0;
const LABEL: f64 = 300.0;
const BAR_MAX: f64 = 380.0;
const BAR: f64 = 16.0;
const GAP: f64 = 14.0;
const TITLE: f64 = 34.0;

/// The bars of one kind of number. Each workload has its own scale, because workloads are not compared with each other.
struct Panel {
    title: &'static str,
    number: fn(&Figure) -> f64,
    shown: fn(f64) -> String,
}

const PANELS: [Panel; 2] = [
    Panel {
        title: "per second: longer is better",
        number: |figure| figure.ops_per_s,
        shown: |number| format!("{number:.0}"),
    },
    Panel {
        title: "median, ms: shorter is better",
        number: |figure| figure.p50_ms,
        shown: |number| format!("{number:.2}"),
    },
];

pub fn draw(report: &Report) -> String {
    let mut workloads: Vec<&str> = Vec::new();
    for figure in &report.figures {
        if !workloads.contains(&figure.name.as_str()) {
            workloads.push(&figure.name);
        }
    }
    let mut body = String::new();
    let mut y = 10.0;
    y = curves(&mut body, report, y);
    for panel in &PANELS {
        y += TITLE;
        let _ = writeln!(body, r#"<text x="10" y="{:.0}" font-weight="bold">{}</text>"#, y - 14.0, panel.title);
        for workload in &workloads {
            y = group(&mut body, report, panel, workload, y);
        }
    }
    for system in &report.systems {
        y += 18.0;
        let _ = writeln!(body, r#"<text x="10" y="{y:.0}" fill="gray">{}</text>"#, escaped(system));
    }
    let height = y + 16.0;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{body}</svg>\n"
    )
}

/// Draws the bars of one workload. Returns the y position of the next one.
fn group(body: &mut String, report: &Report, panel: &Panel, workload: &str, mut y: f64) -> f64 {
    let figures = report.figures.iter().filter(|figure| figure.name == workload);
    let longest = figures.clone().map(panel.number).fold(f64::MIN_POSITIVE, f64::max);
    let _ = writeln!(body, r#"<text x="10" y="{:.0}">{}</text>"#, y + BAR - 4.0, escaped(workload));
    for figure in figures {
        let number = (panel.number)(figure);
        let length = (BAR_MAX * number / longest).max(1.0);
        let colour = colour(figure.system);
        let _ = writeln!(
            body,
            r#"<rect x="{LABEL}" y="{y:.0}" width="{length:.1}" height="{:.0}" fill="{colour}"/>"#,
            BAR - 2.0
        );
        let _ = writeln!(
            body,
            r#"<text x="{:.1}" y="{:.0}">{} {}</text>"#,
            LABEL + length + 6.0,
            y + BAR - 4.0,
            (panel.shown)(number),
            figure.system.name()
        );
        y += BAR;
    }
    y + GAP
}

fn colour(system: System) -> &'static str {
    match system {
        System::Ours => "#2563eb",
        System::Secure => "#7c3aed",
        System::Etcd => "#9ca3af",
        System::Postgres => "#b45309",
        System::Nats => "#059669",
    }
}

const CURVE_WIDTH: f64 = 330.0;
const CURVE_HEIGHT: f64 = 170.0;

/// The number of clients in the name of a workload, such as `append, 32 clients`.
fn clients(workload: &str) -> Option<u32> {
    workload.strip_prefix("append, ")?.strip_suffix(" clients")?.parse().ok()
}

/// Draws rate and p99 over the number of clients, if more than one number was measured. Returns the next y position.
fn curves(body: &mut String, report: &Report, y: f64) -> f64 {
    let mut counts: Vec<u32> = report.figures.iter().filter_map(|figure| clients(&figure.name)).collect();
    counts.sort_unstable();
    counts.dedup();
    if counts.len() < 2 {
        return y;
    }
    type Number = fn(&Figure) -> f64;
    let panels: [(&str, Number); 2] = [
        ("appends per second over clients", |figure| figure.ops_per_s),
        ("p99 in ms over clients", |figure| figure.p99_ms),
    ];
    let top = y + TITLE;
    for (at, (title, number)) in panels.into_iter().enumerate() {
        let left = 60.0 + at as f64 * (CURVE_WIDTH + 90.0);
        let bottom = top + CURVE_HEIGHT;
        let measured = report.figures.iter().filter(|figure| clients(&figure.name).is_some());
        let highest = measured.clone().map(number).fold(f64::MIN_POSITIVE, f64::max);
        let x = |count: u32| {
            let rank = counts.iter().position(|known| *known == count).unwrap_or(0);
            left + CURVE_WIDTH * rank as f64 / (counts.len() - 1) as f64
        };
        let _ = writeln!(body, r#"<text x="{left}" y="{:.0}" font-weight="bold">{title}</text>"#, top - 14.0);
        let _ = writeln!(
            body,
            r#"<path d="M{left} {top}V{bottom}H{:.0}" fill="none" stroke="black"/>"#,
            left + CURVE_WIDTH
        );
        let _ =
            writeln!(body, r#"<text x="{:.0}" y="{:.0}" text-anchor="end">{highest:.0}</text>"#, left - 6.0, top + 8.0);
        let _ = writeln!(body, r#"<text x="{:.0}" y="{bottom}" text-anchor="end">0</text>"#, left - 6.0);
        for count in &counts {
            let _ = writeln!(
                body,
                r#"<text x="{:.0}" y="{:.0}" text-anchor="middle">{count}</text>"#,
                x(*count),
                bottom + 16.0
            );
        }
        for system in [System::Ours, System::Secure, System::Etcd, System::Postgres, System::Nats] {
            let mut points: Vec<(u32, f64)> = measured
                .clone()
                .filter(|figure| figure.system == system)
                .filter_map(|figure| Some((clients(&figure.name)?, number(figure))))
                .collect();
            points.sort_by_key(|(count, _)| *count);
            let place = |(count, value): &(u32, f64)| {
                format!("{:.1},{:.1}", x(*count), bottom - CURVE_HEIGHT * value / highest)
            };
            let places: Vec<String> = points.iter().map(place).collect();
            if places.is_empty() {
                continue;
            }
            let (colour, places) = (colour(system), places.join(" "));
            let _ = writeln!(body, r#"<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="2.5"/>"#);
        }
    }
    let mut left = 60.0;
    for system in [System::Ours, System::Secure, System::Etcd, System::Postgres, System::Nats] {
        if report.figures.iter().any(|figure| figure.system == system) {
            let y = top + CURVE_HEIGHT + 40.0;
            let _ =
                writeln!(body, r#"<text x="{left}" y="{y:.0}" fill="{}">● {}</text>"#, colour(system), system.name());
            left += 140.0;
        }
    }
    top + CURVE_HEIGHT + 56.0
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::bench::figures::Timings;
    use crate::bench::window::Sample;

    #[test]
    fn every_workload_has_a_bar_for_each_system_in_each_panel() {
        let figure = |system: System, ops: usize| {
            let mut timings = Timings::default();
            (0..ops).for_each(|_| timings.push(Duration::from_millis(2)));
            let window = Duration::from_secs(1);
            let sample = Sample { timings, errors: 0, first_error: None, window, servers: None, client: None };
            Figure::of("a < b & c".to_owned(), system, vec![sample])
        };
        let report = Report {
            figures: vec![figure(System::Ours, 30), figure(System::Etcd, 10)],
            ratios: Vec::new(),
            systems: vec!["etcd <3".to_owned()],
        };
        let svg = draw(&report);
        assert!(!svg.contains("<polyline"), "one number of clients is no line");
        assert_eq!(svg.matches("<rect x=").count(), 4);
        assert!(svg.contains("a &lt; b &amp; c") && svg.contains("etcd &lt;3"), "{svg}");
        assert!(svg.contains("width=\"380.0\"") && svg.contains("width=\"126.7\""), "{svg}");
        assert!(svg.ends_with("</svg>\n"));
    }

    #[test]
    fn several_numbers_of_clients_become_a_line_per_system() {
        let figure = |clients: u32, system: System| {
            let mut timings = Timings::default();
            timings.push(Duration::from_millis(2));
            let window = Duration::from_secs(1);
            let sample = Sample { timings, errors: 0, first_error: None, window, servers: None, client: None };
            Figure::of(format!("append, {clients} clients"), system, vec![sample])
        };
        let both = |clients| [figure(clients, System::Ours), figure(clients, System::Nats)];
        let report = Report { figures: [1, 32, 128].into_iter().flat_map(both).collect(), ..Report::default() };
        let svg = draw(&report);
        assert_eq!(svg.matches("<polyline").count(), 4, "two systems in two panels: {svg}");
        assert!(svg.contains("● NATS") && !svg.contains("● etcd"), "{svg}");
    }
}
