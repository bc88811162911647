//! Owns: what one scenario knows: its node, its variables, the last answer, and which of the three duties of a scenario
//! it has fulfilled: assert the answer, the events, and the state read back.

use std::fmt;
use std::sync::Mutex;

use serde_json::Value;

use crate::node::{Kind, Node};
use crate::words::{self, Variables};

/// The store the scenarios of this round run on.
pub static ROUND: Mutex<Kind> = Mutex::new(Kind::Memory);

#[derive(cucumber::World)]
#[world(init = Self::start)]
pub struct World {
    pub node: Node,
    pub variables: Variables,
    pub answer: Option<Result<Value, String>>,
    /// Everything, as it was before the last call.
    pub before: Value,
    pub refused_subscription: Option<String>,
    pub duties: Duties,
}

#[derive(Debug, Default)]
pub struct Duties {
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
            duties: Duties::default(),
        }
    }

    pub fn expand(&self, text: &str) -> String {
        words::expand(text, &self.variables)
    }

    /// Words with the texts in them that are known by name.
    pub fn named(&self, words: &str) -> String {
        let texts = self.variables.iter().filter_map(|(name, value)| Some((format!("<{name}>"), value.as_str()?)));
        texts.fold(words.to_owned(), |words, (name, text)| words.replace(&name, text))
    }

    /// A call whose answer the scenario will look at.
    pub async fn call(&mut self, function: &str, body: &str) {
        let body = self.expand(body);
        self.before = self.node.everything().await;
        let answer = self.node.call(function, &body).await;
        self.answer = Some(answer.unwrap_or_else(|| Err(format!("there is no function {function}"))));
    }

    /// A call that prepares the scene: it must succeed, and its events are none of the scenario's business.
    pub async fn prepare(&mut self, function: &str, body: &str) -> Value {
        let body = self.expand(body);
        let answer = self.node.call(function, &body).await;
        let answer = answer.unwrap_or_else(|| panic!("there is no function {function}"));
        self.node.hear_out().await;
        self.node.ear.take();
        answer.unwrap_or_else(|error| panic!("{function} with {body} failed: {error}"))
    }

    pub async fn read(&self, function: &str, body: &str) -> Result<Value, String> {
        let answer = self.node.call(function, &self.expand(body)).await;
        answer.unwrap_or_else(|| panic!("there is no function {function}"))
    }

    /// The shape a step expects, with what is known filled in.
    pub fn expected(&self, text: &str) -> Value {
        let text = self.expand(text);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("the step's JSON is broken ({error}): {text}"))
    }

    pub fn compare(&mut self, expected: &str, said: &Value, exact: bool) {
        let expected = self.expected(expected);
        if let Err(difference) = words::compare(&expected, said, exact, &mut self.variables) {
            panic!("{difference}\nin {said}");
        }
    }

    pub fn answered(&mut self) -> Value {
        self.duties.answer = true;
        match self.answer.clone().expect("a call was made") {
            Ok(answer) => answer,
            Err(error) => panic!("the call failed: {error}"),
        }
    }

    pub fn failed(&mut self) -> String {
        self.duties.answer = true;
        match self.answer.clone().expect("a call was made") {
            Ok(answer) => panic!("the call succeeded: {answer}"),
            Err(error) => error,
        }
    }

    /// The scenario is over: nothing may be left unsaid.
    pub async fn leave(&mut self) {
        let Duties { answer, events, state } = self.duties;
        self.node.hear_out().await;
        let unasserted = self.node.ear.take();
        self.node.stop().await;
        assert!(unasserted.is_empty(), "events fired that no step asserts: {unasserted:?}");
        assert!(answer, "the scenario asserts no answer");
        assert!(events, "the scenario asserts neither events nor their absence");
        assert!(state, "the scenario reads no state back");
    }
}
