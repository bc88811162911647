//! Owns: the chart of a report, drawn as SVG by hand: for every workload a bar for us and one for the peer.

use std::fmt::Write;

use super::report::{Figure, Report, System};

const WIDTH: f64 = 860.0;
const LABEL: f64 = 300.0;
const BAR_MAX: f64 = 380.0;
const BAR: f64 = 16.0;
const GAP: f64 = 14.0;
const TITLE: f64 = 34.0;

/// Bars of one kind of number, each workload on a scale of its own: workloads are not compared with each other.
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

/// The bars of one workload. Returns where the next one begins.
fn group(body: &mut String, report: &Report, panel: &Panel, workload: &str, mut y: f64) -> f64 {
    let figures = report.figures.iter().filter(|figure| figure.name == workload);
    let longest = figures.clone().map(panel.number).fold(f64::MIN_POSITIVE, f64::max);
    let _ = writeln!(body, r#"<text x="10" y="{:.0}">{}</text>"#, y + BAR - 4.0, escaped(workload));
    for figure in figures {
        let number = (panel.number)(figure);
        let length = (BAR_MAX * number / longest).max(1.0);
        let colour = match figure.system {
            System::Ours => "#2563eb",
            System::Etcd => "#9ca3af",
        };
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

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cli::bench::figures::Timings;
    use crate::cli::bench::window::Sample;

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
        assert_eq!(svg.matches("<rect x=").count(), 4);
        assert!(svg.contains("a &lt; b &amp; c") && svg.contains("etcd &lt;3"), "{svg}");
        assert!(svg.contains("width=\"380.0\"") && svg.contains("width=\"126.7\""), "{svg}");
        assert!(svg.ends_with("</svg>\n"));
    }
}
