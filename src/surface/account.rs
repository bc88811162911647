//! Owns: who the caller is, for web pages: `GET /v1/me`, and a cookie with the caller's token (`POST /v1/login`,
//! `POST /v1/logout`). Scripts cannot read the cookie, and `login` takes it only from pages of this node.
//! Never: whether a token is right (`access`).

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::errors::Kind;
use super::http::{self, HttpError, Port};
use super::{login, origin};
use crate::access::{Action, Identity, Presented, audit};

/// Where a request came from and when, as an extension.
#[derive(Clone, Copy)]
pub struct From {
    pub peer: SocketAddr,
    pub arrived: Instant,
}

/// Where a request came from; a zero address if nobody noted it.
pub fn origin_of(request: &Request) -> From {
    let nobody = || From { peer: SocketAddr::from(([0, 0, 0, 0], 0)), arrived: Instant::now() };
    request.extensions().get::<From>().copied().unwrap_or_else(nobody)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LoginForm {
    token: String,
}

pub async fn me(State(port): State<Port>, request: Request) -> Response {
    axum::Json(describe(&http::identity_of(&request), port.credentials.are_needed())).into_response()
}

/// Checks a token and puts it into a cookie.
pub async fn login(State(port): State<Port>, request: Request) -> Response {
    if !origin::is_own_page(request.headers()) {
        return http::error(Kind::ForeignOrigin, "refused: only a page of this node may set its cookie");
    }
    let from = origin_of(&request).peer;
    let (body, _room) = match http::read_body(&port, request).await {
        Ok(read) => read,
        Err(refused) => return refused.into_response(),
    };
    let form: LoginForm = match serde_json::from_str(body.as_str()) {
        Ok(form) => form,
        Err(error) => {
            let why = format!("the body must be {{\"token\": \"…\"}}: {error}");
            return http::error(Kind::InvalidQuery, &why);
        }
    };
    let token = form.token.trim();
    if token.is_empty() || !login::fits_cookie(token) {
        return http::error(
            Kind::InvalidQuery,
            "token: give a token as `session-manager token create` prints it, or a JWT",
        );
    }
    match port.credentials.check(Presented { token: Some(token), certificate: None, from: from.ip() }) {
        Ok(identity) => {
            let me = describe(&identity, port.credentials.are_needed());
            with_cookie(axum::Json(me).into_response(), &login::cookie(token, port.speaks_tls))
        }
        Err(refused) => {
            audit::refused_login(from.ip(), "http", refused);
            HttpError::Login(refused).into_response()
        }
    }
}

/// Removes the cookie.
pub async fn logout(State(port): State<Port>) -> Response {
    with_cookie(axum::Json(json!({ "ok": true })).into_response(), &login::no_cookie(port.speaks_tls))
}

fn with_cookie(mut response: Response, cookie: &str) -> Response {
    if let Ok(value) = HeaderValue::from_str(cookie) {
        response.headers_mut().insert(header::SET_COOKIE, value);
    }
    response
}

/// What a page needs to show only what the caller may do.
fn describe(identity: &Arc<Identity>, needs_login: bool) -> Value {
    let may = |action| identity.may(action);
    json!({
        "name": &*identity.name,
        "role": identity.role.name(),
        "scope": identity.scope.as_ref().map(|scope| scope.fields()),
        "login": needs_login,
        "may": {
            "read": may(Action::Read),
            "write": may(Action::Write),
            "events": may(Action::Events),
            "metrics": may(Action::Metrics),
            "administer": may(Action::Administer),
        },
    })
}
