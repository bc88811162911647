//! Owns: the table of all functions, and the older names they answer to.

use schemars::JsonSchema;
use schemars::schema::RootSchema;

use super::append::AppendRequest;
use super::append_many::AppendManyRequest;
use super::config_status::ConfigStatusRequest;
use super::create::CreateRequest;
use super::delete::DeleteRequest;
use super::ensure::EnsureRequest;
use super::fork::ForkRequest;
use super::get::GetRequest;
use super::get_message::GetMessageRequest;
use super::list::ListRequest;
use super::messages::MessagesRequest;
use super::on_config_change::OnConfigChangeEvent;
use super::set_active_leaf::SetActiveLeafRequest;
use super::set_meta::SetMetaRequest;
use super::set_status::SetStatusRequest;
use super::store::about::AboutRequest;
use super::store::delete_active_leaf::DeleteActiveLeafRequest;
use super::store::delete_entries::DeleteEntriesRequest;
use super::store::delete_meta::DeleteMetaRequest;
use super::store::get_active_leaf::GetActiveLeafRequest;
use super::store::get_entry::GetEntryRequest;
use super::store::get_meta::GetMetaRequest;
use super::store::list_entries::ListEntriesRequest;
use super::store::list_metas::ListMetasRequest;
use super::store::propose;
use super::store::publish_events::PublishEventsRequest;
use super::store::put_entry::PutEntryRequest;
use super::store::put_meta::PutMetaRequest;
use super::store::set_active_leaf::PutActiveLeafRequest;
use super::update_message::UpdateMessageRequest;
use super::{Decision, Done, Function, Limits, Mutation, Operation, Question, body};
use crate::machine::refusal::Refusal;

static FUNCTIONS: [Function; 28] = [
    mutation::<CreateRequest>(),
    mutation::<EnsureRequest>(),
    question::<GetRequest>(),
    question::<ListRequest>(),
    mutation::<SetMetaRequest>(),
    mutation::<SetStatusRequest>(),
    mutation::<DeleteRequest>(),
    mutation::<AppendRequest>(),
    mutation::<AppendManyRequest>(),
    mutation::<UpdateMessageRequest>(),
    question::<MessagesRequest>(),
    question::<GetMessageRequest>(),
    mutation::<ForkRequest>(),
    mutation::<SetActiveLeafRequest>(),
    operation::<ConfigStatusRequest>(),
    operation::<OnConfigChangeEvent>(),
    question::<GetMetaRequest>(),
    mutation::<PutMetaRequest>(),
    mutation::<DeleteMetaRequest>(),
    question::<ListMetasRequest>(),
    question::<GetEntryRequest>(),
    mutation::<PutEntryRequest>(),
    question::<ListEntriesRequest>(),
    mutation::<DeleteEntriesRequest>(),
    question::<GetActiveLeafRequest>(),
    mutation::<PutActiveLeafRequest>(),
    mutation::<DeleteActiveLeafRequest>(),
    mutation::<PublishEventsRequest>(),
];

/// What this project's nodes tell each other beyond the published API.
static BEYOND: [Function; 2] = [operation::<AboutRequest>(), propose::FUNCTION];

/// Every function of the published API.
pub fn functions() -> &'static [Function] {
    &FUNCTIONS
}

/// Every function a node serves.
pub fn served() -> impl Iterator<Item = &'static Function> {
    FUNCTIONS.iter().chain(&BEYOND)
}

/// The function an id names. Version 0.1.2 spelled ids in snake_case; with `legacy_names` those are known too.
pub fn find(id: &str, legacy_names: bool) -> Option<&'static Function> {
    served().find(|function| function.id == id || (legacy_names && is_legacy_name(function.id, id)))
}

/// How version 0.1.2 spelled an id, where it spelled it otherwise.
pub fn legacy_name(id: &str) -> Option<String> {
    id.contains('-').then(|| id.replace('-', "_"))
}

fn is_legacy_name(id: &str, asked: &str) -> bool {
    let legacy = id.bytes().map(|byte| if byte == b'-' { b'_' } else { byte });
    id.len() == asked.len() && legacy.eq(asked.bytes())
}

const fn mutation<M: Mutation>() -> Function {
    Function {
        id: M::ID,
        description: M::DESCRIPTION,
        internal: M::INTERNAL,
        request_schema: schema::<M>,
        response_schema: schema::<M::Response>,
        decide: decide_mutation::<M>,
        respond: respond_mutation::<M>,
    }
}

const fn question<Q: Question>() -> Function {
    Function {
        id: Q::ID,
        description: Q::DESCRIPTION,
        internal: Q::INTERNAL,
        request_schema: schema::<Q>,
        response_schema: schema::<Q::Response>,
        decide: decide_question::<Q>,
        respond: respond_question::<Q>,
    }
}

const fn operation<O: Operation>() -> Function {
    Function {
        id: O::ID,
        description: O::DESCRIPTION,
        internal: O::INTERNAL,
        request_schema: schema::<O>,
        response_schema: schema::<O::Response>,
        decide: decide_operation::<O>,
        respond: respond_operation::<O>,
    }
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

fn respond_mutation<M: Mutation>(done: Done) -> Option<String> {
    let Done::Answered(answer) = done else { return None };
    serde_json::to_string(&M::response(answer)?).ok()
}

fn respond_question<Q: Question>(done: Done) -> Option<String> {
    let Done::Found(found) = done else { return None };
    Q::print(found)
}

fn respond_operation<O: Operation>(done: Done) -> Option<String> {
    serde_json::to_string(&O::response(done)?).ok()
}
