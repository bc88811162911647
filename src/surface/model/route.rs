//! Owns: the paths of the session model. A path is split before it is decoded, so that an id may contain a slash.

use axum::http::Method;

use super::error::ModelError;

const ROOT: &str = "/api/agents/";

/// Whether a path belongs to the session model.
pub fn owns(path: &str) -> bool {
    path.starts_with(ROOT)
}

/// What a request is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    Health { agent: String },
    Open { agent: String },
    List { agent: String },
    Delete { agent: String, session: String },
    History { agent: String, session: String },
    Post { agent: String, session: String },
    Approve { agent: String, session: String },
    Checkpoint { agent: String, session: String },
    Events { agent: String, session: String },
    Socket { agent: String },
}

impl Route {
    pub fn read(method: &Method, path: &str) -> Result<Route, ModelError> {
        let nothing = || ModelError::NoRoute { method: method.to_string(), path: path.to_owned() };
        let rest = path.strip_prefix(ROOT).ok_or_else(nothing)?;
        let parts: Vec<&str> = rest.split('/').collect();
        let decoded = |part: &str| decode(part).ok_or(ModelError::Path);
        let agent = decoded(parts.first().copied().unwrap_or_default())?;
        if agent.is_empty() {
            return Err(nothing());
        }
        let (get, post, delete) = (*method == Method::GET, *method == Method::POST, *method == Method::DELETE);
        match parts.get(1..).unwrap_or_default() {
            ["health"] if get => Ok(Route::Health { agent }),
            ["ws"] if get => Ok(Route::Socket { agent }),
            ["sessions"] if post => Ok(Route::Open { agent }),
            ["sessions"] if get => Ok(Route::List { agent }),
            ["sessions", session] if delete => Ok(Route::Delete { agent, session: decoded(session)? }),
            ["sessions", session, what] => {
                let session = decoded(session)?;
                match *what {
                    "messages" if get => Ok(Route::History { agent, session }),
                    "messages" if post => Ok(Route::Post { agent, session }),
                    "approve" if post => Ok(Route::Approve { agent, session }),
                    "checkpoint" if post => Ok(Route::Checkpoint { agent, session }),
                    "events" if get => Ok(Route::Events { agent, session }),
                    _unknown => Err(nothing()),
                }
            }
            _unknown => Err(nothing()),
        }
    }

    pub fn agent(&self) -> &str {
        match self {
            Route::Health { agent }
            | Route::Open { agent }
            | Route::List { agent }
            | Route::Delete { agent, .. }
            | Route::History { agent, .. }
            | Route::Post { agent, .. }
            | Route::Approve { agent, .. }
            | Route::Checkpoint { agent, .. }
            | Route::Events { agent, .. }
            | Route::Socket { agent } => agent,
        }
    }
}

/// Percent-decodes one part of a path. `None` if it is not UTF-8 or ends within an escape.
fn decode(part: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.as_bytes();
    while let [first, tail @ ..] = rest {
        match (first, tail) {
            (b'%', [high, low, tail @ ..]) => {
                let digit = |byte: &u8| (*byte as char).to_digit(16);
                bytes.push(u8::try_from(digit(high)? * 16 + digit(low)?).ok()?);
                rest = tail;
            }
            (b'%', _) => return None,
            (byte, tail) => {
                bytes.push(*byte);
                rest = tail;
            }
        }
    }
    String::from_utf8(bytes).ok()
}

/// The pairs of a query, in their order. `+` is a space, as browsers write it.
pub fn pairs(query: &str) -> Result<Vec<(String, String)>, ModelError> {
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let read = |text: &str| decode(&text.replace('+', " ")).ok_or(ModelError::Query);
        Ok((read(name)?, read(value)?))
    };
    query.split('&').filter(|text| !text.is_empty()).map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(method: &Method, path: &str) -> Option<Route> {
        Route::read(method, path).ok()
    }

    #[test]
    fn an_id_may_contain_a_slash_when_it_is_escaped() {
        let (agent, session) = ("a/b".to_owned(), "cli:a/b%".to_owned());
        let path = "/api/agents/a%2Fb/sessions/cli%3Aa%2Fb%25/messages";
        assert_eq!(read(&Method::GET, path), Some(Route::History { agent, session }));
        assert_eq!(read(&Method::GET, "/api/agents/a/sessions/cli/a/messages"), None);
    }

    #[test]
    fn every_route_has_its_method() {
        let post = Method::POST;
        for (method, path, found) in [
            (Method::GET, "/api/agents/m/health", true),
            (Method::POST, "/api/agents/m/health", false),
            (Method::POST, "/api/agents/m/sessions", true),
            (Method::GET, "/api/agents/m/sessions", true),
            (Method::PUT, "/api/agents/m/sessions", false),
            (Method::DELETE, "/api/agents/m/sessions/s", true),
            (Method::GET, "/api/agents/m/sessions/s", false),
            (post.clone(), "/api/agents/m/sessions/s/messages", true),
            (post.clone(), "/api/agents/m/sessions/s/approve", true),
            (post.clone(), "/api/agents/m/sessions/s/checkpoint", true),
            (Method::GET, "/api/agents/m/sessions/s/events", true),
            (Method::GET, "/api/agents/m/ws", true),
            (Method::GET, "/api/agents/", false),
            (Method::GET, "/api/agents//health", false),
            (Method::GET, "/api/agents/m/sessions/s/other", false),
            (Method::GET, "/api/agents/m/sessions/s/events/more", false),
        ] {
            assert_eq!(read(&method, path).is_some(), found, "{method} {path}");
        }
        assert!(owns("/api/agents/m/ws") && !owns("/api/agent/m") && !owns("/v1/call"));
    }

    #[test]
    fn a_broken_escape_is_refused() {
        for path in ["%", "%2", "%zz", "%ff"] {
            let path = format!("/api/agents/m/sessions/{path}/messages");
            assert_eq!(Route::read(&Method::GET, &path), Err(ModelError::Path), "{path}");
        }
        assert_eq!(pairs("a=%41+b&c&&d=e=f").unwrap().len(), 3);
        assert_eq!(pairs("a=%41+b").unwrap()[0].1, "A b");
        assert_eq!(pairs("a=%4"), Err(ModelError::Query));
    }
}
