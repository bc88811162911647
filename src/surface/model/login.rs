//! Owns: who calls at this door: an admin, an adapter with a channel token, or a person with a JWT.
//! Never: what the caller may see (`machine/model/access.rs`).

use std::net::IpAddr;

use axum::http::{HeaderMap, header};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::{Value, json};

use super::desk::{Desk, Fresh};
use super::error::ModelError;
use crate::access::token::TokenHash;
use crate::access::{Action, Credentials, Identity, LoginError, Presented};

/// Who calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    Admin,
    Channel { namespace: String },
    User { channel: String, channel_user_id: String },
}

impl Caller {
    /// The field `caller` of a call; `None` for an admin.
    pub fn field(&self) -> Option<Value> {
        match self {
            Caller::Admin => None,
            Caller::Channel { namespace } => Some(json!({ "channel": namespace })),
            Caller::User { channel, channel_user_id } => {
                Some(json!({ "channel": channel, "channel_user_id": channel_user_id }))
            }
        }
    }
}

/// The claims of a person's JWT.
#[derive(Debug, Deserialize)]
struct Claims {
    channel: Option<String>,
    #[serde(rename = "channelUserId")]
    channel_user_id: Option<String>,
    purpose: Option<String>,
}

/// The channel that a token belongs to.
#[derive(Debug, Deserialize)]
struct ChannelToken {
    agent_id: String,
    namespace: String,
}

/// The token of a request: the header, else the first `token` of the query.
pub fn token(headers: &HeaderMap, query: &[(String, String)]) -> Result<String, ModelError> {
    let missing = || ModelError::Unauthorized("send the header `Authorization: Bearer <token>`".to_owned());
    if let Some(value) = headers.get(header::AUTHORIZATION) {
        let text = value.to_str().map_err(|_| missing())?;
        return match text.split_once(' ') {
            Some((kind, token)) if kind.eq_ignore_ascii_case("bearer") && !token.trim().is_empty() => {
                Ok(token.trim().to_owned())
            }
            Some(_) | None => Err(missing()),
        };
    }
    let first = query.iter().find(|(name, _)| name == "token").map(|(_, token)| token.clone());
    first.filter(|token| !token.is_empty()).ok_or_else(missing)
}

/// Finds out who calls. The identity is what the caller's streams rest on.
pub async fn check(
    desk: &Desk<'_>,
    credentials: &Credentials,
    agent: &str,
    token: &str,
    from: IpAddr,
) -> Result<(Caller, Option<std::sync::Arc<Identity>>), ModelError> {
    // A channel token is known to the cluster and not to this node's files. It counts first: it always narrows.
    if let Some(caller) = channel(desk, agent, token, Fresh::Local).await? {
        return Ok((caller, None));
    }
    let identity = match credentials.check(Presented { token: Some(token), certificate: None, from }) {
        Ok(identity) => identity,
        // The token may have been set a moment ago, through another node.
        Err(LoginError::Wrong) => match channel(desk, agent, token, Fresh::Linearizable).await? {
            Some(caller) => return Ok((caller, None)),
            None => return Err(unknown(&LoginError::Wrong)),
        },
        Err(error) => return Err(unknown(&error)),
    };
    if let Some(caller) = person(token)? {
        // Without credentials to compare with, nobody has checked the signature.
        if credentials.are_needed() {
            return Ok((caller, Some(identity)));
        }
    }
    if !identity.may(Action::Write) || identity.scope.is_some() {
        return Err(ModelError::Unauthorized("this token is not for the session model".to_owned()));
    }
    Ok((Caller::Admin, Some(identity)))
}

fn unknown(error: &LoginError) -> ModelError {
    ModelError::Unauthorized(error.to_string())
}

async fn channel(desk: &Desk<'_>, agent: &str, token: &str, fresh: Fresh) -> Result<Option<Caller>, ModelError> {
    let digest = TokenHash::of(token).to_string();
    let asked = json!({ "digest": digest });
    let found = desk.call("session::identity::channel-of-token", &asked, fresh).await;
    let found = found.map_err(|error| ModelError::of_call(error, ""))?;
    let Ok(Some(found)) = serde_json::from_str::<Option<ChannelToken>>(&found) else { return Ok(None) };
    match found.agent_id == agent {
        true => Ok(Some(Caller::Channel { namespace: found.namespace })),
        false => Err(ModelError::OtherAgent),
    }
}

/// The person in a JWT whose signature was checked. `None`: the token names none.
fn person(token: &str) -> Result<Option<Caller>, ModelError> {
    let mut parts = token.split('.');
    let (Some(_), Some(payload), Some(_), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
        return Ok(None);
    };
    let Ok(payload) = URL_SAFE_NO_PAD.decode(payload) else { return Ok(None) };
    let Ok(claims) = serde_json::from_slice::<Claims>(&payload) else { return Ok(None) };
    let (Some(channel), Some(channel_user_id)) = (claims.channel, claims.channel_user_id) else { return Ok(None) };
    if claims.purpose.is_some_and(|purpose| purpose != "session") {
        return Err(ModelError::Unauthorized("this token has another purpose than `session`".to_owned()));
    }
    if channel.is_empty() || channel_user_id.is_empty() {
        return Err(ModelError::Unauthorized("this token names nobody".to_owned()));
    }
    Ok(Some(Caller::User { channel, channel_user_id }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jwt(claims: Value) -> String {
        format!("h.{}.s", URL_SAFE_NO_PAD.encode(claims.to_string()))
    }

    #[test]
    fn the_first_token_of_a_request_counts() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let query = [pair("a", "b"), pair("token", "one"), pair("token", "two")];
        let mut headers = HeaderMap::new();
        assert_eq!(token(&headers, &query).as_deref(), Ok("one"));
        assert!(token(&headers, &[]).is_err() && token(&headers, &[pair("token", "")]).is_err());
        headers.insert(header::AUTHORIZATION, "bearer  three".parse().unwrap());
        assert_eq!(token(&headers, &query).as_deref(), Ok("three"));
        for wrong in ["Basic x", "Bearer", "Bearer "] {
            headers.insert(header::AUTHORIZATION, wrong.parse().unwrap());
            assert!(token(&headers, &query).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_person_is_named_by_channel_and_id() {
        let named = json!({ "channel": "web", "channelUserId": "7" });
        let user = Caller::User { channel: "web".to_owned(), channel_user_id: "7".to_owned() };
        assert_eq!(person(&jwt(named)), Ok(Some(user)));
        for other in ["plain", "a.b", "a.!.c", &jwt(json!({ "sub": "x" })), &jwt(json!([]))] {
            assert_eq!(person(other), Ok(None), "{other}");
        }
        for wrong in [
            json!({ "channel": "web", "channelUserId": "7", "purpose": "reset" }),
            json!({ "channel": "", "channelUserId": "7" }),
        ] {
            assert!(person(&jwt(wrong)).is_err());
        }
    }
}
