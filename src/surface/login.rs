//! Owns: where a request carries its credentials: the header `Authorization`, a protocol of a WebSocket, a query parameter
//! or a cookie.
//! Never: whether they are right (`access`), or a credential in a log.

use std::net::IpAddr;
use std::sync::Arc;

use axum::http::{HeaderMap, Uri, header};

use super::origin;
use crate::access::{Credentials, Identity, LoginError, Presented};

/// The query parameter of browsers, which cannot set headers on a WebSocket or an EventSource.
pub const QUERY: &str = "token";
/// The cookie of browsers. It counts only in requests of pages that this node served.
const COOKIE: &str = "session_manager_token";
/// Browsers drop longer cookies without a word.
const COOKIE_BYTES_MAX: usize = 3800;

/// Whether a token can be put into a cookie as it is.
pub fn fits_cookie(token: &str) -> bool {
    let is_plain = token.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte));
    is_plain && token.len() <= COOKIE_BYTES_MAX
}

/// The header that makes a browser keep a token. No script can read it, and no other site can make a browser send it.
pub fn cookie(token: &str, speaks_tls: bool) -> String {
    let secure = if speaks_tls { "; Secure" } else { "" };
    format!("{COOKIE}={token}; Path=/; HttpOnly; SameSite=Strict{secure}")
}

/// The header that makes a browser forget it.
pub fn no_cookie(speaks_tls: bool) -> String {
    format!("{}; Max-Age=0", cookie("", speaks_tls))
}

/// Checks the credentials of a request.
pub fn check(
    credentials: &Credentials,
    headers: &HeaderMap,
    uri: &Uri,
    certificate: Option<&Arc<Identity>>,
    from: IpAddr,
) -> Result<Arc<Identity>, LoginError> {
    let token =
        bearer(headers)?.or_else(|| in_protocol(headers)).or_else(|| in_query(uri)).or_else(|| in_cookie(headers));
    credentials.check(Presented { token, certificate, from })
}

/// The token of the header. A header of another kind is wrong, and not the same as none.
fn bearer(headers: &HeaderMap) -> Result<Option<&str>, LoginError> {
    let Some(value) = headers.get(header::AUTHORIZATION) else { return Ok(None) };
    let text = value.to_str().map_err(|_| LoginError::Wrong)?;
    let (kind, token) = text.split_once(' ').ok_or(LoginError::Wrong)?;
    if !kind.eq_ignore_ascii_case("bearer") {
        return Err(LoginError::Wrong);
    }
    Ok(Some(token.trim()))
}

/// A page names this protocol of a WebSocket and then its token: `new WebSocket(url, ["bearer", token])`.
pub const BEARER_PROTOCOL: &str = "bearer";

pub fn has_bearer_protocol(headers: &HeaderMap) -> bool {
    in_protocol(headers).is_some()
}

fn in_protocol(headers: &HeaderMap) -> Option<&str> {
    let offered = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).into_iter().filter_map(|value| value.to_str().ok());
    let mut names = offered.flat_map(|value| value.split(',')).map(str::trim);
    names.find(|name| *name == BEARER_PROTOCOL)?;
    names.next()
}

/// Tokens consist of characters that need no escape in a URL.
fn in_query(uri: &Uri) -> Option<&str> {
    let pairs = uri.query()?.split('&').filter_map(|pair| pair.split_once('='));
    pairs.filter(|(name, _)| *name == QUERY).map(|(_, token)| token).next()
}

/// A page on another port of this machine belongs to the same site, so a browser sends the cookie for it too. Only pages
/// of this node may use it.
fn in_cookie(headers: &HeaderMap) -> Option<&str> {
    if !origin::is_own_page(headers) {
        return None;
    }
    let cookies = headers.get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == COOKIE).map(|(_, token)| token)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn a_token_is_found_in_the_header_the_query_and_the_cookie() {
        let mut headers = HeaderMap::new();
        assert_eq!(bearer(&headers), Ok(None));
        for (value, found) in [
            ("Bearer abc", Ok(Some("abc"))),
            ("bearer  abc ", Ok(Some("abc"))),
            ("Basic abc", Err(LoginError::Wrong)),
            ("abc", Err(LoginError::Wrong)),
        ] {
            headers.insert(header::AUTHORIZATION, HeaderValue::from_static(value));
            assert_eq!(bearer(&headers), found, "{value}");
        }
        assert_eq!(in_protocol(&headers), None);
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static("other, bearer, abc"));
        assert_eq!(in_protocol(&headers), Some("abc"));
        assert_eq!(in_query(&Uri::from_static("/?a=1&token=abc&b")), Some("abc"));
        assert_eq!(in_query(&Uri::from_static("/?tokens=abc")), None);
        headers.insert(header::COOKIE, HeaderValue::from_static("a=b; session_manager_token=abc"));
        assert_eq!(in_cookie(&headers), Some("abc"));
        assert!(cookie("abc", true).ends_with("; HttpOnly; SameSite=Strict; Secure"));
        assert!(fits_cookie("a-b._~+/=") && !fits_cookie("a;b") && !fits_cookie("a b"));
    }

    #[test]
    fn the_cookie_counts_only_for_pages_of_this_node() {
        let with = |pairs: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            headers.insert(header::COOKIE, HeaderValue::from_static("session_manager_token=abc"));
            headers.insert(header::HOST, HeaderValue::from_static("127.0.0.1:49134"));
            for (name, value) in pairs {
                headers.insert(*name, HeaderValue::from_static(value));
            }
            in_cookie(&headers).is_some()
        };
        assert!(with(&[]));
        assert!(with(&[("origin", "http://127.0.0.1:49134"), ("sec-fetch-site", "same-origin")]));
        assert!(with(&[("sec-fetch-site", "none")]));
        assert!(!with(&[("origin", "http://127.0.0.1:3000")]));
        assert!(!with(&[("origin", "null")]));
        assert!(!with(&[("sec-fetch-site", "same-site")]));
        assert!(!with(&[("sec-fetch-site", "cross-site")]));
    }
}
