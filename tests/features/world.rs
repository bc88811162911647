//! Owns: the data of one scenario: its node, its variables, the last answer, and which of the three results it has
//! asserted: the answer, the events, and the state that is read back.

use std::fmt;
use std::sync::Mutex;

use serde_json::Value;

use crate::json_shorthand::{self, Variables};
use crate::node::{Kind, Node};

/// The store the scenarios of this round run on.
pub static ROUND: Mutex<Kind> = Mutex::new(Kind::Memory);

#[derive(cucumber::World)]
#[world(init = Self::start)]
pub struct World {
    pub node: Node,
    pub variables: Variables,
    pub answer: Option<Result<Value, String>>,
    /// The whole state before the last call.
    pub before: Value,
    pub refused_subscription: Option<String>,
    pub asserted: Asserted,
}

/// Which results the steps have asserted. A scenario must assert all of them.
#[derive(Debug, Default)]
pub struct Asserted {
    pub answer: bool,
    pub events: bool,
    pub state: bool,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("variables", &self.variables).field("answer", &self.answer).finish()
    }
}

impl World {
    async fn start() -> World {
        let kind = *ROUND.lock().unwrap();
        World {
            node: Node::start(kind).await,
            variables: Variables::new(),
            answer: None,
            before: Value::Null,
            refused_subscription: None,
            asserted: Asserted::default(),
        }
    }

    pub fn expand(&self, text: &str) -> String {
        json_shorthand::expand(text, &self.variables)
    }

    /// Text with the variables in it replaced by their values.
    pub fn named(&self, words: &str) -> String {
        let texts = self.variables.iter().filter_map(|(name, value)| Some((format!("<{name}>"), value.as_str()?)));
        texts.fold(words.to_owned(), |words, (name, text)| words.replace(&name, text))
    }

    /// A call whose answer the next steps assert.
    pub async fn call(&mut self, function: &str, body: &str) {
        let body = self.expand(body);
        self.before = self.node.everything().await;
        let answer = self.node.call(function, &body).await;
        self.answer = Some(answer.unwrap_or_else(|| Err(format!("there is no function {function}"))));
    }

    /// A call that prepares the state. It must succeed, and its events need not be asserted.
    pub async fn prepare(&mut self, function: &str, body: &str) -> Value {
        let body = self.expand(body);
        let answer = self.node.call(function, &body).await;
        let answer = answer.unwrap_or_else(|| panic!("there is no function {function}"));
        self.node.wait_for_events().await;
        self.node.recorder.take();
        answer.unwrap_or_else(|error| panic!("{function} with {body} failed: {error}"))
    }

    pub async fn read(&self, function: &str, body: &str) -> Result<Value, String> {
        let answer = self.node.call(function, &self.expand(body)).await;
        answer.unwrap_or_else(|| panic!("there is no function {function}"))
    }

    /// The shape that a step expects, with shorthands and variables replaced.
    pub fn expected(&self, text: &str) -> Value {
        json_shorthand::read(text, &self.variables)
    }

    pub fn compare(&mut self, expected: &str, actual: &Value, exact: bool) {
        json_shorthand::check(expected, actual, exact, &mut self.variables);
    }

    pub fn answered(&mut self) -> Value {
        self.asserted.answer = true;
        match self.answer.clone().expect("a call was made") {
            Ok(answer) => answer,
            Err(error) => panic!("the call failed: {error}"),
        }
    }

    pub fn failed(&mut self) -> String {
        self.asserted.answer = true;
        match self.answer.clone().expect("a call was made") {
            Ok(answer) => panic!("the call succeeded: {answer}"),
            Err(error) => error,
        }
    }

    /// Ends the scenario, and fails it if it left a result unasserted.
    pub async fn finish(&mut self) {
        let Asserted { answer, events, state } = self.asserted;
        self.node.wait_for_events().await;
        let unasserted = self.node.recorder.take();
        self.node.stop().await;
        assert!(unasserted.is_empty(), "no step asserts these events: {unasserted:?}");
        assert!(answer, "the scenario asserts no answer");
        assert!(events, "the scenario asserts neither events nor their absence");
        assert!(state, "the scenario reads no state back");
    }
}
