//! Owns: the output of a run: nothing for a scenario that passes; file, line, step and reason for one that fails.

use cucumber::cli::Empty;
use cucumber::event::{self, Event};
use cucumber::{World, Writer, gherkin, parser, writer};

/// Counts scenarios and prints failures as they happen.
#[derive(Debug, Default)]
pub struct Report {
    pub store: &'static str,
    pub scenarios: usize,
    pub failures: usize,
}

// Each failure is printed as a whole, so scenarios can run concurrently.
impl writer::Normalized for Report {}

impl<W: World> Writer<W> for Report {
    type Cli = Empty;

    async fn handle_event(&mut self, event: parser::Result<Event<event::Cucumber<W>>>, _cli: &Empty) {
        match event.map(Event::into_inner) {
            Err(error) => {
                self.failures += 1;
                println!("a feature file cannot be read: {error}");
            }
            Ok(event::Cucumber::Feature(feature, event)) => match event {
                event::Feature::Scenario(scenario, event) => self.scenario(&feature, &scenario, event.event),
                event::Feature::Rule(_, event::Rule::Scenario(scenario, event)) => {
                    self.scenario(&feature, &scenario, event.event);
                }
                _started_or_finished => {}
            },
            Ok(_started_or_finished) => {}
        }
    }
}

impl Report {
    fn scenario<W>(&mut self, feature: &gherkin::Feature, scenario: &gherkin::Scenario, event: event::Scenario<W>) {
        match event {
            event::Scenario::Finished => self.scenarios += 1,
            event::Scenario::Step(step, event) | event::Scenario::Background(step, event) => match event {
                event::Step::Failed(_, _, _, error) => self.failed(feature, scenario, &step.value, &error.to_string()),
                event::Step::Skipped => self.failed(feature, scenario, &step.value, "there is no such step"),
                event::Step::Started | event::Step::Passed(..) => {}
            },
            event::Scenario::Hook(_, event::Hook::Failed(_, why)) => {
                let words = why.downcast_ref::<String>().cloned();
                let words = words.or_else(|| why.downcast_ref::<&str>().map(|words| (*words).to_owned()));
                self.failed(feature, scenario, "at the end", &words.unwrap_or_default());
            }
            event::Scenario::Started | event::Scenario::Hook(..) | event::Scenario::Log(_) => {}
        }
    }

    fn failed(&mut self, feature: &gherkin::Feature, scenario: &gherkin::Scenario, step: &str, why: &str) {
        self.failures += 1;
        let file = feature.path.as_ref().and_then(|path| path.file_name()).unwrap_or_default().to_string_lossy();
        let (store, line) = (self.store, scenario.position.line);
        println!("\n[{store}] {file}:{line}: {}\n  {step}\n  {}", scenario.name, why.replace('\n', "\n  "));
    }
}
