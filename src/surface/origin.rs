//! Owns: which web pages may talk to this node, and the answers that tell a browser so (CORS). Also which host names
//! this node answers to.
//! Never: who the caller is.

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::http::HttpError;

/// What a page may send, and what it may read of an answer.
const METHODS: &str = "GET, POST";
const HEADERS: &str = "authorization, content-type, last-event-id";
/// How long a browser remembers the answer, in seconds.
const REMEMBER: &str = "600";

/// The names that requests may carry besides those of this machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allowed {
    /// Host names of this node.
    pub hosts: Vec<String>,
    /// Origins of web pages, such as `https://app.example`.
    pub origins: Vec<String>,
}

impl Allowed {
    /// A web page can point a name of its own at this machine (DNS rebinding) and then read what this node answers,
    /// because for the browser both are one site. Its requests carry that name. An IP address is safe: a page that was
    /// loaded from an address cannot have been loaded from another machine. Only programs leave the host out.
    pub fn check_host(&self, request: &Request) -> Result<(), HttpError> {
        let named = request.headers().get_all(header::HOST).iter().map(|host| host.to_str().unwrap_or("<unreadable>"));
        for authority in named.chain(request.uri().authority().map(|authority| authority.as_str())) {
            let host = host_of(authority);
            let is_address = host.parse::<IpAddr>().is_ok();
            let is_local = host.eq_ignore_ascii_case("localhost");
            if !is_address && !is_local && !self.hosts.iter().any(|name| host.eq_ignore_ascii_case(name)) {
                return Err(HttpError::ForeignHost { host: host.chars().take(256).collect() });
            }
        }
        Ok(())
    }

    /// A node may let everybody in, so a web page must not reach the node through a visitor's browser. Browsers send
    /// the page's origin with upgrades and POSTs. Programs send no origin.
    pub fn check_origin(&self, headers: &HeaderMap) -> Result<(), HttpError> {
        for origin in headers.get_all(header::ORIGIN) {
            let text = origin.to_str().unwrap_or("<unreadable>");
            if !self.allows(text) {
                return Err(HttpError::ForeignOrigin { origin: text.chars().take(256).collect() });
            }
        }
        Ok(())
    }

    fn allows(&self, origin: &str) -> bool {
        is_loopback(origin) || self.origins.iter().any(|allowed| allowed.eq_ignore_ascii_case(origin))
    }

    /// The origin of a request, if pages of it may read the answer.
    pub fn reader(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let origin = headers.get(header::ORIGIN)?;
        self.allows(origin.to_str().ok()?).then(|| origin.clone())
    }
}

/// Whether a request can only come from a page that this node served, or from a program. A page of another port of this
/// machine may call this node, but not in the name of somebody who logged in here.
pub fn is_own_page(headers: &HeaderMap) -> bool {
    let host = headers.get(header::HOST).map(HeaderValue::as_bytes);
    let is_own = |origin: &HeaderValue| {
        let authority = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
        authority.is_some_and(|(_, authority)| host == Some(authority.as_bytes()))
    };
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    let is_same = matches!(site, None | Some(b"same-origin" | b"none"));
    is_same && headers.get_all(header::ORIGIN).iter().all(is_own)
}

/// Whether a browser asks what it may send, before it sends it.
pub fn is_preflight(request: &Request) -> bool {
    request.method() == Method::OPTIONS && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

/// Answers a browser that asks. Cookies are not allowed: a page presents its token in a header.
pub fn preflight(reader: Option<HeaderValue>) -> Response {
    let Some(origin) = reader else { return StatusCode::FORBIDDEN.into_response() };
    let allowed = [
        (header::ACCESS_CONTROL_ALLOW_METHODS, METHODS),
        (header::ACCESS_CONTROL_ALLOW_HEADERS, HEADERS),
        (header::ACCESS_CONTROL_MAX_AGE, REMEMBER),
    ];
    readable_by(Some(origin), (StatusCode::NO_CONTENT, allowed).into_response())
}

/// Lets pages of an origin read an answer.
pub fn readable_by(reader: Option<HeaderValue>, mut response: Response) -> Response {
    if let Some(origin) = reader {
        let headers = response.headers_mut();
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.append(header::VARY, HeaderValue::from_static("origin"));
    }
    response
}

/// The host of `host:port`, without the brackets of an IPv6 address.
fn host_of(authority: &str) -> &str {
    match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => authority.split(':').next().unwrap_or(authority),
    }
}

fn is_loopback(origin: &str) -> bool {
    let Some((_scheme, authority)) = origin.split_once("://") else { return false };
    let host = host_of(authority);
    host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn allowed() -> Allowed {
        Allowed { hosts: vec!["sessions.internal".to_owned()], origins: vec!["https://app.example".to_owned()] }
    }

    #[test]
    fn only_names_of_this_node_are_answered() {
        let asked = |host: &str| {
            let request = Request::builder().uri("/v1/events").header("host", host);
            allowed().check_host(&request.body(Body::empty()).unwrap())
        };
        for host in
            ["localhost", "LOCALHOST:49134", "127.0.0.1:49134", "[::1]:49134", "10.1.2.3", "Sessions.Internal:80"]
        {
            assert_eq!(asked(host), Ok(()), "{host}");
        }
        for host in ["evil.example", "evil.example:49134", "localhost.evil.example", "127.0.0.1.evil.example", ""] {
            assert!(asked(host).is_err(), "{host}");
        }
        assert_eq!(Allowed::default().check_host(&Request::new(Body::empty())), Ok(()));
    }

    #[test]
    fn only_pages_of_this_machine_and_allowed_ones_may_call() {
        for origin in [
            "http://localhost",
            "http://localhost:3000",
            "https://127.0.0.1:8443",
            "http://[::1]:5",
            "https://app.example",
            "https://APP.example",
        ] {
            assert!(allowed().allows(origin), "{origin}");
        }
        for origin in [
            "null",
            "",
            "http://evil.example",
            "http://app.example",
            "https://app.example:444",
            "https://app.example.evil.example",
            "http://localhost.evil.example",
            "http://127.0.0.1.evil.example",
            "http://192.168.0.7",
            "http://evil.example:80@localhost",
            "file://",
        ] {
            assert!(!allowed().allows(origin), "{origin}");
        }
    }
}
