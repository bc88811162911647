//! Owns: rows of the table of functions, lookup by id, and the old names of version 0.1.2.

use std::collections::HashMap;
use std::sync::LazyLock;

use schemars::JsonSchema;
use schemars::schema::RootSchema;

use super::{
    BEYOND, Decision, Done, Function, Limits, Mutation, Operation, PUBLIC, Printed, Question, body, import, model,
    store, turn,
};
use crate::machine::refusal::Refusal;

static FUNCTIONS: LazyLock<Vec<Function>> = LazyLock::new(|| PUBLIC.iter().chain(store::RAW).copied().collect());

/// Every function of the published API.
pub fn functions() -> &'static [Function] {
    &FUNCTIONS
}

/// Every function that a node serves: the published API, what goes beyond it, turns, the session model, and what nodes
/// of this project ask each other.
pub fn served() -> impl Iterator<Item = &'static Function> {
    FUNCTIONS
        .iter()
        .chain(BEYOND)
        .chain(turn::TURNS)
        .chain(model::MODEL)
        .chain([&import::FUNCTION])
        .chain(store::BEYOND)
        .chain([&store::propose::FUNCTION])
}

/// The function with this id. With `legacy_names`, the snake_case ids of version 0.1.2 are found too.
pub fn find(id: &str, legacy_names: bool) -> Option<&'static Function> {
    // Every call asks for its function, some twice.
    static BY_ID: LazyLock<HashMap<&str, &Function>> =
        LazyLock::new(|| served().map(|function| (function.id, function)).collect());
    static BY_LEGACY_NAME: LazyLock<HashMap<String, &Function>> =
        LazyLock::new(|| served().filter_map(|function| Some((legacy_name(function.id)?, function))).collect());
    let found = BY_ID.get(id).copied();
    found.or_else(|| BY_LEGACY_NAME.get(id).copied().filter(|_| legacy_names))
}

/// The id in version 0.1.2, if it differs.
pub fn legacy_name(id: &str) -> Option<String> {
    id.contains('-').then(|| id.replace('-', "_"))
}

pub(super) const fn mutation<M: Mutation>() -> Function {
    let row = (M::ID, M::DESCRIPTION, M::INTERNAL, true);
    function::<M, M::Response>(row, decide_mutation::<M>, respond_mutation::<M>)
}

pub(super) const fn question<Q: Question>() -> Function {
    let row = (Q::ID, Q::DESCRIPTION, Q::INTERNAL, false);
    function::<Q, Q::Response>(row, decide_question::<Q>, respond_question::<Q>)
}

pub(super) const fn operation<O: Operation>() -> Function {
    let row = (O::ID, O::DESCRIPTION, O::INTERNAL, O::WRITES);
    function::<O, O::Response>(row, decide_operation::<O>, respond_operation::<O>)
}

const fn function<Request: JsonSchema, Response: JsonSchema>(
    (id, description, internal, writes): (&'static str, &'static str, bool, bool),
    decide: fn(&str, &Limits) -> Result<Decision, Refusal>,
    respond: fn(Done) -> Option<Printed>,
) -> Function {
    let (request_schema, response_schema) = (schema::<Request>, schema::<Response>);
    Function { id, description, internal, writes, request_schema, response_schema, decide, respond }
}

pub(super) fn schema<T: JsonSchema>() -> RootSchema {
    schemars::schema_for!(T)
}

fn decide_mutation<M: Mutation>(body: &str, limits: &Limits) -> Result<Decision, Refusal> {
    Ok(Decision::Propose(body::parse::<M>(body)?.command(limits)?))
}

fn decide_question<Q: Question>(body: &str, limits: &Limits) -> Result<Decision, Refusal> {
    Ok(Decision::Ask(body::parse::<Q>(body)?.query(limits)?))
}

fn decide_operation<O: Operation>(body: &str, _limits: &Limits) -> Result<Decision, Refusal> {
    Ok(body::parse::<O>(body)?.decision())
}

fn respond_mutation<M: Mutation>(done: Done) -> Option<Printed> {
    let Done::Answered(answer) = done else { return None };
    serde_json::to_string(&M::response(answer)?).ok().map(Printed::from)
}

fn respond_question<Q: Question>(done: Done) -> Option<Printed> {
    let Done::Found(found) = done else { return None };
    Q::print(found)
}

fn respond_operation<O: Operation>(done: Done) -> Option<Printed> {
    serde_json::to_string(&O::response(done)?).ok().map(Printed::from)
}
