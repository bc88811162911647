//! Owns: answers of drivers to front-ends that are events of the session's stream, such as memories. They get a number
//! and stay in the journal like everything else that a driver tells about a session.

use serde_json::json;

use crate::machine::command::Outcome;
use crate::machine::ids::SessionId;
use crate::machine::refusal::{Failure, Refusal};
use crate::machine::stamp::Stamp;
use crate::machine::turn::events::{Class, EventName, Fields};
use crate::machine::turn::work::Work;
use crate::machine::view::View;

pub fn apply(
    view: &dyn View,
    stamp: &Stamp,
    session_id: &SessionId,
    name: &str,
    fields: &Fields,
) -> Result<Outcome, Failure> {
    let known = EventName::find(name).filter(|event| event.class == Class::Kept && event.is_a_drivers());
    let known = known.ok_or_else(|| Refusal::RequestInvalid(format!("type: {name:?} answers no request")))?;
    known.check(fields).map_err(|why| Refusal::RequestInvalid(why.to_string()))?;
    let mut work = Work::open(view, stamp, session_id)?;
    let seq = work.publish_stream(name, None, fields.clone());
    work.finish(&json!({ "seq": seq }))
}
