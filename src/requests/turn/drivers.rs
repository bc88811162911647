//! `session::turn::drivers`: the attached drivers.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{found, found_text, query};
use crate::machine::json::Json;
use crate::machine::refusal::Refusal;
use crate::machine::turn::TurnQuery;
use crate::machine::{Found, Query};
use crate::requests::{Limits, Printed, Question};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct DriversRequest {}

impl Question for DriversRequest {
    const ID: &'static str = "session::turn::drivers";
    const DESCRIPTION: &'static str = "The drivers that are attached, with the agents and families they serve.";
    type Response = Vec<Json>;

    fn query(self, _limits: &Limits) -> Result<Query, Refusal> {
        Ok(query(TurnQuery::Drivers))
    }

    fn response(answer: Found) -> Option<Vec<Json>> {
        found(answer)
    }

    fn print(answer: Found) -> Option<Printed> {
        found_text(answer)
    }
}
